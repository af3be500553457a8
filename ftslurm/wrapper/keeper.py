"""Requeues the job from a step of its own.

The requeue's SIGTERM ends the batch script, and with it ftrun and every program it has started; a shell script that
does not ignore SIGTERM is gone within milliseconds. A step is a container of its own and has until KillWait (30 s).
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.ledger.journal import Journal
from ftslurm.model.history import History, fold
from ftslurm.model.nodes import expand
from ftslurm.model.record import CarriedOut
from ftslurm.slurm.choice import choose_client
from ftslurm.slurm.client import JobState, SlurmClient
from ftslurm.wrapper.requeue import AS_IT_IS, Plan, give_back, plan_for, runs_again, takes_changes


def keep(number: int, ledger: Path, start_in_s: float, allow_first: bool, client: str, timeout_s: float) -> str:
    """Carry out the requeue that stands open in `ledger`, and write that it is done. Raises: FtslurmError."""
    return carry_out(choose_client(client, timeout_s), number, Journal(ledger), start_in_s, allow_first)


def carry_out(client: SlurmClient, number: int, journal: Journal, start_in_s: float, allow_first: bool) -> str:
    """As `keep`."""
    history = fold(journal.read().records)
    decided = history.open_requeue
    if decided is None:
        return "nothing was left to do"
    plan = plan_for(history, decided.exclude, start_in_s, allow_first)
    if _has_lost_nodes(client, number, history, plan) and not takes_changes(client, number):
        client.requeue(number)
        what = AS_IT_IS
    else:
        what = give_back(client, number, plan, time.time)
    journal.append([CarriedOut(time.time(), decided.id, True, what)])
    return what


def _has_lost_nodes(client: SlurmClient, number: int, history: History, plan: Plan) -> bool:
    """In this scheduling: given back, or taken by Slurm. Asked only of a job that may be requeued."""
    job = client.job(number)
    had = expand(history.last_run.nodes) if history.last_run is not None else ()
    fewer = bool(history.places) or len(job.nodes) < max(len(had), history.size)
    return job.state is JobState.RUNNING and fewer and (job.requeue or plan.allow_first) and not runs_again(job, plan)


def main() -> None:
    """Arguments: job number, ledger, start_in_s, allow_first (0 or 1), kind of client, timeout_s."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # before anything: inherited by every scontrol
    job, ledger, start_in_s, allow_first, client, timeout_s = sys.argv[1:]
    try:
        print(keep(int(job), Path(ledger), float(start_in_s), allow_first == "1", client, float(timeout_s)))
    except FtslurmError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
