"""The training that chaos strikes: every step needs all ranks, and only a step whose checkpoint was written counts.

Standard library only; it runs under ftrun as any program does. What it leaves in $STORY, for the checker:

    steps.RANK             a JSON line for every step: attempt, step, digest after it, and from when to when
    beat.RANK.ATTEMPT.PID  from when to when this process ran: a shared page that a thread of its own writes to, so that
                           a rank which waits for others beats too, and no beat is IO
    commits                a line `ATTEMPT STEP` for each checkpoint, by rank 0
    conflicts              what must never happen: a checkpoint that somebody else has moved meanwhile
    result                 `STEP DIGEST`, at the end

The digest is a chain over all steps and ranks: it comes out right only if each step was made once, on the state before it.
The job goes on until $STORY/enough is there. An order in $STORY/order.ATTEMPT.RANK (`exit 3`, `stall`, `say TEXT`) is obeyed.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable

BEAT = struct.Struct("=ii dd")  # attempt, rank, first and last beat in Unix seconds
BEAT_S = 0.02
ORDERS_EVERY = 5  # beats
CONNECT_S = 60.0
NEW_CHAIN = "0" * 64


def contribution(step: int, rank: int, before: str) -> str:
    """What `rank` adds to the step."""
    return hashlib.sha256(f"{step}.{rank}.{before}".encode()).hexdigest()


def chained(before: str, parts: Iterable[str]) -> str:
    """The digest after a step."""
    return hashlib.sha256("".join((before, *parts)).encode()).hexdigest()


def chain(steps: int, ranks: int) -> list[str]:
    """The digest after each step, [0] before the first."""
    found = [NEW_CHAIN]
    for step in range(1, steps + 1):
        found.append(chained(found[-1], (contribution(step, rank, found[-1]) for rank in range(ranks))))
    return found


class Rank:
    def __init__(self, env: dict[str, str]) -> None:
        self.folder = env["STORY"]
        self.rank, self.size = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"])
        self.attempt = int(env["FTSLURM_ATTEMPT"])
        self.step_s = float(env.get("CHAOS_STEP_S", "0.2"))
        self.fails_at = int(env.get("CHAOS_FAILS_AFTER", "-1"))
        self.tells = "CHAOS_NO_PROGRESS" not in env
        self.peers: list[Peer] = []
        self.ending = False
        self.stalled = threading.Event()

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    # ---- beats, and orders

    def begin_beating(self) -> None:
        name = self.path(f"beat.{self.rank}.{self.attempt}.{os.getpid()}")
        with open(name, "w+b") as file:
            file.truncate(mmap.PAGESIZE)
            page = mmap.mmap(file.fileno(), BEAT.size)
        BEAT.pack_into(page, 0, self.attempt, self.rank, time.time(), time.time())
        threading.Thread(target=self.beat, args=(page,), daemon=True).start()

    def beat(self, page: mmap.mmap) -> None:
        order, count = self.path(f"order.{self.attempt}.{self.rank}"), 0
        while True:
            struct.pack_into("=d", page, BEAT.size - 8, time.time())
            count += 1
            if count % ORDERS_EVERY == 0 and os.path.exists(order):
                self.obey(order)
            time.sleep(BEAT_S)

    def obey(self, order: str) -> None:
        with open(order) as file:
            word, _, rest = file.read().strip().partition(" ")
        os.unlink(order)
        if word == "stall":
            self.stalled.set()
        elif word == "exit":
            os._exit(int(rest))
        elif word == "say":
            os.write(2, f"{rest}\n".encode())
            os._exit(1)

    # ---- the others

    def meet(self) -> None:
        """Rank 0 listens; all others know where by a file of this attempt."""
        address = self.path(f"address.{self.attempt}")
        if self.rank == 0:
            server = socket.create_server(("", 0), backlog=self.size)
            write_whole(address, f"{own_address()} {server.getsockname()[1]}")
            found: dict[int, Peer] = {}
            while len(found) < self.size - 1:
                peer = Peer(server.accept()[0])
                found[int(peer.read())] = peer
            self.peers = [found[rank] for rank in sorted(found)]
            return
        deadline = time.monotonic() + CONNECT_S
        while not os.path.exists(address):
            if time.monotonic() > deadline:
                raise ConnectionError(f"rank 0 has not opened its store within {CONNECT_S:g} s")
            time.sleep(0.05)
        with open(address) as file:
            host, port = file.read().split()
        self.peers = [Peer(socket.create_connection((host, int(port))))]
        self.peers[0].send(str(self.rank))

    def together(self, mine: str, head: str) -> tuple[str, list[str]]:
        """Everybody's part, in the order of ranks, and rank 0's word on how it goes on."""
        if self.rank == 0:
            parts = [mine, *(peer.read() for peer in self.peers)]
            head = "end" if head == "end" or any(part.endswith("!") for part in parts) else head
            for peer in self.peers:
                peer.send(json.dumps([head, parts]))
            return head, parts
        self.peers[0].send(mine)
        head, parts = json.loads(self.peers[0].read())
        return head, parts

    # ---- the training

    def resume(self) -> tuple[int, str]:
        """From rank 0's checkpoint, for all."""
        mine = ""
        if self.rank == 0:
            step, digest = read_checkpoint(self.path("checkpoint"))
            mine = f"{step} {digest}"
        _, parts = self.together(mine, "")
        step, digest = parts[0].split()
        return int(step), digest

    def run(self) -> int:
        self.begin_beating()
        signal.signal(signal.SIGTERM, self.asked_to_end)
        self.meet()
        step, digest = self.resume()
        steps = 0
        with open(self.path(f"steps.{self.rank}"), "a", buffering=1) as lines:
            while True:
                if steps == self.fails_at:
                    raise RuntimeError("the loss is not a number")
                began = time.time()
                enough = self.rank == 0 and os.path.exists(self.path("enough"))
                mine = contribution(step + 1, self.rank, digest) + ("!" if self.ending else "")
                head, parts = self.together(mine, "last" if enough else "go")
                before, digest, step, steps = digest, chained(digest, (part.rstrip("!") for part in parts)), step + 1, steps + 1
                if self.rank == 0:
                    self.commit(step, before, digest)
                lines.write(json.dumps([self.attempt, step, digest, began, time.time()]) + "\n")
                if self.tells:
                    progress(step)
                if head != "go":
                    if self.rank == 0 and head == "last":
                        write_whole(self.path("result"), f"{step} {digest}")
                    self.together("", "")  # nobody ends before all have come to here
                    return 0
                time.sleep(self.step_s)
                while self.stalled.is_set():
                    time.sleep(1.0)

    def asked_to_end(self, *_: object) -> None:
        self.ending = True

    def commit(self, step: int, before: str, digest: str) -> None:
        there = read_checkpoint(self.path("checkpoint"))
        if there != (step - 1, before):
            append(self.path("conflicts"), f"{self.attempt} {step} found {there[0]} {there[1]}")
            os._exit(86)
        write_whole(self.path("checkpoint"), f"{step} {digest}")
        append(self.path("commits"), f"{self.attempt} {step}")


