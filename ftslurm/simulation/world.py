"""A job on paper: the judge, and around it shims, agents, a launcher and Slurm that are only data.

The world is obedient: what a decision asks for happens, and is told to the judge as the event that it is in a real job. `ftslurm
simulate` and the stories of the tests have this in common. Each says for itself when an answer comes, and what is true of nodes,
devices and ranks: the simulation by its plan, its cluster and its faults, a story by what it tells.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model.collectives import RankView
from ftslurm.model.devices import Fault, HealResult
from ftslurm.model.exits import ExitStatus
from ftslurm.model.job import Layout, Task
from ftslurm.model.values import replace
from ftslurm.model.verdict import Piece, Verdict
from ftslurm.policies.judge.judge import Judge
from ftslurm.policies.situation import ACTS
from ftslurm.policies.weigh import on_the_whole
from ftslurm.simulation.trace import JobPlan

# --- the nodes of the simulated cluster: which of them live, which show faults, and which are free


@dataclass
class _Machine:
    """One node. faults: what its devices show, with whether healing mends it and when somebody has repaired it. died_at: of the
    last time; back_at: until then it is dead."""

    name: str
    faults: dict[tuple[str, str], tuple[Fault, bool, float]] = field(default_factory=dict)
    died_at: float = -1.0
    back_at: float = -1.0

    def lives(self, now: float) -> bool:
        return now >= self.back_at

    def shows(self, now: float) -> tuple[Fault, ...]:
        return tuple(fault for fault, _, until in self.faults.values() if now < until)

    def fit(self, now: float) -> bool:
        return self.lives(now) and not any(fault.fault_class in ACTS for fault in self.shows(now))

    def heal(self, device: str, now: float) -> HealResult:
        """Of one device: all that heals is gone."""
        here = {key: held for key, held in self.faults.items() if key[0] == device and now < held[2]}
        well = all(heals for _, heals, _ in here.values())
        for key, (_, heals, _) in here.items():
            if heals:
                del self.faults[key]
        return HealResult(device, well, "simulated")


class Cluster:
    """machines: by name, in their order. taken: those of the job's own allocation. lent: node -> donor job."""

    def __init__(self, size: int, slurmd_timeout_s: float, names: Sequence[str] = (), ftrun_apart: bool = False) -> None:
        """names: of the first nodes. ftrun_apart: it runs on none of them."""
        digits = len(str(size))
        others = (f"{'free' if names else 'n'}{number:0{digits}d}" for number in range(1, size + 1 - len(names)))
        self.machines = {name: _Machine(name) for name in (*names[:size], *others)}
        self.names = tuple(self.machines)
        self._places = {name: place for place, name in enumerate(self.names)}
        self._ftrun_apart = ftrun_apart
        self._slurmd_timeout_s = slurmd_timeout_s
        self.lent: dict[str, int] = {}
        self._loans = 0
        self._died: set[str] = set()

    def dead(self, now: float) -> set[str]:
        self._died = {node for node in self._died if not self.machines[node].lives(now)}
        return self._died

    def kill(self, node: str, now: float, for_s: float) -> None:
        self.machines[node].died_at, self.machines[node].back_at = now, now + for_s
        self._died.add(node)

    def batch_node(self, nodes: Sequence[str]) -> str:
        """Of an allocation, the one that ftrun runs on; empty if it runs elsewhere."""
        return "" if self._ftrun_apart else nodes[0]

    def known_down(self, node: str, now: float) -> bool:
        """Has slurmctld noticed?"""
        machine = self.machines[node]
        return not machine.lives(now) and now - machine.died_at >= self._slurmd_timeout_s

    def usable(self, now: float) -> frozenset[str]:
        """As slurmctld sees it."""
        return frozenset(node for node in self.names if not self.known_down(node, now))

    def idle(self, taken: Collection[str], now: float) -> frozenset[str]:
        return frozenset(
            node for node in self.names if node not in taken and node not in self.lent and self.machines[node].lives(now)
        )

    def allocate(self, count: int, exclude: Collection[str], before: Collection[str], now: float) -> tuple[str, ...]:
        """The first living nodes, those of the scheduling before first; fewer than `count` where there are no more."""
        known, out = set(before), set(exclude)
        free = [node for node in self.names if node not in out and self.machines[node].lives(now)]
        found = [node for node in free if node in known] + [node for node in free if node not in known]
        return tuple(sorted(found[:count], key=self._places.__getitem__))

    def lend(self, taken: Collection[str], exclude: Collection[str], now: float) -> tuple[str, int]:
        """A free node that is fit, and its donor job; empty and 0 if there is none."""
        out = {*taken, *exclude, *self.lent}
        for node in self.names:
            if node not in out and self.machines[node].fit(now):
                self._loans += 1
                self.lent[node] = 1_000_000 + self._loans
                return node, self.lent[node]
        return "", 0

    def end_loans(self, jobs: Collection[int]) -> None:
        self.lent = {node: job for node, job in self.lent.items() if job not in jobs}

    def next_repair(self, now: float) -> float:
        return min((machine.back_at for machine in self.machines.values() if machine.back_at > now), default=float("inf"))


