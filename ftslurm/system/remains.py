"""What may remain of a job on its node: shared memory, processes that no signal ends, and the cgroups that hold them."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ftslurm.errors import FtslurmError
from ftslurm.system.commands import CommandResult, run
from ftslurm.system.owner import PATH, owner_of, run_as
from ftslurm.system.processes import asleep

# --- shared memory of a user: files in /dev/shm, and System V segments that nobody has attached

SHM = Path("/dev/shm")  # noqa: S108  it is what is meant
SYSV = Path("/proc/sysvipc/shm")
IPCRM_TIMEOUT_S = 30.0
MIN_RM_S = 0.1
MAX_FILES = 100_000  # per look
AT_ONCE = 1000  # segments on one command line


class File(NamedTuple):
    """A name in /dev/shm, of a file, a folder or a link, and what it referred to."""

    name: str
    inode: int


def files_of(user_id: int, folder: Path = SHM) -> tuple[File, ...]:
    """The user's entries, at most MAX_FILES; links are not followed."""
    with suppress(OSError), os.scandir(folder) as entries:
        his = (File(entry.name, entry.inode()) for entry in entries if _owner(entry) == user_id)
        return tuple(sorted(islice(his, MAX_FILES)))
    return ()


def remove_files(files: Sequence[File], user_id: int, deadline: float, folder: Path = SHM) -> int:
    """Remove the entries that have not changed, until time.monotonic() is `deadline`; gives how many were removed."""
    gone = 0
    for file in files:
        if time.monotonic() >= deadline:
            break
        with suppress(FileNotFoundError):
            try:
                _remove(folder / file.name, file.inode, user_id, deadline)
            except OSError:
                continue
        gone += 1
    return gone


def _remove(path: Path, inode: int, user_id: int, deadline: float) -> None:
    """Remove a tree of any depth. Raises: OSError if it remains."""
    info = path.lstat()
    if (info.st_ino, info.st_uid) != (inode, user_id):
        raise FileExistsError(path)
    if not stat.S_ISDIR(info.st_mode):
        path.unlink()
        return
    # By descriptors, so that a link set meanwhile leads nowhere, and with unlimited depth. As the user: others' files in the
    # folder are removed only if the user could remove them too.
    argv = ["rm", "-rf", "--one-file-system", "--", str(path)]
    if not _as_user(argv, user_id, deadline):
        # Also folders that the user has closed for themselves.
        _as_user(["chmod", "-R", "u+rwx", "--", str(path)], user_id, deadline)
        if not _as_user(argv, user_id, deadline):
            raise OSError(f"{path} could not be removed")


def _as_user(argv: Sequence[str], user_id: int, deadline: float) -> bool:
    """Did the command do all its work?"""
    try:
        done = run_as(owner_of(user_id), argv, max(deadline - time.monotonic(), MIN_RM_S), {"PATH": PATH})
    except FtslurmError:
        return False
    return done.status == 0


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def segments_of(user_id: int, table: Path = SYSV) -> tuple[int, ...]:
    """Ids of the user's System V segments that no process has attached. Source: proc(5), /proc/sysvipc/shm."""
    with suppress(OSError, ValueError):
        return tuple(_segments(table.read_text().splitlines(), user_id))
    return ()


def _segments(lines: list[str], user_id: int) -> Iterator[int]:
    names = lines[0].split() if lines else []
    for line in lines[1:]:
        row = dict(zip(names, line.split(), strict=False))
        if int(row["uid"]) == int(row["cuid"]) == user_id and row["nattch"] == "0":
            yield int(row["shmid"])


def remove_segments(
    numbers: Sequence[int], user_id: int, deadline: float, segments_of: Callable[[int], tuple[int, ...]] = segments_of,
    run_as: Callable[..., CommandResult] = run_as,
) -> int:  # fmt: skip
    """Remove the segments that are still unattached, until time.monotonic() is `deadline`; gives how many were removed.

    It works as the user: a number may have become another user's segment meanwhile, which that user cannot remove.
    """
    there = set(segments_of(user_id))
    doomed = [number for number in numbers if number in there]
    for first in range(0, len(doomed), AT_ONCE):
        if time.monotonic() >= deadline:
            break
        words = [word for number in doomed[first : first + AT_ONCE] for word in ("--shmem-id", str(number))]
        with suppress(FtslurmError):
            run_as(owner_of(user_id), ["ipcrm", *words], IPCRM_TIMEOUT_S, {"PATH": PATH})
    return len(numbers) - len({*doomed} & {*segments_of(user_id)})


