"""The door of `ftslurm logs`: what a job printed, attempt by attempt."""

from __future__ import annotations

import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterable
from itertools import chain

import click

from ftslurm.cli import suggestions as complete
from ftslurm.cli.others import for_users
from ftslurm.cli.output import find_ledger
from ftslurm.errors import UsageError
from ftslurm.model.text import visible


@click.command(short_help="Print the output of JOB over all its requeues.")
@click.argument("job", shell_complete=complete.jobs)
@click.option("--attempt", type=click.IntRange(1), help="Only what this attempt printed.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank: from its own file (-o %t), or by srun's --label.")
@click.option("-f", "--follow", is_flag=True, help="Print new output, too, until the job is over.")
@click.option("--raw", is_flag=True, help="Print colours and other control characters to a terminal as they are.")
@for_users("job")
def logs(job: str, attempt: int | None, rank: int | None, follow: bool, raw: bool) -> None:
    """Print the output of JOB over all its requeues, including what Slurm has overwritten since.

    File names go to stderr, their contents to stdout: to a file or a pipe as they are, to a terminal with `?` for every control
    character, because what ranks print could control the terminal.
    """
    from ftslurm.report.logs import outputs_of
    from ftslurm.wrapper import logs as read

    if follow and attempt is not None:
        raise UsageError("--follow prints new output, --attempt past output", hint="omit one of them")
    journal, contents = find_ledger(job)
    outputs = outputs_of(contents.records)
    outputs.check(attempt)
    own = read.rank_sources(outputs, rank, attempt) if rank is not None else []
    labelled = outputs.label or read.has_cycle_files(outputs)
    if rank is not None and not own and not labelled:
        raise UsageError(
            f"the output of rank {rank} cannot be told from that of the others",
            hint="run the job with srun's --label, or with %t in -o",
        )
    by_label = rank if rank is not None and not own else None
    found = own or read.sources(outputs, journal.path, attempt)
    if follow:
        files = [source.path for source in found if source.schedule is None]
        return _print(read.follow(files, lambda: _over(job), by_label), raw)
    missing = None
    for source in found:
        try:
            pieces = read.read(source, attempt, by_label)
            first = next(pieces, None)
        except UsageError as error:
            missing = error
            continue
        if first is not None:
            if len(found) > 1:
                click.echo(f"==> {visible(source.title)} <==", err=True)
            _print(chain([first], pieces), raw)
    if missing is not None:
        raise missing


def _over(job: str) -> bool:
    from ftslurm.wrapper.jobs import job_now

    known = job_now(*find_ledger(job), os.environ)
    return known is not None and known.over


def _print(pieces: Iterable[bytes], raw: bool) -> None:
    if sys.stdout.isatty() and not raw:
        return _show(pieces)
    for piece in pieces:
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _show(pieces: Iterable[bytes]) -> None:
    """A piece may end within a character. What a progress bar writes over itself becomes lines."""
    decode = getincrementaldecoder("utf-8")(errors="replace").decode
    for piece in chain(pieces, [b""]):
        text = decode(piece, final=not piece).replace("\r\n", "\n").replace("\r", "\n")
        sys.stdout.write(visible(text, lines=True))
        sys.stdout.flush()
