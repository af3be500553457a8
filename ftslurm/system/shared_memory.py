"""Shared memory that a user has left on this node: files in /dev/shm, and System V segments that nobody has attached."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ftslurm.errors import FtslurmError
from ftslurm.system.commands import Runner, run
from ftslurm.system.owner import PATH, owner_of, run_as

SHM = Path("/dev/shm")  # noqa: S108  it is what is meant
SYSV = Path("/proc/sysvipc/shm")
IPCRM_TIMEOUT_S = 5.0
MIN_RM_S = 0.1
MAX_FILES = 100_000


class File(NamedTuple):
    """A name in /dev/shm, of a file, a folder or a link, and what stood behind it."""

    name: str
    inode: int


def files_of(user_id: int, folder: Path = SHM) -> tuple[File, ...]:
    """What belongs to the user there, 100,000 at most; links are not followed."""
    with suppress(OSError), os.scandir(folder) as entries:
        his = (File(entry.name, entry.inode()) for entry in entries if _owner(entry) == user_id)
        return tuple(sorted(islice(his, MAX_FILES)))
    return ()


def remove_files(files: Sequence[File], user_id: int, deadline: float, folder: Path = SHM) -> int:
    """Remove those that are still what they were, until time.monotonic() is `deadline`; gives how many are gone."""
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
    """A tree of any depth too. Raises: OSError if it stays."""
    info = path.lstat()
    if (info.st_ino, info.st_uid) != (inode, user_id):
        raise FileExistsError(path)
    if not stat.S_ISDIR(info.st_mode):
        path.unlink()
        return
    # By descriptors, so that a link set meanwhile leads nowhere, and without a limit of its own to the depth. As the user:
    # what others have put into the folder goes only where the user could remove it too.
    argv = ["rm", "-rf", "--one-file-system", "--", str(path)]
    try:
        done = run_as(owner_of(user_id), argv, max(deadline - time.monotonic(), MIN_RM_S), {"PATH": PATH})
    except FtslurmError as error:
        raise OSError(str(error)) from None
    if done.status != 0:
        raise OSError(done.stdout)


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


def remove_segments(numbers: Sequence[int], user_id: int, deadline: float, runner: Runner = run) -> int:
    """Remove those that nobody has attached still, until time.monotonic() is `deadline`; gives how many are gone."""
    there = set(segments_of(user_id))
    gone = 0
    for number in numbers:
        if time.monotonic() >= deadline:
            break
        with suppress(FtslurmError):
            gone += number not in there or runner(["ipcrm", "--shmem-id", str(number)], IPCRM_TIMEOUT_S).status == 0
    return gone
