"""When a fault of a real job comes in a simulation of it: at its time or, where the ranks do not run then, as long after their
next start as it came in the job; and in the job's own order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ftslurm.simulation.clockwork import Agenda
from ftslurm.simulation.scheduling import Scheduling
from ftslurm.simulation.trace import Fault, Real


class Turns:
    """happens: lets a fault happen."""

    def __init__(self, agenda: Agenda, happens: Callable[[Fault], object]) -> None:
        self._agenda, self._happens = agenda, happens
        self._queued: deque[tuple[Fault, Real]] = deque()
        self._last = (0, -1)  # outage of the fault that came last, and the attempt
        self._planned: tuple[Fault, float] | None = None

    def due(self, fault: Fault, now: Callable[[], Scheduling | None]) -> None:
        """Its time has come. One that was in no real job happens at once."""
        if fault.real is None:
            self._happens(fault)
        else:
            self._queued.append((fault, fault.real))
            self.look(now)

    def look(self, now: Callable[[], Scheduling | None]) -> None:
        """Lets happen whatever can. now: the ftrun that runs, if any does."""
        while self._queued:
            here, (fault, real) = now(), self._queued[0]
            if here is None or here.over or not here.ranks.running:
                return
            outage, attempt = self._last
            if real.outage != outage and here.attempt == attempt:
                return
            early_s = here.started_at + real.after_s - self._agenda.now
            if early_s > 1e-9:
                if self._planned != (fault, here.started_at):
                    self._planned = (fault, here.started_at)
                    self._agenda.after(early_s, lambda: self.look(now))
                return
            self._queued.popleft()
            self._last = (real.outage, here.attempt)
            self._happens(fault)
