"""What a node knows about its ranks: their pages, /proc, torch's flight recorder, stacks, connections. It observes and decides
nothing.

`look()` is cheap and made for every second. `examine()` is for a suspicion only: it asks torch's worker server of each rank,
which answers even while native code holds the interpreter lock, reads the kernel's tables of connections, and takes stacks if
py-spy is installed. It never signals or stops a process: a signal interrupts the wait, and the hang would vanish before it is
understood.
"""

# os functions instead of pathlib, for files of processes that may end at any moment:
# ruff: noqa: PTH110, PTH115, PTH116, PTH118, PTH120, PTH208
# moment:

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from ipaddress import IPv4Address, IPv6Address
from itertools import pairwise
from typing import Any, NamedTuple

from ftslurm.errors import CommandMissing, WireError
from ftslurm.model.collectives import (
    GROUPS_MAX,
    SOCKETS_MAX,
    CallDurations,
    CurrentCall,
    EntryTimes,
    GroupView,
    ProcessState,
    RankView,
    Socket,
    WaitTimes,
    unfold,
)
from ftslurm.model.devices import Utilisation
from ftslurm.model.values import dataclass
from ftslurm.policies.hang.polling import Look, Polling, polling
from ftslurm.policies.hang.process_activity import LEAST_SAMPLES, Connections, devices_at_work, received, streamed
from ftslurm.policies.hang.slow import steady_means
from ftslurm.policies.hang.whohangs import MEETINGS, MPI, works
from ftslurm.sdk import probe as layout
from ftslurm.sdk.page import SIZE, PageState, page_paths, parse_page, pid_namespace, start_ticks
from ftslurm.system.commands import Runner, run
from ftslurm.system.processes import usage
from ftslurm.system.sockets import inodes_of, network_bytes, tcp_bytes
from ftslurm.wrapper.agent import nccl_ras
from ftslurm.wrapper.shim.processes import descendants

EXAMINE_S = 10.0
EVIDENCE_BYTES = 256 << 10
ASK_S = 2.0
NATIVE_S = 5.0  # native stacks take 50 ms of CPU, and one more read per MPI call: on a busy node this waits for a processor
DUMP_BYTES = 16 << 20  # 2,000 entries of the recorder are 1 MB
STACK_BYTES = 16 << 10
# The beating thread runs ten times a second if it gets the interpreter lock.
LOCK_HELD_S = 3.0
# A main thread that polls for its data loader returns to Python every 5 s.
MAIN_FRESH_S = 6.0
# If the main thread of an MPI program moved in this many looks, the program is under way. Nothing else shows that for MPI.
MPI_BEGUN_LOOKS = 10
LATE_S = 0.5  # seconds without progress; more than between two collectives of most programs
RATES_S = 3.0  # seconds over which rates of I/O and CPU are taken
ENTERS_MAX = 400
RECENT = 4
USE_SAMPLES, USE_SHARE = 4, 0.3  # of device use: number of samples kept; share of the time of an examination
STREAMS = (0, 0.0)  # key, in place of a process, for the traffic of the connections
OUTSIDE = -1  # in place of a rank's own number, for a task without a probe

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


ReadUse = Callable[[float], Sequence[Utilisation]]


# --- the probe's words in a page


class ProbeGroup(NamedTuple):
    """One slot of the page. key: CRC-32 of name and ranks. recorded, completed: the recorder's last numbers, None if it does not
    count.

    entered: collectives so far; issued: those that went through the wrappers; directs: point-to-point operations.
    """

    slot: int
    key: int
    id: int
    recorded: int | None
    completed: int | None
    entered: int
    issued: int
    directs: int


class Wait(NamedTuple):
    """One wait of the main thread. slot: of the group, None if unknown. number: of the collective, modulo 2048."""

    place: int
    slot: int | None
    number: int
    outside_us: int
    stay_us: int


class ProbeState(NamedTuple):
    """The content of the probe's words at one moment; see sdk/probe.py. Times in ns of the writer's clock."""

    level: int
    serves: bool
    beats: int
    beat_ns: int
    beat_cost_ns: int
    groups_seen: int
    progress: int
    main: int
    in_ns: int
    operation: str
    in_slot: int | None
    direct: bool
    number: int
    peer: int | None
    waits: int
    failed: bool  # the last wait raised
    trainer: int  # the training thread, as its own pid namespace numbers it; 0: unknown
    asked: int  # questions to stores that had the same answer as before
    beside: bool  # a thread other than the training thread waits
    left: bool  # no group exists any more, or the program has ended
    mpi: bool  # the program uses mpi4py
    groups: tuple[ProbeGroup, ...]
    ring: tuple[Wait, ...]


_WORDS = struct.Struct(f"={layout.PROBE_END - layout.PROBE}Q")


def parse_probe(data: bytes) -> ProbeState | None:
    """The probe's words from a page's bytes; None if there is no probe. A user wrote them: every value is checked."""
    if len(data) < layout.PROBE_END * 8:
        return None
    words = dict(enumerate(_WORDS.unpack_from(data, layout.PROBE * 8), layout.PROBE))
    if words[layout.PROBE_MAGIC] != layout.MAGIC_NUMBER:
        return None
    what, level, peer = words[layout.IN_WHAT], words[layout.LEVEL], words[layout.IN_PEER]
    code, slot = what & 255, what >> 8 & 255
    return ProbeState(
        level=level & 255,
        serves=bool(level & layout.SERVES),
        beats=words[layout.BEATS],
        beat_ns=words[layout.BEAT_AT],
        beat_cost_ns=words[layout.BEAT_COST],
        groups_seen=words[layout.GROUPS_SEEN],
        progress=words[layout.PROGRESS],
        main=words[layout.MAIN] & layout.LOW,
        in_ns=words[layout.IN],
        operation=layout.OPERATIONS[code] if code < len(layout.OPERATIONS) else "",
        in_slot=slot - 1 if 0 < slot <= layout.GROUP_COUNT else None,
        direct=bool(what & layout.DIRECT),
        number=words[layout.IN_NUMBER] & layout.LOW,
        peer=peer - 1 if 0 < peer <= layout.LOW else None,
        waits=words[layout.WAITS],
        failed=0 < words[layout.WAITS] == words[layout.FAILED],
        trainer=words[layout.TRAINER] & layout.LOW,
        asked=words[layout.ASKED],
        beside=words[layout.BESIDE] > 0,
        left=bool(level & layout.LEFT),
        mpi=bool(level & layout.MPI),
        groups=tuple(_groups(words)),
        ring=tuple(_ring(words)),
    )


