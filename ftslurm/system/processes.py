"""Which processes exist, what they have done, and how to end them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import CommandMissing
from ftslurm.model.exits import Process
from ftslurm.system.commands import run_group
from ftslurm.system.owner import PATH

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
POLL_S = 0.05
MAX_COMMAND_CHARS = 200
COMMANDS_LIMIT_S = 5.0
# Length of a program's own name; names of kernel threads are longer in newer kernels.
MAX_NAME_CHARS = 15
_STATES = {"R": "running", "S": "sleeping", "D": "disk-sleep", "T": "stopped", "t": "tracing-stop", "I": "idle"}
NO_SESSION = str(2**32 - 1)
GHOST = 2**32 - 3  # no user has it: the two numbers above mean none (setresuid(2)) and overflow
STUCK_LOOKS = 20


def usage(pids: Iterable[int]) -> tuple[dict[tuple[int, float], int], float]:
    """((pid, start time) -> bytes of I/O so far, CPU seconds so far) of all of `pids`.

    Bytes by system calls (sockets and files alike) and those of the storage (mapped files appear only there). CPU of ended
    children counts with their parent. Processes that end meanwhile or are unreadable are skipped. Source: proc(5), /proc/pid/io.
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
        io[pid, process.create_time()] = counters.read_chars + counters.write_chars + counters.read_bytes + counters.write_bytes
        cpu_s += times.user + times.system + times.children_user + times.children_system
    return io, cpu_s


def all_processes() -> Mapping[int, Process]:
    """Every process of this node by its pid, except those that end meanwhile."""
    pids = (int(place.name) for place in PROC.iterdir() if place.name.isdecimal())
    return {pid: process for pid in pids if (process := _read(pid)) is not None}


def stopped_processes() -> frozenset[tuple[int, float]]:
    """(pid, start time) of every process that a signal has stopped: one file of each is read, so it is a quick look."""
    found = set()
    for place in PROC.iterdir():
        if place.name.isdecimal():
            with suppress(OSError):
                words = (place / "stat").read_bytes().rpartition(b")")[2].split()
                if words and words[0] == b"T":
                    found.add((int(place.name), int(words[19]) / TICKS))
    return frozenset(found)


def pid_space() -> str:
    """The kernel's name of our pid namespace: in another one the same number is another process. Empty: unknown."""
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _read(pid: int) -> Process | None:
    """The process, None if there is none. Source: proc(5), /proc/pid/stat: the part in brackets may contain anything."""
    place = PROC / str(pid)
    try:
        head, _, tail = (place / "stat").read_bytes().rpartition(b")")
        status = (place / "status").read_bytes()
    except OSError:
        return None
    name = head.partition(b"(")[2].decode(errors="replace")[:MAX_NAME_CHARS]
    words = tail.split()
    uids = next(line for line in status.splitlines() if line.startswith(b"Uid:"))
    return Process(
        pid, int(words[1]), int(uids.split()[1]), name, int(words[19]) / TICKS,
        _state(place, words[0].decode()), _is_of_login(place), _is_of_service(place),
    )  # fmt: skip


def _state(place: Path, letter: str) -> str:
    """The state. A main thread may end while others run: it appears as a zombie, but the process is none."""
    if letter not in ("Z", "X"):
        return _STATES.get(letter, letter)
    try:
        return "zombie" if len(list((place / "task").iterdir())) <= 1 else "without its main thread"
    except OSError:
        return "zombie"


def _is_of_login(place: Path) -> bool:
    """Does the process belong to a login? PAM gives each login an audit session, which all its processes inherit; Slurm's tasks
    have none.

    A user may start a session for a process, but cannot move it below systemd's user.slice. Source: proc(5), /proc/pid/sessionid;
    pam_loginuid(8); systemd.special(7). A kernel without audit tells nothing.
    """
    try:
        if (place / "sessionid").read_text().strip() == NO_SESSION:
            return False
        groups = [line.split(":", 2) for line in (place / "cgroup").read_text(errors="replace").splitlines()]
    except OSError:
        return False
    return any(group[1] in ("", "name=systemd") and group[2].startswith("/user.slice/") for group in groups if len(group) == 3)


