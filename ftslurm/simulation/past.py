"""A real job as a trace: what failed, when and where, and what cured it, as its ledger tells; and its own outcome beside. Pure.

What the ledger does not know is no part of the trace: it is said in a note.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ftslurm.errors import UsageError
from ftslurm.model import record as rec
from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.devices import FaultClass
from ftslurm.model.exits import from_shell
from ftslurm.model.folds.history import History, fold
from ftslurm.model.folds.summary import JobSummary, summarise
from ftslurm.model.rungs import REQUEUES, SWAPS, Budget, Rung
from ftslurm.model.settings.tree import Settings, settings_told, with_values
from ftslurm.model.text import counted
from ftslurm.model.values import Value, replace
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable
from ftslurm.policies.ladder import Cause
from ftslurm.policies.situation import ACTS
from ftslurm.report.account.parts import Outage, Spent, Stretch, spent
from ftslurm.report.account.parts import Part as Spell
from ftslurm.simulation.clockwork import TimePart
from ftslurm.simulation.measured import Answered, Measured, PolicyOutcome, answered, measured_job
from ftslurm.simulation.trace import FaultKind, JobPlan, Real, Trace, TraceFault

TRUTH = "the job"
# Nobody waits for a simulated job that takes so much longer than the real one did.
LONGER, LONGER_S = 4.0, 7 * 86400.0
# To see what a policy makes of the last fault of a job that came to no end.
BEYOND_S = 3600.0


class Past(Value):
    """A job that was."""

    job: str
    trace: Trace
    truth: PolicyOutcome  # what happened, in the words of a simulation
    known: Mapping[str, int]  # fields of the plan that were measured, each with how many times
    notes: tuple[str, ...]  # what the ledger does not tell
    budgets: Mapping[str, int]  # of the job's own policy
    tells_steps: bool
    settings: Settings | None  # that policy; None where the ledger does not hold it, as those of older versions


class Replayed(Value):
    """A real job, and what each policy would have made of it. notes: what of it is not known, or taken for something."""

    past: Past
    trace: Trace
    outcomes: tuple[PolicyOutcome, ...]
    notes: tuple[str, ...]


def answered_pairs(truth: PolicyOutcome, simulated: PolicyOutcome) -> list[tuple[Answered, Answered]]:
    """Each fault as it was answered, and as it would have been; without those that a simulation did not come to."""
    return [(one, now) for one in truth.faults if (now := same_fault(simulated, one)) is not None]


def same_fault(outcome: PolicyOutcome, was: Answered) -> Answered | None:
    """What became of it there; None if that did not come to it."""
    return next((now for now in outcome.faults if now.fault.line == was.fault.line), None)


def past(records: Sequence[rec.Record], now: float, damaged: int = 0) -> Past:
    """now: Unix seconds, until which a job that is not over has run. Raises: UsageError for a ledger that cannot be played."""
    known = summarise(records)
    if known is None:
        raise UsageError("its ledger is empty: nothing has begun", hint="choose another job")
    if any(isinstance(record, rec.Decided) and record.rung == Rung.RANK_RESTART for record in records):
        raise UsageError("its ranks were started again one by one (mode async), which cannot be simulated", hint="choose another")
    time_spent = spent(records, records[-1].at if known.over else now, known.over)
    history, found = fold(records), measured_job(records, time_spent)
    run = history.last_run
    assert run is not None, "something has begun"
    walk = _Walk(records, time_spent, found)
    plan = _with_end(walk.plan, time_spent, known.state == "completed")
    trace = Trace(
        plan,
        tuple(walk.faults),
        f"job {known.job}",
        found.names,
        counts_end=False,
        requeue_seen="requeue_s" in found.known,
        ftrun_apart=found.ftrun_apart,
    )
    told = Counter(found.known) + Counter(walk.known)
    return Past(
        known.job, trace, _truth(records, history, run.budgets, time_spent, walk, known, plan), told,
        tuple(_notes(records, time_spent, walk, found, known.over, damaged)), run.budgets,
        time_spent.tells_steps, _settings(run),
    )  # fmt: skip


def _settings(run: rec.RunBegan) -> Settings | None:
    """Of that ftrun; None where it is not told, or told in a way that this version does not understand."""
    settings, unknown = settings_told(run.settings)
    if run.budgets.get(Budget.CRASH_RESTARTS) == 0:  # the default of older versions
        settings = with_values(settings, {"rungs.in-place-restart.crash_restarts": 0})
    return settings if run.settings and not unknown else None


def _with_end(plan: JobPlan, time_spent: Spent, completed: bool) -> JobPlan:
    """The work of a job that was completed is known; of another one, only that it was not done."""
    parts = time_spent.parts
    if not completed:
        return replace(plan, until_s=time_spent.whole_s + BEYOND_S)
    work_s = parts[Spell.TRAINING] + parts[Spell.NEW_OR_REDONE]
    return replace(plan, work_s=max(work_s, 1e-3), until_s=time_spent.whole_s * LONGER + LONGER_S)


class _Walk:
    """Goes through the outages of a job. of: fault -> outage, both by place."""

    def __init__(self, records: Sequence[rec.Record], time_spent: Spent, found: Measured) -> None:
        self.faults: list[TraceFault] = []
        self.of: list[int] = []
        self.skipped: Counter[str] = Counter()
        self.plan = found.plan
        self.known: Counter[str] = Counter()
        self.drills = sum(outage.drill for outage in time_spent.outages)
        self._began, self._names = time_spent.began, {name: place for place, name in enumerate(found.names, 1)}
        self._attempts = [record for record in records if isinstance(record, rec.AttemptBegan)]
        self._records = records
        gaps = [self._gap(outage) for outage in time_spent.outages if self._from_outside(outage) and outage.back]
        if gaps and min(gaps) < self.plan.plain_requeue_s:
            self.plan = replace(self.plan, plain_requeue_s=min(gaps))
            self.known["plain_requeue_s"] = len(gaps)
        for place, outage in enumerate(time_spent.outages):
            for fault in self._faults(place, outage):
                self.faults.append(replace(fault, line=len(self.faults) + 1))
                self.of.append(place)

    def _faults(self, place: int, outage: Outage) -> list[TraceFault]:
        """Of one outage; none, and why, if it cannot be played."""
        here = self._around(outage)
        begun = max((one.at for one in self._attempts if one.at <= outage.at), default=self._began)
        at = outage.began or outage.at
        real = Real(max(0.0, at - begun), place + 1)
        base = TraceFault(max(0.0, at - self._began), FaultKind.CRASH, real=real)
        cause = outage.decided[0].cause if outage.decided else outage.cause
        if self._from_outside(outage):
            wait_s = max(0.0, self._gap(outage) - self.plan.plain_requeue_s)
            return [replace(base, kind=FaultKind.REQUEUE, wait_s=wait_s)]
        if outage.unseen or not outage.decided:
            return self._skip("ended by somebody's will, or the ledger does not say how" if outage.by_others else
                              "the ledger does not say how it ended")  # fmt: skip
        if cause in (Cause.LAUNCH.value, Cause.UNSTARTABLE.value):
            return self._skip("the command did not come up")
        if cause == Cause.WARNING.value:
            return [self._preemption(base, outage, here)]
        if cause == Cause.REQUEST.value:
            asked = any(decided.rung in REQUEUES for decided in outage.decided)
            wait_s = max(0.0, self._gap(outage) - self.plan.plain_requeue_s)
            return [replace(base, kind=FaultKind.REQUEUE, wait_s=wait_s)] if asked else self._skip("its owner asked for it")
        devices = self._devices(base, real, outage, here)
        if devices:
            return devices
        if cause in (Cause.LOST.value, Cause.NODE.value):
            dead = dict.fromkeys(node for one in outage.decided for node in (*one.dead, *(one.isolate.keys() - one.words.keys())))
            if found := [self._on(base, node, kind=FaultKind.NODE_DEATH) for node in dead if node in self._names]:
                seen = next((one for one in here if isinstance(one, rec.TroubleSeen)), None)
                return [replace(one, hangs_up=bool(seen and seen.hung_up)) for one in found]
        return [self._hang(base, here) if cause == Cause.HANG.value else self._crash(base, real, outage)]

    def name_of(self, fault: TraceFault) -> str:
        """Of its node; empty where it follows a rank."""
        return next((name for name, place in self._names.items() if place == fault.node), "")

    def _skip(self, why: str) -> list[TraceFault]:
        self.skipped[why] += 1
        return []

    def _on(self, base: TraceFault, node: str, **values: Any) -> TraceFault:
        return replace(base, node=self._names.get(node, 0), **values)

    def _around(self, outage: Outage) -> list[rec.Record]:
        """The records from the attempt's begin to the next one's."""
        begun = max((one.at for one in self._attempts if one.at <= outage.at), default=0.0)
        return [record for record in self._records if begun <= record.at <= (outage.back or float("inf"))]

    @staticmethod
    def _from_outside(outage: Outage) -> bool:
        """Somebody requeued the job, or Slurm did after its ftrun was gone."""
        return outage.unseen and not outage.decided and outage.cause in ("outside", "lost") and bool(outage.back)

    @staticmethod
    def _gap(outage: Outage) -> float:
        return max(0.0, (outage.back or outage.at) - outage.at)

    def _devices(self, base: TraceFault, real: Real, outage: Outage, here: Sequence[rec.Record]) -> list[TraceFault]:
        """Each code once for each device, where it was known when the outage was decided on."""
        until = outage.decided[-1].at
        acting = {one.value for one in ACTS}
        seen = {
            (one.node, one.device, one.code): one for one in here
            if isinstance(one, rec.FaultSeen) and one.at <= until and one.fault_class in acting and one.node in self._names
        }  # fmt: skip
        rungs = [decided.rung for decided in outage.decided]
        healed = outage.back > 0 and rungs[-1] == Rung.IN_PLACE_RESTART
        heals = True if healed else False if Rung.IN_PLACE_RESTART.value in rungs else None
        found = []
        for one in seen.values():
            graded = DeviceFault(one.node, one.device, one.code, one.name, FaultClass(one.fault_class), one.user_induced)
            fault = self._on(base, one.node, kind=FaultKind.DEVICE, code=one.code, device=one.device, heals=heals)
            noticed_s = max(0.0, outage.at - outage.began) if outage.began else 0.0
            found.append(replace(fault, real=replace(real, graded=graded, noticed_s=noticed_s)))
        return found

    def _hang(self, base: TraceFault, here: Sequence[rec.Record]) -> TraceFault:
        seen = [record for record in here if isinstance(record, rec.HangSeen | rec.CulpritSeen)]
        blamed = [node for one in seen for node in one.blamed if node in self._names]
        nodes = [*blamed, *(node for one in seen for node in one.nodes if node in self._names)]
        ranks = [rank for one in seen for rank in one.ranks]
        fault = replace(base, kind=FaultKind.HANG, network=bool(blamed), rank=self._rank(ranks[0] if ranks else 0))
        return self._on(fault, nodes[0]) if nodes else fault

    def _rank(self, rank: int) -> int:
        return rank if 0 <= rank < self.plan.nodes * self.plan.tasks_per_node else 0

    def _crash(self, base: TraceFault, real: Real, outage: Outage) -> TraceFault:
        """Where nothing speaks against a node, it follows the rank."""
        ended = from_shell(outage.decided[0].status & 0xFF or 1)
        base = replace(base, status=ended.code, signal=ended.signal)
        verdict = outage.verdict
        if verdict is None:
            return base
        rank = verdict.rank if verdict.rank >= 0 else next(iter(verdict.ranks), 0)
        fault = replace(
            base, rank=self._rank(rank), signature=verdict.signature[:128], program=verdict.program,
            error_class=_member(ErrorClass, verdict.error_class, ErrorClass.UNKNOWN),
            retriable=_member(Retriable, verdict.retriable, Retriable.UNKNOWN),
            confidence=_member(Confidence, verdict.confidence, Confidence.WEAK),
        )  # fmt: skip
        if blamed := [node for node in verdict.blamed if node in self._names]:
            return self._on(fault, blamed[0], blames=True)
        if suspects := [node for node in verdict.suspects if node in self._names]:
            return self._on(fault, suspects[0], real=replace(real, suspect=True))
        return fault

    def _preemption(self, base: TraceFault, outage: Outage, here: Sequence[rec.Record]) -> TraceFault:
        ended = next((one.at for one in here if isinstance(one, rec.AttemptEnded) and one.at >= outage.at), outage.at)
        wait_s = max(0.0, self._gap(outage) - (ended - outage.at) - self.plan.requeue_s)
        return replace(base, kind=FaultKind.PREEMPTION, warning_s=max(1.0, ended - outage.at), wait_s=wait_s)


def _member(kind: Any, value: str, otherwise: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        return otherwise


# --- what happened

_SAME = {
    Spell.TRAINING: TimePart.USEFUL, Spell.REDONE: TimePart.REDONE, Spell.NOTICING: TimePart.NOTICING,
    Spell.STOPPING: TimePart.SETTLING, Spell.DECIDING: TimePart.SETTLING, Spell.STARTING: TimePart.STARTING,
    Spell.NEW_OR_REDONE: TimePart.UNSURE, Spell.UNKNOWN: TimePart.UNSURE,
}  # fmt: skip


def _part(stretch: Stretch, outages: Sequence[Outage]) -> TimePart:
    if stretch.part is not Spell.WAITING:
        return _SAME[stretch.part]
    rung = outages[stretch.outage].rung if stretch.outage >= 0 else ""
    if rung == Rung.IN_PLACE_RESTART:
        return TimePart.HEALING
    return TimePart.REPLACING if rung in SWAPS or rung == Rung.HANG_RESTART else TimePart.QUEUE


def _truth(
    records: Sequence[rec.Record], history: History, budgets: Mapping[str, int], time_spent: Spent, walk: _Walk,
    known: JobSummary, plan: JobPlan,
) -> PolicyOutcome:  # fmt: skip
    parts = dict.fromkeys(TimePart, 0.0)
    lost_to: defaultdict[str, float] = defaultdict(float)
    kinds = {place: fault.kind.value for fault, place in zip(walk.faults, walk.of, strict=True)}
    node_s = 0.0
    for stretch in time_spent.stretches:
        if stretch.part is Spell.OUTSIDE:
            continue
        part = _part(stretch, time_spent.outages)
        parts[part] += stretch.seconds
        node_s += stretch.seconds * (stretch.nodes or plan.nodes) if part is not TimePart.QUEUE else 0.0
        if part not in (TimePart.USEFUL, TimePart.UNSURE):
            lost_to[kinds.get(stretch.outage, "not played" if stretch.outage >= 0 else "")] += stretch.seconds
    at = sum(parts.values())
    faults: list[Answered] = []
    for fault, place in zip(walk.faults, walk.of, strict=True):
        node = walk.name_of(fault)
        faults.append(answered(fault, fault.at, node, True, time_spent.outages[place].decided))
    decided = Counter(record.rung for record in records if isinstance(record, rec.Decided))
    schedules = {record.schedule for record in records if isinstance(record, rec.RunBegan)}
    left = {name: (limit - history.budgets.used(name), limit) for name, limit in budgets.items()}
    return PolicyOutcome(
        TRUTH, known.state, known.what, at, at, parts, dict(lost_to), decided, left, tuple(faults), history.attempts,
        len(schedules) - 1, tuple(sorted(history.exclusions.isolated)), node_s, plan.nodes,
    )  # fmt: skip


# --- what it does not know


def _notes(
    records: Sequence[rec.Record], time_spent: Spent, walk: _Walk, found: Measured, over: bool, damaged: int
) -> list[str]:  # fmt: skip
    notes = []
    if len(found.names) < walk.plan.cluster:
        notes.append(
            f"How many nodes were free is not known: taken are {walk.plan.other_nodes}, those that the job used later and one "
            "for each that failed (--job other_nodes=N)."
        )
    if time_spent.parts[Spell.NEW_OR_REDONE]:
        notes.append("The program reported no steps: how much of its work was done again is not known.")
    if time_spent.parts[Spell.UNKNOWN]:
        notes.append("For some time nobody wrote down whether the ranks ran.")
    if any(isinstance(record, rec.HangSeen) and record.sign == "beat" for record in records):
        notes.append("A hang was noticed by missing heartbeats; the simulation notices it by other signs.")
    for why, times in walk.skipped.items():
        notes.append(f"Not played: {counted(times, 'outage')} ({why}).")
    if walk.drills:
        notes.append(f"Of the faults, {walk.drills} {'was a drill' if walk.drills == 1 else 'were drills'}.")
    if len({record.step_key for record in records if isinstance(record, rec.RunBegan)}) > 1:
        notes.append("Its script ran several commands; they are played as one.")
    if not over:
        notes.append("The job is not over.")
    if damaged or time_spent.misfits:
        notes.append(f"Its ledger has {counted(damaged, 'damaged line')} and {counted(time_spent.misfits, 'time')} out of order.")
    return notes
