"""A job as a trace: itself, its attempts, and what was done between them, with what was seen as events. Pure.

Ids follow from what the job is, so that a trace which is sent again is the same trace. OpenTelemetry's words: a trace id has
16 bytes, a span id 8, times are ns since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from hashlib import blake2s

from ftslurm.model import record as rec
from ftslurm.model.folds.counters import schedule_count
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import Rung
from ftslurm.model.text import cut, visible
from ftslurm.model.values import dataclass

MAX_CHARS = 300
# Of one span: a job that tells something a thousand times a day is not understood better by it.
MAX_EVENTS = 100

Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """at: Unix seconds."""

    at: float
    name: str
    about: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
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
                self._fail(record.what)
                self._event(record.at, "trouble", {"ftslurm.cause": record.cause, "ftslurm.what": record.what})
            case rec.AttemptEnded():
                self._event(record.at, "attempt ended", {"ftslurm.step": record.step})
            case rec.FaultSeen():
                about = {
                    "ftslurm.node": record.node, "ftslurm.device": record.device, "ftslurm.code": record.code,
                    "ftslurm.fault_class": record.fault_class,
                }  # fmt: skip
                self._event(record.at, "device fault", about)
            case rec.HangSeen():
                self._event(record.at, "hang", {"ftslurm.sign": record.sign, "ftslurm.what": record.what})
            case rec.Diagnosed():
                about = {"ftslurm.class": record.error_class, "ftslurm.signature": record.signature, "ftslurm.what": record.what}
                self._event(record.at, "diagnosis", about)
            case rec.Decided():
                self._decided(record)
            case rec.Finished():
                self._event(record.at, "finished", {"ftslurm.status": record.status, "ftslurm.what": record.what})
                if self.job is not None and outcome_of(record) is not Outcome.REQUEUED:
                    self.job.failed = record.what if record.status else ""

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
        about: Attributes = {
            "ftslurm.rung": decided.rung, "ftslurm.cause": decided.cause, "ftslurm.why": decided.why,
            "ftslurm.excluded_nodes": len(decided.exclude),
        }  # fmt: skip
        self._event(decided.at, "decision", about)
        if decided.rung != Rung.RANK_RESTART:  # the others go on
            self._turn(decided.rung, decided.at, f"decision.{decided.id}", about)

    def _turn(self, name: str, at: float, key: str, about: Attributes) -> None:
        if self.now is not None:
            self.done.append((self.now, at))
        self.now = _Open(name, at, key, about)

    def _event(self, at: float, name: str, about: Attributes) -> None:
        if self.now is not None and len(self.now.events) < MAX_EVENTS:
            self.now.events.append(SpanEvent(at, name, _safe(about)))

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
