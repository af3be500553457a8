"""The faults of the devices, and how many devices there are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ftslurm.model import events as ev
from ftslurm.model.devices import Fault
from ftslurm.policies.ladder.situation import ACTS

Key = tuple[str, str, str]  # node, device, code


class DeviceView:
    """faults: the current faults. there: node -> kind -> the most devices that its agent has seen. left_alone: faults that no
    rung can handle, with ranks still running.
    """

    def __init__(self) -> None:
        self.faults: dict[Key, Fault] = {}
        self.there: dict[str, dict[str, int]] = {}
        self.left_alone: frozenset[Key] = frozenset()

    def see(self, event: ev.DevicesSeen) -> tuple[Fault, ...]:
        """The new faults. A failed check changes nothing."""
        for kind, count in event.there.items():
            counts = self.there.setdefault(event.node, {})
            counts[kind] = max(count, counts.get(kind, 0))
        if event.error:
            return ()
        shown = {fault.key: fault for fault in event.faults}
        new = tuple(fault for key, fault in shown.items() if key not in self.faults)
        gone = {key for key in self.faults if key[0] == event.node} - shown.keys()
        self.faults = {key: fault for key, fault in self.faults.items() if key not in gone} | shown
        return new

    @property
    def acting(self) -> dict[Key, Fault]:
        """The faults that need a remedy."""
        return {key: fault for key, fault in self.faults.items() if fault.fault_class in ACTS}

    def shown_with(self, earlier: Mapping[Key, Fault]) -> tuple[Fault, ...]:
        """The current faults with those at the beginning of the trouble: one that clears meanwhile is still the reason."""
        return tuple(fault for key, fault in (self.faults | dict(earlier)).items() if key not in self.left_alone)

    def leave_alone(self, faults: Iterable[Fault]) -> None:
        self.left_alone |= {fault.key for fault in faults}

    def look_anew(self) -> None:
        """Consider faults again that had no remedy: they may be the reason now."""
        self.left_alone = frozenset()

    def forget(self, nodes: Collection[str]) -> None:
        """Forget the nodes: their faults concern nobody, or have healed."""
        self.faults = {key: fault for key, fault in self.faults.items() if key[0] not in nodes}
