"""What the judge knows during a run, and the few methods that every group needs: look something up, record something, ask agents
and Slurm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Remember
from ftslurm.model.devices import Fault
from ftslurm.model.events import Now
from ftslurm.model.exits import of_step, signal_name
from ftslurm.model.folds.history import History
from ftslurm.model.job import Share, Task
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.settings.tree import Settings, with_values
from ftslurm.model.timers import Timer, Timers
from ftslurm.policies.attempt import Attempt
from ftslurm.policies.judge.outside import Announced, Meaning, RequestBook, SignalWatch, SlurmContact, WaitTold
from ftslurm.policies.judge.phases import Phase, RunFacts
from ftslurm.policies.judge.spares import Loans, Places, Spares
from ftslurm.policies.judge.step import AgentRoster, DeviceView, HangSigns, RanksAlone, StepLaunch, Tasks, intervals
from ftslurm.policies.judge.then import RunEnd
from ftslurm.policies.ladder import WILLED, Cause, Choice, OtherNodes, Situation
from ftslurm.policies.lease import Fence
from ftslurm.policies.situation import Trouble, situation_of, with_call

SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM = 1, 2, 3, 9, 15
# Longer than the limits that shims and agents keep themselves, so that a live one always answers first.
MARGIN_S = 15.0
# A rank that ends within this time after a warning, or before the end of the allocation, is taken to end because of it.
WARNING_HOLDS_S = 600.0
# Seconds after which a possible hang that a signal explains is looked at again.
LATER_S = 60.0
# Times `nodes.silence`: the interval at which nodes without ranks are probed; even several are well below SlurmdTimeout (300 s
# unless the site changed it, slurm.conf(5)).
IDLE_LOOK = 4.0
# A step of one rank is often one of many short ones. If it fails before, what its failure needs is loaded then.
ONE_OF_MANY_S = 20.0
# Nodes without ranks, or missing in a slow launch, that are probed in one round; and how often in a row one may be unreachable.
AT_A_TIME, ABSENT_MOST = 8, 2


class Run:
    """What the judge knows during one ftrun. Its parts own their state; `phase`, `attempt`, `tasks`, `trouble`, `decided` and
    `history` change by the methods here alone.

    ways: the phases that each phase may lead to.
    """

    def __init__(self, settings: Settings, history: History, facts: RunFacts, ways: Mapping[Phase, frozenset[Phase]]) -> None:
        self.settings = settings
        self.history = history
        self.facts = facts
        self.phase = Phase.NEW
        self._ways = ways
        self._may_enter: frozenset[Phase] | None = None  # phases that the present event may lead to directly; None: as `ways` say
        self.attempt = Attempt()
        self.tasks = Tasks()
        self.agents = AgentRoster()
        self.devices = DeviceView()
        self.trouble: Trouble | None = None
        self.slurm = SlurmContact()
        last = history.last_run
        self.told = WaitTold(last is not None and (facts.schedule > last.schedule or bool(facts.earlier.cut_short)))
        self.signal = SignalWatch(settings, facts.can)
        self.alone = RanksAlone()
        self.hangs = HangSigns(settings.hang)
        self.fence = Fence()
        self.launch = StepLaunch()
        self.places = Places()
        self.loans = Loans()
        self.free = Spares()
        self.decided: rec.Decided | None = None
        self.timers = Timers()  # running timers
        self.requests = RequestBook(settings.checkpoint)
        self.end = RunEnd()

    def may_enter(self, phases: frozenset[Phase] | None) -> None:
        """phases: those to which the event that comes may lead directly; None: any to which the present phase may lead."""
        self._may_enter = phases

    def enter(self, phase: Phase) -> None:
        """Enter a phase. One answer may pass through several phases, each step as the table allows.

        Raises: LookupError for a phase that the table does not allow.
        """
        if phase is self.phase:
            return
        may, self._may_enter = self._may_enter, None
        if phase not in (self._ways[self.phase] if may is None else may):
            raise LookupError(f"the judge's table knows of no way from {self.phase.value} to {phase.value}")
        self.phase = phase

    def set_trouble(self, trouble: Trouble) -> None:
        self.trouble = trouble

    def restart_on_hangs(self) -> None:
        """The program has asked for restarts when it hangs."""
        self.settings = with_values(self.settings, {"rungs.hang-restart.enabled": True})

    def forget_tasks(self) -> None:
        """The next step has tasks of its own."""
        self.tasks = Tasks()

    def arrive(self, task: Task) -> None:
        """A task has connected, possibly with another port of its node."""
        self.tasks[task.rank] = task

    def new_attempt(self, number: int | None = None, tasks: Collection[int] | None = None, started: bool = False) -> Attempt:
        """A new attempt about which nothing is known yet; with the same number and the present tasks unless others are given."""
        ranks = frozenset(self.tasks if tasks is None else tasks)
        number = self.attempt.number if number is None else number
        self.attempt = Attempt(number, ranks, ranks if started else frozenset())
        return self.attempt

    def note(self, record: rec.Record, vital: bool = False) -> Remember:
        self.take_in(record)
        return Remember(record, vital)

    def note_decision(self, decided: rec.Decided) -> Remember:
        """The decision that is carried out from now on."""
        self.decided = decided
        return self.note(decided, vital=True)

    def take_in(self, record: rec.Record) -> None:
        """Add to the history what the ledger has already."""
        self.history = self.history.add(record)

    def read(self, history: History) -> None:
        """Know what the ledger holds by now: another ftrun of the same job has written to it."""
        self.history = history.as_seen_by(self.facts.run)

    # --- what is known

    def step_nodes(self) -> tuple[str, ...]:
        return tuple(self.tasks.by_node)

    def is_current(self, event: ev.AgentTold) -> bool:
        """Is the event about the ranks that run now? A report of an agent about earlier ranks may come late."""
        if isinstance(event, (ev.BeatOverdue, ev.ProgramSaid, ev.StageSet)):
            return event.rank in self.tasks and event.attempt == self.attempt.latest([event.rank])
        return event.attempt == self.attempt.latest(self.ranks_on(event.node))

    def watched_nodes(self) -> list[str]:
        """Nodes with ranks whose agent is up."""
        return [node for node in self.step_nodes() if self.agents.here(node)]

    def ranks_on(self, node: str) -> list[int]:
        return list(self.tasks.by_node.get(node, ()))

    def ranks_in(self, nodes: Collection[str]) -> list[int]:
        """In order."""
        by_node = self.tasks.by_node
        return sorted(rank for node in nodes for rank in by_node.get(node, ()))

    def kept_out(self, now: Now) -> tuple[str, ...]:
        return self.history.kept_out(now.unix, self.settings.isolation.expires_s)

    def shown_faults(self) -> tuple[Fault, ...]:
        """The current faults with those at the beginning of the trouble: one that clears meanwhile is still the reason."""
        shown = self.devices.faults | self.attempt.devices.faults
        return tuple(fault for key, fault in shown.items() if key not in self.devices.left_alone)

    def situation(self, trouble: Trouble, now: Now, attempt: Attempt | None = None) -> Situation:
        """The situation for the ladder. attempt: use this attempt instead of the current one."""
        why = self.facts.why_not
        others = OtherNodes(0, why.donor, why.swap or self._no_split(), no_requeue=why.requeue, not_again=why.again)
        found = situation_of(
            trouble, attempt or self.attempt, self.tasks, self.shown_faults(), self.slurm.answer, self.history, self.settings,
            now.unix, self.facts.can, self.facts.remembered, self._held_back(now), others, self.chosen_nodes(),
        )  # fmt: skip
        return with_call(found, self.facts.process.call, self.facts.step_key)

    def _no_split(self) -> str:
        """Why Slurm would refuse the step as parts of several jobs, empty if it would not. The next rung needs no parts."""
        uneven = len({share.cpus for share in self.shares()}) > 1
        why = self.facts.why_not.split if uneven else ""
        return f"its nodes have different numbers of CPUs, memory is counted by them, and {why}" if why else ""

    def shares(self) -> tuple[Share, ...]:
        """By slot, the resources that the step had when it first ran in this scheduling; each later step needs exactly these."""
        return self.history.slots.shares.get((self.facts.schedule, self.facts.step_key), ())

    def chosen_nodes(self) -> tuple[str, ...] | None:
        """The nodes of the step: as we have chosen them, or all if it has never started; None: as its tasks say."""
        return self.places.nodes(bool(self.attempt.started), self.facts)

    def _held_back(self, now: Now) -> tuple[str, ...]:
        """Nodes of the allocation that the step leaves free, without the excluded ones."""
        if self.places.layout is None or not self.settings.nodes.spares:
            return ()
        used = {*self.places.layout.nodes, *self.kept_out(now)}
        return tuple(node for node in self.facts.nodes if node not in used)

    def spares(self, now: Now) -> tuple[str, ...]:
        """The free nodes against which nothing is known."""
        down = {node for node, _ in self.slurm.answer.bad_nodes} if self.slurm.answer else set()
        return tuple(node for node in self._held_back(now) if node not in down and node not in self.fence.silent)

    def idle_nodes(self) -> tuple[str, ...]:
        """Our nodes of the allocation without ranks: spares, and live nodes that were replaced."""
        if self.places.layout is None or not {Capability.PROBE, Capability.RELEASE} <= self.facts.can:
            return ()
        used = {*self.places.layout.nodes, self.facts.batch_node, *self.free.given_back}
        return tuple(node for node in self.facts.nodes if node not in used)

    def warning_trouble(self) -> Trouble:
        status = of_step(self.attempt.exits.values()).shell
        near = "" if self.signal.announced is Announced.SOMETHING else f"{self.signal.announced.value}, and "
        return Trouble(Cause.WARNING, f"{near}the ranks ended after {signal_name(self.signal.number)}", status)

    def under_signal(self, now: Now) -> bool:
        """Can a signal explain what ranks do? One of long ago, which they outlived, no longer can."""
        return bool(self.signal.number) and (self.signal.meaning is None or self.signal_explains(now))

    def signal_explains(self, now: Now) -> bool:
        """Can the signal still explain that a rank ends? Some programs treat a SIGTERM as a request, and run on for hours."""
        if self.signal.meaning is Meaning.TOLD_TO_END:
            return True
        holds_s = max(WARNING_HOLDS_S, self.settings.warning.grace_s)
        end = self.slurm.ends_at
        return now.mono - self.signal.at <= holds_s or bool(end and end - now.unix <= holds_s)

    def await_last_end(self, now: Now) -> None:
        """Start the time limit within which the last rank must end after the first."""
        due = self.hangs.last_end_due
        self.timers.follow(Timer.EXIT, None if due is None else max(now.mono, due))

    def intervals(self) -> do.SetIntervals:
        return intervals(self.settings.hang, self.attempt.program.stages.values())

    @property
    def last_remedy(self) -> tuple[str, str]:
        """Rung and cause by which the ranks start; what another ftrun of the script did is not among this one's starts."""
        return (self.decided.rung, self.decided.cause) if self.decided else self.history.requeues.scheduled_by

    @property
    def watches_stalls(self) -> bool:
        """Are stalls watched? Independent ranks do not wait for each other."""
        return self.settings.hang.c4d and self.settings.hang.watch != "L0" and self.settings.mode == "sync"

    # --- waiting

    def wait_for(self, what: str, for_s: float, now: Now, said: str = "") -> list[Decision]:
        """Begin to wait: printed, recorded and shown once, under its name. for_s: the limit, 0: unknown. said: other words for
        people.
        """
        if not self.told.tell(what):
            return []
        until = now.unix + for_s if for_s else 0.0
        number = self.attempt.number or self.history.attempts
        said = said or f"waiting for {what}{f', at most {for_s:.0f} s' if for_s else ''}"
        told = self.note(rec.Waiting(now.unix, number, what, until))
        return [told, do.Say(said), *self.told.show(number, f"waiting for {what}", until)]

    # --- asking others

    def ask_slurm(self, now: Now) -> do.AskSlurm:
        self.timers.set(Timer.ASK, now.mono + self.settings.slurm.timeout_s + MARGIN_S)
        return do.AskSlurm(tuple(sorted(self.situation(self.trouble, now).kept_out)) if self.trouble else ())

    def ask_slurm_unless_asked(self, now: Now) -> list[Decision]:
        return [] if Timer.ASK in self.timers else [self.ask_slurm(now)]

    def take_answer(self, answer: ev.SlurmAnswered, now: Now) -> None:
        self.timers.stop(Timer.ASK)
        self.slurm.take(answer, now.mono)
        over = {node: f"its donor job {job} has ended" for node, job in self.places.lent.items() if job in answer.loans_over}
        self.attempt.nodes.returned.update(over)

    def probe(self, nodes: Iterable[str], now: Now) -> list[Decision]:
        asked = self.fence.ask(nodes) if Capability.PROBE in self.facts.can else ()
        if not asked:
            return []
        self.timers.set(Timer.PROBE, now.mono + self.settings.nodes.probe_timeout_s + self.settings.slurm.timeout_s + MARGIN_S)
        return [do.ProbeNodes(asked, self.settings.nodes.probe_timeout_s)]

    def silent_nodes(self) -> list[str]:
        """Nodes of the step that may be dead; it is not known yet."""
        mine = set(self.step_nodes()) - self.attempt.nodes.gone.keys()
        return [node for node in self.fence.silent if node in mine]

    def unproven(self, now: Now) -> dict[int, float]:
        """Ranks of the attempt that may still run -> monotonic seconds at which their leases are over."""
        return self.fence.unproven(self.attempt, self.tasks, self.settings.lease, now.mono)

    def watch_silence(self, now: Now) -> None:
        """A silent node that may live: probe it again, and wait for it at most until its leases run out."""
        self.timers.stop(Timer.SILENCE)
        self.timers.stop(Timer.LEASES)
        if silent := self.silent_nodes():
            self.timers.set(Timer.SILENCE, now.mono + self.settings.nodes.silence_s)
            self.timers.set(Timer.LEASES, min(self.fence.over_at(node, self.settings.lease) for node in silent))

    def look_ahead(self, now: Now) -> list[Decision]:
        """Check a spare while a node is under suspicion, so that the result is there when the spare is needed."""
        wanted = Capability.REPLACE in self.facts.can and self.settings.node_replacement.enabled
        spares = self.spares(now) if wanted else ()
        return self.free.look_at(spares[0], self.settings.nodes.check_timeout_s, now.mono) if spares else []

    def watch(self, now: Now, nodes: Iterable[str] | None = None) -> list[Decision]:
        """Start agents. nodes: where ranks will run, None: where they run."""
        nodes = self.step_nodes() if nodes is None else tuple(nodes)
        unwatched = tuple(node for node in nodes if node not in self.agents.kinds)
        relieved = tuple(sorted(self.agents.guards & {*unwatched}))  # reports about devices from there were ignored so far
        guards = self._more_guards(nodes, now)
        self.agents.expect(unwatched, guards, relieved, now.mono)
        lent = {node: job for node, job in self.places.lent.items() if node in unwatched}
        asked: list[Decision] = [do.DismissAgents(relieved)] if relieved else []
        prepare_in_s = 0.0 if len(self.tasks) > 1 else ONE_OF_MANY_S
        return [*asked, do.WatchNodes((*unwatched, *guards), lent, prepare_in_s)] if unwatched or guards else asked

    def _more_guards(self, nodes: Collection[str], now: Now) -> tuple[str, ...]:
        """Spares that get an agent: if all ranks run on the batch node, no agent on another node of the job could take over."""
        f = self.facts
        others = {*f.nodes} - {f.batch_node}
        spares = () if f.batch_node not in f.nodes or not nodes or others & {*nodes} else self.spares(now)
        return () if self.agents.guards & {*spares} else spares[:1]

    def watch_all_ranks(self) -> list[Decision]:
        return self.watch_ranks(self.agents.kinds)

    def watch_ranks(self, nodes: Iterable[str]) -> list[Decision]:
        """Agents that are up watch the activity of the processes below their shims; later ones are told when they arrive."""
        mine: dict[str, list[tuple[int, int, int]]] = {node: [] for node in nodes if self.agents.here(node)}
        for rank in self.ranks_in(mine):
            task = self.tasks[rank]
            mine[task.node].append((rank, task.pid, self.attempt.numbers.get(rank, self.attempt.number)))
        there = {node: tuple(ranks) for node, ranks in mine.items() if ranks}
        quiet_s = self.intervals().quiet_s
        stall_s = self.settings.hang.c4d_timeout_s if self.watches_stalls else 0.0
        steps = {node: self.launch.steps.get(node, self.launch.step) for node in there}
        return [do.WatchRanks(there, quiet_s, steps, stall_s, self.hangs.calculated)] if there else []


