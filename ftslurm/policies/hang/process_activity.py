"""Are processes active? Judged from samples of their IO and of the use of devices or CPUs.

Source: ModelArts, hang detection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise

from ftslurm.model.averages import median, pstdev
from ftslurm.model.values import dataclass

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


@dataclass(frozen=True, slots=True)
class Sample:
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


@dataclass(slots=True)
class Quiet:
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


def devices_at_work(series: Mapping[str, Sequence[float]], power: Mapping[str, Sequence[float]]) -> bool:
    """Does a device of the node work? Arguments as for `use_unchanged`; unknown counts as no work.

    A rank that waits in a collective spins on its device, which shows constant use.
    """
    return use_unchanged(series, power)[0] is False


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
