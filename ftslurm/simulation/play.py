"""The whole job: a trace is played against one policy, scheduling after scheduling, until the work is done, the job has failed
or the trace is over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import reduce

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.devices import FaultClass
from ftslurm.model.folds.history import History
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import replace
from ftslurm.policies.judge.judge import budgets
from ftslurm.policies.situation import ACTS
from ftslurm.simulation.clockwork import EPOCH, Agenda, TimeBook, TimePart, Training
from ftslurm.simulation.measured import Answered, PolicyOutcome, answered
from ftslurm.simulation.scheduling import Scheduling
from ftslurm.simulation.trace import FaultKind, Real, Trace, TraceFault
from ftslurm.simulation.world import SIGTERM, Cluster

# Regular looks of the judge (at idle nodes, at slow ranks) that find nothing come together, so often.
QUIET_S = 3600.0

Grade = Callable[[TraceFault, str], DeviceFault]


class Play:
    """One job under one policy."""

    def __init__(self, trace: Trace, settings: Settings, grade: Grade, book: PatternBook) -> None:
        self._trace, self._settings, self._grade, self._book = trace, settings, grade, book
        plan = trace.plan
        self._agenda, self._time = Agenda(), TimeBook()
        self._cluster = Cluster(plan.cluster + settings.nodes.spares, plan.slurmd_timeout_s, trace.names, trace.ftrun_apart)
        self._training = Training(plan, self._time)
        self._ledger: list[rec.Record] = []
        self._history = History()  # of these
        self._number = 0
        self._now: Scheduling | None = None
        self._answered: list[Answered] = []
        self._owed_to = ""  # kind of the last fault that met the job
        self._fault_at: dict[int, int] = {}  # place in `_answered` -> records of the ledger before it
        self._excluded: tuple[str, ...] = ()
        self._node_s = 0.0
        self._end: tuple[str, str] | None = None
        self._pending = False
        self._queued: deque[tuple[TraceFault, Real]] = deque()
        self._last = (0, -1)  # outage of the fault of a real job that came last, and the attempt
        self._planned: tuple[TraceFault, float] | None = None

    def run(self, name: str) -> PolicyOutcome:
        until = self._trace.until
        for fault in self._trace.faults:
            if fault.at < until:
                self._agenda.after(fault.at, lambda fault=fault: self._due(fault))  # type: ignore[misc]
        self._schedule()
        stop_at = self._trace.stop_at or until
        while self._end is None and self._agenda.now < stop_at:
            self._next(stop_at)
        return self._outcome(name, until)

    # --- time

    def _next(self, until: float) -> None:
        """Goes on to the next moment at which anything happens, and lets it happen."""
        here = self._now if self._now is not None and not self._now.over else None
        wakes_at = self._wakes_at(here)
        changes_at = self._training.next_change(self._agenda.now) if here is not None else float("inf")
        at = min(self._agenda.next_at, wakes_at, changes_at, until)
        self._pass(at)
        if at >= until:
            return
        if self._training.running and self._training.complete:
            assert here is not None
            here.complete()
        elif self._agenda.next_at <= at:
            self._agenda.take()()
        elif here is not None and wakes_at <= at:
            here.tell(ev.TimePassed())
        elif here is not None and self._training.running and at >= self._training.steps_at:
            here.told_progress()
        self._look_around()

    def _wakes_at(self, here: Scheduling | None) -> float:
        """While all is well the judge need not be woken for each of its regular looks: they would find nothing."""
        wakes = here.judge.wakes_at if here is not None else None
        if here is None or wakes is None:
            return float("inf")
        later = QUIET_S if here.is_well else 0.0
        return max(self._agenda.now, wakes - EPOCH + later)

    def _pass(self, at: float) -> None:
        seconds = max(0.0, at - self._agenda.now)
        here = self._now
        part = here.part if here is not None else TimePart.QUEUE
        if here is not None and not here.over:
            self._node_s += seconds * (len(here.free | set(self._cluster.lent)) + self._trace.alike)
        if part is TimePart.USEFUL:
            self._training.advance(seconds)
        elif seconds:
            self._time.add(part, seconds, self._owed_to)
        self._agenda.now = max(at, self._agenda.now)

    # --- schedulings

    def _schedule(self) -> None:
        """The job starts, for the first time or again, as soon as there are nodes enough."""
        settings, plan = self._settings, self._trace.plan
        before = self._now.nodes if self._now is not None else ()
        self._pending = True
        nodes = self._cluster.allocate(plan.nodes + settings.nodes.spares, self._excluded, before, self._agenda.now)
        if len(nodes) < plan.nodes + settings.nodes.spares:
            wait = self._cluster.next_repair(self._agenda.now) - self._agenda.now
            if wait != float("inf"):
                self._agenda.after(wait, self._schedule)
            return
        self._pending = False
        self._now = Scheduling(
            plan, settings, self._history, self._number, nodes, self._agenda, self._cluster, self._training, self._book
        )
        self._number += 1
        self._now.tell(ev.Begun())
        for node in nodes:
            if not self._cluster.machines[node].lives(self._agenda.now):
                self._now.dies(node)

    def _look_around(self) -> None:
        """After every event: the records so far, and whether this ftrun has ended."""
        if not self._pending:
            self._let_happen()
        here = self._now
        if here is None or self._pending:
            return
        self._keep(here)
        if not here.over or self._end is not None:
            return
        if here.requeue is None:
            finished = next((record for record in reversed(self._ledger) if isinstance(record, rec.Finished)), None)
            done = self._training.complete
            self._end = ("completed" if done else "failed", finished.what if finished is not None else "")
            return
        self._excluded = here.requeue.exclude
        self._pending = True
        self._agenda.after(
            max(self._trace.plan.requeue_s, 0.0 if self._trace.requeue_seen else here.requeue.start.in_s), self._schedule
        )

    def _keep(self, here: Scheduling) -> None:
        """What it has written since."""
        self._ledger += here.ledger
        self._history = reduce(History.add, here.ledger, self._history)
        here.ledger.clear()

    def _killed(self, wait_s: float) -> None:
        """Slurm ends the job with its ftrun, and lets it run again later."""
        here = self._now
        assert here is not None
        self._training.owe(self._owed_to)
        here.end()
        self._keep(here)
        self._pending = True
        self._agenda.after(wait_s, self._schedule)

    # --- faults

    def _due(self, fault: TraceFault) -> None:
        """Its time has come. One that was in no real job happens at once."""
        if fault.real is None:
            self._happens(fault)
        else:
            self._queued.append((fault, fault.real))
            self._let_happen()

    def _let_happen(self) -> None:
        """Of the faults of a real job whatever can."""
        while self._queued:
            here, (fault, real) = self._now, self._queued[0]
            if here is None or here.over or not here.ranks.running:
                return
            outage, attempt = self._last
            if real.outage != outage and here.attempt == attempt:
                return
            early_s = here.started_at + real.after_s - self._agenda.now
            if early_s > 1e-9:
                if self._planned != (fault, here.started_at):
                    self._planned = (fault, here.started_at)
                    self._agenda.after(early_s, self._let_happen)
                return
            self._queued.popleft()
            self._last = (real.outage, here.attempt)
            self._happens(fault)

    def _happens(self, fault: TraceFault) -> None:
        here = self._now if self._now is not None and not self._now.over else None
        node = self._node(fault, here)
        self._fault_at[len(self._answered)] = len(self._ledger) + (len(here.ledger) if here is not None else 0)
        met = here is not None and _MEETS[fault.kind](self, fault, node, here)
        if here is None and node and fault.kind in _MEETS_NOBODY:
            _MEETS_NOBODY[fault.kind](self, fault, node)
        if met:
            self._owed_to = fault.kind.value
            self._training.owe(fault.kind.value)
        self._answered.append(Answered(fault, self._agenda.now, fault.named or node, met))

    def _node(self, fault: TraceFault, here: Scheduling | None) -> str:
        if fault.node:
            return self._cluster.names[fault.node - 1] if fault.node <= len(self._cluster.names) else ""
        return here.node_of(fault.rank) if here is not None else ""

    def _break_device(self, fault: TraceFault, node: str) -> DeviceFault:
        shown = self._grade(fault, node)
        shown = replace(shown, device=f"{shown.device} {fault.named}".strip())
        heals = fault.heals if fault.heals is not None else shown.fault_class is FaultClass.SELF_HEALING
        until = self._agenda.now + (fault.for_s or self._trace.plan.repair_s)
        self._cluster.machines[node].faults[shown.device, shown.code] = shown, heals, until
        return shown

    def _device(self, fault: TraceFault, node: str, here: Scheduling) -> bool:
        shown = self._break_device(fault, node)
        used = here.uses(node)
        if used and shown.fault_class in ACTS:
            self._owed_to = fault.kind.value
            here.blocked_by(fault)
            self._crashes_unless_stopped(fault, node, here)
        here.devices_fail(node, fault.real.noticed_s if fault.real else -1.0)
        return used

    def _crashes_unless_stopped(self, fault: TraceFault, node: str, here: Scheduling) -> None:
        """No rung may answer the fault; then its ranks do."""
        started = dict(here.ranks.running)

        def crash() -> None:
            if not here.over and here.ranks.running == started and self._training.blocked:
                here.crashes(fault, next(task.rank for task in here.tasks if task.node == node))

        self._agenda.after(self._trace.plan.device_crash_s, crash)

    def _crash(self, fault: TraceFault, node: str, here: Scheduling) -> bool:
        rank = _met(fault, node, here)
        if rank is not None:
            here.crashes(fault, rank)
        return rank is not None

    def _hang(self, fault: TraceFault, node: str, here: Scheduling) -> bool:
        rank = _met(fault, node, here)
        if rank is None or self._training.blocked:
            return False
        here.hangs(fault, rank)
        started = dict(here.ranks.running)

        def person() -> None:
            if not here.over and here.ranks.running == started and self._training.blocked:
                self._killed(self._trace.plan.plain_requeue_s)

        self._agenda.after(self._trace.plan.person_s, person)
        return True

    def _kill_node(self, fault: TraceFault, node: str) -> None:
        self._cluster.kill(node, self._agenda.now, fault.for_s or self._trace.plan.repair_s)

    def _node_death(self, fault: TraceFault, node: str, here: Scheduling) -> bool:
        self._kill_node(fault, node)
        if node not in here.nodes and all(task.node != node for task in here.tasks):
            return False
        used = here.uses(node)
        batch_node = self._cluster.batch_node(here.nodes)
        if used or node == batch_node:
            self._owed_to = fault.kind.value
            here.blocked_by(fault)
        if node == batch_node:  # ftrun's own: nobody decides, and Slurm requeues the job once it has noticed
            self._killed(self._trace.plan.slurmd_timeout_s + self._trace.plan.plain_requeue_s)
            return True
        here.dies(node, fault.hangs_up)
        return used

    def _taken_away(self, fault: TraceFault, node: str, here: Scheduling) -> bool:
        if fault.node and node not in here.nodes:
            return False
        self._owed_to = fault.kind.value
        here.cause = fault

        def kill() -> None:
            if not here.over:
                self._owed_to = fault.kind.value
                self._killed(self._trace.plan.plain_requeue_s + fault.wait_s)

        if fault.warning_s and here.ranks.running:
            self._agenda.after(fault.warning_s, kill)
            here.tell(ev.SignalSeen(SIGTERM))
        else:
            kill()
        return True

    # --- what came of it

    def _outcome(self, name: str, until: float) -> PolicyOutcome:
        here, ended_at = self._now, self._agenda.now
        going = "pending" if self._pending else "hangs" if self._training.blocked else "trains"
        ended, why = self._end or (going, "")
        counted = ended == "failed" and self._trace.counts_end
        if counted:
            self._time.add(TimePart.ENDED, until - ended_at, self._owed_to)
        history = self._history
        limits = budgets(self._settings)
        decided = [record for record in self._ledger if isinstance(record, rec.Decided)]
        return PolicyOutcome(
            name, ended, why, ended_at, until if counted else ended_at,
            dict(self._time.parts), dict(self._time.lost_to),
            Counter(record.rung for record in decided),
            {key: (limit - history.budgets.used(key), limit) for key, limit in limits.items()},
            tuple(self._with_answers()), history.attempts, self._number - 1, tuple(sorted(history.exclusions.isolated)),
            self._node_s, self._trace.plan.nodes + self._trace.alike, (*self._ledger, *(here.ledger if here is not None else ())),
        )  # fmt: skip

    def _with_answers(self) -> list[Answered]:
        """To each fault that met the job the decisions until the next one that did."""
        met = [place for place, one in enumerate(self._answered) if one.hit]
        ends = [*(self._fault_at[place] for place in met), len(self._ledger)][1:]
        found = {}
        for place, end in zip(met, ends, strict=True):
            part = self._ledger[self._fault_at[place] : end]
            found[place] = [record for record in part if isinstance(record, rec.Decided)]
        return [answered(one.fault, one.at, one.node, one.hit, found.get(place, ())) for place, one in enumerate(self._answered)]


def _met(fault: TraceFault, node: str, here: Scheduling) -> int | None:
    """The rank on the node that it meets, None for none."""
    ranks = [task.rank for task in here.tasks if task.node == node and task.rank in here.ranks.running]
    return fault.rank if fault.rank in ranks else next(iter(ranks), None)


_MEETS: Mapping[FaultKind, Callable[[Play, TraceFault, str, Scheduling], bool]] = {
    FaultKind.DEVICE: Play._device,
    FaultKind.CRASH: Play._crash,
    FaultKind.HANG: Play._hang,
    FaultKind.NODE_DEATH: Play._node_death,
    FaultKind.PREEMPTION: Play._taken_away,
    FaultKind.REQUEUE: Play._taken_away,
}
# What breaks while no ftrun runs is broken when the next one does.
_MEETS_NOBODY: Mapping[FaultKind, Callable[[Play, TraceFault, str], object]] = {
    FaultKind.DEVICE: Play._break_device,
    FaultKind.NODE_DEATH: Play._kill_node,
}


def play(trace: Trace, settings: Settings, grade: Grade, book: PatternBook, name: str = "") -> PolicyOutcome:
    """grade: what a fault's code means on a node, by the catalogues in force. book: the log patterns, for exit statuses."""
    return Play(trace, settings, grade, book).run(name)
