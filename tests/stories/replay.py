"""The paper world of `ftslurm simulate` (ftslurm/simulation/world.py), as stories tell it.

Left alone, it is obedient: what a decision asks for happens at once. A story says what stays silent (`silent`),
what goes wrong (`heals`, `stuck`, `slurm`, `full`), or tells an event itself. After every answer the rules of `Truth`
are checked, in the stories as in the random runs.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import RankView
from ftslurm.model.devices import Fault, FaultClass, HealResult
from ftslurm.model.events import Event, Now
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.history import CleanUpTook, fold
from ftslurm.model.job import Call, Layout, Share, Task
from ftslurm.model.outcome import outcome_of
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import RankEnd, Verdict
from ftslurm.policies.judge.judge import Judge, Phase, RunFacts
from ftslurm.policies.judge.phases import EarlierRuns, Environments, OwnProcess, WhyNot
from ftslurm.report.card import LastCard, card_lines, last_card
from ftslurm.simulation.trace import JobPlan
from ftslurm.simulation.world import StepRanks, World, tasks_on
from tests.settings import settings_with

T = TypeVar("T")
# What answers the judge's questions on failures and hangs.
Diagnose = Callable[[tuple[RankEnd, ...], tuple[Fault, ...], Mapping[str, str]], Verdict]
Advise = Callable[[tuple[RankEnd, ...], Mapping[str, str]], Sequence[tuple[str, str, str, tuple[str, ...]]]]

HOUR_S = 3600.0
START = Now(mono=1000.0, unix=1_700_000_000.0)
SIGINT, SIGUSR1 = 2, 10

RUNNING = ev.SlurmAnswered("RUNNING", batch=True, requeueable=True, usable=frozenset(f"n{n}" for n in range(1, 10)), node_count=2)
SILENT = ev.SlurmAnswered(error="slurmctld does not answer")


def requeueing(**values: Any) -> Settings:
    """The default but that a crash is answered by a requeue at once: the stories of requeues begin with it."""
    return settings_with(**{"in_place_restart__crash_restarts": 0, **values})


def fault(
    node: str = "n2", code: str = "80E01801", device: str = "0.0",
    graded: FaultClass = FaultClass.SELF_HEALING, users: bool = False,
) -> Fault:  # fmt: skip
    return Fault(node, device, code, f"name of {code}", graded, users)


class Truth(StepRanks):
    """What is true of the world, from events and decisions alone, and the rules that no answer may break.

    unproven: (rank, attempt) that was started and of which nobody has proven that nothing is left; `renewed` says when
    its lease was renewed for the last time, where it is not any more. shims: ranks whose shim is connected. running: rank -> attempt of a command that has not ended. stops: rank -> attempt it is to stop.
    """

    def __init__(self, tasks: Sequence[Task], settings: Settings, spent: int = 0) -> None:
        super().__init__()
        self.placed(tasks)
        self.lease_s = settings.lease.time_s + settings.lease.margin_s
        self.now = 0.0  # monotonic
        self.dead: set[str] = set()  # nodes that a second proof says cannot run anything
        self.loans: set[int] = set()
        self.checked: set[str] = set()  # nodes that were well when they were looked at, and not refused since
        self.at_home: set[str] = set()  # nodes that ranks have run on
        self.checks: Counter[str] = Counter()
        self.borrows: Counter[int] = Counter()  # slot -> donors that are awaited
        self.releases: list[tuple[str, ...]] = []
        self.silent: dict[str, float] = {}  # node -> when its leases were renewed for the last time
        self.paused: set[int] = set()  # ranks whose lease was promised to last until they are heard of again
        self.let_go_at: float | None = None  # likewise, of every rank, by our own will
        self.closed: set[int] = set()  # ranks whose shim's connection has ended since the step came up
        self.ended = False  # has the launcher of the last step said so?
        self.probes: Counter[str] = Counter()
        self.came: set[int] = set()
        self.starts: dict[int, int] = {}  # rank -> its last one
        self.stops: dict[int, int] = {}
        self.unproven: set[tuple[int, int]] = set()
        self.agents: dict[str, bool] = {}
        self.looks: Counter[str] = Counter()
        self.healing: dict[str, tuple[str, ...]] = {}
        self.questions = 0
        self.puzzles: list[
            tuple[int, int | None]
        ] = []  # attempts, or ranks of one, of which it was asked what is behind their end
        self.requeueing = False
        self.attempts: set[int] = set()
        self.decided: set[str] = set()
        self.max_restarts, self.spent = settings.max_restarts, spent

    def may_run(self) -> set[tuple[int, int]]:
        """Started, not proven to have ended, and on a lease that may not have run out."""
        gone = self.closed if self.ended else set()
        until = {}
        for rank, attempt in self.unproven:
            renewed = min(at for at in (self.silent.get(self.node_of[rank]), self.let_go_at, self.now) if at is not None)
            until[rank, attempt] = math.inf if rank in self.paused else renewed + self.lease_s
        gone = gone | {rank for rank in self.closed if self.node_of.get(rank) in self.dead}
        return {(rank, attempt) for (rank, attempt), at in until.items() if rank not in gone and self.now < at}

    def placed(self, tasks: Sequence[Task]) -> None:
        """The ranks of the next step."""
        self.tasks = tasks
        self.node_of = {task.rank: task.node for task in tasks}

    def told(self, event: Event, now: float) -> None:
        """Something has happened."""
        self.now = now
        match event:
            case ev.TaskArrived(task):
                self.came.add(task.rank)
                self.shims.add(task.rank)
            case ev.RankExited(rank, attempt) | ev.RankUnstartable(rank, attempt):
                if self.running.get(rank) == attempt:
                    del self.running[rank]
            case ev.RankStopped(rank, attempt, left):
                if self.stops.get(rank) == attempt:
                    del self.stops[rank]
                    self.running.pop(rank, None)
                    if not left:
                        self.unproven = {(other, number) for other, number in self.unproven if other != rank}
            case ev.ShimLost(rank, _, hangup):
                self.shims.discard(rank)
                self.closed |= {rank} if hangup is ev.Hangup.CLOSED else set()
                self.running.pop(rank, None)
                self.stops.pop(rank, None)
            case ev.StepEnded():
                self.up, self.ended = False, True
                self.running, self.stops = {}, {}
            case ev.RankPaused(rank, paused):
                (self.paused.add if paused else self.paused.discard)(rank)
            case ev.NodeSilent(node, silent_s):
                self.silent[node] = now - silent_s
            case ev.NodeHeard(node):
                # Who answers after its lease has run out cannot have it back.
                self.unproven -= {each for each in self.unproven - self.may_run() if self.node_of[each[0]] == node}
                self.silent.pop(node, None)
            case ev.NodeProbed(node, alive):
                self.probes[node] -= 1
                if alive is False:
                    self.dead.add(node)
            case ev.NodeChecked(node, good):
                self.checks[node] -= 1
                self.checked = self.checked | {node} if good else self.checked - {node}
            case ev.NodeBorrowed(slot, job=number):
                self.borrows[slot] -= 1
                self.loans |= {number} if number else set()
            case ev.NodesReleased(nodes):
                self.releases.remove(nodes)
            case ev.ShimLeft(rank):
                self.shims.discard(rank)
            case ev.AgentArrived(node):
                self.agents[node] = True
            case ev.AgentLost(node):
                self.agents[node] = False
                self.healing.pop(node, None)
                del self.looks[node]
            case ev.DevicesSeen(node, asked=True):
                self.looks[node] -= 1
            case ev.HealingDone(node):
                self.healing.pop(node, None)
            case ev.SlurmAnswered():
                self.questions -= 1
            case ev.RequeueEnded():
                self.requeueing = False
            case ev.Diagnosed(attempt, rank=rank):
                self.puzzles.remove((attempt, rank))

    def asked(self, decision: do.Decision) -> None:
        """The judge has decided something, and it is carried out. Breaking a rule fails the test."""
        match decision:
            case do.Remember(rec.Decided() as decided, vital):
                assert vital, f"a decision may be carried out only if it is written: {decided}"
                self.decided.add(decided.id)
                self.spent += decided.cost == "max_restarts"
                assert self.spent <= self.max_restarts, f"{self.spent} requeues were spent of {self.max_restarts}"
            case do.Remember(rec.Finished(what=what, outcome=outcome) as finished):
                assert outcome_of(replace(finished, outcome="")).value == outcome, f"whoever ended it said no outcome: {what}"
            case do.Remember(rec.AttemptBegan(attempt=attempt) | rec.RankBegan(attempt=attempt)):
                assert attempt not in self.attempts, f"attempt {attempt} was handed out twice"
                self.attempts.add(attempt)
            case do.DismissAgents(nodes):
                self.agents = {node: up for node, up in self.agents.items() if node not in nodes}
            case do.EndLoans(jobs):
                self.loans -= set(jobs)
            case do.Finish():
                assert not self.loans, f"donor jobs are left behind: {self.loans}"
            case do.CheckNode(node):
                self.checks[node] += 1
            case do.BorrowNode(slot):
                self.borrows[slot] += 1
            case do.ReleaseNodes(nodes):
                self.releases.append(nodes)
            case do.LaunchStep():
                assert not self.up, "a step is launched beside one that has not ended"
                self._nothing_elsewhere()
                self.up, self.came, self.shims, self.closed, self.paused = True, set(), set(), set(), set()
                self.ended, self.let_go_at, self.unproven = False, None, set()
            case do.EndStep() | do.KillStep():
                self.let_go_at = self.now if self.let_go_at is None else self.let_go_at
            case do.ProbeNodes(nodes):
                self.probes.update(nodes)
            case do.StartRanks(attempt, env):
                self._start(attempt, env)
            case do.StopRanks(attempt, ranks=None):
                self.stops = dict.fromkeys(self.shims if self.up else (), attempt)
            case do.StopRanks(attempt, ranks=ranks):
                self.stops.update(dict.fromkeys(self.shims & set(ranks or ()), attempt))
            case do.WatchNodes(nodes):
                self.agents.update({node: False for node in nodes})
            case do.LookAtDevices(only):
                self.looks.update(node for node, up in self.agents.items() if up and only in ("", node))
            case do.AskSlurm():
                self.questions += 1
            case do.Diagnose(attempt, rank=rank):
                self.puzzles.append((attempt, rank))
            case do.HealDevices(devices):
                assert not self.may_run(), f"devices heal while processes may be left: {self.may_run()}"
                self.healing = {node: tuple(device for device, _ in chips) for node, chips in devices.items()}
            case do.Requeue(decision=decided_id):
                assert decided_id in self.decided, "a requeue that nobody has written down"
                self._nothing_elsewhere(self.paused)  # what Slurm has stopped Slurm ends, before the job runs again
                self.requeueing = True

    def _nothing_elsewhere(self, but: Iterable[int] = ()) -> None:
        """Nothing is started elsewhere before the lease of an unproven rank has run out."""
        others = [(rank, attempt) for rank, attempt in sorted(self.may_run()) if rank not in set(but)]
        assert not others, f"something is started while the lease of others may last: {others}"

    def _start(self, attempt: int, env: Any) -> None:
        assert attempt in self.attempts, f"attempt {attempt} was not written down before it was started"
        alone = set(env) != {task.rank for task in self.tasks}
        left = {(rank, number) for rank, number in self.unproven if rank in env or not alone}
        assert not left, f"ranks are started beside processes that may be left: {sorted(left)}"
        assert self.up, "ranks are started in a step that has ended"
        assert set(env) <= self.shims, f"ranks are started whose shim is gone: {sorted(set(env) - self.shims)}"
        nodes = {self.node_of[rank] for rank in env}
        strange = nodes - self.checked - self.at_home if self.at_home else set()
        assert not strange, f"ranks are started on nodes that nobody has looked at: {sorted(strange)}"
        self.at_home |= nodes
        for rank in env:
            self.stops.pop(rank, None)  # an order of before, said twice, is answered twice, and the answer is about what was then
        self.running.update(dict.fromkeys(env, attempt))
        self.starts.update(dict.fromkeys(env, attempt))
        self.unproven |= {(rank, attempt) for rank in env}

    def check(self, judge: Judge) -> None:
        """After every answer: it is over, or something is still to come."""
        if judge.finished or judge.wakes_at is not None:
            return
        awaited = {
            Phase.LAUNCHING: self.up,
            Phase.RUNNING: self.up and bool(self.running),
            Phase.REQUEUEING: self.requeueing,
            Phase.REPLACING: True,
        }
        assert awaited.get(judge.phase, False), f"{judge.phase.value}, and nothing is awaited any more"


class Job(World):
    """One ftrun. `tell` gives it an event and lets the obedient world answer until nothing more comes.

    past: the ledger so far. devices: node -> faults its chips show. heals: what becomes of healing (None: not known).
    slurm: its answer. silent: kinds of decisions that nobody answers. stuck: rank -> pids that outlive SIGKILL.
    full: the ledger cannot be written. shares: what a step has of each of its nodes.
    """

    def __init__(
        self, settings: Settings | None = None, *, past: Iterable[rec.Record] = (), schedule: int = 0,
        nodes: Sequence[str] = ("n1", "n2"), per_node: int = 2, can: Iterable[str] = ("ask", "requeue"),
        step_key: str = "train", user_env: Iterable[str] = (), now: Now = START, diagnose: Diagnose | None = None,
        remembered: Mapping[str, str] | None = None, width: int = 0, no_swap: str = "", granted: Sequence[str] = (),
        batch_node: str = "", submit_time: int = 0, clean_ups: Sequence[float] = (), shares: Iterable[Share] = (),
        beside: bool = False, advise: Advise | None = None, none: frozenset[str] = frozenset(),
        call: Call | None = None, tips: bool = False, no_requeue: str = "",
    ) -> None:  # fmt: skip
        self.diagnose, self.advise = diagnose, advise
        able = (
            {*map(Capability, can)} | ({Capability.DIAGNOSE} if diagnose else set()) | ({Capability.ADVISE} if advise else set())
        )
        self.settings = replace(settings or requeueing(), tips=tips)
        self._last_card, self._carded = LastCard(), 0  # of so many records
        self.per_node = per_node
        self.now = now
        past = list(past)
        history = fold(past)
        runs = sum(isinstance(record, rec.RunBegan) for record in past)
        self.facts = RunFacts(
            f"run{runs}", "7", "c", schedule, step_key, "train", tuple(nodes), can=frozenset(able),
            remembered=remembered or {}, width=width, number=7, why_not=WhyNot(swap=no_swap, requeue=no_requeue), granted=tuple(granted), batch_node=batch_node,
            submit_time=submit_time, clean_ups=tuple(map(CleanUpTook, clean_ups)), earlier=EarlierRuns(beside=beside),
            env=Environments(user=frozenset(user_env), none=none), process=OwnProcess(call=call or Call()),
        )  # fmt: skip
        self.truth = Truth(tasks_on(nodes, per_node), self.settings, history.budgets.spent.get("max_restarts", 0))
        plan = JobPlan(nodes=len(nodes), tasks_per_node=per_node)
        super().__init__(plan, tuple(nodes), Judge(self.settings, history, self.facts), self.truth)
        self.ledger = past
        self.devices: dict[str, tuple[Fault, ...]] = {}
        self.heals: bool | None = True
        self.shares = tuple(shares)
        self.views: tuple[RankView, ...] = ()  # what agents see of the ranks
        self.slurm = replace(RUNNING, node_count=len(self.nodes))
        self.silent: set[type] = set()
        self.full = False
        self.unfit: dict[str, bool | None] = {}  # node -> what a look at it finds, if not that it is well
        self.donors: list[str] = []  # nodes that are to be had
        self.reachable: bool | None = True  # by another way: any node that is asked about
        self.decisions: list[do.Decision] = []
        self.told: list[str] = []  # lines for people
        self._queue: deque[Event] = deque()

    # --- telling it

    def begin(self, watched: bool = True) -> Job:
        """Up to running ranks; watched: and until the agents are there."""
        self.tell(ev.Begun())
        if watched:
            self.wait(2.0)
        return self

    def tell(self, *events: Event) -> list[do.Decision]:
        """All decisions that follow from `events` and from what the world does about them."""
        before = len(self.decisions)
        self._queue.extend(events)
        while self._queue and not self.judge.finished:
            self._tell_one(self._queue.popleft())
        return self.decisions[before:]

    def _of_now(self, event: Event) -> Event:
        """What agents tell, unless the story says otherwise, is told of the ranks' last start."""
        if not isinstance(event, ev.AgentTold) or event.attempt:
            return event
        ranks = [rank for rank, node in self.truth.node_of.items() if getattr(event, "node", node) == node]
        ranks = [event.rank] if isinstance(event, (ev.BeatOverdue, ev.ProgramSaid, ev.StageSet)) else ranks
        return replace(event, attempt=max((self.truth.starts.get(rank, 0) for rank in ranks), default=0))

    def _tell_one(self, event: Event) -> None:
        event = self._of_now(event)
        self.truth.told(event, self.now.mono)
        answer = self.judge.handle(event, self.now)
        if self.full and any(isinstance(decision, do.Remember) and decision.vital for decision in answer):
            return self._tell_one(ev.LedgerFailed("no space left on device"))
        for decision in answer:
            self.decisions.append(decision)
            self.truth.asked(decision)
            if isinstance(decision, do.LaunchStep):
                self.place(decision.layout)
            if isinstance(decision, do.Say):
                self.told.append(decision.text)
            if isinstance(decision, do.ShowCard):
                card = self._last_card.after(self.ledger[self._carded :])
                self._carded = len(self.ledger)
                assert card is not None, "there is nothing to show"
                assert card == last_card(self.ledger), "the same, whether it has followed the ledger or reads it now"
                self.told += card_lines(card)
            if isinstance(decision, do.Remember):
                self.ledger.append(decision.record)
            elif type(decision) not in self.silent:
                self.carry_out(decision)
        if isinstance(event, ev.StepEnded) and not self.truth.up:
            self._queue.extend(self._shims_go())
        self.truth.check(self.judge)
        return None

    def _shims_go(self) -> list[Event]:
        """Where a step ends its shims' connections do, but for those that are cut off."""
        there = self.truth.shims - {rank for rank, node in self.truth.node_of.items() if node in self.truth.silent}
        return [ev.ShimLost(rank, "it hung up") for rank in sorted(there)]

    def wait(self, seconds: float) -> list[do.Decision]:
        """Time goes by, and the judge is woken whenever it asked to be."""
        before, until = len(self.decisions), self.now.mono + seconds
        while not self.judge.finished and self.judge.wakes_at is not None and self.judge.wakes_at <= until:
            self.jump(max(0.0, self.judge.wakes_at - self.now.mono))
            self.tell(ev.TimePassed())
        self.jump(until - self.now.mono)
        return self.decisions[before:]

    def jump(self, seconds: float) -> None:
        """Time goes by and nobody wakes the judge."""
        self.now = Now(self.now.mono + seconds, self.now.unix + seconds)

    def exits(self, rank: int, code: int = 0, signal: int = 0) -> list[do.Decision]:
        return self.tell(self.exit_of(rank, code, signal))

    def exit_of(self, rank: int, code: int = 0, signal: int = 0) -> ev.RankExited:
        number = self.truth.running.get(rank, max(self.truth.attempts, default=0))
        return ev.RankExited(rank, number, ExitStatus(code, signal), self.now.unix)

    def all_exit(self, code: int = 0, signal: int = 0) -> list[do.Decision]:
        return self.tell(*(self.exit_of(task.rank, code, signal) for task in self.tasks))

    def shows(self, *faults: Fault) -> list[do.Decision]:
        """From now on the chips of these nodes show these faults, and the agents' next look finds them."""
        for found in faults:
            self.devices[found.node] = (*self.devices.get(found.node, ()), found)
        nodes = dict.fromkeys(found.node for found in faults)
        return self.tell(*(ev.DevicesSeen(node, self.devices[node]) for node in nodes))

    def clears(self, node: str) -> list[do.Decision]:
        self.devices[node] = ()
        return self.tell(ev.DevicesSeen(node, ()))

    def again(
        self, settings: Settings | None = None, nodes: Sequence[str] | None = None, gap_s: float = 5.0, submit_time: int = 0
    ) -> Job:
        """The same script in the next scheduling of the job."""
        assert self.did(do.Requeue), "the job was not requeued"
        self.jump(gap_s)
        return Job(
            settings or self.settings, past=self.ledger, schedule=self.facts.schedule + 1, nodes=nodes or self.nodes,
            per_node=self.per_node, can=self.facts.can, step_key=self.facts.step_key, user_env=self.facts.env.user, now=self.now,
            diagnose=self.diagnose, remembered=self.facts.remembered, width=self.facts.width, submit_time=submit_time, none=self.facts.env.none,
            tips=self.settings.tips,
        )  # fmt: skip

    # --- asking what it did

    def did(self, kind: type[T]) -> list[T]:
        return of_kind(self.decisions, kind)

    def recorded(self, kind: type[T]) -> list[T]:
        """What this run has written down, of one kind."""
        return of_kind([remember.record for remember in self.did(do.Remember)], kind)

    @property
    def rungs(self) -> list[str]:
        return [decided.rung for decided in self.recorded(rec.Decided)]

    @property
    def said(self) -> str:
        """Lines and cards, as a pipe would get them."""
        return "\n".join(self.told)

    @property
    def status(self) -> int | None:
        """What ftrun ended with, None while it has not."""
        return self.judge.exit_status if self.judge.finished else None

    @property
    def excluded(self) -> tuple[str, ...]:
        """What the last requeue keeps the job off."""
        return self.did(do.Requeue)[-1].exclude

    def env(self, rank: int = 0) -> dict[str, str]:
        return dict(self.did(do.StartRanks)[-1].env[rank])

    @property
    def counters(self) -> tuple[int, int, int]:
        """(MA_SCHEDULE_CNT, MA_PROC_START_CNT, FTSLURM_ATTEMPT), the same in every rank."""
        names = ("MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "FTSLURM_ATTEMPT")
        everywhere = {tuple(int(env[name]) for name in names) for env in self.did(do.StartRanks)[-1].env.values()}
        assert len(everywhere) == 1, f"ranks disagree: {everywhere}"
        schedule, starts, attempt = everywhere.pop()
        return schedule, starts, attempt

    # --- what is true of the world

    def after(self, seconds: float, events: Callable[[], Iterable[Event]]) -> None:
        self._queue.extend(events())

    def lives(self, node: str) -> bool:
        return node not in self.truth.silent

    def heard(self) -> list[str]:
        return [node for node, up in self.truth.agents.items() if up]

    def probed(self, node: str) -> ev.NodeProbed:
        return ev.NodeProbed(node, self.reachable, "as told")

    def faults_on(self, node: str) -> tuple[Fault, ...]:
        return self.devices.get(node, ())

    def heal(self, node: str, device: str) -> HealResult:
        if self.heals:
            self.devices[node] = ()
        return HealResult(device, self.heals, "looked again")

    def checked(self, node: str) -> ev.NodeChecked:
        return ev.NodeChecked(node, self.unfit.get(node, True), "as told", self.there.get(node))

    def lend(self, exclude: Collection[str]) -> tuple[str, int]:
        free = [node for node in self.donors if node not in exclude]
        if not free:
            return "", 0
        self.donors.remove(free[0])
        return free[0], 900 + int(free[0].removeprefix("n"))

    def verdict(self, asked: do.Diagnose) -> Verdict | None:
        return self.diagnose(asked.ends, asked.faults, asked.bad) if self.diagnose is not None else None

    def views_of(self, node: str) -> tuple[RankView, ...]:
        return tuple(view for view in self.views if view.node == node)

    def place(self, layout: Layout | None) -> None:
        if layout is not None:
            super().place(layout)
            self.truth.placed(self.tasks)
        if self.shares:
            self.tasks = tuple(replace(task, share=self.shares[task.slot]) for task in self.tasks)

    def carry_out(self, decision: do.Decision) -> None:
        if isinstance(decision, do.Advise) and self.advise is not None:
            self._queue.append(ev.Advised(decision.attempt, tuple(self.advise(decision.ends, decision.evidence))))
        super().carry_out(decision)


def of_kind(values: Iterable[Any], kind: type[T]) -> list[T]:
    return [value for value in values if isinstance(value, kind)]
