"""The door of `ftslurm history`: the attempts of one job, or of the latest ones as sacct(1) lists jobs."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.jobs.status import passed_over, require_begun
from ftslurm.cli.output import find_ledger, print_json, tasks_of, this_job
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.ledger.store import state_folder
from ftslurm.model.text import visible
from ftslurm.report.jobs import moment


@click.command(short_help="List the attempts of JOB: what failed, and the remedy.")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete.jobs)
@click.option("-v", "--verbose", is_flag=True, help="Show all that ftrun knew, and why it passed each earlier rung.")
@click.option("--since", default="", metavar="TIME",
              help="Without JOB: those that ran since then: 36h, 2026-11-20. Default: since midnight, as sacct.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs, with all that ftrun knew.")
def history(jobs: tuple[str, ...], verbose: bool, since: str, as_json: bool) -> None:
    """List the attempts of JOB: nodes, times, what failed and why, the remedy and its cost. Repetitions are folded.

    JOB is a number, an array (28, 28_[1-10]), or a ledger file. Without JOB: the job that this runs in, else each that ran today.
    """
    inside = None if jobs or since else this_job()
    given = jobs or ((inside,) if inside is not None else ())
    named = [name for job in given for name in tasks_of(job) or [job]]
    found = [find_ledger(job) for job in named or _latest(since)]
    if as_json:
        told = [_as_json(journal, contents) for journal, contents in found]
        return print_json(told[0] if len(named) == 1 else told)
    for number, (journal, contents) in enumerate(found):
        if number:
            click.echo()
        _print(journal, contents, verbose)


def _latest(since: str) -> list[str]:
    """`cluster.number` of the jobs that ran since then, the first first; of the last one where none did."""
    from ftslurm.ledger.index import Index

    folder = state_folder(os.environ)
    known = {Path(name).stem: job for name, job in Index(folder).named(passed_over).items()}
    oldest = moment(since or "00:00", time.time())
    if not known:
        click.echo(f"no ledger in {visible(folder)}: no job has run under ftrun yet", err=True)
    chosen = [name for name, job in known.items() if job.at >= oldest or not job.over]
    if known and not chosen:
        click.echo(f"no job ran since {visible(since or 'midnight')}; the last one was:", err=True)
        chosen = [max(known, key=lambda name: known[name].at)]
    return sorted(chosen, key=lambda name: known[name].began)


def _as_json(journal: Journal, contents: Contents) -> dict[str, Any]:
    from ftslurm.ledger.evidence import kept_evidence
    from ftslurm.report import view
    from ftslurm.wrapper.jobs import status_of

    found = require_begun(journal.path.stem, status_of(journal, contents, os.environ))
    attempts = [asdict(attempt) for attempt in view.attempts(contents.records)]
    return {"job": asdict(found), "attempts": attempts, "evidence": [str(path) for path in kept_evidence(journal.path)]}


def _print(journal: Journal, contents: Contents, verbose: bool) -> None:
    from ftslurm.ledger.evidence import kept_evidence
    from ftslurm.report import text, view
    from ftslurm.wrapper.jobs import status_of

    found = require_begun(journal.path.stem, status_of(journal, contents, os.environ))
    text.print_history(text.console(), found, view.attempts(contents.records), verbose)
    text.print_files(text.console(), "what hung ranks were doing", [str(path) for path in kept_evidence(journal.path)])
