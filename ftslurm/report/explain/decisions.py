"""Why each decision of a job was taken: what was known and from whom, which rungs were asked, which settings they looked at, what
it cost and what became of it. Pure: records in, values out. All of it stands in the ledger; what an older ledger does not tell is
told as not recorded, and never worked out again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from ftslurm.model import record as rec
from ftslurm.model.folds.control import in_words
from ftslurm.model.folds.history import History
from ftslurm.model.rungs import REQUEUES, RUNG_NAMES, Budget, Rung
from ftslurm.model.values import dataclass
from ftslurm.report.view import culprit
from ftslurm.report.words import experiment

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was known. at: Unix seconds. source: who told it."""

    at: float
    source: str
    what: str


@dataclass(frozen=True, slots=True)
class SettingRead:
    """A setting that `rung` looked at. place: where it was set, or `default`."""

    rung: str
    name: str
    value: str
    place: str


@dataclass(slots=True)
class Explanation:
    """One decision."""

    number: int  # from 1
    id: str
    at: float  # Unix seconds
    attempt: int
    rung: str
    cause: str
    what: str  # the trouble that it answers
    why: str  # what the rung says for itself
    evidence: tuple[Evidence, ...]
    # each rung that was asked before, and why not that one; None where the ledger does not say
    passed: tuple[tuple[str, str], ...] | None
    settings: tuple[SettingRead, ...] | None  # likewise
    cost: Mapping[str, tuple[int, int]]  # budget -> (used by now, with this decision; limit, 0 if not told)
    isolate: Mapping[str, str]  # those that this decision adds, node -> why
    exclude: tuple[str, ...]  # all nodes that the next scheduling may not use
    status: int
    ok: bool | None = None  # was it carried out? None: open, or never told
    outcome: tuple[str, ...] = ()  # what became of it
    back_s: float | None = None  # seconds from the trouble until the ranks ran again; None: they did not, or not yet
    attempt_after: int = 0  # theirs

    def of(self, rung: str) -> tuple[SettingRead, ...]:
        """What that rung looked at."""
        return tuple(read for read in self.settings or () if read.rung == rung)

    @property
    def decisive(self) -> str:
        """The rung whose reason is that of the decision: of `fail`, one that was passed. Empty where nobody knows."""
        if self.rung != Rung.FAIL:
            return self.rung
        return next((rung for rung, why in reversed(self.passed or ()) if self.why in (why, f"{rung} is switched off")), "")


@dataclass(slots=True)
class Explanations:
    """since: what has become known since the last decision."""

    decisions: list[Explanation] = field(default_factory=list)
    since: tuple[Evidence, ...] = ()


def explained(records: Iterable[rec.Record]) -> Explanations:
    """Every decision in order."""
    walk = _Walk()
    for record in records:
        walk.see(record)
    return Explanations(walk.found, tuple(walk.known))


class _Walk:
    """Goes through a ledger. found: the decisions so far. known: what has become known since the last of them."""

    def __init__(self) -> None:
        self.past = History()
        self.places: dict[str, Mapping[str, str]] = {}  # by run
        self.run: rec.RunBegan | None = None
        self.known: list[Evidence] = []
        self.found: list[Explanation] = []
        self._trouble: rec.TroubleSeen | None = None
        self._open = False  # has no attempt begun since the last decision?

    def see(self, record: rec.Record) -> None:
        told = [Evidence(record.at, source, what) for source, what in _evidence(record) if what]
        self.known += [each for each in told if each.what not in {before.what for before in self.known}]
        match record:
            case rec.RunBegan():
                self._run_began(record)
            case rec.SettingsFrom():
                self.places[record.run] = record.places
            case rec.TroubleSeen():
                self._trouble = record
            case rec.AttemptBegan() | rec.RankBegan():
                self._began(record)
            case rec.Decided():
                self._decided(record)
                return
            case rec.CarriedOut():
                self._carried_out(record)
            case _:
                pass
        self.past = self.past.add(record)

    def _run_began(self, run: rec.RunBegan) -> None:
        again = self.run is not None and run.schedule > self.run.schedule
        if again and not (self._open and self.found[-1].rung in REQUEUES):
            self.known.append(Evidence(run.at, "Slurm", "the job was requeued, and ftrun had not decided that"))
        self.run = run

    def _began(self, begun: rec.AttemptBegan | rec.RankBegan) -> None:
        if self._open:
            last = self.found[-1]
            last.attempt_after = begun.attempt
            if self._trouble is not None:
                last.back_s = max(0.0, begun.at - (self._trouble.since or self._trouble.at))
            self.known = []
        self._open, self._trouble = False, None

    def _carried_out(self, done: rec.CarriedOut) -> None:
        for decision in reversed(self.found):
            if decision.id == done.id:
                decision.ok = done.ok
                decision.outcome += (done.what,) if done.what and done.what not in decision.outcome else ()
                if done.ok is False:
                    self.known.append(Evidence(done.at, f"decision {decision.number}", f"failed: {done.what}"))
                return

    def _decided(self, d: rec.Decided) -> None:
        before, self.past = self.past.budgets.job_restarts, self.past.add(d)
        old = not d.settings
        first = d.rung not in RUNG_NAMES  # nobody was asked
        what = d.why.removesuffix(f"; {d.reason}") if d.reason else d.why
        self.found.append(Explanation(
            len(self.found) + 1, d.id, d.at, d.attempt, d.rung, d.cause, what, d.reason or d.why, tuple(self.known),
            None if old and not (d.passed or first) else d.passed,
            None if old and not first else tuple(self._setting(*read) for read in d.settings),
            self._cost(d, self.past.budgets.job_restarts > before), d.isolate, d.exclude, d.status,
        ))  # fmt: skip
        self.known, self._open = [], True

    def _setting(self, rung: str, name: str, value: str) -> SettingRead:
        places = self.places.get(self.run.run, {}) if self.run else {}
        return SettingRead(rung, name, value, places.get(name, DEFAULT))

    def _cost(self, d: rec.Decided, of_all_restarts: bool) -> dict[str, tuple[int, int]]:
        limits = self.run.budgets if self.run else {}
        charged = [d.cost] if d.cost else []
        if of_all_restarts and limits.get(Budget.JOB_RESTARTS, 0):
            charged.append(Budget.JOB_RESTARTS.value)
        return {name: (self.past.budgets.used(name), limits.get(name, 0)) for name in charged}


