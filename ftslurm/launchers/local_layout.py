"""Where each task of a local step runs: srun's options for the shape of a step, and its words when they do not fit. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ftslurm.errors import FtslurmError
from ftslurm.launchers.srun_options import option_value
from ftslurm.model.nodes import expand
from ftslurm.model.numbers import whole
from ftslurm.model.values import dataclass


class Refused(FtslurmError):
    """What srun refuses, in srun's words, line by line, and with its exit status."""

    def __init__(self, *lines: str, exit_status: int = 1) -> None:
        super().__init__("\n".join(lines))
        self.exit_status = exit_status


@dataclass(frozen=True, slots=True)
class Place:
    """One task: its rank, its node and the slot of that, and its number there."""

    rank: int
    node: str
    slot: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class Layout:
    """nodes: of the step, one a slot. ranks: of each. per_node: --ntasks-per-node, if it holds. notes: what srun remarks."""

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


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the options say of nodes and tasks; None is not said. listed: -w as given, wanted: as a set in slot order."""

    least: int | None
    most: int | None
    tasks: int | None
    per_node: int | None
    relative: int
    distribution: str
    listed: tuple[str, ...]
    wanted: tuple[str, ...]
    excluded: tuple[str, ...]
    notes: tuple[str, ...] = ()


# Tasks of a local step: each is a process here.
MOST = 100_000


def lay_out(options: Sequence[str], nodes: Sequence[str], job: int) -> Layout:
    """Spread the tasks that `options` ask for over `nodes`, the allocation of `job` in slot order.

    Raises: Refused as srun does; UsageError for what is no node list.
    Source: _opt_verify in opt.c, job_step_create_allocation in srun_job.c, slurm_step_layout.c.
    """
    wish = _reconcile(_read_wish(options, nodes))
    chosen = _choose_nodes(wish, nodes, job)
    size = wish.tasks or len(chosen)
    if wish.distribution == "arbitrary":
        return Layout(chosen, _arbitrary(wish, chosen, size), wish.per_node, wish.notes)
    return Layout(chosen, distribute(size, len(chosen), wish.distribution), wish.per_node, wish.notes)


def distribute(tasks: int, nodes: int, distribution: str) -> tuple[tuple[int, ...], ...]:
    """The ranks of each node. distribution: `block`, `cyclic`, or `plane=SIZE`."""
    if distribution == "cyclic":
        return tuple(tuple(range(slot, tasks, nodes)) for slot in range(nodes))
    if distribution.startswith("plane="):
        return _planes(tasks, nodes, int(distribution.removeprefix("plane=")))
    each, more = divmod(tasks, nodes)
    starts = [slot * each + min(slot, more) for slot in range(nodes + 1)]
    return tuple(tuple(range(start, end)) for start, end in pairwise(starts))


def _planes(tasks: int, nodes: int, size: int) -> tuple[tuple[int, ...], ...]:
    """_task_layout_plane: one to each node first, then to each a plane in turn; the numbers go round in planes."""
    counts = [1 if slot < tasks else 0 for slot in range(nodes)]
    left, room = tasks - sum(counts), size - 1
    while left:
        for slot in range(nodes):
            given = min(room, left)
            counts[slot] += given
            left -= given
        room = size
    ranks: list[list[int]] = [[] for _ in range(nodes)]
    rank = 0
    while rank < tasks:
        for slot in range(nodes):
            given = min(size, counts[slot] - len(ranks[slot]))
            ranks[slot] += range(rank, rank + given)
            rank += given
    return tuple(map(tuple, ranks))


def _arbitrary(wish: _Wish, nodes: tuple[str, ...], size: int) -> tuple[tuple[int, ...], ...]:
    if len(wish.listed) != size:
        raise Refused(f"You asked for {size} tasks but hostlist specified {len(wish.listed)} nodes")
    return tuple(tuple(rank for rank, name in enumerate(wish.listed) if name == node) for node in nodes)


def _read_wish(options: Sequence[str], nodes: Sequence[str]) -> _Wish:
    least, most = _read_node_count(option_value(options, "nodes"))
    distribution = _read_distribution(option_value(options, "distribution"))
    listed = expand(option_value(options, "nodelist") or "")
    wanted = tuple(node for node in (*nodes, *sorted(set(listed) - set(nodes))) if node in listed)
    tasks = positive(options, "ntasks")
    if distribution == "arbitrary":
        tasks = tasks or len(listed)
        least, most = (len(wanted), len(wanted)) if least is None else (least, most)
    relative = option_value(options, "relative") or "0"
    if whole(relative) is None:
        raise Refused(f'Invalid numeric value "{relative[:40]}" for --relative.')
    return _Wish(
        least, most, tasks, positive(options, "ntasks-per-node"), int(relative), distribution,
        listed, wanted, expand(option_value(options, "exclude") or ""),
    )  # fmt: skip


def positive(options: Sequence[str], name: str) -> int | None:
    """The number given for an option, None if it was not given. Raises: Refused."""
    text = option_value(options, name)
    if text is None:
        return None
    number = whole(text)
    if not number or number > MOST:
        raise Refused(f'Invalid numeric value "{text[:40]}" for --{name}.')
    return number


def _read_node_count(text: str | None) -> tuple[int | None, int | None]:
    """`2` or `2-4` as (least, most); 0 says nothing. Source: verify_node_count in proc_args.c."""
    if text is None:
        return None, None
    bounds = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", text)
    if not bounds:
        raise Refused(f'"{text}" is not a valid node count', exit_status=255)
    least = int(bounds[1])
    most = least if bounds[2] is None else int(bounds[2])
    if 0 < most < least:
        raise Refused(f"Maximum node count {most} is less than minimum node count {least}", exit_status=255)
    return least or None, most or None


def _read_distribution(text: str | None) -> str:
    """The part about nodes; the parts about sockets and cores, after a colon, mean nothing here, nor does packing."""
    first = re.split("[:,]", (text or "block").lower())[0]
    if first in ("*", "pack", "nopack"):
        return "block"
    if first in ("block", "cyclic", "arbitrary") or re.fullmatch(r"plane=0*[1-9]\d*", first):
        return first
    raise Refused("Invalid --distribution specification", exit_status=255)


def _reconcile(wish: _Wish) -> _Wish:
    """Nodes, tasks and node list made to agree, as far as srun does so before it looks at the allocation."""
    if wish.most and len(wish.wanted) > wish.most and wish.distribution != "arbitrary":
        note = (
            "error: Required nodelist includes more nodes than permitted by max-node count "
            f"({len(wish.wanted)} > {wish.most}). Eliminating nodes from the nodelist."
        )
        wish = replace(wish, wanted=wish.wanted[: wish.most], notes=(*wish.notes, note))
    if wish.wanted:
        wish = replace(wish, least=max(len(wish.wanted), wish.least or 0))
    if wish.least is not None and wish.tasks is not None:
        return _fit_to_tasks(wish, wish.least, wish.tasks)
    if wish.per_node and wish.tasks is None:
        return replace(wish, tasks=(wish.least or 1) * wish.per_node)
    return wish


def _fit_to_tasks(wish: _Wish, least: int, tasks: int) -> _Wish:
    """No more nodes than tasks, and no --ntasks-per-node that contradicts both."""
    most, notes = min(wish.most or tasks, tasks) if wish.most else None, list(wish.notes)
    if tasks < least:
        notes.append(f"Warning: can't run {tasks} processes on {least} nodes, setting nnodes to {tasks}")
        least = most = tasks
    per_node = wish.per_node
    if per_node and per_node != tasks // least:
        if tasks > per_node:
            notes.append(
                f"Warning: can't honor --ntasks-per-node set to {per_node} which doesn't match the requested tasks "
                f"{tasks} with the number of requested nodes {least}. Ignoring --ntasks-per-node."
            )
        per_node = None
    wanted = wish.wanted[:tasks]
    return replace(wish, least=least, most=most, per_node=per_node, wanted=wanted, notes=tuple(notes))


def _choose_nodes(wish: _Wish, nodes: Sequence[str], job: int) -> tuple[str, ...]:
    """The nodes of the step, in slot order: those asked for by name, and the first others as far as need be."""
    candidates = _candidates(wish, nodes, job)
    least = wish.least
    if least is None:
        least = min(wish.tasks or len(candidates), len(candidates))
    count = min(wish.most or least, len(candidates))
    if least > count:
        why = ("Are required nodes explicitly excluded?",) if wish.excluded else ()
        raise Refused(f"Only allocated {count} nodes asked for {least}", *why)
    others = [node for node in candidates if node not in wish.wanted]
    chosen = {*wish.wanted, *others[: max(0, count - len(wish.wanted))]}
    return tuple(node for node in candidates if node in chosen)


def _candidates(wish: _Wish, nodes: Sequence[str], job: int) -> list[str]:
    both = [node for node in wish.excluded if node in wish.wanted]
    if both:
        raise Refused(f"Requested node {both[0]} is also in the excluded list.", "Job not submitted.")
    candidates = [node for node in nodes[wish.relative :] if node not in wish.excluded]
    if wish.relative and wish.relative + (wish.least or 1) > len(nodes):
        asked = f"{wish.relative}+{wish.least or 1}>{len(nodes)}"
        raise Refused(f"--relative and --nodes option incompatible with count of allocated nodes ({asked})")
    if not candidates:
        raise Refused("Hostlist is empty!  Can't run job.")
    if not set(wish.excluded) <= set(nodes):
        raise Refused(f"Unable to create step for job {job}: Invalid node name specified")
    if not set(wish.wanted) <= set(candidates):
        raise Refused(f"Unable to create step for job {job}: Requested node configuration is not available")
    return candidates
