"""Reads logs: what a job printed, from its files and their kept copies; and files of any size and origin."""

from __future__ import annotations

import glob
import gzip
import os
import re
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from ftslurm.errors import UnknownJob, UsageError
from ftslurm.launchers.rank_logs import TASK, cycle_file, from_text
from ftslurm.ledger.output import Kept, kept_copies, open_kept, same_beginning
from ftslurm.model.folds.history import schedule_count
from ftslurm.model.text import expand_pattern
from ftslurm.model.values import Value
from ftslurm.policies.diagnose.joblog import NO_RANK
from ftslurm.report.logs import Outputs, banners, of_rank, part_of

# --- Reads logs of any size, also compressed ones (.gz) and the journal's export: the head and the tail of a large one. Refuses
# what is not a plain file, except stdin.
#
# The name of a file tells its rank: the number in which the names differ, `rank3.log`, `slurm-7_3.out`; in a folder of
# torchrun (`--log-dir`) it is the name of the last folder, of the latest attempt. `x.out` and `x.err` are two streams of one.
# Of a folder of several jobs (`slurm-7.out`, `slurm-8.out`) the logs of the latest are read, and nothing that is no text.

# Limit for all files together, and the least for each. A quarter is the head: the first failure may be there.
TOTAL_BYTES, LEAST_BYTES = 16 << 20, 64 << 10
MAX_FILES = 4096
BLOCK_BYTES = 1 << 20
STDIN = "-"
_NUMBER = re.compile(r"\d+")
_OF_A_JOB = re.compile(r"slurm-(\d{1,10})(?=[_.])")
_STREAM = re.compile(r"(?i)(?:[._-](?:out|err|stdout|stderr|log|txt|gz))+$")
_IS_ERR = re.compile(r"(?i)[._-](?:err|stderr)(?:[._]|$)")
_OF_TORCHRUN = re.compile(r"attempt_(\d{1,6})/(\d{1,6})/(stdout|stderr)\.log$")


class LogUnreadable(UnknownJob):
    """A log that does not exist, is not a plain file, or that we may not read: status 66."""


class LogFile(Value):
    """path: as given. rank: NO_RANK if it is the whole job's. size: bytes; skipped: those of them between head and tail that were
    not read.

    head: characters of `text` before the gap.
    """

    path: str
    rank: int
    stream: str
    text: str
    size: int
    skipped: int = 0
    head: int = 0
    exported: bool = False  # by the journal: the file has other lines

    def line_of(self, words: str) -> int:
        """The number of the last line that contains the words, from 1; 0 if there is none, or it is unknown because of skipped
        text.
        """
        at = self.text.rfind(words) if words else -1
        known = at >= 0 and not self.exported and (not self.skipped or at < self.head)
        return self.text.count("\n", 0, at) + 1 if known else 0


