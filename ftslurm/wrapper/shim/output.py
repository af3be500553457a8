"""The command's output: where it goes, what is kept of it, and when it has been silent for too long."""

from __future__ import annotations

import errno
import os
import select
import time
from _thread import allocate_lock, start_new_thread
from _thread import error as ThreadError
from _thread import stack_size as set_stack_size

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING
from ftslurm.wrapper.shim.processes import RESCAN_S
from ftslurm.wrapper.shim.tail import TAIL_MAX, WORDS_MAX, Piece, Tail, last_words

if TYPE_CHECKING:
    from typing import Any


# --- Where a stream of the command goes: the shim's own, or a file of the rank's.


def open_streams() -> tuple[int, ...]:
    """Which of stdout and stderr we were given. The numbers of those that we were not are taken now, so that nothing of
    ours gets them; the command finds them closed all the same."""
    missing = []
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        missing.append(fd)
    os.close(fd)
    return tuple(fd for fd in (1, 2) if fd not in missing)


def complain(text: str) -> None:
    """A line on stderr, if it can be had without waiting for who reads it: it may be said by the one who has to stop the rank.
    What could control a terminal becomes `?`."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    poll = select.poll()
    poll.register(2, select.POLLOUT)
    try:
        if poll.poll(0):
            os.write(2, f"{text}\n".encode(errors="replace"))
    except OSError:
        pass  # nobody listens


def terminal_like(fd: int) -> tuple[int, int]:
    """A pseudo terminal as that of `fd`, but one that changes nothing (srun --unbuffered): our end, the command's end."""
    import fcntl
    import termios

    ours, theirs = os.openpty()
    mode = termios.tcgetattr(fd)
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))
    return ours, theirs


EVERYBODY_WRITES = 0o002
STRANGERS = "it belongs to another user, or is not a file, in a folder that everybody may write to"
LABELLED_MOST = 1 << 16  # of a line that does not end, a progress bar, say: then it is broken


class _Target:
    """label: before each line, which is written whole then. mine: a file to be closed at the end. shared: by several ranks."""

    def __init__(self, fd: int, shared: bool, label: bytes = b"", mine: bool = False) -> None:
        self.fd = fd
        self._label = label
        self._mine = mine
        self._rest = b""
        self._terminal = os.isatty(fd)
        self._keeps_lines = shared and os.fstat(fd).st_mode & 0o170000 == 0o010000  # a pipe

    @property
    def waits(self) -> bool:
        """Does it wait for the end of a line?"""
        return bool(self._rest)

    def take(self, data: bytes) -> bool:
        """False when nobody listens any more: the command shall see then what it would have seen without us.

        A full or broken disk ends nothing: as with output that srun writes, the command runs on, unheard.
        """
        return self._write(self._labelled(data) if self._label else data)

    def end(self) -> None:
        """Write what is left: the stream has ended."""
        if self._rest:
            self._write(self._label + self._rest + b"\n")
            self._rest = b""  # only now: what has not been delivered is waited for
        if self._mine:
            os.close(self.fd)

    def _labelled(self, data: bytes) -> bytes:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) >= LABELLED_MOST:
            lines.append(self._rest)
            self._rest = b""
        return b"".join([self._label + line + b"\n" for line in lines])

    def _write(self, data: bytes) -> bool:
        view, done = memoryview(data), 0
        while done < len(data):
            end = self._end_of_write(data, done)
            try:
                done += os.write(self.fd, view[done:end])
            except BlockingIOError:  # who shares it with us has set it so
                ready = select.poll()
                ready.register(self.fd, select.POLLOUT)
                ready.poll()
            except OSError as error:
                return not (self._terminal or error.errno in (errno.EPIPE, errno.ECONNRESET))
        return True

    def _end_of_write(self, data: bytes, begin: int) -> int:
        """What is longer than PIPE_BUF ranks that share a pipe would tear apart: lines stay whole, as they were."""
        if not self._keeps_lines or len(data) - begin <= select.PIPE_BUF:
            return len(data)
        return data.rfind(b"\n", begin, begin + select.PIPE_BUF) + 1 or data.find(b"\n", begin) + 1 or len(data)


def open_file(path: str, label: str) -> _Target:
    """Open it for appending; creates its folder. Raises: OSError."""
    folder = os.path.dirname(path) or "."
    make_output_folder(folder)
    open_to_all = os.stat(folder).st_mode & EVERYBODY_WRITES
    # Of a FIFO that nobody reads we want an error, and not to wait.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(path, flags | (os.O_NOFOLLOW if open_to_all else 0), 0o666)
    found = os.fstat(fd)
    plain = found.st_mode & 0o170000 == 0o100000 and found.st_nlink == 1
    if open_to_all and not (plain and found.st_uid in (0, os.geteuid())):
        os.close(fd)
        raise PermissionError(errno.EACCES, STRANGERS, path)
    os.set_blocking(fd, True)
    return _Target(fd, False, label.encode(errors="replace"), mine=True)


