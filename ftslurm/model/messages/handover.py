"""What a controller leaves to its agents for the case that it dies with its node: all that is needed to go on without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class HandoverPlan:
    """What a standby controller needs to know to take over from the ftrun of a dead batch node."""

    ledger: str  # its file, on the shared file system
    number: int  # number, schedule: of the job, as Slurm counts
    schedule: int
    run: str  # of this ftrun
    job: str  # its name for people
    cluster: str
    batch_node: str  # where the controller is
    nodes: tuple[str, ...]  # of the allocation, in the order of their slots
    settings: Settings
    script: int = 0  # pid of the batch script there, 0 where it is not known

    def place(self, node: str) -> int | None:
        """Of `node` among those that may succeed, from 0; None for one that may not."""
        others = [name for name in self.nodes if name != self.batch_node]
        return others.index(node) if node in others else None

    def before(self, node: str) -> tuple[str, ...]:
        """The nodes whose turn comes before that of `node`, in order."""
        others = [name for name in self.nodes if name != self.batch_node]
        return tuple(others[: others.index(node)])


def to_message(plan: HandoverPlan) -> dict[str, Any]:
    return {"t": "will", **to_plain(plan)}


def from_message(message: Mapping[str, Any]) -> HandoverPlan:
    """Raises: WireError when it is none of ours."""
    return from_plain(HandoverPlan, dict(message), Bounds(1 << 16, signed=True))
