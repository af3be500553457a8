"""Files that a user or a site names: read whole, and never more of them than such a file can hold."""

from __future__ import annotations

from pathlib import Path

from ftslurm.errors import PolicyError

MAX_BYTES = 1 << 20


def read_text(path: str | Path, what: str) -> str:
    """what: `the policy`, for the message. Raises: PolicyError for a file that cannot be read, is too large, or is not text."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise PolicyError(f"{what} {path} cannot be read: {error.strerror}", hint="correct the path") from None
    if len(data) > MAX_BYTES:
        raise PolicyError(f"{what} {path} is larger than 1 MiB", hint="is it the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PolicyError(f"{what} {path} is not text (UTF-8)", hint="is it the right file?") from None
