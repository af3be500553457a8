"""What the kernel tells of a process that may go any moment: its files and links (empty for what is not there), and its TCP
connections."""

# Descriptors, links and files of the kernel, of processes that may go any moment:
# ruff: noqa: PTH115, PTH116

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise

from ftslurm.errors import CommandMissing
from ftslurm.model.collectives import SOCKETS_MAX, Socket
from ftslurm.sdk.page import SIZE
from ftslurm.system.commands import Runner
from ftslurm.system.sockets import inodes_of, kernel_address
from ftslurm.wrapper.agent.evidence.recorder import ASK_S


def read_text(path: str, limit: int = 1 << 16) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""


def read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_bytes(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return os.pread(fd, SIZE, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def tcp_sockets(pid: int) -> tuple[Socket, ...]:
    """The established connections of a process, stuck ones first: two retransmissions, no window, or unread data."""
    inodes = {str(inode) for inode in inodes_of([pid])}
    if not inodes:
        return ()
    rows = (row for table in ("tcp", "tcp6") for row in read_text(f"/proc/{pid}/net/{table}", 8 << 20).splitlines()[1:])
    found = [parsed for row in rows if (parsed := parse_tcp(row, inodes))]
    return tuple(sorted(found, key=lambda each: not each.trouble)[:SOCKETS_MAX])


def parse_tcp(row: str, inodes: Iterable[str]) -> Socket | None:
    """One line of /proc/net/tcp (proc_net_tcp.txt) as a socket if it is established and one of `inodes`, else None."""
    words = row.split()
    if len(words) < 10 or words[3] != "01" or words[9] not in inodes:
        return None
    sent, unread = (int(part, 16) for part in words[4].split(":"))
    timer, retries = int(words[5].split(":")[0], 16), int(words[6], 16)
    trouble = ""
    if sent and timer == 1 and retries >= 2:
        trouble = "retransmit"
    elif sent and timer == 4:
        trouble = "zero-window"
    elif unread:
        trouble = "unread"
    return Socket(_address(words[1]), _address(words[2]), trouble, sent if trouble != "unread" else unread, retries)


def _address(word: str) -> str:
    """`0100007F:1F90` is `127.0.0.1:8080`."""
    digits, _, port = word.partition(":")
    address = kernel_address(digits)
    return f"[{address}]:{int(port, 16)}" if address.version == 6 else f"{address}:{int(port, 16)}"


_SENT, _BUSY = re.compile(r"\bbytes_sent:(\d+)"), re.compile(r"\bbusy:(\d+)ms")
_SENT, _BUSY = re.compile(r"\bbytes_sent:(\d+)"), re.compile(r"\bbusy:(\d+)ms")


def parse_ss(text: str, pid: int) -> tuple[float, float]:
    """(MB sent, milliseconds busy) of the connections of `pid` in the output of `ss -Htinp`: one
    line each, and one of details.
    """
    lines = text.splitlines()
    ours = "".join(more for line, more in pairwise(lines) if f"pid={pid}," in line)
    return sum(map(int, _SENT.findall(ours))) / 1e6, float(sum(map(int, _BUSY.findall(ours))))


def bytes_sent_by(pid: int, run: Runner) -> tuple[float | None, float | None]:
    """MB sent and milliseconds busy so far, of the sockets of `pid`, as `ss` has them; it takes 10 ms."""
    own = read_link("/proc/self/ns/net") == read_link(f"/proc/{pid}/ns/net")
    argv = ["ss", "-Htinp", "state", "established"]
    try:
        done = run(argv if own else ["nsenter", "-t", str(pid), "-n", *argv], timeout_s=ASK_S)
    except (CommandMissing, OSError):
        return None, None
    return parse_ss(done.stdout, pid) if done.status == 0 else (None, None)
