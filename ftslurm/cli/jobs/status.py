"""The door of `ftslurm status`: one job in detail, or all of them, a line each."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import asdict
from typing import TypeVar

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.output import find_ledger, print_json, tasks_of, this_job
from ftslurm.errors import StateError, UsageError
from ftslurm.ledger.store import state_folder
from ftslurm.model.nodes import expand
from ftslurm.model.text import counted, visible
from ftslurm.report.jobs import SORTS, WIDE, Wanted, chosen, lines, moment, states_named

T = TypeVar("T")


@click.command(short_help="Show where JOB stands, or one line for each job.")
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--all", "every", is_flag=True, help="Include jobs that ended before --since.")
@click.option("--since", default="7d", show_default=True, metavar="TIME",
              help="Include jobs that ended since then: 36h, 2026-11-20.")  # fmt: skip
@click.option("--until", default="", metavar="TIME", help="Only jobs that began before this time.")
@click.option(
    "--state",
    "states",
    default="",
    metavar="STATE,...",
    shell_complete=complete.states,
    help="Only jobs in these states: running, held, failed, ...",
)
@click.option("--name", "names", default="", metavar="NAME,...", help="Only jobs of these names; `*` and `?` as in a shell.")
@click.option("-w", "--node", "nodes", default="", metavar="NODES", help="Only jobs that ran on one of these: n[3-5].")
@click.option("--sort", type=click.Choice(sorted(SORTS)), default="last", show_default=True, help="last: those not over first.")
@click.option("-r", "--reverse", "backwards", is_flag=True, help="Reverse the order.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(
    job: str | None, every: bool, since: str, until: str, states: str, names: str, nodes: str, sort: str, backwards: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show where JOB stands: attempt, rung, counters, excluded nodes, budgets left.

    JOB is a number, an array (28, 28_[1-10]: one line for each task), or a ledger file.

    Without JOB: the job that this runs in, else one line for each job that has a ledger, the latest first.
    """
    job = job or (None if every or states or names or nodes or until else this_job())
    tasks = tasks_of(job) if job else []
    if job and not tasks:
        return _one(job, as_json)
    from ftslurm.wrapper.jobs import all_jobs

    now, folder = time.time(), state_folder(os.environ)
    oldest = moment(since, now)
    wanted = Wanted(
        states_named(states), 0.0 if every or tasks else oldest, "job" if tasks else sort, moment(until, now) if until else 0.0,
        tuple(filter(None, names.split(","))), frozenset(expand(nodes)), backwards, frozenset(tasks),
    )  # fmt: skip
    jobs, silent = all_jobs(folder, os.environ, passed_over=passed_over)
    shown, older = chosen(jobs, wanted)
    if as_json:
        return print_json([one._asdict() for one in shown])
    if shown:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        named = bool(names) or sort == "name" or width >= WIDE
        click.echo(visible("\n".join(lines(shown, now, width, named)), lines=True))
    if not jobs:
        click.echo(f"no ledger in {visible(folder)}: no job has run under ftrun yet", err=True)
    if older:
        more = f"{counted(older, 'job')} that ended {_when(since)} {'is' if older == 1 else 'are'} not shown (--all)"
        click.echo(visible(more), err=True)
    if silent:
        click.echo(f"from the ledgers alone, because Slurm does not answer: {visible(silent)}", err=True)


def passed_over(error: StateError) -> None:
    click.echo(f"ftslurm: {visible(error)}: skipped", err=True)


def _one(job: str, as_json: bool) -> None:
    from ftslurm.report import text
    from ftslurm.wrapper.jobs import status_of

    journal, contents = find_ledger(job)
    found = require_begun(job, status_of(journal, contents, os.environ))
    if as_json:
        return print_json(asdict(found))
    text.print_status(text.console(), found)


def require_begun(job: str, found: T | None) -> T:
    """Raises: UsageError for a ledger in which nothing has."""
    if found is None:
        raise UsageError(f"the ledger of job {job} is empty: nothing has begun", hint="try again in a moment")
    return found


def _when(since: str) -> str:
    return f"before {since}" if "-" in since or ":" in since else f"more than {since} ago"
