"""One network namespace a rank on a bridge, so that links can be cut and made slow. Needs root and ip(8)."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import threading
from contextlib import suppress

from ftslurm.system.sockets import Moved, moved_by_tcp


def available() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    return subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


_numbers = itertools.count()
_spaces: set[str] = set()  # that are there


def moved_anywhere() -> dict[int, Moved]:
    """By the connections of all ranks. An agent sees those of its own network alone, for only root can enter another."""
    found = moved_by_tcp()

    def look(space: str) -> None:
        with suppress(FileNotFoundError), open(f"/run/netns/{space}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) == 0:
                found.update(moved_by_tcp())

    for space in sorted(_spaces):
        thread = threading.Thread(target=look, args=(space,))  # it alone changes its network
        thread.start()
        thread.join()
    return found


class Network:
    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.name = f"fth{os.getpid() % 100000:x}{next(_numbers) % 1296:x}"  # an interface name has 15 letters at most
        self.bridge = f"{self.name}b"

    def __enter__(self) -> Network:
        self.__exit__()
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("link", "set", self.bridge, "up")
        for rank in range(self.ranks):
            space, port = f"{self.name}n{rank}", f"{self.name}v{rank}"
            _ip("netns", "add", space)
            _spaces.add(space)
            _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", port, "master", self.bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(rank)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for rank in range(self.ranks):
            _spaces.discard(f"{self.name}n{rank}")
            _ip("netns", "del", f"{self.name}n{rank}", check=False)
            _ip("link", "del", f"{self.name}v{rank}", check=False)
        _ip("link", "del", self.bridge, check=False)

    def address(self, rank: int) -> str:
        return f"10.77.0.{rank + 1}"

    def inside(self, rank: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"{self.name}n{rank}")

    def cut(self, rank: int) -> None:
        _ip("link", "set", f"{self.name}v{rank}", "nomaster")

    def join(self, rank: int) -> None:
        _ip("link", "set", f"{self.name}v{rank}", "master", self.bridge)

    def cut_between(self, one: int, other: int) -> None:
        """Frames to each other go to an address that nobody has."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", f"{self.name}n{here}", "neigh", "replace", self.address(there), "lladdr", "02:00:00:00:de:ad",
                "dev", "eth0", "nud", "permanent")  # fmt: skip

    def shape(self, rank: int, rate: str) -> None:
        """What the rank sends goes no faster than `rate`."""
        argv = ["tc", "-n", f"{self.name}n{rank}", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
                "burst", "64kb", "latency", "100ms"]  # fmt: skip
        subprocess.run(argv, check=True, capture_output=True)
