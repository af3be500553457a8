"""Do the node's devices work while its ranks stand still? By samples of their use, one an examination."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ftslurm.model.devices import Utilisation
from ftslurm.policies.hang.process_activity import LEAST_SAMPLES, devices_at_work

USE_SAMPLES, USE_SHARE = 4, 0.3  # number of samples kept; share of the time of an examination
ReadUse = Callable[[float], Sequence[Utilisation]]


class DeviceUse:
    """The samples of the stall under way."""

    def __init__(self, read: ReadUse | None) -> None:
        """read: how busy the node's devices are, within so many seconds; None: there are none."""
        self._read = read
        self._samples: deque[Sequence[Utilisation]] = deque(maxlen=USE_SAMPLES)
        self._since = 0.0  # progress before them

    def at_work(self, budget_s: float, progress_at: float) -> bool | None:
        """Are the devices busy? By one more sample; None if this stall has too few, or there are no devices. progress_at: when it
        began.
        """
        if self._read is None:
            return None
        if self._since != progress_at:
            self._samples.clear()
            self._since = progress_at
        self._samples.append(self._read(USE_SHARE * budget_s))
        series: dict[str, list[float]] = {}
        power: dict[str, list[float]] = {}
        for each in (each for sample in self._samples for each in sample):
            for values, value in ((series, each.percent), (power, each.power_w)):
                if value is not None:
                    values.setdefault(each.device, []).append(value)
        if len(self._samples) < LEAST_SAMPLES or not series:
            return None
        return devices_at_work(series, power)
