"""Waits that not even SIGKILL ends and that a user can cause: for a file system that a program of the user serves (FUSE), for
memory that it fills (userfaultfd), in a frozen cgroup. They say nothing about the node.

Source: the kernel's filesystems/fuse.rst (control filesystem), admin-guide/mm/userfaultfd.rst; proc(5), /proc/pid/stack.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ftslurm.system import cgroups
from ftslurm.system.commands import run
from ftslurm.system.processes import asleep

CONNECTIONS = Path("/sys/fs/fuse/connections")
PROC = Path("/proc")
MOUNT_S = 5.0
# Of one process's mounts; the kernel allows 100,000 of them (fs.mount-max).
MAX_MOUNTS_BYTES = 16 << 20
# Of a user's processes whose mounts are read: they share few mount namespaces.
MAX_READ = 200
_SERVED_BY_A_USER = re.compile(rb"\b_*(?:fuse_|request_wait_answer|handle_userfault)")


def abort_fuse(user_id: int, pids: Iterable[int], logged_in: bool) -> int:
    """Abort the user's FUSE connections, so that each wait for one ends with an error; gives how many.

    They are those that the kernel calls the user's, and those that are mounted only where the user's processes see them.
    logged_in: what this process sees, too, stays, because a session of the user may work with it.
    """
    _mount_control()
    here = _mounted_for("self")
    theirs = set[str]().union(*(_mounted_for(str(pid)) for pid in list(pids)[:MAX_READ])) - here
    kept = here if logged_in else set[str]()
    return sum(_abort(place, user_id, place.name in theirs) for place in _connections() if place.name not in kept)


def are_users_doing(pids: Iterable[int]) -> bool:
    """Does a thread of these sleep uninterruptibly because of a user?

    Ask it of all processes of the node: what one waits for may be a lock that another one holds while it waits in FUSE.
    """
    return any(_is_user_s_doing(pid, thread) for pid in pids for thread, _ in asleep(pid))


def _is_user_s_doing(pid: int, thread: str) -> bool:
    task = PROC / str(pid) / "task" / thread
    for name in ("stack", "wchan"):  # a kernel may have neither
        with suppress(OSError):
            if _SERVED_BY_A_USER.search((task / name).read_bytes()):
                return True
    return cgroups.is_frozen(pid)


def _mount_control() -> None:
    """systemd mounts it; a system without systemd may not have done so."""
    if CONNECTIONS.is_dir() and not os.path.ismount(CONNECTIONS):
        run(["mount", "-t", "fusectl", "none", str(CONNECTIONS)], MOUNT_S)


def _connections() -> list[Path]:
    try:
        return list(CONNECTIONS.iterdir())
    except OSError:
        return []


def _mounted_for(pid: str) -> set[str]:
    """The numbers of the FUSE connections that the process sees. Source: proc(5), /proc/pid/mountinfo."""
    found = set()
    with suppress(OSError), (PROC / pid / "mountinfo").open("rb") as file:
        for line in file.read(MAX_MOUNTS_BYTES).splitlines():
            words, _, tail = line.partition(b" - ")
            if tail.startswith((b"fuse ", b"fuse.")):
                found.add(words.split()[2].partition(b":")[2].decode())
    return found


def _abort(place: Path, user_id: int, theirs: bool) -> bool:
    """A connection of root's is not aborted, wherever it is mounted."""
    with suppress(OSError):
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            owner = os.fstat(folder).st_uid
            if owner == user_id or (theirs and owner != 0):
                fd = os.open("abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
                try:
                    os.write(fd, b"1")
                finally:
                    os.close(fd)
                return True
        finally:
            os.close(folder)
    return False
