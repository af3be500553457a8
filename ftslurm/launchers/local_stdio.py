"""Where input of a local step comes from and its output goes: labels, files by pattern, and stdin for all."""

from __future__ import annotations

import os
import select
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

from ftslurm.errors import LaunchFailed, UsageError
from ftslurm.launchers.local_layout import LocalLayout, TaskPlace
from ftslurm.launchers.rank_logs import StreamKind, StreamTarget, read_target
from ftslurm.launchers.srun_options import has_flag, option_value

MAX_LINE_BYTES = 1 << 16  # of a line that does not end, more is not kept
READ_BYTES = 1 << 16
SLOW_READER_S = 0.1  # between two looks at one


def _is_other(target: StreamTarget, place: TaskPlace) -> bool:
    """Does the target name one other task?"""
    return target.kind is StreamKind.ONE and target.task != place.rank


def _wait_for(fd: int, events: int) -> None:
    poll = select.poll()
    poll.register(fd, events)
    poll.poll()


def write_all(fd: int, data: bytes) -> None:
    """Waits for who reads there. Raises: OSError."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # who shares it with us has set it so
            _wait_for(fd, select.POLLOUT)


def carry(source: int, prefix: bytes, to: int, one_at_a_time: Lock) -> None:
    """Carry a task's stdout or stderr to where it goes, line by line behind its rank. It may wait there for who reads.
    one_at_a_time: of all that carry to there."""
    with open(source, "rb") as lines:
        while line := lines.readline(MAX_LINE_BYTES):
            with one_at_a_time, suppress(OSError):  # no reader, or a full disk: srun lets the tasks run on, unheard
                write_all(to, prefix + line.removesuffix(b"\n") + b"\n")


def _broadcast(source: int, pipes: list[int]) -> None:
    """Our stdin for every task that takes it. Who lags behind stops the others only while its pipe is full."""
    while pipes and (data := _read(source)):
        for pipe in tuple(pipes):
            try:
                write_all(pipe, data)
            except OSError:  # the task closed its end
                pipes.remove(pipe)
                os.close(pipe)
    for pipe in pipes:
        os.close(pipe)


def _read(source: int) -> bytes:
    while True:
        _wait_for(source, select.POLLIN)
        try:
            return os.read(source, READ_BYTES)
        except BlockingIOError:  # another reader was quicker
            pass
        except OSError:  # EIO: a terminal, and we are in the background
            return b""


class Stdio:
    """Opens all that the tasks read and write, before the first of them starts."""

    def __init__(self, options: Sequence[str], layout: LocalLayout, folder: Path, name: Callable[[str, TaskPlace], str]) -> None:
        """folder: of the tasks. name: the file that a pattern means for a task. Raises: LaunchFailed for a file, UsageError."""
        self._carriers: list[Thread] = []
        self._locks: defaultdict[int, Lock] = defaultdict(Lock)  # by where they carry to
        self._broadcast, self._source = Thread(), 0  # of nothing
        self._layout = layout
        self._folder = folder
        self._name = name
        self._label = has_flag(options, "label")
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | _open_mode(option_value(options, "open-mode"))
        self._files: dict[tuple[Path, int], int] = {}
        self._lent: list[int] = []  # the tasks' ends of what we hold the other end of
        places = layout.places()
        stdin = self._inputs(read_target(option_value(options, "input"), layout.size), places)
        outputs = [self._outputs(options, place) for place in places]
        self.of = {place.rank: (stdin[place.rank], *outputs[place.rank]) for place in places}

    def start(self) -> None:
        """Close our copies of the tasks' ends, which would hide when a task closes its own; then carry."""
        for fd in {*self._lent, *self._files.values()} - {*self._locks, self._source}:
            os.close(fd)
        for thread in (*self._carriers, self._broadcast):
            thread.start()

    def deliver(self, limit_s: float) -> None:
        """Wait for what the tasks have printed to be read, however slowly. limit_s: for a process that is none of ours and holds
        a pipe."""
        for carrier in self._carriers:
            until = time.monotonic() + limit_s
            while carrier.is_alive() and time.monotonic() < until:
                carrier.join(SLOW_READER_S)
                until = time.monotonic() + limit_s if any(lock.locked() for lock in self._locks.values()) else until

    def _outputs(self, options: Sequence[str], place: TaskPlace) -> tuple[int, int]:
        size = self._layout.size
        out = read_target(option_value(options, "output"), size)
        asked = option_value(options, "error")
        stdout = self._output(out, 1, 1, place)
        if asked is None:  # -o 1 takes both streams of task 1 to our stdout
            return stdout, self._output(out, 2, 1 if out.kind is StreamKind.ONE else 2, place)
        return stdout, self._output(read_target(asked, size), 2, 2, place)

    def _output(self, target: StreamTarget, stream: int, own: int, place: TaskPlace) -> int:
        if target.kind is StreamKind.NONE or _is_other(target, place):
            return self._silence()
        fd = own
        if target.kind in (StreamKind.FILE, StreamKind.EACH):
            fd = self._open(self._path(target, place), self._flags, ("stdin", "stdout", "stderr")[stream])
        return self._labelled(fd, place) if self._label else fd

    def _labelled(self, fd: int, place: TaskPlace) -> int:
        reading, writing = os.pipe()
        prefix = b"%*d: " % (len(str(self._layout.size - 1)), place.rank)
        self._carriers.append(Thread(target=carry, args=(reading, prefix, fd, self._locks[fd]), daemon=True))
        self._lent.append(writing)
        return writing

    def _inputs(self, target: StreamTarget, places: Sequence[TaskPlace]) -> dict[int, int]:
        if target.kind is StreamKind.EACH:
            return {place.rank: self._open(self._path(target, place), os.O_RDONLY, "stdin") for place in places}
        readers = [place.rank for place in places if target.kind is not StreamKind.NONE and not _is_other(target, place)]
        given = {place.rank: self._silence() for place in places if place.rank not in readers}
        if not readers:
            return given
        source = self._open(self._path(target, places[0]), os.O_RDONLY, "stdin") if target.kind is StreamKind.FILE else 0
        # srun's tasks never have the terminal itself: in their own session they could not become its foreground.
        if len(readers) == 1 and not os.isatty(source):
            return {**given, readers[0]: source}
        pipes = {rank: os.pipe() for rank in readers}
        self._source = source
        self._broadcast = Thread(target=_broadcast, args=(source, [writing for _, writing in pipes.values()]), daemon=True)
        self._lent += [reading for reading, _ in pipes.values()]
        return {**given, **{rank: reading for rank, (reading, _) in pipes.items()}}

    def _silence(self) -> int:
        return self._open(Path(os.devnull), os.O_RDWR, "null")

    def _path(self, target: StreamTarget, place: TaskPlace) -> Path:
        """The path: srun opens what all tasks share, slurmstepd opens the rest in the folder of the tasks."""
        name = self._name(target.pattern, place)
        return self._folder / name if target.kind is StreamKind.EACH else Path(name).absolute()

    def _open(self, path: Path, flags: int, what: str) -> int:
        if (path, flags) not in self._files:
            try:
                self._files[path, flags] = os.open(path, flags, 0o666)
            except OSError as error:
                raise LaunchFailed(f"the {what} file {path} cannot be opened: {error.strerror}") from None
        return self._files[path, flags]


def _open_mode(text: str | None) -> int:
    """Files are begun anew unless --open-mode says otherwise: JobFileAppend is 0 by default (slurm.conf(5))."""
    mode = {"append": "a", "truncate": "t"}.get((text or "t").lower(), text or "t")
    if mode not in ("a", "t"):
        raise UsageError(f"--open-mode: `{mode[:40]}` is neither append nor truncate")
    return os.O_TRUNC if mode == "t" else 0
