"""A line for each ledger, so that a list of all jobs reads one file and not ten thousand: `<state folder>/index.jsonl`.

A cache and nothing else: a ledger whose size or time has changed is read again, a line that cannot be read is made anew, and a
folder that cannot be written costs time only. Lines of a later moment stand behind earlier ones and win. Two that
write at once do no harm: what one loses is read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

from ftslurm.errors import StateError
from ftslurm.ledger.journal import Journal
from ftslurm.model.folds.summary import JobSummary, summarise
from ftslurm.system.files import read_private, replace_file

# Lines of another version are made anew: one more for every change of JobSummary, or of how it is made.
VERSION = 5
# Of some 300 bytes a ledger.
MAX_BYTES = 64 << 20
# Lines that count no more, before the file is written anew: of all, and at least.
DEAD_SHARE, DEAD_LEAST = 0.5, 200
_TYPES = [*get_type_hints(JobSummary).values()]

# size, mtime in ns, and the fields of the summary; none of them where nothing has begun yet
Entry = tuple[int, int, list[Any] | None]


class Index:
    """root: the state folder."""

    def __init__(self, root: Path) -> None:
        self.path = root / "index.jsonl"
        self._jobs = root / "jobs"

    def named(self, passed_over: Callable[[StateError], None] = lambda error: None) -> dict[str, JobSummary]:
        """Of every current ledger in which something has begun, in no order, by the name of the file, which a damaged ledger may
        not tell. passed_over: hears of each that cannot be read: one among thousands hides no others. Raises: StateError."""
        known, lines = self._read()
        current: dict[str, Entry] = {}
        changed: list[str] = []
        for name, size, time_ns in self._ledgers():
            entry = known.get(name)
            if entry is None or entry[0] != size or entry[1] != time_ns:
                try:
                    entry = (size, time_ns, self._summary(name))
                except StateError as error:
                    passed_over(error)
                    continue
                changed.append(name)
            current[name] = entry
        self._write(current, changed, lines)
        return {name: JobSummary._make(fields) for name, (_, _, fields) in current.items() if fields is not None}

    def _ledgers(self) -> Iterable[tuple[str, int, int]]:
        """Name, size and time of each."""
        try:
            with os.scandir(self._jobs) as entries:
                for entry in entries:
                    name = entry.name
                    if name.endswith(".jsonl") and ".was." not in name:
                        with suppress(OSError):
                            info = entry.stat(follow_symlinks=False)
                            yield name, info.st_size, info.st_mtime_ns
        except FileNotFoundError:
            return
        except OSError as error:
            raise StateError(f"{self._jobs} cannot be read: {error.strerror}", hint="check its owner and rights") from None

    def _summary(self, name: str) -> list[Any] | None:
        """None if no run has begun. Raises: StateError."""
        found = summarise(Journal(self._jobs / name).read().records)
        return list(found) if found is not None else None

    def _read(self) -> tuple[dict[str, Entry], int]:
        """name -> entry, and how many lines there are."""
        try:
            lines = read_private(self.path, MAX_BYTES).splitlines()
        except OSError:
            return {}, 0
        known: dict[str, Entry] = {}
        for body in _parse(lines):
            if _is_entry(body):
                known[body[1]] = (body[2], body[3], body[4])
        return known, len(lines)

    def _write(self, current: dict[str, Entry], changed: list[str], lines: int) -> None:
        live = len(current)
        dead = lines + len(changed) - live
        anew = dead > max(DEAD_SHARE * live, DEAD_LEAST)
        if not (changed or anew):
            return
        names = list(current) if anew else changed
        data = b"".join(json.dumps([VERSION, name, *current[name]], separators=(",", ":")).encode() + b"\n" for name in names)
        with suppress(OSError):
            if anew:
                replace_file(self.path, data)
            else:
                fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(fd, "wb", buffering=0) as file:
                    file.write(data)


def _parse(lines: list[bytes]) -> list[Any]:
    """All lines at once, which is five times as fast, or one by one if a line is damaged."""
    try:
        return json.loads(b"[" + b",".join(lines) + b"]")  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        found = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                found.append(json.loads(line))
        return found


def summary_of(fields: Any) -> JobSummary | None:
    """From JSON; None where it is none of this version."""
    return JobSummary._make(fields) if type(fields) is list and [*map(type, fields)] == _TYPES else None


def _is_entry(body: Any) -> bool:
    """Is it an entry as this version writes it?"""
    if type(body) is not list or len(body) != 5 or body[0] != VERSION:
        return False
    if body[4] is not None and summary_of(body[4]) is None:
        return False
    return type(body[1]) is str and type(body[2]) is int and type(body[3]) is int
