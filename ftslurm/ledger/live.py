"""How people who control or watch a job reach its ftrun: by records in its ledger, and by two small files beside it.

`<ledger>.watch` is made by ftrun and written by whoever watches, every few seconds; ftrun opens it (which on NFS asks the server)
and sees that it has changed: no clock is compared, and nothing is told while nobody watches. `<ledger>.live` is replaced
as a whole by ftrun. Both are the owner's alone; nothing that is judged depends on them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ftslurm.errors import StateError, WireError
from ftslurm.ledger.journal import Journal, from_line
from ftslurm.model.folds.control import State
from ftslurm.model.folds.history import History, fold
from ftslurm.model.messages import BOUNDS, Live
from ftslurm.model.plain import from_plain, to_plain
from ftslurm.model.record import RequestAnswered, Requested
from ftslurm.model.values import replace
from ftslurm.system.files import info_of, open_plain, read_private, replace_file

# --- how a request of `ftslurm control` comes into the ledger, how the ftrun of the job notices it, and how the answer is
# found
# The ledger itself is the way: it is the owner's alone (folder 0700, file 0600), it is on the file system that login nodes
# and all nodes of the job see, it is there when no ftrun runs, and what is in it is written down before anybody obeys. A file
# of its own for each request would have to be guarded in the same way a second time, and a call to ftrun would need a task of
# the job.

# Of new lines read at a time. A request takes some 400 bytes; what is written there in bulk holds nothing up for long.
TAIL_MAX = 4 << 20
# In one request; each becomes a part of the list of nodes that Slurm is given.
NODES_MAX = 1000


def ask_ftrun(journal: Journal, make: Callable[[History], Requested]) -> Requested:
    """Write down what `make` makes of the job's past; its number is the next one. Raises: StateError, and what `make` raises."""
    with journal.held():
        history = fold(journal.read().records)
        request = replace(make(history), number=1 + max(history.control.requests, default=0))
        journal.append([request])
    return request


def answer_to(journal: Journal, number: int) -> RequestAnswered | None:
    """The answer, None while there is none. Raises: StateError."""
    answers = (r for r in journal.read().records if isinstance(r, RequestAnswered) and r.number == number)
    return next(answers, None)


class RequestReader:
    """Requests that entered the ledger since the last look; at first all without an answer.

    The file is opened anew each time, which makes a network file system ask its server.
    """

    def __init__(self, path: Path, owner: int | None = None) -> None:
        self._path = path
        self._owner = os.getuid() if owner is None else owner
        self._offset = -1

    def look(self) -> Sequence[Requested]:
        """Raises: OSError, for a file that is not the owner's too."""
        with open_plain(self._path) as file:
            info = os.fstat(file.fileno())
            if info.st_uid != self._owner or info.st_mode & 0o022:
                raise PermissionError(f"{self._path} is not ours alone")
            if self._offset < 0:
                return self._open_ones(info.st_size)
            self._offset = min(self._offset, info.st_size)
            file.seek(self._offset)
            data = file.read(TAIL_MAX)
        whole = data.rfind(b"\n") + 1 or (TAIL_MAX if len(data) == TAIL_MAX else 0)  # or a line without end
        self._offset += whole
        lines = (line for line in data[:whole].splitlines() if b'"Requested"' in line)
        return [record for record in map(from_line, lines) if isinstance(record, Requested)]

    def _open_ones(self, size: int) -> Sequence[Requested]:
        try:
            control = fold(Journal(self._path).read().records).control
        except StateError as error:
            raise OSError(str(error)) from None
        self._offset = size
        return [request.asked for request in control.of(State.OPEN)]


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


def write_request(ledger: Path, request: dict[str, Any]) -> None:
    """Tell ftrun that someone watches, and what else they want. Raises: OSError, also if no ftrun has made the file."""
    data = json.dumps(request, separators=(",", ":")).encode()[:REQUEST_BYTES]
    fd = os.open(request_path(ledger), os.O_WRONLY | _SAFE)
    try:
        if not _is_ours(os.fstat(fd)):
            raise PermissionError("it is not a plain file of ours")
        os.pwrite(fd, data.ljust(REQUEST_BYTES), 0)  # in one write, and always as long: no reader meets half of it
    finally:
        os.close(fd)


def live_changed(ledger: Path) -> Changed | None:
    """A value that changes with what ftrun writes, which takes a tenth of a second to read at thousands of ranks."""
    return _changed(info_of(live_path(ledger)))


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
    info = info_of(request_path(ledger))
    return _changed(info) if info is not None and _is_ours(info) else None


def _changed(info: os.stat_result | None) -> Changed | None:
    return (info.st_ino, info.st_mtime_ns, info.st_ctime_ns) if info is not None else None


def read_request(ledger: Path) -> dict[str, Any]:
    """What the watcher asks for; empty if it cannot be read."""
    try:
        found = json.loads(read_private(request_path(ledger), REQUEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_live(ledger: Path, live: Live) -> None:
    """Raises: OSError."""
    replace_file(live_path(ledger), json.dumps(to_plain(live), separators=(",", ":")).encode())


def remove_live(ledger: Path, request: bool = False) -> None:
    """Remove the file that ftrun wrote; with `request` also the watcher's. Never raises."""
    for path in (live_path(ledger), *([request_path(ledger)] if request else [])):
        with suppress(OSError):
            path.unlink()


def _is_ours(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid() and info.st_nlink == 1
