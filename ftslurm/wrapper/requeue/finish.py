"""Finishes a requeue that a ledger says was decided: the part that all callers share.

The callers are the step of the job (`main`), the standby controller (agent/standby.py), `ftslurm requeue --finish`
(wrapper/control.py) and the EpilogSlurmctld hook (hooks/as_owner.py). Each finds the ledger, plans the start, and calls
`finish_open_requeue`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError
from ftslurm.ledger.journal import Journal
from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import History, fold
from ftslurm.model.nodes import fold_nodes, mark_down
from ftslurm.model.record import CarriedOut, CleanUpBegan
from ftslurm.model.text import visible
from ftslurm.model.values import replace
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobState
from ftslurm.slurm.parse import conf_seconds
from ftslurm.wrapper.requeue.dead_nodes import Prepared, prepare_requeue
from ftslurm.wrapper.requeue.fit import still_fits
from ftslurm.wrapper.requeue.requeue import AS_IT_IS, follow_recipe, plan_for, runs_again, slurms_clock

# --- Requeues the job from a step of the job.
#
# The requeue's SIGTERM ends the batch script, and with it ftrun and every program that it started; a shell script that does
# not ignore SIGTERM ends within milliseconds. A step has its own container and has until KillWait (30 s):
# docs/slurm-facts.md, "Changes to a requeued job".


def finish_by_ledger(number: int, ledger: Path, start: Start, allow_first: bool, timeout_s: float, in_step: bool = False) -> str:
    """Carry out the open requeue of `ledger`, and record its end. in_step: see Plan. Raises: FtslurmError."""
    slurm, journal = SlurmClient(timeout_s=timeout_s), Journal(ledger)
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
        print(visible(finish_by_ledger(int(job), Path(ledger), start, allow_first == "1", float(timeout_s), in_step=True)))
    except FtslurmError as error:
        print(visible(error), file=sys.stderr)
        sys.exit(error.exit_status)


# --- what all callers share

# Slurm waits for such a node until it marks it DOWN: that does not tell how long live nodes need.
DEAD_NODES = frozenset({"node", "lost"})

# Part of KillWait that is kept for the last request and the end of the program.
SPARE_S = 3.0


def finish_open_requeue(
    client: SlurmClient, number: int, journal: Journal, history: History, start: Start, allow_first: bool, outsider: str = "",
    in_step: bool = False,
) -> str:  # fmt: skip
    """Carry out the open requeue of `history`, and record its end in `journal`. Gives what was done, in words.

    number: of the job. history: the content of `journal`. allow_first: also requeue a job that was submitted with --no-requeue.
    outsider: who finishes it, for the ledger, if that is no step of the job: the requeue does not end an outsider, and no node
    waits for its end. in_step: see Plan. Raises: FtslurmError.
    """
    decided = history.requeues.open
    if decided is None:
        return "nothing left to do"
    config = client.config()
    if not outsider:
        start = replace(start, watch_s=min(start.watch_s, _may_live_s(config)))
    here = "" if outsider else os.environ.get("SLURMD_NODENAME", "")
    plan = plan_for(history, decided.exclude, start, allow_first, here, partial(still_fits, client), in_step)
    job = client.job(number)
    may_go = job.state is JobState.RUNNING and (job.requeue or allow_first) and not runs_again(job, plan)
    prepared = (
        prepare_requeue(client, job, history, decided.dead, config) if may_go else Prepared()
    )  # else follow_recipe says why it cannot
    let_in: frozenset[str] = frozenset()
    if prepared.plain:
        client.requeue(number)
        what = f"{AS_IT_IS}: {prepared.plain}"
    else:
        usual = decided.cause not in DEAD_NODES or prepared.done

        def write_down(since: float, watched_s: float, others_clean: bool) -> None:
            with suppress(StateError):  # on a full disk only the next start is a guess again, and a held job must continue
                journal.append([CleanUpBegan(time.time(), decided.id, since, usual, watched_s, others_clean)])

        given = follow_recipe(client, number, plan, slurms_clock(config), write_down)
        what, let_in = given.what + (f"; {prepared.what}" if prepared.what else ""), given.let_in
    what += _next_start(client, number, decided.dead, config)
    what += f", finished {outsider}" if outsider else ""
    journal.append([CarriedOut(time.time(), decided.id, True, what, tuple(sorted(let_in)))])
    return what


def is_up_to_date(restarts: int, schedule: int) -> bool:
    """May a requeue that was decided in scheduling `schedule` still be carried out on a job that Slurm has requeued `restarts`
    times? The job has been requeued at most once since: by this requeue, which stopped half-way.
    """
    return restarts in (schedule, schedule + 1)


def _next_start(client: SlurmClient, number: int, dead: Sequence[str], config: Mapping[str, str]) -> str:
    """When the job starts again, for people; empty if Slurm does not tell."""
    try:
        job = client.job(number)
    except FtslurmError:
        return ""
    if job.state is not JobState.PENDING or job.held:
        return ""
    if unclean := sorted({*dead} & {*job.cleaning}):
        limit_s = conf_seconds(config.get("SlurmdTimeout", ""))
        usual = f", SlurmdTimeout {limit_s:g} s, up to twice that" if limit_s else ""
        sooner = f"; at once by an administrator: {mark_down(unclean)}"
        return f"; it can start when Slurm marks {fold_nodes(unclean)} down{usual}{sooner}"
    at = time.strftime("%H:%M:%S", time.localtime(job.start_time))
    return f"; it starts again at {at}, if its nodes are clean by then" if job.start_time > time.time() else ""


def _may_live_s(config: Mapping[str, str]) -> float:
    """How long a step of a requeued job may run on, seconds, an upper limit."""
    return max(0.0, conf_seconds(config.get("KillWait", "")) - SPARE_S)
