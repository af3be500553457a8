"""The shim's own stdout and stderr."""

from __future__ import annotations

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
