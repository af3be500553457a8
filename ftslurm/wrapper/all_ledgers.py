"""The ledgers of all users, for root: a program with each user's rights reads them."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError, UnknownJob, UsageError
from ftslurm.ledger.index import summary_of
from ftslurm.ledger.journal import Contents, Journal
from ftslurm.ledger.shared_file import MAX_BYTES, NodeMemory
from ftslurm.ledger.store import Store, state_folder
from ftslurm.model.folds.node_memory import NodeCleared, Told
from ftslurm.model.folds.summary import OVER, JobSummary, summarise
from ftslurm.model.nodes import expand
from ftslurm.model.plain import to_plain
from ftslurm.model.text import visible
from ftslurm.report.account.job import JobAccount, account, since
from ftslurm.report.measures import JobOf, Measures, measure, measures_in
from ftslurm.system.commands import CommandResult, Group
from ftslurm.system.files import is_there, read_private
from ftslurm.system.owner import Owner, people, start_as, user_name
from ftslurm.wrapper.jobs import job_now
from ftslurm.wrapper.reports import ledgers_since

# --- Reads or changes what a user's jobs have written, by a program that runs as that user: root's only access to users' files.
#
# The program has the user's rights and no more, even if the file system does not trust root. It starts with fresh memory and
# without root's descriptors, terminal or environment, so that a user who inspects or controls it (ptrace(2)) gains nothing.
# Its output is treated as that user's words.
#
# Its arguments: a verb, the verb's words, and the state folders.

MEMORY, FORGET, LEDGERS, JOBS, HAS = "memory", "forget", "ledgers", "jobs", "has"
# Bytes of one user's memory of nodes.
MEMORY_BYTES = 5 << 20
CLEARED = b"cleared"
# Bytes of one user's ledgers; more is left out.
LEDGERS_BYTES = 256 << 20
# Programs that work at the same time. One needs a core for a quarter of a second; after SIDE_S it is set aside. MOST: with those.
AT_ONCE, SIDE_S, MOST = 4, 0.5, 100
POLL_S = 0.02
# Every answer ends with this: otherwise it is cut off, or no answer.
WHOLE = b"\nwhole\n"

PassedOver = Callable[[str], None]


def asked_of_all(
    first_user_id: int, ledgers: Sequence[str], verb: str, words: Sequence[object], limit_s: float, limit_bytes: int,
    also: Iterable[int] = (),
) -> Iterator[tuple[Owner, bytes | StateError]]:  # fmt: skip
    """The program's answer for each user who may have a state folder, as they come. ledgers: as in hooks.yaml.

    A few at a time. Whoever stops the program that runs as them holds up nobody: it is set aside, and all that are set aside have
    the one limit. Only root can ask about others.
    """
    asked: dict[Group, tuple[Owner, float]] = {}  # and since when
    try:
        for owner in people(first_user_id, also):
            if not (places := [str(place) for place in folders_of(owner, ledgers) if is_there(place)]):
                continue
            while sum(time.monotonic() - began < SIDE_S for _, began in asked.values()) >= AT_ONCE or len(asked) >= MOST:
                yield from _answers(asked, limit_bytes, time.monotonic() - limit_s)
            argv = [sys.executable, "-I", "-m", "ftslurm.wrapper.all_ledgers", verb, *map(str, words), *places]
            try:
                asked[start_as(owner, argv, limit_bytes)] = owner, time.monotonic()
            except FtslurmError as error:
                yield owner, StateError(error.message)
        while asked:
            yield from _answers(asked, limit_bytes, time.monotonic() - limit_s)
    finally:
        for group in asked:  # nobody wants them any more
            group.end()


def _answers(
    asked: dict[Group, tuple[Owner, float]], limit_bytes: int, oldest: float
) -> Iterator[tuple[Owner, bytes | StateError]]:
    """Those that have ended, or had begun before `oldest` (monotonic seconds). It waits a moment first."""
    next(iter(asked)).has_ended(POLL_S)
    for group, (owner, began) in list(asked.items()):
        if group.has_ended() or began < oldest:
            del asked[group]
            try:
                yield owner, _answer(group.end(limit_bytes), limit_bytes)
            except StateError as error:
                yield owner, error


def _answer(done: CommandResult, limit_bytes: int) -> bytes:
    """What the program found for one user. Raises: StateError."""
    if done.timed_out:
        raise StateError("the program that reads them has not ended in time", hint="is their file system there?")
    if len(done.raw) >= limit_bytes:
        raise StateError(f"that is more than {limit_bytes >> 20} MB")
    if not done.raw.endswith(WHOLE):
        raise StateError(visible(done.raw[-200:].decode(errors="replace")).strip() or "nothing can be read there")
    return done.raw.removesuffix(WHOLE)


def folders_of(owner: Owner, ledgers: Sequence[str]) -> list[Path]:
    """The user's state folders. ledgers: as in hooks.yaml."""
    return [Path(each.replace("{home}", str(owner.home)).replace("{user}", owner.name)) for each in ledgers]


