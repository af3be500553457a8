"""Signals to ftrun: queued, nothing else."""

from __future__ import annotations

import os
import signal
from types import FrameType

from ftslurm.wrapper.shim.signals import waking

SIGCHLD, SIGSTOP, SIGTSTP = int(signal.SIGCHLD), int(signal.SIGSTOP), int(signal.SIGTSTP)
# What srun passes on to its tasks, and Ctrl-C. Source: srun(1), SIGNALS.
_HANDLED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGCHLD, signal.SIGTSTP,
)  # fmt: skip


class Signals:
    """Number by number into a pair of sockets whose reading end is `fd`. Signals ignored at the start stay so (nohup)."""

    def __init__(self) -> None:
        self.fd, self._write = waking()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)
        self._before = {number: signal.getsignal(number) for number in _HANDLED}
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:
                signal.signal(number, _noted)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def read(self) -> list[int]:
        """The signals since the last call, SIGCHLD once."""
        try:
            return list(dict.fromkeys(os.read(self.fd, 4096)))
        except BlockingIOError:
            return []

    def ignore_end(self) -> None:
        """From here on nothing but SIGKILL ends us or the programs we start: a requeue must not be cut in half."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, before in self._before.items():
            if before is not None:
                signal.signal(number, before)
        os.close(self.fd)
        os.close(self._write)


def _noted(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor has the number already; without a handler there would be none."""
