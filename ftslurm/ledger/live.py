"""Two small files beside a ledger, for people who watch the job: who watches says so in one, and ftrun tells in the other.

`<ledger>.watch` is made by ftrun and written by whoever watches, every few seconds; ftrun opens it (which on NFS asks the server)
and sees that it has changed: no clock is compared, and nothing is told while nobody watches. `<ledger>.live` is replaced
as a whole by ftrun. Both are the owner's alone; nothing that is judged depends on them.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftslurm.errors import WireError
from ftslurm.model.messages.live import BOUNDS, Live
from ftslurm.model.plain import from_plain, to_plain
from ftslurm.system.files import read_private

REQUEST_BYTES = 4096
# Ten thousand ranks and their devices are 2 MB; stacks of a node 256 KB.
LIVE_BYTES = 32 << 20
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

Changed = tuple[int, int, int]


def request_path(ledger: Path) -> Path:
    return ledger.with_suffix(".watch")


def live_path(ledger: Path) -> Path:
    return ledger.with_suffix(".live")


# --- of who watches


def ask(ledger: Path, request: dict[str, Any]) -> None:
    """Tell ftrun that someone watches, and what else they want. Raises: OSError, also if no ftrun has made the file."""
    data = json.dumps(request, separators=(",", ":")).encode()[:REQUEST_BYTES]
    fd = os.open(request_path(ledger), os.O_WRONLY | _SAFE)
    try:
        if not _is_ours(fd):
            raise PermissionError("it is not a plain file of ours")
        os.pwrite(fd, data.ljust(REQUEST_BYTES), 0)  # in one write, and always as long: no reader meets half of it
    finally:
        os.close(fd)


def read_live(ledger: Path) -> Live | None:
    """What ftrun wrote last; None if there is nothing, or it cannot be read."""
    try:
        return from_plain(Live, json.loads(read_private(live_path(ledger), LIVE_BYTES)), BOUNDS)
    except (OSError, ValueError, RecursionError, WireError):
        return None


# --- of ftrun


def make_request(ledger: Path) -> None:
    """Make the file that watchers write. Raises: OSError."""
    fd = os.open(request_path(ledger), os.O_WRONLY | os.O_CREAT | _SAFE, 0o600)
    os.close(fd)


def request_changed(ledger: Path) -> Changed | None:
    """A value that changes while someone watches. None: the file does not exist, or is not ours."""
    try:
        fd = os.open(request_path(ledger), os.O_RDONLY | _SAFE)
    except OSError:
        return None
    try:
        info = os.fstat(fd)
        return (info.st_ino, info.st_mtime_ns, info.st_ctime_ns) if _is_ours(fd) else None
    finally:
        os.close(fd)


def read_request(ledger: Path) -> dict[str, Any]:
    """What the watcher asks for; empty if it cannot be read."""
    try:
        found = json.loads(read_private(request_path(ledger), REQUEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_live(ledger: Path, live: Live) -> None:
    """Raises: OSError."""
    path = live_path(ledger)
    new = path.with_suffix(f".{os.getpid()}.live-new")
    data = json.dumps(to_plain(live), separators=(",", ":")).encode()
    with suppress(OSError):
        new.unlink()  # of one that was killed at it
    try:
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def remove(ledger: Path, request: bool = False) -> None:
    """Remove the file that ftrun wrote; with `request` also the watcher's. Never raises."""
    for path in (live_path(ledger), *([request_path(ledger)] if request else [])):
        with suppress(OSError):
            path.unlink()


def _is_ours(fd: int) -> bool:
    info = os.fstat(fd)
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_nlink == 1
