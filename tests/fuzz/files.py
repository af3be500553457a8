"""The files that parsers read here."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="ftslurm-fuzz-")


def folder() -> Path:
    """Gone with the process."""
    return Path(_folder().name)


def written(data: bytes, name: str) -> Path:
    """A file of these bytes, the same one for every example."""
    path = folder() / name
    path.write_bytes(data)
    path.chmod(0o600)
    return path
