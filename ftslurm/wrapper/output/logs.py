"""Reads what a job printed, from its files and from the kept copies of them."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from ftslurm.errors import UsageError
from ftslurm.launchers.rank_logs import TASK, cycle_file, from_text
from ftslurm.ledger.output import Kept, kept_copies, open_plain, still_there
from ftslurm.model.folds.history import schedule_count
from ftslurm.model.text import expand_pattern
from ftslurm.model.values import dataclass
from ftslurm.report.logs import Outputs, banners, of_rank, part_of

# Seconds between two looks at a growing file, and at the ledger.
LOOK_S, ASK_S = 0.2, 2.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Source:
    """One file to read. title: for people. schedule: the scheduling that it belongs to, None: any. gap: (position, bytes left out
    there), if it is a shortened copy.
    """

    path: Path
    title: str
    schedule: int | None = None
    gap: tuple[int, int] = (0, 0)


def sources(outputs: Outputs, ledger: Path, attempt: int | None) -> list[Source]:
    """The files of the whole job, in the order of writing. Raises: UsageError if none is known."""
    if cycles := _cycle_files(outputs, attempt):
        return cycles
    copies = [one for one in kept_copies(ledger) if not still_there(one)]
    wanted = outputs.schedule_of[attempt] if attempt is not None else None
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
    return Source(one.copy, title, one.schedule, (one.head, one.left_out))


def rank_sources(outputs: Outputs, rank: int, attempt: int | None) -> list[Source]:
    """The files of that rank alone; empty if it has none. Unrecorded names of nodes and steps match any."""
    if own := _own_files(outputs, rank, attempt):
        return own
    found: dict[str, None] = {}
    for how, pattern in outputs.ranks:
        if how == TASK:
            step = outputs.step_of.get(attempt or outputs.last, "") if attempt is not None else ""
            known = {"t": str(rank), **({"J": step, "s": step.rpartition(".")[2]} if step else {})}
            found |= dict.fromkeys(sorted(glob.glob(_as_glob(pattern, known)), key=_age))  # noqa: PTH207
    return [Source(Path(path), path) for path in found]


def _cycle_files(outputs: Outputs, attempt: int | None) -> list[Source]:
    """The files with the output of all ranks, one for each attempt."""
    logs, wanted = from_text(outputs.logs), [attempt] if attempt is not None else sorted(outputs.schedule_of)
    paths = [cycle_file(logs.cycle_files, outputs.cycle_of.get(number, 0)) for number in wanted] if logs.cycle_files else []
    return [Source(Path(path), path) for path in paths]


def has_cycle_files(outputs: Outputs) -> bool:
    """Are there such files? Their lines begin with the rank, as with srun's --label."""
    return bool(from_text(outputs.logs).cycle_files)


def _own_files(outputs: Outputs, rank: int, attempt: int | None) -> list[Source]:
    """The files of the rank at each attempt, if every node has as many ranks."""
    logs, found = from_text(outputs.logs), []
    for number, (nodes, tasks) in sorted(outputs.size_of.items()):
        if attempt in (None, number) and nodes and tasks % nodes == 0:
            slot, local = divmod(rank, tasks // nodes)
            found += [path for path in logs.files(slot, local, outputs.cycle_of[number]) if Path(path).exists()]
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
        yield from _bytes(file, first, end, source.gap) if rank is None else of_rank(_lines(file, first, end), rank)


def _opened(source: Source) -> BinaryIO:
    file = open_plain(source.path)
    if file is None:
        hint = "was it removed, or is it on a node's own disk?"
        raise UsageError(f"{source.path} cannot be read here, or is not a plain file", hint=hint)
    return file


def _bytes(file: BinaryIO, first: int, end: int | None, gap: tuple[int, int]) -> Iterator[bytes]:
    head, left_out = gap
    stops = [head] if left_out and first < head and (end is None or head < end) else []
    at = first
    for stop in (*stops, end):
        file.seek(at)
        while (stop is None or at < stop) and (data := file.read(_CHUNK if stop is None else min(_CHUNK, stop - at))):
            at += len(data)
            yield data
        if stops and stop == head:
            yield f"\nftslurm: {left_out} bytes were not kept (logs.keep_bytes)\n".encode()


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
        file = open_plain(self._path)
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
