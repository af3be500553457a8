"""How many messages one place gets: some at once, and what comes after them in one summary. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.model.values import dataclass

# So much more than usual may be sent when the job ends: its last word is the one that people wait for.
AT_THE_END = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """burst: messages to one place within window_s."""

    burst: int
    window_s: float


@dataclass(frozen=True, slots=True)
class Due:
    """each: of those that wait, so many may go by themselves; rest: the others go now, too, as one summary. until: Unix seconds
    at which to ask again, 0: not before something comes."""

    each: int = 0
    rest: bool = False
    until: float = 0.0


def due(now: float, sent: Sequence[float], waiting: int, pace: Pace, ending: bool) -> Due:
    """What may go now. sent: when messages went to this place, Unix seconds, ascending."""
    recent = [at for at in sent if now - at < pace.window_s]
    free = pace.burst - len(recent)
    if not waiting:
        return Due()
    if waiting <= free:
        return Due(each=waiting)
    if free > 0:  # the last one that is free tells of all that are left
        return Due(each=free - 1, rest=True)
    if ending and len(recent) < AT_THE_END * pace.burst:
        return Due(rest=True)
    return Due(until=recent[-pace.burst] + pace.window_s)
