"""The doors of `ftslurm status` and `ftslurm history`: where jobs stand, and what became of their attempts."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.others import for_users
from ftslurm.cli.output import find_ledger, passed_over, print_json, site_settings, tasks_of, this_job
from ftslurm.errors import UsageError
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.ledger.store import state_folder
from ftslurm.model.nodes import expand
from ftslurm.model.text import counted, visible
from ftslurm.report.jobs import SORTS, WIDE, JobsWanted, job_lines, parse_moment, shown_jobs, states_named
from ftslurm.report.view import Status

if TYPE_CHECKING:
    from ftslurm.model.folds.summary import JobSummary, Story
    from ftslurm.report.view import HistoryTold

# Of each user in a list of all users' jobs.
MOST = 1000


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
@for_users("job")
def status(
    job: str | None, every: bool, since: str, until: str, states: str, names: str, nodes: str, sort: str, backwards: bool,
    as_json: bool, all_users: bool,
) -> None:  # fmt: skip
    """Show where JOB stands: attempt, rung, counters, excluded nodes, budgets left.

    JOB is a number, an array (28, 28_[1-10]: one line for each task), or a ledger file.

    Without JOB: the job that this runs in, else one line for each job that has a ledger, the latest first.
    """
    job = job or (None if all_users or every or states or names or nodes or until else this_job())
    tasks = tasks_of(job) if job else []
    if job and not tasks:
        return _one(job, as_json)
    from ftslurm.wrapper.jobs import all_jobs

    now, folder = time.time(), state_folder(os.environ)
    oldest = parse_moment(since, now)
    wanted = JobsWanted(
        states_named(states), 0.0 if every or tasks else oldest, "job" if tasks else sort,
        parse_moment(until, now) if until else 0.0, tuple(filter(None, names.split(","))),
        frozenset(expand(nodes)), backwards, frozenset(tasks),
    )  # fmt: skip
    if all_users:
        return _of_all(wanted, now, as_json)
    jobs, silent = all_jobs(folder, os.environ, passed_over=passed_over)
    shown, older = shown_jobs(jobs.values(), wanted)
    if as_json:
        return print_json(shown)
    if shown:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        named = bool(names) or sort == "name" or width >= WIDE
        click.echo(visible("\n".join(job_lines(shown, now, width, named)), lines=True))
    if not jobs:
        click.echo(f"no ledger in {visible(folder)}: no job has run under ftrun yet", err=True)
    if older:
        when = f"before {since}" if "-" in since or ":" in since else f"more than {since} ago"
        more = f"{counted(older, 'job')} that ended {when} {'is' if older == 1 else 'are'} not shown (--all)"
        click.echo(visible(more), err=True)
    if silent:
        say_silent(silent)


def _of_all(wanted: JobsWanted, now: float, as_json: bool) -> None:
    from ftslurm.report.measures import lost_s
    from ftslurm.wrapper.all_ledgers import jobs_of_all

    site = site_settings()
    found = jobs_of_all(wanted.since, MOST, passed_over, site.ledgers, site.first_user_id)
    rest = {id(job): (user, lost_s(measures)) for user, job, measures in found}
    shown = [(rest[id(job)][0], job, rest[id(job)][1]) for job in shown_jobs((job for _, job, _ in found), wanted)[0]]
    if as_json:
        return print_json([{"user": user, "lost_s": lost, **job._asdict()} for user, job, lost in shown])
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = job_lines([job for _, job, _ in shown], now, width, of_all=[(user, lost) for user, _, lost in shown])
    click.echo(visible("\n".join(lines), lines=True))


def say_silent(why: str) -> None:
    click.echo(f"from the ledger alone, because Slurm does not answer: {visible(why)}", err=True)


def _one(job: str, as_json: bool) -> None:
    from ftslurm.report import text

    journal, contents = find_ledger(job)
    found = status_now(journal, contents)
    if as_json:
        return print_json(found)
    text.print_status(text.console(), found, time.time())


def summary_now(journal: Journal, contents: Contents) -> JobSummary:
    """By ledger and Slurm. Raises: UsageError for a ledger in which nothing has begun."""
    from ftslurm.wrapper.jobs import job_now

    if (found := job_now(journal, contents, os.environ, silent=say_silent)) is None:
        raise UsageError(f"the ledger of job {journal.path.stem} is empty: nothing has begun", hint="try again in a moment")
    return found


def status_now(journal: Journal, contents: Contents, story: Story | None = None) -> Status:
    """story: of the ledger, where there is one. Raises: UsageError."""
    from ftslurm.report import view

    found = view.status_of(contents.records, contents.damaged, summary_now(journal, contents), story)
    assert found is not None, "a summary is of something that has begun"
    return found


# --- the door of `ftslurm history`: the attempts of one job, or of the latest ones as sacct(1) lists jobs


@click.command(short_help="List the attempts of JOB: what failed, and the remedy.")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete.jobs)
@click.option("-v", "--verbose", is_flag=True, help="Show all that ftrun knew, and why it passed each earlier rung.")
@click.option("--since", default="", metavar="TIME",
              help="Without JOB: those that ran since then: 36h, 2026-11-20. Default: since midnight, as sacct.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs, with all that ftrun knew.")
@for_users("jobs")
def history(jobs: tuple[str, ...], verbose: bool, since: str, as_json: bool) -> None:
    """List the attempts of JOB: nodes, times, what failed and why, the remedy and its cost. Repetitions are folded.

    JOB is a number, an array (28, 28_[1-10]), or a ledger file. Without JOB: the job that this runs in, else each that ran today.
    """
    from ftslurm.report import text

    inside = None if jobs or since else this_job()
    given = jobs or ((inside,) if inside is not None else ())
    named = [name for job in given for name in tasks_of(job) or [job]]
    found = [find_ledger(job) for job in named or _latest(since)]
    told = [_told(journal, contents, verbose or as_json) for journal, contents in found]
    if as_json:
        return print_json(told[0] if len(named) == 1 else told)
    for number, (each, (_, contents)) in enumerate(zip(told, found, strict=True)):
        if number:
            click.echo()
        text.print_history(text.console(), each.job, each.attempts, time.time(), contents.records if verbose else ())
        for path in each.evidence:
            click.echo(visible(f"what hung ranks were doing: {path}"))


def _latest(since: str) -> list[str]:
    """`cluster.number` of the jobs that ran since then, the first first; of the last one where none did."""
    from ftslurm.ledger.index import Index

    folder = state_folder(os.environ)
    known = {Path(name).stem: job for name, job in Index(folder).named(passed_over).items()}
    oldest = parse_moment(since or "00:00", time.time())
    if not known:
        click.echo(f"no ledger in {visible(folder)}: no job has run under ftrun yet", err=True)
    chosen = [name for name, job in known.items() if job.at >= oldest or not job.over]
    if known and not chosen:
        click.echo(f"no job ran since {visible(since or 'midnight')}; the last one was:", err=True)
        chosen = [max(known, key=lambda name: known[name].at)]
    return sorted(chosen, key=lambda name: known[name].began)


def _told(journal: Journal, contents: Contents, whole: bool) -> HistoryTold:
    from ftslurm.ledger.output import kept_evidence
    from ftslurm.model.folds.summary import Story
    from ftslurm.report import view

    story = Story(contents.records)
    found = status_now(journal, contents, story)
    evidence = [str(path) for path in kept_evidence(journal.path)]
    return view.HistoryTold(found, view.attempts(contents.records, story, whole), evidence)