def record_decision(
    run: Run, choice: Choice, s: Situation, now: Now, isolate: bool = False, avoid: Mapping[str, str] | None = None,
    spared: Collection[str] = (),
) -> Remember:  # fmt: skip
    """The decision as the ledger records it before anything of it is done. avoid: further nodes to exclude, node -> why.
    spared: nodes that the next scheduling may use all the same.
    """
    isolated = {**(avoid or {}), **s.bad} if isolate else {}
    without = s.experiment if choice.rung in (Rung.NODE_REPLACEMENT, Rung.ISOLATED_REQUEUE) else ""
    kept_out = {*run.kept_out(now), *isolated} - {*spared}
    decided = rec.Decided(
        now.unix, f"{run.facts.run}-{run.history.decisions + 1}", run.attempt.number, choice.rung.value,
        s.cause.value, f"{s.what}; {choice.why}", choice.passed, isolated,
        tuple(sorted(kept_out | ({without} if without else set()))), choice.cost, s.status,
        {node: sign for node, (sign, _) in s.on_words.items() if node in isolated},
        tuple(sorted(s.dead & isolated.keys())), choice.why, choice.settings, without, choice.limit,
        {node: often for node, (_, often) in s.on_words.items() if node in isolated and often},
    )  # fmt: skip
    return run.note_decision(decided)


def drills_behind(run: Run, hung: bool) -> tuple[str, ...]:
    """The drills behind the present trouble, in words."""
    faulty = {fault.node for fault in run.devices.acting.values()}
    return run.attempt.drilled(hung, faulty, run.tasks)


def stop_ranks(run: Run, grace_s: float) -> do.StopRanks:
    """Stop the ranks. A SIGTERM of long ago that they outlived does not count as a request to end. Where others have failed a
    checkpoint may be written to its end; one that hangs never is, and what a person asks for is done at once."""
    cause = run.trouble.cause if run.trouble is not None else None
    asked = cause is Cause.WARNING and SIGTERM in run.signal.by_ranks
    saves = cause is not None and cause not in (Cause.HANG, *WILLED)
    grace_s = 0.0 if run.signal.out_of_patience else grace_s
    return do.StopRanks(run.attempt.number, grace_s, run.settings.stop.kill_wait_s, asked, saves=saves)