def make_output_folder(path: str) -> None:
    """With what is above it. In a folder that everybody may write to (/tmp) somebody may have laid a link or a folder of theirs
    there, by which they choose which of our files we write to: then it is not ours to use. Raises: OSError."""
    place = "/"
    for part in os.path.abspath(path).split("/")[1:]:
        above, place = os.stat(place), os.path.join(place, part)
        if not os.path.lexists(place):
            try:
                os.mkdir(place)
            except FileExistsError:  # by another rank
                pass
        if above.st_mode & EVERYBODY_WRITES and os.lstat(place).st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EACCES, STRANGERS, place)


# --- Has the command printed nothing for too long?


class Silence:
    """Reports when the command has printed nothing for too long, and when it prints again."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._limit_s = 0.0
        self.since = 0.0  # monotonic: silence before does not count, as that of stopped processes
        self._told = False

    def watch(self, limit_s: float, since: float = 0.0) -> None:
        """From a start on; 0: no longer."""
        self._limit_s, self.since, self._told = limit_s, since, False

    def _silent_s(self, now: float) -> float:
        return min(self._output.silent_s(now), now - self.since)

    def wakes_in(self, now: float) -> float | None:
        if not self._limit_s:
            return None
        return 1.0 if self._told else max(0.0, self._limit_s - self._silent_s(now))

    def news(self, now: float) -> float | None:
        """Seconds of silence to tell, 0 when it is over; None while there is nothing new."""
        silent_s = self._silent_s(now) if self._limit_s else 0.0
        if self._told == (0 < self._limit_s <= silent_s):
            return None
        self._told = not self._told
        return silent_s if self._told else 0.0


READ_BYTES = 1 << 16  # what a pipe holds
STACK_BYTES = 256 << 10  # of a pump's thread; only what is touched becomes resident
# From a rank's end to the report, for what it wrote before to be read: a pump needs far less, but one that waits for a
# reader (srun is suspended) shall not hold the answer to a failure up.
SETTLE_S, SETTLE_STEP_S = 0.2, 0.001
# At the end, for a reader that is slow. Below `stop.kill_wait` and Slurm's KillWait of 30 s, after which it would be
# SIGKILL that ends us: what cannot be delivered by then belongs to a reader that does not read.
DELIVER_S = 10.0


class Pump:
    """Carries one stream of one attempt to where it goes, in a thread: the reader there may be slow, or stopped."""

    def __init__(self, source: int, targets: list[_Target], tail: Tail, earlier: list[Pump]) -> None:
        """earlier: what they still have to deliver to the same targets goes first. Raises: ThreadError."""
        self.targets = targets
        self._tail = tail
        self.ended = False
        self.heard_at = time.monotonic()
        self._source = source
        self._earlier = earlier
        self._lock = allocate_lock()  # around a read and the note of it, neither of which blocks
        self._carrying = False
        start_new_thread(self._run, ())

    def caught_up(self) -> bool:
        """Has everything written so far been read?"""
        with self._lock:
            return self.ended or not self._readable()

    def idle(self) -> bool:
        """Has everything been delivered, too?"""
        with self._lock:
            return self.ended or not (self._carrying or self._readable() or any(target.waits for target in self.targets))

    def pieces(self) -> tuple[list[Piece], list[Piece]]:
        with self._lock:
            return self._tail.pieces()

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        return any(events & select.POLLIN for _, events in poll.poll(0))

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        try:
            while self._take_and_give(poll):
                pass
        finally:
            for target in self.targets:
                target.end()
            with self._lock:
                self.ended = True
                os.close(self._source)

    def _take_and_give(self, poll: select.poll) -> bool:
        """False at the end: nobody holds the other side any more, or nobody reads ours."""
        poll.poll()
        with self._lock:
            try:
                data = os.read(self._source, READ_BYTES)
            except OSError:
                return False  # EIO: how a pseudo terminal says that its other side is closed
            if not data:
                return False
            self._tail.add(data, time.time())
            self.heard_at = time.monotonic()
            self._carrying = True
        while self._earlier:
            if self._earlier[0].idle():
                del self._earlier[0]
            else:
                time.sleep(RESCAN_S)
        heard = [target.take(data) for target in self.targets]
        self._carrying = False
        return any(heard)


class Output:
    """What becomes of the command's stdout and stderr: pumped, or handed through."""

    def __init__(self, streams: tuple[int, ...], shared: bool) -> None:
        """streams: those of 1 and 2 that were open when the shim began. shared: by several ranks."""
        self._streams = streams
        self._shared = shared
        self._pumps: list[Pump] = []  # of this attempt
        self._unended: list[Pump] = []  # of all attempts
        self.piped: tuple[int, ...] = ()  # if the command had a pipe as each of 1 and 2: 1 alone where it is one for both
        set_stack_size(STACK_BYTES)

    def lay(self, limit: int, logs: dict[str, Any] | None = None, there: dict[int, int] | None = None) -> list[tuple[int, int]]:
        """Our ends for the command, to be closed once it has them, and the descriptors that it shall have them as.

        limit: bytes to keep of each stream; 0: the command gets our own descriptors, and so it does where no pipe, terminal
        or thread can be made. It also gets a terminal that it reads from (srun --pty), which it controls itself.
        logs: files of the rank's own, "1" or "2" -> (path, label of lines there, do they go where our own stream goes as well,
        label of lines there). there: `piped` of the command that is to be started -> our ends, where it has its
        own already; those that are used go out of it.
        Raises: OSError for one that cannot be written.
        """
        files = {fd: tuple(logs[str(fd)]) for fd in (1, 2) if logs and str(fd) in logs}
        self._unended = [pump for pump in self._unended if not pump.ended]
        self._pumps = []
        ends: list[tuple[int, int]] = []
        streams = [fd for fd in self._streams if fd not in files and limit > 0 and not (os.isatty(fd) and os.isatty(0))]
        together = (
            os.path.sameopenfile(1, 2) if len(streams) == 2 else len(files) == 2 and files[1] == files[2] and not files[1][2]
        )
        opened = self._open(files, together)
        self.piped = ()
        for fd in sorted({*streams, *files}):
            if fd == 2 and together:  # one for both: so their order stays
                ends += [(end, 2) for end, _ in ends]
                continue
            try:
                ends += self._connect(
                    fd, opened.get(fd) or [_Target(fd, self._shared)], limit, there.pop(fd, None) if there else None
                )
            except OSError:
                continue
        self._unended += self._pumps
        laid = tuple(fd for fd in (1, 2) if fd in {*streams, *files} and not (fd == 2 and together))
        terminals = any(os.isatty(fd) for fd in self._streams)
        if len(self._pumps) == len(laid) and (together or laid == (1, 2)) and not terminals:
            self.piped = laid
        return ends

    def _open(self, files: dict[int, tuple[str, str, bool, str]], together: bool) -> dict[int, list[_Target]]:
        """Raises: OSError."""
        found: dict[int, list[_Target]] = {}
        for fd, (path, label, console, console_label) in files.items():
            if fd == 2 and together:
                continue
            try:
                found[fd] = [open_file(path, label)]
            except OSError:
                for targets in found.values():
                    targets[0].end()
                raise
            if console and fd in self._streams:
                found[fd].append(_Target(fd, self._shared, console_label.encode(errors="replace")))
        return found

    def _connect(self, fd: int, targets: list[_Target], limit: int, there: int | None) -> list[tuple[int, int]]:
        """A new pump for `fd`, from `there` if given; the command's end otherwise, and `fd`. Raises: OSError."""
        like = targets[0].fd == fd and os.isatty(fd)
        source, end = (there, -1) if there is not None else terminal_like(fd) if like else os.pipe()
        tail = Tail("out" if fd == 1 else "err", max(1, min(limit, TAIL_MAX)))
        try:
            fds = {target.fd for target in targets}
            earlier = [pump for pump in self._unended if fds & {target.fd for target in pump.targets}]
            self._pumps.append(Pump(source, targets, tail, earlier))
        except ThreadError as error:
            os.close(source)
            if there is None:
                os.close(end)
            raise OSError(errno.EAGAIN, str(error)) from None
        return [(end, fd)] if there is None else []

    def caught_up(self) -> bool:
        return all(pump.caught_up() for pump in self._pumps)

    def silent_s(self, now: float) -> float:
        """Seconds without output; 0 if the output does not pass through us."""
        return now - max((pump.heard_at for pump in self._pumps), default=now)

    def words(self) -> list[Piece]:
        """The last words of this attempt's command."""
        return last_words([pump.pieces() for pump in self._pumps], WORDS_MAX)

    def deliver(self, limit_s: float) -> None:
        """Wait until all output is delivered, `limit_s` seconds at most."""
        deadline = time.monotonic() + limit_s
        for pump in self._unended:
            while not pump.idle() and time.monotonic() < deadline:
                time.sleep(SETTLE_STEP_S)
