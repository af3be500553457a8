"""Ranks of an async job that failed and start again alone, and nodes of a min-healthy one. Times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.policies.ladder.situation import Trouble

# A rank that has run for so long was not started in vain; until then each start alone is put off for twice as long.
LIVED_S, BACK_OFF_MOST_S = 600.0, 60.0


class RanksAlone:
    """A rank is mended (what it has left is ended), then it is asked what is behind its end, then it starts again, at once or
    after a while. failed_nodes: node with a rank that failed -> what did."""

    def __init__(self) -> None:
        self.failed_nodes: dict[str, str] = {}
        self._mending: dict[int, tuple[Trouble, float]] = {}  # rank -> why, until when
        self._asked: frozenset[int] = frozenset()  # of those, ranks of which it is asked what is behind their end
        self._again: dict[int, float] = {}  # rank whose start is put off -> until when
        self._in_a_row: dict[int, tuple[int, float]] = {}  # rank -> how often it was started alone in a row, and when last

    @property
    def busy(self) -> bool:
        """Is a rank on its way to its next start?"""
        return bool(self._mending or self._again)

    @property
    def next_mended(self) -> float | None:
        return min((until for _, until in self._mending.values()), default=None)

    @property
    def next_again(self) -> float | None:
        return min(self._again.values(), default=None)

    def stop(self) -> None:
        """All ranks are stopped, or others come."""
        self._mending, self._again, self._asked = {}, {}, frozenset()

    def begin_attempt(self) -> None:
        self._in_a_row, self.failed_nodes = {}, {}

    def fail_node(self, node: str, what: str) -> None:
        self.failed_nodes[node] = what

    def mend(self, rank: int, trouble: Trouble, until: float) -> None:
        self._mending[rank] = (trouble, until)

    def is_mended(self, rank: int) -> bool:
        """Is what it has left being ended?"""
        return rank in self._mending and rank not in self._asked

    def ask(self, rank: int, until: float) -> None:
        """Nothing of it is left, and it is asked what is behind its end."""
        self._asked |= {rank}
        self._mending[rank] = (self._mending[rank][0], until)

    def is_asked(self, rank: int) -> bool:
        return rank in self._asked

    def take(self, rank: int) -> Trouble:
        """Mended, and known what is behind its end. Gives why it has ended."""
        self._asked -= {rank}
        return self._mending.pop(rank)[0]

    def late(self, now: float) -> Mapping[int, Trouble]:
        """Ranks whose mending has taken too long, or the answer to what is behind their end."""
        return {rank: trouble for rank, (trouble, until) in self._mending.items() if until <= now}

    def in_a_row(self, rank: int, now: float) -> int:
        count, last = self._in_a_row.get(rank, (0, 0.0))
        return count if now - last < LIVED_S else 0

    def start(self, rank: int, now: float) -> float:
        """Its next start counts. Gives for how many seconds it is put off."""
        count = self.in_a_row(rank, now)
        wait_s = min(2.0 ** (count - 1), BACK_OFF_MOST_S) if count else 0.0
        self._in_a_row[rank] = (count + 1, now + wait_s)
        if wait_s:
            self._again[rank] = now + wait_s
        return wait_s

    def take_due(self, now: float) -> list[int]:
        """Ranks whose start is put off no longer."""
        due = sorted(rank for rank, at in self._again.items() if at <= now)
        self._again = {rank: at for rank, at in self._again.items() if rank not in due}
        return due
