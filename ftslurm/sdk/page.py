"""The shared page: what a rank tells about itself, one file of 8 KiB a rank and attempt, mapped into memory.

The rank writes, the agent of its node reads. Nobody waits for the other, the last words outlive the rank, and a store
costs less than any message. FTSLURM_PAGE in the environment names the file. 1,024 words of 64 bits in the byte order of
the machine; each word has one writer and is stored whole (a memoryview cast to "Q": struct.pack_into would let a reader
see half a word). Times are nanoseconds of the writer's monotonic clock: a reader uses their differences, and the change
of a word, which it stamps with its own clock; a container or a reboot may have another zero.

| words | name | what |
|---|---|---|
| 0 | MAGIC | written last, 0 while the rest is not in order |
| 1 | VERSION | of this table |
| 2, 3 | PID, START | the writer, and when it started: clock ticks as in /proc/self/stat, so that a pid used again is another |
| 4 | NAMESPACE | inode of its pid namespace; a reader in another one cannot look the pid up |
| 5 | ATTEMPT | FTSLURM_ATTEMPT, 0 if not known |
| 6 | RANK | RANK, else SLURM_PROCID, plus 1; 0 if not known |
| 8 | INIT | when the program began to report; 0: it does not, or no more, and nothing here is to be watched |
| 9 | BEATS | heartbeats since INIT |
| 16, 17, 19 | STEPS, STEP, FIRST_STEP | progress: how often told, the training step, the first step told |
| 20 | WARMUP | how many steps from the first are slower than the rest, plus 1; 0: not said |
| 24, 25 | STAGES, STAGE | how often the staged hang interval was changed; the interval in ms, 0: none, 2^64-1: switched off |
| 32 | OUT_SINCE | since when no section is open; 0: one is |
| 34 | SECTIONS | slots in use |
| 36 | TEXT | bytes of the text region in use |
| 40 to 42 | CHECKPOINTS, CHECKPOINT, CHECKPOINT_AT | how many are complete; step of the last, plus 1 (0: not said); when |
| 44 to 46 | SAVING, SAVED, LONGEST_SAVE | of sections in which it saves: how many are open; COUNT of all; the longest, in ns |
| 56 to 61 | SCRATCH | the slot of the sections that have none |
| 256 to 511 | PROBE | RESERVED: for the probe, which runs in the same process; the sdk only zeroes them at the start |
| 512 to 799 | SLOTS | 48 sections of 6 words: KEY, OPENED, two that are not used, COUNT, NAME |
| 800 to 1023 | text region | the names, UTF-8, 1,792 bytes |

Of a section: KEY is 2^32 + the CRC-32 of the name, written last; OPENED when it was opened, 0 while it is not open;
COUNT how often it was closed, but by an error or the end of the program; NAME 65536 times the place in the text region, plus
length.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from _thread import allocate_lock
from binascii import crc32
from time import monotonic_ns
from typing import NamedTuple

VARIABLE = "FTSLURM_PAGE"
SIZE = 8192
MAGIC_NUMBER, VERSION_NUMBER = 0x4547415053544621, 1
MAGIC, VERSION, PID, START, NAMESPACE, ATTEMPT, RANK = range(7)
INIT, BEATS = 8, 9
STEPS, STEP, _, FIRST_STEP, WARMUP = range(16, 21)
STAGES, STAGE = 24, 25
OUT_SINCE, SECTIONS, TEXT = 32, 34, 36
CHECKPOINTS, CHECKPOINT, CHECKPOINT_AT = range(40, 43)
SAVING, SAVED, LONGEST_SAVE = range(44, 47)
SCRATCH = 56
PROBE, PROBE_END = 256, 512
SLOTS, SLOT_COUNT, SLOT_WORDS = 512, 48, 6
KEY, OPENED, _, _, COUNT, NAME = range(SLOT_WORDS)
TEXT_AT, TEXT_BYTES = 800 * 8, SIZE - 800 * 8

STAGE_OFF = (1 << 64) - 1
WORD_MAX = (1 << 64) - 1
NAME_BYTES = 255
NAMES_MAX = 1024  # kept in memory; a program that makes a new name every step must not grow for ever
# A process that finds the page taken by one that lives takes `<page>.1` and so on: torchrun starts as many ranks under
# one task, and a launcher in Python may report as well as the program it launches.
PAGES_MAX = 64


class SectionState(NamedTuple):
    """One section. opened_ns: 0 while it is not open. times: how often it was closed."""

    name: str
    opened_ns: int
    times: int


class PageState(NamedTuple):
    """What a page said at one moment. Times in ns of the writer's clock: for differences, never against the reader's."""

    pid: int
    start_ticks: int
    namespace: int
    attempt: int
    rank: int | None
    init_ns: int  # 0: the program does not report
    beats: int
    steps: int
    step: int | None
    first_step: int | None
    warmup: int | None
    stages: int
    stage_s: float | None  # None: none is set; -1: switched off
    out_since_ns: int  # 0: a section is open
    sections: tuple[SectionState, ...]
    checkpoints: int = 0
    checkpoint: int | None = None  # training step of the last one
    checkpoint_ns: int = 0
    saved: int = 0  # how many sections in which it saves were closed, and how long the longest was open
    longest_save_ns: int = 0


class _Slot:
    """Where the words of a section are. saves: the program saves in it."""

    __slots__ = ("count", "opened", "saves")

    def __init__(self, base: int, saves: bool) -> None:
        self.opened, self.count, self.saves = base + OPENED, base + COUNT, saves


class Page:
    """The page of this process, as its only writer."""

    def __init__(self, path: str, words: memoryview) -> None:
        self.path = path
        self.words = words  # for the probe, too
        self._slots: dict[str, _Slot] = {}
        self._laying = allocate_lock()  # two threads may come with a new section at once
        self._opened: dict[str, int] = {}  # open section -> when, ns
        self._beats = self._steps = self._stages = self._checkpoints = 0

    def begin(self) -> None:
        """The program begins to report, or does so anew: from now on it is watched."""
        self.over()
        words, now = self.words, monotonic_ns()
        self._beats = words[BEATS] = 0
        words[OUT_SINCE] = now
        words[INIT] = now

    def over(self) -> None:
        """The program does not report any more."""
        self.words[INIT] = 0
        for name in list(self._opened):
            self.close(name, whole=False)
        self.words[OUT_SINCE] = 0

    def beat(self) -> None:
        """The rank lives."""
        self._beats = self.words[BEATS] = self._beats + 1

    def step(self, number: int) -> None:
        """Training step `number` is done."""
        words, number = self.words, number & WORD_MAX
        if not self._steps:
            words[FIRST_STEP] = number
        words[STEP] = number
        self._steps = words[STEPS] = self._steps + 1

    def warmup(self, steps: int) -> None:
        """As many steps from the first may take longer."""
        self.words[WARMUP] = min(max(steps, 0), 1 << 32) + 1

    def stage(self, seconds: float | None) -> None:
        """Without a sign for `seconds` is a hang from now on; -1: nothing is; None: as if never said."""
        self._stages = self.words[STAGES] = self._stages + 1
        self.words[STAGE] = 0 if seconds is None else STAGE_OFF if seconds < 0 else max(1, int(min(seconds, 1e9) * 1000))

    def checkpoint(self, step: int | None) -> None:
        """A checkpoint is complete, of training step `step`."""
        self.words[CHECKPOINT] = 0 if step is None or step < 0 else (step & WORD_MAX >> 1) + 1
        self.words[CHECKPOINT_AT] = monotonic_ns()
        self._checkpoints = self.words[CHECKPOINTS] = self._checkpoints + 1

    def open(self, name: str) -> None:
        """A section begins; one that is open already begins anew."""
        slot = self._slots.get(name) or self._lay(name)
        opened, now = self._opened, monotonic_ns()
        if not opened:
            self.words[OUT_SINCE] = 0
        opened[name] = now
        if slot.saves:
            self._count_saving()
        self.words[slot.opened] = now

    def close(self, name: str, whole: bool = True) -> None:
        """A section ends, if it is open. whole: with all that was to be done in it."""
        opened = self._opened
        began = opened.pop(name, 0)
        if not began:
            return
        slot, words, now = self._slots[name], self.words, monotonic_ns()
        words[slot.opened] = 0
        words[slot.count] += whole
        if slot.saves:
            words[SAVED] += whole
            self._count_saving()
            words[LONGEST_SAVE] = max(words[LONGEST_SAVE], now - began)
        if not opened:
            words[OUT_SINCE] = now

    def close_all(self) -> None:
        """All open sections end."""
        for name in list(self._opened):
            self.close(name)

    def _count_saving(self) -> None:
        self.words[SAVING] = sum(self._slots[name].saves for name in list(self._opened))

    def _lay(self, name: str) -> _Slot:
        """A slot for a section that is new."""
        with self._laying:
            return self._slots.get(name) or self._lay_one(name)

    def _lay_one(self, name: str) -> _Slot:
        text, words = name.encode("utf-8", "replace"), self.words
        used, place = words[SECTIONS], words[TEXT]
        if used >= SLOT_COUNT or len(text) > NAME_BYTES or place + len(text) > TEXT_BYTES:
            base = SCRATCH
            if len(self._slots) > NAMES_MAX:
                for old in [old for old, slot in self._slots.items() if slot.opened == SCRATCH + OPENED]:
                    if old not in self._opened:
                        del self._slots[old]
        else:
            base = SLOTS + used * SLOT_WORDS
            words.cast("B")[TEXT_AT + place : TEXT_AT + place + len(text)] = text
            words[base + NAME] = place << 16 | len(text)
            words[base + KEY] = 1 << 32 | crc32(text)
            words[TEXT], words[SECTIONS] = place + len(text), used + 1
        self._slots[name] = slot = _Slot(base, is_saving(name))
        return slot


def is_saving(section: str) -> bool:
    """Do programs save in a section of this name? ft_launcher's own is `checkpointing`; what only reads one is none."""
    words = "".join(letter if letter.isalnum() else " " for letter in section.lower()).split()
    reads = any(word.startswith(("load", "restor", "read")) for word in words)
    return not reads and any("checkpoint" in word or "ckpt" in word or word in ("save", "saving") for word in words)


