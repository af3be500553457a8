"""Evidence on hung ranks, taken before they were stopped: text files beside the ledger, limited in number and size."""

from __future__ import annotations

import os
from pathlib import Path

from ftslurm.errors import StateError
from ftslurm.model.text import visible
from ftslurm.system.files import private_folder, read_private

# Of one job; a job that hangs again and again leaves the same behind each time.
MAX_FILES, MAX_BYTES = 200, 1 << 18


def folder_of(ledger: Path) -> Path:
    return ledger.with_suffix(".evidence")


def keep(ledger: Path, attempt: int, node: str, text: str) -> Path | None:
    """Write the text; gives the file, or None if the job has reached its limit. Raises: StateError."""
    folder = private_folder(folder_of(ledger))
    safe = "".join(char if char.isalnum() or char in "_-." else "-" for char in node)[:64] or "node"
    path = folder / f"attempt-{attempt}.{safe}.txt"
    if sum(1 for _ in folder.iterdir()) >= MAX_FILES:
        return None
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            if os.fstat(fd).st_size < MAX_BYTES:
                file.write(visible(text, lines=True).encode()[:MAX_BYTES])
    except OSError as error:
        raise StateError(f"the evidence {path} cannot be written: {error.strerror}", hint="check free space and rights") from None
    return path


def kept_evidence(ledger: Path) -> tuple[Path, ...]:
    """All files of the job, sorted."""
    folder = folder_of(ledger)
    return tuple(sorted(folder.glob("*.txt"))) if folder.is_dir() else ()


def read(path: Path, limit: int) -> str:
    """The end of the file, at most `limit` bytes. Raises: OSError."""
    return read_private(path, limit).decode("utf-8", "replace")
