"""NCCL's own report on a stalled job: its RAS threads know which processes are silent and which ranks are behind.

Source: NCCL user guide, "RAS" (since 2.24, on by default): text over TCP on localhost, NCCL_RAS_ADDR or port 28028.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

from ftslurm.model.text import visible
from ftslurm.system.sockets import kernel_address, plain_address

DEFAULT = ("localhost", 28028)
ADDRESS = "NCCL_RAS_ADDR"
# RAS asks all processes, and waits five seconds for those that do not answer.
ASK_S = 6.0
ANSWER_BYTES = 64 << 10
FOUND_LINES = 40
_SECTIONS = ("Errors", "Warnings")
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


def address_of(env: Mapping[str, str]) -> tuple[str, int]:
    """The address of NCCL's RAS; NCCL_RAS_ADDR is `host:port`, and either part may be missing."""
    host, _, port = env.get(ADDRESS, "").rpartition(":")
    return (host or DEFAULT[0], int(port)) if port.isdigit() and int(port) < 1 << 16 else DEFAULT


def ask_here(limit_s: float) -> tuple[str, ...]:
    """The findings of this node's own RAS."""
    return findings(ask(address_of(os.environ), min(ASK_S, limit_s)))


def ask(address: tuple[str, int], timeout_s: float = ASK_S) -> str:
    """The detailed status, empty if no process of our user answers in time. Another user of the node may listen there, and their
    answer must not become evidence. Never raises.
    """
    until = time.monotonic() + timeout_s
    found = bytearray()
    try:
        with socket.create_connection(address, timeout=timeout_s) as sock:
            if listeners(*sock.getpeername()[:2]) != {os.geteuid()}:
                return ""
            sock.sendall(b"verbose status\n")
            while len(found) < ANSWER_BYTES and (left := until - time.monotonic()) > 0:
                sock.settimeout(left)
                piece = sock.recv(1 << 16)
                if not piece:
                    break
                found += piece
    except (OSError, ValueError):
        pass
    return found[:ANSWER_BYTES].decode(errors="replace")


def listeners(host: str, port: int, tables: tuple[Path, ...] = _TABLES) -> set[int]:
    """Users of the sockets that listen there on this node. Source: proc(5), /proc/net/tcp. Raises: OSError, ValueError."""
    place = plain_address(ip_address(host.partition("%")[0]))
    found = set()
    for table in tables:
        for words in _rows(table):
            address, _, number = words[1].partition(":")
            if words[3] == _LISTENS and int(number, 16) == port:
                at = kernel_address(address)
                if at == place or at.is_unspecified:
                    found.add(int(words[7]))
    return found


def _rows(table: Path) -> Iterator[list[str]]:
    """The rows without the heading; none if the kernel lacks this address family."""
    if table.exists():
        yield from (line.split() for line in table.read_text().splitlines()[1:])


def findings(answer: str) -> tuple[str, ...]:
    """The lines of the sections on errors and warnings, without headings; none for a healthy job."""
    kept: list[str] = []
    inside = False
    lines = answer.splitlines()
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line.strip() and below.startswith("===") and not below.strip("="):
            inside = line.strip() in _SECTIONS
        elif inside and line.strip() and line.strip("="):
            kept.append(visible(line.rstrip())[:200])
    return tuple(kept[:FOUND_LINES])
