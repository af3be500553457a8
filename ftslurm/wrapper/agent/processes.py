"""What the kernel and py-spy tell of a rank's processes: files, connections, threads, stacks. Any of them may end meanwhile."""

# os functions instead of pathlib, for files of processes that may end at any moment:
# ruff: noqa: PTH110, PTH115, PTH116, PTH118, PTH120, PTH208

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from itertools import pairwise

from ftslurm.errors import CommandMissing
from ftslurm.model.collectives import SOCKETS_MAX, THREADS_MAX, ProcessState, Socket
from ftslurm.policies.hang.process_activity import Look
from ftslurm.policies.hang.whohangs import MPI
from ftslurm.sdk import probe as layout
from ftslurm.system.commands import Runner
from ftslurm.system.sockets import inodes_of, kernel_address
from ftslurm.wrapper.agent.recorders import ASK_S

# --- Stacks of a rank's threads, by py-spy where it is installed, and what they show that the main one waits in.

NATIVE_S = 5.0  # native stacks take 50 ms of CPU, and one more read per MPI call: on a busy node this waits for a processor
STACK_BYTES = 16 << 10
# Functions of torch that wait for something else: Popen.wait and threading's. Writing a checkpoint is no communication.
_INSIDE = re.compile(
    r"torch/distributed/(?!checkpoint/|elastic/)|ftslurm/sdk/probe|_engine_run_backward"
    r"|\b(?:wait|synchronize) \([^)]*(?:torch|c10|nccl|gloo|mindspore|hccl)"
)
# Python names threads only if `threading` is loaded; the main thread has the number of the process.
_MAIN_THREAD = re.compile(
    r'(?:^Process (?P<pid>\d+):.*?)?^Thread (?:(?P=pid)\b[^\n]*|[^\n]*"MainThread"[^\n]*)\n(?P<frames>(?:[ \t]+[^\n]*\n?)*)',
    re.M | re.S,
)


def has_main_thread(dump: str) -> bool:
    return _MAIN_THREAD.search(dump) is not None


def stack_inside(dump: str, thread: int = 0) -> bool | None:
    """Does a thread of a `py-spy dump`, by default the main one, wait in torch.distributed or in backward()? None: unknown."""
    other = rf"^Thread {thread}\b[^\n]*\n(?P<frames>(?:[ \t]+[^\n]*\n?)*)"
    found = re.search(other, dump, re.M) if thread else _MAIN_THREAD.search(dump)
    frames = found["frames"].splitlines()[:3] if found else []
    return any(_INSIDE.search(frame) for frame in frames) if frames else None


# MPI calls that wait for other ranks of the job; not those that read files, wait for outside processes, or return at once.
_MPI_CALL = re.compile(r"^\s+P?MPI_((?!File_|Init|Comm_(?:accept|connect|spawn)|Test|Iprobe|Improbe)\w+) \(")
_MPI4PY = re.compile(r"\(mpi4py/")


def mpi_call(dump: str) -> str:
    """The MPI call in which the main thread of a `py-spy dump --native` is, such as `MPI_Allreduce`; empty if there is none.

    Only calls that mpi4py made itself: it returns to Python after each call, whereas a C library may make many.
    """
    found = _MAIN_THREAD.search(dump)
    for inner, outer in pairwise(found["frames"].splitlines() if found else ()):
        call = _MPI_CALL.match(inner)
        if call and _MPI4PY.search(outer):
            return f"{MPI}{call[1]}"
    return ""