def _evidence(record: rec.Record) -> Iterator[tuple[str, str]]:
    """(who told it, what) of a record that a decision may go by."""
    match record:
        case rec.FaultSeen():
            yield f"devices of {record.node}", f"{record.code} ({record.name}) on device {record.device}: {record.fault_class}"
        case rec.CallRead():
            yield "the script", record.words
        case rec.TroubleSeen():
            yield "ftrun", record.what
        case rec.HangSeen():
            yield "hang detection", record.culprit or record.what
            for line in record.evidence:
                yield "hang detection", line
        case rec.HangEnded():
            yield "hang detection", f"it went on: {record.what}"
        case rec.CulpritSeen():
            yield "comparison of ranks", culprit(record)
            for line in record.evidence:
                yield "comparison of ranks", line
        case rec.Diagnosed():
            yield from _verdict(record)
        case rec.Reinstated():
            for node, why in record.nodes.items():
                yield "verdict", f"{node} is not to blame: {why}"
        case rec.ExperimentEnded():
            yield "experiment", experiment(record)
        case rec.NodeRefused():
            yield "node check", f"{record.node} was not taken: {record.why}"
        case rec.Signalled():
            yield "signal", f"{record.signal}: {record.meaning}"
        case rec.ProgramSaid():
            yield f"program, rank {record.rank}", f"{record.what} {record.text}".strip()
        case rec.Requested():
            yield record.by, f"request {record.number}: {in_words(record)}"
        case rec.IterationSeen() if record.in_vain:
            yield "progress file", f"iteration {record.iteration}, {record.in_vain} in a row without progress"
        case rec.Drilled():
            yield "drill", f"{record.fault} on {record.target}: {record.how}"
        case _:
            pass


def _verdict(d: rec.Diagnosed) -> Iterator[tuple[str, str]]:
    if d.said:
        place = f" ({d.place})" if d.place else ""
        by_device = f"devices of {d.node}" if d.node and d.place else "verdict"
        where = f"output of rank {d.rank} on {d.node}" if d.rank >= 0 else by_device
        yield where, f"{d.said}{place}"
    everywhere = ", the same everywhere" if d.program else ""
    words = "; ".join(word for word in ((d.meaning, d.spread) if d.said else (d.what,)) if word)
    sure = f"{d.signature}; worth another try: {d.retriable}; confidence: {d.confidence}{everywhere}"
    yield "verdict", f"{d.error_class}: {words}; {sure}" if words else f"{d.error_class}: {sure}"
    if d.because:
        yield "verdict", f"by the rules: {', '.join(d.because)}"
    for line in d.evidence:
        if line not in d.what and line != d.said:
            yield "verdict", line
    for node, why in {**d.suspects, **d.blamed}.items():
        yield "verdict", f"suspect: {why if node in why else f'{node}: {why}'}" if why not in d.evidence else ""


def numbered(found: Sequence[Explanation], wanted: int) -> Explanation | None:
    """wanted: from 1; from -1 for the last backwards."""
    at = wanted - 1 if wanted > 0 else wanted
    return found[at] if -len(found) <= at < len(found) and wanted else None