def _groups(words: Mapping[int, int]) -> Iterator[ProbeGroup]:
    for slot in range(layout.GROUP_COUNT):
        at = layout.GROUPS + slot * layout.GROUP_WORDS
        name, recorded, entered, issued = (words[at + index] for index in range(layout.GROUP_WORDS))
        if name >> 63:
            told = recorded >> 32
            yield ProbeGroup(
                slot, name & layout.LOW, name >> 32 & layout.LOW >> 1, recorded & layout.LOW if told else None,
                told - 1 if told else None, max(entered - 1, 0) & layout.LOW, issued & layout.LOW, issued >> 32,
            )  # fmt: skip


def _ring(words: Mapping[int, int]) -> Iterator[Wait]:
    """The waits that are certainly complete: the oldest may be overwritten while it is read."""
    count = words[layout.WAITS]
    for place in range(max(0, count - layout.RING_COUNT + 8), count):
        word = words[layout.RING + place % layout.RING_COUNT]
        slot = (word >> 59) - 1
        outside, stay = ((word >> shift & layout.UNITS_MAX) << layout.UNIT_SHIFT for shift in (24, 0))
        whose = slot if 0 <= slot < layout.GROUP_COUNT else None
        yield Wait(place, whose, word >> 48 & layout.NUMBERS - 1, outside // 1000, stay // 1000)


@dataclass(frozen=True, slots=True)
class GroupName:
    """A group as `<page>.groups` describes it. id: torch's, in this process."""

    id: int
    key: str
    name: str
    members: tuple[int, ...]
    slot: int = 0  # -1: it got no slot, so the page says nothing about it


def parse_groups(text: str) -> dict[int, GroupName]:
    """key in the page -> the group; lines in another format are skipped."""
    found = {}
    for line in text.splitlines():
        try:
            told = json.loads(line)
            key, name = int(told["key"]), str(told["name"])[:200]
            members = unfold(str(told["ranks"]))
            found[key] = GroupName(int(told["id"]), f"{name}#{key:08x}", name, members, int(told.get("slot", 0)))
        except (ValueError, KeyError, TypeError, WireError, RecursionError):
            continue
    return found


# --- torch's flight recorder


@dataclass(frozen=True, slots=True)
class Recorded:
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


# --- the kernel


def main_thread(pid: int) -> tuple[ProcessState, str]:
    """The state of the main thread, and the kernel function in which it sleeps."""
    try:
        with open(f"/proc/{pid}/task/{pid}/stat", "rb") as file:
            letter = file.read(4096).rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ProcessState.EXITED if not os.path.exists(f"/proc/{pid}") else ProcessState.UNKNOWN, ""
    wchan = _text(f"/proc/{pid}/task/{pid}/wchan")
    return _STATES.get(letter, ProcessState.UNKNOWN), wchan if wchan != "0" else ""


# futex and sched_yield: the calls in which communication libraries wait on the CPU.
_WAITING_CALLS = {"x86_64": ("202", "24"), "aarch64": ("98", "124")}
# read, write, epoll_wait, epoll_pwait: their first argument is a file. Source: unistd.h of each; aarch64 has no epoll_wait.
_FILE_CALLS = {"x86_64": ("0", "1", "232", "281"), "aarch64": ("63", "64", "22")}


def in_other_call(pid: int, thread: int = 0) -> bool:
    """Is a thread, by default the main one, in a system call that no wait for a collective uses? A stopped thread still shows its
    call.
    """
    call = _text(f"/proc/{pid}/task/{thread or pid}/syscall").split()
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
    counters = _text(f"/proc/{pid}/task/{thread}/io")
    return sum(map(int, re.findall(r"^(?:rchar|wchar|read_bytes|write_bytes): (\d+)", counters, re.M)))


def thread_cpu_s(pid: int, thread: int) -> float:
    """CPU seconds so far. Source: proc(5), schedstat: the first number, nanoseconds."""
    words = _text(f"/proc/{pid}/task/{thread}/schedstat").split()
    return int(words[0]) / 1e9 if words and words[0].isdigit() else 0.0


def look_at(pid: int, thread: int, now: float, asked: int = 0) -> Look:
    """The state of a thread of `pid` at this moment."""
    switches = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", _text(f"/proc/{pid}/task/{thread}/status"), re.M)
    place = timed_wait(_text(f"/proc/{pid}/task/{thread}/syscall"), os.uname().machine)
    return Look(now, int(switches[1]) if switches else 0, thread_cpu_s(pid, thread), thread_io(pid, thread), place, asked)


def process_line(pid: int) -> str:
    """For people: what the main thread does in the kernel."""
    state, wchan = main_thread(pid)
    switches = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", _text(f"/proc/{pid}/task/{pid}/status"), re.M)
    call = _text(f"/proc/{pid}/syscall").split()
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


def _text(path: str, limit: int = 1 << 16) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""


INJECTED = os.path.join(os.path.dirname(layout.__file__), "inject")
MAPS_BYTES = 8 << 20


def why_no_probe(pid: int) -> str:
    """Why a Python process with torch has no probe: it was started without our folder on its path. Empty for any other process,
    or if unknown.
    """
    env = dict(word.partition("=")[::2] for word in _text(f"/proc/{pid}/environ", MAPS_BYTES).split("\0"))
    if env.get(layout.WATCH_VARIABLE) not in layout.LEVELS or not env.get(layout.PAGE_VARIABLE):
        return ""
    if "libtorch_python" not in _text(f"/proc/{pid}/maps", MAPS_BYTES):
        return ""
    for word in _text(f"/proc/{pid}/cmdline").split("\0")[1:]:
        if not re.fullmatch(r"-[bBdEiIOPqsSuvx]+", word):
            break
        if set(word) & set("EIS"):
            return f"its Python was started with {word}"
    if INJECTED not in env.get("PYTHONPATH", "").split(":"):
        return "something has set PYTHONPATH anew, where it should add to it"
    return ""


def tcp_sockets(pid: int) -> tuple[Socket, ...]:
    """The established connections of a process, stuck ones first: two retransmissions, no window, or unread data."""
    inodes = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = _link(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        return ()
    rows = (row for table in ("tcp", "tcp6") for row in _text(f"/proc/{pid}/net/{table}", 8 << 20).splitlines()[1:])
    found = [parsed for row in rows if (parsed := parse_tcp(row, inodes))]
    return tuple(sorted(found, key=lambda each: not each.trouble)[:SOCKETS_MAX])


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


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
    """`0100007F:1F90` is `127.0.0.1:8080`; the kernel prints words in its own byte order."""
    digits, _, port = word.partition(":")
    raw = b"".join(int(digits[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(digits), 8))
    if len(raw) == 4:
        return f"{IPv4Address(raw)}:{int(port, 16)}"
    six = IPv6Address(raw)
    return f"{six.ipv4_mapped}:{int(port, 16)}" if six.ipv4_mapped else f"[{six}]:{int(port, 16)}"


_SENT, _BUSY = re.compile(r"\bbytes_sent:(\d+)"), re.compile(r"\bbusy:(\d+)ms")


def parse_ss(text: str, pid: int) -> tuple[float, float]:
    """(MB sent, milliseconds busy) of the connections of `pid` in the output of `ss -Htinp`: one
    line each, and one of details.
    """
    lines = text.splitlines()
    ours = "".join(more for line, more in pairwise(lines) if f"pid={pid}," in line)
    return sum(map(int, _SENT.findall(ours))) / 1e6, float(sum(map(int, _BUSY.findall(ours))))


# --- stacks

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
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


# --- the ranks of a node


class _Root(NamedTuple):
    """A task: its rank, the pid of its command, the attempt, and the pid of its shim, below which the command is searched."""

    rank: int
    pid: int | None
    attempt: int
    shim: int | None = None


@dataclass(slots=True)
class _Rank:
    """One rank. root: its task's FTSLURM_PAGE. seen: name -> (value, when it changed)."""

    rank: int
    root: str
    path: str = ""
    pid: int | None = None
    page: PageState | None = None
    probe: ProbeState | None = None
    seen: dict[str, tuple[Any, float]] = field(default_factory=dict)
    samples: deque[tuple[float, dict[tuple[int, float], int], float]] = field(default_factory=lambda: deque(maxlen=16))
    looks: deque[Look] = field(default_factory=lambda: deque(maxlen=8))  # states of its main thread, one per sample
    trainer: tuple[int, int] = (0, 0)  # the probe's word, and the thread's number in our pid namespace
    trainer_looks: deque[Look] = field(default_factory=lambda: deque(maxlen=8))  # of the training thread, if another one
    streams: tuple[float, Connections] | None = None  # traffic of its processes, at the last sample
    network: tuple[float, tuple[int, int]] | None = None  # if it has its own network: bytes out and in
    streamed: int = 0
    polling: Polling | None = None
    polls_since: float | None = None
    mpi_call: tuple[int, str] | None = None  # MAIN and the MPI call then: while MAIN stays the same, so does the call
    mpi_looks: int = 0  # since MPI is loaded, the looks in which the main thread had moved
    servers: tuple[int, ...] | None = None  # threads that wait for others' requests, by polling or on a connection
    children: int = 0
    worked_at: float | None = None  # None: not examined yet
    names: dict[int, GroupName] = field(default_factory=dict)
    names_size: int = -1
    told_waits: int = 0

    def age(self, name: str, now: float) -> float:
        return now - self.seen[name][1] if name in self.seen else 0.0

    def note(self, name: str, value: Any, now: float) -> bool:
        """Keep the value. Has it changed?"""
        if name in self.seen and self.seen[name][0] == value:
            return False
        self.seen[name] = (value, now)
        return True


@dataclass(frozen=True, slots=True)
class Examined:
    """views: of every rank of the node. text: evidence for people. enters: for the rule on slow ranks."""

    views: tuple[RankView, ...]
    text: str
    enters: tuple[EntryTimes, ...] = ()


class NodeWatch:
    """The ranks of one node. All times are seconds of `clock`."""

    def __init__(
        self, node: str, clock: Callable[[], float] = time.monotonic, runner: Runner = run, use: ReadUse | None = None
    ) -> None:
        """use: measures how busy the node's devices are, within the given number of seconds."""
        self._node = node
        self._use = use
        self._used: deque[Sequence[Utilisation]] = deque(maxlen=USE_SAMPLES)  # of the present stall, one per examination
        self._used_since = 0.0  # the last progress before those samples
        self._clock = clock
        self._run = runner
        self._roots: dict[str, _Root] = {}  # by FTSLURM_PAGE
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._spy = py_spy()
        self._tcp: tuple[float, Connections] | None = None  # of the node, at the last sample
        self.progress_at = clock()  # when any rank of the node last made progress with its collectives
        self.begun = False  # has any rank ever?

    def watch(self, rank: int, page: str, pid: int | None = None, attempt: int = 0, shim: int | None = None) -> None:
        """A task of this node runs. page: its FTSLURM_PAGE. pid: of its command, for a rank without a probe.

        attempt: its FTSLURM_ATTEMPT; pages of other attempts are ignored. shim: the parent of the command, which may not have
        started yet.
        """
        self.forget(page)
        self._roots[page] = _Root(rank, pid, attempt, shim)
        self.progress_at = self._clock()

    def forget(self, page: str) -> None:
        self._roots.pop(page, None)
        self._ranks = {key: each for key, each in self._ranks.items() if each.root != page}

    def look(self) -> tuple[RankView, ...]:
        """The ranks as their pages and the kernel describe them now; a millisecond per rank. Call it once a second or twice."""
        now = self._clock()
        for path, root in self._roots.items():
            if root.pid is None and root.shim is not None:
                root = self._begun(path, root, root.shim)
            self._read(path, root, now)
        return tuple(self._view(each, now) for each in self._ranks.values())

    def examine(self, budget_s: float = EXAMINE_S, budget_bytes: int = EVIDENCE_BYTES) -> Examined:
        """The ranks with all evidence that can be collected in this time."""
        until = self._clock() + budget_s
        device_busy = self._devices_at_work(budget_s)
        views = {(view.rank, view.node): replace(view, device_busy=device_busy) for view in self.look()}
        found: list[tuple[RankView, str]] = []
        enters: list[EntryTimes] = []
        ranks = list(self._ranks.values())
        with ThreadPoolExecutor(max_workers=16) as pool:
            dumps = pool.map(lambda each: self._dump(each, until), ranks)
            for each, dump in zip(ranks, dumps, strict=True):
                view = views[each.rank, self._node]
                if dump is not None:
                    view = self._with_recorder(view, each, dump)
                    enters += self._enters(each, dump)
                found.append(self._with_kernel(view, each, until))
        texts = [text for _, text in found]
        if any(_uses_nccl(view) for view, _ in found) and (left := until - self._clock()) > 0:
            texts += ["NCCL RAS says:", *nccl_ras.ask_here(left)]
        share = budget_bytes // max(1, len(texts))
        return Examined(tuple(view for view, _ in found), "\n".join(_cut(text, share) for text in texts), tuple(enters))

    def _devices_at_work(self, budget_s: float) -> bool | None:
        """Are the devices busy? By one more sample of their use; None if this stall has too few
        samples, or there are no devices.
        """
        if self._use is None:
            return None
        if self._used_since != self.progress_at:
            self._used.clear()
            self._used_since = self.progress_at
        self._used.append(self._use(USE_SHARE * budget_s))
        series: dict[str, list[float]] = {}
        power: dict[str, list[float]] = {}
        for each in (each for sample in self._used for each in sample):
            for values, value in ((series, each.percent), (power, each.power_w)):
                if value is not None:
                    values.setdefault(each.device, []).append(value)
        if len(self._used) < LEAST_SAMPLES or not series:
            return None
        busy = devices_at_work(series, power)
        for rank in self._ranks.values() if busy else ():
            rank.worked_at = self._clock()
        return busy

    def polls_for_s(self, now: float) -> list[float]:
        """For each rank with a probe that polls: seconds since it began."""
        since = [each.polls_since for each in self._ranks.values() if each.probe is not None]
        return [now - at for at in since if at is not None]

    def in_c_for_s(self, now: float) -> list[float]:
        """For each rank that uses MPI and no torch groups: seconds that its main thread has been inside one C call, if long."""
        ages = [each.age("main", now) for each in self._ranks.values() if _may_be_in_mpi(each)]
        return [age for age in ages if age > MAIN_FRESH_S]

    def without_probe(self) -> dict[int, str]:
        """Rank -> why its program has no probe, for ranks that have torch; some milliseconds each."""
        found: dict[int, str] = {}
        for each in self._ranks.values():
            if each.probe is None and each.pid:
                why = next(filter(None, map(why_no_probe, [each.pid, *descendants(each.pid)])), "")
                found |= {each.rank: why} if why else {}
        return found

    def enters(self, budget_s: float = ASK_S) -> tuple[EntryTimes, ...]:
        """When the ranks entered their last collectives, from torch's flight recorder."""
        until = self._clock() + budget_s
        self.look()
        dumps = ((each, self._dump(each, until)) for each in self._ranks.values())
        return tuple(enter for each, dump in dumps if dump is not None for enter in self._enters(each, dump))

    def waits(self, at_least: int = 60, with_links: bool = False) -> tuple[WaitTimes, ...]:
        """The waits since the last answer, for the rules on slow ranks; none while a rank has fewer than `at_least`.

        A page keeps 120. with_links: also ask `ss` what was sent, which takes 10 ms per rank.
        """
        self.look()
        ranks = [(each, each.probe) for each in self._ranks.values() if each.probe is not None]
        if any(state.waits - each.told_waits < at_least for each, state in ranks):
            return ()
        found = []
        for each, state in ranks:
            sent_mb, busy_ms = self._sent(each.pid) if with_links and each.pid else (None, None)
            found.append(replace(self._waits(each, state), sent_mb=sent_mb, busy_ms=busy_ms))
        return tuple(found)

    # --- pages

    def _begun(self, path: str, root: _Root, shim: int) -> _Root:
        """The task with its command, if the command has started meanwhile."""
        below = descendants(shim)
        if below:
            root = self._roots[path] = root._replace(pid=below[0])
            for each in self._ranks.values():
                if each.root == path and each.pid is None:
                    each.pid = _pid_here(each.page, root.pid) if each.page is not None else root.pid
        return root

    def _read(self, root: str, task: _Root, now: float) -> None:
        """Read the pages: each page with a probe is a rank; a task without one is observed from outside."""
        found = []
        for path in page_paths(root):
            data = _page(path)
            page, state = parse_page(data), parse_probe(data)
            if page is not None and state is not None and page.attempt == task.attempt:
                found.append((path, page, state))
        probed = bool(found)
        found, launchers = _without_launchers(found, task.pid)
        for path in launchers:
            self._ranks = {key: each for key, each in self._ranks.items() if each.path != path}
        for path, page, state in found:
            whose = page.rank if page.rank is not None else task.rank
            known = self._ranks.get((root, whose))
            if known is None or (known.path != path and _better(state, page, known)):
                known = self._ranks[root, whose] = _Rank(whose, root, path)
            if known.path == path:
                self._note(known, page, state, task, now)
        if probed:
            self._ranks.pop((root, OUTSIDE), None)
        elif not any(each.root == root and each.probe for each in self._ranks.values()):
            self._sample(self._ranks.setdefault((root, OUTSIDE), _Rank(task.rank, root, pid=task.pid)), now)

    def _note(self, each: _Rank, page: PageState, state: ProbeState, task: _Root, now: float) -> None:
        if each.page is None or (each.page.pid, each.page.start_ticks) != (page.pid, page.start_ticks):
            each.seen.clear()
            each.trainer, each.mpi_looks = (0, 0), 0
            each.pid = _pid_here(page, task.pid)
        each.page, each.probe = page, state
        each.note("beats", state.beats, now)
        if each.note("main", state.main, now) and _may_be_in_mpi(each):
            each.mpi_looks += 1
            self.begun = self.begun or each.mpi_looks > MPI_BEGUN_LOOKS
        each.note("in", state.in_ns, now)
        if each.note("progress", (state.progress, state.waits), now):
            each.samples.clear()  # its use in an earlier stall, and since, does not describe this one
            each.looks.clear()
            each.trainer_looks.clear()
            each.polling = each.polls_since = each.streams = each.network = each.servers = None
            self.progress_at = now
            self.begun = self.begun or state.progress > 0 or state.waits > 0
        if now - self.progress_at >= LATE_S:  # whether a rank works matters only in a stall, and costs most of a look
            self._sample(each, now)
        size = _size(each.path + layout.GROUPS_SUFFIX)
        if size != each.names_size:
            each.names_size = size
            each.names = parse_groups(_text(each.path + layout.GROUPS_SUFFIX, layout.GROUPS_BYTES_MAX))

    def _sample(self, each: _Rank, now: float) -> None:
        if each.pid and (not each.samples or now - each.samples[-1][0] >= 0.9):
            below = descendants(each.pid)
            each.children = len(below)
            io, cpu_s = _without_servers(each, *usage([each.pid, *below]))
            each.samples.append((now, {**io, STREAMS: self._streamed(each, [each.pid, *below], now)}, cpu_s))
            each.looks.append(look_at(each.pid, each.pid, now, each.probe.asked if each.probe is not None else 0))
            if trainer := _trainer_beside_main(each):
                each.trainer_looks.append(look_at(each.pid, trainer, now))
            each.polling = polling(tuple(each.trainer_looks)) or polling(tuple(each.looks))
            cpu_percent, io_bytes_s = _rates(each.samples, each.polling)
            polls_s = each.polling.per_s if each.polling else None
            each.polls_since = (each.polls_since or now) if each.polling else None
            seen = RankView(
                each.rank, self._node, main_thread(each.pid)[0], cpu_percent=cpu_percent, io_bytes_s=io_bytes_s, polls_s=polls_s
            )
            printed = each.note("printed", _passed_on(self._roots[each.root].shim), now) and len(each.samples) > 1
            if each.worked_at is None or printed or works(seen):
                each.worked_at = now

    def _streamed(self, each: _Rank, pids: Sequence[int], now: float) -> int:
        """Bytes of data that the connections of these processes have moved so far, in this stall and earlier ones."""
        if _link(f"/proc/{each.pid}/ns/net") not in ("", _link("/proc/self/ns/net")):
            counts = network_bytes(pids[0])
            if each.network is not None and counts is not None:
                each.streamed += received(each.network[1], counts, now - each.network[0])
            each.network = (now, counts) if counts is not None else None
            return each.streamed
        if self._tcp is None or self._tcp[0] != now:
            self._tcp = now, tcp_bytes()
        here = self._tcp[1]
        mine = {inode: here[inode] for inode in inodes_of(pids) if inode in here}
        if each.streams is not None:
            each.streamed += streamed(each.streams[1], mine, now - each.streams[0])
        each.streams = now, mine
        return each.streamed

    # --- views

    def _view(self, each: _Rank, now: float) -> RankView:
        process, wchan = main_thread(each.pid) if each.pid else (ProcessState.UNKNOWN, "")
        page, state = each.page, each.probe
        if each.pid and page is not None and page.namespace == pid_namespace() and start_ticks(each.pid) != page.start_ticks:
            process = ProcessState.EXITED
        cpu_percent, io_bytes_s = _rates(each.samples, each.polling)
        view = RankView(
            each.rank, self._node, process, wchan, cpu_percent=cpu_percent, io_bytes_s=io_bytes_s, children=each.children,
            idle_s=now - each.worked_at if each.worked_at is not None else None,
            polls_s=each.polling.per_s if each.polling else None,
        )  # fmt: skip
        if works(view):  # beside the polling
            view = replace(view, polls_s=None)
        if state is None:
            return view
        running = process not in (ProcessState.STOPPED, ProcessState.EXITED, ProcessState.UNKNOWN)
        groups = tuple(_group_view(group, each.names) for group in state.groups)
        gil_held = each.age("beats", now) > LOCK_HELD_S if running else None
        return replace(
            view,
            probed=True,
            polls_s=None if gil_held else view.polls_s,  # it wakes up every 5 ms to try the lock
            left=state.left,
            groups=groups,
            main_fresh=each.age("main", now) < MAIN_FRESH_S if running else None,
            gil_held=gil_held,
            inside=_polls_store(each, view, now) or _stay(state, process, each, now),
            hidden_groups=sum(name.slot < 0 for name in each.names.values()),
            exact=_exact(state, {group.slot: group.entered for group in state.groups}, late=True),
        )

    def _with_recorder(self, view: RankView, each: _Rank, dump: Mapping[str, Recorded]) -> RankView:
        """The view with the recorder's numbers: the recorder is asked now, and counts collectives only; the page may be as old as
        the last beat.
        """
        state = each.probe
        if state is None:
            return view
        groups, entered, inside = [], {}, view.inside
        for group, slot in zip(view.groups, state.groups, strict=True):
            name = each.names[slot.key].name if slot.key in each.names else ""
            told = dump.get(name)
            if told is not None:
                group = replace(
                    group, entered=told.entered, completed=told.completed, started=told.started, operation=told.operation,
                    recent=told.recent,
                )  # fmt: skip
                if inside is not None and inside.group == group.key and inside.number:
                    # The wrappers do not see collectives that native code issues (DDP's reducer, a monitored barrier).
                    inside = replace(inside, number=inside.number + max(0, told.entered - slot.issued))
                if told.peers and inside is None:
                    way, peer = told.peers[0]
                    whom = group.members[peer] if isinstance(group.members, tuple) and peer < len(group.members) else None
                    inside = CurrentCall(way, group.key, 0, 0.0, whom, True)
            entered[slot.slot] = group.entered
            groups.append(group)
        exact = _exact(state, entered, late=False)
        if view.hidden_groups:  # they have no room in the page: the recorder's counts tell what the rank waits in
            groups += _hidden(each.names, dump)
            exact = False
            inside = inside if inside is None or inside.group or inside.point_to_point or inside.operation in MEETINGS else None
        return replace(view, groups=tuple(groups[:GROUPS_MAX]), inside=inside, exact=exact, hidden_groups=0)

    def _with_kernel(self, view: RankView, each: _Rank, until: float) -> tuple[RankView, str]:
        if not each.pid or view.process is ProcessState.EXITED:
            return view, _told(view, "")
        view = replace(view, sockets=tcp_sockets(each.pid))
        stack = self._stack(each.pid, until)
        if _may_be_in_mpi(each) and each.age("main", self._clock()) > MAIN_FRESH_S and view.process is ProcessState.RUNNING:
            if each.mpi_call is None or each.mpi_call[0] != each.seen["main"][0]:
                native = self._stack(each.pid, until, native=True)
                each.mpi_call = (each.seen["main"][0], mpi_call(native)) if _MAIN_THREAD.search(native) else None
                stack = native or stack
            view = _in_mpi(view, each, self._clock())
        trainer = _trainer_beside_main(each)
        inside = stack_inside(stack, trainer)
        if inside is None and in_other_call(each.pid, trainer):
            inside = False
        stack = stack or self._traceback(view, each, until)
        return replace(view, stack_inside=inside), _told(view, f"{process_line(each.pid)}\n{stack}")

    def _traceback(self, view: RankView, each: _Rank, until: float) -> str:
        """The Python stacks of all threads from the rank itself, if nobody can read them from outside. This needs the interpreter
        lock.
        """
        if each.probe is None or not each.probe.serves or view.gil_held is not False:
            return ""
        answer = ask_server(each.path + layout.SOCKET_SUFFIX, "dump_traceback", max(0.05, min(ASK_S, until - self._clock())))
        return (answer or b"").decode(errors="replace")[:STACK_BYTES]

    def _stack(self, pid: int, until: float, native: bool = False) -> str:
        """The stack from py-spy. native: with C frames, for which ptrace(2) stops the process for 20 ms: only for a running
        process, since this may end a wait.
        """
        left = until - self._clock()
        if self._spy is None or left < 0.1:
            return ""
        try:
            how = "--native" if native else "--nonblocking"
            limit_s = NATIVE_S if native else ASK_S
            done = self._run([self._spy, "dump", how, "--pid", str(pid)], timeout_s=min(limit_s, left))
        except (CommandMissing, OSError):
            return ""
        return done.stdout[:STACK_BYTES]

    def _dump(self, each: _Rank, until: float) -> dict[str, Recorded] | None:
        if each.probe is None or not each.probe.serves or each.pid is None or main_thread(each.pid)[0] is ProcessState.STOPPED:
            return None
        answer = ask_server(each.path + layout.SOCKET_SUFFIX, "fr_trace_json", max(0.05, min(ASK_S, until - self._clock())))
        try:
            return parse_recorder(json.loads(answer)) if answer else None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
            return None

    # --- for the slow rules

    def _waits(self, each: _Rank, state: ProbeState) -> WaitTimes:
        new = [wait for wait in state.ring if wait.place >= each.told_waits]
        each.told_waits = state.waits
        if not new:
            return WaitTimes(each.rank, self._node, 0, 0.0, 0.0)
        issued = {group.slot: group for group in state.groups}
        stays: dict[int, dict[int, int]] = {}
        for wait in new:
            if wait.slot in issued and wait.slot is not None:
                latest = issued[wait.slot].issued
                stays.setdefault(wait.slot, {})[latest - (latest - wait.number) % layout.NUMBERS] = wait.stay_us
        return WaitTimes(
            each.rank, self._node, len(new), *steady_means([(wait.outside_us / 1e6, wait.stay_us / 1e6) for wait in new]),
            tuple(_in_a_row(_key(issued[slot], each.names), found) for slot, found in stays.items()),
        )  # fmt: skip

    def _sent(self, pid: int) -> tuple[float | None, float | None]:
        """MB sent and milliseconds busy so far, of the sockets of `pid`."""
        own = _link("/proc/self/ns/net") == _link(f"/proc/{pid}/ns/net")
        argv = ["ss", "-Htinp", "state", "established"]
        try:
            done = self._run(argv if own else ["nsenter", "-t", str(pid), "-n", *argv], timeout_s=ASK_S)
        except (CommandMissing, OSError):
            return None, None
        return parse_ss(done.stdout, pid) if done.status == 0 else (None, None)

    def _enters(self, each: _Rank, dump: Mapping[str, Recorded]) -> Iterator[EntryTimes]:
        keys = {name.name: name.key for name in each.names.values()}
        for name, told in dump.items():
            row = _in_a_row(keys.get(name, name), told.times_ns)
            if row.stays_us:
                skip = max(0, len(row.stays_us) - ENTERS_MAX)
                yield EntryTimes(each.rank, self._node, row.key, row.first + skip, row.stays_us[skip:])


def _page(path: str) -> bytes:
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


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _better(state: ProbeState, page: PageState, known: _Rank) -> bool:
    """Of two processes that claim to be the rank, prefer the one with process groups, else the later one."""
    mine = (state.groups_seen > 0, page.start_ticks)
    theirs = (known.probe is not None and known.probe.groups_seen > 0, known.page.start_ticks if known.page else 0)
    return mine > theirs


_Found = tuple[str, PageState, ProbeState]


def _without_launchers(found: Sequence[_Found], command: int | None) -> tuple[list[_Found], list[str]]:
    """Gives the pages that train, and the other pages: of processes without groups that wait for none and have started a process
    that trains.

    These are launchers such as torchrun, `accelerate launch`, or the parent of multiprocessing's ranks: each imports
    torch.distributed as a rank does.
    """
    doubtful = [each for each in found if not (each[2].groups_seen or each[2].in_ns or each[2].left)]
    if len(found) < 2 or not doubtful:
        return list(found), []
    pids = {path: _pid_here(page, command) for path, page, _ in found}
    above = {parent for pid in pids.values() if pid for parent in _ancestors(pid)}
    others = [path for path, _, _ in doubtful if pids[path] in above]
    return [each for each in found if each[0] not in others], others


def _ancestors(pid: int) -> Iterator[int]:
    """The ancestors of a process of this pid namespace, from its parent on."""
    for _ in range(64):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read(4096).rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            return
        if pid <= 1:
            return
        yield pid


def _pid_here(page: PageState, command: int | None) -> int | None:
    """The pid of the page's process in our pid namespace: the page holds the number in its own."""
    if page.namespace == pid_namespace():
        return page.pid
    for pid in [command, *descendants(command)] if command else ():
        inside = re.search(r"^NSpid:\s*(.*)$", _text(f"/proc/{pid}/status"), re.M)
        if inside and inside[1].split()[-1] == str(page.pid):
            return pid
    return None


def _trainer_beside_main(each: _Rank) -> int:
    """The training thread in our numbering; 0 if it is the main thread, or unknown."""
    if each.pid is None or each.page is None or each.probe is None or not each.probe.trainer:
        return 0
    told = each.probe.trainer
    if each.trainer[0] != told:
        here = each.page.namespace == pid_namespace()
        each.trainer = told, told if here else next((n for n in _threads(each.pid) if _own_number(each.pid, n) == told), 0)
        each.trainer_looks.clear()
    return each.trainer[1] if each.trainer[1] != each.pid else 0


def _own_number(pid: int, thread: int) -> int:
    """The number of a thread in the process's own pid namespace."""
    inside = re.search(r"^NSpid:\s*(.*)$", _text(f"/proc/{pid}/task/{thread}/status"), re.M)
    return int(inside[1].split()[-1]) if inside else 0


def _polls_store(each: _Rank, view: RankView, now: float) -> CurrentCall | None:
    """Does the rank only ask a store again and again? Then it waits for another rank to reach that point."""
    if each.polling is None or not each.polling.asks or view.polls_s is None or each.polls_since is None:
        return None
    return CurrentCall("store_poll", "", 0, now - each.polls_since)


def _rates(
    samples: Sequence[tuple[float, dict[tuple[int, float], int], float]], polling: Polling | None = None
) -> tuple[float | None, float | None]:
    """(CPU in per cent of a core, bytes of I/O a second) of the process tree over the last seconds,
    without the cost of polling.
    """
    if len(samples) < 2:
        return None, None
    at, io, cpu_s = samples[-1]
    then = next((each for each in reversed(samples) if at - each[0] >= RATES_S - 0.5), samples[0])
    passed = at - then[0]
    if passed <= 0:
        return None, None
    # A new process counts from zero; an ended one has taken its count along.
    moved = sum(max(0, count - then[1].get(process, 0)) for process, count in io.items())
    cpu_percent, io_bytes_s = max(0.0, cpu_s - then[2]) / passed * 100, moved / passed
    if polling is not None:
        cpu_percent, io_bytes_s = max(0.0, cpu_percent - polling.cpu_percent), max(0.0, io_bytes_s - polling.io_bytes_s)
    return cpu_percent, io_bytes_s


def _may_be_in_mpi(each: _Rank) -> bool:
    return each.probe is not None and each.probe.mpi and not each.probe.groups


def _in_mpi(view: RankView, each: _Rank, now: float) -> RankView:
    """The view of a rank that uses the CPU inside one MPI call: this is a wait, unless a process or thread beside it works, for
    which others may well wait.
    """
    if each.mpi_call is None:  # nobody could look
        return replace(view, hidden_groups=1)
    call, (cpu_percent, _) = each.mpi_call[1], _beside_main(each)
    beside = replace(view, process=ProcessState.SLEEPING, cpu_percent=cpu_percent)
    if not call or cpu_percent is None or works(beside):
        return view
    return replace(view, inside=CurrentCall(call, "", 0, each.age("main", now)), cpu_percent=cpu_percent)


def _beside_main(each: _Rank) -> tuple[float | None, float | None]:
    """As `_rates`, without the main thread's CPU time."""
    mains = {look.at: look.cpu_s for look in each.looks}
    return _rates([(at, io, cpu_s - mains[at]) for at, io, cpu_s in each.samples if at in mains])


Usage = tuple[dict[tuple[int, float], int], float]


def _without_servers(each: _Rank, io: dict[tuple[int, float], int], cpu_s: float) -> Usage:
    """The usage without threads that only wait for others, or answer others' requests to a store:
    that is no work of this rank.
    """
    if each.pid is None:
        return io, cpu_s
    if each.servers is None:
        each.servers = tuple(thread for thread in _threads(each.pid) if _is_server(each.pid, thread))
    served = sum(thread_io(each.pid, thread) for thread in each.servers)
    used_s = sum(thread_cpu_s(each.pid, thread) for thread in each.servers)
    return {key: max(0, count - served) if key[0] == each.pid else count for key, count in io.items()}, cpu_s - used_s


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (OSError, ValueError):
        return []


# Source: the thread names of torch's TCPStore, its worker server, TensorPipe (torch.distributed.rpc) and gloo. TensorPipe's
# reactor polls its shared memory without pause and uses a whole idle core. gloo has one loop per group that wakes up a hundred
# times a second: 4 % of a core with forty groups, more on a busy node. And our own probe.
_SERVERS = ("pt_tcpstore", "pt_workerserver", "TP_SHM_reactor", "gloo_tcp_loop", layout.THREAD_NAME.decode())


def _is_server(pid: int, thread: int) -> bool:
    return _text(f"/proc/{pid}/task/{thread}/comm").startswith(_SERVERS)


def _passed_on(shim: int | None) -> int:
    """Bytes that a shim has written: it passes its rank's output on, and writes almost nothing else."""
    found = re.search(r"^wchar:\s*(\d+)", _text(f"/proc/{shim}/io"), re.M) if shim else None
    return int(found[1]) if found else 0


def _key(group: ProbeGroup, names: Mapping[int, GroupName]) -> str:
    return names[group.key].key if group.key in names else f"#{group.key:08x}"


def _hidden(names: Mapping[int, GroupName], dump: Mapping[str, Recorded]) -> Iterator[GroupView]:
    """Groups without a slot, as the recorder describes them; if a group is missing there, the rank has entered nothing lately."""
    for name in names.values():
        told = dump.get(name.name)
        if name.slot < 0 and told is not None:
            yield GroupView(name.key, name.members, told.entered, told.completed, told.started, told.operation, told.recent)


def _group_view(group: ProbeGroup, names: Mapping[int, GroupName]) -> GroupView:
    members = names[group.key].members if group.key in names else ()
    completed = None
    if group.recorded is not None and group.completed is not None:
        open_ = max(0, group.recorded - group.completed)
        completed = max(0, group.entered - (min(open_, 1) if group.directs else open_))
    return GroupView(_key(group, names), members, group.entered, completed)


def _exact(state: ProbeState, entered: Mapping[int, int], late: bool) -> bool:
    """Do the words describe all waits? Only the recorder's count covers collectives that native code issues (DDP's reducer), and
    waits in threads other than the training thread.

    late: that count is as old as the last beat, so it may be behind.
    """
    if state.level < 2 or state.beside:
        return False
    pairs = ((entered.get(group.slot, group.entered), group.issued) for group in state.groups)
    return all(count == issued or (late and count < issued) for count, issued in pairs)


def _stay(state: ProbeState, process: ProcessState, each: _Rank, now: float) -> CurrentCall | None:
    """Where the main thread waits; or the failed wait that ended the process."""
    if not state.in_ns and not (state.failed and process is ProcessState.EXITED):
        return None
    slot = next((group for group in state.groups if group.slot == state.in_slot), None)
    key = _key(slot, each.names) if slot else ""
    return CurrentCall(state.operation, key, state.number, each.age("in", now), state.peer, state.direct)


def _in_a_row(key: str, found: Mapping[int, int]) -> CallDurations:
    """The last calls without a gap between their numbers."""
    row: list[int] = []
    number = max(found, default=0)
    last = number
    while number in found:
        row.append(found[number])
        number -= 1
    return CallDurations(key, last - len(row) + 1, tuple(reversed(row)))


def _uses_nccl(view: RankView) -> bool:
    return any(operation.startswith("nccl:") for group in view.groups for operation in (group.operation, *group.recent))


def _told(view: RankView, kernel: str) -> str:
    groups = "".join(f"\n  group {g.key}: entered {g.entered}, completed {g.completed} {g.operation}" for g in view.groups)
    inside = f"\n  inside {view.inside.operation} for {view.inside.for_s:.1f} s" if view.inside else ""
    stuck = "".join(f"\n  {s.local} -> {s.remote}: {s.trouble}, {s.queued_bytes} bytes" for s in view.sockets if s.trouble)
    return f"rank {view.rank}: {view.process.value}{inside}{groups}{stuck}\n{kernel}"


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode(errors="ignore")
