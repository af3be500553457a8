"""The door of `ftslurm watch`: a live view in a terminal, a line for each change where there is none."""

from __future__ import annotations

import os
import select
import shutil
import sys
import time

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.others import for_users
from ftslurm.cli.output import store
from ftslurm.errors import FtslurmError, UnknownJob
from ftslurm.model.text import visible

LOOK_S = 1.0
# For a job that has not begun, which asks Slurm.
LEDGER_S = 3.0


@click.command(short_help="Watch JOB while it runs.")
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--lines", "as_lines", is_flag=True, help="Print one line for each change, as into a pipe.")
@click.option("--once", is_flag=True, help="Print the view once, and exit.")
@for_users("job")
def watch(job: str | None, as_lines: bool, once: bool) -> None:
    """Watch JOB while it runs: its ranks, nodes and devices, what it waits for, what was decided. q quits.

    Without JOB: the jobs that are not over; Enter opens one.
    """
    if once:
        return _once(job)
    try:
        if job:
            _wait_for_ledger(job)
        if not as_lines and (why := _why_no_screen()) is None:
            from ftslurm.cli.jobs.watch_screen import run_screen

            return run_screen(store(), job)
        if not as_lines and why:
            click.echo(f"ftslurm: {visible(why)}: a line for each change follows", err=True)
        _job_lines(job) if job else _jobs_lines()
    except KeyboardInterrupt:
        return  # how one leaves it
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `ftslurm watch 7 | head` is no error


def _wait_for_ledger(job: str) -> None:
    """Of a job that was submitted and has not begun. Raises: UnknownJob where none of that number is to come."""
    from ftslurm.wrapper.jobs import not_begun

    told = ""
    while True:
        try:
            store().read(job)
            return
        except UnknownJob:
            if (word := not_begun(job, os.geteuid(), os.environ)) is None:
                raise
        why = f" ({word.reason})" if word.reason not in ("", "None") else ""
        if (line := f"job {job} is {word.state.lower()}{why}: ftrun has not started in it") != told:
            click.echo(visible(line), err=True)
            told = line
        time.sleep(LEDGER_S)


def _why_no_screen() -> str | None:
    """None: there can be one. Empty for a pipe, of which nobody need be told."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown", ""):
        return "the terminal cannot show a screen (TERM)"
    try:
        import textual  # noqa: F401
    except ImportError:
        from ftslurm.system.plugins import pip_line

        return f"`{pip_line('watch')}` makes a view with keys"
    return None


def _once(job: str | None) -> None:
    from ftslurm.report.jobs import job_lines
    from ftslurm.report.watch import FIRST_S, screen
    from ftslurm.wrapper.watch import JobsWatch, JobWatch

    width, height = shutil.get_terminal_size((100, 40)) if sys.stdout.isatty() else (0, 40)
    if job is None:
        seen = JobsWatch(store(), os.environ).look()
        return click.echo(visible("\n".join(job_lines(seen.jobs, seen.now, width)), lines=True))
    looker, end = JobWatch(store(), job, os.environ), time.monotonic() + FIRST_S
    found = looker.look()
    while time.monotonic() < end and found is not None and found.told_to and not (found.complete or found.summary.over):
        time.sleep(0.2)
        found = looker.look()
    if found is None:
        return click.echo(f"job {visible(job)}: nothing has begun")
    click.echo(visible("\n".join(screen(found, width or 1000, height)), lines=True))


def _job_lines(job: str) -> None:
    """Until the job is over, or nobody reads."""
    from ftslurm.report.watch import changes
    from ftslurm.wrapper.watch import JobWatch

    looker, marks = JobWatch(store(), job, os.environ), None
    while True:
        try:
            seen = looker.look()
        except FtslurmError as error:
            click.echo(f"ftslurm: {visible(error)}", err=True)
            seen = None
        if seen is not None:
            lines, marks = changes(seen, marks)
            _print(lines)
            if seen.summary.over:
                return
        if _nobody_reads(LOOK_S):
            return


def _jobs_lines() -> None:
    """Until nobody reads."""
    from ftslurm.report.watch import job_changes
    from ftslurm.wrapper.watch import SLURM_S, JobsWatch

    looker, before = JobsWatch(store(), os.environ), None
    while True:
        seen = looker.look()
        lines, before = job_changes(seen.jobs, seen.now, before)
        _print(lines)
        if _nobody_reads(SLURM_S):
            return


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(visible(line))


def _nobody_reads(wait_s: float) -> bool:
    """Within so long: the other end of the pipe was closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(wait_s * 1000))