# --- taking a page


def claim(path: str, attempt: int, rank: int | None) -> Page | None:
    """The page `path`, or its next sibling that no living process has, for this process.

    None: there is no place for it (no folder of ours, no space, no rights, all siblings taken).
    """
    try:
        check_folder(os.path.dirname(path) or ".")  # noqa: PTH120 -- pathlib would cost every rank its start-up time
        for number in range(PAGES_MAX):
            own = f"{path}.{number}" if number else path
            words = _take(own, attempt, rank)
            if words is not None:
                return Page(own, words)
    except (OSError, ValueError, IndexError):
        pass
    return None


def check_folder(folder: str) -> None:
    """Make it if need be. Raises: OSError if others than us may write there."""
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102
    except FileExistsError:
        pass
    told = os.lstat(folder)
    if not stat.S_ISDIR(told.st_mode) or told.st_uid != os.geteuid() or told.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a folder of ours alone", folder)


def _take(path: str, attempt: int, rank: int | None) -> memoryview | None:
    """Its words, with a new header; None if another process that lives has it. Raises: OSError."""
    fd = _open(path)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # for as long as this takes
        except BlockingIOError:
            return None
        told = os.fstat(fd)
        if not stat.S_ISREG(told.st_mode) or told.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "not a file of ours", path)
        pid, start = os.getpid(), start_ticks(os.getpid()) or 0
        head = os.pread(fd, 32, 0)
        if len(head) == 32 and told.st_size == SIZE:
            magic, _, their_pid, their_start = struct.unpack("=4Q", head)
            if magic == MAGIC_NUMBER and (their_pid, their_start) != (pid, start) and start_ticks(their_pid) == their_start:
                return None
        # Really there, block by block: a store to a page that the file system then has no room for is a SIGBUS.
        os.ftruncate(fd, SIZE)
        os.posix_fallocate(fd, 0, SIZE)
        words = memoryview(mmap.mmap(fd, SIZE)).cast("Q")
    finally:
        os.close(fd)
    words[MAGIC] = 0
    for index in range(1, SIZE // 8):
        words[index] = 0
    words[VERSION], words[PID], words[START] = VERSION_NUMBER, pid, start
    words[NAMESPACE], words[ATTEMPT], words[RANK] = pid_namespace(), attempt, 0 if rank is None else rank + 1
    words[MAGIC] = MAGIC_NUMBER
    return words


def _open(path: str) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)


