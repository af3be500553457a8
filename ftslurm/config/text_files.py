"""Files that a user or a site names: read whole, and never more of them than such a file can hold."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ftslurm.errors import PolicyError

MAX_BYTES = 1 << 20


def read_text(path: str | Path, what: str, only_roots: bool = False) -> str:
    """what: `the policy`, for the message. only_roots: root obeys it, so nobody else may be able to write it, nor make root wait.

    Raises: PolicyError for a file that cannot be read, is too large, is not text, or is others' to write.
    """
    try:
        with open(path, "rb", opener=_without_waiting if only_roots else None) as file:
            if only_roots:
                _check_only_roots(os.fstat(file.fileno()), path, what)
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"{what} {path} cannot be read: {error.strerror}", hint="correct the path") from None
    if len(data) > MAX_BYTES:
        raise PolicyError(f"{what} {path} is larger than 1 MiB", hint="is it the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PolicyError(f"{what} {path} is not text (UTF-8)", hint="is it the right file?") from None


def _without_waiting(path: str, flags: int) -> int:
    """Nor does a terminal become ours. It inherits nothing, as with open()."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _check_only_roots(info: os.stat_result, path: str | Path, what: str) -> None:
    """Asked of the open file, which nobody can exchange. Raises: PolicyError."""
    if not stat.S_ISREG(info.st_mode):
        raise PolicyError(f"{what} {path} is not a plain file", hint="correct the path")
    if info.st_uid not in (0, os.geteuid()) or stat.S_IMODE(info.st_mode) & 0o022:
        raise PolicyError(f"{what} {path} can be written by users other than root", hint=f"chown root {path}; chmod go-w {path}")
