"""A job's hangs and pauses: how many hangs came in a row, whom they began with, how long the job has paused by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ftslurm.model.folds.parts.streaks import in_a_row
from ftslurm.model.pauses import with_pause
from ftslurm.model.record import CulpritSeen, Decided, Paused
from ftslurm.model.values import dataclass

HANGS = frozenset({"RankCommHang", "RankNonCommHang"})


@dataclass(frozen=True, slots=True)
class Hangs:
    in_a_row: int = 0  # decisions on hangs without an explicit fault or progress between
    last: tuple[int, frozenset[str]] = (0, frozenset())  # attempt and nodes of the last one seen, whatever came of it
    culprits: Mapping[int, frozenset[str]] = field(default_factory=dict)  # attempt -> nodes of the hang that ended it
    quiet_pauses: tuple[float, ...] = ()  # seconds, the longest first
    busy_pauses: tuple[float, ...] = ()  # likewise

    def seen(self, found: CulpritSeen) -> Hangs:
        return replace(self, last=(found.attempt, frozenset(found.nodes)))

    def decided(self, decided: Decided) -> Hangs:
        culprits = self.culprits
        if decided.cause == "hang" and self.last[0] == decided.attempt:
            culprits = {**culprits, decided.attempt: self.last[1]}
        return replace(self, culprits=culprits, in_a_row=in_a_row(self.in_a_row, decided, decided.cause == "hang"))

    def broken(self) -> Hangs:
        """What comes next is the first in a row."""
        return replace(self, in_a_row=0)

    def take_back(self, swap: Decided) -> Hangs:
        """The hang that it was to answer counts with the answer that comes in its place."""
        return replace(self, in_a_row=max(self.in_a_row - (swap.cause == "hang"), 0))

    def paused(self, pause: Paused) -> Hangs:
        if pause.busy:
            return replace(self, busy_pauses=with_pause(self.busy_pauses, pause.seconds))
        return replace(self, quiet_pauses=with_pause(self.quiet_pauses, pause.seconds))
