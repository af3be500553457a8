"""Reads a user's file safely for a reader with more rights than its owner: the file may be a trap.

Below the folder that the site names every part is opened by itself, follows no link, belongs to the owner, and can be
written by nobody else. The file is a plain one with one name, and small. Opening waits for nobody: a FIFO has no writer.
Whatever is odd is refused; nothing here is ever written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ftslurm.errors import StateError

# A restart leaves about 1 KB: some thousand of them, read within a few seconds and some 50 MB. The most that can be made of so
# many bytes costs 15 s, within what an owner's program may use (system/owner.py).
MAX_BYTES = 4 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_TO_OTHERS = 0o022


def read_untrusted(base: Path, parts: Sequence[str], owner: int, limit: int = MAX_BYTES) -> bytes | None:
    """The bytes of base/parts, whole; None if it is not there.

    base: what the site vouches for, the owner's home say; links above and at it are the site's.
    Raises: StateError for everything that is not as it should be.
    """
    place = base.joinpath(*parts)
    try:
        with _folder(base, parts[:-1], owner) as folder:
            fd = os.open(parts[-1], _FILE, dir_fd=folder)
            with os.fdopen(fd, "rb") as file:
                _check_file(os.fstat(fd), owner, limit, place)
                data = file.read(limit + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(place, error.strerror or "cannot be read") from None
    if len(data) > limit:
        raise _refused(place, "grows while it is read")
    return data


@contextmanager
def _folder(base: Path, parts: Sequence[str], owner: int) -> Iterator[int]:
    """An open folder, base/parts."""
    opened = [os.open(base, _FOLDER)]
    try:
        _check_owner(os.fstat(opened[0]), owner, base)
        for number, part in enumerate(parts, 1):
            opened.append(os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=opened[-1]))
            _check_folder(os.fstat(opened[-1]), owner, base.joinpath(*parts[:number]))
        yield opened[-1]
    finally:
        for fd in opened:
            os.close(fd)


def _check_owner(info: os.stat_result, owner: int, place: Path) -> None:
    if info.st_uid != owner:
        raise _refused(place, f"belongs to user {info.st_uid} and not to {owner}")


def _check_folder(info: os.stat_result, owner: int, place: Path) -> None:
    _check_owner(info, owner, place)
    if info.st_mode & _OPEN_TO_OTHERS:
        raise _refused(place, "may be written by others")


def _check_file(info: os.stat_result, owner: int, limit: int, place: Path) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise _refused(place, "is not a plain file")
    _check_folder(info, owner, place)
    if info.st_nlink != 1:
        raise _refused(place, f"has {info.st_nlink} names")
    if info.st_size > limit:
        raise _refused(place, f"has {info.st_size} bytes, {limit} at most are read")


def _refused(place: Path, why: str) -> StateError:
    return StateError(f"{place} {why}", hint="its contents are ignored")
