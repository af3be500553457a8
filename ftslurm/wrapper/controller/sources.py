"""Everything that happens, as events: connections, child processes, signals, background work, and the clock."""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from ftslurm.errors import WireError
from ftslurm.launchers.launcher import StepHandle
from ftslurm.model.devices import CodeMeaning, DeviceHealth, Fault, ProbeAnswer, Severity
from ftslurm.model.events import (
    AgentArrived,
    AgentLost,
    BeatOverdue,
    ControlAsked,
    CutOff,
    DevicesSeen,
    DrillAsked,
    Event,
    EvidenceTaken,
    Hangup,
    HealingDone,
    InTouch,
    PartEnded,
    ProgramSaid,
    Progressed,
    QuietSeen,
    RankPaused,
    RanksAlive,
    RanksCompared,
    ShimLeft,
    ShimLost,
    SignalSeen,
    StageSet,
    StallSeen,
    StepEnded,
    StoodStill,
    TaskArrived,
    TimePassed,
    UseSampled,
)
from ftslurm.model.messages import wire
from ftslurm.model.messages.live import LiveReported, StacksReported
from ftslurm.model.record import Requested
from ftslurm.policies.lease.contact import Contact
from ftslurm.policies.lease.touch import Touch
from ftslurm.system.clock import Clock
from ftslurm.wrapper.controller.signals import SIGCHLD, SIGSTOP, SIGTSTP, Signals
from ftslurm.wrapper.shim.signals import waking
from ftslurm.wrapper.wire.caller import Caller
from ftslurm.wrapper.wire.channel import Message, Peer, Server

if TYPE_CHECKING:
    from ftslurm.wrapper.controller.checkpoints import CheckpointWatch

# Later than asked by so much, and we were stopped or had no CPU: then it was not the others who were silent.
AWAY_S = 2.0
# For so long those who talk are listened to before anybody's silence is looked at.
BUSY_S = 1.0
# epoll_wait(2) takes its time as an int of milliseconds, 24 days; whoever waits for longer looks at the clock in between.
LONG_S = 86400.0
# From SIGTSTP to obeying it. Slurm sends it to every process of a job that it will stop two seconds later, and meanwhile the
# shims ask for their leases to be kept; for somebody at a terminal it is soon enough.
STOP_AFTER_S = 1.0
# From one look for requests of the owner's to the next. People wait for the answer, and a file server has thousands of jobs.
REQUESTS_S = 2.0

Meaning = Callable[[str, str, Severity], CodeMeaning]  # kind of device, code, severity


class Observer(Protocol):
    """Sees for people what is said, and decides nothing. Called in the loop; short, and never raises."""

    def rank_said(self, rank: int, report: object) -> None: ...

    def node_said(self, node: str, report: LiveReported | StacksReported) -> None: ...

    def new_step(self) -> None: ...