# --- the program, run as the user


def _mine(ledger: Path) -> bool:
    """Where one folder is for all users, each has their own."""
    with suppress(OSError):
        return ledger.lstat().st_uid == os.geteuid()
    return False


def _with_measures(
    folder: Path, oldest: float, limit: int, passed_over: PassedOver, counts: Callable[[Path], bool] = lambda ledger: True
) -> Iterator[tuple[JobSummary, Measures]]:  # fmt: skip
    found = ledgers_since(folder, oldest, os.environ, lambda error: passed_over(str(error)))
    wanted = [(path, job) for path, job in found.items() if counts(path)]
    wanted.sort(key=lambda each: each[1].at, reverse=True)
    for path, job in wanted[:limit]:
        try:
            yield job, measure(Journal(path).read().records, job, time.time())
        except FtslurmError as error:
            passed_over(str(error))


def _jobs(oldest: str, limit: str, *places: str) -> Iterator[bytes]:
    """`[summary, measures]` of each job."""
    there = [place for place in map(Path, places) if (place / "jobs").is_dir()]
    found = (each for place in there for each in _with_measures(place, float(oldest), int(limit), lambda _: None, _mine))
    yield json.dumps([[list(job), to_plain(measures)] for job, measures in found]).encode()


def _has(job: str, *places: str) -> Iterator[bytes]:
    """When the job's ledger was written last, Unix seconds; empty for a user without."""
    for place in map(Path, places):
        with suppress(UnknownJob):
            path = Store(place).find(job)[0].path
            if _mine(path):
                yield b"%d" % int(path.stat().st_mtime)
                return


