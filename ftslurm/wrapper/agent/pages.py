"""Reads, on one node, what ranks report in their shared pages and notes (ftslurm.sdk), and judges their beats."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ftslurm.model.settings.ft_config import BeatLimits
from ftslurm.model.values import Value, field
from ftslurm.policies.hang.beats import OFF, Watch, follow_page, merged_limits, overdue
from ftslurm.sdk.notes import SUFFIX, read_placed
from ftslurm.sdk.page import PageState, owner_lives, page_paths, read_page
from ftslurm.wrapper.shim.processes import descendants

# --- Where the pages of ranks are: in the node's /dev/shm, or in that of a container, which is seen through its processes.

# Seconds after the ranks' start at which a page that is not there is looked for in containers, and from then on how often. Most
# programs have none, and each look asks the kernel for all processes of the rank.
LOOKS_S, THEN_S = (2.0, 5.0, 10.0, 20.0, 40.0), 60.0


class Task(NamedTuple):
    """One start of a task of this node. page: its FTSLURM_PAGE, as it is seen from here. attempt: its FTSLURM_ATTEMPT; pages of
    other attempts are ignored. shim: the pid of the parent of its command, which may not have started yet. pid: of the command.
    """

    rank: int
    page: str
    attempt: int = 0
    shim: int | None = None
    pid: int | None = None


class Folders:
    """Gives the tasks with their pages. Call `turn` now and then; it takes monotonic seconds."""

    def __init__(self, folder: str, ranks: Sequence[tuple[int, int, int]], now: float) -> None:
        """folder: of the step on the node. ranks: (rank, pid of its shim, number of its start)."""
        self._own = [Task(rank, f"{folder}/{rank}.{number}", number, shim) for rank, shim, number in ranks]
        self.tasks = self._own
        self._looks = [now + after_s for after_s in LOOKS_S] if ranks else [float("inf")]

    def turn(self, now: float) -> bool:
        """Has a page been found elsewhere since?"""
        if now < self._looks[0]:
            return False
        self._looks = self._looks[1:] or [now + THEN_S]
        before = self.tasks
        self.tasks = [
            task if os.path.exists(task.page) else own._replace(page=root_with(own.page, own.shim or 0) + own.page)  # noqa: PTH110
            for task, own in zip(before, self._own, strict=True)
        ]
        return self.tasks != before


def root_with(page: str, shim: int) -> str:
    """`/proc/PID/root` of the first process of a rank, its shim or below it, that has the page; empty if none has."""
    for pid in (shim, *descendants(shim)):
        if os.path.exists(f"/proc/{pid}/root{page}"):  # noqa: PTH110
            return f"/proc/{pid}/root"
    return ""


# While a program reports, its page is read at the shortest interval of ft_launcher's monitor; before that, rarely.
READ_S, LOOK_S = 0.1, 1.0
# The count of beats is reported each time it has grown by this factor, which is enough for its use.
BEATS_FACTOR = 2
# A folder is filled while its step starts, and removed when it ends.
LEFT_S = 600.0
# The time of some looks.
NEWS_S = 10.0

Message = dict[str, Any]


class RankPages(Value, frozen=False):
    """What the pages of one task say, its own and their siblings, by their paths."""

    task: Task
    limits: BeatLimits
    pages: dict[str, PageState] = field(default_factory=dict)  # of programs that live or may live
    watches: dict[str, Watch | None] = field(default_factory=dict)
    offset: int = 0  # into its notes
    told: bool = False  # an overdue beat was reported
    stage_s: float | None = None
    checkpoints: dict[str, int] = field(default_factory=dict)  # page -> number of checkpoints at the last look


class PageWatch:
    """Call `turn` at `wakes_at`; both are monotonic seconds. `turn` gives the messages to send."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankPages] = {}
        self._step = self._beats_told = self._saved = 0
        self.wakes_at: float | None = None
        self.reports = False  # does a program of the node report by beats or sections?

    def watch(self, tasks: Sequence[Task], limits: BeatLimits, now: float) -> list[Message]:
        """Gives the last messages of the earlier ranks. Earlier data is dropped, except what the same start has reported."""
        before = self.ranks
        self.ranks, self._step, self._beats_told, self._saved, self.reports = {}, 0, 0, 0, False
        for task in tasks:
            old = before.get(task.rank)
            self.ranks[task.rank] = old if old and old.task.page == task.page else RankPages(task, limits)
            self.ranks[task.rank].told = False
        self.wakes_at = now if self.ranks else None
        gone = (old for rank, old in before.items() if self.ranks.get(rank) is not old)
        return [message for old in gone for message in self._notes(old)]

    def turn(self, now: float, at_once: bool = False) -> list[Message]:
        """at_once: look now, before the next time."""
        if self.wakes_at is None or (now < self.wakes_at and not at_once):
            return []
        told: list[Message] = []
        for rank in self.ranks.values():
            told += [*self._notes(rank), *self._beats(rank, now)]
        self.reports = any(watch for rank in self.ranks.values() for watch in rank.watches.values())
        self.wakes_at = now + (READ_S if self.reports else LOOK_S)
        return [*told, *self._progress()]

    @property
    def stage_s(self) -> float | None:
        """The longest hang interval that a program of the node has set for its present work, seconds; -1: one has switched
        detection off.
        """
        set_ = [rank.stage_s for rank in self.ranks.values() if rank.stage_s is not None]
        return OFF if OFF in set_ else max(set_, default=None)

    def beat(self) -> Mapping[int, float]:
        """rank -> when its last beat was read, monotonic; only ranks that beat."""
        found: dict[int, float] = {}
        for number, rank in self.ranks.items():
            beats = [watch.beats.at for watch in rank.watches.values() if watch is not None and watch.beats.word]
            if beats:
                found[number] = max(beats)
        return found

    def _progress(self) -> list[Message]:
        """The progress of the rank that is furthest: its steps; if a program reports none, its beats and checkpoints."""
        pages = [page for rank in self.ranks.values() for page in rank.pages.values()]
        step = max((page.step for page in pages if page.step is not None), default=0)
        beats = max((page.beats for page in pages), default=0)
        saved = max((page.saved for page in pages), default=0)
        if step <= self._step and saved <= self._saved and beats < max(1, BEATS_FACTOR * self._beats_told):
            return []
        self._step, self._saved = max(step, self._step), max(saved, self._saved)
        self._beats_told = max(beats, self._beats_told)
        saving_s = max((page.longest_save_ns / 1e9 for page in pages), default=0.0)
        return [{"t": "progress", "step": self._step, "beats": self._beats_told, "saved": self._saved, "saving_s": saving_s}]

    def _beats(self, rank: RankPages, now: float) -> list[Message]:
        """Check the beats. Several programs may report for one rank; the first late one counts."""
        told: list[Message] = []
        rank.pages = {}
        for path in page_paths(rank.task.page):
            page = read_page(path)
            told += self._checkpoint(rank, path, page) if page is not None else []
            ended = page is not None and owner_lives(page) is False  # and sends no beats
            rank.watches[path] = None if ended else follow_page(rank.watches.get(path), page, now)
            if page is not None and not ended:
                rank.pages[path] = page
        stages = [page.stage_s for page in rank.pages.values() if page.stage_s is not None]
        told += self._stage(rank, OFF if OFF in stages else max(stages, default=None))
        late = next((late for watch in rank.watches.values() if (late := overdue(watch, rank.limits, now))), None)
        if bool(late) != rank.told:
            rank.told = bool(late)
            about = {"t": "overdue", "rank": rank.task.rank, "attempt": rank.task.attempt}
            return [*told, {**about, "why": late.reason(now)[:500] if late else ""}]
        return told

    def _checkpoint(self, rank: RankPages, path: str, page: PageState) -> list[Message]:
        """Report a new checkpoint, but not one that was complete long before the first look at the page (another agent was here
        before).
        """
        known = rank.checkpoints.get(path)
        rank.checkpoints[path] = page.checkpoints
        fresh = time.monotonic_ns() - page.checkpoint_ns < NEWS_S * 1e9
        if page.checkpoints <= (known or 0) or (known is None and not fresh):
            return []
        words = [f"step {page.checkpoint}"] if page.checkpoint is not None else []
        return [{"t": "said", "rank": rank.task.rank, "attempt": rank.task.attempt, "what": "checkpoint", "words": words}]

    def _stage(self, rank: RankPages, stage_s: float | None) -> list[Message]:
        if stage_s == rank.stage_s:
            return []
        rank.stage_s = stage_s
        return [{"t": "stage", "rank": rank.task.rank, "attempt": rank.task.attempt, "stage_s": stage_s}]

    def _notes(self, rank: RankPages) -> list[Message]:
        found, rank.offset = read_placed(rank.task.page + SUFFIX, rank.offset)
        told = []
        for place, note in found:
            if note.limits is not None:
                rank.limits = merged_limits(rank.limits, note.limits)
            about = {"rank": rank.task.rank, "attempt": rank.task.attempt, "place": place}
            told.append({"t": "said", **about, "what": note.what, "words": list(note.words)})
        return told


def sweep_pages(own: str, now: float) -> None:
    """Remove folders of pages that steps of this user left here when they were killed. Never raises.

    own: our folder. now: Unix seconds. Young folders stay, and those with a page whose owner lives or may live.
    """
    mine = Path(own)
    try:
        others = [path for path in mine.parent.glob(f"ftslurm.{os.getuid()}.*") if path != mine]
    except OSError:
        return
    for folder in others:
        try:
            told = folder.lstat()
            if stat.S_ISDIR(told.st_mode) and told.st_uid == os.getuid() and now - told.st_mtime > LEFT_S:
                files = list(folder.iterdir())
                pages = [page for file in files if (page := read_page(str(file))) is not None]
                if all(owner_lives(page) is False for page in pages):
                    for file in files:
                        file.unlink()
                    folder.rmdir()
        except OSError:
            continue


def limits_told(values: Mapping[str, Any]) -> BeatLimits:
    """The limits from the controller's message; the settings were checked when ftrun began."""
    from ftslurm.model.settings.ft_config import limits_from

    return limits_from(values)
