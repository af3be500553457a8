"""Shared memory that a user has left on this node: files in /dev/shm, and System V segments that nobody has attached."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ftslurm.errors import FtslurmError
from ftslurm.system.commands import CommandResult
from ftslurm.system.owner import PATH, owner_of, run_as

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
