"""What passes through the shim a second, beside what the same command writes past it: `bench/output.py`."""

from __future__ import annotations

import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from measure import ROOT, Series

sys.path.insert(0, str(ROOT))
from ftslurm.launchers.python import Python
from ftslurm.wrapper.shim.connection import CHANNEL_VARIABLE
from ftslurm.wrapper.shim.messages import SignedConnection
from ftslurm.wrapper.shim.session import ReliableStream

BYTES = 1 << 30
ROUNDS = 7
TAIL_BYTES = 65536
LINE = "2025-06-01 12:00:00,000 step 1234 loss 0.1234 lr 1.0e-4 grad_norm 1.23 tokens/s 12345"
COMMANDS = {
    "lines of a log": ["sh", "-c", f"yes '{LINE}' | head -c {BYTES}"],
    "binary": ["head", "-c", str(BYTES), "/dev/zero"],
}


def main() -> None:
    for what, command in COMMANDS.items():
        direct, pumped, shared = [], [], []
        for _ in range(ROUNDS):  # in turns, so that what else the machine does hits both
            direct.append(rate(command, 0))
            pumped.append(rate(command, TAIL_BYTES))
            shared.append(rate(command, TAIL_BYTES, "1"))
        print(Series(f"{what}, past the shim", tuple(direct), "MB/s"))
        print(Series(f"{what}, through the shim", tuple(pumped), "MB/s"))
        print(Series(f"{what}, through the shim into a pipe of many", tuple(shared), "MB/s"))
        print(f"{what}: through is {statistics.median(pumped) / statistics.median(direct):.2f} of past", flush=True)


def rate(command: Sequence[str], tail: int, local: str = "") -> float:
    """MB/s from the start of the command to the last byte read here, by one shim.

    local: `1` as under the local launcher, whose ranks share a pipe.
    """
    secret = secrets.token_bytes(32)
    with socket.create_server(("127.0.0.1", 0)) as server:
        channel = f"1:{server.getsockname()[1]}:{secret.hex()}:127.0.0.1"
        shim = subprocess.Popen(
            Python(sys.executable, str(ROOT)).shim_argv(tuple(command)),
            env={"PATH": "/usr/bin:/bin", CHANNEL_VARIABLE: channel, "FTSLURM_LOCAL": local},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        sock, _ = server.accept()
    with sock, shim:
        link = SignedConnection(secret, server=True)
        hear(sock, link, "hello")
        began = time.perf_counter()
        say = ReliableStream().say
        sock.sendall(link.pack({"t": "welcome", "a": 0, "lease_s": 60.0, "beat_s": 15.0, "grace_s": 5.0}))
        sock.sendall(link.pack(say({"t": "start", "attempt": 1, "env": {}, "argv": None, "tail": tail})))
        assert shim.stdout is not None
        got = 0
        while got < BYTES and (data := os.read(shim.stdout.fileno(), 1 << 16)):
            got += len(data)
        seconds = time.perf_counter() - began
        assert got == BYTES, f"{got} of {BYTES} bytes came through"
        hear(sock, link, "exited")
        sock.sendall(link.pack(say({"t": "end", "status": 0})))
    return BYTES / seconds / 1e6


def hear(sock: socket.socket, link: SignedConnection, kind: str) -> None:
    messages: list[dict] = []
    while not any(message["t"] == kind for message in messages):
        sock.sendall(link.outbox)
        link.outbox.clear()
        data = sock.recv(1 << 16)
        assert data, f"the shim hung up before it said {kind}"
        messages += link.feed(data)


if __name__ == "__main__":
    main()
