"""Where the ledger lies when the state folder cannot be used: what srun would run runs all the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ftslurm.errors import NoRoom, StateError
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import VARIABLE, Identity, Store, state_folder
from ftslurm.model.folds.history import History
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """A job's ledger. lasts: will the next scheduling of the job find it, on whichever node?"""

    store: Store
    journal: Journal
    history: History
    lasts: bool = True


def open_ledger(env: Mapping[str, str], me: Identity, say: Callable[[str], None]) -> Opened:
    """In the state folder, else in a folder of this node, which `say` is told. Raises: StateError if there is none either, or
    for a folder that the user has named and that cannot be used, however much room there is."""
    try:
        store = Store(state_folder(env))
        return Opened(store, *store.open(me))
    except StateError as error:
        if env.get(VARIABLE) and not isinstance(error, NoRoom):
            raise
        return _open_here(env, me, error, say)


def _open_here(env: Mapping[str, str], me: Identity, why: StateError, say: Callable[[str], None]) -> Opened:
    for folder in dict.fromkeys((env.get("TMPDIR") or "/tmp", "/tmp", "/dev/shm")):  # noqa: S108 -- private_folder looks whose it is
        store = Store(Path(folder).absolute() / f"ftslurm-state-{os.getuid()}")
        try:
            found = Opened(store, *store.open(me), lasts=False)
        except StateError:
            continue
        say(f"{why}; the ledger is in {store.root} of this node, and the job cannot be requeued: set {VARIABLE}")
        return found
    raise why
