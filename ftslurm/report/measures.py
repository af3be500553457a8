"""A job for monitoring, as a trace and in numbers: records in, values out. Pure. Every word that becomes a label of a metric is
one of few: what a ledger says may be anybody's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2s
from typing import Any

from ftslurm.errors import WireError
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.model.folds.history import OUTSIDE, schedule_count
from ftslurm.model.folds.summary import STATES, JobSummary, Story
from ftslurm.model.nodes import count_nodes
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.plain import Bounds, from_plain
from ftslurm.model.rungs import REQUEUES, RUNG_NAMES, Budget, Rung
from ftslurm.model.text import cut, visible
from ftslurm.model.values import Value, field, replace
from ftslurm.report.account.parts import LOST, Part, spent

# --- a trace: the job itself, its attempts, and what was done between them, with what was seen as events. Ids follow from what
# the job is, so that a trace which is sent again is the same trace. OpenTelemetry's words: a trace id has 16 bytes, a span id 8,
# times are ns since 1970.

MAX_CHARS = 300
# Of one span: a job that tells something a thousand times a day is not understood better by it.
MAX_EVENTS = 100

Attributes = Mapping[str, str | int | float | bool]


class SpanEvent(Value):
    """at: Unix seconds."""

    at: float
    name: str
    about: Attributes = field(default_factory=dict)


class Span(Value, frozen=False):
    """began, ended: Unix seconds. failed: why, empty if it did not. parent: 0 for the job itself."""

    trace: int
    id: int
    parent: int
    name: str
    began: float
    ended: float
    about: Attributes
    events: list[SpanEvent] = field(default_factory=list)
    failed: str = ""


# Kind of record -> name of the event, and attribute -> field that it tells; of a tuple, how many.
_EVENTS: Mapping[type, tuple[str, Mapping[str, str]]] = {
    rec.TroubleSeen: ("trouble", {"cause": "cause", "what": "words"}),
    rec.AttemptEnded: ("attempt ended", {"step": "step"}),
    rec.FaultSeen: ("device fault", {"node": "node", "device": "device", "code": "code", "fault_class": "fault_class"}),
    rec.HangSeen: ("hang", {"sign": "sign", "what": "what"}),
    rec.Diagnosed: ("diagnosis", {"class": "error_class", "signature": "signature", "what": "what"}),
    rec.Decided: ("decision", {"rung": "rung", "cause": "cause", "why": "why", "excluded_nodes": "exclude"}),
    rec.Finished: ("finished", {"status": "status", "what": "what"}),
}


def spans(records: Sequence[rec.Record], now: float, over: bool) -> list[Span]:
    """The job's own span first; empty where nothing has begun. over: the last record is the end. now: Unix seconds."""
    run = next((record for record in records if isinstance(record, rec.RunBegan)), None)
    if run is None:
        return []
    key, end = f"{run.cluster}.{run.job}.{run.at}", records[-1].at if over else now
    about = _safe({"slurm.job.id": run.job, "slurm.cluster": run.cluster, "slurm.job.name": run.name})
    job = Span(_number(key, 16), _number(f"{key}.job", 8), 0, _short(f"job {run.job}"), run.at, max(run.at, end), about)
    last, found = job, [job]
    for record in records:
        about = _told(record)
        if about and len(last.events) < MAX_EVENTS:
            last.events.append(SpanEvent(record.at, _EVENTS[type(record)][0], about))
        if isinstance(record, rec.TroubleSeen):
            last.failed = last.failed or _short(record.words)
        elif isinstance(record, rec.Finished) and outcome_of(record) is not Outcome.REQUEUED:
            job.failed = _short(record.what) if record.status else ""
        if (begun := _begins(record)) is not None:
            name, of, about = begun
            last.ended = last.ended if last is job else max(last.began, record.at)
            id = _number(f"{key}.{of}", 8)
            last = Span(job.trace, id, job.id, _short(name), record.at, max(record.at, end), _safe(about))
            found.append(last)
    return found


def _told(record: rec.Record) -> Attributes:
    """What it tells, where it is an event of a trace."""
    _, told = _EVENTS.get(type(record), ("", {}))
    values = {f"ftslurm.{key}": getattr(record, of) for key, of in told.items()}
    return _safe({key: len(value) if isinstance(value, tuple) else value for key, value in values.items()})


def _begins(record: rec.Record) -> tuple[str, str, Attributes] | None:
    """Name of what begins with it, which of the job's that is, and what is told of it."""
    match record:
        case rec.RunBegan():
            return "starting", f"starting.{record.run}", {"ftslurm.schedule_count": schedule_count(record.schedule)}
        case rec.AttemptBegan():
            return f"attempt {record.attempt}", f"attempt.{record.attempt}.{record.at}", {
                "ftslurm.attempt": record.attempt, "ftslurm.schedule_count": schedule_count(record.schedule),
                "ftslurm.tasks": record.tasks, "ftslurm.nodes": record.nodes,
            }  # fmt: skip
        case rec.Decided() if record.rung != Rung.RANK_RESTART:  # there the others go on
            return record.rung, f"decision.{record.id}", _told(record)
    return None


def _safe(about: Attributes) -> Attributes:
    return {name: _short(value) if isinstance(value, str) else value for name, value in about.items()}


def _short(text: str) -> str:
    return cut(visible(text), MAX_CHARS)


