"""The door of `ftslurm report`: one job as a page, or many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.others import for_users
from ftslurm.cli.output import as_json, passed_over, site_settings, store, tasks_of
from ftslurm.errors import CommandMissing, StateError, UsageError
from ftslurm.model.text import visible
from ftslurm.report.words import day

if TYPE_CHECKING:
    from ftslurm.report.account.job import JobAccount
    from ftslurm.report.page.document import Document

FORMATS = ("html", "md", "json")
# Without a job and without --since.
USUAL = "30d"


@click.command(short_help="Report where the time of jobs went and what failed.")
@click.argument("job", nargs=-1, shell_complete=complete.jobs)
@click.option(
    "-o",
    "--output",
    "place",
    metavar="FILE",
    default="",
    shell_complete=complete.files,
    help="Write to this file; its ending selects the format.",
)
@click.option("--since", default="", metavar="TIME", help=f"All jobs since then: 7d, 2026-11-20; {USUAL} where no job is named.")
@click.option("--format", "form", type=click.Choice(FORMATS), default=None, help="Default: by the ending of -o, else md.")
@for_users("job")
def report(job: tuple[str, ...], place: str, since: str, all_users: bool, form: str | None) -> None:
    """Report what happened to JOB: where its time went, what failed, what was done; -o job.html makes a page with pictures.

    Of several jobs, or of all since some time: what failed most and where, goodput, time between failures, GPU-hours saved.
    """
    form = _format(form, place)
    now = time.time()
    job = tuple(name for each in job for name in tasks_of(each) or [each])
    if len(job) == 1 and not (since or all_users):
        text = _one(job[0], form, now)
    else:
        if job and (since or all_users):
            raise UsageError("--since and --all-users do not go with JOB", hint="name either jobs or a time")
        text = _many(job, since, all_users, form, now)
    if not place:
        click.echo(visible(text, lines=True), nl=False)
        return
    from ftslurm.wrapper.reports import write_whole

    write_whole(Path(place), text)
    click.echo(visible(f"{place}: {len(text.encode()) / 1024:.0f} KB"), err=True)


def _format(form: str | None, place: str) -> str:
    """Raises: UsageError."""
    if form is not None:
        return form
    ending = Path(place).suffix.lower().lstrip(".")
    known = {"htm": "html", "markdown": "md", "": "md"}.get(ending, ending)
    if known not in FORMATS:
        endings = ", ".join(f".{one}" for one in FORMATS[:-1]) + f" or .{FORMATS[-1]}"
        raise UsageError(f"-o {place}: no format has this ending", hint=f"end the name in {endings}, or pass --format")
    return known


def _one(name: str, form: str, now: float) -> str:
    from ftslurm.report.page import job as page
    from ftslurm.report.page import plain
    from ftslurm.wrapper.reports import one_job

    found, evidence = one_job(store(), name, os.environ, now)
    if form == "json":
        return as_json(plain.job_as_plain(found)) + "\n"
    return _text(page.job_document(found, now, evidence), form)


def _many(names: tuple[str, ...], since: str, all_users: bool, form: str, now: float) -> str:
    from ftslurm.ledger.store import state_folder
    from ftslurm.report.account.jobs import jobs_account
    from ftslurm.report.jobs import parse_moment
    from ftslurm.report.page import jobs as page
    from ftslurm.report.page import plain
    from ftslurm.wrapper import reports

    passed: list[str] = []

    def left_out(error: StateError) -> None:
        passed_over(error)
        passed.append(str(error))

    began = parse_moment(since or USUAL, now)
    if names:
        found = reports.jobs_named(store(), names, os.environ, now)
        began = min(one.began for one in found)
    elif all_users:
        found = _of_all_users(began, now, left_out)
    else:
        found = reports.jobs_since(state_folder(os.environ), began, os.environ, now, left_out)
    if not found:
        raise UsageError(f"no job has run under ftrun since {day(began)}", hint="--since 365d looks further back")
    account = jobs_account(found, began, now, passed)
    if form == "json":
        return as_json(plain.jobs_as_plain(account)) + "\n"
    title = "Training jobs of all users" if all_users else "Training jobs"
    return _text(page.jobs_document(account, now, title), form)


def _of_all_users(began: float, now: float, left_out: Callable[[StateError], None]) -> list[JobAccount]:
    """Raises: UsageError, PolicyError."""
    from ftslurm.wrapper.all_ledgers import accounts_of_all

    if os.geteuid() != 0:
        raise UsageError("only root may use --all-users", hint="omit it to report on your own jobs")
    site = site_settings()
    return accounts_of_all(began, now, site.ledgers, site.first_user_id, left_out)


def _text(document: Document, form: str) -> str:
    """Raises: CommandMissing where what makes pages is not installed."""
    if form == "md":
        from ftslurm.report.page.plain import render_text

        return render_text(document)
    try:
        from ftslurm.report.page import html
    except ImportError as error:
        from ftslurm.system.plugins import pip_line

        raise CommandMissing(
            f"a page needs {error.name or 'jinja2'}, which is not installed",
            hint=f"{pip_line('report')}; --format md does without",
        ) from None
    return html.render_html(document)
