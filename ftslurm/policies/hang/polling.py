"""Does a rank poll? It looks again and again for something that does not come (a key of a store, a file, an answer of a
licence server), sleeps between, and does nothing else. That takes CPU and IO, and is no work.

Two ways show it: the rank's own words (it has asked a store of torch's the same question, and got the same answer), and the
kernel's: whenever it is looked at, the main thread sleeps in the same timed wait at the same place of the program, and
wakes up as often in every second, each time for the same very little.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ftslurm.model.averages import median
from ftslurm.model.values import dataclass
from ftslurm.policies.hang.process_activity import FLOOR_BYTES_S

# A poll does not count as work. A question to torch's store and its answer take 0.1 ms and 110 bytes (measured), a
# question over HTTP in Python 1 to 3 ms.
ASK_CPU_S, ASK_BYTES = 0.0005, 1024.0
WAKE_CPU_S, WAKE_BYTES = 0.005, 1024.0
# Per cent of a core, for a rank that only the kernel shows to poll. A rank that uses more computes, whatever it looks like.
POLL_CPU_PERCENT = 10.0
# Wake-ups a second. A slower rhythm may be an ordinary wait with a timeout, as torch's for its data loader (every 5 s).
LEAST_PER_S = 0.5
LEAST_LOOKS, LEAST_S = 3, 1.5
# Allowed change from one second to the next. A rank that receives data varies more.
UNEVEN_SHARE, UNEVEN_WAKES = 0.35, 2.0


@dataclass(frozen=True, slots=True)
class Look:
    """The main thread of a rank at one moment of a standstill. at: monotonic seconds.

    wakes, cpu_s, io: how often it has woken up so far, its CPU seconds, its bytes of IO. place: the timed wait it sleeps in,
    with the place in the program; empty if it does not sleep in one. asked: questions to stores that were answered
    as before, so far.
    """

    at: float
    wakes: int = 0
    cpu_s: float = 0.0
    io: int = 0
    place: str = ""
    asked: int = 0


@dataclass(frozen=True, slots=True)
class Polling:
    """per_s: polls a second. cpu_percent, io_bytes_s: the most that polling takes. asks: the rank polls a torch store."""

    per_s: float
    cpu_percent: float
    io_bytes_s: float
    asks: bool = False


def polling(looks: Sequence[Look]) -> Polling | None:
    """How the rank polls; None if these looks at one stall do not show that it does. looks: the oldest first."""
    return _asking(looks) or _waking(looks)


def _asking(looks: Sequence[Look]) -> Polling | None:
    """By the rank's own counter of store questions, in the latest looks."""
    if len(looks) < LEAST_LOOKS or looks[-1].at <= looks[0].at or looks[-1].asked <= looks[-LEAST_LOOKS].asked:
        return None
    per_s = (looks[-1].asked - looks[0].asked) / (looks[-1].at - looks[0].at)
    return Polling(per_s, 100 * per_s * ASK_CPU_S, per_s * ASK_BYTES, asks=True)


def _waking(looks: Sequence[Look]) -> Polling | None:
    """By the wake-ups that the kernel counts."""
    if len(looks) < LEAST_LOOKS or (passed := looks[-1].at - looks[0].at) < LEAST_S:
        return None
    places = [look.place for look in looks if look.place]
    # It may be awake at a look; twice in a row, and it is not asleep most of the time.
    if len(set(places)) != 1 or any(not a.place and not b.place for a, b in pairwise(looks)):
        return None
    wakes, cpu_s, io = looks[-1].wakes - looks[0].wakes, looks[-1].cpu_s - looks[0].cpu_s, looks[-1].io - looks[0].io
    per_s = wakes / passed
    if per_s < LEAST_PER_S or cpu_s > wakes * WAKE_CPU_S or 100 * cpu_s > passed * POLL_CPU_PERCENT or io > wakes * WAKE_BYTES:
        return None
    rates = [((b.wakes - a.wakes), (b.io - a.io) / max(b.wakes - a.wakes, 1), b.at - a.at) for a, b in pairwise(looks)]
    usual_io = median(each for _, each, _ in rates)
    for count, each_io, took_s in rates:
        if abs(count - per_s * took_s) > max(UNEVEN_WAKES, UNEVEN_SHARE * per_s * took_s):
            return None
        if io > FLOOR_BYTES_S * passed and abs(each_io - usual_io) > UNEVEN_SHARE * usual_io:
            return None
    return Polling(per_s, 100 * cpu_s / passed, io / passed)