def _number(text: str, size: int) -> int:
    return int.from_bytes(blake2s(text.encode(errors="surrogateescape"), digest_size=size).digest(), "big") or 1


# --- numbers

RUNGS = frozenset({*RUNG_NAMES, *REQUEUES, Rung.BY_SLURM}) - {Rung.FAIL}
CAUSES = frozenset(
    {"device", "user-induced", "node", "hardware", "crash", "unstartable", "launch", "lost", "hang", "warning", OUTSIDE}
)
SIGNS = frozenset({"io", "silence", "exit", "beat", "stall"})
FAULT_CLASSES = frozenset(each.value for each in FaultClass)
BUDGETS = frozenset({Budget.MAX_RESTARTS, Budget.CRASH_RESTARTS, Budget.NODE_REPLACEMENTS})
OTHER = "other"
# Of a job's time.
PHASES = tuple(part.name.lower() for part in Part)


class Measures(Value):
    """Of one job."""

    job: str
    cluster: str
    state: str  # JobSummary's word
    began: float  # began, at: of the first and the last record, Unix seconds
    at: float
    attempts: int
    schedulings: int
    nodes: int
    tasks: int
    excluded: int
    messages: int
    restarts: tuple[tuple[str, str, int], ...] = ()  # rung, cause, how many
    seconds: Mapping[str, float] = field(default_factory=dict)  # phase -> seconds
    faults: Mapping[str, int] = field(default_factory=dict)  # class -> how many
    hangs: Mapping[str, int] = field(default_factory=dict)  # sign -> how many
    budgets: Mapping[str, int] = field(default_factory=dict)  # name -> left


class Pulse(Value):
    """What only the ftrun of a job knows while it runs. beats: signs of life of shims and agents so far; beat_at: of the last
    one, Unix seconds, 0: none yet. ranks: that are in touch. step: of the training, 0: not told.
    """

    beats: int
    beat_at: float
    ranks: int
    step: int


class JobOf(Value):
    """pulse: None for a job whose ftrun is not us."""

    user: str
    measures: Measures
    pulse: Pulse | None = None


def lost_s(of: Measures) -> float:
    """Seconds in which a job did not train, or did again what it had done, as far as its ledger knows."""
    return sum(of.seconds.get(part.name.lower(), 0.0) for part in LOST)


def measure(records: Sequence[rec.Record], job: JobSummary, now: float) -> Measures:
    """job: of the same records. now: Unix seconds."""
    story = Story(records)
    past = story.past
    attempts = [record for record in records if isinstance(record, rec.AttemptBegan)]
    last = attempts[-1] if attempts else None
    left = past.budgets.left(past.last_run.budgets) if past.last_run is not None else {}
    return Measures(
        job.job, job.cluster, _known(job.state, STATES), job.began, job.at, past.attempts, job.schedule_count,
        count_nodes(job.nodes), last.tasks if last else 0, len(past.exclusions.isolated),
        sum(isinstance(record, rec.ProgramSaid) and record.what == "message" for record in records),
        _restarts(records, story),
        {part.name.lower(): seconds for part, seconds in spent(records, now, job.over).parts.items() if seconds},
        Counter(_known(record.fault_class, FAULT_CLASSES) for record in records if isinstance(record, rec.FaultSeen)),
        Counter(_known(record.sign, SIGNS) for record in records if isinstance(record, rec.HangSeen)),
        {name: max(0, rest) for name, (rest, _) in left.items() if name in BUDGETS},
    )  # fmt: skip


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
# Of a number that somebody else has sent.
_BOUNDS = Bounds(100, whole=10**12, real=1e12)


def measures_in(body: object) -> Measures | None:
    """From JSON, of `to_plain`; None where it makes no sense: it comes from somebody whose ledgers these are."""
    try:
        m = from_plain(Measures, body, _BOUNDS)
    except WireError:
        return None
    if not (_NAME.fullmatch(m.job) and _NAME.fullmatch(m.cluster)):
        return None
    rungs, causes = {*RUNGS, OTHER}, {*CAUSES, OTHER}
    restarts = {(rung, cause): (rung, cause, many) for rung, cause, many in m.restarts if rung in rungs and cause in causes}
    return replace(
        m, state=_known(m.state, STATES), restarts=tuple(restarts.values()), seconds=_only(m.seconds, PHASES),
        faults=_only(m.faults, {*FAULT_CLASSES, OTHER}), hangs=_only(m.hangs, {*SIGNS, OTHER}), budgets=_only(m.budgets, BUDGETS),
    )  # fmt: skip


def _only(counts: Mapping[str, Any], words: Collection[str]) -> dict[str, Any]:
    return {name: many for name, many in counts.items() if name in words}


def _restarts(records: Sequence[rec.Record], story: Story) -> tuple[tuple[str, str, int], ...]:
    decided = [record for record in records if isinstance(record, rec.Decided) and record.rung != Rung.FAIL]
    found = Counter((_known(each.rung, RUNGS), _known(each.cause, CAUSES)) for each in decided)
    found += Counter({(Rung.BY_SLURM.value, OUTSIDE): len(story.by_slurm)})
    return tuple((rung, cause, many) for (rung, cause), many in found.items())


def _known(word: object, words: Collection[str]) -> str:
    return word if isinstance(word, str) and word in words else OTHER
