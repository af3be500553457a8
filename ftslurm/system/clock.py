"""The two clocks: Unix time and monotonic time."""

from __future__ import annotations

import time

from ftslurm.model.events import Now
from ftslurm.model.values import Value


class Clock(Value):
    """Reads both clocks at once; tests pass their own object with the same two methods."""

    def now(self) -> Now:
        return Now(mono=time.monotonic(), unix=time.time())

    def mono(self) -> float:
        return time.monotonic()
