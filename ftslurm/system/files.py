"""Files that must not be lost, and folders that nobody else may write to."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ftslurm.errors import NoRoom, StateError

LOCK_POLL_S = 0.02
_ROOM_BYTES = 16 << 10  # a ledger of a job without trouble is smaller


def make_folder(path: Path, mode: int) -> None:
    """Create `path` with `mode`, and missing parents with 0755: whatever the umask, nobody else may write there.

    Raises: OSError.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent, 0o755)
    try:
        path.mkdir(mode)
        path.chmod(mode)  # a umask also removes rights
    except FileExistsError:
        if not path.is_dir():
            raise


def private_folder(path: Path) -> Path:
    """Create or check `path`: mode 0700, owned by us and no link. Raises: StateError."""
    try:
        make_folder(path, 0o700)
        info = path.lstat()
    except OSError as error:
        raise StateError(
            f"the state folder {path} cannot be made: {error.strerror}",
            hint="set FTSLURM_STATE_DIR to a folder on the shared file system that you may write",
        ) from None
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise StateError(f"the state folder {path} is not a folder of yours", hint="set FTSLURM_STATE_DIR to one that is")
    if info.st_mode & 0o077:
        try:
            path.chmod(0o700)
        except OSError as error:
            raise StateError(f"the state folder {path} is open to others: {error.strerror}", hint="chmod 700") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise StateError(f"the state folder {path} is not writable", hint="set FTSLURM_STATE_DIR to a folder that you may write")
    return path


def check_room(folder: Path) -> None:
    """Can a few KB be written there? Only a file tells of a quota. Raises: StateError."""
    path = folder / f".room-{os.urandom(8).hex()}"
    try:
        try:
            path.write_bytes(b"\xff" * _ROOM_BYTES)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise NoRoom(
            f"the state folder {folder} cannot be written: {error.strerror}",
            hint="free some space, or set FTSLURM_STATE_DIR to another folder on the shared file system",
        ) from None


class Locked(OSError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, wait_s: float) -> Iterator[None]:
    """Nobody else is within the lock of this file meanwhile. Raises: Locked after `wait_s` without it; OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while not _lock(fd):
            if time.monotonic() >= deadline:
                raise Locked
            time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def append(path: Path, data: bytes) -> None:
    """Append `data` in one write and sync it. First ends an incomplete last line of an earlier write.

    The caller holds a lock against other writers. Raises: OSError; then nothing of `data` is in the file.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        size = info.st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        try:
            if os.write(fd, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the meaning of a short write to a file
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
        if not size:
            _sync_folder(path.parent)
    finally:
        os.close(fd)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_private(path: Path, limit: int) -> bytes:
    """The file's last bytes, at most `limit`. Does not follow a link or wait for a FIFO. Raises: OSError, also for anything but a
    plain file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        if (size := info.st_size) > limit:
            file.seek(size - limit)
            file.readline()  # the rest of a line that began before
        return file.read(limit)
