"""Slots that want another node, and what has come of the search so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Filling:
    """decision: id of what is being carried out, empty before the first launch. out: slot -> the node that leaves it.

    found: slot -> node that may fill it. checking: node -> slot, being looked at. borrowing: slots for which a donor job waits.
    donors: slot -> the donor job that was submitted for it. lent: node -> donor job. tried: nodes that will not do. gone: nodes
    of `out` that cannot run anything any more. until: monotonic seconds. failed: why there is none. unsure: it may be for want
    of answers, as when slurmctld is away.
    """

    decision: str
    out: dict[int, str]
    until: float
    gone: frozenset[str] = frozenset()
    found: dict[int, str] = field(default_factory=dict)
    checking: dict[str, int] = field(default_factory=dict)
    borrowing: set[int] = field(default_factory=set)
    donors: dict[int, int] = field(default_factory=dict)
    lent: dict[str, int] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    failed: str = ""
    unsure: bool = False

    @property
    def done(self) -> bool:
        return self.found.keys() == self.out.keys()

    @property
    def open(self) -> tuple[int, ...]:
        """Slots for which nothing is under way."""
        busy = {*self.found, *self.checking.values(), *self.borrowing}
        return tuple(slot for slot in sorted(self.out) if slot not in busy)

    def next_of(self, spares: Iterable[str]) -> str | None:
        """A spare that has not been tried, is not being looked at and is not taken."""
        taken = {*self.tried, *self.checking, *self.found.values()}
        return next((node for node in spares if node not in taken), None)
