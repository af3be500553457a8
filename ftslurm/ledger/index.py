"""What each ledger says in short, so that a list of all jobs reads one file and not ten thousand: `<state folder>/index.jsonl`.

A cache and nothing else: a ledger whose size or time has changed is read again, a file that cannot be read is made anew, and a
folder that cannot be written costs time only. Two that write at once do no harm: what one loses is read again.
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

# A file of another version is made anew: one more for every change of JobSummary, or of how it is made.
VERSION = 6
# Of some 300 bytes a ledger.
MAX_BYTES = 64 << 20
_TYPES = [*get_type_hints(JobSummary).values()]

# size, mtime in ns, and the fields of the summary; None for these where nothing has begun yet
Entry = list[Any]


class Index:
    """root: the state folder."""

    def __init__(self, root: Path) -> None:
        self.path = root / "index.jsonl"
        self._jobs = root / "jobs"

    def named(self, passed_over: Callable[[StateError], None] = lambda error: None) -> dict[str, JobSummary]:
        """Of every current ledger in which something has begun, in no order, by the name of the file, which a damaged ledger may
        not tell. passed_over: hears of each that cannot be read: one among thousands hides no others. Raises: StateError."""
        known = self._read()
        current: dict[str, Entry] = {}
        for name, size, time_ns in self._ledgers():
            entry = known.get(name)
            if entry is None or entry[:2] != [size, time_ns]:
                try:
                    entry = [size, time_ns, self._summary(name)]
                except StateError as error:
                    passed_over(error)
                    continue
            current[name] = entry
        if current != known:
            with suppress(OSError):
                replace_file(self.path, json.dumps([VERSION, current], separators=(",", ":")).encode())
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

    def _read(self) -> dict[str, Entry]:
        """By the names of the ledgers."""
        try:
            version, entries = json.loads(read_private(self.path, MAX_BYTES))
            return {name: entry for name, entry in entries.items() if _is_entry(entry)} if version == VERSION else {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}


def summary_of(fields: Any) -> JobSummary | None:
    """From JSON; None where it is none of this version."""
    return JobSummary._make(fields) if type(fields) is list and [*map(type, fields)] == _TYPES else None


def _is_entry(body: Any) -> bool:
    """Is it an entry as this version writes it?"""
    if type(body) is not list or [*map(type, body[:-1])] != [int, int]:
        return False
    return body[2] is None or summary_of(body[2]) is not None
