"""Reads ledgers for a report, and asks Slurm about the state of their jobs, if there is Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ftslurm.errors import StateError, UsageError
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.ledger.output import kept_evidence
from ftslurm.ledger.store import Store
from ftslurm.model.folds.summary import JobSummary, summarise
from ftslurm.report.account.job import JobAccount, account, since, with_story
from ftslurm.system.files import read_private, replace_file
from ftslurm.wrapper.jobs import all_jobs, with_slurms_word

# Bytes of the stacks of one job in one page.
EVIDENCE_BYTES, EVIDENCE_FILES = 64 << 10, 40

PassedOver = Callable[[StateError], None]


def one_job(store: Store, job: str, env: Mapping[str, str], now: float) -> tuple[JobAccount, dict[str, str]]:
    """The account of one job, with the evidence on hung ranks by file name. Raises: UnknownJob, StateError, UsageError."""
    journal, contents = store.read(job)
    (known,), _ = with_slurms_word([_begun(job, contents)], journal.path.stat().st_uid, env)
    return with_story(account(contents.records, known, now, contents.damaged), contents.records), _evidence(journal)


def jobs_named(store: Store, jobs: Iterable[str], env: Mapping[str, str], now: float) -> list[JobAccount]:
    """The account of each named job, once. Raises: UnknownJob, StateError, UsageError."""
    found = {}
    for job in jobs:
        journal, contents = store.read(job)
        found[journal.path] = (_begun(job, contents), contents)
    told, _ = with_slurms_word([known for known, _ in found.values()], next(iter(found)).stat().st_uid, env)
    return [
        account(contents.records, known, now, contents.damaged) for known, (_, contents) in zip(told, found.values(), strict=True)
    ]


def jobs_since(root: Path, began: float, env: Mapping[str, str], now: float, passed_over: PassedOver) -> list[JobAccount]:
    """The account of every job that was not over at that moment (Unix seconds), each from then on. Raises: StateError."""
    found = []
    for path, known in ledgers_since(root, began, env, passed_over).items():
        try:
            contents = Journal(path).read()
        except StateError as error:
            passed_over(error)
            continue
        if summarise(contents.records) is not None:
            found.append(since(account(contents.records, known, now, contents.damaged), began))
    return found


def ledgers_since(root: Path, began: float, env: Mapping[str, str], passed_over: PassedOver) -> dict[Path, JobSummary]:
    """Every job that was not over at that moment (Unix seconds), with Slurm's state. Raises: StateError."""
    found, _ = all_jobs(root, env, passed_over=passed_over)
    return {path: known for path, known in found.items() if not (known.over and known.at < began)}


def _begun(job: str, contents: Contents) -> JobSummary:
    known = summarise(contents.records)
    if known is None:
        raise UsageError(f"the ledger of job {job} is empty: nothing has begun", hint="try again in a moment")
    return known


def _evidence(journal: Journal) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in kept_evidence(journal.path)[-EVIDENCE_FILES:]:
        try:
            found[path.name] = read_private(path, EVIDENCE_BYTES).decode(errors="replace")
        except OSError as error:
            found[path.name] = f"cannot be read: {error.strerror}"
    return found


def write_whole(path: Path, text: str) -> None:
    """Write all or nothing: a reader meanwhile sees the previous report. Raises: StateError."""
    try:
        replace_file(path, text.encode(errors="replace"), _usual_mode())
    except OSError as error:
        raise StateError(f"the report {path} cannot be written: {error.strerror}", hint="name another place with -o") from None


def _usual_mode() -> int:
    """The mode of any new file; mkstemp's is private."""
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask
