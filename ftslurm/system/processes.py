"""What processes there are and what they have done, and their end; read by psutil."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ftslurm.model.processes import Process

MAX_COMMAND_CHARS = 200
NO_SESSION = str(2**32 - 1)


def usage(pids: Iterable[int]) -> tuple[dict[tuple[int, float], int], float]:
    """((pid, start time) -> bytes of IO so far, CPU seconds so far) of all of `pids`.

    Bytes by calls (sockets and files alike) and those of the storage (mapped files show only there). CPU of children that
    have ended counts with their parent. Processes that end meanwhile or may not be looked at are passed over.
    Source: proc(5), /proc/pid/io.
    """
    import psutil

    io: dict[tuple[int, float], int] = {}
    cpu_s = 0.0
    for pid in pids:
        try:
            process = psutil.Process(pid)
            counters, times = process.io_counters(), process.cpu_times()
        except (psutil.Error, OSError):
            continue
        io[pid, process.create_time()] = (
            counters.read_chars + counters.write_chars + counters.read_bytes + counters.write_bytes
        )
        cpu_s += times.user + times.system + times.children_user + times.children_system
    return io, cpu_s


def all_processes() -> Mapping[int, Process]:
    """Every process of this node by its pid; those that end meanwhile are passed over."""
    import psutil

    found = {}
    for one in psutil.process_iter():
        try:
            with one.oneshot():
                found[one.pid] = Process(
                    one.pid, one.ppid(), one.uids().real, one.name(), one.create_time(),
                    " ".join(one.cmdline())[:MAX_COMMAND_CHARS], one.status(), _is_of_login(one.pid),
                )  # fmt: skip
        except (psutil.Error, OSError):
            continue
    return found


def _is_of_login(pid: int) -> bool:
    """PAM gives each login an audit session, which all that it starts inherits; Slurm's tasks are in none.

    Source: proc(5), /proc/pid/sessionid; pam_loginuid(8). A kernel without audit tells nothing.
    """
    try:
        return Path(f"/proc/{pid}/sessionid").read_text() != NO_SESSION
    except OSError:
        return False


def end_processes(doomed: Iterable[Process], grace_s: float, kill_wait_s: float) -> tuple[Process, ...]:
    """SIGTERM, after `grace_s` SIGKILL; gives those that are there `kill_wait_s` later still.

    A pid that another process has got meanwhile is not touched.
    """
    import psutil

    left = _same(doomed)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_wait_s)):
        for _, one in left:
            try:
                one.send_signal(number)  # looks at the time of creation first
            except psutil.Error:
                continue
        gone, _ = psutil.wait_procs([one for _, one in left], timeout=wait_s)
        left = [(process, one) for process, one in left if one not in gone and _is_alive(one)]
        if not left:
            break
    return tuple(process for process, _ in left)


def still_there(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Those of them that have not ended; a zombie has."""
    return tuple(process for process, one in _same(processes) if _is_alive(one))


def _same(processes: Iterable[Process]) -> list[tuple[Process, Any]]:
    import psutil

    found: list[tuple[Process, Any]] = []
    for process in processes:
        try:
            one = psutil.Process(process.pid)
            if abs(one.create_time() - process.started) < 0.02:  # clock ticks are 10 ms
                found.append((process, one))
        except (psutil.Error, OSError):
            continue
    return found


def _is_alive(one: Any) -> bool:
    import psutil

    try:
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
