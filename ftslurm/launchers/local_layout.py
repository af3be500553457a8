"""Where each task of a local step runs, from those of srun's options that give a step its shape. Pure.

Known are the numbers of nodes and tasks, the list of nodes to use, and the distributions block, cyclic and arbitrary. What srun
would correct without harm is corrected with a note; what contradicts itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import from_env, option_value
from ftslurm.model.job import fold_counts
from ftslurm.model.nodes import expand, fold_nodes
from ftslurm.model.text import whole
from ftslurm.model.values import Value


class TaskPlace(Value):
    """One task: its rank, its node and the slot of that, and its number there."""

    rank: int
    node: str
    slot: int
    local_rank: int


class LocalLayout(Value):
    """nodes: of the step, one a slot. ranks: of each. per_node: --ntasks-per-node, if it holds. notes: what was corrected."""

    nodes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    per_node: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.ranks))

    def places(self) -> list[TaskPlace]:
        """Every task, by rank."""
        slots = enumerate(zip(self.nodes, self.ranks, strict=True))
        places = [TaskPlace(rank, node, slot, i) for slot, (node, ranks) in slots for i, rank in enumerate(ranks)]
        return sorted(places, key=lambda place: place.rank)


# Tasks of a local step: each is a process here.
MOST = 100_000
# As many as a node list may name.
MOST_NODES = 65536
# Which nodes, where all that there are were made for this step.
_REFUSED = {"relative": "name the nodes with --nodelist", "exclude": "omit it: nodes are only names here, and none is bad"}


def lay_out(options: Sequence[str], nodes: Sequence[str]) -> LocalLayout:
    """Spread the tasks that `options` ask for over `nodes`, the allocation in slot order. Raises: UsageError.

    Source: srun(1); where two options leave it open, _opt_verify in opt.c and job_step_create_allocation in srun_job.c.
    """
    for name, hint in _REFUSED.items():
        if option_value(options, name) is not None:
            raise UsageError(f"--{name} is not supported without Slurm", hint=hint)
    listed = expand(option_value(options, "nodelist") or "")
    if missing := {*listed} - {*nodes}:
        raise UsageError(f"--nodelist names {fold_nodes(missing)}, but the step can use {fold_nodes(nodes) or 'no node'} only")
    distribution = _distribution(option_value(options, "distribution"))
    tasks, per_node = positive(options, "ntasks"), positive(options, "ntasks-per-node")
    if distribution == "arbitrary":
        return _as_listed(listed, nodes, tasks)
    wanted = [node for node in nodes if node in listed]
    least = max(len(wanted), nodes_asked(options) or 0) or None
    notes: tuple[str, ...] = ()
    if tasks is None and per_node:
        tasks = (least or 1) * per_node
    if tasks and least and tasks < least:
        notes = (f"Warning: can't run {tasks} processes on {least} nodes, setting nnodes to {tasks}",)
        least = tasks
    if tasks and least and per_node != tasks // least:
        per_node = None
    least = least or min(tasks or len(nodes), len(nodes))
    chosen = _choose(nodes, wanted[:tasks], least)
    return LocalLayout(chosen, distribute(tasks or len(chosen), len(chosen), distribution), per_node, notes)


def distribute(tasks: int, nodes: int, distribution: str) -> tuple[tuple[int, ...], ...]:
    """The ranks of each node. distribution: `block` or `cyclic`."""
    if distribution == "cyclic":
        return tuple(tuple(range(slot, tasks, nodes)) for slot in range(nodes))
    each, more = divmod(tasks, nodes)
    starts = [slot * each + min(slot, more) for slot in range(nodes + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(starts))


def _as_listed(listed: Sequence[str], usable: Sequence[str], tasks: int | None) -> LocalLayout:
    """--distribution=arbitrary: one rank for each name in --nodelist."""
    if not listed or (tasks or len(listed)) != len(listed):
        raise UsageError(f"--distribution=arbitrary: {tasks or 'no'} tasks, but --nodelist names {len(listed)} places")
    nodes = tuple(node for node in usable if node in listed)
    return LocalLayout(nodes, tuple(tuple(rank for rank, name in enumerate(listed) if name == node) for node in nodes))


def _choose(usable: Sequence[str], wanted: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` nodes for the step, in slot order: those asked for by name, and the first others."""
    if count > len(usable) or not usable:
        raise UsageError(f"{max(count, 1)} nodes requested, only {len(usable)} available")
    others = [node for node in usable if node not in wanted]
    chosen = {*wanted, *others[: count - len(wanted)]}
    return tuple(node for node in usable if node in chosen)


def nodes_asked(options: Sequence[str]) -> int | None:
    """--nodes, None if it was not given. Of a range the lower bound: there is nothing to have more of. Raises: UsageError."""
    text = option_value(options, "nodes")
    if text is None:
        return None
    low, _, high = text.partition("-")
    least, most = whole(low), whole(high or low)
    if not least or least > MOST_NODES or most is None or most < least:
        raise UsageError(f"--nodes={text[:40]}: not a number of nodes (1 to {MOST_NODES})", hint="write -N4")
    return least


def positive(options: Sequence[str], name: str) -> int | None:
    """The number given for an option, None if it was not given. Raises: UsageError."""
    text = option_value(options, name)
    if text is None:
        return None
    number = whole(text)
    if not number or number > MOST:
        raise UsageError(f"--{name}: `{text[:40]}` is not a number from 1 to {MOST}")
    return number


def _distribution(text: str | None) -> str:
    """The part about nodes; the parts about sockets and cores, after a colon, mean nothing here, nor does packing."""
    first = re.split("[:,]", (text or "block").lower())[0]
    if first in ("*", "pack", "nopack"):
        return "block"
    if first not in ("block", "cyclic", "arbitrary"):
        raise UsageError(f"--distribution={first[:40]} is not supported without Slurm", hint="block, cyclic and arbitrary are")
    return first


# --- the environment of each task of a local step, as slurmstepd would set it. Pure


class Simulated(Value):
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
    """`options` after those that the environment gives: the last one counts. Not the number of nodes: whoever chose
    FTSLURM_LOCAL_NODES has read that."""
    return (*from_env(env, "both", "step", but=["nodes"]), *options)


def exported_values(env: Mapping[str, str], export: str | None) -> dict[str, str]:
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


def step_environ(simulated: Simulated, layout: LocalLayout, options: Sequence[str]) -> dict[str, str]:
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


def task_environ(layout: LocalLayout, place: TaskPlace) -> dict[str, str]:
    return {
        "SLURM_PROCID": str(place.rank), "SLURM_LOCALID": str(place.local_rank), "SLURM_NODEID": str(place.slot),
        "SLURMD_NODENAME": place.node, "SLURM_GTIDS": ",".join(map(str, layout.ranks[place.slot])),
    }  # fmt: skip


def in_slot_order(nodes: Sequence[str]) -> str:
    """Folded where that keeps the slots in order: who unfolds it counts on SLURM_NODEID being the index."""
    folded = fold_nodes(nodes)
    return folded if expand(folded) == tuple(nodes) else ",".join(nodes)