def read_logs(paths: Sequence[str]) -> list[LogFile]:
    """Read files, folders and `-`, in order. Raises: LogUnreadable, UsageError."""
    found = list(_files(paths))
    if len(found) > MAX_FILES:
        raise UsageError(f"{len(found)} files, and {MAX_FILES} are the most that are read", hint="name some of them")
    share = max(LEAST_BYTES, TOTAL_BYTES // max(1, len(found)))
    ranks = _ranks([path for path, _, _ in found])
    return [
        _read(path, rank if rank != NO_RANK else by_name, stream, share)
        for (path, rank, stream), by_name in zip(found, ranks, strict=True)
    ]


def _files(paths: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Gives (path, rank if the folder tells it, stream)."""
    for path in paths:
        if path != STDIN and stat.S_ISDIR(_mode(Path(path))):
            yield from _folder(Path(path))
        else:
            yield path, NO_RANK, _stream_of(path)


def _stream_of(path: str) -> str:
    return "err" if _IS_ERR.search(Path(path).name) else "out"


def _folder(folder: Path) -> Iterator[tuple[str, int, str]]:
    files = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        files += [Path(place) / name for name in sorted(names)]
        if len(files) > 4 * MAX_FILES:
            break
    plain = [file for file in files if stat.S_ISREG(_mode(file, links=False))]
    torchrun = [(found, file) for file in plain if (found := _OF_TORCHRUN.search(file.as_posix()))]
    if torchrun:
        latest = max(int(found[1]) for found, _ in torchrun)
        for found, file in torchrun:
            if int(found[1]) == latest:
                yield str(file), int(found[2]), "err" if found[3] == "stderr" else "out"
        return
    if not plain:
        raise LogUnreadable(f"{folder}: there are no files in it", hint="name the log itself")
    texts = [file for file in plain if not _is_binary(file)]
    if not texts:
        raise LogUnreadable(f"{folder}: no file in it is text", hint="name the log itself")
    jobs = [int(found[1]) if (found := _OF_A_JOB.match(file.name)) else -1 for file in texts]
    for file, job in zip(texts, jobs, strict=True):
        if job == max(jobs):
            yield str(file), NO_RANK, _stream_of(file.name)


def _is_binary(path: Path) -> bool:
    """A checkpoint, a picture, ...: a file that begins with a NUL byte in its first block. What cannot be read is told later."""
    try:
        with path.open("rb") as file:
            return path.suffix != ".gz" and b"\0" in file.read(1024)
    except OSError:
        return False


def _mode(path: Path, links: bool = True) -> int:
    """The mode; 0 if the path does not exist or may not be examined: the open reports that."""
    try:
        return path.stat(follow_symlinks=links).st_mode
    except OSError:
        return 0


def _ranks(paths: Sequence[str]) -> list[int]:
    """The ranks, by the last number in which the names differ; by the order, if there is none. A
    single file, or one for each stream, is the whole job's.
    """
    stems = list(dict.fromkeys(map(_stem, paths)))
    if len(stems) < 2:
        return [NO_RANK] * len(paths)
    ranks = dict(zip(stems, _by_number([_NUMBER.findall(Path(stem).name) for stem in stems]), strict=True))
    return [ranks[_stem(path)] for path in paths]


def _stem(path: str) -> str:
    """Alike for the streams of one."""
    return _STREAM.sub("", path)


def _by_number(names: Sequence[Sequence[str]]) -> list[int]:
    if len({len(numbers) for numbers in names}) == 1:
        for place in reversed(range(len(names[0]))):
            column = [int(numbers[place][-6:]) for numbers in names]
            if len(set(column)) == len(names):
                return column
    return list(range(len(names)))


def _read(path: str, rank: int, stream: str, most: int) -> LogFile:
    if path == STDIN:
        head, tail, size = _stream(sys.stdin.buffer, most)
        return _log("stdin", rank, stream, head, tail, size)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)  # a FIFO would wait for a writer
        with os.fdopen(fd, "rb") as file:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise LogUnreadable(f"{path} is not a plain file", hint="`-` reads stdin: `... | ftslurm analyze -`")
            if path.endswith(".gz"):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    return _log(path, rank, stream, *_stream(unpacked, most))
            return _log(path, rank, stream, *_ends(file, about.st_size, most))
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise LogUnreadable(f"{path} cannot be read: {why}", hint="correct the path") from None


def _ends(file: BinaryIO, size: int, most: int) -> tuple[bytes, bytes, int]:
    """(head, tail, size). A growing file is read up to its size at the start."""
    if size <= most:
        return file.read(most), b"", size
    head = file.read(most // 4)
    file.seek(size - (most - most // 4))
    return head, file.read(most - most // 4), size


def _stream(file: BinaryIO | gzip.GzipFile, most: int) -> tuple[bytes, bytes, int]:
    """As `_ends`, for a stream without seek; reads to its end."""
    head = file.read(most // 4)
    tail, size, room = bytearray(), len(head), most - most // 4
    while block := file.read(BLOCK_BYTES):
        size += len(block)
        tail += block
        if len(tail) > 2 * room:
            del tail[:-room]
    return head, bytes(tail[-room:]), size


def _log(path: str, rank: int, stream: str, head: bytes, tail: bytes, size: int) -> LogFile:
    skipped = max(0, size - len(head) - len(tail)) if tail else 0
    if head.startswith(_CURSOR):  # what was skipped has no lines of its own
        return LogFile(path, rank, stream, _text(_lines_of_export(head + tail)), size, skipped, exported=True)
    if not skipped:
        return LogFile(path, rank, stream, _text(head + tail), size)
    begin = _text(head[: head.rfind(b"\n") + 1])
    return LogFile(path, rank, stream, begin + _text(tail[tail.find(b"\n") + 1 :]), size, skipped, len(begin))


def _text(data: bytes) -> str:
    """The text as a terminal would show it: without what a carriage return overwrites (progress bars), and without NUL bytes,
    which a file system leaves after a crash.
    """
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "")
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return text


# --- what `journalctl -o export` writes. Source: systemd, JOURNAL_EXPORT_FORMATS: fields as NAME=value, or, where it is no text,
# NAME, its length in 8 bytes (little-endian) and the value; an empty line ends an entry.

_CURSOR = b"__CURSOR="


def _lines_of_export(data: bytes) -> bytes:
    """As `journalctl -o short-iso` shows the entries."""
    lines: list[bytes] = []
    entry: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        name, equals, value = data[at:end].partition(b"=")
        at = end + 1
        if name and not equals and at + 8 < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            value, at = data[at + 8 : at + 8 + size], at + 8 + size + 1
        if name:
            entry[name] = value
        elif entry:
            lines += _as_lines(entry)
            entry = {}
    return b"\n".join([*lines, *_as_lines(entry), b""])


def _as_lines(entry: Mapping[bytes, bytes]) -> Iterator[bytes]:
    stamp = entry.get(b"__REALTIME_TIMESTAMP", b"0")
    at = datetime.fromtimestamp(int(stamp) / 1e6 if stamp.isdigit() and len(stamp) < 17 else 0, timezone.utc)
    who = entry.get(b"SYSLOG_IDENTIFIER", entry.get(b"_COMM", b"?"))
    begin = b"%b %b %b: " % (at.isoformat(timespec="seconds").encode(), entry.get(b"_HOSTNAME", b"?"), who)
    return (begin + line for line in entry.get(b"MESSAGE", b"").split(b"\n") if line)


# --- Reads what a job printed, from its files and from the kept copies of them.

# Seconds between two looks at a growing file, and at the ledger.
LOOK_S, ASK_S = 0.2, 2.0
_CHUNK = 1 << 16


class Source(Value):
    """One file to read. title: for people. schedule: the scheduling that it belongs to, None: any."""

    path: Path
    title: str
    schedule: int | None = None


def sources(outputs: Outputs, ledger: Path, attempt: int | None) -> list[Source]:
    """The files of the whole job, in the order of writing. Raises: UsageError if none is known."""
    if cycles := _cycle_files(outputs, attempt):
        return cycles
    copies = [one for one in kept_copies(ledger) if not same_beginning(one)]
    wanted = outputs.attempts[attempt].schedule if attempt is not None else None
    old = [_copied(one) for one in copies if wanted in (None, one.schedule)]
    overwritten = {one.source for one in copies if one.schedule == wanted}
    shared = [path for how, path in outputs.ranks if how != TASK and "%" not in path.replace("%%", "")]
    now = [path for path in (*outputs.files, *(path.replace("%%", "%") for path in shared)) if path not in overwritten]
    found = old + [Source(Path(path), path) for path in now]
    if found:
        return found
    if outputs.ranks:
        raise UsageError("each rank of this job writes a file of its own", hint="choose one with --rank 0")
    raise UsageError("the output of this job went to a terminal or a pipe, not to a file", hint="run the job with srun's -o FILE")


def _copied(one: Kept) -> Source:
    title = f"{one.source}, as it was when scheduling {schedule_count(one.schedule)} ended"
    return Source(one.copy, title, one.schedule)


def rank_sources(outputs: Outputs, rank: int, attempt: int | None) -> list[Source]:
    """The files of that rank alone; empty if it has none. Unrecorded names of nodes and steps match any."""
    if own := _own_files(outputs, rank, attempt):
        return own
    found: dict[str, None] = {}
    for how, pattern in outputs.ranks:
        if how == TASK:
            step = outputs.attempts[attempt].step if attempt is not None else ""
            known = {"t": str(rank), **({"J": step, "s": step.rpartition(".")[2]} if step else {})}
            found |= dict.fromkeys(sorted(glob.glob(_as_glob(pattern, known)), key=_age))  # noqa: PTH207
    return [Source(Path(path), path) for path in found]


def _cycle_files(outputs: Outputs, attempt: int | None) -> list[Source]:
    """The files with the output of all ranks, one for each attempt."""
    logs, wanted = from_text(outputs.logs), [attempt] if attempt is not None else sorted(outputs.attempts)
    paths = [cycle_file(logs.cycle_files, outputs.attempts[number].cycle) for number in wanted] if logs.cycle_files else []
    return [Source(Path(path), path) for path in paths]


def has_cycle_files(outputs: Outputs) -> bool:
    """Are there such files? Their lines begin with the rank, as with srun's --label."""
    return bool(from_text(outputs.logs).cycle_files)


def _own_files(outputs: Outputs, rank: int, attempt: int | None) -> list[Source]:
    """The files of the rank at each attempt, if every node has as many ranks."""
    logs, found = from_text(outputs.logs), []
    for number, begun in sorted(outputs.attempts.items()):
        if attempt in (None, number) and begun.nodes and begun.tasks % begun.nodes == 0:
            slot, local = divmod(rank, begun.tasks // begun.nodes)
            found += [path for path in logs.files(slot, local, begun.cycle) if Path(path).exists()]
    return [Source(Path(path), path) for path in found]


def _as_glob(pattern: str, known: dict[str, str]) -> str:
    named = expand_pattern(glob.escape(pattern), known, partly=True)
    return re.sub(r"%(%|\d*[JsnN])", lambda found: "%" if found[1] == "%" else "*", named)


def _age(path: str) -> float:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


def read(source: Source, attempt: int | None, rank: int | None = None) -> Iterator[bytes]:
    """The content in pieces. rank: only lines that srun labelled with it. Raises: UsageError for a file that is not here."""
    with _opened(source) as file:
        first, end = 0, None
        if attempt is not None:
            part = part_of(banners(file), attempt)
            if part is None:
                return
            first, end = part
        yield from _bytes(file, first, end) if rank is None else of_rank(_lines(file, first, end), rank)


def _opened(source: Source) -> BinaryIO:
    file = open_kept(source.path)
    if file is None:
        hint = "was it removed, or is it on a node's own disk?"
        raise UsageError(f"{source.path} cannot be read here, or is not a plain file", hint=hint)
    return file


def _bytes(file: BinaryIO, first: int, end: int | None) -> Iterator[bytes]:
    file.seek(first)
    at = first
    while (end is None or at < end) and (data := file.read(_CHUNK if end is None else min(_CHUNK, end - at))):
        at += len(data)
        yield data


def _lines(file: BinaryIO, first: int, end: int | None) -> Iterator[bytes]:
    file.seek(first)
    at = first
    for line in file:
        if end is not None and at >= end:
            return
        at += len(line)
        yield line


def follow(
    paths: Iterable[Path], over: Callable[[], bool], rank: int | None = None, sleep: Callable[[float], object] = time.sleep,
    last: int | None = None,
) -> Iterator[bytes]:  # fmt: skip
    """The present content and what follows, until the job is over. A file that is written anew is read from its beginning.

    last: of the present content, only this many bytes of each file; None for all.
    """
    tails = [_Tail(path, last) for path in paths]
    ask_at, ended = 0.0, False
    while True:
        if time.monotonic() >= ask_at:
            ended, ask_at = over(), time.monotonic() + ASK_S
        data = b"".join(tail.more(rank) for tail in tails)
        if data:
            yield data
        elif ended:
            return
        else:
            sleep(LOOK_S)


class _Tail:
    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path = path
        self._last = last
        self._at, self._inode, self._rest = 0, 0, b""

    def more(self, rank: int | None) -> bytes:
        file = open_kept(self._path)
        if file is None:
            return b""  # between two schedulings, or not created yet
        with file:
            info = os.fstat(file.fileno())
            if info.st_ino != self._inode or info.st_size < self._at:
                self._at, self._inode, self._rest = 0, info.st_ino, b""
                if self._last is not None and info.st_size > self._last:
                    file.seek(info.st_size - self._last)
                    self._at = info.st_size - self._last + len(file.readline(self._last))
                self._last = None
            file.seek(self._at)
            data = file.read(1 << 20)
        self._at += len(data)
        if rank is None:
            return data
        *lines, self._rest = (self._rest + data).split(b"\n")
        return b"".join(of_rank((line + b"\n" for line in lines), rank))
