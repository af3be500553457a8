"""All jobs, a line each: filtered, sorted, and as text. Pure but for the console."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from ftslurm.errors import UsageError
from ftslurm.model.folds.summary import STATES, JobSummary
from ftslurm.model.nodes import named_nodes
from ftslurm.model.rungs import Rung
from ftslurm.model.settings.kinds import duration
from ftslurm.model.text import cut, visible
from ftslurm.model.values import Value
from ftslurm.report.words import age, clock

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
    "name": lambda job: (_natural(job.name), -job.at),
    "nodes": lambda job: (_natural(job.nodes), -job.at),
    "began": lambda job: -job.began,
}


class JobsWanted(Value):
    """states: only these, empty for all. since: jobs that are over have ended after this, Unix seconds; 0: all. until: jobs have
    begun before this; 0: all. names: patterns as a shell has them, one of which fits the job's name; empty for all. nodes: the
    job ran on one of them; empty for all. backwards: the last first. jobs: only these numbers; empty for all.
    """

    states: frozenset[str] = frozenset()
    since: float = 0.0
    sort: str = "last"
    until: float = 0.0
    names: tuple[str, ...] = ()
    nodes: frozenset[str] = frozenset()
    backwards: bool = False
    jobs: frozenset[str] = frozenset()

    def fits(self, job: JobSummary) -> bool:
        """But for its age, if it is over."""
        return (
            (not self.jobs or job.job in self.jobs)
            and (not self.states or job.state in self.states)
            and (not self.until or job.began < self.until)
            and (not self.names or any(fnmatchcase(job.name, pattern) for pattern in self.names))
            and (not self.nodes or not self.nodes.isdisjoint((*named_nodes(job.nodes), *named_nodes(job.ever))))
        )


def moment_of(text: str, now: float, ahead: bool = False) -> float | None:
    """`7d` (ago), `2026-11-20`, `2026-11-20T12:30`, `12:30` (today) -> Unix seconds; local time. None for what is no time.

    ahead: `7d` from now on, and the next `12:30`.
    """
    with suppress(ValueError):
        return now + (duration(text) if ahead else -duration(text))
    today, of_day = datetime.fromtimestamp(now).date(), ":" in text and "-" not in text
    try:
        found = datetime.fromisoformat(f"{today}T{text}" if of_day else text)
        if of_day and ahead and found.timestamp() < int(now):
            found += timedelta(days=1)
        return found.timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def parse_moment(text: str, now: float) -> float:
    """In the past. Raises: UsageError."""
    if (found := moment_of(text, now)) is None:
        raise UsageError(f"`{text}` is not a time", hint="write 36h, 7d, 2026-11-20, 2026-11-20T12:30 or 12:30")
    return found


def states_named(text: str) -> frozenset[str]:
    """Raises: UsageError for a word that is no state."""
    words = frozenset(word.strip().lower() for word in text.split(",") if word.strip())
    if unknown := sorted(words - {*STATES}):
        raise UsageError(f"--state {unknown[0]}: no such state", hint=f"one of {', '.join(STATES)}")
    return words


def shown_jobs(jobs: Iterable[JobSummary], wanted: JobsWanted) -> tuple[list[JobSummary], int]:
    """Those to show, in order, and how many are left out for their age alone."""
    fit = [job for job in jobs if wanted.fits(job)]
    young = [job for job in fit if not job.over or job.at >= wanted.since]
    return sorted(young, key=SORTS[wanted.sort], reverse=wanted.backwards), len(fit) - len(young)


def title_of(job: JobSummary) -> str:
    return visible(f"job {job.job}{f' ({job.name})' if job.name else ''} on {job.cluster or '?'}: {job.command}")


def state_words(job: JobSummary, now: float) -> str:
    """Where it stands, and until when."""
    return ", ".join(filter(None, (job.words, _until(job, now))))


def _until(job: JobSummary, now: float) -> str:
    if job.since:
        return f"{max(0.0, now - job.since):.0f} s of {job.until - job.since:.0f} s" if job.state == "running" else ""
    words = {"pending": "not before", "waiting": "until"}.get(job.state, "")
    return f"{words} {clock(job.until)}" if words and job.until else ""


# Of a few long names the other lines make no more of.
COLUMN_MOST = 24
HEADING = ("JOB", "NAME", "STATE", "ATTEMPT", "NODES", "LAST", "WHAT")
# Of the terminal, from which on there is room for names without being asked.
WIDE = 110


def job_lines(
    jobs: Sequence[JobSummary], now: float, width: int = 0, names: bool = False, of_all: Sequence[tuple[str, float]] = ()
) -> list[str]:
    """A heading and a line a job. width: of the terminal, 0 for lines as long as they are. names: with those of the jobs. of_all:
    of jobs of all users, the user and the lost seconds of each."""
    several = len({job.cluster for job in jobs}) > 1
    rows = [HEADING, *(cells(job, now, several) for job in jobs)]
    if not names:
        rows = [(row[0], *row[2:]) for row in rows]
    if of_all:
        told = [("USER", "LOST"), *((user, age(lost_s)) for user, lost_s in of_all)]
        rows = [(user, *row[:-1], lost, row[-1]) for (user, lost), row in zip(told, rows, strict=True)]
    return columns(rows, width)


def cells(job: JobSummary, now: float, cluster: bool) -> tuple[str, ...]:
    name = f"{job.cluster or '?'}.{job.job}" if cluster else job.job
    told = "" if job.state in ("completed", "cancelled") or not job.rung else f"{job.rung} ({job.cause})"
    more = ", ".join(filter(None, (job.what, _until(job, now))))
    what = ": ".join(filter(None, (told if job.rung != Rung.FAIL else "", more))) or job.command
    return name, job.name, job.state, str(job.attempt), job.nodes, age(now - job.at), what


# Columns that are set flush right.
RIGHT = frozenset({"ATTEMPT", "RANK", "BEAT", "STEP", "STEPS/S", "CPU", "USE", "MEM", "WATT", "RANKS", "HEARD"})


def columns(rows: Sequence[Sequence[str]], width: int, limit: int = COLUMN_MOST) -> list[str]:
    """A line a row, safe to print, the heading first. width: of the terminal, 0: none, and nothing is cut. limit: the
    most of each column but the last."""
    widths = [min(max(map(len, column)), limit) for column in zip(*rows, strict=True)]

    def cell(text: str, most: int, name: str) -> str:
        shown = cut(text, most) if width else text
        return shown.rjust(most) if name in RIGHT else shown.ljust(most)

    found = []
    for row in rows:
        line = visible("  ".join([*map(cell, row[:-1], widths, rows[0]), row[-1]]).rstrip())
        found.append(cut(line, width) if width else line)
    return found
