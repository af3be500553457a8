"""Reads logs of any size, also compressed ones (.gz) and the journal's export: the head and the tail of a large one. Refuses what
is not a plain file, except stdin.

The name of a file tells its rank: the number in which the names differ, `rank3.log`, `slurm-7_3.out`; in a folder of torchrun
(`--log-dir`) it is the name of the last folder, of the latest attempt. `x.out` and `x.err` are two streams of one. Of a folder of
several jobs (`slurm-7.out`, `slurm-8.out`) the logs of the latest are read, and nothing that is no text.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from ftslurm.errors import UnknownJob, UsageError
from ftslurm.model.values import dataclass
from ftslurm.policies.diagnose.joblog import NO_RANK, Part

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


@dataclass(frozen=True, slots=True)
class LogFile:
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

    @property
    def parts(self) -> tuple[Part, ...]:
        return (Part(self.rank, self.stream, self.text),)

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
