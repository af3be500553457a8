"""The controller's side of conversations, with real connections that the test breaks, and callers that are the real ones."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.launchers.step import JoinedSteps, ProcessStep
from ftslurm.model.events import (
    AgentArrived,
    AgentLost,
    ControlAsked,
    CutOff,
    Hangup,
    InTouch,
    NodeSilent,
    PartEnded,
    RankExited,
    RankPaused,
    RankStarted,
    ShimLost,
    TaskArrived,
    TimePassed,
)
from ftslurm.model.exits import ExitStatus
from ftslurm.model.record import Requested
from ftslurm.system.clock import Clock
from ftslurm.wrapper import wire as channel
from ftslurm.wrapper.controller.callers import CallerLimits
from ftslurm.wrapper.controller.sources import SignalPipe, Sources
from ftslurm.wrapper.shim import session
from ftslurm.wrapper.shim.connection import Channel, connect
from ftslurm.wrapper.shim.lease import boot_s
from ftslurm.wrapper.shim.session import Session

pytestmark = pytest.mark.timeout(90)

SOON_S = 60.0
AGENT: dict[str, Any] = {"t": "agent", "node": "n1", "kinds": []}


def hello(rank: int, node: str = "n1") -> dict[str, Any]:
    return {"t": "hello", "rank": rank, "node": node, "slot": 0, "local": rank, "expected": 2, "step": "1.0", "launch": 0, "address": "",
            "pid": 1, "free_port": 0}  # fmt: skip


class Caller:
    """A real line, turned by a thread of its own. heard: what the controller has said."""

    def __init__(self, sources: Sources, first: dict[str, Any]) -> None:
        self._channel = Channel(sources.server.channel_text(["127.0.0.1"]))
        self._first = first
        self.line: Session | None = None
        self.heard: list[dict[str, Any]] = []
        self._say: list[dict[str, Any]] = []
        self._ends = self._pauses = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.line = line = Session(self._channel, {}, *connect(self._channel, {}, SOON_S), self._first)
        while not self._ends and not line.gone:
            line.poll.poll(20)
            self.heard += line.listen()
            line.turn(boot_s())
            if self._pauses != line.lease.pausing:
                line.pause(boot_s()) if self._pauses else line.resume(boot_s())
            while self._say:
                line.say(self._say.pop(0))
        line.close()

    def pause(self) -> None:
        """As a shim that Slurm is about to stop."""
        self._pauses = True

    def resume(self) -> None:
        self._pauses = False

    @property
    def may_run(self) -> bool:
        return self.line is not None and not self.line.lease.over(boot_s())

    def say(self, **message: Any) -> None:
        self._say.append(message)

    def end(self) -> None:
        self._ends = True
        self._thread.join(SOON_S)

    def close(self) -> None:
        self.end()
        if self.line:
            self.line.hang_up()  # as the kernel does when a process ends


class Stage:
    def __init__(self, lease_s: float = 60.0, silence_s: float = 6.0) -> None:
        self.sources = Sources(Clock(), SignalPipe(), lambda *_: None, "127.0.0.1", CallerLimits(lease_s, silence_s))  # type: ignore[arg-type, return-value]
        self.callers: list[Caller] = []

    def call(self, first: dict[str, Any]) -> Caller:
        self.callers.append(Caller(self.sources, first))
        return self.callers[-1]

    def next(self) -> Any:
        event = self.sources.next(time.monotonic() + SOON_S)
        assert not isinstance(event, TimePassed), "nothing came"
        return event

    def await_event(self, kind: type) -> None:
        """Others may come before."""
        while not isinstance(self.next(), kind):
            pass

    def until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SOON_S
        while not ready():
            assert time.monotonic() < deadline
            self.sources.next(time.monotonic() + 0.05)

    def quiet(self, seconds: float = 0.5) -> None:
        """Let it work; nothing is to come of it."""
        assert isinstance(self.sources.next(time.monotonic() + seconds), TimePassed)

    def cut(self, rank: int) -> None:
        """Break the connection under both."""
        peer = self.sources.callers.shims[rank]._peer
        assert peer is not None
        peer.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        self.sources.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()


def test_requests_are_looked_for_beside_the_loop_whatever_the_file_system_does(stage: Stage) -> None:
    asked = Requested(1.0, 1, "anna", "stop")
    hangs = threading.Event()
    looks: list[Callable[[], Any]] = [lambda: (asked,), lambda: [][0], lambda: hangs.wait(SOON_S) and ()]

    def look() -> Any:
        try:
            return looks.pop(0)()
        except IndexError:
            raise PermissionError("a link, say") from None

    stage.sources.listen(look, every_s=0.01)
    assert stage.next() == ControlAsked(asked)
    stage.quiet(0.3)  # the third look hangs, and the loop does not
    hangs.set()


def test_events_come_once_and_in_order_over_connections_that_break(stage: Stage) -> None:
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    attempts = range(1, 40)
    for attempt in attempts:
        caller.say(t="started", attempt=attempt, pid=1)
        stage.sources.callers.shims[0].send({"t": "signal", "number": attempt})
        if attempt % 5 == 0:
            stage.cut(0)
        assert stage.next() == RankStarted(0, attempt, 1)
    caller.say(t="exited", attempt=40, code=0, signal=0, at=1.0)
    assert stage.next() == RankExited(0, 40, ExitStatus(0), 1.0)
    stage.quiet()
    assert [message["number"] for message in caller.heard] == list(attempts)


@pytest.mark.parametrize("ahead_s", [90.0, -90.0, 0.5])
def test_times_of_a_node_whose_clock_is_wrong_are_told_by_ours(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    monkeypatch.setattr(session, "time", SimpleNamespace(time=lambda: time.time() + ahead_s))
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    ended = time.time()
    shown = ended + ahead_s
    caller.say(t="exited", attempt=1, code=3, signal=0, at=shown, tail=[[shown - 2.0, "err", "no memory"]])
    event = stage.next()
    assert isinstance(event, RankExited) and event.at - event.output[0].at == pytest.approx(2.0)
    # A second and less is left: what a message takes on a busy machine may be more.
    assert event.at == (pytest.approx(ended, abs=SOON_S) if abs(ahead_s) > 1.0 else shown)
    assert abs(ahead_s) < 1.0 or event.at != shown


def test_a_shim_that_has_gone_is_lost_once_its_node_is_heard_of(stage: Stage) -> None:
    stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    stage.call(AGENT)
    assert stage.next() == AgentArrived("n1", ())
    stage.callers[0].close()
    event = stage.next()
    assert isinstance(event, ShimLost) and event.rank == 0 and 0 not in stage.sources.callers.shims


@pytest.mark.parametrize("again", [False, True])
def test_a_shim_that_goes_while_it_is_welcomed_is_lost_as_well(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    stage.call(AGENT)
    assert stage.next() == AgentArrived("n1", ())
    if again:
        says_hello(stage)
        assert isinstance(stage.next(), TaskArrived)
    send = channel.Peer.send
    monkeypatch.setattr(
        channel.Peer, "send", lambda peer, said: peer.drop("broken pipe") if said["t"] == "welcome" else send(peer, said)
    )
    says_hello(stage)
    assert again or isinstance(stage.next(), TaskArrived)
    event = stage.next()
    assert isinstance(event, ShimLost) and event.rank == 0 and 0 not in stage.sources.callers.shims


def says_hello(stage: Stage) -> None:
    """And goes."""
    to = Channel(stage.sources.server.channel_text(["127.0.0.1"]))

    def call() -> None:
        sock, link = connect(to, {}, SOON_S)
        sock.sendall(link.pack({**hello(0), "talk": "0" * 32, "a": 0}))
        sock.close()

    threading.Thread(target=call).start()


def test_a_shim_that_will_be_stopped_is_promised_to_be_waited_for_until_it_is_heard_of(stage: Stage) -> None:
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    for _ in range(2):
        caller.pause()
        assert stage.next() == RankPaused(0, True)
        stage.quiet()
        assert caller.line is not None and caller.line.lease.paused
        caller.resume()
        assert stage.next() == RankPaused(0, False)
        stage.quiet()
        assert not caller.line.lease.paused


def test_so_is_one_that_calls_over_another_connection(stage: Stage) -> None:
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    caller.pause()
    assert stage.next() == RankPaused(0, True)
    stage.cut(0)
    assert stage.next() == RankPaused(0, False)


def test_a_shim_that_was_let_go_is_promised_nothing(stage: Stage) -> None:
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    stage.sources.callers.farewell()
    caller.pause()
    stage.quiet(1.0)
    assert caller.line is not None and not caller.line.lease.paused and not caller.may_run


def test_an_agent_whose_launcher_ends_before_it_has_called_is_lost(stage: Stage) -> None:
    """As with slurmctld away: srun ends, and nobody else would ever tell."""
    stage.sources.callers.agents_come(["n1"], JoinedSteps([(ProcessStep(["true"], {"PATH": "/usr/bin:/bin"}), ())]))
    assert stage.next() == AgentLost("n1", "its launcher exited with status 0")
    stage.quiet()


def test_of_an_agent_that_has_called_the_end_of_its_launcher_tells_nothing_more(stage: Stage) -> None:
    step = JoinedSteps([(ProcessStep(["sleep", "100"], {"PATH": "/usr/bin:/bin"}), ())])
    stage.sources.callers.agents_come(["n1"], step)
    stage.call(AGENT)
    assert stage.next() == AgentArrived("n1", ())
    step.abandon()
    stage.quiet()


def test_a_second_shim_of_a_rank_is_refused_and_told_so(stage: Stage) -> None:
    stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    other = stage.call(hello(0))
    stage.quiet(1.0)
    assert not other.may_run
    assert stage.callers[0].may_run


def test_whoever_cannot_be_understood_is_lost_at_once(stage: Stage) -> None:
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    caller.say(t="dance")
    event = stage.next()
    assert isinstance(event, ShimLost) and "dance" in event.why


def test_whoever_cannot_be_understood_is_lost_even_if_it_calls_again_first(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    contact, introduced, again = stage.sources.callers.contact, stage.sources.callers._introduced, []

    def introduce(peer: Any, message: Any) -> Any:
        again.append(peer)
        return introduced(peer, message)

    due = contact.due
    # As where this process gets no CPU between the break and the look at who is gone.
    monkeypatch.setattr(contact, "due", lambda now: due(now) if again else ())
    monkeypatch.setattr(stage.sources.callers, "_introduced", introduce)
    caller.say(t="dance")
    event = stage.next()
    assert isinstance(event, ShimLost) and "dance" in event.why
    stage.until(lambda: not caller.may_run)


def test_shims_of_the_step_before_are_no_word_about_the_next(stage: Stage) -> None:
    old = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    stage.sources.callers.farewell()
    stage.call(hello(0) | {"launch": stage.sources.new_step()})
    assert isinstance(stage.next(), TaskArrived)
    old.say(t="started", attempt=9, pid=1)
    stage.quiet(4.0)
    assert not old.may_run, "it has been told that it was let go"
    old.close()
    stage.quiet(1.0)


def test_a_shim_of_a_step_that_was_given_up_before_it_called_is_refused(stage: Stage) -> None:
    """Its image was loading when its launcher was ended; now it calls, before the one that takes its place."""
    first, second = stage.sources.new_step(), stage.sources.new_step()
    late = stage.call(hello(0) | {"launch": first})
    stage.quiet(1.0)
    assert not late.may_run
    stage.call(hello(0) | {"launch": second})
    assert isinstance(stage.next(), TaskArrived)


def test_a_connection_that_is_given_up_is_not_closed_before_there_is_another(stage: Stage) -> None:
    """Closed it would say that the process has ended, and with its node out of reach nobody would wait for its lease."""
    caller = stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    stage.until(lambda: bool(caller.line and caller.line._welcome))
    peer = stage.sources.callers.shims[0]._peer
    assert peer is not None and caller.line is not None
    stage.sources._selector.unregister(peer.sock)  # we stand still
    deadline = time.monotonic() + SOON_S
    while not caller.line._given_up:
        assert time.monotonic() < deadline, "it waits for ever"
        time.sleep(0.05)
    peer.sock.setblocking(False)
    try:
        while peer.sock.recv(65536):
            pass
        pytest.fail("it was closed")
    except BlockingIOError:
        pass
    stage.sources._selector.register(peer.sock, 1, lambda events: stage.sources.server._ready(peer, events))
    stage.until(lambda: bool(caller.line and not caller.line._given_up))
    assert caller.may_run


def test_a_reset_is_told_from_the_end_of_a_process(stage: Stage) -> None:
    stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    stage.call(AGENT)
    assert stage.next() == AgentArrived("n1", ())
    caller = stage.callers[0]
    caller.end()
    assert caller.line is not None
    for sock in caller.line._given_up:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a RST
        sock.close()
    event = stage.next()
    assert isinstance(event, ShimLost) and event.hangup is Hangup.RESET


def test_a_stranger_that_says_nothing_is_dropped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "STRANGER_S", 0.5)
    with socket.create_connection(("127.0.0.1", stage.sources.server.port), SOON_S) as stranger:
        stage.until(lambda: bool(stage.sources.server.strangers))
        stage.until(lambda: not stage.sources.server.strangers)
        stranger.settimeout(SOON_S)
        while stranger.recv(4096):  # the greeting, and then the end
            pass


def test_strangers_keep_nobody_out_and_hide_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_STRANGERS", 8)
    stage, strangers = Stage(silence_s=1.0), []
    try:
        caller = stage.call(hello(0))
        stage.await_event(TaskArrived)
        for _ in range(20):
            strangers.append(socket.create_connection(("127.0.0.1", stage.sources.server.port), SOON_S))
        stage.until(lambda: len(stage.sources.server.strangers) == 8)
        stage.call(hello(1, "n2"))
        stage.await_event(TaskArrived)
        caller.close()
        stage.await_event(NodeSilent)
    finally:
        stage.close()
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize(
    "wrong", [{"rank": 2}, {"rank": 7}, {"rank": 1 << 40}, {"rank": 7, "expected": 8}, {"rank": 0, "expected": 1}]
)
def test_a_rank_outside_the_step_is_refused_with_a_sentence(stage: Stage, wrong: dict[str, Any]) -> None:
    """What it then tells of itself would be of a rank that nobody knows."""
    stage.call(hello(1))
    assert isinstance(stage.next(), TaskArrived)
    stranger = stage.call(hello(0) | wrong)
    stage.until(lambda: stranger.line is not None and not stranger.may_run)
    assert stranger.line is not None and stranger.line.lease.why == "ftrun has continued without this rank"
    stranger.end()
    stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)


def test_who_may_open_our_descriptors_cannot_send_us_signals_or_empty_our_wake_ups(stage: Stage) -> None:
    """As any process of the same user may, by /proc."""
    for fd in (stage.sources._signals.fd, stage.sources._signals._write, stage.sources._wake_read, stage.sources._wake_write):
        for how in (os.O_RDONLY, os.O_WRONLY):
            with pytest.raises(OSError, match="No such device"):
                os.open(f"/proc/self/fd/{fd}", how | os.O_NONBLOCK)


FLOOD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]) + 64,) * 2)
kept = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), 15) for _ in range(int(sys.argv[2]))]
print("there", flush=True)
sys.stdin.read()
"""


