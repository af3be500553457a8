"""Jobs in numbers, of one user or of all: each user's ledgers are read by a process with that user's rights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ftslurm.errors import FtslurmError, UsageError
from ftslurm.ledger.index import Index
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import LOCAL_CLUSTER, Store, ledger_parts, state_folder
from ftslurm.model.summary import JobSummary, summarise
from ftslurm.report.measures import JobOf, Measures, from_json, measure, to_json
from ftslurm.system.owner import Owner, people, work_as
from ftslurm.wrapper.jobs import with_slurms_word
from ftslurm.wrapper.measuring.live import user_name

# Of one user: for all ledgers to be read, and of what is told of them (1 KB a job).
LIMIT_S, LIMIT_BYTES = 30.0, 8 << 20
PassedOver = Callable[[str], None]


def jobs_of_me(job: str | None, oldest: float, limit: int, passed_over: PassedOver) -> list[JobOf]:
    """oldest: of jobs that are over, Unix seconds. Raises: UnknownJob, StateError."""
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
    """limit: of each user. Raises: UsageError for whoever is not root."""
    if os.geteuid() != 0:
        raise UsageError("only root may read what other users' jobs wrote", hint="omit --all-users, or use sudo")
    found: list[JobOf] = []
    for owner in people(first_user_id, also=(os.geteuid(),)):
        data = work_as(owner, partial(_told, owner, ledgers, oldest, limit), LIMIT_S, LIMIT_BYTES)
        if data is None:
            passed_over(f"the ledgers of user {owner.name} cannot be read")
        else:
            found += [JobOf(owner.name, each) for each in from_json(data)[:limit]]
    return found


def folders_of(owner: Owner, ledgers: Sequence[str]) -> list[Path]:
    """ledgers: as in hooks.yaml."""
    return [Path(each.replace("{home}", str(owner.home)).replace("{user}", owner.name)) for each in ledgers]


def _told(owner: Owner, ledgers: Sequence[str], oldest: float, limit: int) -> bytes:
    found: list[Measures] = []
    for folder in folders_of(owner, ledgers):
        if (folder / "jobs").is_dir():
            found += measures_in(folder, oldest, limit, lambda _: None)
    return to_json(found)


def measures_in(folder: Path, oldest: float, limit: int, passed_over: PassedOver) -> list[Measures]:
    """The latest of the jobs there. Raises: StateError."""
    jobs = Index(folder).all(lambda error: passed_over(str(error)))
    if jobs:
        jobs, _ = with_slurms_word(jobs, folder.stat().st_uid, os.environ)
    wanted = [job for job in jobs if not job.over or job.at >= oldest]
    wanted.sort(key=lambda job: job.at, reverse=True)
    found = []
    for job in wanted[:limit]:
        try:
            found.append(_measured(folder, job))
        except FtslurmError as error:
            passed_over(str(error))
    return found


def _measured(folder: Path, job: JobSummary) -> Measures:
    parts = ("jobs", f"{LOCAL_CLUSTER}.{job.job}.jsonl") if job.local else ledger_parts(job.cluster, job.job)
    path = folder.joinpath(*parts)
    return measure(Journal(path).read().records, job, time.time())
