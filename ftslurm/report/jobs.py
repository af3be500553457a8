"""All jobs, a line each: filtered, sorted, and as text. Pure but for the console."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ftslurm.errors import UsageError
from ftslurm.model.summary import OVER, JobSummary
from ftslurm.model.values import dataclass

STATES = (
    "starting", "running", "recovering", "hanging", "waiting", "requeued", "pending", "held", "suspended",
    *sorted(OVER),
)  # fmt: skip
# Of a pending job the earliest, of one that waits the latest.
_UNTIL = {"pending": "not before"}
_NATURAL = re.compile(r"\d{1,18}|\D+")


def _natural(text: str) -> list[tuple[int, int, str]]:
    """`9` before `10`, `12_3` before `12_10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NATURAL.findall(text)]


# Jobs that are not over come first by `last`, which is what people look for.
SORTS: Mapping[str, Callable[[JobSummary], Any]] = {
    "last": lambda job: (job.over, -job.at),
    "job": lambda job: (_natural(job.job), job.cluster),
    "state": lambda job: (STATES.index(job.state) if job.state in STATES else len(STATES), -job.at),
    "attempts": lambda job: (-job.attempt, -job.at),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """states: only these, empty for all. since: jobs that are over have ended after this, Unix seconds; 0: all."""

    states: frozenset[str] = frozenset()
    since: float = 0.0
    sort: str = "last"


def states_named(text: str) -> frozenset[str]:
    """Raises: UsageError for a word that is no state."""
    words = frozenset(word.strip().lower() for word in text.split(",") if word.strip())
    if unknown := sorted(words - {*STATES}):
        raise UsageError(f"--state {unknown[0]}: no such state", hint=f"one of {', '.join(STATES)}")
    return words


def chosen(jobs: Iterable[JobSummary], wanted: Wanted) -> tuple[list[JobSummary], int]:
    """Those to show, in order, and how many are left out for their age alone."""
    of_state = [job for job in jobs if not wanted.states or job.state in wanted.states]
    young = [job for job in of_state if not job.over or job.at >= wanted.since]
    return sorted(young, key=SORTS[wanted.sort]), len(of_state) - len(young)


def age(seconds: float) -> str:
    """`12 s`, `3 min`, `5 h`, `2 d`: to one digit of its unit, in six letters."""
    for limit, unit_s, unit in ((100, 1, "s"), (100 * 60, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / unit_s:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def lines(jobs: Sequence[JobSummary], now: float, width: int = 0) -> list[str]:
    """A heading and a line a job. width: of the terminal, 0 for lines as long as they are."""
    several = len({job.cluster for job in jobs}) > 1
    rows = [("JOB", "STATE", "ATTEMPT", "NODES", "LAST", "WHAT"), *(_row(job, now, several) for job in jobs)]
    # Of a few long names the other lines make no more of.
    widths = [min(max(len(row[column]) for row in rows), most) for column, most in enumerate((24, 10, 7, 18, 8))]
    return [_line(row, widths, width) for row in rows]


def _row(job: JobSummary, now: float, cluster: bool) -> tuple[str, ...]:
    name = f"{job.cluster or '?'}.{job.job}" if cluster else job.job
    told = "" if job.state in ("completed", "cancelled") or not job.rung else f"{job.rung} ({job.cause})"
    until = f"{_UNTIL.get(job.state, 'until')} {clock(job.until)}" if job.until else ""
    more = ", ".join(filter(None, (job.what, until)))
    what = ": ".join(filter(None, (told if job.rung != "fail" else "", more))) or job.command
    return name, job.state, str(job.attempt), job.nodes, age(now - job.at), what


def _line(row: Sequence[str], widths: Sequence[int], width: int) -> str:
    *cells, what = row
    text = f"{'  '.join([_cut(cell, most, width).ljust(most) for cell, most in zip(cells, widths, strict=True)])}  {what}"
    if not text.isprintable():
        text = "".join([char if char.isprintable() else "?" for char in text])
    return _cut(text.rstrip(), width, width)


def _cut(text: str, most: int, width: int) -> str:
    """In a pipe nothing is."""
    return text if not width or len(text) <= most else f"{text[: most - 1]}…"