def _is_of_service(place: Path) -> bool:
    """Is it below system.slice, but in another unit than ours? We are in slurmd's unit, where jobs may be too
    (proctrack/linuxproc), or in a scope of slurmstepd's. Source: systemd.special(7).
    """
    try:
        unit = _unit((place / "cgroup").read_text(errors="replace"))
        ours = _unit((PROC / "self/cgroup").read_text(errors="replace"))
    except OSError:
        return False
    return bool(unit) and unit != ours and "slurm" not in unit


def _unit(groups: str) -> str:
    """`x.service` of `0::/system.slice/x.service/below`, empty outside system.slice."""
    for line in groups.splitlines():
        group = line.split(":", 2)
        if len(group) == 3 and group[1] in ("", "name=systemd") and group[2].startswith("/system.slice/"):
            return group[2].split("/")[2]
    return ""


def commands_of(pids: Iterable[int]) -> Mapping[int, str]:
    """Their command lines, shortened, as far as they can be read: by a child with a time limit.

    A command line is in the process's own memory, and a user can make a reader wait there.
    """
    argv = ["ps", "-o", "pid=", "-o", "args=", "-p", ",".join(map(str, pids))]
    try:
        done = run_group(argv, COMMANDS_LIMIT_S, {"PATH": PATH, "LANG": "C.UTF-8", "COLUMNS": str(MAX_COMMAND_CHARS)})
    except CommandMissing:
        return {}
    words = (line.split(None, 1) for line in done.stdout.splitlines())
    return {int(each[0]): each[1] for each in words if len(each) == 2 and each[0].isdecimal()}


def end_processes(doomed: Iterable[Process], grace_s: float, kill_wait_s: float) -> tuple[Process, ...]:
    """SIGTERM, after `grace_s` SIGKILL; gives those that still exist `kill_wait_s` later.

    It never signals another process that got the same pid: a descriptor first holds the process (pidfd_open(2)).
    """
    left = tuple(doomed)
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, kill_wait_s)):
        for process in left:
            send_signal(process, number)
        deadline = time.monotonic() + wait_s
        while (left := still_there(left)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    return left


def signal_all_of(user_id: int, number: int) -> bool:
    """Signal every process of the user at once, so that none can fork: a process that may signal only this user's calls kill(2)
    for all. False if it could not be done.

    That process has a real and saved user that nobody has, so that none of the user's processes may signal it.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            try:
                os.setresuid(GHOST, user_id, GHOST)
            except OSError:  # a user namespace without such a number
                os.setresuid(user_id, user_id, user_id)
            if user_id and 0 not in os.getresuid():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(-1, number)
                status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def stuck_among(processes: Iterable[Process]) -> tuple[Process, ...]:
    """Those of which at least one thread is in uninterruptible sleep and does not wake up within a second: SIGKILL does not end
    them."""
    sleepers = {process: asleep(process.pid) for process in processes}
    for _ in range(STUCK_LOOKS):
        sleepers = {process: threads & asleep(process.pid) for process, threads in sleepers.items() if threads}
        if not sleepers:
            return ()
        time.sleep(POLL_S)
    return still_there(process for process, threads in sleepers.items() if threads & asleep(process.pid))


def asleep(pid: int) -> set[tuple[str, bytes]]:
    """Threads in uninterruptible sleep, each with the number of times it has fallen asleep. Source: proc(5)."""
    found = set()
    with suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            with suppress(OSError):
                words = dict(line.split(b":\t", 1) for line in (thread / "status").read_bytes().splitlines() if b":\t" in line)
                if words.get(b"State", b"").startswith(b"D"):
                    found.add((thread.name, words.get(b"voluntary_ctxt_switches", b"")))
    return found


def send_signal(process: Process, number: int) -> None:
    """Signal exactly this process, if it has not ended."""
    try:
        held = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:  # a kernel before 5.3, or no descriptor left
        if _is_there(process):
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        return
    try:
        if _is_there(process):  # it remains the same process as far as we can tell
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, number)
    finally:
        os.close(held)


def still_there(processes: Iterable[Process]) -> tuple[Process, ...]:
    """The processes that have not ended; a zombie has."""
    return tuple(process for process in processes if _is_there(process))


def _is_there(process: Process) -> bool:
    now = _read(process.pid)
    return now is not None and now.started == process.started and now.state != "zombie"
