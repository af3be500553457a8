"""How far the training has come, from the file that it writes (progress.file), and the checkpoints that requests wait for."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model.decisions import Decision, ReadIteration, WatchCheckpoints
from ftslurm.model.events import Now
from ftslurm.model.folds.control import Request
from ftslurm.model.folds.history import History
from ftslurm.model.record import IterationSeen
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.phases import RunFacts


def read_at_begin(settings: Settings, history: History, facts: RunFacts) -> list[Decision]:
    """Read the file before a start: a training that continues from a checkpoint is already this far. After a requeue the ledger
    knows it.
    """
    requeued = any(key == facts.step_key and schedule < facts.schedule for schedule, key in history.slots.starts)
    wanted = settings.progress.file and settings.progress.attempts and not requeued
    return [ReadIteration(0, settings.progress.file)] if wanted else []


def read_at_end(settings: Settings, attempt: int) -> list[Decision]:
    """Read the file after an attempt: ranks may have written a checkpoint while they were stopped."""
    wanted = settings.progress.file and settings.progress.attempts and attempt
    return [ReadIteration(attempt, settings.progress.file)] if wanted else []


def iteration_seen(event: ev.IterationRead, settings: Settings, past: History, now: Now) -> IterationSeen | None:
    """The record of a new iteration, None if there is none. An unreadable file tells nothing,
    neither progress nor a lack of it.
    """
    if not event.attempt:
        known = (event.iteration or 0, 0) == (past.progress.iteration, past.progress.in_vain)
        return None if known else IterationSeen(now.unix, 0, event.iteration or 0)
    if event.iteration is None or not (event.iteration or past.progress.iteration):
        return None
    got_on = event.iteration - past.progress.iteration >= settings.progress.iterations
    return IterationSeen(now.unix, event.attempt, event.iteration, 0 if got_on else past.progress.in_vain + 1)


# --- checkpoints that requests wait for: the sign of each, when one is complete, and for which requests it counts


class Checkpoints:
    """patterns: of files that are watched because checkpoints create or change them. Times are monotonic seconds."""

    def __init__(self, settings: Settings) -> None:
        self.patterns: tuple[str, ...] = ()
        self._files, self._settle_s = settings.checkpoint.files, settings.checkpoint.settle_s
        self._settles: float | None = None  # when a checkpoint that the program reported counts
        self._ranks: set[int] = set()  # the ranks that have reported it

    @property
    def next_due(self) -> float | None:
        return self._settles

    def pattern(self, request: Request, history: History) -> str:
        """The pattern of the files that show its checkpoints; empty: the program reports them."""
        return request.asked.files or ("" if history.progress.checkpoints_told else self._files)

    def are_known(self, request: Request, history: History) -> bool:
        return history.progress.checkpoints_told or bool(self.pattern(request, history))

    def awaited(self, request: Request, history: History) -> str:
        """What the request waits for, in words."""
        left = request.asked.checkpoints - request.seen
        more = "the next checkpoint" if left == 1 else f"{left} checkpoints"
        if pattern := self.pattern(request, history):
            return f"it waits for {more}: a new or changed {pattern}"
        unknown = "" if history.progress.checkpoints_told else ", which has said nothing of checkpoints yet"
        return f"it waits for {more}, as told by the program{unknown}"

    def watch(self, history: History) -> list[Decision]:
        """Watch the files of all waiting requests, unless they are watched already."""
        waiting = [request for request in history.control.to_come if request.asked.checkpoints]
        patterns = tuple(sorted({pattern for request in waiting if (pattern := self.pattern(request, history))}))
        changed, self.patterns = patterns != self.patterns, patterns
        return [WatchCheckpoints(patterns, self._settle_s)] if changed else []

    def has_told(self, rank: int) -> bool:
        return rank in self._ranks

    def told(self, rank: int, now: float) -> None:
        """The rank has written its part of a checkpoint, which is complete when no other follows for a while."""
        self._ranks.add(rank)
        self._settles = now + self._settle_s

    def has_settled(self, now: float) -> bool:
        return self._settles is not None and self._settles <= now

    def take_told(self) -> str:
        """The ranks that have reported the complete checkpoint, in words; empty: none."""
        ranks, self._ranks, self._settles = sorted(self._ranks), set(), None
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}" if ranks else ""

    def left(self, request: Request, pattern: str, history: History, at: float) -> int | None:
        """How many more checkpoints the request waits for after one that was seen now; None: that one does not count for it. at:
        Unix seconds.
        """
        asked = request.asked
        if not asked.checkpoints or self.pattern(request, history) != pattern or at < asked.after:
            return None
        return max(0, asked.checkpoints - request.seen - 1)
