"""One append-only file a job: its records as JSON lines, and how they are written and read."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from ftslurm.errors import StateError, WireError
from ftslurm.ledger.older import completed
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.record import KINDS, Record
from ftslurm.model.values import MISSING, Value, fields
from ftslurm.system.files import Locked, SpareDescriptors, append, locked, open_plain, read_private

VERSION = 1
# Times of up to thirty million years. One digit more than the longest number that Python reads it can no longer print.
_BOUNDS = Bounds(1 << 26, whole=1 << 256, real=1e15 + 1, signed=True)


def to_line(record: Record) -> bytes:
    """One line, newline included. A field at its default is left out, so a default never changes: older ledgers rely on it."""
    # Not dataclasses.asdict: that copies deeply, and a ledger line is written on the way to a restart.
    defaults = _defaults(type(record))
    given = {name: value for name, default in defaults if (value := getattr(record, name)) != default}
    body = {"v": VERSION, "kind": type(record).__name__, **given}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=True, default=to_plain).encode() + b"\n"


@cache
def _defaults(kind: type[Record]) -> tuple[tuple[str, object], ...]:
    """Field -> its default; of one that must be given, what equals no value."""
    return tuple((f.name, f.default if f.default_factory is MISSING else f.default_factory()) for f in fields(kind))


_DECODER = json.JSONDecoder()


def body_in(line: bytes, version: int) -> dict[str, Any]:
    """The members of one line of that version, none of any other."""
    try:
        text = line.decode().strip()
        body, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return {}
    return body if end == len(text) and isinstance(body, dict) and body.get("v") == version else {}


def from_line(line: bytes) -> Record | None:
    """The record, or None for a line that is torn, damaged or of a kind this version does not know."""
    body = body_in(line, VERSION)
    if str(body.get("kind")) not in KINDS:
        return None
    try:
        return completed(from_plain(KINDS[str(body["kind"])], body, _BOUNDS))
    except WireError:
        return None


# --- the file: safe against two writers, a torn last line and a full disk

# Far above any ledger (a record is some 300 bytes); what is longer was not written by us, and its end counts.
MAX_BYTES = 64 << 20
# Given up when the disk is full, so that the decision which follows can still be written.
RESERVE_BYTES = 64 << 10
LOCK_TIMEOUT_S = 10.0
# Lock, ledger, its folder.
DESCRIPTORS_KEPT = 3
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Contents(Value):
    """records: in the order written. damaged: lines that could not be read (torn, or of a later version)."""

    records: tuple[Record, ...]
    damaged: int = 0

    def with_more(self, data: bytes) -> Contents:
        read = [from_line(line) for line in data.splitlines() if line.strip()]
        good = [record for record in read if record is not None]
        return Contents((*self.records, *good), self.damaged + len(read) - len(good)) if read else self


# Length, mark and records of a ledger that has not been read.
_NOTHING = 0, hash(b""), Contents(())


class Journal:
    """The ledger of one job. Every append is one write and one sync under a lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reserve = path.with_suffix(".reserve")
        self._full = False
        self._size = 0  # of the file as we left it
        self._spares = SpareDescriptors(0)  # until we write
        self._holds = False  # the lock
        self._known = _NOTHING  # of what has been read: it is only ever added to
        self.seen: tuple[Record, ...] = ()  # what `read` gave last

    def read(self) -> Contents:
        """The content; empty if the ledger does not exist yet. Raises: StateError."""
        try:
            with self._spares.lent():
                data = read_private(self.path, MAX_BYTES)
        except FileNotFoundError:
            return Contents(())
        except OSError as error:
            raise StateError(f"the ledger {self.path} cannot be read: {error.strerror}", hint="check its owner") from None
        self._size = len(data)
        size, _, known = self._known if hash(data[: self._known[0]]) == self._known[1] else _NOTHING
        contents = known.with_more(data[size:])
        if data.endswith(b"\n"):  # else the last line may grow
            self._known = len(data), hash(data), contents
        self.seen = contents.records
        return contents

    def grown(self) -> bool:
        """Has another process written since we last read or wrote? Costs one stat."""
        try:
            return self.path.stat().st_size != self._size
        except OSError:
            return False

    @property
    def known(self) -> bool:
        """Have we ever read or written it?"""
        return self._size > 0

    def append_next(self, records: Sequence[Record]) -> bool:
        """Write `records` unless another process has written since we last read; False if it has. Raises: StateError."""
        return self._write(records, only_next=True)

    def append(self, records: Sequence[Record]) -> None:
        """Write `records`; they are on the disk when this returns. Raises: StateError."""
        self._write(records)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Take the lock, unless we hold it already."""
        if self._holds:
            yield
            return
        with locked(self.path.with_suffix(".lock"), LOCK_TIMEOUT_S):
            self._holds = True
            try:
                yield
            finally:
                self._holds = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes meanwhile. Where the lock cannot be had, the next write complains of it."""
        with ExitStack() as until_then:
            with suppress(OSError):
                until_then.enter_context(self._lock())
            yield

    def _write(self, records: Sequence[Record], only_next: bool = False) -> bool:
        """Write with descriptors of its own: a process that has used all others can still write a decision."""
        if self._spares.count != DESCRIPTORS_KEPT:
            self._spares = SpareDescriptors(DESCRIPTORS_KEPT)
        data = b"".join(map(to_line, records))
        try:
            with self._spares.lent(), self._lock():
                if only_next and size_of(self.path) != self._size:
                    return False
                self._append(data)
                return True
        except Locked:
            raise StateError(
                f"the ledger {self.path} has been locked by another process for {LOCK_TIMEOUT_S:g} s",
                hint="is another ftrun of this job stuck?",
            ) from None
        except OSError as error:
            raise StateError(
                f"the ledger {self.path} cannot be written: {error.strerror or error}",
                hint="check free space and rights, or set FTSLURM_STATE_DIR to another folder",
            ) from None

    def _append(self, data: bytes) -> None:
        mine = size_of(self.path) == self._size if self.path.exists() else not self._size
        try:
            append(self.path, data)
        except OSError as error:
            if error.errno not in _FULL or not self._give_up_reserve():
                raise
            append(self.path, data)
        else:
            self._keep_reserve()
        if mine:
            self._size = size_of(self.path)

    def _keep_reserve(self) -> None:
        """Hold some disk space back; without free space ftrun continues without a reserve."""
        if self._full or self._reserve.exists():
            return
        try:
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(b"\xff" * RESERVE_BYTES)  # not zeros: some file systems keep no space for those
        except OSError:
            self._reserve.unlink(missing_ok=True)

    def _give_up_reserve(self) -> bool:
        self._full = True
        try:
            self._reserve.unlink()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the reserve back: the job has ended, or another process takes over."""
        self._full = True
        self._reserve.unlink(missing_ok=True)
        self._spares.close()


def size_of(path: Path) -> int:
    """Opened for it: that makes a network file system ask its server, where a stat is answered from what it remembers."""
    with open_plain(path) as file:
        return os.fstat(file.fileno()).st_size
