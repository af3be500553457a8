"""Requeues the job from a step of the job.

The requeue's SIGTERM ends the batch script, and with it ftrun and every program that it started; a shell script that does not
ignore SIGTERM ends within milliseconds. A step has its own container and has until KillWait (30 s): docs/slurm-facts.md, "Changes
to a requeued job".
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.ledger.journal import Journal
from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import fold
from ftslurm.model.text import visible
from ftslurm.slurm.cli_client import CliSlurmClient
from ftslurm.wrapper.requeue.finish import finish_open_requeue


def keep(number: int, ledger: Path, start: Start, allow_first: bool, timeout_s: float, in_step: bool = False) -> str:
    """Carry out the open requeue of `ledger`, and record its end. in_step: see Plan. Raises: FtslurmError."""
    slurm, journal = CliSlurmClient(timeout_s=timeout_s), Journal(ledger)
    return finish_open_requeue(slurm, number, journal, fold(journal.read().records), start, allow_first, in_step=in_step)


def start_words(start: Start) -> tuple[str, str, str]:
    """The start as words of the keeper's command line."""
    return f"{start.in_s:g}", f"{start.watch_s:g}", str(int(start.epilog))


def main() -> None:
    """Runs in the step. Arguments: job number, ledger, `start_words`, allow_first (0 or 1), timeout_s."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # before anything else: every scontrol inherits it
    job, ledger, in_s, watch_s, epilog, allow_first, timeout_s = sys.argv[1:]
    start = Start(float(in_s), float(watch_s), epilog == "1")
    try:
        print(visible(keep(int(job), Path(ledger), start, allow_first == "1", float(timeout_s), in_step=True)))
    except FtslurmError as error:
        print(visible(error), file=sys.stderr)
        sys.exit(error.exit_status)
