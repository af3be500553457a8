"""What the kernel tells of processes and their memory, and signals: to them, and those that come to us."""

from __future__ import annotations

import os
import time

from ftslurm.wrapper.shim.fast_stdlib import signal, socket

# --- Signals: which are passed on, how they are queued for a loop, and how to end as the command did.

# Passed on to the command and reported. STOP and KILL do what the kernel does, TSTP and CONT announce.
FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGXCPU, signal.SIGURG,
)  # fmt: skip
# Slurm's, around the suspension of a job: two seconds before its SIGSTOP, and to go on. Passed on where Slurm signals the
# task alone, as a program may have handlers for them.
ANNOUNCING = (signal.SIGTSTP, signal.SIGCONT)


def waking() -> tuple[int, int]:
    """An end to read and one to write, for wake-ups. Not a pipe: that any process of the user's can open by /proc, and fill or
    empty it."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def catch_signals() -> int:
    """Queue every signal we pass on, and SIGCHLD, for a loop; gives the end to read. Ignored ones stay ignored."""
    read_end, write_end = waking()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*FORWARDED, *ANNOUNCING, signal.SIGCHLD):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read_end


def end_as(status: int) -> None:
    """End as the command did: by the same signal, without a core of our own, so that srun reports what it would have."""
    number = status - 128
    if number in (*FORWARDED, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(status & 255)


# --- Small files of the kernel's, read without a buffer or a decoder between: a look at a rank with hundreds of threads opens one
# for each of them.

READ_AT_ONCE = 1 << 16


def content(path: str) -> bytes:
    """All of it. Raises: OSError."""
    file = os.open(path, os.O_RDONLY)
    try:
        data = more = os.read(file, READ_AT_ONCE)
        while more:
            more = os.read(file, READ_AT_ONCE)
            data += more
        return data
    finally:
        os.close(file)


# --- How often the kernel has killed for memory, and how much of it is left.


def oom_kills(root: str = "") -> int | None:
    """How often the kernel has killed for memory in the cgroup of this process, None where nobody tells.

    root: what stands before /proc and /sys. Where the task's own cgroup has no memory controller its parents are asked,
    up to that of the step: whatever is above has others in it. Source: memory.events in the kernel's cgroup-v2.rst,
    memory.oom_control in its cgroup-v1/memory.rst.
    """
    for unified, base, path in _cgroups(root):
        file = "memory.events" if unified else "memory.oom_control"
        while True:
            for line in lines_of(f"{base}{path}/{file}"):
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count.isdigit():
                    return int(count)
            path = path.rpartition("/")[0]
            if "/step_" not in path:
                break
    return None


def memory_left(root: str = "") -> float:
    """The least share of any limit of this process's cgroups, and of the node, that could still be had; file pages can be."""
    shares = []
    node = dict(line.split()[:2] for line in lines_of(f"{root}/proc/meminfo"))
    if "MemAvailable:" in node:
        shares.append(int(node["MemAvailable:"]) / int(node["MemTotal:"]))
    for unified, base, path in _cgroups(root):
        limit, used = ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        names = ("inactive_file", "active_file") if unified else ("total_inactive_file", "total_active_file")
        while path:
            most, now = ("".join(lines_of(f"{base}{path}/{file}")) for file in (limit, used))
            if most.isdigit() and now.isdigit() and int(most):
                stat = dict(line.split()[:2] for line in lines_of(f"{base}{path}/memory.stat"))
                held = int(now) - sum(int(stat.get(name, 0)) for name in names)
                shares.append(1 - held / int(most))
            path = path.rstrip("/").rpartition("/")[0]
    return min(shares, default=1.0)


def _cgroups(root: str) -> list[tuple[bool, str, str]]:
    """Where the memory of this process is accounted: whether by cgroup v2, the mount, the path below it."""
    found = []
    for line in lines_of(f"{root}/proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            found.append((True, f"{root}/sys/fs/cgroup", path))
        elif "memory" in controllers.split(","):
            found.append((False, f"{root}/sys/fs/cgroup/memory", path))
    return found


def lines_of(path: str) -> list[str]:
    """Of a small file; none if it cannot be read."""
    try:
        return content(path).decode(errors="replace").splitlines()
    except OSError:
        return []


# --- The processes below one, and signals to them.

RESCAN_S = 0.02  # between two SIGKILL rounds: children of the killed become ours only once they are reaped
EXEC_LOOKS, EXEC_S = 20, 0.005  # a process may have no environment at all, so not for long


def descendants(root: int) -> list[int]:
    """Every process below `root`, by the kernel's own list where it has one (CONFIG_PROC_CHILDREN), else by parents."""
    if os.path.exists("/proc/thread-self/children"):  # not of `root`, which may have ended: then nothing is below it
        found, ahead = [], [root]
        while ahead:
            nearest = children(ahead.pop())
            found += nearest
            ahead += nearest
        return found
    return _descendants_by_parent(root)


def children(pid: int) -> list[int]:
    """By the kernel's own list; empty where it has none."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found  # it ended while we looked
    for thread in threads:
        try:
            found += map(int, content(f"/proc/{pid}/task/{thread}/children").split())
        except OSError:
            continue  # as has this thread
    return found


def _descendants_by_parent(root: int) -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    parents[int(name)] = int(stat.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found, ahead = [], [root]
    while ahead:
        parent = ahead.pop()
        nearest = [pid for pid, above in parents.items() if above == parent]
        found += nearest
        ahead += nearest
    return found


def environ_of(pid: int) -> list[bytes]:
    """`name=value`, empty for a process that is somebody else's or has ended. In the midst of execve(2) it has none for a
    moment: then it is asked again."""
    try:
        for _ in range(EXEC_LOOKS):
            with open(f"/proc/{pid}/environ", "rb") as variables:
                if data := variables.read():
                    return data.split(b"\0")
            with open(f"/proc/{pid}/statm", "rb") as memory:
                if memory.read().startswith(b"0 "):
                    break  # a zombie, or a thread of the kernel's
            time.sleep(EXEC_S)
    except OSError:
        pass
    return []


def send_signal(pid: int, number: int) -> None:
    """A negative `pid` means the process group."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already; or it changed its user (setuid), which only root could end
