"""What is kept of a job's pauses: of the agent's intervals, in the ledger, and for the limits that are learned from them
(policies/hang/pause_limits.py).

A pause is a time without progress that was long enough to be looked at, and that ended by itself. All times in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

# So many intervals between two signs of progress tell the usual one.
WARM_INTERVALS = 30
# So many of a job's longest pauses are kept, of each class: they tell how heavy the tail is.
PAUSES_MAX = 25


def usual_interval_s(intervals: Sequence[float]) -> float | None:
    """The median of the first WARM_INTERVALS; None before there are so many."""
    if len(intervals) < WARM_INTERVALS:
        return None
    from statistics import median  # 5 ms to load, for commands that only read a ledger

    return median(intervals[:WARM_INTERVALS])


def with_pause(longest: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """The longest pauses, the longest first, after one more; unchanged by one that is not among them."""
    return tuple(sorted((*longest, seconds), reverse=True)[:PAUSES_MAX])
