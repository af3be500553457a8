"""`ftslurm requeue --finish`: a person finishes, from outside the job, a requeue that the job could not finish itself."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.config.settings_files import Request, settings_in_force
from ftslurm.errors import SlurmRefused
from ftslurm.ledger.shared_file import known_clean_ups
from ftslurm.ledger.store import Store
from ftslurm.model.folds.history import fold
from ftslurm.policies.start_time import plan_start
from ftslurm.slurm.cli_client import CliSlurmClient
from ftslurm.system.programs import with_folder
from ftslurm.wrapper.requeue.finish import finish_open_requeue, is_up_to_date


def finish_requeue(store: Store, job: str, env: Mapping[str, str]) -> str:
    """Finish the open requeue. Gives what was done, in one sentence; empty if none was open. Raises: FtslurmError."""
    journal, contents = store.find(job)
    history = fold(contents.records)
    run = history.last_run
    if history.requeues.open is None or run is None:
        return f"job {job}: no requeue is open; nothing to do"
    if run.launcher == "local":
        raise SlurmRefused(f"job {job} is a local one: only its own ftrun could requeue it", hint="start it again")
    settings = settings_in_force(Request(), env).settings
    client = CliSlurmClient(timeout_s=settings.slurm.timeout_s, env=with_folder(env, settings.slurm.bin))
    restarts = client.job(run.number).restarts
    if not is_up_to_date(restarts, run.schedule):
        raise SlurmRefused(
            f"job {job} has been requeued {restarts} times but the ledger's decision is from scheduling {run.schedule}",
            hint=f"nothing was done; see `ftslurm status {job}`",
        )
    start = plan_start(settings, True, known_clean_ups(store.root, run.cluster, history))
    allow_first = settings.requeue.even_if_no_requeue
    return f"job {job}: {finish_open_requeue(client, run.number, journal, history, start, allow_first, 'from outside')}"
