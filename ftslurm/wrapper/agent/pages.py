"""Reads, on one node, what ranks report in their shared pages and notes (ftslurm.sdk), and judges their beats."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftslurm.model.settings.ft_config import BeatLimits
from ftslurm.model.values import Value, field
from ftslurm.policies.hang.beats import OFF, Watch, follow_page, merged_limits, overdue
from ftslurm.sdk.notes import SUFFIX, read_placed
from ftslurm.sdk.page import PageState, owner_lives, page_paths, read_page
from ftslurm.wrapper.shim.pages import is_saving
from ftslurm.wrapper.shim.processes import descendants

# --- Where the pages of ranks are: in the node's /dev/shm, or in that of a container, which is seen through its processes.

# Seconds after the ranks' start at which a page that is not there is looked for in containers, and from then on how often. Most
# programs have none, and each look asks the kernel for all processes of the rank.
LOOKS_S, THEN_S = (2.0, 5.0, 10.0, 20.0, 40.0), 60.0


class Folders:
    """Gives the folder of a rank's page. Call `turn` at `wakes_at`, monotonic seconds."""

    def __init__(self, folder: str, ranks: Sequence[tuple[int, int, int]], now: float) -> None:
        """folder: of the step on the node. ranks: (rank, pid of its shim, number of its start)."""
        self._folder, self.ranks = folder, ranks
        self._roots: dict[int, str] = {}  # rank -> of a process of it
        self._looks = [now + after_s for after_s in LOOKS_S] if ranks else [float("inf")]

    def __call__(self, rank: int) -> str:
        return self._roots.get(rank, "") + self._folder

    def turn(self, now: float) -> bool:
        """Has a page been found elsewhere since?"""
        if now < self._looks[0]:
            return False
        self._looks = self._looks[1:] or [now + THEN_S]
        before = dict(self._roots)
        for rank, shim, number in self.ranks:
            page = f"{rank}.{number}"
            if not os.path.exists(f"{self(rank)}/{page}"):  # noqa: PTH110
                self._roots[rank] = root_with(f"{self._folder}/{page}", shim)
        return self._roots != before


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


class _Rank(Value, frozen=False):
    """A rank whose page the agent reads."""

    attempt: int  # the rank's start
    path: str  # of its page
    limits: BeatLimits
    watches: dict[str, Watch | None]
    offset: int = 0  # into its notes
    told: bool = False  # an overdue beat was reported
    stage_s: float | None = None
    step: int | None = None
    beats: int = 0
    saved: int = 0
    saving_s: float = 0.0  # the longest
    checkpoints: dict[str, int] = field(default_factory=dict)  # page -> number of checkpoints at the last look


