"""What the kernel tells of a process's threads: their state, the call that they wait in, what they have used."""

# os functions instead of pathlib, for files of processes that may end at any moment:
# ruff: noqa: PTH110, PTH115, PTH208

from __future__ import annotations

import os
import re

from ftslurm.model.collectives import THREADS_MAX, ProcessState
from ftslurm.policies.hang.process_activity import Look
from ftslurm.sdk import probe as layout
from ftslurm.wrapper.agent.evidence.connections import read_text

_STATES = {
    "R": ProcessState.RUNNING,
    "S": ProcessState.SLEEPING,
    "I": ProcessState.SLEEPING,
    "D": ProcessState.DISK,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "Z": ProcessState.EXITED,
    "X": ProcessState.EXITED,
}


def main_thread(pid: int) -> tuple[ProcessState, str]:
    """The state of the main thread, and the kernel function in which it sleeps."""
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
            letter = file.read(4096).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ProcessState.EXITED if not os.path.exists(f"/proc/{pid}") else ProcessState.UNKNOWN, ""
    return _STATES.get(letter, ProcessState.UNKNOWN), sleeps_in(pid, pid)


def sleeps_in(pid: int, thread: int) -> str:
    """The kernel function in which a thread sleeps; empty if it does not, or nobody may look."""
    wchan = read_text(f"/proc/{pid}/task/{thread}/wchan")
    return wchan if wchan != "0" else ""


# futex and sched_yield: the calls in which communication libraries wait on the CPU.
_WAITING_CALLS = {"x86_64": ("202", "24"), "aarch64": ("98", "124")}
# read, write, epoll_wait, epoll_pwait: their first argument is a file. Source: unistd.h of each; aarch64 has no epoll_wait.
_FILE_CALLS = {"x86_64": ("0", "1", "232", "281"), "aarch64": ("63", "64", "22")}


def in_other_call(pid: int, thread: int = 0) -> bool:
    """Is a thread, by default the main one, in a system call that no wait for a collective uses? A stopped thread still shows its
    call.
    """
    call = read_text(f"/proc/{pid}/task/{thread or pid}/syscall").split()
    known = _WAITING_CALLS.get(os.uname().machine)
    return bool(known and len(call) > 1 and call[0].isdigit() and call[0] not in known)


# Number of the call -> which argument limits its time, and the value for no limit; None: it always has a limit.
_TIMED_CALLS: dict[str, dict[str, tuple[int, str] | None]] = {
    # nanosleep, clock_nanosleep, select, pselect6, poll, ppoll, epoll_wait, epoll_pwait, futex
    "x86_64": {
        "35": None, "230": None, "23": (4, "0x0"), "270": (4, "0x0"), "7": (2, "0xffffffff"), "271": (2, "0x0"),
        "232": (3, "0xffffffff"), "281": (3, "0xffffffff"), "202": (3, "0x0"),
    },
    "aarch64": {
        "101": None, "115": None, "72": (4, "0x0"), "73": (2, "0x0"), "22": (3, "0xffffffff"), "98": (3, "0x0"),
    },
}  # fmt: skip


def timed_wait(call: str, machine: str) -> str:
    """From a line of /proc/pid/syscall: the call and the place in the program, if it is a wait with a limit; else empty."""
    words = call.split()
    known = _TIMED_CALLS.get(machine, {})
    if len(words) != 9 or words[0] not in known:
        return ""
    limit = known[words[0]]
    if limit is not None and words[1 + limit[0]].replace("ffffffffffffffff", "ffffffff") == limit[1]:
        return ""
    return f"{words[0]} {words[7]} {words[8]}"


def thread_io(pid: int, thread: int) -> int:
    """Bytes of I/O so far, counted as `usage` counts."""
    counters = read_text(f"/proc/{pid}/task/{thread}/io")
    return sum(map(int, re.findall(r"^(?:rchar|wchar|read_bytes|write_bytes): (\d+)", counters, re.M)))


def thread_cpu_s(pid: int, thread: int) -> float:
    """CPU seconds so far. Source: proc(5), schedstat: the first number, nanoseconds."""
    words = read_text(f"/proc/{pid}/task/{thread}/schedstat").split()
    return int(words[0]) / 1e9 if words and words[0].isdigit() else 0.0


def wakes_of(pid: int, thread: int) -> int:
    """How often a thread has waited so far. Source: proc(5), voluntary_ctxt_switches."""
    switches = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", read_text(f"/proc/{pid}/task/{thread}/status"), re.M)
    return int(switches[1]) if switches else 0


def look_at(pid: int, thread: int, now: float, asked: int = 0) -> Look:
    """The state of a thread of `pid` at this moment."""
    place = timed_wait(read_text(f"/proc/{pid}/task/{thread}/syscall"), os.uname().machine)
    return Look(now, wakes_of(pid, thread), thread_cpu_s(pid, thread), thread_io(pid, thread), place, asked)


def process_line(pid: int) -> str:
    """For people: what the main thread does in the kernel."""
    state, wchan = main_thread(pid)
    switches = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", read_text(f"/proc/{pid}/task/{pid}/status"), re.M)
    call = read_text(f"/proc/{pid}/syscall").split()
    told = f"pid {pid} {state.value} wchan={wchan or '-'} voluntary_switches={switches[1] if switches else '?'}"
    if call and call[0].isdigit():
        told += f" syscall={call[0]}"
        if len(call) > 1 and call[0] in _FILE_CALLS.get(os.uname().machine, ()):
            told += _file_of(pid, call[1])
    return told


def _file_of(pid: int, argument: str) -> str:
    try:
        return f" file={os.readlink(f'/proc/{pid}/fd/{int(argument, 16)}')}"
    except (OSError, ValueError):
        return ""


def threads_of(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (OSError, ValueError):
        return []


def threads_beside(pid: int, trainer: int) -> list[int]:
    """The program's own threads, but for the one that trains (0: the main one). Python's threads have the name of their process,
    and libraries give theirs another.
    """
    name = read_text(f"/proc/{pid}/comm")
    others = (thread for thread in threads_of(pid) if thread != (trainer or pid))
    return [thread for thread in others if read_text(f"/proc/{pid}/task/{thread}/comm") == name]


def sleep_beside(pid: int, trainer: int) -> tuple[str, ...]:
    """Where these sleep."""
    places = {sleeps_in(pid, thread) for thread in threads_beside(pid, trainer)}
    return tuple(sorted(places - {""}))[:THREADS_MAX]


def own_number(pid: int, thread: int) -> int:
    """The number of a thread in the process's own pid namespace."""
    inside = re.search(r"^NSpid:\s*(.*)$", read_text(f"/proc/{pid}/task/{thread}/status"), re.M)
    return int(inside[1].split()[-1]) if inside else 0


# Source: the thread names of torch's TCPStore, its worker server, TensorPipe (torch.distributed.rpc) and gloo. TensorPipe's
# reactor polls its shared memory without pause and uses a whole idle core. gloo has one loop per group that wakes up a hundred
# times a second: 4 % of a core with forty groups, more on a busy node. And our own probe.
_SERVERS = ("pt_tcpstore", "pt_workerserver", "TP_SHM_reactor", "gloo_tcp_loop", layout.THREAD_NAME.decode())


def is_server(pid: int, thread: int) -> bool:
    return read_text(f"/proc/{pid}/task/{thread}/comm").startswith(_SERVERS)
