"""One ftrun of the simulated job: the paper world with a plan of how long things take, a cluster, a training, and faults.

What a rank, an agent or Slurm would say of a fault is told to the judge as the event that it is in a real job; the judge does not
know that it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import GroupView, ProcessState, RankView, Socket
from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.devices import HealResult
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.history import History
from ftslurm.model.job import Layout, Task
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import replace
from ftslurm.model.verdict import Blame, Lead, RankEnd, Suspect, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.judge.judge import Judge, Phase, RunFacts
from ftslurm.simulation.clockwork import EPOCH, Agenda, TimePart, Training
from ftslurm.simulation.trace import JobPlan, TraceFault
from ftslurm.simulation.world import SIGTERM, Cluster, Events, StepRanks, World

CAN = frozenset(
    {
        Capability.ASK, Capability.REQUEUE, Capability.PROBE, Capability.REPLACE, Capability.RELEASE, Capability.STEPS,
        Capability.DIAGNOSE,
    }
)  # fmt: skip
_PARTS = {
    Phase.NEW: TimePart.STARTING, Phase.LAUNCHING: TimePart.STARTING, Phase.SETTLING: TimePart.SETTLING,
    Phase.HEALING: TimePart.HEALING, Phase.REPLACING: TimePart.REPLACING, Phase.ENDING: TimePart.REPLACING,
    Phase.REQUEUEING: TimePart.QUEUE, Phase.FINISHED: TimePart.QUEUE,
}  # fmt: skip


class Scheduling(World):
    """requeue: what the judge gave the job back with, None while it has not."""

    ranks: _Ranks

    def __init__(
        self, plan: JobPlan, settings: Settings, history: History, number: int, nodes: tuple[str, ...],
        agenda: Agenda, cluster: Cluster, training: Training, book: PatternBook,
    ) -> None:  # fmt: skip
        self.settings, self.agenda, self.cluster, self.training, self._book = settings, agenda, cluster, training, book
        facts = RunFacts(
            f"run{number}", "1", "simulated", number, "train", "train", nodes, can=CAN, number=1, width=plan.nodes,
            batch_node=cluster.batch_node(nodes), start_time=int(EPOCH + agenda.now),
        )  # fmt: skip
        super().__init__(plan, nodes, Judge(settings, history, facts), _Ranks())
        self.tasks = ()  # before the first step
        self.ledger: list[rec.Record] = []
        self.agents: set[str] = set()
        self.requeue: do.Requeue | None = None
        self.cause: TraceFault | None = None  # of the trouble that is being answered
        self.over = False
        self.started_at = 0.0  # the ranks, for the last time
        self.free: set[str] = set(nodes)  # of the allocation, less what was given back

    @property
    def part(self) -> TimePart:
        """What this moment of the job is."""
        if self.over or self.judge.phase is not Phase.RUNNING:
            return _PARTS[self.judge.phase] if not self.over else TimePart.QUEUE
        if self.training.blocked or not self.training.running:
            return TimePart.NOTICING
        return TimePart.USEFUL if self.training.trains(self.agenda.now) else TimePart.STARTING

    # --- telling the judge

    def tell(self, *events: ev.Event) -> None:
        """What follows at once or later, from each."""
        for event in events:
            if self.over or self.judge.finished:
                return
            for decision in self.judge.handle(event, self.agenda.stamp()):
                if isinstance(decision, do.Remember):
                    self.ledger.append(decision.record)
                else:
                    self.carry_out(decision)
        if self.judge.finished:
            self.end()

    def end(self) -> None:
        """ftrun has ended, or was killed."""
        if self.training.running:
            self.training.stop()
        self.cluster.end_loans(list(self.cluster.lent.values()))
        self.over = True

    def after(self, seconds: float, events: Callable[[], Events]) -> None:
        def happen() -> None:
            if not self.over:
                self.tell(*events())

        self.agenda.after(seconds, happen)

    @property
    def is_well(self) -> bool:
        """Does it train, with nothing wrong anywhere that could be noticed?"""
        trains = self.judge.phase is Phase.RUNNING and self.training.trains(self.agenda.now)
        return trains and not self.cluster.dead(self.agenda.now) & (self.free | {*self.cluster.lent})

    @property
    def attempt(self) -> int:  # type: ignore[override]
        return max(self.ranks.running.values(), default=0)

    # --- the obedient world: what is true of it

    def carry_out(self, decision: do.Decision) -> None:
        match decision:
            case do.DismissAgents(nodes):
                self.agents -= set(nodes)
            case do.StartRanks(attempt, env):
                self._start(attempt, env)
            case do.StopRanks() | do.EndStep() | do.KillStep() | do.AbandonStep():
                self._halt()
            case do.ReleaseNodes(nodes):
                self.free -= set(nodes)
            case do.EndLoans(jobs):
                self.cluster.end_loans(jobs)
            case do.SignalRanks(number) if number == SIGTERM and self.training.running:
                self.after(self.plan.stop_s, self._end_on_signal)
            case do.ListSteps():
                self.after(self.plan.slurm_s, lambda: [ev.StepsListed(frozenset())])
            case do.Requeue():
                self.requeue = decision
        super().carry_out(decision)

    def lives(self, node: str) -> bool:
        return self.cluster.machines[node].lives(self.agenda.now)

    def heard(self) -> list[str]:
        return [node for node in sorted(self.agents) if self.lives(node)]

    def faults_on(self, node: str) -> tuple[DeviceFault, ...]:
        return self.cluster.machines[node].shows(self.agenda.now)

    def heal(self, node: str, device: str) -> HealResult:
        return self.cluster.machines[node].heal(device, self.agenda.now)

    def heal_s(self, node: str, asked: do.HealDevices) -> float:
        devices = {device for device, _ in asked.devices[node]}
        faults = self.cluster.machines[node].faults.values()
        if all(heals for fault, heals, _ in faults if fault.device in devices):
            return self.plan.heal_s
        return asked.wait_s + (asked.reset_wait_s if asked.may_reset else 0.0)

    def checked(self, node: str) -> ev.NodeChecked:
        fit = self.cluster.machines[node].fit(self.agenda.now)
        return ev.NodeChecked(node, fit, "well" if fit else "dead, or a device shows a fault")

    def lend(self, exclude: Collection[str]) -> tuple[str, int]:
        return self.cluster.lend(self.nodes, exclude, self.agenda.now)

    @property
    def slurm(self) -> ev.SlurmAnswered:  # type: ignore[override]
        now = self.agenda.now
        used = {task.node for task in self.tasks} | self.free
        down = tuple((node, "DOWN*") for node in sorted(used) if self.cluster.known_down(node, now))
        return ev.SlurmAnswered(
            "RUNNING", batch=True, requeueable=True, bad_nodes=down, usable=self.cluster.usable(now),
            node_count=len(self.nodes), slurmd_timeout_s=self.plan.slurmd_timeout_s, idle=self.cluster.idle(self.nodes, now),
        )  # fmt: skip

    @property
    def is_cut(self) -> bool:
        return self.ranks.cut or any(not self.lives(self.tasks[rank].node) for rank in self.ranks.shims)

    def exit_of(self, rank: int, code: int = 0, signal: int = 0) -> ev.RankExited:
        return ev.RankExited(rank, self.ranks.running.pop(rank), ExitStatus(code, signal), self.agenda.stamp().unix)

    def views_of(self, node: str) -> tuple[RankView, ...]:
        return self.ranks.views(self.tasks).get(node, ()) if self.training.blocked else ()

    @property
    def iteration(self) -> int:  # type: ignore[override]
        return int(self.training.saved_s / self.plan.step_s)

    def verdict(self, asked: do.Diagnose) -> Verdict:
        """Of a crash, as the trace says; of anything else, as the classification does, which sees no words here."""
        fault = self.cause
        first = next((end for end in asked.ends if end.status is not None and not end.status.ok and not end.stopped), None)
        if fault is None or fault.kind.value != "crash" or first is None or asked.faults:
            return diagnose(asked.ends, Facts(asked.faults, asked.bad), self._book)
        return _as_told(fault, first)

    # --- and what decisions do to it

    def place(self, layout: Layout | None) -> None:
        super().place(layout)
        self.ranks = _Ranks(up=True, shims={task.rank for task in self.tasks})

    def agents_come(self, nodes: Sequence[str]) -> Events:
        here = [node for node in nodes if self.lives(node)]
        self.agents |= set(here)
        return [*super().agents_come(here), *(self.look(node) for node in here if self.faults_on(node))]

    def _start(self, attempt: int, ranks: Iterable[int]) -> None:
        self.ranks.running.update(dict.fromkeys(ranks, attempt))
        self.cause = None
        self.started_at = self.agenda.now
        self.training.start(self.agenda.now, len({task.node for task in self.tasks}) / self.plan.nodes)

    def _halt(self) -> None:
        """No more progress, and what was not saved is lost."""
        if self.training.running:
            self.told_progress()
            if self.cause:
                self.training.owe(self.cause.kind.value)
            self.training.stop()

    # --- the program

    def complete(self) -> None:
        """The work is done: every rank exits well."""
        self.told_progress()
        self.training.stop(saved=True)
        self.tell(*[self.exit_of(rank) for rank in sorted(self.ranks.running)])

    def told_progress(self) -> None:
        """What the program tells of its steps."""
        if self.training.trains(self.agenda.now) and self.ranks.running and self.training.step:
            self.tell(ev.Progressed(self.tasks[0].node, self.training.step, self.attempt))

    def _end_on_signal(self) -> Events:
        if self.training.running:
            self.told_progress()
            self.training.stop(saved=self.plan.saves_on_signal and not self.training.blocked)
        return [self.exit_of(rank, signal=SIGTERM) for rank in sorted(self.ranks.running)]

    # --- what goes wrong

    def node_of(self, rank: int) -> str:
        return self.tasks[rank % len(self.tasks)].node if self.tasks else ""

    def uses(self, node: str) -> bool:
        return bool(self.ranks.running) and any(task.node == node for task in self.tasks)

    def blocked_by(self, fault: TraceFault) -> None:
        self.cause = fault
        if self.training.running:
            self.told_progress()  # what its ranks have told until now
            self.training.block(fault.kind.value)

    def crashes(self, fault: TraceFault, rank: int) -> None:
        self.blocked_by(fault)
        self.tell(self.exit_of(rank, fault.status if not fault.signal else 0, fault.signal))

    def devices_fail(self, node: str, noticed_s: float) -> None:
        """An agent's next look finds it, on average after half the time between two looks, where it is not known (-1)."""
        self.after(
            noticed_s if noticed_s >= 0 else self.plan.device_look_s / 2,
            lambda: [self.look(node)] if node in self.agents and self.lives(node) else [],
        )

    def hangs(self, fault: TraceFault, rank: int) -> None:
        """The signs of it, each where the settings look for it; a person, where they lead to nothing."""
        self.blocked_by(fault)
        started = dict(self.ranks.running)
        attempt, st = self.attempt, self.settings

        def still() -> bool:
            return self.ranks.running == started and self.training.blocked

        nodes = tuple(dict.fromkeys(task.node for task in self.tasks))
        if st.hang.c4d and st.hang.watch != "L0" and self.plan.probe:
            each, limit = self.plan.tasks_per_node, st.hang.c4d_timeout_s
            told = [ev.StallSeen(n, each, limit, usual_s=self.plan.step_s, attempt=attempt) for n in nodes]
            self.after(limit, lambda: told if still() else [])
        if st.hang.detection:
            quiet = [ev.QuietSeen(n, st.hang.detect_time_s, f"no IO for {st.hang.detect_time_s:g} s", attempt) for n in nodes]
            self.after(st.hang.detect_time_s, lambda: quiet if still() else [])
        if st.hang.log_silence:
            self.after(st.hang.interval_s, lambda: [ev.RankSilent(r, st.hang.interval_s) for r in started] if still() else [])
        self.ranks.hang_at(rank, fault.network)

    def dies(self, node: str, hangs_up: bool = False) -> None:
        """Its shims and its agent fall silent, or hang up. ftrun dies with its own node; that is for its caller."""
        self.agents.discard(node)
        st = self.settings
        mine = [task.rank for task in self.tasks if task.node == node]
        self.ranks.cut_off(node, mine)

        def silent() -> Events:
            return [ev.AgentLost(node, "no message"), ev.NodeSilent(node, st.nodes.silence_s)] if not self.lives(node) else []

        def gone() -> Events:
            return [ev.AgentLost(node, "it hung up"), *(ev.ShimLost(rank, "it hung up") for rank in mine)]

        if mine and self.ranks.up:
            self.after(0.0 if hangs_up else st.nodes.silence_s, gone if hangs_up else silent)


