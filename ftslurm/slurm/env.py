"""The allocation as Slurm's environment variables tell it, and, outside one, whether this machine has a Slurm.

Source of the variables: sbatch(1), OUTPUT ENVIRONMENT VARIABLES. Their values are those of the moment when the script started;
when a node has been cut out since, only slurmctld knows.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.errors import CommandMissing, UsageError
from ftslurm.model.job import Allocation, JobId
from ftslurm.slurm.parse import node_names
from ftslurm.system.commands import CommandResult, Runner, find_slurm_program

# No DNS record and no file of the usual names; or one that is no configuration.
_NONE = ("Could not establish a configuration source", "Unable to process configuration file")


def why_no_slurm(run: Runner, env: Mapping[str, str], timeout_s: float) -> str:
    """Why there is no Slurm, in words; empty if there is one, even one whose slurmctld does not answer now.

    Raises: CalledItself.
    """
    try:
        find_slurm_program("salloc", env)
        return no_configuration(run(("scontrol", "ping"), timeout_s, env=env))
    except CommandMissing as error:
        return error.message


def no_configuration(pinged: CommandResult) -> str:
    """Only a Slurm that has no configuration is none. What is said of a slurmctld says that there is one.

    Source: scontrol(1), ping; its status is 1 for a slurmctld that is down as well (22.05 to 26.05).
    """
    words = next((words for words in _NONE if words in pinged.stderr), "")
    return f"Slurm has no configuration ({words})" if pinged.status not in (0, None) and words else ""


def read_allocation(env: Mapping[str, str]) -> Allocation | None:
    """The allocation that we run in, None outside Slurm.

    `nodes` is empty where only SLURM_JOB_ID is set, as for `salloc --no-shell`: ask Slurm then. `batch` is slurmd's
    ENVIRONMENT=BATCH, set for batch scripts alone (salloc and srun leave it alone) and inherited by all they
    start; the last word on it has JobView.batch.

    Raises: UsageError for a value that Slurm would never set.
    """
    number = number_in(env, "SLURM_JOB_ID") or number_in(env, "SLURM_JOBID")
    if number is None:
        return None
    return Allocation(
        job=JobId(number, number_in(env, "SLURM_ARRAY_JOB_ID"), number_in(env, "SLURM_ARRAY_TASK_ID")),
        cluster=env.get("SLURM_CLUSTER_NAME", ""),
        nodes=_nodes(env),
        restarts=number_in(env, "SLURM_RESTART_COUNT") or 0,  # unset until the first requeue
        start_time=number_in(env, "SLURM_JOB_START_TIME") or 0,  # 22.05 sets neither of the two times
        end_time=number_in(env, "SLURM_JOB_END_TIME") or 0,
        batch=env.get("ENVIRONMENT") == "BATCH",
        name=env.get("SLURM_JOB_NAME", ""),
    )


def _nodes(env: Mapping[str, str]) -> tuple[str, ...]:
    name = "SLURM_JOB_NODELIST" if "SLURM_JOB_NODELIST" in env else "SLURM_NODELIST"
    try:
        return node_names(env.get(name, ""))
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", hint=error.hint) from None


def number_in(env: Mapping[str, str], name: str) -> int | None:
    """The variable as a number (a count, an id or Unix seconds); None if it is unset or empty."""
    text = env.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise UsageError(f"{name}={text[:40]} is not a number", hint="Slurm sets it in a job; unset it, or run inside a job")
    return int(text)
