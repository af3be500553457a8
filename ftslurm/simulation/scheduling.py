"""One ftrun of the simulated job: the project's own judge, and around it shims, agents, a launcher and Slurm that are only data.

What a decision asks for happens after the time that the plan gives it. What a rank, an agent or Slurm would say of a fault is
told to the judge as the event that it is in a real job; the judge does not know that it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import GroupView, ProcessState, RankView, Socket
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.history import History
from ftslurm.model.job import Layout, Task
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Blame, Lead, RankEnd, Suspect, Verdict
from ftslurm.policies.diagnose import Book, Facts, diagnose
from ftslurm.policies.judge.judge import Judge, Phase, RunFacts
from ftslurm.policies.ladder.situation import ACTS
from ftslurm.policies.weigh.spread import on_the_whole
from ftslurm.simulation.clockwork import EPOCH, Agenda, Part, Training
from ftslurm.simulation.cluster import Cluster
from ftslurm.simulation.trace import Fault, JobPlan

SIGKILL, SIGTERM = 9, 15
CAN = frozenset(
    {
        Capability.ASK, Capability.REQUEUE, Capability.PROBE, Capability.REPLACE, Capability.RELEASE, Capability.STEPS,
        Capability.DIAGNOSE,
    }
)  # fmt: skip
OWN_STEP = 7
_PARTS = {
    Phase.NEW: Part.STARTING, Phase.LAUNCHING: Part.STARTING, Phase.SETTLING: Part.SETTLING, Phase.HEALING: Part.HEALING,
    Phase.REPLACING: Part.REPLACING, Phase.ENDING: Part.REPLACING, Phase.REQUEUEING: Part.QUEUE, Phase.FINISHED: Part.QUEUE,
}  # fmt: skip

Events = Iterable[ev.Event]


class _Ftrun:
    """An ftrun in an obedient world. nodes: of the allocation. requeue: what the judge gave the job back with, None while it has
    not."""

    def __init__(
        self, plan: JobPlan, settings: Settings, history: History, number: int, nodes: tuple[str, ...],
        agenda: Agenda, cluster: Cluster, training: Training, book: Book,
    ) -> None:  # fmt: skip
        self.plan, self.nodes, self.settings = plan, nodes, settings
        self.agenda, self.cluster, self.training, self._book = agenda, cluster, training, book
        facts = RunFacts(
            f"run{number}", "1", "simulated", number, "train", "train", nodes, can=CAN, number=1, width=plan.nodes,
            batch_node=cluster.batch_node(nodes), start_time=int(EPOCH + agenda.now),
        )  # fmt: skip
        self.judge = Judge(settings, history, facts)
        self.ledger: list[rec.Record] = []
        self.tasks: tuple[Task, ...] = ()
        self.ranks = _Ranks()
        self.agents: set[str] = set()
        self.requeue: do.Requeue | None = None
        self.cause: Fault | None = None  # of the trouble that is being answered
        self.over = False
        self.started_at = 0.0  # the ranks, for the last time
        self.free: set[str] = set(nodes)  # of the allocation, less what was given back

    @property
    def part(self) -> Part:
        """What this moment of the job is."""
        if self.over or self.judge.phase is not Phase.RUNNING:
            return _PARTS[self.judge.phase] if not self.over else Part.QUEUE
        if self.training.blocked or not self.training.running:
            return Part.NOTICING
        return Part.USEFUL if self.training.trains(self.agenda.now) else Part.STARTING

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
                    self._carry_out(decision)
        if self.judge.finished:
            self.end()

    def end(self) -> None:
        """ftrun has ended, or was killed."""
        if self.training.running:
            self.training.stop()
        self.cluster.end_loans([job for job in self.cluster.lent.values()])
        self.over = True

    def wake(self) -> None:
        self.tell(ev.TimePassed())

    def begin(self) -> None:
        self.tell(ev.Begun())

    def _after(self, seconds: float, events: Callable[[], Events]) -> None:
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
    def attempt(self) -> int:
        return max(self.ranks.running.values(), default=0)

    def lives(self, node: str) -> bool:
        return self.cluster.machines[node].lives(self.agenda.now)

    # --- the obedient world

    def _carry_out(self, decision: do.Decision) -> None:
        plan = self.plan
        match decision:
            case do.LaunchStep(layout):
                self._launch(layout)
            case do.WatchNodes(nodes):
                self._after(plan.launch_s, lambda: self._agents_come(nodes))
            case do.DismissAgents(nodes):
                self.agents -= set(nodes)
            case do.StartRanks(attempt, env):
                self.ranks.start(attempt, env)
                share = len({task.node for task in self.tasks}) / plan.nodes
                self.cause = None
                self.started_at = self.agenda.now
                self.training.start(self.agenda.now, share)
                self._after(0.0, lambda: [ev.RankStarted(rank, attempt, 100 + rank) for rank in env])
            case do.StopRanks(attempt, ranks=ranks):
                self._halt()
                self._after(plan.stop_s, lambda: self._stopped(attempt, ranks))
            case do.SignalRanks(number) if number == SIGTERM and self.training.running:
                self._after(plan.stop_s, self._end_on_signal)
            case do.LookAtDevices():
                self._after(plan.slurm_s, lambda: [self._look(node, True) for node in sorted(self.agents) if self.lives(node)])
            case do.AskSlurm():
                self._after(plan.slurm_s, lambda: [self.slurm_says()])
            case do.ListSteps():
                self._after(plan.slurm_s, lambda: [ev.StepsListed(frozenset())])
            case do.ProbeNodes(nodes):
                down = [node for node in nodes if not self.lives(node)]
                well = [node for node in nodes if node not in down]
                self._after(0.01, lambda: [ev.NodeProbed(node, True, "its slurmd answers") for node in well])
                self._after(
                    plan.node_known_s, lambda: [ev.NodeProbed(node, False, "its slurmd cannot be reached") for node in down]
                )
            case do.HealDevices():
                for node, chips in decision.devices.items():
                    self._heal(node, [device for device, _ in chips], decision)
            case do.CheckNode(node):
                self._after(plan.slurm_s, lambda: [self._checked(node)])
            case do.BorrowNode(slot, exclude, wait_s):
                self._borrow(slot, exclude, wait_s)
            case do.EndLoans(jobs):
                self.cluster.end_loans(jobs)
                self._after(0.0, lambda: [ev.LoansEnded()])
            case do.ReleaseNodes(nodes):
                self.free -= set(nodes)
                self._after(plan.slurm_s, lambda: [ev.NodesReleased(nodes, True)])
            case do.EndStep() | do.KillStep() | do.AbandonStep():
                self._halt()
                self._after(0.0, lambda: self._step_ends(decision))
            case do.Diagnose():
                self._after(plan.diagnosis_s, lambda: [self._verdict(decision)])
            case do.SampleUse(window_s):
                self._after(window_s, self._use_is_unchanged)
            case do.TakeEvidence():
                self._after(1.0, self._evidence)
            case do.AskWords():
                self._after(0.0, lambda: [ev.RankWords(rank, number) for rank, number in sorted(self.ranks.running.items())])
            case do.ReadIteration(attempt):
                iteration = int(self.training.saved_s / plan.step_s)
                self._after(0.0, lambda: [ev.IterationRead(attempt, iteration)])
            case do.Requeue():
                self.requeue = decision
                self._after(plan.slurm_s, lambda: [ev.RequeueEnded(True, "requeued")])
            case _:
                pass

    def _halt(self) -> None:
        """The ranks are being stopped: no more progress, and what was not saved is lost."""
        if self.training.running:
            self._progress()
            if self.cause:
                self.training.owe(self.cause.kind.value)
            self.training.stop()

    def _heard(self) -> list[str]:
        return [node for node in sorted(self.agents) if self.lives(node)]

    def _launch(self, layout: Layout | None) -> None:
        lent = layout.lent if layout is not None else {}
        self.tasks = tasks_in(layout, self.plan.tasks_per_node) if layout else tasks_on(self.nodes, self.plan.tasks_per_node)
        self.ranks = _Ranks(up=True, shims={task.rank for task in self.tasks})
        tasks = self.tasks

        def come() -> Events:
            here = [task for task in tasks if self.lives(task.node)]
            return [ev.TaskArrived(task, len(tasks), f"{lent.get(task.node, OWN_STEP)}.0") for task in here]

        self._after(self.plan.launch_s, come)

    def _agents_come(self, nodes: Sequence[str]) -> Events:
        here = [node for node in nodes if self.lives(node)]
        self.agents |= set(here)
        seen = [self._look(node) for node in here if self.cluster.machines[node].shows(self.agenda.now)]
        return [*(ev.AgentArrived(node, ("simulated",)) for node in here), *seen]

    def _look(self, node: str, asked: bool = False) -> ev.DevicesSeen:
        return ev.DevicesSeen(node, self.cluster.machines[node].shows(self.agenda.now), asked=asked)

    def _exit(self, rank: int, status: ExitStatus, stopped: bool = False) -> ev.RankExited:
        number = self.ranks.running.pop(rank)
        return ev.RankExited(rank, number, status, self.agenda.stamp().unix, stopped=stopped)

    def complete(self) -> None:
        """The work is done: every rank exits well."""
        self._progress()
        self.training.stop(saved=True)
        self.tell(*[self._exit(rank, ExitStatus(0)) for rank in sorted(self.ranks.running)])

    def told_progress(self) -> None:
        self._progress()

    def _progress(self) -> None:
        """What the program tells of its steps."""
        if self.training.trains(self.agenda.now) and self.ranks.running and self.training.step:
            self.tell(ev.Progressed(self.tasks[0].node, self.training.step, self.attempt))

    def _end_on_signal(self) -> Events:
        if self.training.running:
            self._progress()
            self.training.stop(saved=self.plan.saves_on_signal and not self.training.blocked)
        return [self._exit(rank, ExitStatus(0, SIGTERM)) for rank in sorted(self.ranks.running)]

    def _stopped(self, attempt: int, ranks: Sequence[int] | None) -> Events:
        found: list[ev.Event] = []
        for rank in sorted(self.ranks.shims if ranks is None else self.ranks.shims & set(ranks)):
            if not self.lives(self.tasks[rank].node):
                continue
            if rank in self.ranks.running:
                found.append(self._exit(rank, ExitStatus(0, SIGTERM), stopped=True))
            found.append(ev.RankStopped(rank, attempt, (), 20000 + rank % 1000 if rank == 0 else 0))
        return found

    def _step_ends(self, decision: do.Decision) -> Events:
        """srun waits for what it cannot reach, unless it is told not to."""
        if not self.ranks.up:
            return []
        reachable = sorted(rank for rank in self.ranks.shims if self.lives(self.tasks[rank].node))
        if isinstance(decision, do.EndStep) and (self.ranks.shims - set(reachable) or self.ranks.cut):
            self.ranks.shims -= set(reachable)
            return [ev.ShimLeft(rank) for rank in reachable]
        self.ranks.up = False
        self.ranks.shims, self.ranks.running = set(), {}
        if isinstance(decision, do.AbandonStep):
            return [ev.StepEnded(ExitStatus(0, SIGKILL))]
        return [*(ev.ShimLost(rank, "it hung up") for rank in reachable), ev.StepEnded(ExitStatus(0))]

    def _heal(self, node: str, devices: Sequence[str], asked: do.HealDevices) -> None:
        machine = self.cluster.machines[node]
        here = [(fault, heals) for fault, heals, _ in machine.faults.values() if fault.device in devices]
        mends = all(heals for _, heals in here)
        takes_s = self.plan.heal_s if mends else asked.wait_s + (asked.reset_wait_s if asked.may_reset else 0.0)

        def done() -> Events:
            if not self.lives(node):
                return []
            return [ev.HealingDone(node, tuple(machine.heal(device, self.agenda.now) for device in devices))]

        self._after(takes_s, done)

    def _checked(self, node: str) -> ev.NodeChecked:
        fit = self.cluster.machines[node].fit(self.agenda.now)
        return ev.NodeChecked(node, fit, "well" if fit else "dead, or a device shows a fault")

    def _borrow(self, slot: int, exclude: Sequence[str], wait_s: float) -> None:
        node, job = self.cluster.lend(self.nodes, exclude, self.agenda.now)
        if not node:
            self._after(wait_s, lambda: [ev.NodeBorrowed(slot, "", 0, "no node is free")])
            return
        self._after(0.1, lambda: [ev.DonorSubmitted(slot, job)])
        self._after(self.plan.borrow_s, lambda: [ev.NodeBorrowed(slot, node, job)])

    def slurm_says(self) -> ev.SlurmAnswered:
        now = self.agenda.now
        used = {task.node for task in self.tasks} | self.free
        down = tuple((node, "DOWN*") for node in sorted(used) if self.cluster.known_down(node, now))
        return ev.SlurmAnswered(
            "RUNNING", batch=True, requeueable=True, bad_nodes=down, usable=self.cluster.usable(now),
            node_count=len(self.nodes), slurmd_timeout_s=self.plan.slurmd_timeout_s, idle=self.cluster.idle(self.nodes, now),
        )  # fmt: skip

    # --- what would be found in ranks and their words

    def _evidence(self) -> Events:
        nodes, attempt = self._heard(), self.attempt
        views = self.ranks.views(self.tasks) if self.training.blocked else {}
        return [ev.EvidenceTaken(node, "simulated", views.get(node, ()), attempt) for node in nodes]

    def _use_is_unchanged(self) -> Events:
        attempt = self.attempt
        return [ev.UseSampled(node, True, "unchanged", attempt) for node in self._heard()]

    def _verdict(self, asked: do.Diagnose) -> ev.Diagnosed:
        """Of a crash, as the trace says; of anything else, as the classification does, which sees no words here."""
        fault = self.cause
        first = next((end for end in asked.ends if end.status is not None and not end.status.ok and not end.stopped), None)
        if fault is None or fault.kind.value != "crash" or first is None or asked.faults:
            verdict = diagnose(asked.ends, Facts(asked.faults, asked.bad), self._book)
        else:
            verdict = _as_told(fault, first)
        return ev.Diagnosed(asked.attempt, on_the_whole(verdict, asked), asked.rank)


class Scheduling(_Ftrun):
    """And what goes wrong in it."""

    def node_of(self, rank: int) -> str:
        return self.tasks[rank % len(self.tasks)].node if self.tasks else ""

    def uses(self, node: str) -> bool:
        return bool(self.ranks.running) and any(task.node == node for task in self.tasks)

    def blocked_by(self, fault: Fault) -> None:
        self.cause = fault
        if self.training.running:
            self._progress()  # what its ranks have told until now
            self.training.block(fault.kind.value)

    def crashes(self, fault: Fault, rank: int) -> None:
        self.blocked_by(fault)
        self.tell(self._exit(rank, ExitStatus(fault.status if not fault.signal else 0, fault.signal)))

    def devices_fail(self, node: str, noticed_s: float) -> None:
        """An agent's next look finds it, on average after half the time between two looks, where it is not known (-1)."""
        self._after(
            noticed_s if noticed_s >= 0 else self.plan.device_look_s / 2,
            lambda: [self._look(node)] if node in self.agents and self.lives(node) else [],
        )

    def hangs(self, fault: Fault, rank: int) -> None:
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
            self._after(limit, lambda: told if still() else [])
        if st.hang.detection:
            quiet = [ev.QuietSeen(n, st.hang.detect_time_s, f"no IO for {st.hang.detect_time_s:g} s", attempt) for n in nodes]
            self._after(st.hang.detect_time_s, lambda: quiet if still() else [])
        if st.hang.log_silence:
            self._after(st.hang.interval_s, lambda: [ev.RankSilent(r, st.hang.interval_s) for r in started] if still() else [])
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
            self._after(0.0 if hangs_up else st.nodes.silence_s, gone if hangs_up else silent)

    def warned(self) -> None:
        self.tell(ev.SignalSeen(SIGTERM))


