"""Where input of a local step comes from and its output goes: labels, files by pattern, and stdin for all."""

from __future__ import annotations

import os
import select
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ftslurm.errors import LaunchFailed, UsageError
from ftslurm.launchers.local_layout import LocalLayout, Simulated, TaskPlace
from ftslurm.launchers.rank_logs import StreamKind, StreamTarget, read_target
from ftslurm.launchers.srun_options import has_flag, option_value
from ftslurm.model.values import Value

MAX_LINE_BYTES = 1 << 16  # of a line that does not end, more is not kept
MAX_BUFFERED_BYTES = 1 << 20  # of one stream
READ_BYTES = 1 << 16
ATOMIC_BYTES = select.PIPE_BUF  # poll(2) calls a pipe writable when it takes this much without blocking


def _is_other(target: StreamTarget, place: TaskPlace) -> bool:
    """Does the target name one other task?"""
    return target.kind is StreamKind.ONE and target.task != place.rank


def pattern_values(env: Mapping[str, str], simulated: Simulated, place: TaskPlace, user: str) -> dict[str, str]:
    """The letters of srun(1) "FILENAME PATTERN". Where srun prints its own "no value", so do we: scripts know the names."""
    return {
        "j": str(simulated.job), "J": f"{simulated.job}.{simulated.step}", "s": str(simulated.step),
        "A": env.get("SLURM_ARRAY_JOB_ID", str(simulated.job)), "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "x": env.get("SLURM_JOB_NAME", "(null)"), "u": user,
        "t": str(place.rank), "n": str(place.slot), "N": place.node,
    }  # fmt: skip


class Labeller:
    """The output of one task, line by line behind its rank."""

    def __init__(self, rank: int, width: int) -> None:
        self._prefix = b"%*d: " % (width, rank)
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= MAX_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return self._label(lines)

    def finish(self) -> bytes:
        """Write the last line if it has no newline."""
        rest, self._rest = self._rest, b""
        return self._label([rest] if rest else [])

    def _label(self, lines: Iterable[bytes]) -> bytes:
        return b"".join([self._prefix + line + b"\n" for line in lines])


class Sink:
    """A file of ours that lines go to, one whole line after the other, and never so that the loop would block."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pending = bytearray()
        self._broken = False
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def full(self) -> bool:
        return len(self.pending) >= MAX_BUFFERED_BYTES

    def add(self, data: bytes) -> None:
        if not self._broken:
            self.pending += data

    def write(self) -> None:
        if not self._poll.poll(0):  # stdout and stderr may be one pipe, and the other has just filled it
            return
        try:
            del self.pending[: os.write(self.fd, self.pending[:ATOMIC_BYTES])]
        except BlockingIOError:
            pass
        except OSError:  # the reader went away or the disk is full: srun lets the tasks run on, unheard
            self._broken = True
            self.pending.clear()


class Feed(Value, frozen=False):
    """A task's stdout or stderr on its way to a sink."""

    fd: int
    labeller: Labeller
    sink: Sink
    ended: bool = False

    def read(self) -> None:
        data = os.read(self.fd, READ_BYTES)
        self.sink.add(self.labeller.feed(data) if data else self.labeller.finish())
        if not data:
            self.close()

    def close(self) -> None:
        if not self.ended:
            os.close(self.fd)
        self.ended = True


class Broadcast:
    """Our stdin for every task that takes it. Who lags behind stops the others only while a bounded buffer is full."""

    def __init__(self, source: int, pipes: Iterable[int]) -> None:
        self.source = source
        self._ended = False
        self._queues: dict[int, deque[bytes]] = {pipe: deque() for pipe in pipes}
        self._waiting: Counter[int] = Counter()
        for pipe in self._queues:
            os.set_blocking(pipe, False)

    @property
    def wants_input(self) -> bool:
        lagging = max((self._waiting[pipe] for pipe in self._queues), default=MAX_BUFFERED_BYTES)
        return not self._ended and lagging < MAX_BUFFERED_BYTES

    def pipes(self) -> list[tuple[int, bool]]:
        """Every pipe whose task still listens, and whether something waits to be written there."""
        return [(pipe, bool(queue)) for pipe, queue in self._queues.items()]

    def read(self) -> None:
        try:
            data = os.read(self.source, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # EIO: a terminal, and we are in the background
            data = b""
        self._ended = not data
        for pipe, queue in tuple(self._queues.items()):
            if data:
                queue.append(data)
                self._waiting[pipe] += len(data)
            elif not queue:
                self.drop(pipe)

    def write(self, pipe: int) -> None:
        queue = self._queues[pipe]
        try:
            written = os.write(pipe, queue[0])
        except BlockingIOError:
            return
        except OSError:  # the task closed its end
            self.drop(pipe)
            return
        self._waiting[pipe] -= written
        rest = queue.popleft()[written:]
        if rest:
            queue.appendleft(rest)
        if self._ended and not queue:
            self.drop(pipe)

    def drop(self, pipe: int) -> None:
        """Stop writing to this pipe; a second call does nothing."""
        if self._queues.pop(pipe, None) is not None:
            os.close(pipe)

    def close(self) -> None:
        for pipe in tuple(self._queues):
            self.drop(pipe)


class Stdio:
    """Opens all that the tasks read and write, before the first of them starts."""

    def __init__(self, options: Sequence[str], layout: LocalLayout, folder: Path, name: Callable[[str, TaskPlace], str]) -> None:
        """folder: of the tasks. name: the file that a pattern means for a task. Raises: LaunchFailed for a file, UsageError."""
        self.feeds: list[Feed] = []
        self.sinks: dict[int, Sink] = {}
        self.broadcast: Broadcast | None = None
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

    def sink(self, fd: int) -> Sink:
        return self.sinks.setdefault(fd, Sink(fd))

    def started(self) -> None:
        """Close our copies of the tasks' ends, which would hide when a task closes its own."""
        for fd in (*self._lent, *self._files.values()):
            if fd not in self.sinks and not (self.broadcast and fd == self.broadcast.source):
                os.close(fd)

    def no_more_input(self) -> None:
        if self.broadcast:
            self.broadcast.close()

    def no_more_output(self) -> None:
        for feed in self.feeds:
            feed.close()

    @property
    def unread(self) -> bool:
        """Does output wait for the reader of our stream?"""
        return any(sink.pending for sink in self.sinks.values())

    @property
    def flowing(self) -> bool:
        """Is there output that has not been delivered?"""
        return self.unread or any(not feed.ended for feed in self.feeds)

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
        self.feeds.append(Feed(reading, Labeller(place.rank, len(str(self._layout.size - 1))), self.sink(fd)))
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
        self.broadcast = Broadcast(source, [writing for _, writing in pipes.values()])
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
