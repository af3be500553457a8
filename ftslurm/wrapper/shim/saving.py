"""Was a rank writing a checkpoint when it was told to stop, and did it write that to its end? Its program tells so by sections in
its pages, of which this reads what it needs (sdk/page.py has the table)."""

from __future__ import annotations

import os

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING
from ftslurm.wrapper.shim.files import content

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ftslurm.wrapper.shim.protocol.messages import Message

SAVE_LOOK_S = 0.1  # as often as an agent looks at the page of a program that reports
PAGE_BYTES, PAGE_HEAD = 8192, (0x4547415053544621, 1)
PAGE_SIBLINGS = 64
SECTIONS_WORD, SECTIONS_AT, SECTION_WORDS, SECTIONS_MOST = 34, 512, 6, 48
NAMES_AT = 6400  # bytes

Sections = dict[int, tuple[bool, int]]  # slot of a section in which the program saves -> is it open, how often was it closed


def is_saving(section: str) -> bool:
    """Do programs save in a section of this name? ft_launcher's own is `checkpointing`; what only reads one is none."""
    words = "".join(letter if letter.isalnum() else " " for letter in section.lower()).split()
    reads = any(word.startswith(("load", "restor", "read")) for word in words)
    return not reads and any("checkpoint" in word or "ckpt" in word or word in ("save", "saving") for word in words)


class Saves:
    """Of one start of a rank: those that it had open when it was told to stop."""

    def __init__(self) -> None:
        self._open: Mapping[tuple[str, int], int] = {}  # (page, slot) -> how often it had been closed
        self.waits = False  # the rank is not asked to end yet

    def stop(self, page: str, first: bool) -> bool:
        """It is told to stop. page: its FTSLURM_PAGE, empty for none. first: shall a save end first? Gives if one does."""
        self._open = {
            (path, slot): times
            for path, sections in _pages(page)
            for slot, (is_open, times) in sections.items()
            if is_open
        }  # fmt: skip
        self.waits = first and self.going_on
        return self.waits

    def turn(self, stopping: bool) -> bool:
        """Is the rank to be asked now? Once. stopping: it has not ended."""
        asks = self.waits and not (stopping and self.going_on)
        self.waits = self.waits and not asks
        return asks and stopping

    @property
    def going_on(self) -> bool:
        """Is one of them still being written, by a process that lives?"""
        now = {path: sections_of(path) for path, _ in self._open}
        return any(now[path].get(slot) == (True, times) for (path, slot), times in self._open.items())

    def told(self) -> Message:
        """With the message that the rank has stopped."""
        if not self._open:
            return {}
        now = {path: sections_of(path, dead=True) for path, _ in self._open}
        whole = all(now[path].get(slot, (True, 0))[1] > times for (path, slot), times in self._open.items())
        return {"save": "whole" if whole else "cut"}


def _pages(page: str) -> Iterator[tuple[str, Sections]]:
    """The page of the task, and those of further processes below it (torchrun's ranks)."""
    for number in range(PAGE_SIBLINGS if page else 0):
        path = f"{page}.{number}" if number else page
        if not os.path.exists(path):
            return
        yield path, sections_of(path)


def sections_of(path: str, dead: bool = False) -> Sections:
    """In which the program of this page saves; none where it has ended, unless `dead`. Never raises."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        data = os.pread(fd, PAGE_BYTES, 0)
    except OSError:
        return {}
    finally:
        os.close(fd)
    if len(data) != PAGE_BYTES:
        return {}
    words = memoryview(data).cast("Q")
    if tuple(words[:2]) != PAGE_HEAD or not (dead or _writer_lives(words[2], words[3], words[4])):
        return {}
    found: Sections = {}
    for slot in range(min(words[SECTIONS_WORD], SECTIONS_MOST)):
        _, opened, _, _, times, name = words[(base := SECTIONS_AT + slot * SECTION_WORDS) : base + SECTION_WORDS]
        begin = NAMES_AT + (name >> 16)
        if is_saving(data[begin : begin + (name & 0xFFFF)].decode("utf-8", "replace")):
            found[slot] = bool(opened), times
    return found


def _writer_lives(pid: int, start: int, namespace: int) -> bool:
    """start: in clock ticks. In another pid namespace it cannot be looked up, and counts as alive."""
    try:
        if os.stat("/proc/self/ns/pid").st_ino != namespace:
            return True
        words = content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return words[0] not in (b"Z", b"X") and int(words[19]) == start
    except (OSError, ValueError, IndexError):
        return False
