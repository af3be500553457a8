"""The environment of each task of a local step, as slurmstepd would set it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftslurm.errors import UsageError
from ftslurm.launchers.local_layout import Layout, Place, positive
from ftslurm.launchers.srun_options import option_value
from ftslurm.model.layout import fold_counts
from ftslurm.model.nodes import expand, fold
from ftslurm.model.values import dataclass

# Options that srun also takes from the environment (env_vars in srun/libsrun/opt.c), weakest first. Not the number of
# nodes: whoever chose FTSLURM_LOCAL_NODES has read that.
FROM_ENVIRONMENT: Mapping[str, str] = {
    "SLURM_DISTRIBUTION": "distribution", "SLURM_EXPORT_ENV": "export", "SRUN_EXPORT_ENV": "export",
    "SLURM_LABELIO": "label", "SLURM_NPROCS": "ntasks", "SLURM_NTASKS": "ntasks", "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    "SLURM_OPEN_MODE": "open-mode", "SLURM_STDERRMODE": "error", "SLURM_STDINMODE": "input", "SLURM_STDOUTMODE": "output",
    "SLURM_UNBUFFEREDIO": "unbuffered", "SLURM_REMOTE_CWD": "chdir", "SLURM_WORKING_DIR": "chdir",
}  # fmt: skip
FLAGS = frozenset({"label", "unbuffered"})


@dataclass(frozen=True, slots=True)
class Simulated:
    """The allocation and the step that are played, as the caller says. nodes: of the job, in slot order."""

    nodes: tuple[str, ...]
    job: int
    step: int


def read_simulated(env: Mapping[str, str]) -> Simulated:
    """Raises: UsageError where a FTSLURM_LOCAL_* variable is missing or makes no sense."""
    try:
        nodes = tuple(node for node in env["FTSLURM_LOCAL_NODES"].split(",") if node)
        return Simulated(nodes, int(env["FTSLURM_LOCAL_JOB"]), int(env["FTSLURM_LOCAL_STEP"]))
    except (KeyError, ValueError) as error:
        raise UsageError(f"the simulated allocation is not described: {error}", hint="ftrun sets FTSLURM_LOCAL_*") from None


def options_from(env: Mapping[str, str], options: Sequence[str]) -> tuple[str, ...]:
    """`options` after those that the environment gives: the last one counts."""
    given = [f"--{name}" if name in FLAGS else f"--{name}={env[key]}" for key, name in FROM_ENVIRONMENT.items() if key in env]
    return (*given, *options)


def exported(env: Mapping[str, str], export: str | None) -> dict[str, str]:
    """What --export lets through; Slurm's variables and ours always. Values given never beat the environment under ALL.

    Source: _build_user_env in launch_slurm.c, find_quote_token in env.c.
    """
    words = _split_quoted(export) if export is not None else ["ALL"]
    upper = [word.upper() for word in words]
    end = upper.index("NONE") if "NONE" in upper else len(words)
    chosen = {name: value for name, value in env.items() if name.startswith(("SLURM", "FTSLURM_"))}
    if "ALL" in upper[:end]:
        chosen = dict(env)
    asked: dict[str, str] = {}
    for word in words[:end]:
        name, equals, value = word.partition("=")
        if name and (equals or name in env):
            asked[name] = value if equals else env[name]
    return {name: value for name, value in {**asked, **chosen}.items() if not name.startswith("FTSLURM_LOCAL_")}


def _split_quoted(text: str) -> list[str]:
    """Split at commas outside quotes; removes quotes around a whole word."""
    words = re.findall(r"""((?:'[^']*'|"[^"]*"|[^,])+)""", text)
    return [word[1:-1] if len(word) > 1 and word[0] in "'\"" and word[-1] == word[0] else word for word in words]


def step_environ(simulated: Simulated, layout: Layout, options: Sequence[str]) -> dict[str, str]:
    """The variables that all tasks of the step share. Source: setup_env in env.c and what real tasks have."""
    counts = fold_counts([len(ranks) for ranks in layout.ranks])
    job_nodes = in_slot_order(simulated.nodes)
    shared: dict[str, object] = {
        "SLURM_JOB_ID": simulated.job, "SLURM_JOBID": simulated.job,
        "SLURM_JOB_NUM_NODES": len(simulated.nodes), "SLURM_JOB_NODELIST": job_nodes, "SLURM_NODELIST": job_nodes,
        "SLURM_STEP_ID": simulated.step, "SLURM_STEPID": simulated.step,
        "SLURM_NNODES": len(layout.nodes), "SLURM_STEP_NUM_NODES": len(layout.nodes),
        "SLURM_STEP_NODELIST": in_slot_order(layout.nodes),
        "SLURM_NTASKS": layout.size, "SLURM_NPROCS": layout.size, "SLURM_STEP_NUM_TASKS": layout.size,
        "SLURM_TASKS_PER_NODE": counts, "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURM_SUBMIT_DIR": Path.cwd(), "FTSLURM_LOCAL": 1,
    }  # fmt: skip
    optional = {
        "SLURM_NTASKS_PER_NODE": layout.per_node,
        "SLURM_CPUS_PER_TASK": positive(options, "cpus-per-task"),
        "SLURM_JOB_NAME": option_value(options, "job-name"),
    }
    shared |= {name: value for name, value in optional.items() if value is not None}
    return {name: str(value) for name, value in shared.items()}


def task_environ(layout: Layout, place: Place) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(place.rank), "SLURM_LOCALID": str(place.local_rank), "SLURM_NODEID": str(place.slot),
        "SLURMD_NODENAME": place.node, "SLURM_GTIDS": ",".join(map(str, layout.ranks[place.slot])),
    }  # fmt: skip


def in_slot_order(nodes: Sequence[str]) -> str:
    """Folded where that keeps the slots in order: who unfolds it counts on SLURM_NODEID being the index."""
    folded = fold(nodes)
    return folded if expand(folded) == tuple(nodes) else ",".join(nodes)
