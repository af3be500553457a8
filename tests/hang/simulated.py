"""Jobs with tensor, pipeline and data parallelism that run on paper until they stand still."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from ftslurm.model.collectives import Culprit, CulpritKind, CurrentCall, GroupView, ProcessState, RankView

# An operation: a group's collective, or ("p2p", from, to, way).
Operation = tuple[object, ...]


@dataclass(frozen=True)
class Fault:
    """stop: (rank, index) never enters that operation. dead: (operation, occurrence) never completes.

    swap: (rank, index) issues the operations at index and index + 1 in the other order.
    """

    stop: tuple[int, int] | None = None
    dead: tuple[Operation, int] | None = None
    swap: tuple[int, int] | None = None


@dataclass
class Job:
    """What every rank does in one step, again and again, blocking."""

    programs: dict[int, list[Operation]]
    members: dict[Operation, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        found: dict[Operation, set[int]] = {}
        for rank, program in self.programs.items():
            for operation in program:
                found.setdefault(operation, set()).add(rank)
        self.members = {operation: tuple(sorted(ranks)) for operation, ranks in found.items()}


def job(tensor: int, pipeline: int, data: int, micro: int = 4, layers: int = 2) -> Job:
    """A pipeline step: forward over all micro-batches, backward, gradients over the data group, all ranks together."""

    def rank_of(d: int, p: int, t: int) -> int:
        return (d * pipeline + p) * tensor + t

    programs: dict[int, list[Operation]] = {}
    for d in range(data):
        for p in range(pipeline):
            for t in range(tensor):
                rank, steps = rank_of(d, p, t), []
                for _ in range(micro):
                    steps += [("p2p", rank_of(d, p - 1, t), rank, "forward")] if p else []
                    steps += [("tensor", d, p)] * layers
                    steps += [("p2p", rank, rank_of(d, p + 1, t), "forward")] if p < pipeline - 1 else []
                for _ in range(micro):
                    steps += [("p2p", rank_of(d, p + 1, t), rank, "backward")] if p < pipeline - 1 else []
                    steps += [("tensor", d, p)] * layers
                    steps += [("p2p", rank, rank_of(d, p - 1, t), "backward")] if p else []
                steps += [("data", p, t)] if data > 1 else []
                programs[rank] = [*steps, ("world",)]
    return Job(programs)


def run(job: Job, steps: int, fault: Fault) -> list[RankView]:
    """The ranks as they stand when nothing moves any more."""
    programs = {rank: program * steps for rank, program in job.programs.items()}
    if fault.swap:
        rank, index = fault.swap
        programs[rank] = list(programs[rank])
        programs[rank][index : index + 2] = reversed(programs[rank][index : index + 2])
    place = dict.fromkeys(programs, 0)
    entered: dict[Operation, dict[int, int]] = {
        operation: dict.fromkeys(members, 0) for operation, members in job.members.items()
    }
    inside: dict[int, Operation] = {}
    arrived: dict[tuple[Operation, int], set[int]] = {}
    queue = list(programs)
    while queue:
        rank = queue.pop()
        while rank not in inside and place[rank] < len(programs[rank]) and fault.stop != (rank, place[rank]):
            operation = programs[rank][place[rank]]
            entered[operation][rank] += 1
            inside[rank] = operation
            number = entered[operation][rank]
            here = arrived.setdefault((operation, number), set())
            here.add(rank)
            if len(here) == len(job.members[operation]) and fault.dead != (operation, number):
                for member in here:
                    del inside[member]
                    place[member] += 1
                queue += [member for member in here if member != rank]
    return views(job, entered, inside)


def views(
    job: Job, entered: dict[Operation, dict[int, int]], inside: dict[int, Operation], ranks_a_node: int = 8
) -> list[RankView]:
    found = []
    for rank in job.programs:
        now = inside.get(rank)
        groups = []
        for operation in dict.fromkeys(job.programs[rank]):
            if operation[0] != "p2p":
                count = entered[operation][rank]
                groups.append(
                    GroupView(name(operation), job.members[operation], count, count - (now == operation), operation=operation[0])
                )
        stay = None
        if now is not None and now[0] == "p2p":
            way = "send" if now[1] == rank else "recv"
            stay = CurrentCall(way, "", 0, 60.0, now[2] if way == "send" else now[1], True)
        found.append(RankView(
            rank, f"n{rank // ranks_a_node}", ProcessState.SLEEPING, "futex_wait", groups=tuple(groups), inside=stay, probed=True,
            main_fresh=False, gil_held=False, cpu_percent=0.1, io_bytes_s=0.0,
        ))  # fmt: skip
    return found


def name(operation: Operation) -> str:
    return "-".join(map(str, operation))


def stalls(found: Iterable[RankView]) -> bool:
    return any(view.inside or any(group.entered > (group.completed or 0) for group in view.groups) for view in found)


@dataclass(frozen=True)
class Trial:
    """kind: stop, dead or swap. culprits: whom a verdict must name; of a swap one of those it names."""

    kind: str
    culprits: tuple[int, ...]
    views: list[RankView]

    def told_by(self, found: Culprit | None) -> bool:
        if found is None or found.kind is not (CulpritKind.COMM_HANG if self.kind == "dead" else CulpritKind.NON_COMM_HANG):
            return False
        return self.culprits[0] in found.ranks if self.kind == "swap" else found.ranks == self.culprits


def trial(rng: random.Random, shape: tuple[int, int, int], steps: int = 3) -> Trial:
    made = job(*shape)
    while True:
        rank = rng.randrange(len(made.programs))
        program = made.programs[rank] * steps
        index = rng.randrange(len(program) - 1)
        kind = rng.choice(["stop", "stop", "dead", "swap"])
        if kind == "stop":
            return Trial(kind, (rank,), run(made, steps, Fault(stop=(rank, index))))
        if kind == "dead":
            operation = program[index]
            return Trial(
                kind, made.members[operation], run(made, steps, Fault(dead=(operation, 1 + index // len(made.programs[rank]))))
            )
        found = run(made, steps, Fault(swap=(rank, index)))
        if program[index] != program[index + 1] and stalls(found):
            return Trial(kind, (rank,), found)


def missing_ranks(found: Iterable[RankView]) -> set[int]:
    """What a list of missing ranks a group names: the union over the groups in which somebody waits."""
    groups: dict[str, dict[int, GroupView]] = {}
    for view in found:
        for group in view.groups:
            groups.setdefault(group.key, {})[view.rank] = group
    named: set[int] = set()
    for members in groups.values():
        top = max(group.entered for group in members.values())
        if any(group.entered > (group.completed or 0) for group in members.values()):
            named |= {rank for rank, group in members.items() if group.entered < top}
    return named
