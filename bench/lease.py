"""What leases cost: bytes of a beat and its answer, and the controller's CPU for one, as real callers cause it."""

from __future__ import annotations

import os
import socket
import time

from measure import Series

from ftslurm.model.settings.tree import Settings
from ftslurm.system.clock import Clock
from ftslurm.wrapper.controller.callers import BEATS
from ftslurm.wrapper.controller.sources import SignalPipe, Sources
from ftslurm.wrapper.shim.connection import Channel, connect
from ftslurm.wrapper.shim.hello import hello_message
from ftslurm.wrapper.shim.messages import SignedConnection

CALLERS, ROUNDS = 200, 50


def measure() -> list[Series]:
    settings = Settings()
    beats_s = BEATS / min(settings.lease.time_s, settings.nodes.silence_s)
    sources = Sources(Clock(), SignalPipe(), lambda *_: None, "127.0.0.1")  # type: ignore[arg-type, return-value]
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os._exit(_call(sources.server.channel_text(["127.0.0.1"]), write_end))
    for _ in range(CALLERS):
        sources.next(None)  # all are there
    before = time.process_time()
    os.set_blocking(read_end, False)
    while not _said(read_end):
        sources.next(time.monotonic() + 0.2)
    cpu_s = time.process_time() - before
    os.waitpid(pid, 0)
    sources.close()
    link = SignedConnection(bytes(32), server=False)
    sizes = [len(link.pack({"t": "beat", "k": 1000, "a": 10, "r": 0})) for _ in range(2)]
    return [
        Series("CPU of ftrun for one beat of one rank", (1e6 * cpu_s / (CALLERS * ROUNDS),), "µs"),
        Series("the same for 1,000 ranks, of a core", (100 * 1000 * beats_s * cpu_s / (CALLERS * ROUNDS),), "%"),
        Series("a rank's beats and their answers, without TCP's headers", (sum(sizes) * beats_s,), "B/s"),
    ]


def _said(fd: int) -> bool:
    try:
        return bool(os.read(fd, 1))
    except BlockingIOError:
        return False


def _call(text: str, done: int) -> int:
    """Many callers in one process, each with a beat a round."""
    callers = []
    for rank in range(CALLERS):
        sock, link = connect(Channel(text), {}, 30.0)
        sock.settimeout(30.0)
        env = {"SLURMD_NODENAME": f"n{rank}", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
        told = hello_message(env, rank, CALLERS, 0, "", 0)
        sock.sendall(link.pack({**told, "talk": str(rank), "a": 0}))
        _answer(sock, link)
        callers.append((sock, link))
    for number in range(ROUNDS):
        for sock, link in callers:
            sock.sendall(link.pack({"t": "beat", "k": number, "a": 0, "r": 0}))
        for sock, link in callers:
            _answer(sock, link)
    os.write(done, b"!")
    return 0


def _answer(sock: socket.socket, link: SignedConnection) -> None:
    data = b""
    while not link.feed(data):
        data = sock.recv(65536)
        assert data, "ftrun hung up"
