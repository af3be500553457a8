"""The processes below one, and signals to them."""

from __future__ import annotations

import os
import time

from ftslurm.wrapper.shim.files import content

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
