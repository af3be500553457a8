"""Finishes from outside a requeue that the job could not finish itself."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ftslurm.config.settings_files import Request, settings_in_force
from ftslurm.errors import SlurmRefused
from ftslurm.ledger.clean_ups import known_clean_ups
from ftslurm.ledger.store import Store
from ftslurm.model.history import fold
from ftslurm.model.record import CarriedOut
from ftslurm.policies.ladder.start_time import plan_start
from ftslurm.slurm.choice import choose_client
from ftslurm.system.programs import with_folder
from ftslurm.wrapper.requeue.requeue import give_back, plan_for, slurms_clock


def finish_requeue(store: Store, job: str, env: Mapping[str, str]) -> str:
    """What was done, in one sentence; nothing if nothing was open. Raises: FtslurmError."""
    journal, contents = store.find(job)
    history = fold(contents.records)
    decided, run = history.open_requeue, history.last_run
    if decided is None or run is None:
        return f"job {job}: no requeue is open; nothing to do"
    if run.launcher == "local":
        raise SlurmRefused(f"job {job} is a local one: only its own ftrun could requeue it", hint="start it again")
    settings = settings_in_force(Request(), env).settings
    client = choose_client(settings.slurm_client, settings.slurm_timeout_s, with_folder(env, settings.slurm_bin))
    _same_job(client.job(run.number).restarts, run.schedule, job)
    start = plan_start(settings, True, known_clean_ups(store.root, run.cluster, history))
    plan = plan_for(history, decided.exclude, start, settings.even_if_no_requeue)
    what = give_back(client, run.number, plan, slurms_clock(client.config()))
    journal.append([CarriedOut(time.time(), decided.id, True, f"{what}, finished from outside")])
    return f"job {job}: {what}"


def _same_job(restarts: int, schedule: int, job: str) -> None:
    """Requeued at most once since the decision was written; more, and it is out of date."""
    if restarts not in (schedule, schedule + 1):
        raise SlurmRefused(
            f"job {job} has been requeued {restarts} times and the ledger speaks of scheduling {schedule}",
            hint="the decision is out of date; nothing was done",
        )
