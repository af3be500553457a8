"""A file in the state folder that all jobs of one user share: lines, append-only."""

from __future__ import annotations

from pathlib import Path

from ftslurm.errors import StateError
from ftslurm.system.files import append, private_folder, read_private

LOCK_TIMEOUT_S = 10.0


class MemoryFile:
    """max_bytes: of a longer file, only the end is read."""

    def __init__(self, root: Path, name: str, max_bytes: int) -> None:
        self.root = root
        self.path = root / name
        self._max_bytes = max_bytes

    def read(self) -> list[bytes]:
        """The lines in the order written, none where there is no file. Raises: StateError."""
        try:
            return read_private(self.path, self._max_bytes).splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateError(f"{self.path} cannot be read: {error.strerror}", hint="check its owner and rights") from None

    def add(self, lines: bytes) -> None:
        """Raises: StateError."""
        from filelock import FileLock, Timeout  # 50 ms to load

        private_folder(self.root)
        try:
            with FileLock(self.path.with_suffix(".lock"), timeout=LOCK_TIMEOUT_S, mode=0o600):
                append(self.path, lines)
        except Timeout:
            raise StateError(f"{self.path} is locked by another program", hint="try again") from None
        except OSError as error:
            raise StateError(f"{self.path} cannot be written: {error.strerror}", hint="check free space and rights") from None
