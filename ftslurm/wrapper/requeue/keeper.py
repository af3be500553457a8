"""Requeues the job from a step of its own.

The requeue's SIGTERM ends the batch script, and with it ftrun and every program it has started; a shell script that
does not ignore SIGTERM is gone within milliseconds. A step is a container of its own and has until KillWait (30 s).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError
from ftslurm.ledger.journal import Journal
from ftslurm.model.decisions import Start
from ftslurm.model.history import History, fold
from ftslurm.model.nodes import expand
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.record import CarriedOut, CleanUpBegan
from ftslurm.model.text import visible
from ftslurm.slurm.choice import choose_client
from ftslurm.slurm.client import JobState, SlurmClient
from ftslurm.slurm.parse import seconds
from ftslurm.wrapper.requeue.requeue import AS_IT_IS, Plan, give_back, plan_for, runs_again, slurms_clock, takes_changes

# Slurm waits for such a node until it takes it for down: that says nothing of how long nodes that live need.
DEAD_NODES = frozenset({"node", "lost"})

# Of KillWait: the last request, and the way out.
SPARE_S = 3.0


def keep(number: int, ledger: Path, start: Start, allow_first: bool, client: str, timeout_s: float) -> str:
    """Carry out the requeue that stands open in `ledger`, and write that it is done. Raises: FtslurmError."""
    return carry_out(choose_client(client, timeout_s), number, Journal(ledger), start, allow_first)


def carry_out(client: SlurmClient, number: int, journal: Journal, start: Start, allow_first: bool) -> str:
    """As `keep`."""
    history = fold(journal.read().records)
    decided = history.open_requeue
    if decided is None:
        return "nothing was left to do"
    config = client.config()
    start = replace(start, watch_s=min(start.watch_s, _may_live_s(config)))
    plan = plan_for(history, decided.exclude, start, allow_first, os.environ.get("SLURMD_NODENAME", ""))
    if _has_lost_nodes(client, number, history, plan) and not takes_changes(client, number):
        client.requeue(number)
        what = AS_IT_IS
    else:
        usual = decided.cause not in DEAD_NODES

        def write_down(since: float, watched_s: float, others_clean: bool) -> None:
            with suppress(StateError):  # on a full disk: only the next start is a guess again, and a held job must go on
                journal.append([CleanUpBegan(time.time(), decided.id, since, usual, watched_s, others_clean)])

        what = give_back(client, number, plan, slurms_clock(config), write_down)
        what += _next_start(client, number, decided.dead, config)
    journal.append([CarriedOut(time.time(), decided.id, True, what)])
    return what


def _next_start(client: SlurmClient, number: int, dead: Sequence[str], config: Mapping[str, str]) -> str:
    """For people, who shall not wonder why a job waits; nothing where Slurm does not say."""
    try:
        job = client.job(number)
    except FtslurmError:
        return ""
    if job.state is not JobState.PENDING or job.held:
        return ""
    if unclean := sorted({*dead} & {*job.cleaning}):
        limit_s = seconds(config.get("SlurmdTimeout", ""))
        usual = f", SlurmdTimeout {limit_s:g} s, up to twice that" if limit_s else ""
        return f"; it can start when Slurm takes {fold_nodes(unclean)} for down{usual}"
    at = time.strftime("%H:%M:%S", time.localtime(job.start_time))
    return f"; it starts again at {at}, if its nodes are clean by then" if job.start_time > time.time() else ""


def _may_live_s(config: Mapping[str, str]) -> float:
    """How long a step whose job was requeued may go on, to the safe side."""
    kill_wait = config.get("KillWait", "").partition(" ")[0]
    return max(0.0, float(kill_wait) - SPARE_S) if kill_wait.isdigit() else 0.0


def _has_lost_nodes(client: SlurmClient, number: int, history: History, plan: Plan) -> bool:
    """In this scheduling: given back, or taken by Slurm. Asked only of a job that may be requeued."""
    job = client.job(number)
    had = expand(history.last_run.nodes) if history.last_run is not None else ()
    fewer = bool(history.places) or len(job.nodes) < max(len(had), history.size)
    return job.state is JobState.RUNNING and fewer and (job.requeue or plan.allow_first) and not runs_again(job, plan)


def start_words(start: Start) -> tuple[str, str, str]:
    """On the keeper's command line."""
    return f"{start.in_s:g}", f"{start.watch_s:g}", str(int(start.epilog))


def main() -> None:
    """Arguments: job number, ledger, `start_words`, allow_first (0 or 1), kind of client, timeout_s."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # before anything: inherited by every scontrol
    job, ledger, in_s, watch_s, epilog, allow_first, client, timeout_s = sys.argv[1:]
    start = Start(float(in_s), float(watch_s), epilog == "1")
    try:
        print(visible(keep(int(job), Path(ledger), start, allow_first == "1", client, float(timeout_s))))
    except FtslurmError as error:
        print(visible(error), file=sys.stderr)
        sys.exit(error.exit_status)
