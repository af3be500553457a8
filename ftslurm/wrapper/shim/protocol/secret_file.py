"""The secret of an ftrun in a file of its user's: for a step that begins where there is no munge, and its folder is mounted."""

from __future__ import annotations

import os
import stat
import time

SECRET_BYTES = 32
SECRET_SEEN_S = 10.0  # for a file system on the network to show what another node has just made


def secret_at(path: str) -> bytes:
    """Read as nobody else may have laid it there: a plain file with one name, ours alone, in a folder that is ours alone.

    Raises: OSError, ValueError.
    """
    deadline = time.monotonic() + SECRET_SEEN_S
    while True:
        try:
            return _secret_in(path)
        except FileNotFoundError:
            if time.monotonic() >= deadline:
                raise OSError(f"{path}, the secret of this run, does not exist: is its folder mounted here?") from None
        time.sleep(0.1)


def _secret_in(path: str) -> bytes:
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _ours_alone(os.fstat(folder), os.path.dirname(path))
        # No FIFO holds us up.
        file = os.open(os.path.basename(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            found = os.fstat(file)
            _ours_alone(found, path)
            secret = os.read(file, SECRET_BYTES + 1)
        finally:
            os.close(file)
    finally:
        os.close(folder)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or len(secret) != SECRET_BYTES:
        raise ValueError(f"{path} does not hold the secret of a run")
    return secret


def _ours_alone(found: os.stat_result, path: str) -> None:
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ValueError(f"{path} belongs to another user or is open to others")
