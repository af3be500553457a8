"""The nodes of the simulated cluster: which of them live, which show faults, and which are free."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.devices import HealResult
from ftslurm.policies.ladder.situation import ACTS


@dataclass
class Machine:
    """One node. faults: what its devices show, with whether healing mends it and when somebody has repaired it. died_at: of the
    last time; back_at: until then it is dead."""

    name: str
    faults: dict[tuple[str, str], tuple[DeviceFault, bool, float]] = field(default_factory=dict)
    died_at: float = -1.0
    back_at: float = -1.0

    def lives(self, now: float) -> bool:
        return now >= self.back_at

    def shows(self, now: float) -> tuple[DeviceFault, ...]:
        return tuple(fault for fault, _, until in self.faults.values() if now < until)

    def fit(self, now: float) -> bool:
        return self.lives(now) and not any(fault.fault_class in ACTS for fault in self.shows(now))

    def heal(self, device: str, now: float) -> HealResult:
        """Of one device: all that heals is gone."""
        here = {key: held for key, held in self.faults.items() if key[0] == device and now < held[2]}
        well = all(heals for _, heals, _ in here.values())
        for key, (_, heals, _) in here.items():
            if heals:
                del self.faults[key]
        return HealResult(device, well, "simulated")


class Cluster:
    """machines: by name, in their order. taken: those of the job's own allocation. lent: node -> donor job."""

    def __init__(self, size: int, slurmd_timeout_s: float, names: Sequence[str] = (), ftrun_apart: bool = False) -> None:
        """names: of the first nodes. ftrun_apart: it runs on none of them."""
        digits = len(str(size))
        others = (f"{'free' if names else 'n'}{number:0{digits}d}" for number in range(1, size + 1 - len(names)))
        self.machines = {name: Machine(name) for name in (*names[:size], *others)}
        self.names = tuple(self.machines)
        self._places = {name: place for place, name in enumerate(self.names)}
        self._ftrun_apart = ftrun_apart
        self._slurmd_timeout_s = slurmd_timeout_s
        self.lent: dict[str, int] = {}
        self._loans = 0
        self._died: set[str] = set()

    def dead(self, now: float) -> set[str]:
        self._died = {node for node in self._died if not self.machines[node].lives(now)}
        return self._died

    def kill(self, node: str, now: float, for_s: float) -> None:
        self.machines[node].died_at, self.machines[node].back_at = now, now + for_s
        self._died.add(node)

    def batch_node(self, nodes: Sequence[str]) -> str:
        """Of an allocation, the one that ftrun runs on; empty if it runs elsewhere."""
        return "" if self._ftrun_apart else nodes[0]

    def known_down(self, node: str, now: float) -> bool:
        """Has slurmctld noticed?"""
        machine = self.machines[node]
        return not machine.lives(now) and now - machine.died_at >= self._slurmd_timeout_s

    def usable(self, now: float) -> frozenset[str]:
        """As slurmctld sees it."""
        return frozenset(node for node in self.names if not self.known_down(node, now))

    def idle(self, taken: Collection[str], now: float) -> frozenset[str]:
        return frozenset(
            node for node in self.names if node not in taken and node not in self.lent and self.machines[node].lives(now)
        )

    def allocate(self, count: int, exclude: Collection[str], before: Collection[str], now: float) -> tuple[str, ...]:
        """The first living nodes, those of the scheduling before first; fewer than `count` where there are no more."""
        known, out = set(before), set(exclude)
        free = [node for node in self.names if node not in out and self.machines[node].lives(now)]
        found = [node for node in free if node in known] + [node for node in free if node not in known]
        return tuple(sorted(found[:count], key=self._places.__getitem__))

    def lend(self, taken: Collection[str], exclude: Collection[str], now: float) -> tuple[str, int]:
        """A free node that is fit, and its donor job; empty and 0 if there is none."""
        out = {*taken, *exclude, *self.lent}
        for node in self.names:
            if node not in out and self.machines[node].fit(now):
                self._loans += 1
                self.lent[node] = 1_000_000 + self._loans
                return node, self.lent[node]
        return "", 0

    def end_loans(self, jobs: Collection[int]) -> None:
        self.lent = {node: job for node, job in self.lent.items() if job not in jobs}

    def next_repair(self, now: float) -> float:
        return min((machine.back_at for machine in self.machines.values() if machine.back_at > now), default=float("inf"))