class _Ranks:
    """What is true of the step's ranks. running: rank -> attempt. cut: does a node that died hold some of them?"""

    def __init__(self, up: bool = False, shims: Iterable[int] = ()) -> None:
        self.up = up
        self.shims = set(shims)
        self.running: dict[int, int] = {}
        self.cut = False
        self._hang = (0, False)  # who, and is it stuck in the network?
        self._views: dict[str, tuple[RankView, ...]] = {}  # of that hang, once it has been looked at

    def hang_at(self, culprit: int, network: bool) -> None:
        self._hang, self._views = (culprit, network), {}

    def views(self, tasks: Sequence[Task]) -> dict[str, tuple[RankView, ...]]:
        """By node; every look at a hang finds the same."""
        self._views = self._views or _views(tasks, *self._hang)
        return self._views

    def start(self, attempt: int, ranks: Iterable[int]) -> None:
        self.running.update(dict.fromkeys(ranks, attempt))

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
            view = replace(view, sockets=(Socket(*mine, "retransmit", 4096, 5),))
        found.setdefault(task.node, []).append(view)
    return {node: tuple(views) for node, views in found.items()}


def _as_told(fault: Fault, end: RankEnd) -> Verdict:
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


def tasks_on(nodes: Sequence[str], per_node: int) -> tuple[Task, ...]:
    """Ranks in blocks, as srun lays them out."""
    return tuple(
        Task(slot * per_node + local, node, slot, local, f"10.0.0.{slot + 1}", 9000 + slot * per_node + local, 20000)
        for slot, node in enumerate(nodes)
        for local in range(per_node)
    )


def tasks_in(layout: Layout, per_node: int) -> tuple[Task, ...]:
    """As srun brings them up where it was told to; the slots are its own count of the nodes, in the cluster's order."""
    if not layout.slots:
        return tasks_on(layout.nodes, per_node)
    place = {node: number for number, node in enumerate(sorted(set(layout.nodes)))}
    seen = dict.fromkeys(range(len(layout.nodes)), 0)
    found = []
    for rank, slot in enumerate(layout.slots):
        node = layout.nodes[slot]
        found.append(Task(rank, node, place[node], seen[slot], f"10.0.0.{slot + 1}", 9000 + rank, 20000))
        seen[slot] += 1
    return tuple(found)


__all__ = ["ACTS", "Scheduling", "tasks_in", "tasks_on"]