def _memory(*places: str) -> Iterator[bytes]:
    for place in map(Path, places):
        path = NodeMemory(place).path
        if path.exists():
            yield read_private(path, MEMORY_BYTES // 2) + b"\n"


def _forget(now: str, wanted: str, *places: str) -> Iterator[bytes]:
    nodes = frozenset(expand(wanted))
    done = b""
    for place in map(Path, places):
        memory = NodeMemory(place)
        told: Sequence[Told] = memory.read() if memory.path.exists() else ()
        if doomed := {(each.cluster, each.node) for each in told if each.node in nodes}:
            memory.add([NodeCleared(float(now), cluster, node) for cluster, node in sorted(doomed)])
            done = CLEARED
    yield done


def _ledgers(began: str, *places: str) -> Iterator[bytes]:
    """For each ledger that counts: one line (size in bytes, state of the job, is it over) and the ledger itself."""
    room = LEDGERS_BYTES - MAX_BYTES
    for place in map(Path, places):
        if not (place / "jobs").is_dir():
            continue
        named = ledgers_since(place, float(began), os.environ, lambda error: None)
        for path, known in named.items():
            if room > 0 and _mine(path) and (ledger := _ledger(path)):
                room -= len(ledger) + 100
                yield b"%d %s %d\n" % (len(ledger), known.state.encode(), known.over) + ledger


def _ledger(path: Path) -> bytes:
    """The ledger, of a huge one the end."""
    with suppress(OSError):
        return read_private(path, MAX_BYTES)
    return b""


_VERBS: dict[str, Callable[..., Iterator[bytes]]] = {
    JOBS: _jobs, HAS: _has, MEMORY: _memory, FORGET: _forget, LEDGERS: _ledgers,
}  # fmt: skip


def main() -> None:
    os.umask(0o077)
    try:
        for piece in _VERBS[sys.argv[1]](*sys.argv[2:]):
            sys.stdout.buffer.write(piece)
    except (FtslurmError, OSError, ValueError, LookupError, TypeError) as error:
        print(visible(f"cannot be read: {error}"))
        return
    sys.stdout.buffer.write(WHOLE)
    sys.stdout.flush()


if __name__ == "__main__":
    main()


# --- the ledgers of all users, for root

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
        contents = Contents(()).with_more(ledger)
        known = summarise(contents.records)
        if known is not None:
            told = known._replace(state=state, over=over) if state in _TOLD else known
            yield since(account(contents.records, told, now, contents.damaged, owner.name), began)
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


# --- figures about the jobs of one user or of all: a process with each user's rights reads that user's ledgers

# For one user: seconds to read all ledgers, and bytes of the answer (1 KB per job).
LIMIT_S, LIMIT_BYTES = 30.0, 16 << 20


def jobs_of_me(job: str | None, oldest: float, limit: int, passed_over: PassedOver) -> list[JobOf]:
    """The user's own jobs. oldest: of finished jobs, Unix seconds. Raises: UnknownJob, StateError."""
    folder, user = state_folder(os.environ), user_name(os.getuid())
    if job is None:
        return [JobOf(user, measures) for _, measures in _with_measures(folder, oldest, limit, passed_over)]
    journal, contents = Store(folder).read(job)
    known = job_now(journal, contents, os.environ)
    return [] if known is None else [JobOf(user, measure(contents.records, known, time.time()))]


def jobs_of_all(
    oldest: float, limit: int, passed_over: PassedOver, ledgers: Sequence[str], first_user_id: int
) -> list[tuple[str, JobSummary, Measures]]:  # fmt: skip
    """All jobs with their users. limit: for each user. Raises: UsageError if the caller is not root."""
    told = _told_by_all(JOBS, (oldest, limit), passed_over, ledgers, first_user_id)
    return [(owner.name, *each) for owner, said in told for each in jobs_in(said)[:limit]]


def who_has(job: str, passed_over: PassedOver, ledgers: Sequence[str], first_user_id: int) -> Owner | None:
    """The user who has the ledger of the job, of several the one whose was written last; the others are named, as anybody can
    give a file any date. As jobs_of_all.
    """
    told = _told_by_all(HAS, (job,), passed_over, ledgers, first_user_id)
    found = sorted(((int(said), owner) for owner, said in told if re.fullmatch(rb"\d{1,12}", said)), key=lambda each: -each[0])
    for _, owner in found[1:]:
        passed_over(f"the ledger of job {job} that {owner.name} has (--user {owner.name} shows it)")
    return found[0][1] if found else None


def _told_by_all(
    verb: str, words: Sequence[object], passed_over: PassedOver, ledgers: Sequence[str], first_user_id: int
) -> Iterator[tuple[Owner, bytes]]:
    """Raises: UsageError."""
    if os.geteuid() != 0:
        raise UsageError("only root may read what other users' jobs wrote", hint="leave --all-users out, or use sudo")
    for owner, said in asked_of_all(first_user_id, ledgers, verb, words, LIMIT_S, LIMIT_BYTES, also=(0,)):
        if isinstance(said, StateError):
            passed_over(f"the ledgers of user {owner.name} cannot be read: {said}")
        else:
            yield owner, said


def jobs_in(said: bytes) -> list[tuple[JobSummary, Measures]]:
    """What makes no sense is left out: it comes from somebody whose ledgers these are."""
    try:
        rows = json.loads(said)
    except (ValueError, RecursionError):
        return []
    pairs = [row for row in rows if isinstance(row, list) and len(row) == 2] if isinstance(rows, list) else []
    found = [(summary_of(job), measures_in(measures)) for job, measures in pairs]
    return [(job, measures) for job, measures in found if job is not None and measures is not None]
