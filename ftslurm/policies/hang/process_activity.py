"""Are processes active? Judged from samples of their IO and of the use of devices or CPUs.

Source: ModelArts, hang detection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from ftslurm.model.averages import median, pstdev
from ftslurm.model.values import Value, field

# A single background poller (a heartbeat monitor that asks a store once a second) does some 100 B/s for ever, and without a
# floor would hide every hang; a training that lives does megabytes. Bytes a second, of one rank's processes.
FLOOR_BYTES_S = 4096.0
# A hung collective reads 0 or 100 % without a break; a training that computes varies by far more between its steps.
FLAT_PERCENT = 2.0
# A spinning GPU kernel draws little, steady power.
FLAT_POWER = 0.05
# Of one core, all processes of a rank: who waits uses less. A rank that computes or polls uses more, and which of the two
# the CPU does not tell.
IDLE_CPU_PERCENT = 2.0
LEAST_SAMPLES = 3


class Sample(Value):
    """The processes of one rank at one moment. io: (pid, start time) -> bytes read and written so far, by any way."""

    io: Mapping[tuple[int, float], int]
    cpu_s: float


# Polls and heartbeats go both ways, at a low rate; data goes one way, or is much more.
ONE_WAY = 10
MANY_BYTES_S = 65536.0

Connections = Mapping[int, tuple[int, int]]  # inode -> bytes sent, received so far


def streamed(before: Connections, now: Connections, passed_s: float) -> int:
    """Bytes that connections moved as data in `passed_s` seconds, without questions and their answers."""
    moved = 0
    for inode, (sent, received) in now.items():
        sent_before, received_before = before.get(inode, (0, 0))
        less, more = sorted((max(0, sent - sent_before), max(0, received - received_before)))
        if more > ONE_WAY * less or more > MANY_BYTES_S * passed_s:
            moved += less + more
    return moved


def received(before: tuple[int, int], now: tuple[int, int], passed_s: float) -> int:
    """The same of a whole network, of which only the sums are known: what comes in as data. What goes out may be sent again
    and again to somebody who is out of reach."""
    out, into = max(0, now[0] - before[0]), max(0, now[1] - before[1])
    return into if into > ONE_WAY * out or (into > MANY_BYTES_S * passed_s and into > out) else 0


class Quiet(Value, frozen=False):
    """How long the ranks of a node have done no IO above the floor. Times in monotonic seconds.

    did: rank -> when it was last seen to do some.
    """

    since: float
    did: dict[int, float] = field(default_factory=dict)
    _last: dict[int, tuple[float, Sample]] = field(default_factory=dict)

    def observe(self, ranks: Mapping[int, Sample], now: float) -> float:
        """Seconds without IO up to these samples. The start or end of a process is no IO; the bytes it moved are."""
        for rank, sample in ranks.items():
            before = self._last.get(rank)
            self._last[rank] = (now, sample)
            if before is None:
                continue
            at, old = before
            done = sum(max(0, now_bytes - old.io.get(key, 0)) for key, now_bytes in sample.io.items())
            if now > at and done / (now - at) > FLOOR_BYTES_S:
                self.since = self.did[rank] = now
        return now - self.since


def use_unchanged(series: Mapping[str, Sequence[float]], power: Mapping[str, Sequence[float]]) -> tuple[bool | None, str]:
    """Is the use of every device unchanged? By variance and median of each. series: device -> per cent; power: watts.

    None: too few samples to tell.
    """
    told = {device: values for device, values in series.items() if len(values) >= LEAST_SAMPLES}
    if not told:
        return None, "the use of devices cannot be read"
    for device, values in told.items():
        spread = pstdev(values)
        if spread > FLAT_PERCENT:
            return False, f"device {device}: use varies by {spread:.1f} % around {median(values):.0f} %"
        watts = power.get(device, ())
        if len(watts) >= LEAST_SAMPLES and pstdev(watts) > FLAT_POWER * max(1.0, median(watts)):
            return False, f"device {device}: power varies around {median(watts):.0f} W"
    medians = sorted({round(median(values)) for values in told.values()})
    return True, f"use of {len(told)} devices flat at {', '.join(map(str, medians[:8]))} %"


def cpu_unchanged(series: Mapping[int, Sequence[float]]) -> tuple[bool | None, str]:
    """As `use_unchanged`, for jobs without accelerators. series: rank -> per cent of one core between samples."""
    told = {rank: values for rank, values in series.items() if len(values) >= LEAST_SAMPLES}
    if not told:
        return None, "the CPU time of the ranks cannot be read"
    busiest, values = max(told.items(), key=lambda item: median(item[1]))
    most = median(values)
    if most < IDLE_CPU_PERCENT:
        return True, f"CPU of {len(told)} ranks below {IDLE_CPU_PERCENT:g} % of a core"
    if pstdev(values) > FLAT_PERCENT:
        return False, f"CPU of rank {busiest} varies around {most:.0f} % of a core"
    return None, f"CPU of rank {busiest} steady at {most:.0f} % of a core: it computes, or polls"


def rates(cpu: Iterable[tuple[float, float]]) -> list[float]:
    """(monotonic seconds, CPU seconds so far) -> per cent of a core between neighbours."""
    points = list(cpu)
    return [100 * (b - a) / (t2 - t1) for (t1, a), (t2, b) in pairwise(points) if t2 > t1]


# --- Does a rank poll? It looks again and again for something that does not come (a key of a store, a file, an answer of a
# licence server), sleeps between, and does nothing else. That takes CPU and IO, and is no work.
#
# Two ways show it: the rank's own words (it has asked a store of torch's the same question, and got the same answer), and the
# kernel's: whenever it is looked at, the main thread sleeps in the same timed wait at the same place of the program, and
# wakes up as often in every second, each time for the same very little

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


class Look(Value):
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


class Polling(Value):
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
