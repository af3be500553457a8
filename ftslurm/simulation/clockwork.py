"""The clock of a simulation, the book of where its time went, and how far its training is."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from enum import Enum

from ftslurm.model.events import Now
from ftslurm.simulation.trace import JobPlan

# What the simulated clocks show at the first start.
EPOCH = 1_700_000_000.0


class TimePart(Enum):
    """What a moment of the job is, in words for people. Every second is one of these; `group` says what they make of it."""

    USEFUL = "useful training"
    REDONE = "work lost, done anew"  # since the last checkpoint
    SAVING = "saving checkpoints"
    NOTICING = "fault not noticed yet"
    SETTLING = "stopping, deciding"
    HEALING = "healing devices"
    REPLACING = "replacing nodes"  # and ending the step
    STARTING = "starting"  # the step and the program
    QUEUE = "in Slurm's queue"
    ENDED = "after it has failed"
    UNSURE = "new or redone work"  # of a real job only, or not known

    @property
    def group(self) -> str:
        return _GROUPS.get(self, "lost")


_GROUPS = {TimePart.USEFUL: "useful", TimePart.QUEUE: "waiting", TimePart.ENDED: "ended", TimePart.UNSURE: "unsure"}


class Agenda:
    """What is to happen, by time; what is due at the same moment happens in the order in which it was planned."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds since the first start
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), what))

    @property
    def next_at(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def take(self) -> Callable[[], None]:
        return heapq.heappop(self._heap)[2]

    def stamp(self) -> Now:
        """The moment as the judge is told it."""
        return Now(EPOCH + self.now, EPOCH + self.now)


class TimeBook:
    """Seconds of each part. lost_to: kind of fault -> seconds that are not useful; empty: none, such as the first start."""

    def __init__(self) -> None:
        self.parts: dict[TimePart, float] = dict.fromkeys(TimePart, 0.0)
        self.lost_to: defaultdict[str, float] = defaultdict(float)

    def add(self, part: TimePart, seconds: float, owed_to: str) -> None:
        self.parts[part] += seconds
        if part is not TimePart.USEFUL:
            self.lost_to[owed_to] += seconds

    def lose_work(self, seconds: float, owed_to: str) -> None:
        """What counted as useful was not saved."""
        self.parts[TimePart.USEFUL] -= seconds
        self.add(TimePart.REDONE, seconds, owed_to)


# --- how far the training is: what it has done, what a checkpoint holds, and what stops it


class Training:
    """done_s, saved_s: training time, measured on all nodes of the plan. share: of these, those that it runs on now.

    The phases of an attempt: idle (no ranks), starting (until `_starts_at`), training, blocked (a fault stops it).
    """

    def __init__(self, plan: JobPlan, book: TimeBook) -> None:
        self._plan, self._book = plan, book
        self.done_s = self.saved_s = 0.0
        self.share = 1.0
        self.running = self.blocked = False
        self.steps_at = 0.0  # when the program of this attempt comes to its first step
        self._spent_s = 0.0  # of the clock, for what has been done since the last checkpoint
        self._saving_s = 0.0  # left of a save that goes on
        self.owed_to = ""

    def start(self, now: float, share: float) -> None:
        self.running, self.blocked, self.share = True, False, share
        self.steps_at = now + self._plan.program_start_s
        self._saving_s = 0.0

    def block(self, owed_to: str) -> None:
        """A fault stops all progress."""
        self.blocked = True
        self.owed_to = owed_to

    def owe(self, owed_to: str) -> None:
        """To this kind of fault, whatever is lost next."""
        self.owed_to = owed_to

    def stop(self, saved: bool = False) -> None:
        """The ranks have ended; what no checkpoint holds is lost. saved: they have written one before."""
        if saved:
            self._save()
        if self._spent_s:
            self._book.lose_work(self._spent_s, self.owed_to)
        self.done_s, self._spent_s, self._saving_s = self.saved_s, 0.0, 0.0
        self.running = False

    def _save(self) -> None:
        self.saved_s, self._spent_s = self.done_s, 0.0

    @property
    def step(self) -> int:
        return int(self.done_s / self._plan.step_s + 1e-9)

    def trains(self, now: float) -> bool:
        return self.running and not self.blocked and now >= self.steps_at

    def next_change(self, now: float) -> float:
        """When something happens by itself: the first step, a checkpoint, the end of the work."""
        if not self.running or self.blocked:
            return math.inf
        if now < self.steps_at:
            return self.steps_at
        return now + (self._saving_s or self._left_s / self.share)

    @property
    def _left_s(self) -> float:
        """Training time until the next checkpoint or the end of the work."""
        place = self.done_s / self._plan.checkpoint_s
        due = (math.floor(place + 1e-9) + 1) * self._plan.checkpoint_s
        return min(due, self._plan.work_s or math.inf) - self.done_s

    @property
    def complete(self) -> bool:
        return bool(self._plan.work_s) and self.done_s >= self._plan.work_s - 1e-6

    def advance(self, seconds: float) -> None:
        """While it trains; never past `next_change`."""
        if self._saving_s:
            self._saving_s = max(0.0, self._saving_s - seconds)
            self._book.add(TimePart.SAVING, seconds, "checkpoints")
            if self._saving_s < 1e-9:
                self._saving_s = 0.0
                self._save()
            return
        left = self._left_s
        self.done_s += seconds * self.share
        self._spent_s += seconds
        self._book.add(TimePart.USEFUL, seconds, "")
        if seconds * self.share >= left - 1e-6:
            if self._plan.save_s:
                self._saving_s = self._plan.save_s
            else:
                self._save()