# --- cgroups of Slurm's jobs: freeze all processes of a group at once, so that none can fork, and kill them
# cgroups v1: the freezer, under which even SIGKILL waits until it thaws. v2: cgroup.freeze.
# Touches only groups of a job, by Slurm's names: below a part with `slurm` in its name, a part `job_N`. So no service, no login
# and nothing else of the machine is ever frozen. Source: the kernel's admin-guide/cgroup-v2.rst and
# cgroup-v1/freezer-subsystem.rst; src/plugins/cgroup of Slurm.

PROC = Path("/proc")
MOUNT = Path("/sys/fs/cgroup")
FROZEN_S, POLL_S = 0.5, 0.01
_JOB = re.compile(r"job_\d+")


def job_groups(pid: int, mount: Path = MOUNT, proc: Path = PROC) -> tuple[Path, ...]:
    """The job's cgroups that contain the process, the outermost (the job's own) first; empty outside any job."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = _hierarchy(controllers, mount)
        parts = path.strip("/").split("/")
        if base is None or ".." in parts or "." in parts or parts[0] == "user.slice":
            continue
        if parts[0] == "system.slice" and not (len(parts) > 1 and "slurm" in parts[1]):
            continue
        top = next((n for n, part in enumerate(parts) if _JOB.fullmatch(part) and "slurm" in "/".join(parts[:n])), None)
        if top is not None:
            found += [base.joinpath(*parts[: n + 1]) for n in range(top, len(parts))]
    return tuple(group for group in found if _state_file(group) is not None)


def _hierarchy(controllers: str, mount: Path) -> Path | None:
    """The mount point that can hold processes. Beside v1, v2 is mounted at `unified` (systemd's hybrid mode)."""
    if controllers == "":
        return next((base for base in (mount, mount / "unified") if (base / "cgroup.controllers").exists()), None)
    return mount / "freezer" if "freezer" in controllers.split(",") else None


def members(group: Path) -> frozenset[int]:
    """All processes in the group and below; 0 stands for one of another pid namespace. Raises: OSError."""
    found: set[int] = set()
    for folder, _, _ in os.walk(group):
        with suppress(FileNotFoundError):
            found.update(int(word) for word in (Path(folder) / "cgroup.procs").read_text().split())
    return frozenset(found)


@contextmanager
def standing_still(group: Path) -> Iterator[bool]:
    """Freeze the group; gives whether it is frozen. Thaws it at the end, also if somebody had frozen it before."""
    state = _state_file(group)
    if state is None:
        yield False
        return
    hold, go_on = ("1", "0") if state.name == "cgroup.freeze" else ("FROZEN", "THAWED")
    try:
        yield _write(state, hold) and _stands(group)
    finally:
        _write(state, go_on)


def is_frozen(pid: int, mount: Path = MOUNT, proc: Path = PROC) -> bool:
    """Is the process in a group of cgroups v1 that is frozen or about to be? There even SIGKILL waits."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        paths = [path for _, controllers, path in (line.split(":", 2) for line in lines) if "freezer" in controllers.split(",")]
        return any((mount / f"freezer{path}" / "freezer.state").read_text().strip() != "THAWED" for path in paths if path != "/")
    except (OSError, ValueError):
        return False


def _stands(group: Path) -> bool:
    until = time.monotonic() + FROZEN_S
    while not _is_held(group):
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


def _is_held(group: Path) -> bool:
    try:
        if (group / "freezer.state").exists():
            return (group / "freezer.state").read_text().strip() == "FROZEN"
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines()
    except OSError:
        return False


def _state_file(group: Path) -> Path | None:
    return next((file for file in (group / "cgroup.freeze", group / "freezer.state") if file.exists()), None)


def _write(file: Path, word: str) -> bool:
    """Write into a kernel file that exists."""
    with suppress(OSError), file.open("wb", buffering=0) as kernel:
        kernel.write(word.encode())
        return True
    return False


# --- waits that not even SIGKILL ends and that a user can cause: for a file system that a program of the user serves (FUSE), for
# memory that it fills (userfaultfd), in a frozen cgroup. They say nothing about the node.
# Source: the kernel's filesystems/fuse.rst (control filesystem), admin-guide/mm/userfaultfd.rst; proc(5), /proc/pid/stack.

CONNECTIONS = Path("/sys/fs/fuse/connections")
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
    return is_frozen(pid)


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
