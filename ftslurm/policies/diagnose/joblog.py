"""Reads the log of a job that did not run under ftrun as the last words of its ranks: who printed what, and who ended how.

A log tells less than ftrun sees. Which rank a line is of, is known by srun's label (`3: `) or by the file; how ranks ended, by
what srun says of tasks; when a line was printed, by its own time stamp, else by its place. What is not known is left open:
without the nodes of all ranks no node can be suspect, and an exit status that is not told is only assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from ftslurm.catalogs.patterns import SLURM
from ftslurm.model.exits import ExitStatus, from_shell
from ftslurm.model.values import Value, field, replace
from ftslurm.model.verdict import Piece, RankEnd

# The rank of a line, and the node of a rank, that a log does not tell.
NO_RANK, NO_NODE = -1, "?"
# Assumed seconds per line without a time stamp. After two seconds an error counts as overcome if its rank goes on well.
LINE_S = 0.01
# Lines of one piece.
PIECE_LINES = 16
# Unix seconds; 0 would mean that nobody knows.
ORIGIN = 1_000_000_000.0
# As many ranks as one line of srun's can name without being a trap.
MOST_TASKS = 1 << 20

_LABEL = re.compile(r"^ {0,9}(\d{1,6}): ?")
_STAMP = re.compile(r"(?:^|[^\d])(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?!\d)")
# Source: srun's task_state.c and launch; `ftrun` where its local launcher says the same.
_TASKS = re.compile(
    r"^(?:srun|ftrun): error: (\S{1,255}): tasks? ([\d,\-\[\]]{1,4000}): "
    r"(?:Exited with exit code (\d{1,3})|([A-Z][A-Za-z0-9 ]{2,40}?))(?: \(core dumped\))?\s*$"
)
_SIGNALS = {
    "Hangup": 1, "Interrupt": 2, "Quit": 3, "Illegal instruction": 4, "Trace/breakpoint trap": 5, "Aborted": 6, "Bus error": 7,
    "Floating point exception": 8, "Killed": 9, "Segmentation fault": 11, "Terminated": 15,
}  # fmt: skip
_OUT_OF_MEMORY = "Out Of Memory"
# What ftrun says itself, its cards among it: words about failures, of one who has judged already.
_OURS = re.compile(r"^ftrun: ")
# How srun ends the others once a task has failed.
_ENDED_BY_SRUN = frozenset({"Killed", "Terminated"})
_CANCELLED = re.compile(r"\*\*\* (?:JOB|STEP) \S{1,40} ON \S{1,255} CANCELLED AT \S{1,40} \*\*\*")
_NODE_FAILED = re.compile(
    r"^srun: error: Node failure on (\S{1,255})|\*\*\* JOB \S{1,40} ON (\S{1,255}) CANCELLED .{0,60}DUE TO NODE FAILURE"
)


class LogPart(Value):
    """Some output. rank: of the file's name, NO_RANK where it is the whole job's. stream: `out` or `err`."""

    rank: int
    stream: str
    text: str


class JobLog(Value):
    """What is known of a job by its log. assumed: nobody says how it ended. told: rank -> node, by srun. lasted_s: by the stamps.

    first: the rank that failed first, by srun; NO_RANK where it does not say.
    """

    ends: tuple[RankEnd, ...]
    assumed: bool
    told: Mapping[int, str] = field(default_factory=dict)
    bad_nodes: Mapping[str, str] = field(default_factory=dict)
    first: int = NO_RANK
    status: ExitStatus | None = None
    lasted_s: float = 0.0


class _Slurm(Value, frozen=False):
    """What Slurm says of the job. exits: rank -> (status, when, ended by srun). order: those that failed, the first first."""

    exits: dict[int, tuple[ExitStatus, float, bool]] = field(default_factory=dict)
    nodes: dict[int, str] = field(default_factory=dict)
    oom: set[int] = field(default_factory=set)
    bad_nodes: dict[str, str] = field(default_factory=dict)
    first: int = NO_RANK


class _Said(Value, frozen=False):
    """One rank's output while it is collected. number: of its lines so far; at: of the last one."""

    pieces: list[Piece] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    since: float = 0.0


def read_log(parts: Sequence[LogPart], status: int | None = None) -> JobLog:
    """parts: in the order of time where they share a rank. status: the job's exit status as a shell has it, if known."""
    slurm = _Slurm()
    said: dict[tuple[int, str], _Said] = {}
    first = last = 0.0
    labelled = False
    for part in parts:
        by_label = _has_labels(part.text)
        labelled = labelled or by_label
        for at, stamped, line in _timed(part.text):
            if stamped:
                first, last = first or at, max(last, at)
            rank, words = _rank_of(line, part.rank, by_label)
            if rank == part.rank and _of_slurm(words, at, slurm):
                continue
            _collect(said.setdefault((rank, part.stream), _Said()), part.stream, at, words)
    return _joined(said, slurm, None if status is None else from_shell(status), last - first, labelled)


def _has_labels(text: str) -> bool:
    """Of srun -l: nearly every line begins so; Slurm's own lines do not."""
    lines = [line for line in text[: 1 << 18].split("\n") if line.strip()]
    lines = [line for line in lines if not (_OURS.match(line) or SLURM.match(line[:100].encode(errors="replace")))]
    return len(lines) > 1 and 10 * sum(_LABEL.match(line) is not None for line in lines) >= 9 * len(lines)


