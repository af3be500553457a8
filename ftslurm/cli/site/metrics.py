"""The door of `ftslurm metrics`: jobs in numbers, as Prometheus reads them, and as traces for OpenTelemetry."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from ftslurm.cli import suggestions as complete
from ftslurm.errors import StateError, UsageError
from ftslurm.model.text import visible


@click.command(short_help="Print metrics of jobs for Prometheus, or send a trace.")
@click.argument("job", required=False, shell_complete=complete.jobs)
@click.option("--since", default="1d", show_default=True, metavar="TIME", help="Include jobs that ended within this time.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Only the latest jobs.")
@click.option("--all-users", is_flag=True, help="As root: jobs of every user who has ledgers.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="",
    shell_complete=complete.files,
    help="Replace FILE whole, mode 0644, instead of stdout.",
)
@click.option("--otlp", is_flag=True, help="Send traces instead, to --endpoint or OTEL_EXPORTER_OTLP_ENDPOINT.")
@click.option("--endpoint", metavar="URL", default="", help="As http://collector:4318/v1/traces.")
def metrics(job: str | None, since: str, limit: int, all_users: bool, output: str, otlp: bool, endpoint: str) -> None:
    """Jobs, attempts, restarts by rung and cause, seconds by phase, excluded nodes: on stdout, in Prometheus' text format.

    For JOB, or for all jobs that run or ended within --since. ftrun writes the same for node_exporter while the job runs, with
    its beats (metrics.dir).
    """
    if otlp:
        return _send(job, endpoint)
    try:
        from ftslurm.wrapper.measuring.exposition import text
    except ImportError:
        raise UsageError("this needs prometheus-client, which is not installed", hint="pip install 'ftslurm[metrics]'") from None
    from ftslurm.cli.output import site_settings
    from ftslurm.model.settings.tree import duration
    from ftslurm.wrapper.all_measures import jobs_of_all, jobs_of_me

    try:
        oldest = time.time() - duration(since)
    except ValueError as error:
        raise UsageError(f"--since {since}: {error}", hint="write 1d, or 12h") from None
    if all_users and job:
        raise UsageError("--all-users and JOB exclude each other", hint="omit one of them")
    if all_users:
        site = site_settings()
        found = jobs_of_all(oldest, limit, _passed_over, site.ledgers, site.first_user_id)
    else:
        found = jobs_of_me(job, oldest, limit, _passed_over)
    shown = visible(text(found), lines=True)
    if output:
        return _replace(Path(output), shown)
    click.echo(visible(shown, lines=True), nl=False)


def _replace(path: Path, text: str) -> None:
    """Raises: StateError."""
    from ftslurm.wrapper.measuring.textfile import write

    try:
        write(path, text)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}", hint="check free space and rights") from None


def _passed_over(text: str) -> None:
    click.echo(f"ftslurm: {visible(text)}: skipped", err=True)


def _send(job: str | None, endpoint: str) -> None:
    from ftslurm.cli.output import store
    from ftslurm.wrapper.measuring.traces import otlp_exporter, send, spans_of

    if not job:
        raise UsageError("--otlp sends the trace of one job", hint="ftslurm metrics --otlp JOB")
    if not (endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        raise UsageError("no endpoint is given for the trace", hint="--endpoint http://collector:4318/v1/traces")
    journal, _ = store().find(job)
    found = spans_of(journal.path)
    if not found:
        raise StateError(f"the ledger of job {job} is empty: nothing has begun", hint="try again in a moment")
    send(found, otlp_exporter(endpoint))
    click.echo(f"{visible(len(found))} spans of job {visible(job)} sent")