SIGKILL, SIGTERM = 9, 15
OWN_STEP = 7
FIRST_PORT = 20000

Events = Iterable[ev.Event]


class StepRanks:
    """What is true of the step. up: does its launcher run? shims: ranks whose shim is connected. running: rank -> attempt."""

    def __init__(self, up: bool = False, shims: Iterable[int] = ()) -> None:
        self.up, self.shims, self.running = up, set(shims), dict[int, int]()

    def end(self) -> None:
        """Of the step."""
        self.up = False
        self.shims.clear()
        self.running.clear()


class World(ABC):
    """What is true of the step, of nodes and ranks. An attribute here holds for all of them; a method asks for one."""

    attempt = 0  # that agents tell of; 0: the last one of their ranks
    iteration: int | None = None  # what progress.file holds
    idle: bool | None = True  # has the use of the devices not changed?
    slurm: ev.SlurmAnswered

    def __init__(self, plan: JobPlan, nodes: tuple[str, ...], judge: Judge, ranks: StepRanks) -> None:
        """plan: how long things take. nodes: of the allocation."""
        self.plan, self.nodes, self.judge, self.ranks = plan, nodes, judge, ranks
        self.tasks = tasks_on(nodes, plan.tasks_per_node)  # as the last step has them
        self.there: dict[str, dict[str, int]] = {}  # node -> kind -> how many devices it has, if anybody counts them
        self.stuck: dict[int, tuple[int, ...]] = {}  # rank -> pids that outlive SIGKILL
        self.printed: dict[int, tuple[Piece, ...]] = {}  # what ranks that run tell when they are asked
        self._port = FIRST_PORT

    @abstractmethod
    def after(self, seconds: float, events: Callable[[], Events]) -> None:
        """Tell the judge these events then."""

    @abstractmethod
    def lives(self, node: str) -> bool: ...

    @abstractmethod
    def heard(self) -> Sequence[str]:
        """The nodes whose agents answer."""

    def probed(self, node: str) -> ev.NodeProbed:
        alive = self.lives(node)
        return ev.NodeProbed(node, alive, "its slurmd answers" if alive else "its slurmd cannot be reached")

    @abstractmethod
    def faults_on(self, node: str) -> tuple[Fault, ...]: ...

    @abstractmethod
    def heal(self, node: str, device: str) -> HealResult: ...

    @abstractmethod
    def checked(self, node: str) -> ev.NodeChecked: ...

    @abstractmethod
    def lend(self, exclude: Collection[str]) -> tuple[str, int]:
        """A free node and its donor job; empty and 0 if there is none."""

    @abstractmethod
    def exit_of(self, rank: int, code: int = 0, signal: int = 0) -> ev.RankExited: ...

    @abstractmethod
    def verdict(self, asked: do.Diagnose) -> Verdict | None: ...

    @abstractmethod
    def views_of(self, node: str) -> tuple[RankView, ...]:
        """What an agent sees of its ranks when it takes evidence."""

    def heal_s(self, node: str, asked: do.HealDevices) -> float:
        return self.plan.heal_s

    @property
    def is_cut(self) -> bool:
        """Is there a node whose ranks nobody can reach?"""
        return any(not self.lives(task.node) for task in self.tasks)

    # --- the answers

    def place(self, layout: Layout | None) -> None:
        """A step is launched."""
        self.tasks = tasks_in(layout, self.plan.tasks_per_node) if layout else tasks_on(self.nodes, self.plan.tasks_per_node)

    def carry_out(self, decision: do.Decision) -> None:
        plan, after = self.plan, self.after
        match decision:
            case do.LaunchStep(layout):
                self.place(layout)
                tasks, lent = self.tasks, layout.lent if layout is not None else {}
                steps = [ev.TaskArrived(task, len(tasks), f"{lent.get(task.node, OWN_STEP)}.0") for task in tasks]
                after(plan.launch_s, lambda: [step for step in steps if self.lives(step.task.node)])
            case do.WatchNodes(nodes):
                after(plan.launch_s, lambda: self.agents_come(nodes))
            case do.StartRanks(attempt, env):
                after(0.0, lambda: [ev.RankStarted(rank, attempt, 100 + rank) for rank in env])
            case do.StopRanks(attempt, ranks=ranks):
                after(plan.stop_s, lambda: self._stopped(attempt, ranks))
            case do.LookAtDevices(only):
                after(plan.slurm_s, lambda: [self.look(node, asked=True) for node in self.heard() if only in ("", node)])
            case do.AskSlurm():
                after(plan.slurm_s, lambda: [self.slurm])
            case do.ProbeNodes(nodes):
                for each in map(self.probed, nodes):
                    after(0.01 if each.alive else plan.node_known_s, lambda each=each: [each])  # type: ignore[misc]
            case do.HealDevices():
                for node, chips in decision.devices.items():
                    here = [device for device, _ in chips]
                    after(self.heal_s(node, decision), lambda node=node, here=here: self._healed(node, here))  # type: ignore[misc]
            case do.CheckNode(node):
                after(plan.slurm_s, lambda: [self.checked(node)])
            case do.BorrowNode(slot, exclude, wait_s):
                self._borrow(slot, exclude, wait_s)
            case do.EndLoans():
                after(0.0, lambda: [ev.LoansEnded()])
            case do.ReleaseNodes(nodes):
                after(plan.slurm_s, lambda: [ev.NodesReleased(nodes, True)])
            case do.EndStep() | do.KillStep() | do.AbandonStep():
                after(0.0, lambda: self._step_ends(decision))
            case do.Requeue():
                after(plan.slurm_s, lambda: [ev.RequeueEnded(True, "requeued")])
            case _:
                self._answer_question(decision)

    def _answer_question(self, decision: do.Decision) -> None:
        """What ranks, agents and the diagnosis are asked about a failure or a hang."""
        after, running = self.after, self.ranks.running
        match decision:
            case do.Diagnose():
                after(self.plan.diagnosis_s, lambda: self._diagnosed(decision))
            case do.SampleUse(window_s):
                after(window_s, lambda: [ev.UseSampled(n, self.idle, "sampled", self.attempt) for n in self.heard()])
            case do.TakeEvidence():
                after(1.0, lambda: [ev.EvidenceTaken(n, f"stacks of {n}", self.views_of(n), self.attempt) for n in self.heard()])
            case do.AskWords():
                after(0.0, lambda: [ev.RankWords(rank, n, self.printed.get(rank, ())) for rank, n in sorted(running.items())])
            case do.ReadIteration(attempt):
                after(0.0, lambda: [ev.IterationRead(attempt, self.iteration)])

    def look(self, node: str, asked: bool = False) -> ev.DevicesSeen:
        return ev.DevicesSeen(node, self.faults_on(node), asked=asked, there=self.there.get(node, {}))

    def agents_come(self, nodes: Sequence[str]) -> Events:
        return [ev.AgentArrived(node, ("ascend",)) for node in nodes if self.lives(node)]

    def _stopped(self, attempt: int, ranks: Collection[int] | None) -> Events:
        found: list[ev.Event] = []
        if not self.ranks.up:
            return found
        for rank in sorted(self.ranks.shims if ranks is None else self.ranks.shims & set(ranks)):
            if not self.lives(self.tasks[rank].node):
                continue
            if rank in self.ranks.running:
                found.append(replace(self.exit_of(rank, signal=SIGTERM), stopped=True))
            self._port += 1
            found.append(ev.RankStopped(rank, attempt, self.stuck.get(rank, ()), self._port if rank == 0 else 0))
        return found

    def _healed(self, node: str, devices: Sequence[str]) -> Events:
        return [ev.HealingDone(node, tuple(self.heal(node, device) for device in devices))] if self.lives(node) else []

    def _borrow(self, slot: int, exclude: Collection[str], wait_s: float) -> None:
        node, job = self.lend(exclude)
        if node:
            self.after(0.1, lambda: [ev.DonorSubmitted(slot, job)])
            self.after(self.plan.borrow_s, lambda: [ev.NodeBorrowed(slot, node, job)])
        else:
            self.after(wait_s, lambda: [ev.NodeBorrowed(slot, "", 0, "no node is free")])

    def _step_ends(self, decision: do.Decision) -> Events:
        """srun waits for what it cannot reach, unless it is told not to."""
        if not self.ranks.up:
            return []
        reachable = sorted(rank for rank in self.ranks.shims if self.lives(self.tasks[rank].node))
        if isinstance(decision, do.EndStep) and self.is_cut:
            self.ranks.shims.difference_update(reachable)
            return [ev.ShimLeft(rank) for rank in reachable]
        self.ranks.end()
        if isinstance(decision, do.AbandonStep):
            return [ev.StepEnded(ExitStatus(0, SIGKILL))]
        return [*(ev.ShimLost(rank, "it hung up") for rank in reachable), ev.StepEnded(ExitStatus(0))]

    def _diagnosed(self, asked: do.Diagnose) -> Events:
        verdict = self.verdict(asked)
        return [] if verdict is None else [ev.Diagnosed(asked.attempt, on_the_whole(verdict, asked), asked.rank)]


def tasks_on(nodes: Sequence[str], per_node: int) -> tuple[Task, ...]:
    """Ranks in blocks, as srun lays them out."""
    return tasks_in(Layout(tuple(nodes)), per_node)


def tasks_in(layout: Layout, per_node: int) -> tuple[Task, ...]:
    """As srun brings them up where it was told to; the slots are its own count of the nodes, in the cluster's order."""
    slots = layout.slots or [slot for slot in range(len(layout.nodes)) for _ in range(per_node)]
    place = {node: number for number, node in enumerate(sorted(set(layout.nodes)))}
    local: defaultdict[str, Iterator[int]] = defaultdict(count)
    return tuple(
        Task(rank, node, place[node], next(local[node]), _address(node, slot), 9000 + rank, FIRST_PORT)
        for rank, slot in enumerate(slots)
        for node in (layout.nodes[slot],)
    )


def _address(node: str, slot: int) -> str:
    """By the number in the node's name."""
    number = re.search(r"\d+$", node)
    return f"10.0.0.{int(number[0]) if number else slot + 1}"
