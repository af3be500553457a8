"""Where a stream of the command goes: the shim's own, or a file of the rank's."""

from __future__ import annotations

import errno
import os
import select


def open_streams() -> tuple[int, ...]:
    """Which of stdout and stderr we were given. The numbers of those that we were not are taken now, so that nothing of
    ours gets them; the command finds them closed all the same."""
    missing = []
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        missing.append(fd)
    os.close(fd)
    return tuple(fd for fd in (1, 2) if fd not in missing)


def complain(text: str) -> None:
    """A line on stderr, if it can be had without waiting: it may be said by the one who has to stop the rank. Nothing in it
    rules a terminal."""
    text = "".join(char if char.isprintable() else "?" for char in text)
    print_at_once(2, f"{text}\n".encode(errors="replace"))


def print_at_once(fd: int, line: bytes) -> None:
    """Or not at all, where that would wait for who reads it."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    try:
        if poll.poll(0):
            os.write(fd, line)
    except OSError:
        pass  # nobody listens


def same_file(one: int, other: int) -> bool:
    here, there = os.fstat(one), os.fstat(other)
    return (here.st_dev, here.st_ino, here.st_rdev) == (there.st_dev, there.st_ino, there.st_rdev)


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


class Target:
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
        rest, self._rest = self._rest, b""
        if rest:
            self._write(self._label + rest + b"\n")
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


def open_file(path: str, label: str) -> Target:
    """Open it for appending; creates its folder. Raises: OSError."""
    folder = os.path.dirname(path) or "."
    make_folder(folder)
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
    return Target(fd, False, label.encode(errors="replace"), mine=True)


def make_folder(path: str) -> None:
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
