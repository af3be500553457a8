"""The clock of a simulation, and the book of where its time went."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable
from enum import Enum

from ftslurm.model.events import Now

# What the simulated clocks show at the first start.
EPOCH = 1_700_000_000.0


class Part(Enum):
    """What a moment of the job is. Every second is one of these; `group` says what a person makes of it."""

    USEFUL = "useful training"
    REDONE = "work lost since the last checkpoint"
    SAVING = "saving checkpoints"
    NOTICING = "until the fault is noticed"
    SETTLING = "stopping and deciding"
    HEALING = "healing devices"
    REPLACING = "ending the step, replacing nodes"
    STARTING = "starting the step and the program"
    QUEUE = "in Slurm's queue"
    ENDED = "after the job has failed"
    UNSURE = "new or redone work, or not known"  # of a real job only

    @property
    def group(self) -> str:
        return _GROUPS.get(self, "lost")


_GROUPS = {Part.USEFUL: "useful", Part.QUEUE: "waiting", Part.ENDED: "ended", Part.UNSURE: "unsure"}


class Agenda:
    """What is to happen, by time; what is due at the same moment happens in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds since the first start
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stamp = Now(EPOCH, EPOCH)

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), what))

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def take(self) -> Callable[[], None]:
        return heapq.heappop(self._heap)[2]

    def stamp(self) -> Now:
        """The moment as the judge is told it; a thousand events share one."""
        if self._stamp.unix != EPOCH + self.now:
            self._stamp = Now(EPOCH + self.now, EPOCH + self.now)
        return self._stamp


class TimeBook:
    """Seconds of each part. lost_to: kind of fault -> seconds that are not useful; empty: none, such as the first start."""

    def __init__(self) -> None:
        self.parts: dict[Part, float] = dict.fromkeys(Part, 0.0)
        self.lost_to: defaultdict[str, float] = defaultdict(float)

    def add(self, part: Part, seconds: float, owed_to: str) -> None:
        self.parts[part] += seconds
        if part is not Part.USEFUL:
            self.lost_to[owed_to] += seconds

    def lose_work(self, seconds: float, owed_to: str) -> None:
        """What counted as useful was not saved."""
        self.parts[Part.USEFUL] -= seconds
        self.add(Part.REDONE, seconds, owed_to)
