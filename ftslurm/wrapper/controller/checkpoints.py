"""Looks for files that checkpoints make or change: beside the loop, since a file system may be slow, or hang.

Nobody's clock is asked: what counts is that a file is new or another one than when the watch began, and has been the same for a
while since. A folder (a sharded checkpoint) is as new as the newest file in it.
"""

from __future__ import annotations

import glob
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice

from ftslurm.model.events import CheckpointMade, Event
from ftslurm.model.text import whole
from ftslurm.system.files import open_plain

# Files that match one pattern, and entries of one folder that does; more are not looked at.
MATCHES_MAX, ENTRIES_MAX = 10_000, 20_000
LONGEST_LOOK_S = 5.0
MOST_BYTES = 4096  # of a file that holds a number

# size of all files, newest change in ns, how many
Look = tuple[int, int, int]


class CheckpointWatch:
    """patterns: as glob(7), without `**`, which would follow links in circles. From here on until `stop` each checkpoint is told
    once, also if it is changed or removed later."""

    def __init__(self, patterns: tuple[str, ...], settle_s: float, put: Callable[[Event], None]) -> None:
        self._patterns, self._settle_s, self._put = patterns, settle_s, put
        self._over = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        known = {pattern: looked_at(pattern) for pattern in self._patterns}
        settling = SettlingFiles(self._settle_s)
        pause_s = max(0.05, min(LONGEST_LOOK_S, self._settle_s / 4))
        now = 0.0
        while not self._over.wait(pause_s):
            now += pause_s  # its own count of time: that a look takes long makes a file no younger
            for pattern in self._patterns:
                for path in settling.complete(known[pattern], looked_at(pattern), now):
                    self._put(CheckpointMade(pattern, path))


class SettlingFiles:
    """Which files have changed, and then have not for `settle_s`."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._since: dict[str, tuple[Look, float]] = {}

    def complete(self, known: dict[str, Look], seen: Mapping[str, Look], now: float) -> list[str]:
        """known: as they were when they counted last, and are brought up to date. now: seconds. Several that are complete at
        the same look are one checkpoint: the last of them, by name, stands for it."""
        for path in [path for path in known if path not in seen]:
            del known[path]  # an old one that was removed; one of that name may come again
        found = []
        for path, look in sorted(seen.items()):
            if known.get(path) == look:
                self._since.pop(path, None)
                continue
            was, since = self._since.get(path, (look, now))
            if was != look:
                since = now
            self._since[path] = look, since
            if now - since >= self._settle_s and look[2]:
                known[path] = look
                del self._since[path]
                found.append(path)
        return found[-1:]


def iteration_in(path: str) -> int | None:
    """The number that is all the file holds, as Megatron's latest_checkpointed_iteration.txt, else None. Never raises."""
    try:
        with open_plain(path, link=0) as file:
            return whole(file.read(MOST_BYTES).decode("ascii", "replace").strip())
    except (OSError, ValueError):
        return None


def looked_at(pattern: str) -> dict[str, Look]:
    """What matches now. Never raises."""
    found = {}
    with suppress(OSError, ValueError, RecursionError):  # what was seen so far
        for path in islice(glob.iglob(pattern), MATCHES_MAX):  # noqa: PTH207 -- absolute or not
            if (look := _look(path)) is not None:
                found[path] = look
    return found


def _look(path: str) -> Look | None:
    """None for what is no file and no folder, or has just gone."""
    try:
        info = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(info.st_mode):
        return info.st_size, info.st_mtime_ns, 1
    return _look_into(path) if stat.S_ISDIR(info.st_mode) else None


def _look_into(folder: str) -> Look:
    size = newest = count = 0
    for info in islice(_files_below(folder), ENTRIES_MAX):
        size, newest, count = size + info.st_size, max(newest, info.st_mtime_ns), count + 1
    return size, newest, count


def _files_below(folder: str) -> Iterator[os.stat_result]:
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(where, name))  # noqa: PTH118 -- ten thousand times
            except OSError:
                continue
