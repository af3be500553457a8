"""Free ports of this machine."""

from __future__ import annotations

import random
import socket

from slurm_cluster.trouble import Trouble

# Below Linux' ephemeral ports (32768 and up, ip(7)), which outgoing connections would take away at random.
PORT_RANGE = range(20000, 32000)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm does: a port in TIME_WAIT is free
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose_port_base(count: int) -> int:
    """The first of `count` free ports in a row; chosen at random, so two clusters started at once seldom meet."""
    for _ in range(100):
        base = random.randrange(PORT_RANGE.start, PORT_RANGE.stop - count)
        if all(is_free(port) for port in range(base, base + count)):
            return base
    raise Trouble(f"found no {count} free ports in a row in {PORT_RANGE.start}-{PORT_RANGE.stop}; name some with --port-base")


def check_ports(ports: range) -> None:
    if taken := [str(port) for port in ports if not is_free(port)]:
        raise Trouble(f"port {', '.join(taken)} is taken; name another --port-base or let slurm-cluster choose one")
