"""A job in numbers, for monitoring: records in, values out. Pure. Every word that becomes a label is one of few: what a ledger
says may be anybody's."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, TypeVar

from ftslurm.errors import WireError
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.model.folds.history import OUTSIDE
from ftslurm.model.folds.story import Story
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.rungs import REQUEUES, RUNG_NAMES, Budget, Rung
from ftslurm.model.values import dataclass
from ftslurm.report.account.parts import LOST, Part, spent

RUNGS = frozenset({*RUNG_NAMES, *REQUEUES, Rung.BY_SLURM}) - {Rung.FAIL}
CAUSES = frozenset(
    {"device", "user-induced", "node", "hardware", "crash", "unstartable", "launch", "lost", "hang", "warning", OUTSIDE}
)
SIGNS = frozenset({"io", "silence", "exit", "beat", "stall"})
FAULT_CLASSES = frozenset(each.value for each in FaultClass)
STATES = frozenset({
    "starting", "running", "recovering", "waiting", "hanging", "requeued", "completed", "failed", "cancelled", "timeout",
    "pending", "held", "suspended", "completing", "gone",
})  # fmt: skip
BUDGETS = frozenset({Budget.MAX_RESTARTS, Budget.CRASH_RESTARTS, Budget.NODE_REPLACEMENTS})
OTHER = "other"
# Of a job's time.
PHASES = tuple(part.name.lower() for part in Part)


def _restarts_told(restarts: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    return [(*key, many) for key, many in restarts.items()]


def _restarts_read(plain: Any) -> Mapping[tuple[str, str], int]:
    rows: tuple[tuple[str, str, int], ...] = from_plain(tuple[tuple[str, str, int], ...], plain, _BOUNDS)
    found: Counter[tuple[str, str]] = Counter()
    for rung, cause, many in rows:
        found[_known(rung, RUNGS), _known(cause, CAUSES)] += many
    return found


@dataclass(frozen=True, slots=True)
class Measures:
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
    restarts: Mapping[tuple[str, str], int] = field(default_factory=dict)  # (rung, cause) -> how many
    seconds: Mapping[str, float] = field(default_factory=dict)  # phase -> seconds
    faults: Mapping[str, int] = field(default_factory=dict)  # class -> how many
    hangs: Mapping[str, int] = field(default_factory=dict)  # sign -> how many
    budgets: Mapping[str, int] = field(default_factory=dict)  # name -> left

    plain_forms: ClassVar[Any] = {"restarts": (_restarts_told, _restarts_read)}


@dataclass(frozen=True, slots=True)
class Pulse:
    """What only the ftrun of a job knows while it runs. beats: signs of life of shims and agents so far; beat_at: of the last
    one, Unix seconds, 0: none yet. ranks: that are in touch. step: of the training, 0: not told.
    """

    beats: int
    beat_at: float
    ranks: int
    step: int


@dataclass(frozen=True, slots=True)
class JobOf:
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
    budgets = past.last_run.budgets if past.last_run is not None else {}
    return Measures(
        job.job, job.cluster, _known(job.state, STATES), job.began, job.at, past.attempts, job.schedule_count,
        _how_many(job.nodes), last.tasks if last else 0, len(past.exclusions.isolated),
        sum(isinstance(record, rec.ProgramSaid) and record.what == "message" for record in records),
        _restarts(records, story), _seconds(records, now, job.over),
        Counter(_known(record.fault_class, FAULT_CLASSES) for record in records if isinstance(record, rec.FaultSeen)),
        Counter(_known(record.sign, SIGNS) for record in records if isinstance(record, rec.HangSeen)),
        {name: max(0, limit - past.budgets.spent.get(name, 0)) for name, limit in budgets.items() if limit and name in BUDGETS},
    )  # fmt: skip


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
# Of a number that somebody else has sent.
_BOUNDS = Bounds(100, whole=10**12, real=1e12)


def to_json(measures: Sequence[Measures]) -> bytes:
    return json.dumps(to_plain(tuple(measures)), separators=(",", ":")).encode()


def from_json(data: bytes) -> list[Measures]:
    """What makes no sense is left out: it comes from somebody whose ledgers these are."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return []
    return [each for body in (tree if isinstance(tree, list) else []) if (each := _from_body(body)) is not None]


def _from_body(body: object) -> Measures | None:
    try:
        m = from_plain(Measures, body, _BOUNDS)
    except WireError:
        return None
    if not (_NAME.fullmatch(m.job) and _NAME.fullmatch(m.cluster)):
        return None
    return replace(
        m, state=_known(m.state, STATES), seconds=_only(m.seconds, PHASES),
        faults=_only(m.faults, {*FAULT_CLASSES, OTHER}), hangs=_only(m.hangs, {*SIGNS, OTHER}), budgets=_only(m.budgets, BUDGETS),
    )  # fmt: skip


N = TypeVar("N", int, float)


def _only(counts: Mapping[str, N], words: Collection[str]) -> dict[str, N]:
    return {name: many for name, many in counts.items() if name in words}


def _restarts(records: Sequence[rec.Record], story: Story) -> Mapping[tuple[str, str], int]:
    decided = [record for record in records if isinstance(record, rec.Decided) and record.rung != Rung.FAIL]
    found = Counter((_known(each.rung, RUNGS), _known(each.cause, CAUSES)) for each in decided)
    return found + Counter({(Rung.BY_SLURM.value, OUTSIDE): len(story.by_slurm)})


def _known(word: object, words: frozenset[str]) -> str:
    return word if isinstance(word, str) and word in words else OTHER


def _how_many(nodes: str) -> int:
    from ftslurm.model.nodes import expand

    try:
        return len(expand(nodes))
    except Exception:  # of a damaged line
        return 0
