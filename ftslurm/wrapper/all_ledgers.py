"""The ledgers of all users, for root: a program with each user's rights reads them (as_user.py)."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence

from ftslurm.errors import StateError, UsageError
from ftslurm.ledger.index import summary_of
from ftslurm.ledger.journal import from_line
from ftslurm.ledger.store import Store, state_folder
from ftslurm.model.folds.summary import OVER, JobSummary, summarise
from ftslurm.model.record import Record
from ftslurm.report.account.job import JobAccount, account, since
from ftslurm.report.measures import JobOf, from_json, measure
from ftslurm.system.owner import Owner
from ftslurm.wrapper.as_user import HAS, JOBS, LEDGERS, LEDGERS_BYTES, MEASURES, PassedOver, asked_of_all, measures_in
from ftslurm.wrapper.jobs import job_now
from ftslurm.wrapper.measuring.live import user_name

# Limits: for all that are read at the same time, and for making sense of one user's.
TIMEOUT_S, PATIENCE_S = 120.0, 60.0
_HEAD = re.compile(rb"(\d{1,9}) ([a-z]{1,20}) ([01])\n")


def accounts_of_all(
    began: float, now: float, patterns: Sequence[str], first_user_id: int, passed_over: Callable[[StateError], None]
) -> list[JobAccount]:
    """The accounts of all users' jobs that were not over at that moment (Unix seconds), each from then on."""
    found: list[JobAccount] = []
    for owner, said in asked_of_all(first_user_id, patterns, LEDGERS, (f"{began:.3f}",), TIMEOUT_S, LEDGERS_BYTES):
        if isinstance(said, StateError):
            passed_over(StateError(f"the ledgers of {owner.name}: {said}"))
        else:
            found += _accounts(owner, said, began, now, passed_over)
    return found


def _accounts(
    owner: Owner, printed: bytes, began: float, now: float, passed_over: Callable[[StateError], None]
) -> Iterator[JobAccount]:
    until, count = time.monotonic() + PATIENCE_S, 0
    for count, (ledger, state, over) in enumerate(ledgers(printed), 1):
        if time.monotonic() > until:
            passed_over(StateError(f"the ledgers of {owner.name} from the {count}th on: they take too long"))
            return
        records, damaged = _records(ledger)
        known = summarise(records)
        if known is not None:
            told = known._replace(state=state, over=over) if state in _TOLD else known
            yield since(account(records, told, now, damaged, owner.name), began)
    if not count and printed:
        passed_over(StateError(f"the ledgers of {owner.name}: nothing of them can be understood"))


# The states that Slurm may add.
_TOLD = OVER | {"pending", "held", "suspended", "starting"}


def ledgers(printed: bytes) -> Iterator[tuple[bytes, str, bool]]:
    """(ledger, state, over) from the program's output, up to the first entry with a wrong format."""
    at = 0
    while found := _HEAD.match(printed, at):
        size, at = int(found[1]), found.end()
        ledger = printed[at : at + size]
        if len(ledger) < size:
            return
        yield ledger, found[2].decode(), found[3] == b"1"
        at += size


def _records(ledger: bytes) -> tuple[list[Record], int]:
    lines = [from_line(line) for line in ledger.splitlines() if line.strip()]
    good = [record for record in lines if record is not None]
    return good, len(lines) - len(good)


# --- figures about the jobs of one user or of all: a process with each user's rights reads that user's ledgers

# For one user: seconds to read all ledgers, and bytes of the answer (1 KB per job).
LIMIT_S, LIMIT_BYTES = 30.0, 16 << 20


def jobs_of_me(job: str | None, oldest: float, limit: int, passed_over: PassedOver) -> list[JobOf]:
    """The user's own jobs. oldest: of finished jobs, Unix seconds. Raises: UnknownJob, StateError."""
    folder, user = state_folder(os.environ), user_name(os.getuid())
    if job is None:
        return [JobOf(user, each) for each in measures_in(folder, oldest, limit, passed_over)]
    journal, contents = Store(folder).find(job)
    known = job_now(journal, contents, os.environ)
    return [] if known is None else [JobOf(user, measure(contents.records, known, time.time()))]


def jobs_of_all(
    oldest: float, limit: int, passed_over: PassedOver, ledgers: Sequence[str] = ("{home}/.ftslurm",), first_user_id: int = 1000
) -> list[JobOf]:
    """The jobs of all users. limit: for each user. Raises: UsageError if the caller is not root."""
    _root_only()
    found: list[JobOf] = []
    for owner, said in asked_of_all(first_user_id, ledgers, MEASURES, (oldest, limit), LIMIT_S, LIMIT_BYTES, also=(0,)):
        if isinstance(said, StateError):
            passed_over(f"the ledgers of user {owner.name} cannot be read: {said}")
        else:
            found += [JobOf(owner.name, each) for each in from_json(said)[:limit]]
    return found


def list_of_all(
    oldest: float, limit: int, passed_over: PassedOver, ledgers: Sequence[str], first_user_id: int
) -> list[tuple[str, JobSummary, float]]:  # fmt: skip
    """User, job and lost seconds of each job of all users. As jobs_of_all."""
    _root_only()
    found: list[tuple[str, JobSummary, float]] = []
    for owner, said in asked_of_all(first_user_id, ledgers, JOBS, (oldest, limit), LIMIT_S, LIMIT_BYTES, also=(0,)):
        if isinstance(said, StateError):
            passed_over(f"the ledgers of user {owner.name} cannot be read: {said}")
        else:
            found += [(owner.name, *each) for each in _jobs_in(said)[:limit]]
    return found


def who_has(job: str, passed_over: PassedOver, ledgers: Sequence[str], first_user_id: int) -> Owner | None:
    """The user who has the ledger of the job, of several the one whose was written last. As jobs_of_all."""
    _root_only()
    found: list[tuple[int, Owner]] = []
    for owner, said in asked_of_all(first_user_id, ledgers, HAS, (job,), LIMIT_S, LIMIT_BYTES, also=(0,)):
        if isinstance(said, StateError):
            passed_over(f"the ledgers of user {owner.name} cannot be read: {said}")
        elif re.fullmatch(rb"\d{1,12}", said):
            found.append((int(said), owner))
    return max(found, key=lambda each: each[0])[1] if found else None


def _root_only() -> None:
    """Raises: UsageError."""
    if os.geteuid() != 0:
        raise UsageError("only root may read what other users' jobs wrote", hint="leave --all-users out, or use sudo")


def _jobs_in(said: bytes) -> list[tuple[JobSummary, float]]:
    """What makes no sense is left out."""
    try:
        rows = json.loads(said)
    except (ValueError, RecursionError):
        return []
    good = (
        [row for row in rows if isinstance(row, list) and row and isinstance(row[0], float | int)]
        if isinstance(rows, list)
        else []
    )
    return [(job, float(row[0])) for row in good if (job := summary_of(row[1:])) is not None]
