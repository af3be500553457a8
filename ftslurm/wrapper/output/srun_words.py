"""What srun says while a step starts, where our stderr, which is also srun's, is a file: nobody else names the node on which a
container did not start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ftslurm.errors import UsageError
from ftslurm.model.events import TasksEnded
from ftslurm.model.exits import STEPD_ERROR
from ftslurm.model.nodes import expand

# `srun: error: n[2-3]: tasks 2-5: Exited with exit code 1`; seen on 22.05.
_ENDED = re.compile(r"^srun: error: ([^\s:]+): tasks? [\d,-]+: \S.*$", re.MULTILINE)
# Slurm's helpers speak of themselves in the first two; what enroot said has a mark of its own.
_WHY = re.compile(rf"^{STEPD_ERROR}(?!spank: |Failed to invoke)(?:(pyxis): +)?(.*)$", re.MULTILINE)
_IDLE_WORDS = re.compile(r"child \d+ failed with|printing enroot log file|task_init\(\) failed")
MOST_BYTES = 64 << 10
WHY_MOST = 300


class SrunWords:
    """path: of our stderr, empty if it is no file."""

    def __init__(self, path: str) -> None:
        self._path, self._from = path, 0

    def begin(self) -> None:
        """A step is about to be launched: what is there by now is not of it."""
        self._from = self._size()

    def look(self) -> Sequence[TasksEnded]:
        """Never raises; at most one event, of all that was said since `begin`."""
        if not self._path or self._size() <= self._from:
            return ()
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ()
        try:
            said = os.pread(fd, MOST_BYTES, self._from).decode(errors="replace")
        except OSError:
            return ()
        finally:
            os.close(fd)
        nodes = ended_in(said)
        return (TasksEnded(nodes, why_in(said)),) if nodes else ()

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size if self._path else 0  # noqa: PTH116
        except OSError:
            return 0


def ended_in(said: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node for found in _ENDED.finditer(said) for node in _names(found[1])))


def _names(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except UsageError:  # a rank's own words may look like srun's
        return ()


def why_in(said: str) -> str:
    """The reason that people look for: of several lines the last one with enroot's mark of an error, else the first."""
    words = [f"{found[1]}: {found[2].strip()}" if found[1] else found[2].strip() for found in _WHY.finditer(said)]
    telling = [line for line in words if not _IDLE_WORDS.search(line)]
    marked = [line for line in telling if "[ERROR]" in line]
    return (marked[-1] if marked else telling[0] if telling else "")[:WHY_MOST]
