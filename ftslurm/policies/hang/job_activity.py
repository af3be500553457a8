"""Does the job hang? Joins what agents and shims tell of one attempt.

Source: ModelArts, hang detection (IO first, then use), AIMaster, fault tolerance monitoring (silence, ranks that do not end).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field

from ftslurm.model.events import QuietSeen, RankSilent, UseSampled
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Hang:
    """still_s: seconds without activity."""

    what: str
    evidence: tuple[str, ...]
    still_s: float = 0.0


@dataclass(slots=True)
class HangWatch:
    """Activity in one attempt, as far as known. IO on any node is activity; a node that reports nothing proves no activity."""

    _quiet: dict[str, QuietSeen] = field(default_factory=dict)
    _use: dict[str, UseSampled] = field(default_factory=dict)
    _silent: dict[int, float] = field(default_factory=dict)
    _looked_at: set[str] = field(default_factory=set)

    def quiet(self, event: QuietSeen, nodes: Collection[str]) -> bool:
        """Are all `nodes` quiet now?"""
        if event.quiet_s <= 0:
            self._quiet.pop(event.node, None)
            self._use.clear()
        else:
            self._quiet[event.node] = event
        return bool(nodes) and set(nodes) <= self._quiet.keys()

    def sampled(self, event: UseSampled, nodes: Collection[str]) -> bool:
        """Is the use of all `nodes` known now?"""
        self._use[event.node] = event
        return set(nodes) <= self._use.keys()

    def verdict(self, nodes: Sequence[str]) -> Hang | None:
        """A hang, if every node is quiet and its use has not changed. Unknown counts as no hang."""
        if not nodes or any(node not in self._quiet for node in nodes):
            return None
        if any(node not in self._use or self._use[node].unchanged is not True for node in nodes):
            return None
        least = min(self._quiet[node].quiet_s for node in nodes)
        evidence = [f"{node}: {self._quiet[node].what}; {self._use[node].what}" for node in nodes]
        what = f"no process of the job has done IO for {least:.0f} s, and its use of devices or CPUs has not changed"
        return Hang(what, tuple(evidence[:64]), least)

    def silent(self, event: RankSilent, running: Collection[int]) -> bool:
        """Have all running ranks stopped printing?"""
        if event.silent_s <= 0:
            self._silent.pop(event.rank, None)
        else:
            self._silent[event.rank] = event.silent_s
        return bool(running) and set(running) <= self._silent.keys()

    @property
    def silent_s(self) -> float:
        """Seconds for which no rank has printed anything, as far as their shims have reported."""
        return min(self._silent.values(), default=0.0)

    def begun(self, rank: int, node: str) -> None:
        """Forget what is known of `rank` and of its node: the rank has been restarted."""
        self._silent.pop(rank, None)
        self._quiet.pop(node, None)
        self._use.clear()

    def looked_at(self, node: str, nodes: Collection[str]) -> bool:
        """Has the evidence of all `nodes` arrived?"""
        self._looked_at.add(node)
        return set(nodes) <= self._looked_at
