"""Figures about the jobs of one user or of all: a process with each user's rights reads that user's ledgers."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from ftslurm.errors import StateError, UsageError
from ftslurm.ledger.store import Store, state_folder
from ftslurm.model.folds.summary import summarise
from ftslurm.report.measures import JobOf, from_json, measure
from ftslurm.wrapper.as_user import MEASURES, PassedOver, asked_of_all, measures_in
from ftslurm.wrapper.jobs import with_slurms_word
from ftslurm.wrapper.measuring.live import user_name

# For one user: seconds to read all ledgers, and bytes of the answer (1 KB per job).
LIMIT_S, LIMIT_BYTES = 30.0, 16 << 20


def jobs_of_me(job: str | None, oldest: float, limit: int, passed_over: PassedOver) -> list[JobOf]:
    """The user's own jobs. oldest: of finished jobs, Unix seconds. Raises: UnknownJob, StateError."""
    folder, user = state_folder(os.environ), user_name(os.getuid())
    if job is None:
        return [JobOf(user, each) for each in measures_in(folder, oldest, limit, passed_over)]
    records = Store(folder).find(job)[1].records
    known = summarise(records)
    if known is None:
        return []
    (now,), _ = with_slurms_word([known], folder.stat().st_uid, os.environ)
    return [JobOf(user, measure(records, now, time.time()))]


def jobs_of_all(
    oldest: float, limit: int, passed_over: PassedOver, ledgers: Sequence[str] = ("{home}/.ftslurm",), first_user_id: int = 1000
) -> list[JobOf]:
    """The jobs of all users. limit: for each user. Raises: UsageError if the caller is not root."""
    if os.geteuid() != 0:
        raise UsageError("only root may read what other users' jobs wrote", hint="leave --all-users out, or use sudo")
    found: list[JobOf] = []
    for owner, said in asked_of_all(first_user_id, ledgers, MEASURES, (oldest, limit), LIMIT_S, LIMIT_BYTES, also=(0,)):
        if isinstance(said, StateError):
            passed_over(f"the ledgers of user {owner.name} cannot be read: {said}")
        else:
            found += [JobOf(owner.name, each) for each in from_json(said)[:limit]]
    return found
