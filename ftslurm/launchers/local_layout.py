"""Where each task of a local step runs, from those of srun's options that give a step its shape. Pure.

Known are the numbers of nodes and tasks, the list of nodes to use, and the distributions block, cyclic and arbitrary. What srun
would correct without harm is corrected with a note; what contradicts itself is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import option_value
from ftslurm.model.nodes import expand, fold
from ftslurm.model.text import whole
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """One task: its rank, its node and the slot of that, and its number there."""

    rank: int
    node: str
    slot: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Layout:
    """nodes: of the step, one a slot. ranks: of each. per_node: --ntasks-per-node, if it holds. notes: what was corrected."""

    nodes: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    per_node: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.ranks))

    def places(self) -> list[Place]:
        """Every task, by rank."""
        slots = enumerate(zip(self.nodes, self.ranks, strict=True))
        places = [Place(rank, node, slot, i) for slot, (node, ranks) in slots for i, rank in enumerate(ranks)]
        return sorted(places, key=lambda place: place.rank)


# Tasks of a local step: each is a process here.
MOST = 100_000
# As many as a node list may name.
MOST_NODES = 65536
# Which nodes, where all that there are were made for this step.
_REFUSED = {"relative": "name the nodes with --nodelist", "exclude": "omit it: nodes are only names here, and none is bad"}


def lay_out(options: Sequence[str], nodes: Sequence[str]) -> Layout:
    """Spread the tasks that `options` ask for over `nodes`, the allocation in slot order. Raises: UsageError.

    Source: srun(1); where two options leave it open, _opt_verify in opt.c and job_step_create_allocation in srun_job.c.
    """
    for name, hint in _REFUSED.items():
        if option_value(options, name) is not None:
            raise UsageError(f"--{name} is not supported without Slurm", hint=hint)
    listed = expand(option_value(options, "nodelist") or "")
    if missing := {*listed} - {*nodes}:
        raise UsageError(f"--nodelist names {fold(missing)}, but the step can use {fold(nodes) or 'no node'} only")
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
    return Layout(chosen, distribute(tasks or len(chosen), len(chosen), distribution), per_node, notes)


def distribute(tasks: int, nodes: int, distribution: str) -> tuple[tuple[int, ...], ...]:
    """The ranks of each node. distribution: `block` or `cyclic`."""
    if distribution == "cyclic":
        return tuple(tuple(range(slot, tasks, nodes)) for slot in range(nodes))
    each, more = divmod(tasks, nodes)
    starts = [slot * each + min(slot, more) for slot in range(nodes + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(starts))


def _as_listed(listed: Sequence[str], usable: Sequence[str], tasks: int | None) -> Layout:
    """--distribution=arbitrary: one rank for each name in --nodelist."""
    if not listed or (tasks or len(listed)) != len(listed):
        raise UsageError(f"--distribution=arbitrary: {tasks or 'no'} tasks, but --nodelist names {len(listed)} places")
    nodes = tuple(node for node in usable if node in listed)
    return Layout(nodes, tuple(tuple(rank for rank, name in enumerate(listed) if name == node) for node in nodes))


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
