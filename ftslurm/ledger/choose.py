"""Ledgers as a command line names them: a job, a file, a folder with ledgers, or all of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError, UnknownJob
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.ledger.store import Store

ALL = "all"
PassedOver = Callable[[str, FtslurmError], None]


def chosen(store: Store, names: Sequence[str], passed_over: PassedOver) -> Iterator[tuple[str, Contents]]:
    """Each ledger once, with the name of its job. passed_over: hears of each in a folder that cannot be read.

    Raises: UnknownJob, StateError for one that was named itself.
    """
    seen: set[Path] = set()
    for name in names:
        for path, contents in _named(store, name, passed_over):
            if path not in seen:
                seen.add(path)
                yield name if name == path.stem or (len(names) == 1 and name != ALL) else path.stem, contents


def _named(store: Store, name: str, passed_over: PassedOver) -> Iterator[tuple[Path, Contents]]:
    path = store.root if name == ALL else Path(name)
    if name != ALL and "/" not in name:
        try:
            journal, contents = store.find(name)
        except UnknownJob:
            if not path.exists():
                raise
        else:
            yield journal.path.resolve(), contents
            return
    if path.is_file():
        yield path.resolve(), Journal(path).read()
        return
    folder = path / "jobs" if (path / "jobs").is_dir() else path
    if not folder.is_dir():
        raise UnknownJob(f"there is neither a ledger nor a folder {name}", hint="name a job, a file, a folder, or `all`")
    for found in sorted(folder.glob("*.jsonl")):
        if ".was." in found.name:
            continue
        try:
            yield found.resolve(), Journal(found).read()
        except StateError as error:
            passed_over(found.stem, error)


__all__ = ["ALL", "chosen"]