class _Ranks(StepRanks):
    """cut: does a node that died hold some of them?"""

    def __init__(self, up: bool = False, shims: Iterable[int] = ()) -> None:
        super().__init__(up, shims)
        self.cut = False
        self._hang = (0, False)  # who, and is it stuck in the network?
        self._views: dict[str, tuple[RankView, ...]] = {}  # of that hang, once it has been looked at

    def hang_at(self, culprit: int, network: bool) -> None:
        self._hang, self._views = (culprit, network), {}

    def views(self, tasks: Sequence[Task]) -> dict[str, tuple[RankView, ...]]:
        """By node; every look at a hang finds the same."""
        self._views = self._views or _views(tasks, *self._hang)
        return self._views

    def cut_off(self, node: str, ranks: Iterable[int]) -> None:
        self.cut = True
        for rank in ranks:
            self.running.pop(rank, None)


def _views(tasks: Sequence[Task], culprit: int, network: bool) -> dict[str, tuple[RankView, ...]]:
    """All wait inside a collective: for one rank that has not come to it, or for one whose connections are stuck."""
    everybody = range(len(tasks))
    group = GroupView("0#1", everybody, 11, 10, None, "nccl:all_reduce")
    found: dict[str, list[RankView]] = {}
    for task in tasks:
        view = RankView(task.rank, task.node, ProcessState.SLEEPING, groups=(group,), cpu_percent=0.1, probed=True)
        if task.rank == culprit and not network:
            view = replace(view, wchan="hrtimer_nanosleep", groups=(replace(group, entered=10),))
        elif network:
            bad, other = f"10.0.0.{culprit}:9", f"10.0.0.{task.rank}:1"
            mine = (bad, "10.0.1.1:1") if task.rank == culprit else (other, bad)
            view = replace(view, sockets=(Socket(*mine, "retransmit", 4096),))
        found.setdefault(task.node, []).append(view)
    return {node: tuple(views) for node, views in found.items()}


def _as_told(fault: TraceFault, end: RankEnd) -> Verdict:
    signature = fault.signature or (f"signal {fault.signal}" if fault.signal else f"exit {fault.status}")
    says = Blame.YES if fault.blames else Blame.SUSPECT
    suspects = (
        (Suspect(end.node, end.rank, says, "the trace says so"),) if fault.blames or (fault.real and fault.real.suspect) else ()
    )
    shown = {} if fault.program else {end.rank: end.node}
    return Verdict(
        fault.error_class, fault.retriable, fault.confidence, signature, f"{signature} on rank {end.rank}", suspects,
        (f"rank {end.rank}: {signature}",), fault.program, shown=shown, lead=Lead(end.rank, end.node, signature),
    )  # fmt: skip
