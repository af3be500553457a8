"""Checkpoints that requests wait for: the sign of each, when one is complete, and for which requests it counts."""

from __future__ import annotations

from ftslurm.model.decisions import Decision, WatchCheckpoints
from ftslurm.model.folds.control import Request
from ftslurm.model.folds.history import History
from ftslurm.model.settings.tree import Settings


class Checkpoints:
    """patterns: of files that are watched because checkpoints create or change them. Times are monotonic seconds."""

    def __init__(self, settings: Settings) -> None:
        self.patterns: tuple[str, ...] = ()
        self._files, self._settle_s = settings.checkpoint_files, settings.checkpoint_settle_s
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
