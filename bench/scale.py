"""A job of thousands of ranks on this machine: the sessions of its shims and agents against one real controller.

    bench/scale.py 1024 8192      numbers of ranks; an agent for each eight

Nothing runs but the callers, in a few processes: they dial, greet, beat by the real protocol, and answer orders as shims do whose
commands end at once. Printed: until the last rank was told to start; the controller's CPU while all is well; after one rank's
failure until the last was told to stop, from there until the last was told to start again; until all are back after every
connection was cut; its memory.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftslurm.ledger.journal import Journal
from ftslurm.model.folds.history import History
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.judge import Judge
from ftslurm.policies.judge.phases import RunFacts
from ftslurm.system.clock import Clock
from ftslurm.system.descriptors import raise_limit
from ftslurm.wrapper.controller.controller import Controller
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.effects import Effects
from ftslurm.wrapper.controller.signals import Signals
from ftslurm.wrapper.controller.sources import Sources
from ftslurm.wrapper.shim.protocol.channel import Channel
from ftslurm.wrapper.shim.protocol.connection import connect
from ftslurm.wrapper.shim.protocol.hello import hello
from ftslurm.wrapper.shim.protocol.session import Session
from ftslurm.wrapper.shim.timers import boot_s

PER_NODE, WORKERS, IDLE_S, LIMIT_S = 8, 4, 10.0, 60.0
TICKS = os.sysconf("SC_CLK_TCK")


def node_of(rank: int) -> str:
    return f"n{rank // PER_NODE:05d}"


class Step:
    """A step that is only callers elsewhere."""

    def ended(self) -> None:
        return None

    def ranks_ended(self) -> frozenset[int]:
        return frozenset()

    def signal(self, number: int) -> None: ...
    def kill(self) -> None: ...
    def abandon(self) -> None: ...
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
        self._tell("agents", channel)
        return Step()

    def step_argvs(self, layout: Any = None) -> tuple[tuple[str, ...], ...]:
        return ((),)

    def watch_argv(self, nodes: Sequence[str]) -> tuple[str, ...]:
        return ()


class Scheduler:
    """Shows nothing, and is asked nothing."""

    def show(self, text: str) -> None: ...
    def call_off(self) -> None: ...


def controller(ranks: int, folder: Path, orders: Sequence[int]) -> None:
    """In a process of its own, until it is killed."""
    raise_limit()

    def tell(what: str, channel: str) -> None:
        for fd in orders:
            os.write(fd, f"{what} {channel}\n".encode())

    settings = Settings()
    nodes = tuple(node_of(first) for first in range(0, ranks, PER_NODE))
    facts = RunFacts(
        "run", "1", "scale", 0, "train", "train", nodes, launcher="srun", number=1, can=frozenset({Capability.DIAGNOSE})
    )
    clock, signals = Clock(), Signals()
    sources = Sources(clock, signals, lambda *_: None, "127.0.0.1")  # type: ignore[arg-type, return-value]
    channel = sources.server.channel_text(["127.0.0.1"])
    effects = Effects(sources, Launcher(tell), Scheduler(), signals, clock, lambda: channel, diagnosis=Diagnosis(settings))  # type: ignore[arg-type]
    Controller(Judge(settings, History(), facts), sources, effects, Journal(folder / "jobs/scale.1.jsonl"), clock).run()


class Worker:
    """The callers of every WORKERS-th rank. marks: (what, when) for the one who measures."""

    def __init__(self, number: int, ranks: int, orders: int, marks: int, words: int) -> None:
        self._number, self._ranks, self._orders, self._marks, self._words = number, ranks, orders, marks, words
        self._lines: dict[int, tuple[Session, int | None]] = {}  # descriptor -> session, and rank
        self._poll = select.poll()
        self._poll.register(orders, select.POLLIN)
        self._text = b""
        self._attempt = 0
        self._cut: set[Session] = set()

    def run(self) -> None:
        while True:
            for fd, _ in self._poll.poll(20):
                if fd == self._orders:
                    self._ordered()
            now = boot_s()
            for line, rank in list(self._lines.values()):
                for message in line.listen():
                    self._told(line, rank, message)
                line.turn(now)
                if line in self._cut and line._welcome:
                    self._cut.discard(line)
                    self.mark("back")

    def mark(self, what: str) -> None:
        os.write(self._marks, f"{what} {time.monotonic()}\n".encode())

    def _ordered(self) -> None:
        self._text += os.read(self._orders, 1 << 16)
        *whole, self._text = self._text.split(b"\n")
        for each in whole:
            what, _, rest = each.decode().partition(" ")
            if what == "shims":
                self._call(Channel(rest), range(self._number, self._ranks, WORKERS))
            elif what == "agents":
                self._agents(Channel(rest))
            elif what == "crash":
                self._crash()
            elif what == "cut":
                for line, _rank in self._lines.values():
                    if line._sock is not None:
                        line._sock.shutdown(socket.SHUT_RDWR)
                        line._welcome = False
                        self._cut.add(line)

    def _call(self, channel: Channel, mine: range) -> None:
        for rank in mine:
            env = {"SLURMD_NODENAME": node_of(rank), "SLURM_NODEID": str(rank // PER_NODE), "SLURM_LOCALID": str(rank % PER_NODE),
                   "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}  # fmt: skip
            self._add(
                Session(channel, {}, *connect(channel, {}, 60.0), hello(env, rank, self._ranks, channel.launch, "127.0.0.1", 0)),
                rank,
            )

    def _agents(self, channel: Channel) -> None:
        for first in range(0, self._ranks, PER_NODE):
            if first // PER_NODE % WORKERS == self._number:
                self._add(
                    Session(channel, {}, *connect(channel, {}, 60.0), {"t": "agent", "node": node_of(first), "kinds": []}), None
                )
                self.mark("agent")

    def _add(self, line: Session, rank: int | None) -> None:
        self._lines[id(line)] = line, rank

    def _told(self, line: Session, rank: int | None, message: Mapping[str, Any]) -> None:
        if rank is None:
            return
        if message["t"] == "start":
            self._attempt = int(message["attempt"])
            self.mark("start")
            line.say({"t": "started", "attempt": self._attempt, "pid": 1000 + rank})
        elif message["t"] == "stop":
            self.mark("stop")
            line.say(
                {
                    "t": "exited",
                    "attempt": self._attempt,
                    "code": 0,
                    "signal": 15,
                    "at": time.time(),
                    "asked": True,
                    **self._tail(),
                }
            )
            line.say({"t": "stopped", "attempt": self._attempt, "left": [], "free_port": 0})

    def _tail(self) -> dict[str, Any]:
        return (
            {"tail": [[time.time(), "out", "loss 0.1 step 100 of an ordinary log\n" * (self._words // 37)]]}
            if self._words
            else {}
        )

    def _crash(self) -> None:
        line = next((line for line, rank in self._lines.values() if rank == 0), None)
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
            assert time.monotonic() < deadline, f"{len(self._marks[what])} of {count} {what}"
            if not select.select([self._read], [], [], 0.5)[0]:
                continue
            *whole, self._text = (self._text + os.read(self._read, 1 << 20)).split(b"\n")
            for line in whole:
                kind, _, at = line.decode().partition(" ")
                self._marks[kind].append(float(at))
        return max(self._marks.pop(what))

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
            crashed = stage.tell("crash")
            stopped = stage.await_marks("stop", ranks - 1)
            again = stage.await_marks("start", ranks)
            cut = stage.tell("cut")
            back = stage.await_marks("back", ranks + ranks // PER_NODE)
            return {
                "ranks": ranks, "words_kb": words >> 10, "joined_s": joined_s, "idle_percent_of_a_core": 100 * idle,
                "crash_to_last_stop_s": stopped - crashed, "last_stop_to_last_start_s": again - stopped,
                "cut_to_all_back_s": back - cut, "peak_mb": stage.peak_mb(),
            }  # fmt: skip
        finally:
            stage.end()


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("1024", "8192")):
        for kept in (0, 64 << 10):
            print(
                *(f"{name} {value:.2f}".rstrip("0").rstrip(".") for name, value in played(count, kept).items()),
                sep="  ",
                flush=True,
            )
