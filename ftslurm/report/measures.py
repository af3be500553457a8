"""A job for monitoring, as a trace and in numbers: records in, values out. Pure. Every word that becomes a label of a metric is
one of few: what a ledger says may be anybody's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2s
from typing import TypeVar

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


class Span(Value):
    """began, ended: Unix seconds. failed: why, empty if it did not. parent: 0 for the job itself."""

    trace: int
    id: int
    parent: int
    name: str
    began: float
    ended: float
    about: Attributes = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    failed: str = ""


def spans(records: Sequence[rec.Record], now: float, over: bool) -> list[Span]:
    """The job's own span first; empty where nothing has begun. over: the last record is the end. now: Unix seconds."""
    walk = _Walk()
    for record in records:
        walk.see(record)
    return walk.close(records[-1].at if records and over else now)


class _Open:
    def __init__(self, name: str, began: float, key: str, about: Attributes) -> None:
        self.name, self.began, self.key, self.about = name, began, key, dict(about)
        self.events: list[SpanEvent] = []
        self.failed = ""


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


class _Walk:
    def __init__(self) -> None:
        self.job: _Open | None = None
        self.now: _Open | None = None  # the attempt, or what is done after it
        self.done: list[tuple[_Open, float]] = []

    def see(self, record: rec.Record) -> None:
        match record:
            case rec.RunBegan():
                self._run_began(record)
            case rec.AttemptBegan():
                about: dict[str, str | int | float | bool] = {
                    "ftslurm.attempt": record.attempt, "ftslurm.schedule_count": schedule_count(record.schedule),
                    "ftslurm.tasks": record.tasks, "ftslurm.nodes": record.nodes,
                }  # fmt: skip
                self._turn(f"attempt {record.attempt}", record.at, f"attempt.{record.attempt}.{record.at}", about)
            case rec.TroubleSeen():
                self._fail(record.words)
                self._event(record)
            case rec.Decided():
                self._decided(record)
            case rec.Finished():
                self._event(record)
                if self.job is not None and outcome_of(record) is not Outcome.REQUEUED:
                    self.job.failed = record.what if record.status else ""
            case _:
                self._event(record)

    def close(self, end: float) -> list[Span]:
        if self.job is None:
            return []
        if self.now is not None:
            self.done.append((self.now, end))
        trace, root = _number(self.job.key, 16), _number(f"{self.job.key}.job", 8)
        made = [_span(self.job, end, trace, root, 0)]
        for each, ended in self.done:
            made.append(_span(each, ended, trace, _number(f"{self.job.key}.{each.key}", 8), root))
        return made

    def _run_began(self, run: rec.RunBegan) -> None:
        if self.job is None:
            about = {"slurm.job.id": run.job, "slurm.cluster": run.cluster, "slurm.job.name": run.name}
            self.job = _Open(f"job {run.job}", run.at, f"{run.cluster}.{run.job}.{run.at}", about)
        self._turn("starting", run.at, f"starting.{run.run}", {"ftslurm.schedule_count": schedule_count(run.schedule)})

    def _decided(self, decided: rec.Decided) -> None:
        about = self._event(decided)
        if decided.rung != Rung.RANK_RESTART:  # the others go on
            self._turn(decided.rung, decided.at, f"decision.{decided.id}", about)

    def _turn(self, name: str, at: float, key: str, about: Attributes) -> None:
        if self.now is not None:
            self.done.append((self.now, at))
        self.now = _Open(name, at, key, about)

    def _event(self, record: rec.Record) -> Attributes:
        """What it tells, where it is an event of a trace."""
        name, told = _EVENTS.get(type(record), ("", {}))
        values = {f"ftslurm.{key}": getattr(record, of) for key, of in told.items()}
        about = {key: len(value) if isinstance(value, tuple) else value for key, value in values.items()}
        if name and self.now is not None and len(self.now.events) < MAX_EVENTS:
            self.now.events.append(SpanEvent(record.at, name, _safe(about)))
        return about

    def _fail(self, why: str) -> None:
        if self.now is not None:
            self.now.failed = self.now.failed or why


def _span(each: _Open, ended: float, trace: int, id: int, parent: int) -> Span:
    failed = cut(visible(each.failed), MAX_CHARS)
    name = cut(visible(each.name), 100)
    return Span(trace, id, parent, name, each.began, max(each.began, ended), _safe(each.about), tuple(each.events), failed)


def _safe(about: Attributes) -> Attributes:
    return {name: cut(visible(value), MAX_CHARS) if isinstance(value, str) else value for name, value in about.items()}


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


def _seconds(records: Sequence[rec.Record], now: float, over: bool) -> Mapping[str, float]:
    return {part.name.lower(): seconds for part, seconds in spent(records, now, over).parts.items() if seconds}


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
        _restarts(records, story), _seconds(records, now, job.over),
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


N = TypeVar("N", int, float)


def _only(counts: Mapping[str, N], words: Collection[str]) -> dict[str, N]:
    return {name: many for name, many in counts.items() if name in words}


def _restarts(records: Sequence[rec.Record], story: Story) -> tuple[tuple[str, str, int], ...]:
    decided = [record for record in records if isinstance(record, rec.Decided) and record.rung != Rung.FAIL]
    found = Counter((_known(each.rung, RUNGS), _known(each.cause, CAUSES)) for each in decided)
    found += Counter({(Rung.BY_SLURM.value, OUTSIDE): len(story.by_slurm)})
    return tuple((rung, cause, many) for (rung, cause), many in found.items())


def _known(word: object, words: Collection[str]) -> str:
    return word if isinstance(word, str) and word in words else OTHER
