"""How a request of `ftslurm control` comes into the ledger, how the ftrun of the job notices it, and how the answer is found.

The ledger itself is the way: it is the owner's alone (folder 0700, file 0600), it is on the file system that login nodes and all
nodes of the job see, it is there when no ftrun runs, and what is in it is written down before anybody obeys. A file of its own
for each request would have to be guarded in the same way a second time, and a call to ftrun would need a task of the job.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ftslurm.errors import StateError
from ftslurm.ledger.journal import Journal, from_line
from ftslurm.model.folds.control import State
from ftslurm.model.folds.history import History, fold
from ftslurm.model.record import RequestAnswered, Requested

# Of new lines read at a time. A request takes some 400 bytes; what is written there in bulk holds nothing up for long.
TAIL_MAX = 4 << 20
# Others write at the same moment: ftrun, another request.
TRIES = 50
# In one request; each becomes a part of the list of nodes that Slurm is given.
NODES_MAX = 1000


def ask(journal: Journal, make: Callable[[History], Requested]) -> Requested:
    """Write down what `make` makes of the job's past; its number is the next one. Raises: StateError, and what `make` raises."""
    for _ in range(TRIES):
        history = fold(journal.read().records)
        asked = make(history)
        request = replace(asked, number=1 + max(history.control.requests, default=0))
        if journal.append_next([request]):
            return request
    raise StateError(f"the ledger {journal.path} changes all the time", hint="try again in a moment")


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
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != self._owner or info.st_mode & 0o022:
                raise PermissionError(f"{self._path} is not a plain file that is ours alone")
            if self._offset < 0:
                return self._open_ones(info.st_size)
            if info.st_size <= self._offset:
                self._offset = min(self._offset, info.st_size)
                return ()
            file.seek(self._offset)
            data = file.read(TAIL_MAX)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == TAIL_MAX:
            whole = len(data)  # a line without end
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
