"""Who waits for whom: what is known of each rank at one moment, and what is found in it.

The four classes are those of C4D (Alibaba Cloud PAI, "Use C4D"): hung or slow, inside a collective or out of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar

from ftslurm.errors import WireError
from ftslurm.model.plain import plain_text
from ftslurm.model.values import Value

RANKS_MAX = 1 << 20
FOLDED_MAX = 1 << 16  # characters
GROUPS_MAX, SOCKETS_MAX, THREADS_MAX = 512, 256, 16  # of one rank


class ProcessState(str, Enum):
    """Of the rank's main thread, as the kernel has it. DISK: uninterruptible (`D`). UNKNOWN: nobody could look."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    DISK = "disk"
    STOPPED = "stopped"
    EXITED = "exited"
    UNKNOWN = "unknown"


class CulpritKind(str, Enum):
    """What is wrong. The first four as C4D names them."""

    COMM_HANG = "RankCommHang"
    NON_COMM_HANG = "RankNonCommHang"
    COMM_SLOW = "RankCommSlow"
    NON_COMM_SLOW = "RankNonCommSlow"
    EXIT_HANG = "ExitHang"
    UNKNOWN = "unknown"


class Level(str, Enum):
    """As C4D: on Error the blamed nodes are isolated and the job restarts; the others are for people."""

    ERROR = "Error"
    WARN = "Warn"
    INFO = "Info"


def fold_ranks(ranks: Iterable[int]) -> str:
    """`0-3,8-14:2,20` for 0 1 2 3 8 10 12 14 20."""
    left, parts = sorted(set(ranks)), []
    while left:
        step = left[1] - left[0] if len(left) > 1 else 1
        end = 1
        while end < len(left) and left[end] - left[end - 1] == step:
            end += 1
        if end < 3 and step > 1:
            end = 1
        parts.append(_run(left[0], left[end - 1], step))
        left = left[end:]
    return ",".join(parts)


def _run(first: int, last: int, step: int) -> str:
    return str(first) if first == last else f"{first}-{last}" + (f":{step}" if step > 1 else "")


@lru_cache(maxsize=4096)  # the members of a group come from each of them; one tuple serves all
def unfold_ranks(text: str) -> tuple[int, ...]:
    """The inverse of `fold`. Raises: WireError."""
    found: list[int] = []
    try:
        for part in text.split(",") if text else ():
            run, _, step = part.partition(":")
            first, _, last = run.partition("-")
            span = range(int(first), int(last or first) + 1, int(step or 1))
            if span.start < 0 or span.stop > RANKS_MAX + 1 or len(found) + len(span) > RANKS_MAX:
                raise ValueError("too many ranks")
            found.extend(span)
    except ValueError as error:
        raise WireError(f"`{text[:80]}` is not a list of ranks: {error}") from None
    return tuple(found)


class GroupView(Value):
    """A process group as one member sees it.

    key: the same on all members. members: global ranks, empty if not known. entered: collectives begun, from the first on.
    completed: of these, None if the rank cannot tell. started: begun on the device, None if there is none.
    operation: name and size of the earliest collective in flight. recent: of the last ones entered, the newest last.
    """

    # As JSON knows them; the readers of other processes' messages take them from here (model/plain.py).
    plain_forms: ClassVar[Any] = {
        "members": (fold_ranks, lambda folded: unfold_ranks(plain_text(folded, FOLDED_MAX, "a list of ranks")))
    }

    key: str
    members: Collection[int]
    entered: int
    completed: int | None = None
    started: int | None = None
    operation: str = ""
    recent: tuple[str, ...] = ()

    def operation_at(self, number: int) -> str:
        """Of the collective with that number, empty if it is not known."""
        back = self.entered - number
        return self.recent[-1 - back] if 0 <= back < len(self.recent) else ""


