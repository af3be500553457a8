"""The one source of events: connections and their messages, child processes, signals, background work, and the clock."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

from ftslurm.errors import WireError
from ftslurm.model import events as ev
from ftslurm.model import messages as wire
from ftslurm.model.devices import CodeMeaning, DeviceHealth, Fault, ProbeAnswer, Severity
from ftslurm.model.messages import LiveReported, StacksReported
from ftslurm.model.record import Requested
from ftslurm.model.values import replace
from ftslurm.system.clock import Clock
from ftslurm.wrapper.controller.callers import Caller, CallerLimits, Callers
from ftslurm.wrapper.controller.output_files import tasks_ended
from ftslurm.wrapper.shim.processes import waking
from ftslurm.wrapper.wire import Message, Peer, Server

if TYPE_CHECKING:
    from ftslurm.wrapper.controller.checkpoints import CheckpointWatch
    from ftslurm.wrapper.controller.live import LiveBoard

# --- What shims and agents report, as events: a method for each of the two, and the look-up of fault codes.

Meaning = Callable[[str, str, Severity], CodeMeaning]  # kind of device, code, severity


class Reports:
    """meaning: looks a fault code up (and loads the catalogue then). observer (to be set): for people, who watch.
    training_step: the furthest that the program has told of, 0: none."""

    def __init__(self, meaning: Meaning) -> None:
        self.observer: LiveBoard | None = None
        self.training_step = 0
        self._meaning = meaning

    def of(self, owner: int | str, message: Message, behind_s: float = 0.0) -> Sequence[ev.Event]:
        """owner: a rank or a node. behind_s: its clock, against ours. Raises: WireError."""
        return self.of_rank(owner, message, behind_s) if isinstance(owner, int) else self.of_node(owner, message)

    def of_rank(self, rank: int, message: Message, behind_s: float = 0.0) -> Sequence[ev.Event]:
        """By its shim. Raises: WireError."""
        said = _by_our_clock(wire.shim_report(rank, message), behind_s)
        if self.observer is not None:
            self.observer.rank_said(rank, said)
        return (*_last_notes(rank, message), said)

    def of_node(self, node: str, message: Message) -> Sequence[ev.Event]:
        """By its agent. Raises: WireError."""
        report = wire.agent_report(message)
        if isinstance(report, (LiveReported, StacksReported)):
            if self.observer is not None:
                self.observer.node_said(node, report)
            return ()
        if isinstance(report, wire.DevicesReported):
            faults = self._graded(node, report.answer)
            return (ev.DevicesSeen(node, faults, report.asked, report.answer.error, there=report.there),)
        if isinstance(report, (ev.BeatOverdue, ev.ProgramSaid, ev.StageSet)):
            return (report,)
        if isinstance(report, ev.Progressed):
            self.training_step = max(self.training_step, report.step)
        return (replace(report, node=node),)

    def _graded(self, node: str, answer: ProbeAnswer) -> tuple[Fault, ...]:
        """Every code of every chip that is not well, looked up."""
        faults = []
        for report in answer.reports:
            if report.health is DeviceHealth.FAULTY:
                for code in report.codes:
                    m = self._meaning(report.kind, code, report.severity)
                    faults.append(Fault(node, report.device, m.code, m.name, m.fault_class, m.user_induced))
        return tuple(faults)


def _by_our_clock(said: wire.ShimReport, behind_s: float) -> wire.ShimReport:
    """The report with its times as our clock would have them: whose failure came first is judged by them."""
    if not behind_s or not isinstance(said, (ev.RankExited, ev.RankWords)):
        return said
    said = replace(said, output=tuple(replace(piece, at=piece.at + behind_s) for piece in said.output))
    return replace(said, at=said.at + behind_s) if isinstance(said, ev.RankExited) else said


def _last_notes(rank: int, message: Message) -> tuple[ev.ProgramSaid, ...]:
    """What the program has said shortly before its end, of which its agent may know nothing yet, or never. Raises: WireError."""
    place, data = wire.shim_notes(message)
    if not data:
        return ()
    from ftslurm.sdk.notes import placed_notes

    number = message.get("attempt")
    attempt = number if type(number) is int else 0
    return tuple(ev.ProgramSaid(rank, note.what, note.words, attempt, end) for end, note in placed_notes(data, place))


SIGCHLD, SIGSTOP, SIGTSTP = int(signal.SIGCHLD), int(signal.SIGSTOP), int(signal.SIGTSTP)
# What srun passes on to its tasks, and Ctrl-C. Source: srun(1), SIGNALS.
_HANDLED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCHLD, signal.SIGTSTP,
)  # fmt: skip


class SignalPipe:
    """Number by number into a pair of sockets whose reading end is `fd`. Signals ignored at the start stay so (nohup)."""

    def __init__(self) -> None:
        self.fd, self._write = waking()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._before = {number: signal.getsignal(number) for number in _HANDLED}
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:
                signal.signal(number, _noted)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def read(self) -> list[int]:
        """The signals since the last call, SIGCHLD once."""
        try:
            return list(dict.fromkeys(os.read(self.fd, 4096)))
        except BlockingIOError:
            return []

    def ignore_end(self) -> None:
        """From here on nothing but SIGKILL ends us or the programs we start: a requeue must not be cut in half."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, before in self._before.items():
            if before is not None:
                signal.signal(number, before)
        os.close(self.fd)
        os.close(self._write)


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has the number already; without a handler there would be none."""


# If `select` returns this much later than asked, we were stopped or had no CPU: the others were not silent.
AWAY_S = 2.0
# While messages keep coming, silence is looked at this late at the latest.
BUSY_S = 1.0
# epoll_wait(2) takes its time as an int of milliseconds, 24 days; a longer wait looks at the clock in between.
LONG_S = 86400.0
# From SIGTSTP to obeying it. Slurm sends it to every process of a job that it will stop two seconds later, and meanwhile the
# shims ask for their leases to be kept; for somebody at a terminal it is soon enough.
STOP_AFTER_S = 1.0
# From one look for requests of the owner's to the next. People wait for the answer, and a file server has thousands of jobs.
REQUESTS_S = 2.0
# From one look at what srun says to the next, while a step comes up.
WORDS_S = 1.0


class Sources:
    """The one queue. `next` is the only place where ftrun waits. callers: who is in touch. reports: what they say."""

    def __init__(
        self, clock: Clock, signals: SignalPipe, meaning: Meaning, address: str = "", limits: CallerLimits | None = None,
        ports: tuple[int, int] | None = None, runs: Callable[[], bool] = lambda: True,
        handover_plan: Callable[[str], Message | None] = lambda node: None,
    ) -> None:  # fmt: skip
        """runs, handover_plan: see Callers."""
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._queue: deque[ev.Event] = deque()
        self._signals = signals
        self._selector.register(signals.fd, selectors.EVENT_READ, self._signalled)
        self._wake_read, self._wake_write = waking()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, lambda _: os.read(self._wake_read, 4096))
        self.server = Server(self._selector, self._message, self._lost, address, ports)
        self.callers = Callers(clock, limits or CallerLimits(), runs, handover_plan)
        self.reports = Reports(meaning)
        self._soon: deque[Callable[[], object]] = deque()
        self._stop_at: float | None = None  # monotonic
        self._worked_until = 0.0  # CPU seconds of the thread that calls `next`
        self._over = threading.Event()
        self._checkpoints: CheckpointWatch | None = None

    def numbers(self) -> tuple[int, float, int, int]:
        """For monitoring, from any thread: beats so far, when the last came (Unix seconds, 0: none yet), ranks that are in touch,
        and the training step (0: not told)."""
        return *self.callers.beats, len(self.callers.shims), self.reports.training_step

    @property
    def has_more(self) -> bool:
        """Does `next` answer at once, with what came together with the last event?"""
        return bool(self._queue)

    def next(self, until: float | None) -> ev.Event:
        """The next event; TimePassed when `until` (monotonic seconds) comes first. Blocks."""
        while not self._queue:
            moments = [at for at in (until, self.callers.contact.wakes_at, self.server.wakes_at, self._stop_at) if at is not None]
            wait_s = min(max(0.0, min(moments) - self._clock.mono()), LONG_S) if moments else None
            ready = self._selector.select(wait_s)
            for key, events in ready:
                key.data(events)
            while self._soon:
                self._soon.popleft()()
            now = self._clock.mono()
            worked_s = self._worked_s()
            if moments and now - min(moments) - worked_s > AWAY_S:
                self.callers.contact.excuse(now)
                self._queue.appendleft(ev.StoodStill(now - min(moments)))
            if self._stop_at is not None and now >= self._stop_at:
                self._stop_at = None
                os.kill(os.getpid(), SIGSTOP)
                continue
            self.server.sweep(now)
            wakes_at = self.callers.contact.wakes_at
            # Best once all that had arrived has been read; but there may always be more to read.
            if not ready or (wakes_at is not None and now - wakes_at >= BUSY_S):
                self._queue.extend(self.callers.overdue(now))
            if not self._queue and until is not None and now >= until:
                return ev.TimePassed()
        return self._queue.popleft()

    def _worked_s(self) -> float:
        """CPU time of this loop since the last question: the end of a thousand ranks takes seconds, and is no suspension."""
        before, self._worked_until = self._worked_until, time.thread_time()
        return self._worked_until - before

    def put(self, event: ev.Event) -> None:
        """From any thread."""
        self._queue.append(event)
        self._wake()

    def soon(self, work: Callable[[], object]) -> None:
        """Do `work`, which is short and does not raise, in the loop. From any thread."""
        if not self._over.is_set():
            self._soon.append(work)
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the pipe is full of wake-ups already, or the loop has ended
            os.write(self._wake_write, b"!")

    def background(self, work: Callable[[], ev.Event]) -> None:
        """Do `work`, which may take long, beside the loop; its answer becomes an event. It must not raise."""
        threading.Thread(target=lambda: self.put(work()), daemon=True).start()

    def background_to_the_end(self, work: Callable[[], ev.Event]) -> None:
        """Likewise, and ftrun does not end before it has: for what may not be cut off."""
        threading.Thread(target=lambda: self.put(work())).start()

    def listen(self, look: Callable[[], Sequence[Requested]], every_s: float = REQUESTS_S) -> None:
        """Look for requests beside the loop: a file system that hangs shall not keep beats from being answered."""

        def keep_looking() -> None:
            while not self._over.is_set():
                # Of a ledger that is not there yet, or that nobody can read now, ftrun itself complains when it writes.
                with suppress(OSError):
                    for request in look():
                        if not self._over.is_set():
                            self.put(ev.ControlAsked(request))
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

    def watch_words(self, every_s: float = WORDS_S) -> None:
        """Read what srun says of a step that was just launched, until all its tasks are there."""

        def keep_looking() -> None:
            while not self._over.wait(every_s) and self.callers.awaits_tasks:
                self.soon(self._look_at_words)

        threading.Thread(target=keep_looking, daemon=True).start()

    def _look_at_words(self) -> None:
        self._queue.extend(tasks_ended(self.callers.words_of_start()))

    def new_step(self) -> int:
        """See Callers."""
        if self.reports.observer is not None:
            self.reports.observer.new_step()
        return self.callers.new_step()

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
                self._queue.append(ev.SignalSeen(number))
            else:
                self._look_at_words()  # srun's last ones, before its end
                self._queue.extend(self.callers.child_ended())

    def _message(self, peer: Peer, message: Message) -> None:
        try:
            self._queue.extend(self._events(peer, message))
        except WireError as error:
            if peer.owner is not None:
                self.callers.not_understood(peer.owner, str(error))
            else:
                peer.send({"t": "refused", "why": str(error)[:200]})
            self.server.drop(peer, str(error))

    def _events(self, peer: Peer, message: Message) -> Sequence[ev.Event]:
        caller: Caller | None = peer.owner
        if caller is None:
            return self.callers.introduce(peer, message)
        new, news = self.callers.hear(caller, message)
        if not new:
            return news
        return (*news, *self.reports.of(caller.owner, message, caller.clock.behind_s))

    def _lost(self, peer: Peer, why: str, hangup: ev.Hangup) -> None:
        self._queue.extend(self.callers.disconnected(peer, why, hangup))
