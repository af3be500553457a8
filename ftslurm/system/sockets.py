"""Traffic of the TCP connections in this network namespace, from the kernel: /proc/pid/io does not count recv(2) and send(2),
which most programs use.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

# Source: linux/netlink.h, sock_diag.h, inet_diag.h, tcp.h (struct tcp_info, with all of these since Linux 4.10).
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST, NLM_F_DUMP = 1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
INET_DIAG_INFO = 2
ESTABLISHED = 1
_HEAD = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48s")
MESSAGE_SIZE, INODE_AT = 72, 68
# Bytes acknowledged, bytes received; microseconds in which there was something to send.
_COUNTS, COUNTS_AT = struct.Struct("=QQ32xQ"), 120
ANSWER_S = 1.0
PIECE = 1 << 16


class Moved(NamedTuple):
    """By one connection so far. busy_ms: for how long it had something to send."""

    sent: int
    received: int
    busy_ms: float


def moved_by_tcp() -> dict[int, Moved]:
    """Inode of the socket -> what it has moved, of established connections. Empty if the kernel does not tell."""
    try:
        return {inode: moved for family in (socket.AF_INET, socket.AF_INET6) for inode, moved in _asked(family)}
    except (OSError, AttributeError, struct.error):
        return {}


def tcp_bytes() -> dict[int, tuple[int, int]]:
    """The same, (bytes sent and acknowledged, bytes received) alone."""
    return {inode: moved[:2] for inode, moved in moved_by_tcp().items()}


def _asked(family: int) -> Iterator[tuple[int, Moved]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(ANSWER_S)
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0, 1 << ESTABLISHED, b"")
        link.send(_HEAD.pack(_HEAD.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 0, 0) + request)
        while True:
            data, at = link.recv(PIECE), 0
            while at + _HEAD.size <= len(data):
                size, kind, _, _, _ = _HEAD.unpack_from(data, at)
                if kind in (NLMSG_DONE, NLMSG_ERROR) or size < _HEAD.size:
                    return
                if found := parse_diag(data[at + _HEAD.size : at + size]):
                    yield found
                at += size + 3 & ~3
            if not data:
                return


def parse_diag(message: bytes) -> tuple[int, Moved] | None:
    """A struct inet_diag_msg with its attributes, and the inode; None if it lacks the counts."""
    if len(message) < MESSAGE_SIZE:
        return None
    (inode,) = struct.unpack_from("=I", message, INODE_AT)
    at = MESSAGE_SIZE
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if kind == INET_DIAG_INFO and size >= 4 + COUNTS_AT + _COUNTS.size and at + size <= len(message):
            sent, received, busy_us = _COUNTS.unpack_from(message, at + 4 + COUNTS_AT)
            return inode, Moved(sent, received, busy_us / 1000)
        if size < 4:
            return None
        at += size + 3 & ~3
    return None


def network_bytes(pid: int) -> tuple[int, int] | None:
    """(bytes out, bytes in) so far of the network namespace of `pid`. Source: proc(5), /proc/pid/net/netstat, IpExt."""
    try:
        with open(f"/proc/{pid}/net/netstat") as file:
            lines = [line.split() for line in file if line.startswith("IpExt:")]
        counts = dict(zip(*lines, strict=True))
        return int(counts["OutOctets"]), int(counts["InOctets"])
    except (OSError, KeyError, ValueError, TypeError):
        return None


def inodes_of(pids: Iterable[int]) -> set[int]:
    """Inodes of all sockets of these processes; none for processes that have ended or are unreadable."""
    found = set()
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 -- pathlib takes twice as long, and there may be thousands
        except OSError:
            continue
        for name in names:
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")  # noqa: PTH115 -- as above
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(int(target[8:-1]))
    return found


def kernel_address(digits: str) -> IPv4Address | IPv6Address:
    """As /proc/net/tcp has it: words of 32 bits, each in the byte order of the machine. Raises: ValueError."""
    data = bytes.fromhex(digits)
    words = (int.from_bytes(data[at : at + 4], "big").to_bytes(4, sys.byteorder) for at in range(0, len(data), 4))
    return plain_address(ip_address(b"".join(words)))


def plain_address(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An IPv4 address that is written as one of IPv6's is the same address."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address
