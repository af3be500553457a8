"""What may still run where nobody can see it, and until when its lease lets it.

A rank's end is proven by its shim (nothing is left); or by its step: the launcher has ended and the shim has hung up; or
its shim has hung up, by no reset, which a firewall may send, and its node answers by no way any more. What is left below a
shim that was killed is ended by Slurm, or by the shims of the next step there before they start anything. Whatever is not proven
ends at the latest when its lease does, which was last renewed when its node was last heard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import field

from ftslurm.model.job import Task
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass
from ftslurm.policies.attempt import Attempt


@dataclass(slots=True)
class Fence:
    """silent: node -> monotonic seconds when it was last heard. let_go_at: since when no lease has been renewed, None while
    they are. paused: ranks that were stopped with the whole job, and whose leases do not run out before they are heard of
    again: their end is proven by their step alone. asked: nodes that are being looked at by another way."""

    silent: dict[str, float] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    let_go_at: float | None = None
    asked: set[str] = field(default_factory=set)

    def fall_silent(self, nodes: Iterable[str], at: float) -> None:
        """at: when they were heard last, monotonic seconds."""
        self.silent.update(dict.fromkeys(nodes, at))

    def hear(self, node: str) -> None:
        """It is heard of again, or none of ours any more."""
        self.silent.pop(node, None)

    def ask(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Those that are not being looked at already: they are now."""
        new = tuple(node for node in nodes if node not in self.asked)
        self.asked.update(new)
        return new

    def answer(self, node: str) -> bool:
        """Has every one that was looked at answered now?"""
        self.asked.discard(node)
        return not self.asked

    def ask_anew(self) -> None:
        """Answers that are still to come are not waited for."""
        self.asked.clear()

    def over_at(self, node: str, settings: Settings) -> float:
        """When the leases of a silent node have run out, with the margin; monotonic seconds."""
        return self.silent[node] + settings.lease.time_s + settings.lease.margin_s

    def unproven(self, attempt: Attempt, tasks: Mapping[int, Task], settings: Settings, now: float) -> dict[int, float]:
        """rank -> monotonic seconds until which it may run, infinite if nobody knows; only those that still may."""
        shims, free = attempt.shims, attempt.stopped - attempt.left.keys()
        if attempt.step_end.ended:
            free |= shims.closed
        free |= {rank for rank in shims.closed - shims.reset if rank in tasks and tasks[rank].node in attempt.nodes.gone}
        base = now if self.let_go_at is None else self.let_go_at
        wait_s = settings.lease.time_s + settings.lease.margin_s
        until = {rank: self.silent.get(tasks[rank].node, base) + wait_s for rank in attempt.started - free if rank in tasks}
        until.update(dict.fromkeys(self.paused & until.keys(), math.inf))
        return {rank: at for rank, at in until.items() if at > now}