class CurrentCall(Value):
    """The main thread is inside communication, by its own words. number: of the collective in its group, from 1.

    peer: global rank at the other end of a point-to-point operation, None for a collective or any sender.
    """

    operation: str
    group: str
    number: int
    for_s: float = 0.0
    peer: int | None = None
    point_to_point: bool = False


class Socket(Value):
    """A TCP connection that is stuck. local, remote: `address:port`. trouble: retransmit, zero-window or unread."""

    local: str
    remote: str
    trouble: str
    queued_bytes: int = 0


class RankView(Value):
    """What is known of one rank at one moment. None: not known."""

    rank: int
    node: str
    process: ProcessState = ProcessState.UNKNOWN
    wchan: str = ""  # kernel function that the thread which trains sleeps in
    beside: tuple[str, ...] = ()  # the same of the other threads that the program itself has begun
    main_fresh: bool | None = None  # its Python code ran within the last seconds
    gil_held: bool | None = None  # the process runs, but none of its other threads gets the interpreter lock
    cpu_percent: float | None = None  # cpu_percent, io_bytes_s: of the process tree
    io_bytes_s: float | None = None
    children: int = 0  # processes alive below it
    groups: tuple[GroupView, ...] = ()
    inside: CurrentCall | None = None
    exact: bool = False  # `inside` tells all waits there are, so a rank that is not inside waits for nobody
    stack_inside: bool | None = None  # what the main thread's stack says, for a rank without such words
    sockets: tuple[Socket, ...] = ()
    probed: bool = False  # the counters are the rank's own; False: it has no probe, and is seen from outside only
    left: bool = False  # it has given up all its process groups, or its program is over
    idle_s: float | None = None  # since its process tree last did any work
    device_busy: bool | None = None  # the use of a device of its node changes; whose it is, is not known
    hidden_groups: int = 0  # process groups of which nothing is known, so it may wait in one of them
    # so many times a second it looks for something that does not come, and does nothing else; what that takes is in neither
    # cpu_percent nor io_bytes_s. None: it does not poll, as far as is known.
    polls_s: float | None = None
    # how often a second the thread that trains wakes up, and all other threads of the program together; None: not known
    wakes_s: float | None = None
    beside_wakes_s: float | None = None
    pid: int = 0  # of its process, as its node has it; 0: not known


class Culprit(Value):
    """Who hangs or is slow."""

    kind: CulpritKind
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]  # of `ranks`
    operation: str
    cause: str  # in words
    level: Level
    evidence: tuple[str, ...] = ()  # what it was read from, the first decides
    blamed: tuple[str, ...] = ()  # of the nodes, those of which the machine and not the program is to blame
    of_program: bool = False  # it is the program's doing, wherever
    helps: str = ""  # what a person can type to let stopped ranks go on

    def same(self, other: Culprit | None) -> bool:
        """Do both name the same ranks for the same thing?"""
        return other is not None and (self.kind, self.ranks) == (other.kind, other.ranks)

    def __str__(self) -> str:
        who = f"rank {fold_ranks(self.ranks)} on {','.join(self.nodes)}" if self.ranks else "no rank in particular"
        return f"{self.kind.value}: {who}{f' in {self.operation}' if self.operation else ''}: {self.cause}"


class CallDurations(Value):
    """How long one rank stayed in consecutive collectives of a group, in microseconds. first: number of the first."""

    key: str
    first: int
    stays_us: tuple[int, ...]


class WaitTimes(Value):
    """One rank's waits of a window. outside_s, inside_s: mean time before a wait, and in it, without rare pauses.

    count: how many waits.

    sent_mb, busy_ms: of its sending sockets so far, None if not known.
    """

    rank: int
    node: str
    count: int
    outside_s: float
    inside_s: float
    stays: tuple[CallDurations, ...] = ()
    sent_mb: float | None = None
    busy_ms: float | None = None


class EntryTimes(Value):
    """When one rank entered consecutive collectives of a group. times_ns: wall clock of its node."""

    rank: int
    node: str
    key: str
    first: int
    times_ns: tuple[int, ...]