def py_spy() -> str | None:
    """The path of py-spy: beside our own Python, or on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    if os.access(beside, os.X_OK):
        return beside
    from shutil import which  # 3 ms of each agent's start

    return which("py-spy")


class Stacks:
    """py-spy, if there is one."""

    def __init__(self, runner: Runner) -> None:
        self._spy = py_spy()
        self._run = runner

    def of(self, pid: int, left_s: float, native: bool = False) -> str:
        """The stack, empty if nobody can look. native: with C frames, for which ptrace(2) stops the process for 20 ms: only for a
        running process, since this may end a wait.
        """
        if self._spy is None or left_s < 0.1:
            return ""
        try:
            how = "--native" if native else "--nonblocking"
            limit_s = NATIVE_S if native else ASK_S
            done = self._run([self._spy, "dump", how, "--pid", str(pid)], timeout_s=min(limit_s, left_s))
        except (CommandMissing, OSError):
            return ""
        return done.stdout[:STACK_BYTES]


# --- What the kernel tells of a process that may go any moment: its files and links (empty for what is not there), and its TCP
# connections.


def read_proc(path: str, limit: int = 1 << 16) -> str:
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
    rows = (row for table in ("tcp", "tcp6") for row in read_proc(f"/proc/{pid}/net/{table}", 8 << 20).splitlines()[1:])
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
    return Socket(_address(words[1]), _address(words[2]), trouble, sent if trouble != "unread" else unread)


def _address(word: str) -> str:
    """`0100007F:1F90` is `127.0.0.1:8080`."""
    digits, _, port = word.partition(":")
    address = kernel_address(digits)
    return f"[{address}]:{int(port, 16)}" if address.version == 6 else f"{address}:{int(port, 16)}"


# --- What the kernel tells of a process's threads: their state, the call that they wait in, what they have used.

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
    wchan = read_proc(f"/proc/{pid}/task/{thread}/wchan")
    return wchan if wchan != "0" else ""


# futex and sched_yield: the calls in which communication libraries wait on the CPU.
_WAITING_CALLS = {"x86_64": ("202", "24"), "aarch64": ("98", "124")}
# read, write, epoll_wait, epoll_pwait: their first argument is a file. Source: unistd.h of each; aarch64 has no epoll_wait.
_FILE_CALLS = {"x86_64": ("0", "1", "232", "281"), "aarch64": ("63", "64", "22")}


def in_other_call(pid: int, thread: int = 0) -> bool:
    """Is a thread, by default the main one, in a system call that no wait for a collective uses? A stopped thread still shows its
    call.
    """
    call = read_proc(f"/proc/{pid}/task/{thread or pid}/syscall").split()
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
    counters = read_proc(f"/proc/{pid}/task/{thread}/io")
    return sum(map(int, re.findall(r"^(?:rchar|wchar|read_bytes|write_bytes): (\d+)", counters, re.M)))


def thread_cpu_s(pid: int, thread: int) -> float:
    """CPU seconds so far. Source: proc(5), schedstat: the first number, nanoseconds."""
    words = read_proc(f"/proc/{pid}/task/{thread}/schedstat").split()
    return int(words[0]) / 1e9 if words and words[0].isdigit() else 0.0


def wakes_of(pid: int, thread: int) -> int:
    """How often a thread has waited so far. Source: proc(5), voluntary_ctxt_switches."""
    return int(_status(pid, thread, "voluntary_ctxt_switches") or 0)


def _status(pid: int, thread: int, name: str) -> str:
    """The last word of a line of /proc/PID/task/THREAD/status; empty if there is none."""
    found = re.search(rf"^{name}:.*?(\d+)$", read_proc(f"/proc/{pid}/task/{thread}/status"), re.M)
    return found[1] if found else ""


def look_at(pid: int, thread: int, now: float, asked: int = 0) -> Look:
    """The state of a thread of `pid` at this moment."""
    place = timed_wait(read_proc(f"/proc/{pid}/task/{thread}/syscall"), os.uname().machine)
    return Look(now, wakes_of(pid, thread), thread_cpu_s(pid, thread), thread_io(pid, thread), place, asked)


def process_line(pid: int) -> str:
    """For people: what the main thread does in the kernel."""
    state, wchan = main_thread(pid)
    call = read_proc(f"/proc/{pid}/syscall").split()
    switches = _status(pid, pid, "voluntary_ctxt_switches")
    told = f"pid {pid} {state.value} wchan={wchan or '-'} voluntary_switches={switches or '?'}"
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
    name = read_proc(f"/proc/{pid}/comm")
    others = (thread for thread in threads_of(pid) if thread != (trainer or pid))
    return [thread for thread in others if read_proc(f"/proc/{pid}/task/{thread}/comm") == name]


def sleep_beside(pid: int, trainer: int) -> tuple[str, ...]:
    """Where these sleep."""
    places = {sleeps_in(pid, thread) for thread in threads_beside(pid, trainer)}
    return tuple(sorted(places - {""}))[:THREADS_MAX]


def own_number(pid: int, thread: int) -> int:
    """The number of a thread in the process's own pid namespace."""
    return int(_status(pid, thread, "NSpid") or 0)


# Source: the thread names of torch's TCPStore, its worker server, TensorPipe (torch.distributed.rpc) and gloo. TensorPipe's
# reactor polls its shared memory without pause and uses a whole idle core. gloo has one loop per group that wakes up a hundred
# times a second: 4 % of a core with forty groups, more on a busy node. And our own probe.
_SERVERS = ("pt_tcpstore", "pt_workerserver", "TP_SHM_reactor", "gloo_tcp_loop", layout.THREAD_NAME.decode())


def is_server(pid: int, thread: int) -> bool:
    return read_proc(f"/proc/{pid}/task/{thread}/comm").startswith(_SERVERS)
