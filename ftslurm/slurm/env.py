"""The allocation as Slurm's environment variables tell it. Pure on a mapping.

Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES. The values are those of the moment when the script started; when a
node has been cut out since, only slurmctld knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.errors import UsageError
from ftslurm.model.job import Allocation, JobId
from ftslurm.slurm.parse import node_names


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    """The allocation that we run in, None outside Slurm.

    `nodes` is empty where only SLURM_JOB_ID is set, as for `salloc --no-shell`: ask Slurm then. `batch` is slurmd's
    ENVIRONMENT=BATCH, set for batch scripts alone (salloc and srun leave it alone) and inherited by all they
    start; the last word on it has JobView.batch.

    Raises: UsageError for a value that Slurm would never set.
    """
    number = _number(env, "SLURM_JOB_ID") or _number(env, "SLURM_JOBID")
    if number is None:
        return None
    return Allocation(
        job=JobId(number, _number(env, "SLURM_ARRAY_JOB_ID"), _number(env, "SLURM_ARRAY_TASK_ID")),
        cluster=env.get("SLURM_CLUSTER_NAME", ""),
        nodes=_nodes(env),
        restarts=_number(env, "SLURM_RESTART_COUNT") or 0,  # unset until the first requeue
        start_time=_number(env, "SLURM_JOB_START_TIME") or 0,  # 22.05 sets neither of the two times
        end_time=_number(env, "SLURM_JOB_END_TIME") or 0,
        batch=env.get("ENVIRONMENT") == "BATCH",
        name=env.get("SLURM_JOB_NAME", ""),
    )


def _nodes(env: Mapping[str, str]) -> tuple[str, ...]:
    name = "SLURM_JOB_NODELIST" if "SLURM_JOB_NODELIST" in env else "SLURM_NODELIST"
    try:
        return node_names(env.get(name, ""))
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", hint=error.hint) from None


def _number(env: Mapping[str, str], name: str) -> int | None:
    """The variable as a number (a count, an id or Unix seconds); None if it is unset or empty."""
    text = env.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise UsageError(f"{name}={text} is not a number", hint="Slurm sets it in a job; unset it, or run inside a job")
    return int(text)
