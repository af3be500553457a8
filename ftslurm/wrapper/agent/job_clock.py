"""The clock of a node's ranks: it stops while their job is stopped.

Slurm stops the agent together with the ranks (`scontrol suspend`, preemption, gang scheduling), for any time and any number of
times. Nothing that the ranks did not do meanwhile is their silence.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from threading import Lock

from ftslurm.wrapper.shim.timers import boot_s

# Later by this much than the agent meant to wake, and it was stopped or had no CPU, and its ranks were probably no better off.
AWAY_S = 2.0


class JobClock:
    """Call it for the seconds in which the job ran. Any thread may."""

    def __init__(self, clock: Callable[[], float] = boot_s) -> None:
        self._clock = clock
        self._stopped_s = self._told_s = 0.0
        self._due = inf
        self._lock = Lock()

    def __call__(self) -> float:
        with self._lock:
            return self._read() - self._stopped_s

    def expect(self, wait_s: float | None) -> bool:
        """The agent is going to wait for `wait_s` seconds, None: for any time. Was the job stopped since the last call?"""
        with self._lock:
            now = self._read()
            self._due = now + wait_s if wait_s is not None else inf
            before, self._told_s = self._told_s, self._stopped_s
            return self._stopped_s > before

    def _read(self) -> float:
        now = self._clock()
        if now - self._due > AWAY_S:
            self._stopped_s += now - self._due
            self._due = now
        return now