def progress(step: int) -> None:
    try:
        from ftslurm.sdk import client  # on PYTHONPATH by ftrun
    except ImportError:
        return
    client.progress(step)


def read_checkpoint(path: str) -> tuple[int, str]:
    try:
        with open(path) as file:
            step, digest = file.read().split()
    except FileNotFoundError:
        return 0, NEW_CHAIN
    return int(step), digest


def write_whole(path: str, text: str) -> None:
    fresh = f"{path}.{os.getpid()}.{time.monotonic_ns()}"
    with open(fresh, "w") as file:
        file.write(text)
    os.replace(fresh, path)


def append(path: str, line: str) -> None:
    with open(path, "a") as file:
        file.write(line + "\n")


def own_address() -> str:
    """By which the other nodes reach this one; where its name is nobody's, all nodes are this machine."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


class Peer:
    """A line at a time, both ways."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.reader = connection.makefile("r")

    def send(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\n")

    def read(self) -> str:
        line = self.reader.readline()
        if not line.endswith("\n"):
            raise ConnectionError(f"[gloo/transport/tcp/pair.cc] Connection closed by peer {self.connection.getsockname()}")
        return line.rstrip("\n")


def main() -> None:
    try:
        status = Rank(dict(os.environ)).run()
    except (OSError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if os.environ.get("CHAOS_ON_LOSS") == "wait" and isinstance(error, OSError):
            time.sleep(600.0)  # as a collective without a time limit does
        status = 1
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