class PageWatch:
    """Call `turn` at `wakes_at`; both are monotonic seconds. `turn` gives the messages to send."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._step = self._beats_told = self._saved = 0
        self.wakes_at: float | None = None
        self.reports = False  # does a program of the node report by beats or sections?

    def watch(
        self, ranks: Sequence[tuple[int, int]], folder: Callable[[int], str], limits: BeatLimits, now: float
    ) -> list[Message]:
        """ranks: (rank, number of its start). folder: of a rank's pages. Gives the last messages of the earlier ranks.

        Earlier data is dropped, except what the same start has reported.
        """
        before = self._ranks
        self._ranks, self._step, self._beats_told, self._saved, self.reports = {}, 0, 0, 0, False
        for rank, number in ranks:
            path = f"{folder(rank)}/{rank}.{number}"
            old = before.get(rank)
            self._ranks[rank] = old if old and old.path == path else _Rank(number, path, limits, {})
            self._ranks[rank].told = False
        self.wakes_at = now if self._ranks else None
        gone = [(rank, old) for rank, old in before.items() if self._ranks.get(rank) is not old]
        return [message for rank, old in gone for message in self._notes(rank, old)]

    def turn(self, now: float, at_once: bool = False) -> list[Message]:
        """at_once: look now, before the next time."""
        if self.wakes_at is None or (now < self.wakes_at and not at_once):
            return []
        told: list[Message] = []
        for number, rank in self._ranks.items():
            told += self._notes(number, rank)
            told += self._beats(number, rank, now)
        self.reports = any(watch for rank in self._ranks.values() for watch in rank.watches.values())
        self.wakes_at = now + (READ_S if self.reports else LOOK_S)
        return [*told, *self._progress()]

    @property
    def stage_s(self) -> float | None:
        """The longest hang interval that a program of the node has set for its present work, seconds; -1: one has switched
        detection off.
        """
        set_ = [rank.stage_s for rank in self._ranks.values() if rank.stage_s is not None]
        return OFF if OFF in set_ else max(set_, default=None)

    def beat(self) -> Mapping[int, float]:
        """rank -> when its last beat was read, monotonic; only ranks that beat."""
        found: dict[int, float] = {}
        for number, rank in self._ranks.items():
            beats = [watch.beats.at for watch in rank.watches.values() if watch is not None and watch.beats.word]
            if beats:
                found[number] = max(beats)
        return found

    def _progress(self) -> list[Message]:
        """The progress of the rank that is furthest: its steps; if a program reports none, its beats and checkpoints."""
        step = max((rank.step for rank in self._ranks.values() if rank.step is not None), default=0)
        beats = max((rank.beats for rank in self._ranks.values()), default=0)
        saved = max((rank.saved for rank in self._ranks.values()), default=0)
        if step <= self._step and saved <= self._saved and beats < max(1, BEATS_FACTOR * self._beats_told):
            return []
        self._step, self._beats_told, self._saved = max(step, self._step), beats, saved
        saving_s = max((rank.saving_s for rank in self._ranks.values()), default=0.0)
        return [{"t": "progress", "step": self._step, "beats": beats, "saved": saved, "saving_s": saving_s}]

    def _beats(self, number: int, rank: _Rank, now: float) -> list[Message]:
        """Check the beats. Several programs may report for one rank; the first late one counts."""
        stages: list[float] = []
        told: list[Message] = []
        for path in page_paths(rank.path):
            page = read_page(path)
            told += self._checkpoint(number, rank, path, page) if page is not None else []
            if page is not None and owner_lives(page) is not False:
                stages += [page.stage_s] if page.stage_s is not None else []
                rank.step = max(rank.step or 0, page.step) if page.step is not None else rank.step
                rank.beats = max(rank.beats, page.beats)
                saving = [each for each in page.sections if is_saving(each.name)]
                rank.saved = max(rank.saved, sum(each.times for each in saving))
                rank.saving_s = max(rank.saving_s, *(each.longest_ns / 1e9 for each in saving), 0.0)
            if page is not None and owner_lives(page) is False:
                rank.watches[path] = None  # a program that has ended sends no beats
            else:
                rank.watches[path] = follow_page(rank.watches.get(path), page, now)
        told += self._stage(number, rank, OFF if OFF in stages else max(stages, default=None))
        late = next((late for watch in rank.watches.values() if (late := overdue(watch, rank.limits, now))), None)
        if bool(late) != rank.told:
            rank.told = bool(late)
            about = {"t": "overdue", "rank": number, "attempt": rank.attempt}
            return [*told, {**about, "why": late.reason(now)[:500] if late else ""}]
        return told

    def _checkpoint(self, number: int, rank: _Rank, path: str, page: PageState) -> list[Message]:
        """Report a new checkpoint, but not one that was complete long before the first look at the page (another agent was here
        before).
        """
        known = rank.checkpoints.get(path)
        rank.checkpoints[path] = page.checkpoints
        fresh = time.monotonic_ns() - page.checkpoint_ns < NEWS_S * 1e9
        if page.checkpoints <= (known or 0) or (known is None and not fresh):
            return []
        words = [f"step {page.checkpoint}"] if page.checkpoint is not None else []
        return [{"t": "said", "rank": number, "attempt": rank.attempt, "what": "checkpoint", "words": words}]

    def _stage(self, number: int, rank: _Rank, stage_s: float | None) -> list[Message]:
        if stage_s == rank.stage_s:
            return []
        rank.stage_s = stage_s
        return [{"t": "stage", "rank": number, "attempt": rank.attempt, "stage_s": stage_s}]

    def _notes(self, number: int, rank: _Rank) -> list[Message]:
        found, rank.offset = read_placed(rank.path + SUFFIX, rank.offset)
        told = []
        for place, note in found:
            if note.limits is not None:
                rank.limits = merged_limits(rank.limits, note.limits)
            about = {"rank": number, "attempt": rank.attempt, "place": place}
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
