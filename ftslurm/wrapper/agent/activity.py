"""Watches the activity of processes below the shims of one node: I/O all the time, use of devices or CPUs on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ftslurm.model.devices import Utilisation
from ftslurm.model.ports import Probe
from ftslurm.model.values import Value, field
from ftslurm.policies.hang.process_activity import Quiet, Sample, cpu_unchanged, rates, use_unchanged
from ftslurm.system.processes import usage
from ftslurm.wrapper.agent.work import by_device
from ftslurm.wrapper.shim.processes import descendants

# Number of samples in the allowed time without I/O, and the limits of their interval: neither constantly nor so rarely that the
# end is noticed late.
LOOKS = 20
SELDOM_S, OFTEN_S = 10.0, 0.1
FIRST_S = 1.0  # not at once: the starting ranks need the processor
# Least share of use in the sampled time that counts as busy.
USE_SAMPLES = 20
USE_TIMEOUT_S = 10.0

Below = Callable[[int], tuple[dict[tuple[int, float], int], float]]
Message = dict[str, Any]


class _Use(Value, frozen=False):
    """A measurement under way. every_s: between two samples; until: monotonic."""

    until: float
    every_s: float
    next: float
    devices: list[Utilisation] = field(default_factory=list)
    cpu: dict[int, list[tuple[float, float]]] = field(default_factory=dict)


def usage_below(pid: int) -> tuple[dict[tuple[int, float], int], float]:
    """The usage of all processes below the shim `pid`, without the shim's own copying of output."""
    return usage(descendants(pid))


class ActivityWatch:
    """Call `turn` at `wakes_at`; both are monotonic seconds. `turn` gives the messages to send."""

    def __init__(self, probes: Sequence[Probe], look: Below = usage_below) -> None:
        self._probes = probes
        self._look = look
        self._ranks: dict[int, int] = {}
        self._quiet_s = 0.0
        self._quiet: Quiet | None = None
        self._told = False
        self._next = 0.0
        self._use: _Use | None = None

    @property
    def wakes_at(self) -> float | None:
        times = [self._next] if self._quiet is not None and self._quiet_s else []
        return min([*times, self._use.next] if self._use else times, default=None)

    def watch(self, ranks: Sequence[tuple[int, int]], quiet_s: float, now: float) -> None:
        """Watch these ranks from now on; earlier data is dropped. ranks: (rank, pid of its shim)."""
        self._ranks, self._quiet_s = dict(ranks), quiet_s
        self._quiet, self._told, self._use, self._next = Quiet(now), False, None, now + min(FIRST_S, self._every_s)

    def set_interval(self, quiet_s: float, now: float) -> None:
        """Use another limit without I/O from now on; 0: none."""
        if self._quiet is not None and quiet_s != self._quiet_s:
            self._quiet_s, self._quiet, self._told = quiet_s, Quiet(now), False

    def sample_use(self, window_s: float, now: float) -> None:
        self._use = _Use(now + window_s, window_s / USE_SAMPLES, now)

    @property
    def _every_s(self) -> float:
        return min(SELDOM_S, max(OFTEN_S, self._quiet_s / LOOKS))

    def turn(self, now: float) -> list[Message]:
        told: list[Message] = []
        if self._quiet is not None and self._quiet_s and now >= self._next:
            told += self._io(self._quiet, now)
            self._next = now + self._every_s
        if self._use is not None and now >= self._use.next:
            told += self._sample(self._use, now)
        return told

    def did_io(self) -> Mapping[int, float]:
        """rank -> when its last I/O was seen, monotonic; only ranks with I/O since the watch began."""
        return self._quiet.did if self._quiet is not None else {}

    def _samples(self) -> dict[int, Sample]:
        return {rank: Sample(*self._look(pid)) for rank, pid in self._ranks.items()}

    def _io(self, quiet: Quiet, now: float) -> list[Message]:
        """Report once when the limit has passed, and once when there is I/O again."""
        passed = quiet.observe(self._samples(), now)
        if passed >= self._quiet_s and not self._told:
            self._told = True
            what = f"no IO by the processes of {len(self._ranks)} ranks for {passed:.1f} s"
            return [{"t": "quiet", "quiet_s": passed, "what": what}]
        if passed < self._quiet_s and self._told:
            self._told = False
            return [{"t": "quiet", "quiet_s": 0.0, "what": ""}]
        return []

    def _sample(self, use: _Use, now: float) -> list[Message]:
        use.next = now + use.every_s
        for probe in self._probes:
            use.devices += probe.utilisation(USE_TIMEOUT_S)
        for rank, sample in self._samples().items():
            use.cpu.setdefault(rank, []).append((now, sample.cpu_s))
        if now < use.until:
            return []
        self._use = None
        unchanged, what = _judged(use)
        return [{"t": "use", "unchanged": unchanged, "what": what}]


def _judged(use: _Use) -> tuple[bool | None, str]:
    """Are the ranks busy? Devices are stronger evidence than CPUs, which also turn while ranks wait."""
    devices, power = by_device(use.devices)
    if devices:
        return use_unchanged(devices, power)
    series: Mapping[int, Sequence[float]] = {rank: rates(points) for rank, points in use.cpu.items()}
    return cpu_unchanged(series)
