"""Faults that the user injects on purpose."""

from __future__ import annotations

import os

from ftslurm.wrapper.shim.command import Command
from ftslurm.wrapper.shim.fast_stdlib import signal
from ftslurm.wrapper.shim.messages import Message, integer_in, number_in
from ftslurm.wrapper.shim.processes import descendants, send_signal

SLOW_CYCLE_S = 0.1  # of the drill "slow": too short for any hang detection, too long to cost much


class Drill:
    """A fault that is injected on purpose, on the user's order. Its messages: controller/orders.py."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._share = 0.0  # of the time that the tree may run; 0: no such drill
        self._runs = True
        self._turn_at = 0.0

    def told(self, message: Message, now: float) -> None:
        """Raises: KeyError, TypeError, ValueError for what is no drill."""
        what = message["what"]
        if what == "crash" and ("status" in message) != ("signal" in message):
            if "status" in message:
                self._command.crash_status = integer_in(message["status"], 1, 255)
                self._command.signal(signal.SIGKILL)
            else:
                self._command.signal(integer_in(message["signal"], 1, 64))
        elif what == "slow":
            self._share, self._runs, self._turn_at = number_in(message["share"], 0.01, 0.99), True, now
        elif what == "hang":
            self._share = 0.0
            self._command.freeze()
        elif what == "lost":
            self._command.freeze()  # so that no process sees others end, or starts new ones
            for pid in (*descendants(os.getpid()), os.getpid()):
                send_signal(pid, signal.SIGKILL)
        elif what == "end":
            self._share = 0.0
            self._command.thaw()
        else:
            raise ValueError(f"unknown drill {what!r}")

    def over(self) -> None:
        """End the drill: the attempt has ended, or is being stopped."""
        if self._share:
            self._share = 0.0
            self._command.thaw()

    def wakes_in(self, now: float) -> float | None:
        return max(0.0, self._turn_at - now) if self._share else None

    def press(self, now: float) -> None:
        """Stop or continue the process tree when it is time."""
        if not self._share or now < self._turn_at:
            return
        self._runs = not self._runs
        if self._runs:
            self._command.thaw()
        else:
            self._command.freeze()
        self._turn_at = now + SLOW_CYCLE_S * (self._share if self._runs else 1 - self._share)
