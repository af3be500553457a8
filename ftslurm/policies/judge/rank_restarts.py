"""Ranks of an async job that failed and start again alone, and nodes of a min-healthy job. Times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.policies.ladder.situation import Trouble

# A rank that ran for this long made a useful start; otherwise each individual restart is delayed twice as long as the one before.
LIVED_S, BACK_OFF_MOST_S = 600.0, 60.0


class RanksAlone:
    """The path of a failed rank: its remaining processes are stopped, the cause of its end is asked for, then it starts again, at
    once or after a delay. failed_nodes: node with a failed rank -> what failed.
    """

    def __init__(self) -> None:
        self.failed_nodes: dict[str, str] = {}
        self.given_up: dict[int, Trouble] = {}  # ranks that do not start again while the others run on
        self._times: dict[int, int] = {}  # rank -> how often it was started alone in this attempt
        self._mending: dict[int, tuple[Trouble, float]] = {}  # rank -> why, until when
        self._asked: frozenset[int] = frozenset()  # those of them whose cause is being analysed
        self._again: dict[int, float] = {}  # rank with a delayed start -> until when
        self._in_a_row: dict[int, tuple[int, float]] = {}  # rank -> how often it was started alone in a row, and when last

    @property
    def busy(self) -> bool:
        """Is a rank between its failure and its next start?"""
        return bool(self._mending or self._again)

    @property
    def next_mended(self) -> float | None:
        return min((until for _, until in self._mending.values()), default=None)

    @property
    def next_again(self) -> float | None:
        return min(self._again.values(), default=None)

    def stop(self) -> None:
        """Forget all: all ranks are stopped, or new ones start."""
        self._mending, self._again, self._asked = {}, {}, frozenset()

    def begin_attempt(self) -> None:
        self._in_a_row, self.failed_nodes, self.given_up, self._times = {}, {}, {}, {}

    def fail_node(self, node: str, what: str) -> None:
        self.failed_nodes[node] = what

    def mend(self, rank: int, trouble: Trouble, until: float) -> None:
        self._mending[rank] = (trouble, until)

    def is_mended(self, rank: int) -> bool:
        """Are its remaining processes being stopped?"""
        return rank in self._mending and rank not in self._asked

    def ask(self, rank: int, until: float) -> None:
        """All its processes have ended; the cause is being analysed."""
        self._asked |= {rank}
        self._mending[rank] = (self._mending[rank][0], until)

    def is_asked(self, rank: int) -> bool:
        return rank in self._asked

    def take(self, rank: int) -> Trouble:
        """The rank is ready and the cause is known. Gives why it ended."""
        self._asked -= {rank}
        return self._mending.pop(rank)[0]

    def late(self, now: float) -> Mapping[int, Trouble]:
        """Ranks whose processes, or whose analysis, took longer than the limit."""
        return {rank: trouble for rank, (trouble, until) in self._mending.items() if until <= now}

    def in_a_row(self, rank: int, now: float) -> int:
        count, last = self._in_a_row.get(rank, (0, 0.0))
        return count if now - last < LIVED_S else 0

    def times(self, rank: int) -> int:
        """How often it was started alone in this attempt."""
        return self._times.get(rank, 0)

    def start(self, rank: int, now: float) -> float:
        """Count its next start. Gives the delay in seconds."""
        self._times[rank] = self.times(rank) + 1
        count = self.in_a_row(rank, now)
        wait_s = min(2.0 ** (count - 1), BACK_OFF_MOST_S) if count else 0.0
        self._in_a_row[rank] = (count + 1, now + wait_s)
        if wait_s:
            self._again[rank] = now + wait_s
        return wait_s

    def take_due(self, now: float) -> list[int]:
        """Ranks whose delay is over."""
        due = sorted(rank for rank, at in self._again.items() if at <= now)
        self._again = {rank: at for rank, at in self._again.items() if rank not in due}
        return due
