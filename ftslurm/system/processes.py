"""Which processes exist, what they have done, who called this one, and how to end them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import CommandMissing
from ftslurm.model.exits import Process
from ftslurm.model.values import Value
from ftslurm.system.commands import run_group
from ftslurm.system.owner import PATH

PROC = Path("/proc")
# --- who has called this program within its job: shells, with the script that they run, and other programs, the nearest first

MAX_BYTES = 1_000_000  # of a script
SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "rbash"})
# They end with the status of the command that they run, and do nothing because of it.
_HAND_ON = frozenset({
    "timeout", "nice", "ionice", "nohup", "env", "stdbuf", "time", "taskset", "numactl", "setsid", "chrt", "salloc", "unbuffer",
})  # fmt: skip
# bash keeps its script open there, and stands behind the top-level command that it executes, also in its subshells; a command in
# the background may see a later one. Seen on bash 5.1 and 5.2; dash and zsh do not.
_SCRIPT_OF_BASH = 255
_STEP = "slurmstepd"
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_DEPTH = 64


class _Caller(Value):
    """text: of the script; None for a program that is no shell, or a shell whose script cannot be read. offset: see above,
    None if not known. name: of the script or program."""

    text: bytes | None
    offset: int | None
    name: str


def callers(own: frozenset[str], pid: int | None = None, proc: Path = PROC) -> Iterator[_Caller]:
    """own: the names of this program, which may be behind its own wrappers. pid: of the nearest, our parent if None.

    Beyond `salloc`, which is called from outside the job, other programs than shells do not count, nor does a person at a prompt.
    """
    pid, outside = os.getppid() if pid is None else pid, False
    for _ in range(_DEPTH):
        words = _command_line(pid, proc)
        if pid <= 1 or not words or words[0].startswith(_STEP):
            return
        name = _base(words[0]).lstrip("-")
        outside = outside or name == "salloc"
        if name in SHELLS:
            if _is_at_a_prompt(words, pid, proc):
                return
            yield _script(words, pid, proc)
        elif name not in _HAND_ON and not any(_base(word) in own for word in words[:2]):
            if not outside:
                yield _Caller(None, None, name)
            return
        pid = parent_of(pid, proc)


def killed_after_s(pid: int | None = None, proc: Path = PROC) -> float:
    """How long after its signal a `timeout -k` above this program kills it, seconds; 0: none does. Source: timeout(1)."""
    pid = os.getppid() if pid is None else pid
    for _ in range(_DEPTH):
        words = _command_line(pid, proc)
        name = _base(words[0]) if words else ""
        if name not in _HAND_ON:
            return 0.0
        if name == "timeout":
            return _kill_after_s(words[1:])
        pid = parent_of(pid, proc)
    return 0.0


def _kill_after_s(words: list[str]) -> float:
    from getopt import GetoptError, getopt  # loads gettext

    try:
        options, _ = getopt(words, "fpvk:s:", ["kill-after=", "signal=", "foreground", "preserve-status", "verbose"])
        text = next((value for name, value in reversed(options) if name in ("-k", "--kill-after")), "0")
        return float(text.rstrip("smhd")) * _UNITS.get(text[-1:], 1.0)
    except (GetoptError, ValueError):
        return 0.0


def _script(words: list[str], pid: int, proc: Path) -> _Caller:
    """What the shell runs: the file that bash has open, the text behind -c, or the first argument that is no option."""
    place = proc / str(pid)
    with suppress(OSError, ValueError):
        file = (place / "fd" / str(_SCRIPT_OF_BASH)).readlink()
        if not str(file).startswith("/dev/"):
            info = (place / "fdinfo" / str(_SCRIPT_OF_BASH)).read_text().split()
            return _Caller(_head_of(place / "fd" / str(_SCRIPT_OF_BASH)), int(info[info.index("pos:") + 1]), file.name)
    options = [word for word in words[1:] if word.startswith(("-", "+"))]
    rest = [word for word in words[1:] if not word.startswith(("-", "+"))]
    name = words[0].rpartition("/")[2]
    if any("c" in option and not option.startswith("--") for option in options) and rest:
        return _Caller(rest[0].encode(errors="surrogateescape"), None, f"{name} -c")
    with suppress(OSError):
        return _Caller(_head_of(place / "cwd" / rest[0]), None, _base(rest[0])) if rest else _Caller(None, None, name)
    return _Caller(None, None, name)


def _is_at_a_prompt(words: list[str], pid: int, proc: Path) -> bool:
    """An interactive shell: no script, and a terminal to read from."""
    if any(not word.startswith("-") or "c" in word.strip("-") for word in words[1:]):
        return False
    with suppress(OSError):
        return str((proc / str(pid) / "fd/0").readlink()).startswith(("/dev/pts/", "/dev/tty"))
    return False


def _head_of(path: Path) -> bytes:
    """Raises: OSError, for a pipe as well (`bash <(...)`): we would wait for ever, or take from the shell what it runs next."""
    if not path.is_file():
        raise OSError
    with path.open("rb") as file:
        return file.read(MAX_BYTES)


def _command_line(pid: int, proc: Path) -> list[str]:
    try:
        return (proc / str(pid) / "cmdline").read_text(errors="surrogateescape").split("\0")[:-1]
    except OSError:
        return []


def parent_of(pid: int, proc: Path = Path("/proc")) -> int:
    """0 for a process that is not there."""
    try:
        return int((proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def children_of(parent: int) -> list[int]:
    return [int(each.name) for each in PROC.glob("[0-9]*") if parent_of(int(each.name)) == parent]


def _base(word: str) -> str:
    return word.rpartition("/")[2]


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
_MOVED = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")


def usage(pids: Iterable[int]) -> tuple[dict[tuple[int, float], int], float]:
    """((pid, start time) -> bytes of I/O so far, CPU seconds so far) of all of `pids`.

    Bytes by system calls (sockets and files alike) and those of the storage (mapped files appear only there). CPU of ended
    children counts with their parent. Processes that end meanwhile or are unreadable are skipped. Source: proc(5), io and stat.
    """
    io: dict[tuple[int, float], int] = {}
    ticks = 0
    for pid in pids:
        with suppress(OSError, IndexError):
            place = f"{PROC}/{pid}"
            words = Path(f"{place}/stat").read_bytes().rpartition(b")")[2].split()
            counts = dict(line.split(b": ") for line in Path(f"{place}/io").read_bytes().splitlines())
            io[pid, int(words[19]) / TICKS] = sum(int(counts[name]) for name in _MOVED)
            ticks += sum(map(int, words[11:15]))
    return io, ticks / TICKS


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
            signal_process(process, number)
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


def signal_process(process: Process, number: int) -> None:
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
