"""The judge: events in, decisions out. Knows no clock, no process and no file; every answer is data.

The table at the end says, for each phase and event, which method answers. A pair that is not in it is an error, so
nothing is passed over by accident; what is ignored on purpose says so there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ftslurm.errors import REQUEUED_STATUS
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import Finding, Kind, Level
from ftslurm.model.decisions import (
    AnswerDrill,
    AskSlurm,
    CompareRanks,
    Decision,
    DrillDevice,
    EndStep,
    Finish,
    HealDevices,
    KeepEvidence,
    KillStep,
    LaunchStep,
    LookAtDevices,
    ProbeNodes,
    Remember,
    Requeue,
    SampleUse,
    Say,
    SetIntervals,
    SignalRanks,
    StartRanks,
    StopRanks,
    TakeEvidence,
    TellOthers,
    WatchNodes,
    WatchRanks,
)
from ftslurm.model.devices import Fault
from ftslurm.model.events import Event, Now
from ftslurm.model.exits import signal_name
from ftslurm.model.history import PAUSES_MAX, History
from ftslurm.model.job import Counters, Task
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.settings import Settings
from ftslurm.model.verdict import Blame, Confidence
from ftslurm.policies import drills
from ftslurm.policies.attempt import Attempt
from ftslurm.policies.blame import with_own_words
from ftslurm.policies.environment import counters_env, restart_env, torch_env
from ftslurm.policies.fence import Fence
from ftslurm.policies.hangs import HangWatch
from ftslurm.policies.ladder import Cause, Choice, Situation, choose
from ftslurm.policies.phases import ENDING_STATES, Advise, Diagnose, Phase, RunFacts, Trouble
from ftslurm.policies.situation import ACTS, acting, avoidable, bad_nodes, situation_of
from ftslurm.policies.slow import SlowWatch
from ftslurm.policies.standstill import Standstill, as_seconds, levels_from, standstill
from ftslurm.policies.whohangs import who_hangs

SIGINT, SIGKILL, SIGTERM = 2, 9, 15
# A job that is over sooner needs no agents, and does not pay for them; trouble brings them up at once.
WATCH_AFTER_S = 1.0
# From letting the shims go to killing the step, and from there to going on without it; srun waits for its stepds.
STEP_END_WAIT_S = 20.0
# A rank killed so may have been killed by Slurm (a cancelled job), before anybody could see the signal itself.
_MAYBE_SLURM = frozenset({SIGINT, SIGKILL, SIGTERM})
# What Slurm said of job and nodes this long ago still counts, monotonic seconds.
ANSWER_COUNTS_S = 10.0
# A signal of ftrun's waits for Slurm's word whether the job is ending (then the ranks have it from Slurm), but not longer.
PASS_ON_WITHIN_S = 2.0
# From a warning on, a rank that ends is taken to end because of it for this long, and as long before the allocation's end.
WARNING_HOLDS_S = 600.0
# Above the limits that shims and agents keep themselves, so that one that lives always answers first.
MARGIN_S = 15.0


class Judge:
    """Keeps the job alive, on paper. `handle` is the only way in; `finished`, `exit_status`, `wakes_at` the ways out.

    history holds every record of every answer from the moment it is given.
    """

    def __init__(
        self, settings: Settings, history: History, facts: RunFacts, diagnose: Diagnose | None = None,
        advise: Advise | None = None,
    ) -> None:  # fmt: skip
        """diagnose: gives the verdict on a failed attempt; None: nothing is known of what is behind it. advise: on a hang."""
        self._diagnose = diagnose
        self._advise = advise
        self.settings = settings
        self.history = history
        self.facts = facts
        self.phase = Phase.NEW
        self.exit_status = 0
        self._attempt = Attempt()
        self._tasks: dict[int, Task] = {}
        self._step = ""
        self._agents: dict[str, tuple[str, ...] | None] = {}  # node -> device kinds, None until it has arrived
        self._faults: dict[tuple[str, str, str], Fault] = {}  # what the devices show now
        self._left_alone: set[tuple[str, str, str]] = set()  # faults no rung can answer, with ranks still running
        self._trouble: Trouble | None = None
        self._slurm: ev.SlurmAnswered | None = None
        self._slurm_at = 0.0  # monotonic, of that answer
        self._signal = 0  # the first signal from outside in this attempt
        self._signal_at = 0.0  # monotonic
        self._pass_on = 0  # one that ftrun itself got and the ranks may still have to get
        self._ranks_signalled: set[int] = set()  # those that the ranks got, as their shims say
        self._kept_signal = 0  # one that came between two steps, for the ranks of the next
        self._meaning = ""  # what it means: `warning`, or why the job ends
        self._mending: dict[int, tuple[Trouble, float]] = {}  # rank to be started again alone -> why, until when
        self._hangs = HangWatch()
        self._still: Standstill = standstill(settings)
        self._slow = SlowWatch()
        self._exit_s, self._exit_since = settings.hang_exit_s, 0.0
        self._hung: Trouble | None = None  # waits for the evidence
        self._fence = Fence()
        self._for_agents: dict[str, list[DrillDevice]] = {}  # node -> what its agent is told when it has come up
        self._decided: rec.Decided | None = None
        self._waits: dict[str, float] = {}  # what is waited for -> monotonic deadline
        self._after: Callable[[Now], list[Decision]] = self._never
        self._another_try = False  # does `after` bring one?
        self._probed: set[str] = set()  # nodes that are being looked at by another way
        self._unended: Callable[[Now], list[Decision]] = self._never  # what follows if the step cannot be ended

    @property
    def finished(self) -> bool:
        return self.phase is Phase.FINISHED

    @property
    def wakes_at(self) -> float | None:
        """Monotonic seconds at which a TimePassed is wanted, None for never."""
        return min(self._waits.values(), default=None)

    def handle(self, event: Event, now: Now) -> tuple[Decision, ...]:
        """What follows from `event`. Raises: LookupError for an event that cannot happen in this phase."""
        method = TABLE.get((self.phase, type(event)))
        if method is None:
            raise LookupError(f"the judge has no answer to {type(event).__name__} while {self.phase.value}")
        return tuple(method(self, event, now))

    def _note(self, record: rec.Record, vital: bool = False) -> Remember:
        self.history = self.history.add(record)
        return Remember(record, vital)

    def _never(self, now: Now) -> list[Decision]:
        raise LookupError("the step ended and nothing was to follow")

    def _nothing(self, event: Event, now: Now) -> list[Decision]:
        return []

    # --- coming up

    def _begun(self, _: ev.Begun, now: Now) -> list[Decision]:
        f = self.facts
        began = rec.RunBegan(
            now.unix, f.run, f.job, f.cluster, f.schedule, f.step_key, f.command, fold_nodes(f.nodes), f.start_time,
            f.name, f.launcher, f.version, f.host, f.pid, budgets(self.settings), f.number,
            self.settings.cleanup_grace_s,
        )  # fmt: skip
        known = {node: why for node, why in f.remembered.items() if node in f.nodes}
        warned = [Say(f"node {node} is suspect: {why} (`ftslurm nodes`)") for node, why in sorted(known.items())]
        begun: list[Decision] = [self._note(began, vital=True), *warned]
        return [*begun, *(self._await_others(now) if f.unproven else self._launch(now))]

    def _await_others(self, now: Now) -> list[Decision]:
        """The job was requeued by Slurm itself, away from a node that could not say whether its ranks have ended."""
        self.phase = Phase.LAUNCHING
        wait_s = self.settings.lease_s + self.settings.lease_margin_s
        self._waits = {"others": now.mono + wait_s}
        where = "; ".join(f"{node}: {why}" for node, why in sorted(self.facts.unproven.items()))
        return [Say(f"waiting {wait_s:g} s, until the leases of ranks that may still run have run out ({where})")]

    def _others_over(self, now: Now) -> list[Decision]:
        return self._launch(now) if self.phase is Phase.LAUNCHING else []

    def _launch(self, _: Now) -> list[Decision]:
        self.phase = Phase.LAUNCHING
        self._tasks, self._waits, self._mending = {}, {}, {}
        self._attempt = Attempt(self._attempt.number)
        return [LaunchStep()]

    def _task_arrived(self, event: ev.TaskArrived, now: Now) -> list[Decision]:
        self._tasks[event.task.rank] = event.task
        self._step = event.step
        if len(self._tasks) < event.expected:
            return []
        return self._start(now)

    def _watch(self) -> list[Decision]:
        unwatched = tuple(node for node in self._step_nodes() if node not in self._agents)
        self._agents.update(dict.fromkeys(unwatched))
        return [WatchNodes(unwatched)] if unwatched else []

    def _step_nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._tasks[rank].node for rank in sorted(self._tasks)))

    def _start(self, now: Now) -> list[Decision]:
        """The attempt is written down first: a number that was handed out is never handed out twice."""
        f = self.facts
        number = max(self.history.attempts, self._attempt.number) + 1
        counters = Counters(f.schedule + 1, self.history.starts_of(f.schedule, f.step_key) + 1, number)
        env = self._env(counters, now)
        self.phase = Phase.RUNNING
        self._attempt = Attempt(number, frozenset(self._tasks), started=frozenset(self._tasks))
        self._fence.let_go_at = None
        self._slurm, self._signal, self._meaning = None, 0, ""
        self._pass_on, self._ranks_signalled = 0, set()
        self._hangs, self._hung = HangWatch(), None
        self._still = standstill(self.settings, number)
        self._slow = SlowWatch()
        self._exit_s = self.settings.hang_exit_s
        self._waits = {} if self._agents else {"watch": now.mono + WATCH_AFTER_S}
        if self._watches_stalls and len(self._tasks) > 1:
            self._waits["compare"] = now.mono + self.settings.hang_compare_s
        begun = rec.AttemptBegan(
            now.unix, f.run, number, f.schedule, f.step_key, counters.starts, fold_nodes(self._step_nodes()),
            len(self._tasks), self._step,
        )  # fmt: skip
        kept, self._kept_signal = self._kept_signal, 0
        told = self._signalled(ev.SignalSeen(kept), now) if kept else []
        return [self._note(begun), StartRanks(number, env), *self._watch_ranks(self._agents), *told]

    def _watch_ranks(self, nodes: Iterable[str]) -> list[Decision]:
        """Agents that are there look for life below their shims; those to come are told when they arrive."""
        mine: dict[str, list[tuple[int, int, int]]] = {}
        for rank, task in sorted(self._tasks.items()):
            mine.setdefault(task.node, []).append((rank, task.pid, self._attempt.numbers.get(rank, self._attempt.number)))
        there = {node: tuple(mine[node]) for node in nodes if self._agents.get(node) is not None and node in mine}
        st = self.settings
        quiet_s = self._interval(st.hang_detect_s) if st.hang_detection else 0.0
        stall_s = st.hang_c4d_timeout_s if self._watches_stalls else 0.0
        return [WatchRanks(there, quiet_s, self._step, stall_s)] if there else []

    def _env(self, counters: Counters, now: Now) -> dict[int, dict[str, str]]:
        last = self.history.last_decision
        shared = restart_env(last.rung if last else "", last.cause if last else "", fold_nodes(self._kept_out(now)))
        shared |= self.facts.sdk_env
        own = {rank: shared | counters_env(self._counters_of(rank, counters)) for rank in self._tasks}
        if self.settings.rendezvous != "torch":
            return own
        per_rank = torch_env(self._tasks, self._tasks[0].address, self.facts.user_env)
        return {rank: own[rank] | per_rank[rank] for rank in self._tasks}

    def _counters_of(self, rank: int, shared: Counters) -> Counters:
        """A rank that was also started alone has run more often than the others."""
        alone = self.history.rank_starts.get((self.facts.schedule, self.facts.step_key, rank), 0)
        return replace(shared, starts=shared.starts + alone)

    def _kept_out(self, now: Now) -> tuple[str, ...]:
        return self.history.kept_out(now.unix, self.settings.isolation_expires_s)

    def _launch_ended(self, event: ev.StepEnded, now: Now) -> list[Decision]:
        """srun gave up before every task was there; it has said why on stderr itself. A node may be behind it."""
        self._attempt = Attempt(self._attempt.number, frozenset(self._tasks))
        what = f"the step did not come up: its launcher {event.status}"
        self._attempt.lose_step(what)
        cause = Cause.LOST if self._attempt.number else Cause.LAUNCH
        return self._into_trouble(Trouble(cause, what, event.status.shell or 1), now)

    def _launch_lost(self, event: ev.ShimLost, now: Now) -> list[Decision]:
        """A shim that came and went before the start: the step is coming down, or its node is. One that never came is of
        the step before."""
        if event.rank not in self._tasks:
            return []
        self._attempt = Attempt(self._attempt.number, frozenset(self._tasks))
        self._attempt.lose(event.rank, event.why)
        what = f"the shim of rank {event.rank} vanished before the start: {event.why}"
        return self._into_trouble(Trouble(Cause.LOST, what, 1), now)

    def _launch_signalled(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        if event.rank is not None or event.number not in (SIGINT, SIGTERM):
            return []
        if event.number == SIGTERM and self._attempt.number:
            self._kept_signal = self._signal = event.number
            self._waits["launch"] = now.mono + self.settings.warning_grace_s
            return [self._ask_slurm(now)] if "ask" in self.facts.can else []
        what, status = f"ended by {signal_name(event.number)} while the step was starting", 128 + event.number
        return self._kill_step(lambda at: self._finish(what, status, at), now)

    # --- running

    def _rank_exited(self, event: ev.RankExited, now: Now) -> list[Decision]:
        if not self._attempt.exited(event):
            return []
        if self._signal and self._explained(now):
            return self._rank_ended_after_signal(now)
        if not event.status.ok:
            what = f"rank {event.rank} on {self._tasks[event.rank].node} {event.status}"
            return self._rank_failed(event.rank, Trouble(Cause.CRASH, what, event.status.shell), now)
        if not self._attempt.all_ended or self._mending:
            if self.settings.hang_exit and self.settings.mode == "sync":
                self._exit_since = now.mono
                self._waits.setdefault("exit", now.mono + self._exit_s)
            return []
        ended = self._note(rec.AttemptEnded(now.unix, self._attempt.number, self._attempt.summary()))
        return [ended, *self._end_step(0, lambda at: self._finish("every rank ended with status 0", 0, at), now)]

    def _rank_unstartable(self, event: ev.RankUnstartable, now: Now) -> list[Decision]:
        if not self._attempt.could_not_start(event):
            return []
        what = f"rank {event.rank} on {self._tasks[event.rank].node} could not be started: {event.why}"
        return self._rank_failed(event.rank, Trouble(Cause.CRASH, what, event.status), now)

    # --- a rank of an async job

    def _rank_failed(self, rank: int, trouble: Trouble, now: Now) -> list[Decision]:
        """In an async job the others go on: only what this rank has left behind is ended, then it may start again."""
        if self.settings.mode != "async" or self._attempt.lost:
            return self._into_trouble(trouble, now)
        st = self.settings
        self._mending[rank] = (trouble, now.mono + st.stop_grace_s + st.kill_wait_s + MARGIN_S)
        self._await_mending()
        seen = rec.TroubleSeen(now.unix, self._attempt.number, trouble.cause.value, trouble.what)
        number = self._attempt.numbers.get(rank, self._attempt.number)
        return [self._note(seen), StopRanks(number, st.stop_grace_s, st.kill_wait_s, ranks=(rank,))]

    def _await_mending(self) -> None:
        self._waits.pop("mend", None)
        if self._mending:
            self._waits["mend"] = min(until for _, until in self._mending.values())

    def _stopped_alone(self, event: ev.RankStopped, now: Now) -> list[Decision]:
        """Nothing is left of the failed rank: the ladder is asked for it alone, and for all if that is not the answer."""
        if event.rank not in self._mending or not self._attempt.stop(event):
            return []
        trouble, _ = self._mending.pop(event.rank)
        self._await_mending()
        if self._signal and self._explained(now):
            return self._rank_ended_after_signal(now)
        if event.left:
            return self._into_trouble(trouble, now)
        found = self._verdict(now, event.rank)
        situation = replace(self._situation(trouble, now), rank=event.rank)
        choice = choose(situation)
        if choice.rung != "rank-restart":
            return [*found, *self._into_trouble(trouble, now)]
        self._attempt.verdict = None
        said = Say(f"{situation.what}: starting rank {event.rank} again ({choice.why}){_behind(situation)}")
        return [*found, self._decision(choice, situation, now), said, *self._start_alone(event.rank, now)]

    def _start_alone(self, rank: int, now: Now) -> list[Decision]:
        f = self.facts
        number = max(self.history.attempts, self._attempt.number) + 1
        starts = self.history.starts_of_rank(f.schedule, f.step_key, rank) + 1
        begun = self._note(rec.RankBegan(now.unix, f.run, number, f.schedule, f.step_key, rank, starts))
        counters = Counters(f.schedule + 1, self.history.starts_of(f.schedule, f.step_key), number)
        self._attempt.again(rank, number)
        return [begun, StartRanks(number, {rank: self._env(counters, now)[rank]})]

    def _mend_overdue(self, now: Now) -> list[Decision]:
        late = [rank for rank, (_, until) in self._mending.items() if until <= now.mono]
        for rank in late:
            self._attempt.lose(rank, "no word whether its processes are gone")
        return self._into_trouble(self._mending[late[0]][0], now) if late and self.phase is Phase.RUNNING else []

    # --- hangs

    def _quiet_seen(self, event: ev.QuietSeen, now: Now) -> list[Decision]:
        """Every node has been quiet for long enough: now the devices (or CPUs) are asked whether they do anything."""
        if self._signal or self._hung:
            return []
        if not self._hangs.quiet(event, self._step_nodes()):
            self._waits.pop("use", None)
            return []
        if "use" in self._waits:
            return []
        self._waits["use"] = now.mono + self.settings.hang_sample_s + MARGIN_S
        return [SampleUse(self.settings.hang_sample_s)]

    def _use_sampled(self, event: ev.UseSampled, now: Now) -> list[Decision]:
        if "use" not in self._waits or self._hung or not self._hangs.sampled(event, self._step_nodes()):
            return []
        return self._use_known(now)

    def _use_known(self, now: Now) -> list[Decision]:
        self._waits.pop("use", None)
        hang, self._hangs = self._hangs.verdict(self._step_nodes()), HangWatch()
        # Not one, or not known: the agents tell again when the same time has passed without IO.
        return self._hang("io", hang.what, hang.evidence, now) if hang else self._watch_ranks(self._agents)

    def _rank_silent(self, event: ev.RankSilent, now: Now) -> list[Decision]:
        if self._signal or self._hung or not self.settings.hang_silence:
            return []
        running = self._attempt.ranks - self._attempt.exits.keys()
        if not self._hangs.silent(event, running):
            return []
        what = f"no rank has printed anything for {self.settings.hang_interval_s:g} s"
        return self._hang("silence", what, (), now)

    def _beat_overdue(self, event: ev.BeatOverdue, now: Now) -> list[Decision]:
        """As ft_launcher's rank monitor judges. The program has asked to be watched, so no more proof is wanted."""
        if self._signal or self._hung or event.rank in self._attempt.exits:
            return []
        return self._hang("beat", f"rank {event.rank} on {self._tasks[event.rank].node}: {event.why}", (), now)

    def _program_said(self, event: ev.ProgramSaid, now: Now) -> list[Decision]:
        """Words for people are passed on; what the program asks of the ladder is remembered for its next failure."""
        text = " ".join(event.words)
        self._attempt.said.append((event.rank, event.what, event.words))
        note = self._note(rec.ProgramSaid(now.unix, self._attempt.number, event.rank, event.what, text))
        if event.what == "setting" and event.words[:1] == ("job_exit_hang_interval",):
            return [note, *self._set_exit_interval(event.words[-1])]
        if event.what == "message":
            return [note, Say(f"rank {event.rank}: {text}")]
        return [note]

    def _set_exit_interval(self, word: str) -> list[Decision]:
        """By AIMaster's `reset_config`: seconds, or -1 for off."""
        seconds = as_seconds(word)
        if seconds is not None:
            self._exit_s = float("inf") if seconds < 0 else seconds
            if "exit" in self._waits:
                self._waits["exit"] = self._exit_since + self._exit_s
        return []

    def _exit_overdue(self, now: Now) -> list[Decision]:
        if self.phase is not Phase.RUNNING or self._signal or self._hung:
            return []
        left = sorted(self._attempt.ranks - self._attempt.exits.keys())
        ranks = ", ".join(map(str, left[:8])) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
        what = f"{len(self._attempt.exits)} ranks have ended, and for {self._exit_s:g} s rank {ranks} has not"
        return self._hang("exit", what, (), now)

    # --- staged intervals: the program knows best how long it will say nothing

    def _stage_set(self, event: ev.StageSet, now: Now) -> list[Decision]:
        before = self._interval(self.settings.hang_interval_s), self._interval(self.settings.hang_detect_s)
        if event.seconds is None:
            self._attempt.stages.pop(event.rank, None)
        else:
            self._attempt.stages[event.rank] = event.seconds
        silence_s, quiet_s = self._interval(self.settings.hang_interval_s), self._interval(self.settings.hang_detect_s)
        if self.phase is not Phase.RUNNING or (silence_s, quiet_s) == before:
            return []
        self._hangs = HangWatch()
        self._waits.pop("use", None)
        st = self.settings
        return [SetIntervals(silence_s if st.hang_silence else 0.0, quiet_s if st.hang_detection else 0.0)]

    def _interval(self, usual_s: float) -> float:
        """Of silence, of no IO: as the programs have set it for where they are; 0: one has switched detection off."""
        stages = self._attempt.stages.values()
        return 0.0 if any(stage < 0 for stage in stages) else max(stages, default=usual_s)

    # --- standing still, by the collectives of the ranks

    def _stall_seen(self, event: ev.StallSeen, now: Now) -> list[Decision]:
        pause = self._still.seen(event, now.mono)
        if pause is None:
            return self._look_closer(now)
        told = rec.Paused(now.unix, self._attempt.number, pause.seconds, pause.busy)
        self._waits.pop("examine", None)
        known = self.history.busy_pauses if pause.busy else self.history.quiet_pauses
        grown = len(known) < PAUSES_MAX or pause.seconds > known[-1]
        return [self._note(told)] if grown else []

    def _look_closer(self, now: Now) -> list[Decision]:
        """Who hangs is asked of all nodes at once. Ranks that have ended are the exit hang's; a signal's are Slurm's."""
        if self._signal or self._hung or self._attempt.exits or "examine" in self._waits or "evidence" in self._waits:
            return []
        if not self._stalled_s(now):
            return []
        self._waits["evidence"] = now.mono + self.settings.hang_evidence_s
        return [TakeEvidence(self.settings.hang_evidence_s)]

    @property
    def _watches_stalls(self) -> bool:
        """Independent ranks do not wait for each other."""
        return self.settings.hang_c4d and self.settings.watch != "L0" and self.settings.mode == "sync"

    def _stalled_s(self, now: Now) -> float:
        return self._still.stalled_s(self._step_nodes(), len(self._tasks), now.mono)

    def _looked_closer(self, now: Now) -> list[Decision]:
        """All nodes have said what their ranks do."""
        stalled_s = self._stalled_s(now)
        if not stalled_s:
            return []
        o = self._still.opinion(stalled_s, self.history, now.mono)
        if o.act:
            return self._hang("stall", o.what, o.finding.evidence if o.finding else (), now, o.finding)
        self._waits["examine"] = now.mono + o.again_s
        if not o.tell or o.finding is None:
            return []
        keep = [KeepEvidence(self._attempt.number, node, text) for node, text in self._attempt.evidence.items()]
        return [self._note(self._culprit(o.finding, now)), *self._said_of(o.finding, o.what), *keep]

    def _said_of(self, finding: Finding, what: str = "") -> list[Decision]:
        if not levels_from(self.settings.hang_c4d_level)[finding.level]:
            return []
        return [Say(f"{finding.level.value}: {finding}{f' ({what})' if what else ''}")]

    def _culprit(self, found: Finding, now: Now) -> rec.CulpritSeen:
        return rec.CulpritSeen(
            now.unix, self._attempt.number, found.kind.value, found.level.value, found.ranks, found.nodes, found.operation,
            found.cause, found.evidence, found.blamed,
        )  # fmt: skip

    # --- ranks that are slower than the others

    def _compare(self, now: Now) -> list[Decision]:
        if self.phase is not Phase.RUNNING:
            return []
        self._waits["compare"] = now.mono + self.settings.hang_compare_s
        self._slow.ask()
        return [CompareRanks()] if not (self._signal or self._hung or self._attempt.exits) else []

    def _compared(self, event: ev.RanksCompared, now: Now) -> list[Decision]:
        nodes = [node for node, kinds in self._agents.items() if kinds is not None]
        finding = self._slow.seen(event, nodes, len(self._tasks))
        return [self._note(self._culprit(finding, now)), *self._said_of(finding)] if finding else []

    def _progressed(self, event: ev.Progressed, now: Now) -> list[Decision]:
        self._attempt.step = max(self._attempt.step, event.step)
        return []

    # --- what a hang leads to

    def _hang(
        self, kind: str, what: str, evidence: tuple[str, ...], now: Now, found: Finding | None = None
    ) -> list[Decision]:
        """Written down and said. Where it is answered, what the ranks do is looked at before they are stopped.

        found: it has been looked at.
        """
        seen = self._note(rec.HangSeen(now.unix, self._attempt.number, kind, what, evidence))
        if found is not None and found.level is Level.ERROR:
            self._attempt.hung = {node: str(found) for node in found.blamed}
        without = self._attempt.hung and self.settings.isolated_requeue and "requeue" in self.facts.can
        if not (self.settings.hang_restart or without):
            told = f" ({found})" if found is not None else ""
            return [seen, Say(f"the job seems to hang: {what}{told}; hang-restart is switched off, the ranks are left alone")]
        if found is not None:
            self._hung = Trouble(Cause.HANG, f"hang: {what}", 1)
            keep = [KeepEvidence(self._attempt.number, node, text) for node, text in self._attempt.evidence.items()]
            return [seen, *keep, *self._into_hang(self._hung, now, found)]
        self._hung = Trouble(Cause.HANG, f"hang: {what}", 1)
        if all(kinds is None for kinds in self._agents.values()):
            return [seen, *self._into_trouble(self._hung, now)]
        self._waits["evidence"] = now.mono + self.settings.hang_evidence_s
        return [seen, TakeEvidence(self.settings.hang_evidence_s)]

    def _evidence_taken(self, event: ev.EvidenceTaken, now: Now) -> list[Decision]:
        self._attempt.evidence[event.node] = event.text
        self._attempt.views[event.node] = event.views
        there = [node for node, kinds in self._agents.items() if kinds is not None]
        if self._hung is None:
            if not self._still.examined(event.node, event.views, there) or "evidence" not in self._waits:
                return []
            del self._waits["evidence"]
            return self._looked_closer(now) if self.phase is Phase.RUNNING else []
        keep: list[Decision] = [KeepEvidence(self._attempt.number, event.node, event.text)]
        if "evidence" not in self._waits or not self._hangs.looked_at(event.node, there):
            return keep
        return [*keep, *self._into_hang(self._hung, now)]

    def _evidence_overdue(self, now: Now) -> list[Decision]:
        """Who hangs is not told from half of the ranks, but a hang that was noticed is answered without it."""
        if self.phase is not Phase.RUNNING:
            return []
        if self._hung is None:
            self._waits["examine"] = now.mono + self.settings.hang_c4d_timeout_s
            return []
        return self._into_hang(self._hung, now)

    def _into_hang(self, trouble: Trouble, now: Now, found: Finding | None = None) -> list[Decision]:
        """With the rank it begins with, if that can be told from what all ranks were doing."""
        found = found or who_hangs(view for views in self._attempt.views.values() for view in views)
        if found is None or found.kind is Kind.UNKNOWN:
            return self._into_trouble(trouble, now)
        trouble = replace(trouble, what=f"{trouble.what}; {found}")
        return [self._note(self._culprit(found, now)), *self._into_trouble(trouble, now)]

    # --- drills

    def _drill(self, event: ev.DrillAsked, now: Now) -> list[Decision]:
        """A fault on purpose: written down before it is injected, so that nobody takes it for a real one."""
        drill = drills.plan(event, self._tasks)
        if drill is None:
            return [AnswerDrill(event.asker, False, f"there is no {drills.target(event)} in the step that runs")]
        note = self._note(rec.Drilled(now.unix, self._attempt.number, event.fault, drill.target, drill.how), vital=True)
        told = Say(f"drill: {event.fault} on {drill.target} ({drill.how})")
        said: list[Decision] = [note, told, AnswerDrill(event.asker, True, drill.how)]
        if drill.injects:
            self._attempt.drills.append(f"{event.fault} on {drill.target}")
        if event.fault == "lost-node":
            self._attempt.drilled_away[event.node] = "taken for lost in a drill"
        if isinstance(drill.order, DrillDevice) and self._agents.get(event.node) is None:
            self._for_agents.setdefault(event.node, []).append(drill.order)  # it comes up, and hears of it then
            return [*said, *self._watch()]
        return [*said, drill.order]

    def _no_drill(self, event: ev.DrillAsked, now: Now) -> list[Decision]:
        return [AnswerDrill(event.asker, False, f"the ranks do not run just now (ftrun is {self.phase.value})")]

    def _shim_lost(self, event: ev.ShimLost, now: Now) -> list[Decision]:
        self._attempt.close(event.rank, event.why)
        what = f"the shim of rank {event.rank} on {self._tasks[event.rank].node} vanished: {event.why}"
        return self._into_trouble(Trouble(Cause.LOST, what, 1), now)

    def _step_ended_early(self, event: ev.StepEnded, now: Now) -> list[Decision]:
        what = f"the step ended while ranks were running; its launcher {event.status}"
        self._attempt.lose_step(what)
        return self._into_trouble(Trouble(Cause.LOST, what, event.status.shell or 1), now)

    # --- nodes that are not heard of

    def _node_silent(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        """While ranks run or are stopped: silence is no proof, so the node is looked at by another way."""
        self._fence.silent[event.node] = now.mono - event.silent_s
        if event.node not in self._step_nodes():
            return []
        if self.phase is Phase.RUNNING:
            self._watch_silence(now)
        return self._probe([event.node], now)

    def _probe(self, nodes: Iterable[str], now: Now) -> list[Decision]:
        asked = tuple(node for node in nodes if node not in self._probed)
        if not asked or "probe" not in self.facts.can:
            return []
        self._probed.update(asked)
        self._waits["probe"] = now.mono + self.settings.probe_s + self.settings.slurm_timeout_s + MARGIN_S
        return [ProbeNodes(asked, self.settings.probe_s)]

    def _silent_meanwhile(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        self._fence.silent[event.node] = now.mono - event.silent_s
        return []

    def _node_heard(self, event: ev.NodeHeard, now: Now) -> list[Decision]:
        self._fence.silent.pop(event.node, None)
        if self.phase is Phase.RUNNING:
            self._watch_silence(now)
        return []

    def _node_probed(self, event: ev.NodeProbed, now: Now) -> list[Decision]:
        """Lost is a node that is silent and cannot be reached by another way either."""
        self._probed.discard(event.node)
        if not self._probed:
            self._waits.pop("probe", None)
        silent = event.node in self._fence.silent or self._lost_on(event.node)
        if event.alive is False and silent:
            self._attempt.gone[event.node] = event.what
            for rank in self._ranks_on(event.node):
                self._attempt.lose(rank, f"{event.node} is lost: {event.what}")
        if self.phase is not Phase.RUNNING:
            return self._settled(now)
        if event.node in self._attempt.gone:
            since = self._fence.silent.get(event.node)
            for_s = f" for {now.mono - since:.0f} s" if since is not None else ""
            what = f"nothing was heard of {event.node}{for_s}, and {event.what}"
            return self._into_trouble(Trouble(Cause.LOST, what, 1), now)
        self._watch_silence(now)
        return []

    def _ranks_on(self, node: str) -> list[int]:
        return [rank for rank, task in self._tasks.items() if task.node == node]

    def _lost_on(self, node: str) -> bool:
        return any(rank in self._attempt.lost for rank in self._ranks_on(node))

    def _watch_silence(self, now: Now) -> None:
        """A silent node that may live is asked about again, and not waited for longer than its leases last."""
        mine = [node for node in self._fence.silent if node in self._step_nodes()]
        self._waits.pop("silence", None)
        self._waits.pop("leases", None)
        if mine:
            self._waits["silence"] = now.mono + self.settings.silence_s
            self._waits["leases"] = min(self._fence.over_at(node, self.settings) for node in mine)

    def _probe_overdue(self, now: Now) -> list[Decision]:
        """No second proof."""
        self._probed.clear()
        if self.phase is Phase.RUNNING:
            self._watch_silence(now)
        return self._settled(now)

    def _silence_goes_on(self, now: Now) -> list[Decision]:
        if self.phase is not Phase.RUNNING:
            return []
        return self._probe([node for node in self._fence.silent if node in self._step_nodes()], now)

    def _leases_over(self, now: Now) -> list[Decision]:
        """Whatever has happened there: ranks that were out of reach for so long have ended by themselves."""
        if self.phase is not Phase.RUNNING:
            return []
        over = [node for node in self._fence.silent if node in self._step_nodes()]
        over = [node for node in over if self._fence.over_at(node, self.settings) <= now.mono]
        for node in over:
            for rank in self._ranks_on(node):
                self._attempt.lose(rank, f"{node} was out of reach for longer than a lease lasts")
        what = f"{fold_nodes(over)} was out of reach for longer than the lease of {self.settings.lease_s:g} s, though it lives"
        return self._into_trouble(Trouble(Cause.LOST, what, 1), now) if over else []

    # --- signals from outside

    def _signalled(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """ftrun's own signals are passed on as srun does. Of a TERM or a warning Slurm is asked what it means."""
        if event.rank is None and event.number == SIGINT:
            return self._interrupted(event, now)
        known = signal_name(event.number).removeprefix("SIG") in {"TERM", *self.settings.warning_signals}
        if not known or "ask" not in self.facts.can:
            passed_on: list[Decision] = [SignalRanks(event.number)] if event.rank is None else []
            if not known or self._signal:
                return passed_on
            self._signal, self._signal_at = event.number, now.mono
            return [*passed_on, *self._it_means("warning", now)]
        if event.rank is not None:
            self._ranks_signalled.add(event.number)
        else:
            self._pass_on = event.number
            self._waits["pass on"] = now.mono + PASS_ON_WITHIN_S
        if self._signal:
            return []
        self._signal, self._signal_at = event.number, now.mono
        return [self._ask_slurm(now)]

    def _passed_on(self, now: Now) -> list[Decision]:
        """ftrun's own signal, for the ranks: unless they got it themselves, as when Slurm signals all of the job."""
        self._waits.pop("pass on", None)
        number, self._pass_on = self._pass_on, 0
        if not number or number in self._ranks_signalled:
            return []
        self._ranks_signalled.add(number)
        return [SignalRanks(number)]

    def _interrupted(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """Ctrl-C ends everything (srun's own first one only reports). A second one does not wait for the grace."""
        again = self._meaning == "interrupted"
        self._meaning = "interrupted"
        if self.phase is Phase.RUNNING:
            return self._into_trouble(Trouble(Cause.WARNING, "interrupted by Ctrl-C", 128 + event.number), now)
        if self.phase is Phase.HEALING:
            return self._give_up("interrupted by Ctrl-C while devices healed", 128 + event.number, now)
        self._waits = {name: at for name, at in self._waits.items() if name == "stop"}  # what is left to know is of no use
        return [*([self._stop_ranks(0.0)] if again else []), *self._settled(now)]

    def _signalled_late(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """While ranks are being stopped or devices heal: remembered, and asked about before anything is decided."""
        if event.rank is None and event.number == SIGINT:
            return self._interrupted(event, now)
        if self._signal or event.number != SIGTERM:
            return []
        self._signal = event.number
        if event.rank is None and "ask" not in self.facts.can:
            self._meaning = "terminated"
        return [self._ask_slurm(now)] if "ask" in self.facts.can and "ask" not in self._waits else []

    def _ask_slurm(self, now: Now) -> AskSlurm:
        self._waits["ask"] = now.mono + self.settings.slurm_timeout_s + MARGIN_S
        return AskSlurm()

    def _slurm_answered(self, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
        """While ranks run: the answer to a signal, or to a fault that only a requeue can answer."""
        self._take(event, now)
        if self._signal and not self._meaning:
            return self._it_means("warning" if event.error else ENDING_STATES.get(event.state, "warning"), now)
        return self._device_trouble(now)

    def _take(self, answer: ev.SlurmAnswered, now: Now) -> None:
        self._waits.pop("ask", None)
        self._slurm, self._slurm_at = answer, now.mono

    def _it_means(self, meaning: str, now: Now) -> list[Decision]:
        """The signal is understood. A warning leaves the ranks to end by themselves; anything else ends them."""
        self._meaning = meaning
        note = self._note(rec.Signalled(now.unix, signal_name(self._signal), meaning))
        if meaning != "warning":
            return [note, *self._into_trouble(Trouble(Cause.WARNING, meaning, 128 + self._signal), now)]
        if self._attempt.all_ended:
            return [note, *self._into_trouble(self._warned(), now)]
        note_and_signal: list[Decision] = [note, *self._passed_on(now)]
        if self.settings.warning_requeue or self._attempt.exits:
            self._waits["warning"] = now.mono + self._warning_grace_s(now)
        return note_and_signal

    def _explained(self, now: Now) -> bool:
        """Is a rank's end still an answer to the signal? Some programs take a SIGTERM for a wish, and go on for hours."""
        holds_s = max(WARNING_HOLDS_S, self.settings.warning_grace_s)
        end = self._slurm.end_time if self._slurm else 0
        return now.mono - self._signal_at <= holds_s or bool(end and end - now.unix <= holds_s)

    def _rank_ended_after_signal(self, now: Now) -> list[Decision]:
        """The first rank that ends starts the grace of the others, the last one ends the attempt."""
        if self._attempt.all_ended and self._meaning:
            return self._into_trouble(self._warned(), now)
        self._waits.setdefault("warning", now.mono + self._warning_grace_s(now))
        return []

    def _warned(self) -> Trouble:
        worst = max((status.shell for status in self._attempt.exits.values()), default=0)
        return Trouble(Cause.WARNING, f"the ranks ended after {signal_name(self._signal)}", worst)

    def _warning_grace_s(self, now: Now) -> float:
        """No longer than Slurm leaves us, less the time that stopping and requeueing takes."""
        end = self._slurm.end_time if self._slurm else 0
        left = end - now.unix - 5.0 if end else self.settings.warning_grace_s
        return max(1.0, min(self.settings.warning_grace_s, left))

    # --- devices

    def _agent_arrived(self, event: ev.AgentArrived, now: Now) -> list[Decision]:
        self._agents[event.node] = event.kinds
        held: list[Decision] = [*self._for_agents.pop(event.node, ()), *self._watch_ranks([event.node])]
        return [*held, LookAtDevices(), *self._settled(now)] if "look" in self._waits else held

    def _agent_lost(self, event: ev.AgentLost, now: Now) -> list[Decision]:
        """Nobody is blamed for it; the node's devices are unknown from here on."""
        self._agents[event.node] = ()
        if self._attempt.healed(event.node, f"the agent vanished while healing: {event.why}"):
            return self._healing_settled(now)
        return self._settled(now)

    def _devices_seen(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        notes = self._note_faults(event, now)
        return [*notes, *(self._device_trouble(now) if not event.asked else [])]

    def _devices_looked_at(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        notes = self._note_faults(event, now)
        if event.asked:
            self._attempt.looked.add(event.node)
        return [*notes, *self._settled(now)]

    def _note_faults(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        """A fault counts once from when it is first seen until it is gone. An answer that is none changes nothing."""
        if event.error:
            return []
        before = {key for key in self._faults if key[0] == event.node}
        shown = {fault.key: fault for fault in event.faults}
        for key in before - shown.keys():
            del self._faults[key]
        self._faults.update(shown)
        return [self._note(_fault_record(shown[key], now)) for key in shown if key not in before]

    def _device_trouble(self, now: Now) -> list[Decision]:
        """A fault while ranks run. They are stopped only when a rung can answer; else they are left to run."""
        acting = [fault for key, fault in self._faults.items() if fault.fault_class in ACTS and key not in self._left_alone]
        if not acting or self._signal:
            return []
        trouble = Trouble(Cause.DEVICE, "; ".join(map(str, acting)), 1)
        choice = choose(self._situation(trouble, now))
        if choice.rung != "fail":
            return self._into_trouble(trouble, now)
        if "ask" in self.facts.can and not self._heard_lately(now):
            return [] if "ask" in self._waits else [self._ask_slurm(now)]
        self._left_alone.update(fault.key for fault in acting)
        reasons = "; ".join(f"{rung}: {why}" for rung, why in choice.passed)
        return [Say(f"{trouble.what}: no remedy ({reasons}); the ranks still run and are left alone")]

    def _heard_lately(self, now: Now) -> bool:
        """Has Slurm said something (if only that it could not) that still counts?"""
        return self._slurm is not None and now.mono - self._slurm_at <= ANSWER_COUNTS_S

    # --- trouble: stop, find out, decide

    def _into_trouble(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Written down, then all ranks are stopped while devices and Slurm are asked what they know."""
        if self._attempt.drills:
            trouble = replace(trouble, what=f"{trouble.what} [drill: {', '.join(self._attempt.drills)}]")
        self._trouble = trouble
        self.phase = Phase.SETTLING
        self._mending = {}
        if trouble.cause is not Cause.DEVICE:
            self._left_alone.clear()  # what had no remedy may still be the reason
        self._attempt.faults = {key: fault for key, fault in self._faults.items() if fault.fault_class in ACTS}
        self._attempt.culprit = not all(status.ok for status in self._attempt.exits.values())
        self._attempt.killed = any(status.signal in _MAYBE_SLURM for status in self._attempt.exits.values())
        if trouble.cause is not Cause.WARNING and not (self._heard_lately(now) and self._slurm and not self._slurm.error):
            self._slurm = None
        self._waits = {"stop": now.mono + self.settings.stop_grace_s + self.settings.kill_wait_s + MARGIN_S}
        seen = rec.TroubleSeen(now.unix, self._attempt.number, trouble.cause.value, trouble.what)
        found: list[Decision] = [self._note(seen), self._stop_ranks(self.settings.stop_grace_s)]
        if trouble.cause is Cause.WARNING:
            return [*found, *self._settled(now)]
        found += self._watch()
        if self._unlooked():
            self._waits["look"] = now.mono + self.settings.answer_wait_s
            found.append(LookAtDevices())
        if self._needs_slurm(trouble, now):
            found.append(self._ask_slurm(now))
        if not self._attempt.step_gone:
            self._probed.clear()
            suspects = {self._tasks[rank].node for rank in self._attempt.lost} - self._attempt.gone.keys()
            found += self._probe(sorted(suspects), now)
        return [*found, *self._settled(now)]

    def _stop_ranks(self, grace_s: float) -> StopRanks:
        """A SIGTERM of long ago, which the ranks outlived, does not count as having asked them."""
        asked = self._trouble is not None and self._trouble.cause is Cause.WARNING and SIGTERM in self._ranks_signalled
        return StopRanks(self._attempt.number, grace_s, self.settings.kill_wait_s, asked)

    def _needs_slurm(self, trouble: Trouble, now: Now) -> bool:
        """Not where the ladder can answer from what is known: a restart in place works with slurmctld away."""
        if "ask" not in self.facts.can or "ask" in self._waits or self._slurm is not None:
            return False
        return self._attempt.killed or choose(self._situation(trouble, now)).rung != "in-place-restart"

    def _unlooked(self) -> bool:
        """Is there a node whose devices could still tell something? An agent that has not arrived yet may."""
        return any(
            node not in self._attempt.gone and (kinds is None or (kinds and node not in self._attempt.looked))
            for node, kinds in self._agents.items()
        )

    def _settled(self, now: Now) -> list[Decision]:
        """Decide, once there is nothing left to wait for."""
        if self.phase is not Phase.SETTLING:
            return []
        if self._attempt.all_stopped:
            self._waits.pop("stop", None)
        if not self._unlooked():
            self._waits.pop("look", None)
        return self._decide(now) if self._attempt.all_stopped and not self._waits else []

    def _rank_stopped(self, event: ev.RankStopped, now: Now) -> list[Decision]:
        if self._attempt.stop(event) and event.free_port:
            self._tasks[event.rank] = self._tasks[event.rank].with_port(event.free_port)
        return self._settled(now)

    def _rank_exited_late(self, event: ev.RankExited, now: Now) -> list[Decision]:
        self._attempt.exited(event)
        return []

    def _unstartable_late(self, event: ev.RankUnstartable, now: Now) -> list[Decision]:
        self._attempt.could_not_start(event)
        return []

    def _shim_lost_late(self, event: ev.ShimLost, now: Now) -> list[Decision]:
        self._attempt.close(event.rank, event.why)
        return self._settled(now)

    def _step_ended_late(self, event: ev.StepEnded, now: Now) -> list[Decision]:
        self._attempt.lose_step(f"the step ended; its launcher {event.status}")
        return self._settled(now)

    def _slurm_answered_late(self, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
        self._take(event, now)
        return self._settled(now)

    def _decide(self, now: Now) -> list[Decision]:
        trouble = self._trouble
        assert trouble is not None
        ended = self._attempt_ended(now)
        if self._slurm and self._slurm.state in ENDING_STATES and not self._slurm.error:
            return [*ended, *self._give_up(ENDING_STATES[self._slurm.state], trouble.status, now)]
        if trouble.cause is Cause.WARNING or (self._signal and not self._meaning) or self._meaning == "interrupted":
            return [*ended, *self._after_warning(trouble, now)]
        found = self._hints(now) if trouble.cause is Cause.HANG and not self._shown() else self._verdict(now)
        if not self._meaning and self._needs_slurm(trouble, now):
            # What was found while stopping has closed the rung that needed nothing.
            return [*ended, *found, self._ask_slurm(now)]
        hints = [decision for decision in found if isinstance(decision, Say)]
        notes = [decision for decision in found if not isinstance(decision, Say)]
        return [*ended, *notes, *self._climb(self._situation(trouble, now), now), *hints]

    def _hints(self, now: Now) -> list[Decision]:
        """Common reasons for a hang, once an attempt; now that the ranks have been stopped their last words are here."""
        if self._advise is None or self._attempt.advised:
            return []
        self._attempt.advised = True
        entered = any(view.groups for views in self._attempt.views.values() for view in views)
        found = [
            hint
            for hint in self._advise(self._attempt.rank_ends(self._tasks), self._attempt.evidence)
            if not (entered and hint[0] == "before-first-collective")
        ]
        notes = [self._note(rec.Advised(now.unix, self._attempt.number, *hint)) for hint in found]
        return [*notes, *(Say(f"hint: {what}: {advice}") for _, what, advice, _ in found)]

    def _verdict(self, now: Now, rank: int | None = None) -> list[Decision]:
        """What is behind it, once an attempt; `rank`: behind the end of that one alone."""
        attempt = self._attempt
        if self._diagnose is None or attempt.verdict is not None or not (attempt.number and attempt.ranks):
            return []
        faults = acting(self._shown(), self.history)
        ends = attempt.rank_ends(self._tasks, rank)
        v = self._diagnose(ends, faults, bad_nodes(self._slurm, attempt))
        v = attempt.verdict = with_own_words(v, ends, attempt.own_words())
        against = {
            blame: {suspect.node: suspect.why for suspect in v.suspects if suspect.blame is blame}
            for blame in (Blame.YES, Blame.SUSPECT)
        }
        ranks = tuple(end.rank for end in ends if end.status is not None and not end.status.ok and not end.stopped)
        found = rec.Diagnosed(
            now.unix, attempt.number, v.signature, v.error_class.value, v.retriable.value, v.confidence.value, v.what, v.evidence,
            against[Blame.YES], against[Blame.SUSPECT], ranks, len(attempt.ranks), v.program, bool(attempt.drills),
        )  # fmt: skip
        return [self._note(found)]

    def _attempt_ended(self, now: Now) -> list[Decision]:
        if self._attempt.written:
            return []
        self._attempt.written = True
        return [self._note(rec.AttemptEnded(now.unix, self._attempt.number, self._attempt.summary(), self._attempt.step))]

    def _after_warning(self, trouble: Trouble, now: Now) -> list[Decision]:
        """No failure, so no budget. Requeued only if the job asked for it and the signal was really a warning."""
        asked = self.settings.warning_requeue and self._meaning in ("warning", "")
        if not (asked and "requeue" in self.facts.can and self._slurm and self._slurm.batch):
            return self._give_up(trouble.what, self._status_after(trouble), now)
        choice = Choice("requeue-on-warning", "asked for by warning.requeue, costs nothing", "", ())
        return self._requeue(choice, self._situation(trouble, now), now)

    def _status_after(self, trouble: Trouble) -> int:
        """After a warning: a rank that had to be stopped has not done its work, whatever the others say."""
        if self._meaning != "warning" or trouble.cause is not Cause.WARNING:
            return trouble.status
        return max(self._warned().status, 0 if self._attempt.all_ended else 128 + SIGTERM)

    def _shown(self) -> tuple[Fault, ...]:
        shown = self._faults | self._attempt.faults
        return tuple(fault for key, fault in shown.items() if key not in self._left_alone)

    def _situation(self, trouble: Trouble, now: Now) -> Situation:
        return situation_of(
            trouble, self._attempt, self._tasks, self._shown(), self._slurm, self.history, self.settings, now.unix,
            self.facts.can, self.facts.remembered,
        )  # fmt: skip

    def _climb(self, situation: Situation, now: Now) -> list[Decision]:
        choice = choose(situation)
        if choice.rung in ("in-place-restart", "hang-restart"):
            return self._in_place(choice, situation, now)
        if choice.rung == "fail":
            return self._fail(choice, situation, now)
        return self._requeue(choice, situation, now)

    def _decision(self, choice: Choice, s: Situation, now: Now, isolate: bool = False) -> Remember:
        """The verdict, as it goes into the ledger before anything of it is done."""
        avoid = avoidable(tuple(self._faults.values()), s, self.facts.remembered)
        isolated = {**avoid, **s.blamed} if isolate else {}
        self._decided = rec.Decided(
            now.unix, f"{self.facts.run}-{self.history.decisions + 1}", self._attempt.number, choice.rung,
            s.cause.value, f"{s.what}; {choice.why}", choice.passed, isolated,
            tuple(sorted({*self._kept_out(now), *isolated})), choice.cost, s.status,
        )  # fmt: skip
        return self._note(self._decided, vital=True)

    # --- carrying out, one rung a method

    def _in_place(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        said = Say(f"{s.what}: {_IN_WORDS[choice.rung]} ({choice.why}){_behind(s)}")
        decided = self._decision(choice, s, now)
        if not s.faults:
            return [decided, said, *self._restart(now)]
        if self._attempt.lost:  # nobody has proven that those ranks are gone; the end of the step does
            return [decided, said, *self._end_step(0, lambda at: self._heal(s, at), now, self._step_stays)]
        return [decided, said, *self._heal(s, now)]

    def _heal(self, s: Situation, now: Now) -> list[Decision]:
        """No process of the job is left: the devices may be looked at again, and reset."""
        devices: dict[str, dict[str, tuple[str, ...]]] = {}
        for fault in s.faults:
            chips = devices.setdefault(fault.node, {})
            chips[fault.device] = (*chips.get(fault.device, ()), fault.code)
        self.phase = Phase.HEALING
        self._attempt.to_heal = {node: frozenset(chips) for node, chips in devices.items()}
        st = self.settings
        most = max(len(chips) for chips in devices.values())  # an agent heals one device after the other
        self._waits = {"heal": now.mono + most * (st.self_heal_wait_s + st.reset_wait_s) + MARGIN_S}
        ordered = {node: tuple(sorted(chips.items())) for node, chips in devices.items()}
        return [HealDevices(ordered, st.reset == "auto", st.self_heal_wait_s, st.reset_wait_s)]

    def _healing_done(self, event: ev.HealingDone, now: Now) -> list[Decision]:
        silent = self._attempt.to_heal.get(event.node, frozenset()) - {result.device for result in event.results}
        failed = [f"device {r.device}: {r.how}" for r in event.results if r.healed is not True]
        failed += [f"device {device}: nothing was heard of it" for device in sorted(silent)]
        if not self._attempt.healed(event.node, "; ".join(failed)):
            return []
        if not failed:
            for faults in (self._faults, self._attempt.faults):
                for key in [key for key in faults if key[0] == event.node]:
                    del faults[key]
        return self._healing_settled(now)

    def _healing_settled(self, now: Now) -> list[Decision]:
        """In place if every node is well; the next rung for those that are not."""
        if self._attempt.to_heal or self.phase is not Phase.HEALING:
            return []
        self._waits.pop("heal", None)
        assert self._decided is not None and self._trouble is not None
        failed = self._attempt.unhealed
        what = "; ".join(f"{node}: {why}" for node, why in sorted(failed.items())) or "healed"
        done = self._note(rec.CarriedOut(now.unix, self._decided.id, not failed, what))
        if not (failed or self._signal or self._not_by_shim()):
            return [done, *self._restart(now)]
        self.phase = Phase.SETTLING
        self._waits = {name: at for name, at in self._waits.items() if name == "ask"}
        return [done, *self._settled(now)]

    def _slurm_while_healing(self, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
        """The meaning of a signal: a job that is ending does not wait for its devices."""
        self._take(event, now)
        if event.state not in ENDING_STATES or event.error:
            return []
        return self._give_up(ENDING_STATES[event.state], 128 + (self._signal or SIGTERM), now)

    def _not_by_shim(self) -> bool:
        """Has the means of a restart gone while devices healed?"""
        return self.settings.restart_via == "shim" and bool(self._attempt.lost)

    def _restart(self, now: Now) -> list[Decision]:
        if self.settings.restart_via == "shim":
            return self._start(now)
        return self._end_step(0, self._launch, now, self._step_stays)

    def _step_stays(self, now: Now) -> list[Decision]:
        """The old step could not be ended: nothing may start beside it. A requeue ends it, or the end of the job."""
        self._attempt.step_gone = True  # as far as we can do anything about it
        self._attempt.not_in_place = f"the old step could not be ended within {2 * STEP_END_WAIT_S:g} s"
        self.phase, self._waits = Phase.SETTLING, {}
        return self._settled(now)

    def _requeue(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        decided = self._decision(choice, s, now, isolate=True)
        assert self._decided is not None
        budget = f", {self._left('max_restarts')} of {self.settings.max_restarts} left" if choice.cost else ""
        without = f" without {fold_nodes(self._decided.exclude)}" if self._decided.exclude else ""
        said = Say(f"{s.what}: {choice.rung}{without}{budget}{_behind(s)}")
        real = s.blamed and self.settings.memory_s and not self._attempt.drills
        tell: list[Decision] = [TellOthers(dict(s.blamed))] if real and choice.rung == "isolated-requeue" else []
        # The job goes on, so nothing is said of ranks that were only stopped.
        return [decided, said, *tell, *self._end_step(0, self._hand_over, now)]

    def _left(self, budget: str) -> int:
        return self.settings.max_restarts - self.history.spent.get(budget, 0)

    def _hand_over(self, _: Now) -> list[Decision]:
        """The step has ended and nothing of the job runs but its script and us: now the job may go."""
        assert self._decided is not None
        self.phase, self._waits = Phase.REQUEUEING, {}
        st = self.settings
        return [Requeue(self._decided.id, self._decided.exclude, st.start_in_s, st.even_if_no_requeue)]

    def _requeue_ended(self, event: ev.RequeueEnded, now: Now) -> list[Decision]:
        assert self._decided is not None
        if event.ok:
            done = self._note(rec.CarriedOut(now.unix, self._decided.id, True, event.why))
            return [done, *self._finish("requeued", REQUEUED_STATUS, now)]
        done = self._note(rec.CarriedOut(now.unix, self._decided.id, False, event.why))
        what = f"{self._decided.why}; the requeue failed: {event.why}"
        return [done, Say(what), *self._finish(what, self._decided.status or 1, now)]

    def _fail(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        decided = self._decision(choice, s, now)
        reasons = "; ".join(f"{rung}: {why}" for rung, why in choice.passed)
        quiet = s.cause is Cause.LAUNCH  # srun has said why in its own words
        said = Say(f"{s.what}{_behind(s)}. No rung of the ladder helps: {reasons}", quiet)
        return [decided, said, *self._end_step(s.status, lambda at: self._finish(s.what, s.status, at), now)]

    def _give_up(self, what: str, status: int, now: Now) -> list[Decision]:
        """Ended by somebody's will: no rung is asked and nothing is said that Slurm does not say."""
        return self._end_step(status, lambda at: self._finish(what, status, at), now)

    def _end_step(
        self, status: int, after: Callable[[Now], list[Decision]], now: Now,
        unended: Callable[[Now], list[Decision]] | None = None,
    ) -> list[Decision]:  # fmt: skip
        """unended: what follows if the step cannot be ended, where there is something to start again in `after`."""
        self._another_try = unended is not None or after == self._hand_over
        if self._attempt.step_gone:
            self.phase, self._after = Phase.ENDING, after
            return self._fenced(now)
        if self._attempt.lost:
            return self._kill_step(after, now, unended)
        self.phase, self._after, self._unended = Phase.ENDING, after, unended or after
        self._fence.let_go_at = now.mono
        self._waits = {"step": now.mono + STEP_END_WAIT_S}
        return [EndStep(0 if self._attempt.culprit else status, forget=unended is not None)]

    def _kill_step(
        self, after: Callable[[Now], list[Decision]], now: Now, unended: Callable[[Now], list[Decision]] | None = None
    ) -> list[Decision]:
        self.phase, self._after, self._unended = Phase.ENDING, after, unended or after
        self._fence.let_go_at = now.mono if self._fence.let_go_at is None else self._fence.let_go_at
        self._waits = {"killed step": now.mono + STEP_END_WAIT_S}
        return [KillStep()]

    def _fenced(self, now: Now) -> list[Decision]:
        """What follows, as soon as nothing of the old attempt can run any more beside what would be started."""
        left = self._fence.unproven(self._attempt, self._tasks, self.settings, now.mono) if self._another_try else {}
        if not left:
            self._waits = {}
            return self._after(now)
        first, self._waits = "lease" not in self._waits, {"lease": max(left.values())}
        if not first:
            return []
        nodes = fold_nodes({self._tasks[rank].node for rank in left})
        wait_s = self._waits["lease"] - now.mono
        return [Say(f"waiting {wait_s:.0f} s at the most, until the leases of the ranks on {nodes} have run out")]

    def _shim_closed(self, event: ev.ShimLost, now: Now) -> list[Decision]:
        self._attempt.close(event.rank, event.why)
        return self._fenced(now) if "lease" in self._waits else []

    def _stopped_while_ending(self, event: ev.RankStopped, now: Now) -> list[Decision]:
        self._attempt.stop(event)
        return self._fenced(now) if "lease" in self._waits else []

    def _silent_while_ending(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        self._fence.silent[event.node] = now.mono - event.silent_s
        return self._fenced(now) if "lease" in self._waits else []

    def _step_ended(self, event: ev.StepEnded, now: Now) -> list[Decision]:
        self._waits = {}
        self._attempt.step_gone = self._attempt.step_ended = True
        return self._fenced(now)

    def _ending_signalled(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """An impatient Ctrl-C while the step comes down: it is killed, and there is no other try."""
        if event.rank is None and event.number == SIGINT and self._another_try:
            self._another_try = False
            self._after = self._unended = lambda at: self._finish("interrupted by Ctrl-C", 128 + event.number, at)
            if "lease" in self._waits:
                return self._fenced(now)
        if event.rank is None and event.number == SIGTERM and self._another_try:
            self._kept_signal = event.number
            return []
        if event.rank is None and event.number in (SIGINT, SIGTERM) and "step" in self._waits:
            return self._kill_step(self._after, now, self._unended)
        return []

    def _finish(self, what: str, status: int, now: Now) -> list[Decision]:
        self.phase, self.exit_status, self._waits = Phase.FINISHED, status, {}
        return [self._note(rec.Finished(now.unix, self.facts.run, status, what)), Finish(status)]

    # --- time, and a ledger that cannot be written

    def _time_passed(self, _: ev.TimePassed, now: Now) -> list[Decision]:
        due = {name for name, deadline in self._waits.items() if deadline <= now.mono}
        for name in due:
            del self._waits[name]
        found: list[Decision] = []
        for name in sorted(due):
            found += _OVERDUE[name](self, now)
        return found

    def _watch_due(self, now: Now) -> list[Decision]:
        return self._watch()

    def _launch_overdue(self, now: Now) -> list[Decision]:
        """A warning came and the ranks that were to hear it do not."""
        self._meaning = "warning"
        what = f"the step did not come up after {signal_name(self._kept_signal)}"
        trouble = Trouble(Cause.WARNING, what, 128 + self._kept_signal)
        return self._kill_step(lambda at: self._after_warning(trouble, at), now)

    def _stop_overdue(self, now: Now) -> list[Decision]:
        self._attempt.lose_rest("no word whether its processes are gone")
        return self._settled(now)

    def _look_overdue(self, now: Now) -> list[Decision]:
        """Devices that do not answer are unknown: neither good nor to blame."""
        self._attempt.looked.update(self._agents)
        self._agents = {node: () if kinds is None else kinds for node, kinds in self._agents.items()}
        return self._settled(now)

    def _ask_overdue(self, now: Now) -> list[Decision]:
        silent = ev.SlurmAnswered(error=f"no answer within {self.settings.slurm_timeout_s:g} s")
        return self.handle(silent, now)  # type: ignore[return-value]

    def _warning_overdue(self, now: Now) -> list[Decision]:
        if self.phase is not Phase.RUNNING:
            return []
        return self._into_trouble(self._warned(), now)

    def _heal_overdue(self, now: Now) -> list[Decision]:
        for node in sorted(self._attempt.to_heal):
            self._attempt.healed(node, "no word from the agent while healing")
        return self._healing_settled(now)

    def _step_overdue(self, now: Now) -> list[Decision]:
        return self._kill_step(self._after, now, self._unended)

    def _killed_step_overdue(self, now: Now) -> list[Decision]:
        """The launcher cannot end it either; Slurm's own clean-up is all that is left."""
        self._attempt.step_gone = True
        self._after = self._unended
        return self._fenced(now)

    def _lease_due(self, now: Now) -> list[Decision]:
        return self._fenced(now) if self.phase is Phase.ENDING else []

    def _ledger_failed(self, event: ev.LedgerFailed, now: Now) -> list[Decision]:
        """What could not be written is not done: the job ends as if there were no ladder."""
        status = self._trouble.status if self._trouble else 1
        what = f"{self._trouble.what if self._trouble else 'cannot go on'}; nothing was done about it: {event.why}"
        if self.phase is Phase.FINISHED:
            return [Say(what), Finish(self.exit_status)]
        return [Say(what), *self._end_step(status, lambda at: self._finish(what, status, at), now)]


def budgets(settings: Settings) -> dict[str, int]:
    """Budget name -> limit; the names are those of `Decided.cost`."""
    return {
        "max_restarts": settings.max_restarts,
        "crash_restarts": settings.crash_restarts,
        "node_replacements": settings.node_replacements,
    }


def _behind(s: Situation) -> str:
    """What is behind it, for people; nothing where only the status is known, which is said already."""
    v = s.verdict
    if v is None or v.confidence is Confidence.NONE or v.what in s.what:
        return ""
    return f" [{v.error_class.value}: {v.what}]"


_IN_WORDS = {"in-place-restart": "restarting in place", "hang-restart": "starting all ranks again in place"}


def _fault_record(fault: Fault, now: Now) -> rec.FaultSeen:
    return rec.FaultSeen(
        now.unix, fault.node, fault.device, fault.code, fault.name, fault.fault_class.value, fault.user_induced
    )


_OVERDUE: dict[str, Callable[[Judge, Now], list[Decision]]] = {
    "watch": Judge._watch_due,
    "mend": Judge._mend_overdue,
    "use": Judge._use_known,
    "exit": Judge._exit_overdue,
    "evidence": Judge._evidence_overdue,
    "examine": Judge._look_closer,
    "compare": Judge._compare,
    "launch": Judge._launch_overdue,
    "pass on": Judge._passed_on,
    "stop": Judge._stop_overdue,
    "look": Judge._look_overdue,
    "ask": Judge._ask_overdue,
    "warning": Judge._warning_overdue,
    "heal": Judge._heal_overdue,
    "step": Judge._step_overdue,
    "killed step": Judge._killed_step_overdue,
    "probe": Judge._probe_overdue,
    "silence": Judge._silence_goes_on,
    "leases": Judge._leases_over,
    "lease": Judge._lease_due,
    "others": Judge._others_over,
}

_N, _L, _R, _S, _H, _E, _Q = (
    Phase.NEW, Phase.LAUNCHING, Phase.RUNNING, Phase.SETTLING, Phase.HEALING, Phase.ENDING, Phase.REQUEUEING,
)  # fmt: skip
# What agents, Slurm and broken connections may still say when nobody asks any more.
_BESIDE = {ev.ShimLost, ev.AgentArrived, ev.AgentLost, ev.DevicesSeen, ev.SlurmAnswered, ev.HealingDone}

TABLE: Mapping[tuple[Phase, type], Callable[..., list[Decision]]] = {
    (_N, ev.Begun): Judge._begun,
    # the step comes up
    (_L, ev.TaskArrived): Judge._task_arrived,
    (_L, ev.StepEnded): Judge._launch_ended,
    (_L, ev.ShimLost): Judge._launch_lost,
    (_L, ev.SignalSeen): Judge._launch_signalled,
    (_L, ev.AgentArrived): Judge._agent_arrived,
    (_L, ev.AgentLost): Judge._agent_lost,
    (_L, ev.DevicesSeen): Judge._nothing,  # looked at again while ranks run
    (_L, ev.SlurmAnswered): Judge._slurm_answered_late,
    # ranks run
    (_R, ev.RankStarted): Judge._nothing,
    (_R, ev.RankExited): Judge._rank_exited,
    (_R, ev.RankUnstartable): Judge._rank_unstartable,
    (_R, ev.RankStopped): Judge._stopped_alone,
    (_R, ev.ShimLost): Judge._shim_lost,
    (_R, ev.NodeSilent): Judge._node_silent,
    (_R, ev.NodeProbed): Judge._node_probed,
    (_R, ev.StepEnded): Judge._step_ended_early,
    (_R, ev.AgentArrived): Judge._agent_arrived,
    (_R, ev.AgentLost): Judge._agent_lost,
    (_R, ev.DevicesSeen): Judge._devices_seen,
    (_R, ev.SignalSeen): Judge._signalled,
    (_R, ev.SlurmAnswered): Judge._slurm_answered,
    (_R, ev.QuietSeen): Judge._quiet_seen,
    (_R, ev.UseSampled): Judge._use_sampled,
    (_R, ev.RankSilent): Judge._rank_silent,
    (_R, ev.EvidenceTaken): Judge._evidence_taken,
    (_R, ev.StallSeen): Judge._stall_seen,
    (_R, ev.RanksCompared): Judge._compared,
    (_R, ev.StageSet): Judge._stage_set,
    (_R, ev.Progressed): Judge._progressed,
    (_R, ev.BeatOverdue): Judge._beat_overdue,
    (_R, ev.ProgramSaid): Judge._program_said,
    # ranks are being stopped, facts collected
    (_S, ev.RankStarted): Judge._nothing,
    (_S, ev.RankExited): Judge._rank_exited_late,
    (_S, ev.RankUnstartable): Judge._unstartable_late,
    (_S, ev.RankStopped): Judge._rank_stopped,
    (_S, ev.ShimLost): Judge._shim_lost_late,
    (_S, ev.NodeSilent): Judge._node_silent,
    (_S, ev.NodeProbed): Judge._node_probed,
    (_S, ev.StepEnded): Judge._step_ended_late,
    (_S, ev.AgentArrived): Judge._agent_arrived,
    (_S, ev.AgentLost): Judge._agent_lost,
    (_S, ev.DevicesSeen): Judge._devices_looked_at,
    (_S, ev.SignalSeen): Judge._signalled_late,
    (_S, ev.SlurmAnswered): Judge._slurm_answered_late,
    # devices heal
    (_H, ev.HealingDone): Judge._healing_done,
    (_H, ev.ShimLost): Judge._shim_lost_late,
    (_H, ev.StepEnded): Judge._step_ended_late,
    (_H, ev.AgentLost): Judge._agent_lost,
    (_H, ev.AgentArrived): Judge._nothing,
    (_H, ev.DevicesSeen): Judge._nothing,  # the healing agent's own result is what counts
    (_H, ev.SignalSeen): Judge._signalled_late,
    (_H, ev.SlurmAnswered): Judge._slurm_while_healing,
    # the step is let go
    (_E, ev.StepEnded): Judge._step_ended,
    (_E, ev.SignalSeen): Judge._ending_signalled,
    **{
        (_E, kind): Judge._nothing
        for kind in (_BESIDE | {ev.TaskArrived}) - {ev.ShimLost}
    },
    # the job is given back: a signal now is the requeue's own
    (_Q, ev.RequeueEnded): Judge._requeue_ended,
    **{
        (_Q, kind): Judge._nothing
        for kind in _BESIDE | {ev.SignalSeen, ev.StepEnded}
    },
    # stragglers of an attempt that is over
    **{
        (phase, kind): Judge._nothing
        for phase in (_L, _H, _E, _Q)
        for kind in (ev.RankStarted, ev.RankExited, ev.RankStopped, ev.RankUnstartable)
        if (phase, kind) != (_E, ev.RankStopped)
    },
    **{(phase, ev.HealingDone): Judge._nothing for phase in (_L, _R, _S)},
    **{(phase, ev.TaskArrived): Judge._nothing for phase in (_R, _S, _H, _Q)},
    # signs of life and of none, when nobody asks any more
    **{
        (phase, kind): Judge._nothing
        for phase in (_L, _S, _H, _E, _Q)
        for kind in (ev.QuietSeen, ev.UseSampled, ev.RankSilent, ev.BeatOverdue, ev.StallSeen, ev.RanksCompared, ev.StageSet)
    },
    **{(phase, ev.Progressed): Judge._progressed for phase in (_L, _S, _H, _E, _Q)},
    **{(phase, ev.ProgramSaid): Judge._program_said for phase in (_L, _S, _H, _E, _Q)},
    **{(phase, ev.EvidenceTaken): Judge._evidence_taken for phase in (_L, _S, _H, _E, _Q)},
    # drills: only while ranks run
    (_R, ev.DrillAsked): Judge._drill,
    **{(phase, ev.DrillAsked): Judge._no_drill for phase in (_L, _S, _H, _E, _Q)},
    # silence, when nobody waits for the node, and what counts of it then
    (_L, ev.NodeSilent): Judge._silent_meanwhile,
    (_H, ev.NodeSilent): Judge._silent_meanwhile,
    (_E, ev.NodeSilent): Judge._silent_while_ending,
    (_E, ev.ShimLost): Judge._shim_closed,
    (_E, ev.RankStopped): Judge._stopped_while_ending,
    (_Q, ev.NodeSilent): Judge._nothing,
    **{(phase, ev.NodeProbed): Judge._nothing for phase in (_L, _H, _E, _Q)},
    **{(phase, ev.NodeHeard): Judge._node_heard for phase in (_L, _R, _S, _H, _E, _Q)},
    # time and the ledger, whenever
    **{(phase, ev.TimePassed): Judge._time_passed for phase in (_L, _R, _S, _H, _E, _Q)},
    **{(phase, ev.LedgerFailed): Judge._ledger_failed for phase in Phase if phase is not _N},
}
