"""The first message of a shim on every connection, with a free TCP port for rank 0's rendezvous."""

from __future__ import annotations

import errno
import os

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, socket
from ftslurm.wrapper.shim.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

# --- A free TCP port for rank 0's rendezvous.

# Of rank 0's rendezvous: one of PORTS below the ports of connections (on Linux 20768 to 32767), and nobody's default.
PORTS, LOWEST_PORT, PORTS_LEAST, PORT_TRIES, PORT_STRIDE = 12000, 10000, 100, 200, 7919
POPULAR_PORTS = (25565, 27017, 29400, 29500)  # the last two are torchrun's


def free_port(of: str) -> int:
    """A TCP port that nobody has bound now and that is not in TIME_WAIT; 0 if there is none. of: whose, the same gives the same.

    Not one that the kernel gives to connections (ip_local_port_range in ip(7)): it takes seconds until rank 0 listens.
    """
    from binascii import crc32

    low, high = _ports_of_connections()
    first, span = max(LOWEST_PORT, low - PORTS), min(PORTS, low - LOWEST_PORT)
    if span < PORTS_LEAST:
        first, span = high + 1, min(PORTS, 65535 - high)
    start = crc32(of.encode())
    for number in range(PORT_TRIES if span >= PORTS_LEAST else 0):
        port = first + (start + number * PORT_STRIDE) % span
        if port not in POPULAR_PORTS and _bound(port):
            return port
    return _bound(0)


def _ports_of_connections() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = file.read().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def _bound(port: int) -> int:
    """`port`, or any for 0, if it can be bound for both families of addresses, as torch's store does; else 0."""
    for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        try:
            probe = socket.socket(family)
        except OSError:  # the kernel has no such family
            continue
        try:
            probe.bind((anywhere, port))
            return int(probe.getsockname()[1])
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                return 0
        finally:
            probe.close()
    return 0


# --- The first message of a shim on every connection.


def count_in(env: Mapping[str, str], name: str) -> int:
    """A number that Slurm set; 0 if it did not."""
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def hello_message(env: Mapping[str, str], rank: int, total: int, launch: int, address: str, free_port: int) -> Message:
    """env: as Slurm gave it. total: ranks of the step. address: ours, as the controller reaches it."""
    return {
        "t": "hello",
        "rank": rank,
        "node": env.get("SLURMD_NODENAME") or socket.gethostname(),
        "slot": int(env.get("SLURM_NODEID", "0")),
        "local": int(env.get("SLURM_LOCALID", "0")),
        "expected": total,
        "step": f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}",
        "launch": launch,
        "address": address,
        "pid": os.getpid(),
        "free_port": free_port,
        "cpus": count_in(env, "SLURM_CPUS_ON_NODE"),
        "gpus": count_in(env, "SLURM_GPUS_ON_NODE"),
    }
