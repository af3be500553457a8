"""Files and links of the kernel's, of processes that may go any moment: empty for what is not there."""

# Descriptors, links and files of the kernel, of processes that may go any moment:
# ruff: noqa: PTH115, PTH116

from __future__ import annotations

import os

from ftslurm.sdk.page import SIZE


def read_text(path: str, limit: int = 1 << 16) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(limit).decode(errors="replace").strip()
    except OSError:
        return ""


def read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_bytes(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return os.pread(fd, SIZE, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
