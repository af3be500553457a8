"""What the judge knows during a run, and the few methods that every group needs: look something up, record something, ask agents
and Slurm. It answers no event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import (
    AskSlurm,
    Decision,
    DismissAgents,
    ProbeNodes,
    Remember,
    Say,
    SetIntervals,
    ShowWait,
    WatchNodes,
    WatchRanks,
)
from ftslurm.model.devices import Fault
from ftslurm.model.events import Event, Now
from ftslurm.model.exits import of_step, signal_name
from ftslurm.model.folds.history import History
from ftslurm.model.job import Task
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.model.shares import Share
from ftslurm.model.timers import Timer, Timers
from ftslurm.policies.attempt import Attempt
from ftslurm.policies.judge.parts.agents import AgentRoster
from ftslurm.policies.judge.parts.announced_wait import WaitTold
from ftslurm.policies.judge.parts.devices import DeviceView
from ftslurm.policies.judge.parts.ending import RunEnd
from ftslurm.policies.judge.parts.hang_signs import HangSigns
from ftslurm.policies.judge.parts.launch import StepLaunch
from ftslurm.policies.judge.parts.places import Places
from ftslurm.policies.judge.parts.rank_restarts import RanksAlone
from ftslurm.policies.judge.parts.requests import RequestBook
from ftslurm.policies.judge.parts.search import ReplacementSearch
from ftslurm.policies.judge.parts.signal import SignalWatch
from ftslurm.policies.judge.parts.slurm import SlurmContact
from ftslurm.policies.judge.parts.spares import Loans, Spares
from ftslurm.policies.judge.phases import Phase, RunFacts
from ftslurm.policies.judge.then import Afterwards
from ftslurm.policies.ladder.ladder import Cause, Situation
from ftslurm.policies.ladder.situation import Trouble, situation_of
from ftslurm.policies.lease.fence import Fence

SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM = 1, 2, 3, 9, 15
# Meanings of a signal that ends ftrun, and its ranks with it within a time limit.
TOLD_TO_END = "the ranks are to end"
# Longer than the limits that shims and agents keep themselves, so that a live one always answers first.
MARGIN_S = 15.0
# A rank that ends within this time after a warning, or before the end of the allocation, is taken to end because of it.
WARNING_HOLDS_S = 600.0
# Seconds after which a possible hang that a signal explains is looked at again.
LATER_S = 60.0
# Times `nodes.silence`: the interval at which nodes without ranks are probed; even several are well below SlurmdTimeout (300 s
# unless the site changed it, slurm.conf(5)).
IDLE_LOOK = 4.0


class JudgeState:
    """All that the judge remembers: public attributes are for everybody, private ones for its groups of answers."""

    def __init__(self, settings: Settings, history: History, facts: RunFacts) -> None:
        self.settings = settings
        self.history = history
        self.facts = facts
        self.phase = Phase.NEW
        self._may_enter: frozenset[Phase] | None = None  # phases that the event may lead to directly; None: any
        self._attempt = Attempt()
        self._tasks: dict[int, Task] = {}
        self._agents = AgentRoster()
        self._devices = DeviceView()
        self._trouble: Trouble | None = None
        self._slurm = SlurmContact()
        self._told = WaitTold()
        self._signal = SignalWatch()
        self._alone = RanksAlone()
        self._hangs = HangSigns(settings)
        self._fence = Fence()
        self._launch = StepLaunch()
        self._places = Places()
        self._search: ReplacementSearch | None = None
        self._loans = Loans()
        self._free = Spares()
        self._decided: rec.Decided | None = None
        self._timers = Timers()  # running timers
        self._requests = RequestBook(settings)
        self._end = RunEnd()

    @property
    def finished(self) -> bool:
        return self.phase is Phase.FINISHED

    @property
    def afterwards(self) -> Afterwards:
        """What follows when the step has ended, while it is ending."""
        return self._end.after

    @property
    def exit_status(self) -> int:
        return self._end.status

    @property
    def wakes_at(self) -> float | None:
        """Monotonic seconds at which the judge wants a TimePassed, None for never."""
        due = (self._timers.next_due, self._requests.next_due)
        return min((at for at in due if at is not None), default=None)

    def _enter(self, phase: Phase) -> None:
        """Enter a phase (implemented in judge/judge.py, which has the table of allowed phases)."""
        raise NotImplementedError

    def _begin(self, trouble: Trouble) -> None:
        self._trouble = trouble

    def _arrive(self, task: Task) -> None:
        """A task has connected, possibly with another port of its node."""
        self._tasks[task.rank] = task

    def _anew(self, number: int | None = None, tasks: Collection[int] | None = None, started: bool = False) -> Attempt:
        """A new attempt about which nothing is known yet; with the same number and the present tasks unless others are given."""
        ranks = frozenset(self._tasks if tasks is None else tasks)
        number = self._attempt.number if number is None else number
        self._attempt = Attempt(number, ranks, ranks if started else frozenset())
        return self._attempt

    def _note(self, record: rec.Record, vital: bool = False) -> Remember:
        self.history = self.history.add(record)
        return Remember(record, vital)

    def _written(self, decisions: list[Decision]) -> list[Decision]:
        """The decisions of a part, with the records among them added to the history."""
        for decision in decisions:
            if isinstance(decision, Remember):
                self.history = self.history.add(decision.record)
        return decisions

    def _nothing(self, event: Event, now: Now) -> list[Decision]:
        return []

    # --- what is known

    def _step_nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._tasks[rank].node for rank in sorted(self._tasks)))

    def _is_current(self, event: ev.AgentTold) -> bool:
        """Is the event about the ranks that run now? A report of an agent about earlier ranks may come late."""
        if isinstance(event, (ev.BeatOverdue, ev.ProgramSaid, ev.StageSet)):
            return event.rank in self._tasks and event.attempt == self._attempt.latest([event.rank])
        return event.attempt == self._attempt.latest(self._ranks_on(event.node))

    def _watching(self) -> list[str]:
        """Nodes with ranks whose agent is up."""
        return [node for node in self._step_nodes() if self._agents.here(node)]

    def _ranks_on(self, node: str) -> list[int]:
        return [rank for rank, task in self._tasks.items() if task.node == node]

    def _ranks_in(self, nodes: Collection[str]) -> list[int]:
        """In order."""
        return sorted(rank for rank, task in self._tasks.items() if task.node in nodes)

    def _kept_out(self, now: Now) -> tuple[str, ...]:
        return self.history.kept_out(now.unix, self.settings.isolation_expires_s)

    def _shown(self) -> tuple[Fault, ...]:
        return self._devices.shown_with(self._attempt.devices.faults)

    def _situation(self, trouble: Trouble, now: Now, attempt: Attempt | None = None) -> Situation:
        """The situation for the ladder. attempt: use this attempt instead of the current one."""
        return situation_of(
            trouble, attempt or self._attempt, self._tasks, self._shown(), self._slurm.answer, self.history, self.settings,
            now.unix, self.facts.can, self.facts.remembered, self._held_back(now), self.facts.why_not.donor, self._chosen(),
            self.facts.why_not.swap or self._no_split(),
        )  # fmt: skip

    def _no_split(self) -> str:
        """Why the step cannot be split over several jobs, empty if it can: Slurm would refuse the new step; the next rung needs
        no split.
        """
        uneven = len({share.cpus for share in self._shares()}) > 1
        why = self.facts.why_not.split if uneven else ""
        return f"its nodes have different numbers of CPUs, memory is counted by them, and {why}" if why else ""

    def _shares(self) -> tuple[Share, ...]:
        """By slot, the resources that the step had when it first ran in this scheduling; each later step needs exactly these."""
        return self.history.slots.shares.get((self.facts.schedule, self.facts.step_key), ())

    def _chosen(self) -> tuple[str, ...] | None:
        """The nodes of the step: as we have chosen them, or all if it has never started; None: as its tasks say."""
        return self._places.nodes(bool(self._attempt.started), self.facts)

    def _held_back(self, now: Now) -> tuple[str, ...]:
        """Nodes of the allocation that the step leaves free, without the excluded ones."""
        if self._places.layout is None or not self.settings.spares:
            return ()
        used = {*self._places.layout.nodes, *self._kept_out(now)}
        return tuple(node for node in self.facts.nodes if node not in used)

    def _spares(self, now: Now) -> tuple[str, ...]:
        """The free nodes against which nothing is known."""
        down = {node for node, _ in self._slurm.answer.bad_nodes} if self._slurm.answer else set()
        return tuple(node for node in self._held_back(now) if node not in down and node not in self._fence.silent)

    def _idle(self) -> tuple[str, ...]:
        """Our nodes of the allocation without ranks: spares, and live nodes that were replaced."""
        if self._places.layout is None or not {Capability.PROBE, Capability.RELEASE} <= self.facts.can:
            return ()
        used = {*self._places.layout.nodes, self.facts.batch_node, *self._free.given_back}
        return tuple(node for node in self.facts.nodes if node not in used)

    def _heard_lately(self, now: Now) -> bool:
        """Is there a recent answer from Slurm (if only that it could not tell)?"""
        return self._slurm.heard_lately(now.mono)

    def _warned(self) -> Trouble:
        status = of_step(self._attempt.exits.values()).shell
        return Trouble(Cause.WARNING, f"the ranks ended after {signal_name(self._signal.number)}", status)

    def _under_signal(self, now: Now) -> bool:
        """Can a signal explain what ranks do? One of long ago, which they outlived, no longer can."""
        return bool(self._signal.number) and (not self._signal.meaning or self._explained(now))

    def _explained(self, now: Now) -> bool:
        """Can the signal still explain that a rank ends? Some programs treat a SIGTERM as a request, and run on for hours."""
        if self._signal.meaning == TOLD_TO_END:
            return True
        holds_s = max(WARNING_HOLDS_S, self.settings.warning_grace_s)
        end = self._slurm.end_time
        return now.mono - self._signal.at <= holds_s or bool(end and end - now.unix <= holds_s)

    def _await_last_end(self, now: Now) -> None:
        """Start the time limit within which the last rank must end after the first."""
        self._timers.stop(Timer.EXIT)
        if (due := self._hangs.last_end_due) is not None:
            self._timers.set(Timer.EXIT, max(now.mono, due))

    def _interval(self, usual_s: float) -> float:
        """The limit for silence or no I/O, in seconds, as the programs have set it for their present work; 0: a program has
        switched detection off.
        """
        stages = self._attempt.program.stages.values()
        return 0.0 if any(stage < 0 for stage in stages) else max(stages, default=usual_s)

    def _intervals(self) -> SetIntervals:
        st = self.settings
        silence_s, quiet_s = self._interval(st.hang_interval_s), self._interval(st.hang_detect_s)
        return SetIntervals(silence_s if st.hang_silence else 0.0, quiet_s if st.hang_detection else 0.0)

    @property
    def _watches_stalls(self) -> bool:
        """Are stalls watched? Independent ranks do not wait for each other."""
        return self.settings.hang_c4d and self.settings.watch != "L0" and self.settings.mode == "sync"

    def _announces(self, number: int) -> bool:
        """Is it a signal with which Slurm ends a job, or of which the job wants to be warned?"""
        return signal_name(number).removeprefix("SIG") in {"TERM", *self.settings.warning_signals}

    def _asks_for_requeue(self, number: int) -> bool:
        """Does the signal ask for a requeue? Then nothing is started before: ranks could only hear of it until the end."""
        can = {Capability.ASK, Capability.REQUEUE} <= self.facts.can
        return self.settings.warning_requeue and can and self._announces(number)

    # --- waiting

    def _wait_for(self, what: str, for_s: float, now: Now, said: str = "") -> list[Decision]:
        """Begin to wait: printed, recorded and shown once, under its name. for_s: the limit, 0: unknown. said: other words for
        people.
        """
        if not self._told.tell(what):
            return []
        until = now.unix + for_s if for_s else 0.0
        number = self._attempt.number or self.history.attempts
        said = said or f"waiting for {what}{f', at most {for_s:.0f} s' if for_s else ''}"
        return [self._note(rec.Waiting(now.unix, number, what, until)), Say(said), ShowWait(number, what, until)]

    def _wait_over(self, number: int) -> list[Decision]:
        """The attempt runs: end the wait. Waits before it need no further record."""
        return [ShowWait(number, "")] if self._told.over() else []

    # --- asking others

    def _ask_slurm(self, now: Now) -> AskSlurm:
        self._timers.set(Timer.ASK, now.mono + self.settings.slurm_timeout_s + MARGIN_S)
        return AskSlurm()

    def _take(self, answer: ev.SlurmAnswered, now: Now) -> None:
        self._timers.stop(Timer.ASK)
        self._slurm.take(answer, now.mono)
        over = {node: f"its donor job {job} has ended" for node, job in self._places.lent.items() if job in answer.loans_over}
        self._attempt.nodes.take_back(over)

    def _probe(self, nodes: Iterable[str], now: Now) -> list[Decision]:
        asked = self._fence.ask(nodes) if Capability.PROBE in self.facts.can else ()
        if not asked:
            return []
        self._timers.set(Timer.PROBE, now.mono + self.settings.probe_s + self.settings.slurm_timeout_s + MARGIN_S)
        return [ProbeNodes(asked, self.settings.probe_s)]

    def _silent_here(self) -> list[str]:
        """Nodes of the step that may be dead; it is not known yet."""
        mine = set(self._step_nodes()) - self._attempt.nodes.gone.keys()
        return [node for node in self._fence.silent if node in mine]

    def _watch_silence(self, now: Now) -> None:
        """A silent node that may live: probe it again, and wait for it at most until its leases run out."""
        self._timers.stop(Timer.SILENCE)
        self._timers.stop(Timer.LEASES)
        if silent := self._silent_here():
            self._timers.set(Timer.SILENCE, now.mono + self.settings.silence_s)
            self._timers.set(Timer.LEASES, min(self._fence.over_at(node, self.settings) for node in silent))

    def _look_ahead(self, now: Now) -> list[Decision]:
        """Check a spare while a node is under suspicion, so that the result is there when the spare is needed."""
        wanted = Capability.REPLACE in self.facts.can and self.settings.node_replacement
        spares = self._spares(now) if wanted else ()
        return self._free.look_at(spares[0], self.settings.check_s, now.mono) if spares else []

    def _looked_ahead(self, event: ev.NodeChecked, now: Now) -> list[Decision]:
        self._free.seen(event)
        return []

    def _watch(self, now: Now, nodes: Iterable[str] | None = None) -> list[Decision]:
        """Start agents. nodes: where ranks will run, None: where they run."""
        nodes = self._step_nodes() if nodes is None else tuple(nodes)
        unwatched = tuple(node for node in nodes if node not in self._agents.kinds)
        relieved = tuple(sorted(self._agents.guards & {*unwatched}))  # reports about devices from there were ignored so far
        guards = self._more_guards(nodes, now)
        self._agents.expect(unwatched, guards, relieved, now.mono)
        lent = {node: job for node, job in self._places.lent.items() if node in unwatched}
        asked: list[Decision] = [DismissAgents(relieved)] if relieved else []
        return [*asked, WatchNodes((*unwatched, *guards), lent)] if unwatched or guards else asked

    def _more_guards(self, nodes: Collection[str], now: Now) -> tuple[str, ...]:
        """Spares that get an agent: if all ranks run on the batch node, no agent on another node of the job could take over."""
        f = self.facts
        others = {*f.nodes} - {f.batch_node}
        spares = () if f.batch_node not in f.nodes or not nodes or others & {*nodes} else self._spares(now)
        return () if self._agents.guards & {*spares} else spares[:1]

    def _watch_all_ranks(self) -> list[Decision]:
        return self._watch_ranks(self._agents.kinds)

    def _watch_ranks(self, nodes: Iterable[str]) -> list[Decision]:
        """Agents that are up watch the activity of the processes below their shims; later ones are told when they arrive."""
        mine: dict[str, list[tuple[int, int, int]]] = {node: [] for node in nodes if self._agents.here(node)}
        for rank in self._ranks_in(mine):
            task = self._tasks[rank]
            mine[task.node].append((rank, task.pid, self._attempt.numbers.get(rank, self._attempt.number)))
        there = {node: tuple(ranks) for node, ranks in mine.items() if ranks}
        st = self.settings
        quiet_s = self._intervals().quiet_s
        stall_s = st.hang_c4d_timeout_s if self._watches_stalls else 0.0
        steps = {node: self._launch.steps.get(node, self._launch.step) for node in there}
        return [WatchRanks(there, quiet_s, steps, stall_s, self._hangs.calculated)] if there else []