def start_ticks(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since the machine did; None if there is none, or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read(4096).rpartition(b")")[2].split()
        return None if words[0] in (b"Z", b"X") else int(words[19])
    except (OSError, ValueError, IndexError):
        return None


def pid_namespace() -> int:
    """Inode of the pid namespace of this process, 0 if there is no telling."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116
    except OSError:
        return 0


# --- reading one

_HEAD = struct.Struct("=64Q")
_SLOTS = struct.Struct(f"={SLOT_COUNT * SLOT_WORDS}Q")


def page_paths(path: str) -> list[str]:
    """The pages that processes of one rank have made: `path` and its siblings."""
    found = []
    for number in range(PAGES_MAX):
        own = f"{path}.{number}" if number else path
        if not os.path.exists(own):  # noqa: PTH110
            break
        found.append(own)
    return found


def read_plain(path: str, size: int, offset: int = 0) -> bytes:
    """Up to `size` bytes of a plain file; nothing of what is none. Never raises, never waits.

    It is read, not mapped: whoever cuts a mapped file short kills the reader.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return os.pread(fd, size, offset) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def read_page(path: str) -> PageState | None:
    """What the page says now; None if there is none, or it is not in order. Never raises, never waits."""
    return parse_page(read_plain(path, SIZE))


def parse_page(data: bytes) -> PageState | None:
    """The bytes of a page as a value. They are a user's: nothing in them is believed to be in range."""
    if len(data) != SIZE:
        return None
    head = _HEAD.unpack_from(data, 0)
    if head[MAGIC] != MAGIC_NUMBER or head[VERSION] != VERSION_NUMBER:
        return None
    stage = head[STAGE]
    return PageState(
        pid=head[PID],
        start_ticks=head[START],
        namespace=head[NAMESPACE],
        attempt=head[ATTEMPT],
        rank=head[RANK] - 1 if head[RANK] else None,
        init_ns=head[INIT],
        beats=head[BEATS],
        steps=head[STEPS],
        step=head[STEP] if head[STEPS] else None,
        first_step=head[FIRST_STEP] if head[STEPS] else None,
        warmup=head[WARMUP] - 1 if head[WARMUP] else None,
        stages=head[STAGES],
        stage_s=None if not stage else -1.0 if stage == STAGE_OFF else stage / 1000,
        out_since_ns=head[OUT_SINCE],
        sections=_sections(data, head[SECTIONS]),
        checkpoints=head[CHECKPOINTS],
        checkpoint=head[CHECKPOINT] - 1 if head[CHECKPOINT] else None,
        checkpoint_ns=head[CHECKPOINT_AT],
        saved=head[SAVED],
        longest_save_ns=head[LONGEST_SAVE],
    )


def _sections(data: bytes, used: int) -> tuple[SectionState, ...]:
    if not used:
        return ()
    slots = _SLOTS.unpack_from(data, SLOTS * 8)
    found: dict[str, SectionState] = {}
    for base in range(0, min(used, SLOT_COUNT) * SLOT_WORDS, SLOT_WORDS):
        key, opened, _, _, count, place = slots[base : base + SLOT_WORDS]
        begin, size = place >> 16, place & 0xFFFF
        if size > NAME_BYTES or begin + size > TEXT_BYTES:
            continue
        text = data[TEXT_AT + begin : TEXT_AT + begin + size]
        if key != 1 << 32 | crc32(text):
            continue  # half written, or not by us
        name = printable(text.decode("utf-8", "replace"))
        found.setdefault(name, SectionState(name, opened, count))
    return tuple(found.values())


def printable(text: str) -> str:
    """`text` without what could play tricks on a terminal or a log."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def owner_lives(state: PageState) -> bool | None:
    """Does the process that writes the page live? None: it is in another pid namespace (a container), so who knows."""
    if state.namespace != pid_namespace():
        return None
    return start_ticks(state.pid) == state.start_ticks