@contextmanager
def flood(port: int, count: int) -> Iterator[None]:
    """A neighbour's process that connects `count` times and says nothing."""
    argv = [sys.executable, "-c", FLOOD, str(port), str(count)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as neighbour:
        try:
            yield
        finally:
            neighbour.kill()


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    yield 512
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_idle_connections_of_a_neighbour_leave_descriptors_for_ledger_and_ranks(few_descriptors: int) -> None:
    """Counted by the number of a descriptor they did not: to drop one frees a low number, and the next gets that."""
    stage, files = Stage(), []
    try:
        stage.call(hello(0))
        stage.await_event(TaskArrived)
        with flood(stage.sources.server.port, 2 * few_descriptors):
            stage.until(lambda: len(stage.sources.server._peers) >= stage.sources.server.most)
            deadline = time.monotonic() + 1.0
            stage.until(lambda: time.monotonic() > deadline)  # the rest of them comes meanwhile
            assert len(stage.sources.server._peers) == stage.sources.server.most
            stage.call(hello(1, "n2"))
            stage.await_event(TaskArrived)
            for _ in range(channel.DESCRIPTORS_KEPT - 32):  # the test's own callers have some
                files.append(os.open(os.devnull, os.O_RDONLY))
    finally:
        for fd in files:
            os.close(fd)
        stage.close()


def test_with_no_descriptor_left_a_caller_is_turned_away_and_the_loop_sleeps(few_descriptors: int) -> None:
    stage, files = Stage(), []
    try:
        with flood(stage.sources.server.port, 0):
            calls = [socket.socket() for _ in range(2)]
            try:
                while True:
                    files.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            for call in calls:
                call.settimeout(SOON_S)
                call.connect(("127.0.0.1", stage.sources.server.port))
            assert isinstance(stage.sources.next(time.monotonic() + 0.5), TimePassed)
            assert [call.recv(64) for call in calls] == [b"", b""]
    finally:
        for fd in files:
            os.close(fd)
        for call in calls:
            call.close()
        stage.close()


def test_silence_is_noticed_though_somebody_always_has_something_to_say() -> None:
    stage = Stage(silence_s=1.0)
    read, write = os.pipe()
    try:
        stage.call(hello(0))
        stage.await_event(TaskArrived)
        os.write(write, b"!")
        stage.sources._selector.register(read, 1, lambda _: None)  # always ready
        stage.callers[0].close()
        stage.await_event(NodeSilent)
    finally:
        stage.sources._selector.unregister(read)
        stage.close()
        os.close(read)
        os.close(write)


def test_out_of_touch_with_nodes_of_one_step_the_ranks_of_the_next_have_a_lease() -> None:
    stage = Stage(2.5, 0.6)
    stage.sources.callers.runs = lambda: False
    try:
        stage.call(hello(0, "n1"))
        stage.await_event(TaskArrived)
        far = stage.call(hello(1, "n2"))
        stage.await_event(TaskArrived)
        far.close()
        stage.await_event(CutOff)
        launch = stage.sources.new_step()
        news = [stage.call(hello(rank, node) | {"launch": launch}) for rank, node in enumerate(("n1", "n3"))]
        stage.until(lambda: len(stage.sources.callers.shims) == 2)
        stage.until(lambda: all(caller.line and caller.line.lease.until < float("inf") for caller in news))
        assert all(caller.may_run for caller in news)
    finally:
        stage.close()


def test_out_of_touch_with_most_nodes_it_renews_no_lease_unless_slurmctld_says_that_the_job_runs() -> None:
    silence_s, lease_s = 0.6, 2.5
    stage = Stage(lease_s, silence_s)
    stage.sources.callers.runs = lambda: False
    try:
        near = stage.call(hello(0, "n1"))
        stage.await_event(TaskArrived)
        far = stage.call(hello(1, "n2"))
        stage.await_event(TaskArrived)
        far.close()
        stage.await_event(CutOff)
        assert near.may_run, "what was renewed before lasts"
        stage.sources.callers.runs = lambda: True
        stage.await_event(InTouch)
        stage.sources.callers.runs = lambda: False
        stage.await_event(CutOff)
        stage.until(lambda: not near.may_run)
    finally:
        stage.close()


def test_an_agent_gets_the_will_first_of_all(stage: Stage) -> None:
    stage.sources.callers.handover_plan = lambda node: {"t": "will", "of": node} if node == "n1" else None
    agent = stage.call(AGENT)
    assert stage.next() == AgentArrived("n1", ())
    stage.sources.callers.agents["n1"].send({"t": "look"})
    stage.quiet()
    assert [message["t"] for message in agent.heard] == ["will", "look"] and agent.heard[0]["of"] == "n1"


class PartOfAStep:
    """Of two sruns the second, with rank 1, has ended."""

    def ended(self) -> None:
        return None

    def ranks_ended(self) -> frozenset[int]:
        return frozenset({1})

    def words(self) -> str:
        return ""


def test_a_part_that_ends_before_its_tasks_came_is_told_and_one_that_came_is_lost(stage: Stage) -> None:
    stage.sources.callers._step = PartOfAStep()  # type: ignore[assignment]
    stage.call(hello(0))
    assert isinstance(stage.next(), TaskArrived)
    os.kill(os.getpid(), signal.SIGCHLD)
    assert stage.next() == PartEnded((1,))
    late = stage.call(hello(1))
    assert isinstance(stage.next(), TaskArrived)
    os.kill(os.getpid(), signal.SIGCHLD)
    late.close()
    event = stage.next()
    assert isinstance(event, ShimLost) and event.rank == 1
    stage.quiet()


@pytest.mark.parametrize("until_s", [60 * 86400.0, float("inf")])
def test_what_is_due_in_months_is_waited_for_like_anything(stage: Stage, until_s: float) -> None:
    """The kernel takes no more than 2**31 ms at once."""
    threading.Timer(0.3, stage.sources.put, [AgentArrived("n7", ())]).start()
    assert stage.sources.next(time.monotonic() + until_s) == AgentArrived("n7", ())