class Sources:
    """The one queue. `next` is the only place where ftrun waits.

    shims: rank -> its caller. agents: node -> its caller. askers: number -> connection of an order for a drill.
    meaning: looks a fault code up (and loads the catalogue then). lease_s, silence_s, grace_s: see the settings. runs: does
    slurmctld say that the job runs? It may take long. handover_plan: what an agent of that node is told for the case that we die.
    """

    def __init__(
        self, clock: Clock, signals: Signals, meaning: Meaning, address: str = "", lease_s: float = 60.0, silence_s: float = 15.0,
        grace_s: float = 20.0, ports: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._meaning = meaning
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Event] = deque()
        self._signals = signals
        self._selector.register(signals.fd, selectors.EVENT_READ, self._signalled)
        self._wake_read, self._wake_write = waking()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda _: os.read(self._wake_read, 4096))
        self.server = Server(self._selector, self._message, self._lost, address, ports)
        self.shims: dict[int, Caller] = {}
        self.agents: dict[str, Caller] = {}
        self._leaving: dict[int, Caller] = {}  # shims that were let go and are still there
        self._lease_s, self._silence_s, self._grace_s = lease_s, silence_s, grace_s
        self._contact = Contact(silence_s)
        self._touch = Touch(silence_s)
        self._cut_off = False
        self._launch = 0  # how often a step was launched
        self._size = 0  # tasks of the step, 0 until the first has said it
        self.runs: Callable[[], bool] = lambda: True
        self.handover_plan: Callable[[str], Message | None] = lambda node: None
        self.askers: dict[int, Peer] = {}  # who waits to hear what became of a drill
        self.observer: Observer | None = None  # for people, who watch
        self._soon: deque[Callable[[], object]] = deque()
        self.step: StepHandle | None = None
        self._stop_at: float | None = None  # monotonic
        self._coming: dict[str, StepHandle] = {}  # node -> the step that brings its agent, until it has called
        self._beats, self._beat_at, self._training_step = 0, 0.0, 0
        self._over = threading.Event()
        self._checkpoints: CheckpointWatch | None = None

    def numbers(self) -> tuple[int, float, int, int]:
        """For monitoring, from any thread: beats so far, when the last came (Unix seconds, 0: none yet), ranks that are in touch,
        and the training step (0: not told)."""
        return self._beats, self._beat_at, len(self.shims), self._training_step

    def next(self, until: float | None) -> Event:
        """The next event; TimePassed when `until` (monotonic seconds) comes first. Blocks."""
        while not self._queue:
            moments = [at for at in (until, self._contact.wakes_at, self.server.wakes_at, self._stop_at) if at is not None]
            wait_s = min(max(0.0, min(moments) - self._clock.mono()), LONG_S) if moments else None
            ready = self._selector.select(wait_s)
            for key, events in ready:
                key.data(events)
            while self._soon:
                self._soon.popleft()()
            now = self._clock.mono()
            if moments and now - min(moments) > AWAY_S:
                self._contact.excuse(now)
                self._queue.appendleft(StoodStill(now - min(moments)))
            if self._stop_at is not None and now >= self._stop_at:
                self._stop_at = None
                os.kill(os.getpid(), SIGSTOP)
                continue
            self.server.sweep(now)
            wakes_at = self._contact.wakes_at
            # Best when whatever had come in is known; but somebody may always have something to say.
            if not ready or (wakes_at is not None and now - wakes_at >= BUSY_S):
                self._queue.extend(self._gone(self._contact.due(now)))
            if not self._queue and until is not None and now >= until:
                return TimePassed()
        return self._queue.popleft()

    def put(self, event: Event) -> None:
        """From any thread."""
        self._queue.append(event)
        self._wake()

    def soon(self, work: Callable[[], object]) -> None:
        """Do `work`, which is short and does not raise, in the loop. From any thread."""
        if not self._over.is_set():
            self._soon.append(work)
            self._wake()

    def heard_s(self) -> dict[str, float]:
        """node -> seconds since anything of it was heard."""
        return self._contact.ages(self._clock.mono())

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"!")
        except OSError:
            pass  # the pipe is full of wake-ups already, or the loop has ended

    def background(self, work: Callable[[], Event]) -> None:
        """Do `work`, which may take long, beside the loop; its answer becomes an event. It must not raise."""
        threading.Thread(target=lambda: self.put(work()), daemon=True).start()

    def background_to_the_end(self, work: Callable[[], Event]) -> None:
        """Likewise, and ftrun does not end before it has: for what may not be cut off."""
        threading.Thread(target=lambda: self.put(work())).start()

    def listen(self, look: Callable[[], Sequence[Requested]], every_s: float = REQUESTS_S) -> None:
        """Look for requests beside the loop: a file system that hangs shall not keep beats from being answered."""

        def keep_looking() -> None:
            while not self._over.is_set():
                try:
                    for request in look():
                        if not self._over.is_set():
                            self.put(ControlAsked(request))
                except OSError:
                    pass  # of a ledger that is not there yet, or that nobody can read now, ftrun itself complains when it writes
                self._over.wait(every_s)

        threading.Thread(target=keep_looking, daemon=True).start()

    def watch_checkpoints(self, patterns: tuple[str, ...], settle_s: float) -> None:
        """patterns: none to look no more."""
        if self._checkpoints is not None:
            self._checkpoints.stop()
        self._checkpoints = None
        if patterns:
            from ftslurm.wrapper.controller.checkpoints import CheckpointWatch  # rarely asked for

            self._checkpoints = CheckpointWatch(patterns, settle_s, self.put)
            self._checkpoints.start()

    def farewell(self) -> None:
        """The shims have been let go: nothing that they say from here on counts, and their leases run out. That they go
        does count."""
        for caller in self.shims.values():
            caller.let_go = True
        self._leaving.update(self.shims)
        self.shims = {}

    def new_step(self) -> int:
        """Whoever is left of the step before has nothing to say about the next. Gives the number of its launch, from 1."""
        self._launch += 1
        if self.observer is not None:
            self.observer.new_step()
        for caller in (*self.shims.values(), *self._leaving.values()):
            caller.let_go = True
            self._contact.forget(caller.owner)
        self.shims, self._leaving, self._size = {}, {}, 0
        self._touch.new_step(self.agents.keys())
        return self._launch

    def dismiss_agents(self, nodes: Sequence[str] | None = None) -> None:
        """Those of `nodes`, None for all."""
        self._coming = {node: step for node, step in self._coming.items() if nodes is not None and node not in nodes}
        for caller in [caller for node, caller in self.agents.items() if nodes is None or node in nodes]:
            caller.let_go = True
            caller.send({"t": "bye"})
            self._contact.forget(caller.owner)
            caller.close("nothing is left to do for it")
            del self.agents[caller.node]
            if all(shim.node != caller.node for shim in self.shims.values()):
                self._touch.forget(caller.node)

    def close(self) -> None:
        self._over.set()
        self.watch_checkpoints((), 0.0)
        self.server.close()
        self._signals.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- what comes in

    def _signalled(self, _: int) -> None:
        for number in self._signals.read():
            if number == SIGTSTP:
                self._stop_at = self._clock.mono() + STOP_AFTER_S
            elif number != SIGCHLD:
                self._queue.append(SignalSeen(number))
            else:
                self._child_ended()

    def _child_ended(self) -> None:
        self._queue.extend(self._never_came())
        if self.step is not None and (status := self.step.ended()) is not None:
            self.step = None
            self._queue.append(StepEnded(status))
            self._contact.no_return({*self.shims, *self._leaving}, self._clock.mono())
        elif self.step is not None and (ranks := self.step.ranks_ended()):
            self._contact.no_return(set(ranks), self._clock.mono())
            if absent := ranks - self.shims.keys() - self._leaving.keys():
                self._queue.append(PartEnded(tuple(sorted(absent))))

    def agents_come(self, nodes: Iterable[str], step: StepHandle) -> None:
        """An agent of each of `nodes` is on its way, by `step`."""
        self._coming.update(dict.fromkeys(nodes, step))

    def _never_came(self) -> list[Event]:
        """Agents whose launcher has ended before they called: slurmctld was away, say."""
        ends = {node: status for node, step in self._coming.items() if (status := step.ended()) is not None}
        for node in ends:
            del self._coming[node]
        return [AgentLost(node, f"its launcher {status}") for node, status in ends.items()]

    def _message(self, peer: Peer, message: Message) -> None:
        try:
            self._queue.extend(self._events(peer, message))
        except WireError as error:
            if isinstance(peer.owner, Caller):
                self._not_understood(peer.owner, str(error))
            else:
                peer.send({"t": "refused", "why": str(error)[:200]})
            self.server.drop(peer, str(error))

    def _not_understood(self, caller: Caller, why: str) -> None:
        """It would say the same again over another connection: its conversation is over."""
        now = self._clock.mono()
        self._contact.record_loss(caller.owner, why, now)
        self._contact.no_return({caller.owner}, now)
        caller.let_go = True

    def _events(self, peer: Peer, message: Message) -> Sequence[Event]:
        caller = peer.owner
        if caller is None:
            return (*self._touched(self._clock.mono()), *self._introduced(peer, wire.hello(message)))
        if not isinstance(caller, Caller):
            return ()
        heard = self._contact.record_message(caller.owner, self._clock.mono()) if self._is_known(caller) else ()
        if message.get("t") == "beat":
            heard = (*heard, *self._beat(caller, message))
        before = caller.paused
        new = caller.hear(message, self._cut_off)
        news = (*heard, *self._paused(caller, before))
        if not new or caller.let_go:
            return news
        return (*news, *self._reported(caller.owner, message))

    def _beat(self, caller: Caller, message: Message) -> Sequence[Event]:
        """It is about to be answered: are we the ones who are cut off, and may renew no lease?"""
        now = self._clock.mono()
        self._beats, self._beat_at = self._beats + 1, self._clock.now().unix
        number, has = message.get("k"), message.get("r", 0)
        if type(number) is int and type(has) is int:
            self._touch.record_beat(caller.owner, caller.node, number, has, now)
        if self._touch.asks(now):
            threading.Thread(target=self._ask_whether_it_runs, daemon=True).start()
        return self._touched(now)

    def _touched(self, now: float) -> Sequence[Event]:
        """Looked at before each answer: of what was found for the nodes of one step, nothing holds for those of the next."""
        before, self._cut_off = self._cut_off, self._touch.cut_off(now)
        if before == self._cut_off:
            return ()
        return (CutOff(),) if self._cut_off else (InTouch(),)

    def _ask_whether_it_runs(self) -> None:
        if self.runs():
            self._touch.slurm(self._clock.mono())

    def _paused(self, caller: Caller, before: bool) -> Sequence[Event]:
        """Promised, or over. An agent has nothing that needs it."""
        if caller.paused == before or not isinstance(caller.owner, int):
            return ()
        return (RankPaused(caller.owner, caller.paused),)

    def _reported(self, owner: int | str, message: Message) -> Sequence[Event]:
        if isinstance(owner, int):
            said = wire.shim_report(owner, message)
            if self.observer is not None:
                self.observer.rank_said(owner, said)
            return (*_last_notes(owner, message), said)
        report = wire.agent_report(message)
        if isinstance(report, (LiveReported, StacksReported)):
            if self.observer is not None:
                self.observer.node_said(owner, report)
            return ()
        if isinstance(report, wire.HealingReported):
            return (HealingDone(owner, report.results),)
        if isinstance(report, (BeatOverdue, ProgramSaid, StageSet)):
            return (report,)
        if isinstance(report, wire.QuietReported):
            return (QuietSeen(owner, report.quiet_s, report.what, report.attempt),)
        if isinstance(report, wire.UseReported):
            return (UseSampled(owner, report.unchanged, report.what, report.attempt),)
        if isinstance(report, wire.EvidenceReported):
            return (EvidenceTaken(owner, report.text, report.views, report.attempt),)
        if isinstance(report, Progressed):
            self._training_step = max(self._training_step, report.step)
        if isinstance(report, (StallSeen, RanksCompared, Progressed, RanksAlive)):
            return (replace(report, node=owner),)
        return (DevicesSeen(owner, self._graded(owner, report.answer), report.asked, report.answer.error, there=report.there),)

    def _introduced(self, peer: Peer, hello: wire.ShimHello | wire.AgentHello | DrillAsked) -> Sequence[Event]:
        if isinstance(hello, DrillAsked):
            peer.owner, number = _Asker(), id(peer)
            self.askers[number] = peer
            return (replace(hello, asker=number),)
        if isinstance(hello, wire.AgentHello):
            new, news = self._connected(self.agents, hello.node, hello.node, peer, hello)
            plan = self.handover_plan(hello.node) if new else None
            if plan is not None:
                self.agents[hello.node].send(plan)
            self._coming.pop(hello.node, None)
            return (*news, AgentArrived(hello.node, hello.kinds)) if new else news
        rank = hello.task.rank
        leaving = self._leaving.get(rank)
        if leaving is not None and leaving.is_called(hello.talk):
            return self._connected(self._leaving, rank, hello.task.node, peer, hello)[1]
        if hello.launch != self._launch:  # its launcher was given up before it called
            raise WireError(f"{rank} belongs to a step that was given up")
        if self._size not in (0, hello.expected):
            raise WireError(f"rank {rank} says that the step has {hello.expected} tasks, and the others say {self._size}")
        before = rank in self.shims and self.shims[rank].paused
        new, news = self._connected(self.shims, rank, hello.task.node, peer, hello)
        self._leaving.pop(rank, None)
        self._size, self.shims[rank].place = hello.expected, (hello.task.slot, hello.task.local_rank)
        came = (*news, *self._paused(self.shims[rank], before))
        return (*came, TaskArrived(hello.task, hello.expected, hello.step)) if new else came

    def _connected(
        self, callers: dict[Any, Caller], owner: Any, node: str, peer: Peer, hello: wire.ShimHello | wire.AgentHello
    ) -> tuple[bool, Sequence[Event]]:
        """Is it somebody new, and not one we know over another connection? And what follows from its being there.

        Raises: WireError.
        """
        caller = callers.get(owner)
        new = caller is None
        if caller is None:
            if hello.has:
                raise WireError(f"{owner} goes on with a conversation that has ended")
            caller = callers[owner] = Caller(owner, node, hello.talk, self._lease_s, self._silence_s, self._grace_s)
        elif not caller.is_called(hello.talk):
            raise WireError(f"a second connection for {owner}")
        elif caller.let_go and callers is not self._leaving:
            raise WireError(f"{owner} could not be understood and is lost")
        peer.owner = caller
        now = self._clock.mono()
        news = self._contact.record_connection(owner, node, now)
        before = caller.use(peer, hello.has, self._cut_off)  # which may find that it has gone again
        self._touch.record_greeting(owner, node, now)
        if before is not None:
            self.server.drop(before, "it has called again")
        return new, news

    def _graded(self, node: str, answer: ProbeAnswer) -> tuple[Fault, ...]:
        """Every code of every chip that is not well, looked up."""
        faults = []
        for report in answer.reports:
            if report.health is DeviceHealth.FAULTY:
                for code in report.codes:
                    m = self._meaning(report.kind, code, report.severity)
                    faults.append(Fault(node, report.device, m.code, m.name, m.fault_class, m.user_induced))
        return tuple(faults)

    def _lost(self, peer: Peer, why: str, hangup: Hangup) -> None:
        """A connection broke. Who does not call again is lost; Contact says when."""
        caller = peer.owner
        if isinstance(caller, Caller) and caller.left(peer) and self._is_known(caller):
            self._contact.record_loss(caller.owner, why, self._clock.mono(), hangup)
            if hangup is not Hangup.NONE and isinstance(caller.owner, int) and self._leaving.get(caller.owner) is caller:
                self._queue.append(ShimLeft(caller.owner))

    def _is_known(self, caller: Caller) -> bool:
        """Has nobody taken its place, such as the shim of the same rank in a later step?"""
        owner: Any = caller.owner
        return caller in (self.shims.get(owner), self._leaving.get(owner), self.agents.get(owner))

    def _gone(self, news: Sequence[Event]) -> Sequence[Event]:
        """Those that are lost are callers no more."""
        for event in news:
            if isinstance(event, ShimLost):
                (self._leaving if event.rank in self._leaving else self.shims).pop(event.rank, None)
            elif isinstance(event, AgentLost):
                self.agents.pop(event.node, None)
        return news


class _Asker:
    """The owner of a connection that brought an order for a drill."""


def _last_notes(rank: int, message: Message) -> tuple[ProgramSaid, ...]:
    """What the program has said shortly before its end, of which its agent may know nothing yet, or never. Raises: WireError."""
    place, data = wire.shim_notes(message)
    if not data:
        return ()
    from ftslurm.sdk.notes import in_words, placed_notes

    told = [(end, in_words(note)) for end, note in placed_notes(data, place)]
    number = message.get("attempt")
    attempt = number if type(number) is int else 0
    return tuple(ProgramSaid(rank, words[0], words[1], attempt, end) for end, words in told if words is not None)
