"""Shared memory that a user has left on this node: files in /dev/shm, and System V segments that nobody has attached."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import FtslurmError
from ftslurm.system.commands import Runner, run

SHM = Path("/dev/shm")  # noqa: S108  it is what is meant
SYSV = Path("/proc/sysvipc/shm")
IPCRM_TIMEOUT_S = 5.0


def files_of(user_id: int, folder: Path = SHM) -> tuple[str, ...]:
    """Names of what belongs to the user there; links are not followed."""
    with suppress(OSError), os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries if _owner(entry) == user_id))
    return ()


def remove_files(user_id: int, folder: Path = SHM) -> tuple[str, ...]:
    """Remove what belongs to the user there; gives what went. The user has no process left that could exchange a name."""
    gone = []
    for name in files_of(user_id, folder):
        path = folder / name
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)  # by descriptors, so that a link set meanwhile leads nowhere
            else:
                path.unlink()
            gone.append(name)
    return tuple(gone)


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


def remove_segments(user_id: int, runner: Runner = run) -> tuple[int, ...]:
    """Gives the ids of those that went."""
    gone = []
    for number in segments_of(user_id):
        with suppress(FtslurmError):
            if runner(["ipcrm", "--shmem-id", str(number)], IPCRM_TIMEOUT_S).status == 0:
                gone.append(number)
    return tuple(gone)
