"""Has the command printed nothing for too long?"""

from __future__ import annotations

from ftslurm.wrapper.shim.output.output import Output


class Silence:
    """Reports when the command has printed nothing for too long, and when it prints again."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._limit_s = 0.0
        self._since = 0.0
        self._told = False

    def watch(self, limit_s: float, since: float = 0.0) -> None:
        """From a start on; 0: no longer. since: monotonic, silence before does not count."""
        self._limit_s, self._since, self._told = limit_s, since, False

    def excuse(self, now: float) -> None:
        """Do not count time in which all processes were stopped."""
        self._since = now

    def _silent_s(self, now: float) -> float:
        return min(self._output.silent_s(now), now - self._since)

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
