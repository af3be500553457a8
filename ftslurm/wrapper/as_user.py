"""Reads or changes what a user's jobs have written, by a program that runs as that user: root's only access to users' files.

The program has the user's rights and no more, even if the file system does not trust root. It starts with fresh memory and
without root's descriptors, terminal or environment, so that a user who inspects or controls it (ptrace(2)) gains nothing. Its
output is treated as that user's words.

Its arguments: a verb, the verb's words, and the state folders.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError, UnknownJob
from ftslurm.ledger.index import Index
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.shared_file import MAX_BYTES, NodeMemory
from ftslurm.ledger.store import LOCAL_CLUSTER, VARIABLE, Store, ledger_parts
from ftslurm.model.folds.node_memory import NodeCleared, Told
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.nodes import expand
from ftslurm.model.text import visible
from ftslurm.report.measures import Measures, lost_s, measure, to_json
from ftslurm.system.commands import CommandResult, Group
from ftslurm.system.files import read_private
from ftslurm.system.owner import Owner, people, start_as
from ftslurm.wrapper.jobs import with_slurms_word
from ftslurm.wrapper.reports import ledgers_since

MEASURES, MEMORY, FORGET, LEDGERS, JOBS, HAS = "measures", "memory", "forget", "ledgers", "jobs", "has"
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
            if not (places := [str(place) for place in folders_of(owner, ledgers) if _may_be(place)]):
                continue
            while sum(time.monotonic() - began < SIDE_S for _, began in asked.values()) >= AT_ONCE or len(asked) >= MOST:
                yield from _answers(asked, limit_bytes, time.monotonic() - limit_s)
            argv = [sys.executable, "-I", "-m", "ftslurm.wrapper.as_user", verb, *map(str, words), *places]
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


def _may_be(place: Path) -> bool:
    """Could there be such a folder? Yes also if root cannot see it."""
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # root_squash
    return True


# --- the program, run as the user


def measures_in(folder: Path, oldest: float, limit: int, passed_over: PassedOver) -> list[Measures]:
    """The measures of the latest jobs in the folder. Raises: StateError."""
    return [found for _, found in _with_measures(folder, oldest, limit, passed_over)]


def _mine(ledger: Path) -> bool:
    """Where one folder is for all users, each has their own."""
    try:
        return ledger.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _with_measures(
    folder: Path, oldest: float, limit: int, passed_over: PassedOver, counts: Callable[[Path], bool] = lambda ledger: True
) -> Iterator[tuple[JobSummary, Measures]]:  # fmt: skip
    named = Index(folder).named(lambda error: passed_over(str(error)))
    jobs = [job for name, job in named.items() if counts(folder / "jobs" / name)]
    if jobs:
        jobs, _ = with_slurms_word(jobs, folder.stat().st_uid, os.environ)
    wanted = [job for job in jobs if not job.over or job.at >= oldest]
    wanted.sort(key=lambda job: job.at, reverse=True)
    for job in wanted[:limit]:
        try:
            yield job, _measured(folder, job)
        except FtslurmError as error:
            passed_over(str(error))


def _measured(folder: Path, job: JobSummary) -> Measures:
    parts = ("jobs", f"{LOCAL_CLUSTER}.{job.job}.jsonl") if job.local else ledger_parts(job.cluster, job.job)
    path = folder.joinpath(*parts)
    return measure(Journal(path).read().records, job, time.time())


def _measures(oldest: str, limit: str, *places: str) -> Iterator[bytes]:
    found: list[Measures] = []
    for place in map(Path, places):
        if (place / "jobs").is_dir():
            found += [each for _, each in _with_measures(place, float(oldest), int(limit), lambda _: None, _mine)]
    yield to_json(found)


def _jobs(oldest: str, limit: str, *places: str) -> Iterator[bytes]:
    found: list[object] = []
    for place in map(Path, places):
        if (place / "jobs").is_dir():
            several = _with_measures(place, float(oldest), int(limit), lambda _: None, _mine)
            found += [[lost_s(measures), *job] for job, measures in several]
    yield json.dumps(found).encode()


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
        named = ledgers_since(place, float(began), {**os.environ, VARIABLE: str(place)}, lambda error: None)
        for path, known in named.items():
            if room > 0 and _mine(path) and (ledger := _ledger(path)):
                room -= len(ledger) + 100
                yield b"%d %s %d\n" % (len(ledger), known.state.encode(), known.over) + ledger


def _ledger(path: Path) -> bytes:
    """The ledger, of a huge one the end."""
    try:
        return read_private(path, MAX_BYTES)
    except OSError:
        return b""


_VERBS: dict[str, Callable[..., Iterator[bytes]]] = {
    JOBS: _jobs, HAS: _has, MEASURES: _measures, MEMORY: _memory, FORGET: _forget, LEDGERS: _ledgers,
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