def _rank_of(line: str, rank: int, by_label: bool) -> tuple[int, str]:
    found = _LABEL.match(line) if by_label else None
    return (int(found[1]), line[found.end() :]) if found else (rank, line)


def _timed(text: str) -> Iterator[tuple[float, bool, str]]:
    """(when, by a stamp?, line). Time never goes back: where stamps of several ranks mix, the latest counts."""
    now = ORIGIN
    for line in text.split("\n"):
        stamp = _stamp(line)
        now = max(now, stamp) if stamp else now + LINE_S
        yield now, bool(stamp), line


def _stamp(line: str) -> float:
    found = _STAMP.search(line[:120])
    if found is None:
        return 0.0
    try:
        day = datetime(*(int(part) for part in found.groups()[:6]), tzinfo=timezone.utc)  # type: ignore[arg-type, misc]
    except ValueError:
        return 0.0
    return day.timestamp() + float(f"0.{found[7] or 0}")


def _collect(said: _Said, stream: str, at: float, line: str) -> None:
    if said.lines and (len(said.lines) >= PIECE_LINES or at - said.since > 1.0):
        _close(said, stream)
    if not said.lines:
        said.since = at
    said.lines.append(line)


def _close(said: _Said, stream: str) -> None:
    if said.lines:
        said.pieces.append(Piece(said.since, stream, "\n".join(said.lines) + "\n"))
        said.lines = []


def _of_slurm(line: str, at: float, slurm: _Slurm) -> bool:
    """Is the line one of Slurm's that is evaluated already?"""
    if "error: " not in line and "***" not in line:
        return _OURS.match(line) is not None
    if found := _NODE_FAILED.search(line):
        slurm.bad_nodes.setdefault(found[1] or found[2], line.strip()[:300])
        return True
    if slurm.first != NO_RANK and _CANCELLED.search(line):
        return True  # srun ends the step of a task that has failed
    found = _TASKS.match(line)
    if found is None:
        return _OURS.match(line) is not None
    node, ranks, code, word = found.groups()
    if word and word not in _SIGNALS and word != _OUT_OF_MEMORY:
        return _OURS.match(line) is not None
    for rank in _ranks(ranks):
        status = ExitStatus(int(code)) if code else ExitStatus(0, _SIGNALS.get(word, 9))
        stopped = word in _ENDED_BY_SRUN and slurm.first != NO_RANK
        slurm.nodes[rank] = node
        slurm.exits.setdefault(rank, (status, at, stopped))
        if word == _OUT_OF_MEMORY:
            slurm.oom.add(rank)
        if slurm.first == NO_RANK and not status.ok:
            slurm.first = rank
    return True


def _ranks(text: str) -> Iterator[int]:
    """`1,3-5`; nothing of a list that makes no sense."""
    for group in text.strip("[]").split(","):
        low, _, high = group.partition("-")
        if low.isdecimal() and (high.isdecimal() or not high) and int(high or low) - int(low) < MOST_TASKS:
            yield from range(int(low), int(high or low) + 1)


def _joined(
    said: Mapping[tuple[int, str], _Said], slurm: _Slurm, status: ExitStatus | None, lasted_s: float, labelled: bool
) -> JobLog:
    for (_, stream), each in said.items():
        _close(each, stream)
    by_file = any(rank != NO_RANK for rank, _ in said)
    ranks = sorted({rank for rank, _ in said} | ({*slurm.exits} if labelled or by_file else set()))
    rest = [piece for stream in ("out", "err") for piece in said.get((NO_RANK, stream), _Said()).pieces]
    if len(ranks) > 1 and not any(piece.text.strip() for piece in rest):
        ranks = [rank for rank in ranks if rank != NO_RANK]
    known = all(rank in slurm.nodes for rank in ranks if rank != NO_RANK)
    first = slurm.exits.get(slurm.first)
    ended = status or (first[0] if first else None)
    last = max((piece.at for each in said.values() for piece in each.pieces), default=ORIGIN) + LINE_S
    ends = []
    for rank in ranks:
        output = tuple(piece for stream in ("out", "err") for piece in said.get((rank, stream), _Said()).pieces)
        own, at, stopped = slurm.exits.get(rank, (None, last, False))
        if own is None:
            # Where srun says who failed, the others were ended by it; else each may have.
            stopped = bool(slurm.exits) and rank != NO_RANK
            own = ExitStatus(0, 15) if stopped else ended if ended and not ended.ok else ExitStatus(1)
        oom = rank in slurm.oom or (rank == NO_RANK and bool(slurm.oom)) or None
        node = slurm.nodes[rank] if known and rank != NO_RANK else NO_NODE
        ends.append(RankEnd(rank, node, own, at, stopped, False, oom, output))
    return JobLog(tuple(ends), ended is None, dict(slurm.nodes), dict(slurm.bad_nodes), slurm.first, ended, max(0.0, lasted_s))


def without_the_rest(log: JobLog) -> JobLog:
    """The ranks only, without output of an unknown rank."""
    return replace(log, ends=tuple(end for end in log.ends if end.rank != NO_RANK))
