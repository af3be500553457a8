"""How many files and connections this process may open: one for each rank and node of a job."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# With an unlimited hard limit, programs allocate tables for it, or close every number below it.
ENOUGH = 1 << 17
# This process, or the whole machine, has no descriptor left.
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_AS_STARTED = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Raise the soft limit to the hard limit, as srun does for itself. A login shell's usual 1024 are too few for 1,000 ranks."""
    soft, hard = _AS_STARTED
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the limit stays; in a large job, ranks report that they cannot reach ftrun
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_limit() -> None:
    """Restore the limit in a child that passes its limits on to the ranks."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _AS_STARTED)


def room() -> int:
    """How many more descriptors this process may open now; ENOUGH if unlimited."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if limit == resource.RLIM_INFINITY else min(limit, ENOUGH)
    try:
        return max(0, most - len(list(Path("/proc/self/fd").iterdir())))
    except OSError as error:
        return 0 if error.errno in OUT_OF_DESCRIPTORS else most


class Spares:
    """Descriptors in reserve, for what must not fail when all others are used."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._held: list[int] = []
        self._take()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Meanwhile this many descriptors are free."""
        self.close()
        try:
            yield
        finally:
            self._take()

    def close(self) -> None:
        """Close all; may be called twice."""
        while self._held:
            os.close(self._held.pop())

    def _take(self) -> None:
        """Open as many as possible; those that another thread has used meanwhile are opened another time."""
        with suppress(OSError):
            while len(self._held) < self.count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def __del__(self) -> None:
        self.close()
