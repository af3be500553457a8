"""What torch's recorder of collectives and NCCL's RAS answer about a stalled job."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ftslurm.model.text import visible
from ftslurm.model.values import Value, field
from ftslurm.system.sockets import kernel_address, plain_address

# --- NCCL's own report on a stalled job: its RAS threads know which processes are silent and which ranks are behind.
#
# Source: NCCL user guide, "RAS" (since 2.24, on by default): text over TCP on localhost, NCCL_RAS_ADDR or port 28028.

DEFAULT = ("localhost", 28028)
ADDRESS = "NCCL_RAS_ADDR"
# RAS asks all processes, and waits five seconds for those that do not answer.
RAS_S = 6.0
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
    return ras_findings(ask_ras(address_of(os.environ), min(RAS_S, limit_s)))


def ask_ras(address: tuple[str, int], timeout_s: float = RAS_S) -> str:
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


def ras_findings(answer: str) -> tuple[str, ...]:
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


# --- Torch's recorder of collectives, asked of the worker server in each rank, which answers even while native code holds the
# interpreter lock.

ASK_S = 2.0
DUMP_BYTES = 16 << 20  # 2,000 entries of the recorder are 1 MB
RECENT = 4


class Recorded(Value):
    """What the recorder knows about one group.

    entered, completed: numbers of collectives. operation: the earliest in flight. recent: the last ones entered, if any is in
    flight. started: by the device, None if there is none. peers: ranks in the group for which a point-to-point operation in
    flight waits. times_ns: number -> when it was entered, on the node's wall clock.
    """

    entered: int
    completed: int
    operation: str = ""
    recent: tuple[str, ...] = ()
    started: int | None = None
    peers: tuple[tuple[str, int], ...] = ()
    times_ns: Mapping[int, int] = field(default_factory=dict)


_PEERS = re.compile(r"(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")  # the format of NCCL: `nccl:send 0->1`, `nccl:recv 1<-0`


def parse_recorder(dump: Mapping[str, Any]) -> dict[str, Recorded]:
    """Name of a group -> what a dump (`fr_trace_json`) holds about it. Numbers count collectives only; they are the same on all
    members.

    Raises: KeyError, TypeError, ValueError if it is no dump.
    """
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in dump.get("entries") or ():
        entries.setdefault(str(entry["process_group"][0]), []).append(entry)
    status = dump.get("pg_status") or {}
    return {name: _of_group(found, status) for name, found in entries.items()}


def _of_group(entries: Sequence[Mapping[str, Any]], status: Mapping[str, Any]) -> Recorded:
    collectives = {int(entry["collective_seq_id"]): entry for entry in entries if not entry.get("is_p2p")}
    open_ = sorted(number for number, entry in collectives.items() if not _complete(entry))
    entered = max(collectives, default=0)
    started = int((status.get(str(entries[-1].get("pg_id"))) or {}).get("last_started_collective", -1))
    direct = [_PEERS.search(str(entry["profiling_name"])) for entry in entries if entry.get("is_p2p") and not _complete(entry)]
    return Recorded(
        entered,
        open_[0] - 1 if open_ else entered,
        _operation(collectives[open_[0]]) if open_ else "",
        tuple(_operation(collectives[number]) for number in sorted(collectives)[-RECENT:]) if open_ else (),
        started if started >= 0 else None,
        tuple((told[1], int(told[4])) for told in direct if told),
        {number: int(entry["time_created_ns"]) for number, entry in collectives.items()},
    )


def _complete(entry: Mapping[str, Any]) -> bool:
    return bool(entry.get("retired")) or entry.get("state") == "completed"


def _operation(entry: Mapping[str, Any]) -> str:
    sizes = json.dumps(entry.get("input_sizes", []), separators=(",", ":"))
    return f"{entry['profiling_name']} {','.join(map(str, entry.get('input_dtypes') or ()))} {sizes}".strip()[:200]


def ask_server(path: str, handler: str, timeout_s: float = ASK_S) -> bytes | None:
    """The answer of torch's worker server, None if it does not come in time. Never raises."""
    until = time.monotonic() + timeout_s
    question = f"POST /handler/{handler} HTTP/1.1\r\nHost: l\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(timeout_s)
            sock.connect(path)
            sock.sendall(question.encode())
            found = bytearray()
            while len(found) < DUMP_BYTES and (left := until - time.monotonic()) > 0:
                sock.settimeout(left)
                piece = sock.recv(1 << 20)
                if not piece:
                    head, _, body = bytes(found).partition(b"\r\n\r\n")
                    return body if b" 200 " in head.partition(b"\r\n")[0] else None
                found += piece
    except (OSError, ValueError):
        pass
    return None
