"""A job of thousands of ranks on this machine: the sessions of its shims and agents against one real controller.

    bench/scale.py 1024 8192      numbers of ranks; an agent for each eight

Nothing runs but the callers, in a few processes: they dial, greet, beat by the real protocol, and answer orders as shims do
whose commands end ENDS_S after they were told to. Printed: until the last rank was told to start; the controller's CPU while
all is well; after one rank's failure until the last was told to stop, from there until the last was told to start again, the
controller's CPU for both; until all are back after every connection was cut, and after the last of three such cuts; the same
failure once 250 agents are gone, 250 others no longer read, 1,000 strangers have connected and say nothing, and eight agents
that read nothing are sent 24 MB each; its memory.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from measure import Series

from ftslurm.ledger.journal import Journal
from ftslurm.model.folds.history import History
from ftslurm.model.nodes import expand, fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings, with_values
from ftslurm.policies.judge.judge import Judge
from ftslurm.policies.judge.phases import RunFacts
from ftslurm.system.clock import Clock
from ftslurm.system.files import raise_limit
from ftslurm.wrapper.controller.controller import Controller
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.effects import Effects
from ftslurm.wrapper.controller.live import LiveBoard, LiveTeller
from ftslurm.wrapper.controller.orders import RankSetup
from ftslurm.wrapper.controller.people import Display
from ftslurm.wrapper.controller.run import collect_rarely
from ftslurm.wrapper.controller.sources import SignalPipe, Sources
from ftslurm.wrapper.shim import session
from ftslurm.wrapper.shim.connection import GREETING_S, Channel, pause_s, spread_s
from ftslurm.wrapper.shim.hello import hello_message
from ftslurm.wrapper.shim.lease import boot_s
from ftslurm.wrapper.shim.messages import LinkError, SignedConnection
from ftslurm.wrapper.shim.session import REDIAL_S, Session

LOST_AGENTS, STRANGERS, SIEGE_S = 250, 1000, 75.0  # longer than a lease
CUTS, FLOOD, FLOODS = 3, "much" * (1 << 18), 24  # in a row; more than MAX_UNSENT to each who does not read
# The callers of thousands of nodes share the cores with ftrun: what only they would pay for is spared.
session.readable = lambda source: True  # who is asked has been polled
ENDS_S = 0.05  # after it was told to, a command ends; by then all who share its core have been told
PER_NODE, WORKERS, IDLE_S, LIMIT_S, TURN_S = 8, 8, 10.0, 60.0, 0.25
TICKS = os.sysconf("SC_CLK_TCK")


def node_of(rank: int) -> str:
    return f"n{rank // PER_NODE:05d}"


class Step:
    """A step that is only callers elsewhere."""

    def ended(self) -> None:
        return None

    def ranks_ended(self) -> frozenset[int]:
        return frozenset()

    def words(self) -> str:
        return ""

    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def abandon(self, *_: object) -> None: ...
    def wait(self, timeout_s: float) -> bool:
        return True


class Launcher:
    """Tells the callers how to reach the controller."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell

    def launch(self, channel: str, *_: Any) -> Step:
        self._tell("shims", channel)
        return Step()

    def watch(self, nodes: Sequence[str], channel: str, lent: Mapping[str, int]) -> Step:
        for first in range(0, len(nodes), 256):
            self._tell("agents", f"{channel} {fold_nodes(nodes[first : first + 256])}")  # a pipe takes 4 kB as one
        return Step()

    def step_argvs(self, layout: Any = None) -> tuple[tuple[str, ...], ...]:
        return ((),)

    def watch_argv(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return ()


SLOW = frozenset(node_of(number * PER_NODE) for number in range(8))  # nodes


class Flooded(Sources):
    """Sends the agents of SLOW more than they read, once it is asked to."""

    asked = False

    def next(self, until: float | None) -> Any:
        if self.asked:
            self.asked = False
            for peer in [self.callers.agents[node] for node in SLOW & self.callers.agents.keys()]:
                for _ in range(FLOODS):
                    peer.send({"t": "nothing", "more": FLOOD})
        return super().next(until)


class Scheduler:
    """Is asked nothing."""

    def call_off(self) -> None: ...


def controller(ranks: int, folder: Path, orders: Sequence[int]) -> None:
    """In a process of its own, until it is killed."""
    raise_limit()
    collect_rarely()

    def tell(what: str, channel: str) -> None:
        for fd in orders:
            os.write(fd, f"{what} {channel}\n".encode())

    settings = with_values(Settings(), {"rungs.in-place-restart.crash_restarts": 10**6})
    nodes = tuple(node_of(first) for first in range(0, ranks, PER_NODE))
    facts = RunFacts(
        "run", "1", "scale", 0, "train", "train", nodes, launcher="srun", number=1, can=frozenset({Capability.DIAGNOSE})
    )
    clock, signals = Clock(), SignalPipe()
    sources = Flooded(clock, signals, lambda *_: None)  # type: ignore[arg-type, return-value]
    signal.signal(signal.SIGUSR1, lambda *_: setattr(sources, "asked", True))
    setup = RankSetup(tail_bytes=settings.logs.tail_bytes)
    diagnosis, display = Diagnosis(settings), Display(lambda text: None)
    channel = partial(sources.server.channel_text, ["127.0.0.1"])
    effects = Effects(
        sources, Launcher(tell), Scheduler(), signals, clock, lambda launch: channel(launch=launch), diagnosis, display,  # type: ignore[arg-type]
        setup=setup,
    )  # fmt: skip
    board = sources.reports.observer = LiveBoard(sources, facts.run)
    journal = Journal(folder / "jobs/scale.1.jsonl")
    live = LiveTeller(journal.path, sources, board)
    Controller(Judge(settings, History(), facts), sources, effects, journal, clock, live).run()


class Gate:
    """Stands where a session's own poll is, and registers with the one of its worker: thousands are asked at once."""

    def __init__(self, poll: select.epoll, line: Line) -> None:
        self._poll, self._line, self._mine = poll, line, dict[int, int]()

    def register(self, what: Any, _: int = 0) -> None:
        fd = what if isinstance(what, int) else what.fileno()
        self._mine[id(what)] = fd
        LINES[fd] = self._line
        self._poll.register(fd, select.EPOLLIN)

    def unregister(self, what: Any) -> None:
        fd = self._mine.pop(id(what))
        LINES.pop(fd, None)
        with suppress(OSError, ValueError):
            self._poll.unregister(fd)


LINES: dict[int, Line | Dial] = {}  # of this worker: descriptor -> whose it is


class Line(Session):
    """The session of a shim, or of an agent (rank None)."""

    def __init__(self, poll: select.epoll, rank: int | None, *session: Any) -> None:
        self._gate, self.rank = Gate(poll, self), rank
        super().__init__(*session)

    def _use(self, sock: Any, link: Any) -> None:
        """Without a socket: it calls for the first time."""
        if sock is None:
            self._sock, self._link, self._welcome = None, link, False
            Dial(self, boot_s())
        else:
            super()._use(sock, link)

    def _dial(self) -> None:
        """As a session does, but not in a thread: thousands of threads on a few cores would measure themselves."""
        wait_s = pause_s(self._unanswered) or spread_s(self._hello.get("expected", 0))
        if not self.gone:
            Dial(self, boot_s() + wait_s)

    @property
    def poll(self) -> Any:  # type: ignore[override]
        return self._gate

    @poll.setter
    def poll(self, _: Any) -> None: ...


class Dial:
    """A call again, begun at its time and given up REDIAL_S or GREETING_S later."""

    def __init__(self, line: Line, at: float) -> None:
        self.line, self.accepted, self.over = line, False, False
        self.sock: socket.socket | None = None
        self._wait(at)

    def _wait(self, until: float) -> None:
        self.due = until
        heappush(DUE, (until, id(self), self))

    def turn(self, now: float) -> None:
        if now < self.due or self.over:
            return
        if self.line.gone:
            self._over(self.line._unanswered)
            return
        if self.sock is not None:
            with suppress(OSError):
                self.sock.getpeername()  # it was accepted, by the kernel
                if not self.accepted:
                    self.accepted = True
                    self._wait(now + GREETING_S - REDIAL_S)
                    return
            self._over(line_unanswered=self.line._unanswered + self.accepted)
            return
        self.accepted = False
        self._wait(now + REDIAL_S)
        self.link = SignedConnection(self.line._channel.secret, server=False)
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.connect_ex((self.line._channel.addresses[0], self.line._channel.port))
        LINES[self.sock.fileno()] = self
        self.line._gate._poll.register(self.sock, select.EPOLLIN)

    def listen(self) -> list[Any]:
        try:
            self.link.feed(self.sock.recv(4096) or b"gone\n\n")
            self.sock.sendall(self.link.take_outbox())
        except (OSError, LinkError):
            self._over(line_unanswered=self.line._unanswered + 1)
            return []
        if self.link.ready:
            self.over = True
            self._forget()
            self.sock.setblocking(True)
            self.line._use(self.sock, self.link)
        return []

    def _forget(self) -> None:
        LINES.pop(self.sock.fileno(), None)
        self.line._gate._poll.unregister(self.sock)

    def _over(self, line_unanswered: int) -> None:
        self.over = True
        if self.sock is not None:
            self._forget()
            self.sock.close()
        self.line._unanswered = line_unanswered
        self.line._dial()


DUE: list[tuple[float, int, Dial]] = []  # of this worker, the earliest first


class Worker:
    """The callers of every WORKERS-th rank. marks: (what, when) for the one who measures."""

    def __init__(self, number: int, ranks: int, orders: int, marks: int, words: int) -> None:
        self._number, self._ranks, self._orders, self._marks, self._words = number, ranks, orders, marks, words
        self._lines: list[Line] = []
        self._poll = select.epoll()
        self._poll.register(orders, select.EPOLLIN)
        self._text = b""
        self._made: list[str] = []  # marks that are not told yet
        self._ending: deque[tuple[float, Line]] = deque()  # when the command of a rank ends
        self._attempt = 0
        self._most = words  # of its last words that a rank is asked to keep
        self._beats: dict[Line, int] = {}  # how many each sends, the next as soon as one is answered
        self._awaited: dict[Line, str] = {}  # what is marked when it is welcome
        self._deaf: list[Line] = []  # kept, so that their sockets stay open
        self._strangers: list[socket.socket] = []
        self._lost: set[Line] = set()  # ranks whose lease has run out

    def run(self) -> None:
        turned = 0.0
        gc.disable()
        while True:
            for fd, _ in self._poll.poll(ENDS_S / 2):
                if fd == self._orders:
                    self._ordered()
                elif isinstance(line := LINES.get(fd), Line):
                    self._listen(line)
                elif line is not None:
                    line.listen()
            now = boot_s()
            while DUE and DUE[0][0] <= now:
                heappop(DUE)[2].turn(now)
            while self._ending and self._ending[0][0] <= now:
                self._end(self._ending.popleft()[1])
            self._tell_marks()
            if now - turned > TURN_S:
                turned = now
                for line in list(self._lines):
                    line.turn(now)
                    if line.lease.over(now):
                        self._end_lease(line)

    def _end_lease(self, line: Line) -> None:
        """As an agent does, it ends: refused, as another one has its node, it would call again at once for ever."""
        if line.rank is None:
            line.hang_up()
            self._lines.remove(line)
        elif line not in self._lost:
            self._lost.add(line)
            self.mark("lost")

    def _listen(self, line: Line) -> None:
        for message in line.listen():
            self._told(line, message)
        if line in self._beats and not line._asked:
            if line._beats >= self._beats[line]:
                self._beats.pop(line)
                self.mark("beaten")
            else:
                line._beat(boot_s())
        if line._welcome and line in self._awaited:
            self.mark(self._awaited.pop(line))

    def mark(self, what: str) -> None:
        self._made.append(f"{what} {time.monotonic()}\n")

    def _tell_marks(self) -> None:
        """Those since the last call at once: thousands of writes would take as long as what they measure."""
        for first in range(0, len(self._made), 100):
            os.write(self._marks, "".join(self._made[first : first + 100]).encode())  # a pipe takes 4 kB as one
        self._made.clear()

    def _ordered(self) -> None:
        self._text += os.read(self._orders, 1 << 16)
        *whole, self._text = self._text.split(b"\n")
        for each in whole:
            what, _, rest = each.decode().partition(" ")
            rest = rest.replace("127.0.0.1", f"127.0.0.{1 + self._number}")  # its own ports for each worker
            if what == "shims":
                self._call(Channel(rest), range(self._number, self._ranks, WORKERS))
            elif what == "agents":
                channel, _, nodes = rest.partition(" ")
                self._agents(Channel(channel), frozenset(expand(nodes)))
            elif what == "besiege":
                self._besiege(self._lines[0]._channel)
            elif what == "crash":
                self._crash()
            elif what == "beats":
                self._beats = {line: line._beats + int(float(rest) * 3600 / line._beat_s) for line in self._lines}  # of hours
                for line in self._lines:
                    line._beat(boot_s())
            elif what == "cut":
                for line in self._lines:
                    self._awaited[line] = "back"
                    line._welcome = False
                    if line._sock is not None:
                        line._sock.shutdown(socket.SHUT_RDWR)

    def _besiege(self, channel: Channel) -> None:
        """Agents end, as many others read no more, and strangers say nothing: the ranks must not notice."""
        agents = [line for line in self._lines if line.rank is None]
        for line in [line for line in agents if line._hello["node"] in SLOW and line._sock is not None]:
            self._poll.unregister(line._sock)  # it goes on to beat
        agents = [line for line in agents if line._hello["node"] not in SLOW][: 2 * LOST_AGENTS // WORKERS]
        for line in agents:
            self._lines.remove(line)
            self._awaited.pop(line, None)
        for line in agents[::2]:
            line.hang_up()
        for line in agents[1::2]:
            if line._sock is not None:
                self._poll.unregister(line._sock)
                self._deaf.append(line)
        for _ in range(STRANGERS // WORKERS):
            stranger = socket.socket()
            stranger.setblocking(False)
            stranger.connect_ex((channel.addresses[0], channel.port))
            self._strangers.append(stranger)
        self.mark("besieged")

    def _call(self, channel: Channel, mine: range) -> None:
        for rank in mine:
            env = {"SLURMD_NODENAME": node_of(rank), "SLURM_NODEID": str(rank // PER_NODE), "SLURM_LOCALID": str(rank % PER_NODE),
                   "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}  # fmt: skip
            self._add(channel, hello_message(env, rank, self._ranks, channel.launch, "127.0.0.1", 0), rank)

    def _agents(self, channel: Channel, nodes: frozenset[str]) -> None:
        """Begun, or begun again: the one before has ended."""
        for first in range(0, self._ranks, PER_NODE):
            if first // PER_NODE % WORKERS == self._number and (node := node_of(first)) in nodes:
                for line in [line for line in self._lines if line.rank is None and line._hello["node"] == node]:
                    line.hang_up()
                    self._lines.remove(line)
                    self._awaited.pop(line, None)
                self._awaited[self._add(channel, {"t": "agent", "node": node, "kinds": []}, None)] = "agent"

    def _add(self, channel: Channel, greeting: dict[str, Any], rank: int | None) -> Line:
        link = SignedConnection(channel.secret, server=False)
        self._lines.append(Line(self._poll, rank, channel, {}, None, link, greeting))
        return self._lines[-1]

    def _told(self, line: Line, message: Mapping[str, Any]) -> None:
        if line.rank is None:
            return
        if message["t"] == "start":
            self._attempt, self._most = int(message["attempt"]), int(message.get("tail") or self._words)
            self.mark("start")
            line.say({"t": "started", "attempt": self._attempt, "pid": 1000 + line.rank})
        elif message["t"] == "stop":
            self.mark("stop")
            self._ending.append((boot_s() + ENDS_S, line))

    def _end(self, line: Line) -> None:
        ended = {"code": 0, "signal": 15, "at": time.time(), "asked": True}
        line.say({"t": "exited", "attempt": self._attempt, **ended, **self._tail()})
        line.say({"t": "stopped", "attempt": self._attempt, "left": [], "free_port": 0})

    def _tail(self) -> dict[str, Any]:
        return (
            {"tail": [[time.time(), "out", "loss 0.1 step 100 of an ordinary log\n" * (min(self._words, self._most) // 37)]]}
            if self._words
            else {}
        )

    def _crash(self) -> None:
        line = next((line for line in self._lines if line.rank == 0), None)
        if line is not None:
            line.say(
                {
                    "t": "exited",
                    "attempt": self._attempt,
                    "code": 1,
                    "signal": 0,
                    "at": time.time(),
                    "asked": False,
                    **self._tail(),
                }
            )


class Stage:
    """The processes, and what the callers mark."""

    def __init__(self, ranks: int, words: int, folder: Path) -> None:
        (folder / "jobs").mkdir(mode=0o700)
        raise_limit()
        self.ranks, self._pids = ranks, list[int]()
        self._read, marks = os.pipe()
        self._orders = []
        for number in range(WORKERS):
            theirs, ours = os.pipe()
            self._orders.append(ours)
            self._start(lambda number=number, theirs=theirs: Worker(number, ranks, theirs, marks, words).run())  # type: ignore[misc]
        self.controller = self._start(lambda: controller(ranks, folder, self._orders))
        os.set_blocking(self._read, False)
        self._text = b""
        self._marks: defaultdict[str, list[float]] = defaultdict(list)

    def _start(self, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                work()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        self._pids.append(pid)
        return pid

    def tell(self, what: str) -> float:
        for fd in self._orders:
            os.write(fd, f"{what}\n".encode())
        return time.monotonic()

    def await_marks(self, what: str, count: int) -> float:
        """When the last of them was made, monotonic seconds."""
        deadline = time.monotonic() + LIMIT_S
        while len(self._marks[what]) < count:
            assert time.monotonic() < deadline, f"{len(self._marks[what])} of {count} {what}; {self.count('lost')} leases lost"
            if not select.select([self._read], [], [], 0.5)[0]:
                continue
            *whole, self._text = (self._text + os.read(self._read, 1 << 20)).split(b"\n")
            for line in whole:
                kind, _, at = line.decode().partition(" ")
                self._marks[kind].append(float(at))
        return max(self._marks.pop(what))

    def count(self, what: str) -> int:
        """How many there are so far."""
        return len(self._marks[what])

    def cpu_s(self) -> float:
        words = Path(f"/proc/{self.controller}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    def peak_mb(self) -> int:
        status = Path(f"/proc/{self.controller}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) >> 10

    def end(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def played(ranks: int, words: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as folder:
        began = time.monotonic()
        stage = Stage(ranks, words, Path(folder))
        try:
            joined_s = stage.await_marks("start", ranks) - began
            stage.await_marks("agent", ranks // PER_NODE)
            time.sleep(2.0)
            before, at = stage.cpu_s(), time.monotonic()
            time.sleep(IDLE_S)
            idle = (stage.cpu_s() - before) / (time.monotonic() - at)
            before = stage.cpu_s()
            crashed = stage.tell("crash")
            stopped = stage.await_marks("stop", ranks - 1)
            again = stage.await_marks("start", ranks)
            restart_cpu_s = stage.cpu_s() - before
            cut = stage.tell("cut")
            back = stage.await_marks("back", ranks + ranks // PER_NODE)
            for _ in range(CUTS - 1):
                cut_again = stage.tell("cut")
                back_again = stage.await_marks("back", ranks + ranks // PER_NODE)
            stage.tell("besiege")
            besieged = stage.await_marks("besieged", WORKERS)
            time.sleep(1.0)
            os.kill(stage.controller, signal.SIGUSR1)
            crashed_again = stage.tell("crash")
            stopped_again = stage.await_marks("stop", ranks - 1)
            stage.await_marks("start", ranks)
            time.sleep(max(0.0, besieged + SIEGE_S - time.monotonic()))
            return {
                "ranks": ranks, "words_kb": words >> 10, "joined_s": joined_s, "idle_percent_of_a_core": 100 * idle,
                "crash_to_last_stop_s": stopped - crashed, "last_stop_to_last_start_s": again - stopped,
                "restart_cpu_s": restart_cpu_s,
                "cut_to_all_back_s": back - cut, "last_cut_to_all_back_s": back_again - cut_again,
                "besieged_crash_to_last_stop_s": stopped_again - crashed_again,
                "peak_mb": stage.peak_mb(), "leases_lost": stage.count("lost"),
            }  # fmt: skip
        finally:
            stage.end()


def measure() -> list[Series]:
    found = []
    for words in (0, 64 << 10):
        for what, value in played(1024, words).items():
            if what not in ("ranks", "words_kb"):
                what, _, unit = (
                    what.rpartition("_") if what.endswith(("_s", "_mb")) else (what, "", "%" if "percent" in what else "")
                )
                found.append(Series(f"1024 ranks, {words >> 10} kB of last words: {what.replace('_', ' ')}", (value,), unit))
    return found


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("1024", "8192")):
        for kept in (0, 64 << 10):
            print(
                *(f"{name} {value:.2f}".rstrip("0").rstrip(".") for name, value in played(count, kept).items()),
                sep="  ",
                flush=True,
            )
