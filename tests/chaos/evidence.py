"""What is known of a job when it is over: values, and how they are read from its folder. The checks see nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ftslurm.ledger.journal import Contents
from ftslurm.model.record import Record
from tests.chaos.plan import JobPlan
from tests.chaos.program import BEAT
from tests.live.overlap import Beat
from tests.live.stories import Start


@dataclass(frozen=True)
class Blow:
    """A fault that was injected. at, over: Unix seconds, of its beginning and of when it was undone or had worked.

    attempt: the newest in the ledger at that moment. victim: for people. ends, outside: see faults.Kind. isolates: it
    speaks against a node. beside: it was meant for another job, and struck this one too.
    """

    kind: str
    at: float
    attempt: int
    victim: str
    ends: str
    outside: bool = False
    isolates: bool = False
    beside: bool = False
    status: int = 0
    over: float = 0.0


@dataclass(frozen=True)
class Help:
    """What the operator had to do, at: Unix seconds. kind: `start` (Slurm's own delay), `held` (a requeue left half done)."""

    kind: str
    at: float
    words: str


@dataclass(frozen=True)
class Step:
    """A step that a rank has made. began, ended: Unix seconds."""

    rank: int
    attempt: int
    step: int
    digest: str
    began: float
    ended: float


@dataclass(frozen=True)
class Evidence:
    """left: what of the job still runs, pid to command. state, status: by Slurm; empty state: it had to be ended by force.

    queued: the job, or a donor job of its. beats: first and last of every process. damaged: lines of the ledger that cannot be read. helped: what the operator
    had to do. commits: (attempt, step) in the order they were written.
    """

    plan: JobPlan
    job: int = 0
    state: str = ""
    status: int = 0
    queued: bool = False
    ledger: tuple[Record, ...] = ()
    damaged: int = 0
    starts: tuple[Start, ...] = ()
    steps: tuple[Step, ...] = ()
    beats: tuple[Beat, ...] = ()
    commits: tuple[tuple[int, int], ...] = ()
    conflicts: tuple[str, ...] = ()
    result: tuple[int, str] | None = None
    blows: tuple[Blow, ...] = ()
    left: Mapping[int, str] = field(default_factory=dict)
    helped: tuple[Help, ...] = ()
    errors: tuple[str, ...] = ()
    seconds: float = 0.0
    folder: str = ""


def read_beats(folder: Path) -> tuple[Beat, ...]:
    """Two for every process: its first and its last. The node is not in the page; the starts have it."""
    found = []
    for path in folder.glob("beat.*"):
        data = path.read_bytes()[: BEAT.size]
        if len(data) == BEAT.size:
            attempt, rank, first, last = BEAT.unpack(data)
            if attempt:  # killed before it had written anything
                found += [
                    Beat(attempt, rank, f"pid {path.suffix[1:]}", first),
                    Beat(attempt, rank, f"pid {path.suffix[1:]}", last),
                ]
    return tuple(sorted(found, key=lambda beat: beat.time))


def read_steps(folder: Path) -> Iterator[Step]:
    """The last line of a rank that was killed may be torn."""
    for path in folder.glob("steps.*"):
        for line in path.read_text().splitlines():
            try:
                attempt, step, digest, began, ended = json.loads(line)
            except ValueError:
                continue
            yield Step(int(path.suffix[1:]), attempt, step, digest, began, ended)


def read_pairs(path: Path) -> tuple[tuple[int, int], ...]:
    lines = [line.split() for line in read_text(path).splitlines()]
    return tuple((int(first), int(second)) for first, second in lines)


def read_result(path: Path) -> tuple[int, str] | None:
    words = read_text(path).split()
    return (int(words[0]), words[1]) if words else None


def read_text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def read_ledger(folder: Path) -> tuple[tuple[Record, ...], int]:
    """Of the one job whose state folder this is: records and damaged lines."""
    for path in sorted((folder / "state/jobs").glob("*.jsonl")):
        if ".was." not in path.name:
            contents = Contents(()).with_more(path.read_bytes())  # the job user's, whom root's Journal would refuse
            return contents.records, contents.damaged
    return (), 0
