"""Processes: who is who, by /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

POLL_S = 0.05


def read_proc(pid: int, name: str) -> bytes:
    """/proc/PID/NAME, empty if the process has gone or is not ours to look at."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def argv_of(pid: int) -> tuple[str, ...]:
    """The command line; empty for a zombie, which is as good as gone."""
    return tuple(os.fsdecode(word) for word in read_proc(pid, "cmdline").rstrip(b"\0").split(b"\0"))


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def parent_of(pid: int) -> int:
    """The parent's pid, 0 if the process has gone; proc(5): it follows `(comm)` and the state."""
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def is_alive(pid: int) -> bool:
    """Still there, and no zombie."""
    return read_proc(pid, "stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def open_files(pid: int) -> set[str]:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    return {target for link in links if (target := read_link(link))}


def read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:  # closed in the meantime
        return ""


def send(pids: Iterable[int], signum: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signum)


def wait_gone(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Those of `pids` that are still alive after `timeout_s`, or nobody as soon as all have gone."""
    deadline = time.monotonic() + timeout_s
    while (alive := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return alive


def with_descendants(roots: set[int]) -> set[int]:
    parents = {pid: parent_of(pid) for pid in all_pids()}
    family = set(roots)
    while children := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= children
    return family
