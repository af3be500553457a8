"""Everything that happens, as events: connections, child processes, signals, background work, and the clock."""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ftslurm.errors import WireError
from ftslurm.launchers.launcher import StepHandle
from ftslurm.model import wire
from ftslurm.model.devices import CodeMeaning, DeviceHealth, Fault, ProbeAnswer, Severity
from ftslurm.model.events import (
    AgentArrived,
    AgentLost,
    BeatOverdue,
    DevicesSeen,
    DrillAsked,
    Event,
    EvidenceTaken,
    HealingDone,
    ProgramSaid,
    Progressed,
    QuietSeen,
    RanksCompared,
    ShimLost,
    SignalSeen,
    StageSet,
    StallSeen,
    StepEnded,
    TaskArrived,
    TimePassed,
    UseSampled,
)
from ftslurm.system.clock import Clock
from ftslurm.wrapper.channel import Message, Peer, Server
from ftslurm.wrapper.signals import SIGCHLD, Signals

Meaning = Callable[[str, str, Severity], CodeMeaning]  # kind of device, code, severity


class Sources:
    """The one queue. `next` is the only place where ftrun waits.

    shims: rank -> connection. agents: node -> connection. askers: number -> connection of an order for a drill.
    meaning: looks a fault code up (and loads the catalogue then).
    """

    def __init__(self, clock: Clock, signals: Signals, meaning: Meaning, address: str = "") -> None:
        self._clock = clock
        self._meaning = meaning
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Event] = deque()
        self._signals = signals
        self._selector.register(signals.fd, selectors.EVENT_READ, self._signalled)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda _: os.read(self._wake_read, 4096))
        self.server = Server(self._selector, self._message, self._lost, address)
        self.shims: dict[int, Peer] = {}
        self.agents: dict[str, Peer] = {}
        self.askers: dict[int, Peer] = {}  # who waits to hear what became of a drill
        self.step: StepHandle | None = None

    def next(self, until: float | None) -> Event:
        """The next event; TimePassed when `until` (monotonic seconds) comes first. Blocks."""
        while not self._queue:
            wait_s = None if until is None else until - self._clock.mono()
            if wait_s is not None and wait_s <= 0:
                return TimePassed()
            for key, events in self._selector.select(wait_s):
                key.data(events)
        return self._queue.popleft()

    def put(self, event: Event) -> None:
        """From any thread."""
        self._queue.append(event)
        try:
            os.write(self._wake_write, b"!")
        except BlockingIOError:
            pass  # the pipe is full of wake-ups already

    def background(self, work: Callable[[], Event]) -> None:
        """Do `work`, which may take long, beside the loop; its answer becomes an event. It must not raise."""
        threading.Thread(target=lambda: self.put(work()), daemon=True).start()

    def farewell(self) -> None:
        """The shims have been let go: what they do from here on is no event."""
        for peer in self.shims.values():
            peer.owner = _Gone()
        self.shims = {}

    def close(self) -> None:
        self.server.close()
        self._signals.close()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # --- what comes in

    def _signalled(self, _: int) -> None:
        for number in self._signals.read():
            if number != SIGCHLD:
                self._queue.append(SignalSeen(number))
            elif self.step is not None and (status := self.step.ended()) is not None:
                self.step = None
                self._queue.append(StepEnded(status))

    def _message(self, peer: Peer, message: Message) -> None:
        try:
            self._queue.extend(self._events(peer, message))
        except WireError as error:
            self.server.drop(peer, str(error))

    def _events(self, peer: Peer, message: Message) -> Sequence[Event]:
        owner = peer.owner
        if owner is None:
            return self._introduced(peer, wire.hello(message))
        if isinstance(owner, _Gone):
            return ()
        if isinstance(owner, int):
            return (wire.shim_report(owner, message),)
        report = wire.agent_report(message)
        if isinstance(report, wire.HealingReported):
            return (HealingDone(owner, report.results),)
        if isinstance(report, (BeatOverdue, ProgramSaid, StageSet)):
            return (report,)
        if isinstance(report, wire.QuietReported):
            return (QuietSeen(owner, report.quiet_s, report.what),)
        if isinstance(report, wire.UseReported):
            return (UseSampled(owner, report.unchanged, report.what),)
        if isinstance(report, wire.EvidenceReported):
            return (EvidenceTaken(owner, report.text, report.views),)
        if isinstance(report, (StallSeen, RanksCompared, Progressed)):
            return (replace(report, node=owner),)
        return (DevicesSeen(owner, self._graded(owner, report.answer), report.asked, report.answer.error),)

    def _introduced(self, peer: Peer, hello: wire.ShimHello | wire.AgentHello | DrillAsked) -> Sequence[Event]:
        if isinstance(hello, DrillAsked):
            peer.owner, number = _Gone(), id(peer)
            self.askers[number] = peer
            return (replace(hello, asker=number),)
        if isinstance(hello, wire.AgentHello):
            self._take_place(self.agents, hello.node, peer)
            return (AgentArrived(hello.node, hello.kinds),)
        self._take_place(self.shims, hello.task.rank, peer)
        return (TaskArrived(hello.task, hello.expected, hello.step),)

    def _take_place(self, peers: dict[Any, Peer], owner: Any, peer: Peer) -> None:
        if owner in peers:
            raise WireError(f"a second connection for {owner}")
        peer.owner = owner
        peers[owner] = peer

    def _graded(self, node: str, answer: ProbeAnswer) -> tuple[Fault, ...]:
        """Every code of every chip that is not well, looked up."""
        faults = []
        for report in answer.reports:
            if report.health is DeviceHealth.FAULTY:
                for code in report.codes:
                    m = self._meaning(report.kind, code, report.severity)
                    faults.append(Fault(node, report.device, m.code, m.name, m.fault_class, m.user_induced))
        return tuple(faults)

    def _lost(self, peer: Peer, why: str) -> None:
        owner = peer.owner
        if isinstance(owner, int):
            self.shims.pop(owner, None)
            self._queue.append(ShimLost(owner, why))
        elif isinstance(owner, str):
            self.agents.pop(owner, None)
            self._queue.append(AgentLost(owner, why))


class _Gone:
    """The owner of a connection that was dismissed."""
