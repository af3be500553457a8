"""NCCL's own word on a job that stands still: its RAS threads know which processes are silent and which ranks are behind.

Source: NCCL user guide, "RAS" (since 2.24, on by default): text over TCP on localhost, NCCL_RAS_ADDR or port 28028.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

from ftslurm.model.plain import plain

DEFAULT = ("localhost", 28028)
ADDRESS = "NCCL_RAS_ADDR"
# RAS collects from all processes, and waits five seconds for those that do not answer.
ASK_S = 6.0
ANSWER_BYTES = 64 << 10
FOUND_LINES = 40
_SECTIONS = ("Errors", "Warnings")


def address_of(env: Mapping[str, str]) -> tuple[str, int]:
    """Where to ask; `host:port`, either may be left out."""
    host, _, port = env.get(ADDRESS, "").rpartition(":")
    return (host or DEFAULT[0], int(port)) if port.isdigit() and int(port) < 1 << 16 else DEFAULT


def ask(address: tuple[str, int], timeout_s: float = ASK_S) -> str:
    """The status in detail, empty if nobody answers in time. Never raises."""
    until = time.monotonic() + timeout_s
    found = bytearray()
    try:
        with socket.create_connection(address, timeout=timeout_s) as sock:
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


def findings(answer: str) -> tuple[str, ...]:
    """The lines of its sections on errors and warnings, without the headings; none for a job that is well."""
    kept: list[str] = []
    inside = False
    lines = answer.splitlines()
    for number, line in enumerate(lines):
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line.strip() and below.startswith("===") and not below.strip("="):
            inside = line.strip() in _SECTIONS
        elif inside and line.strip() and line.strip("="):
            kept.append(plain(line.rstrip())[:200])
    return tuple(kept[:FOUND_LINES])
