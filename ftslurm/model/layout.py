"""Where the ranks of a step run, where that is not left to srun: which node fills which slot, and who lends it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """nodes: one a slot, in the order of the slots. slots: of each rank, by rank; empty as long as srun has not said it.

    lent: node -> the donor job that it belongs to; all others are of the job's own allocation. chosen: the nodes may stand in
    another order than srun's own.
    """

    nodes: tuple[str, ...]
    slots: tuple[int, ...] = ()
    lent: Mapping[str, int] = field(default_factory=dict)
    chosen: bool = field(default=False, compare=False)

    def node_of(self, rank: int) -> str:
        return self.nodes[self.slots[rank]]

    def ranks_of(self, slot: int) -> tuple[int, ...]:
        return tuple(rank for rank, mine in enumerate(self.slots) if mine == slot)

    def filled(self, news: Mapping[int, str], lent: Mapping[str, int]) -> Layout:
        """With other nodes in the slots of `news`. lent: as above, of the new ones; those that went out go back."""
        nodes = tuple(news.get(slot, node) for slot, node in enumerate(self.nodes))
        lenders = {**self.lent, **lent}
        return replace(self, nodes=nodes, lent={node: lenders[node] for node in nodes if node in lenders}, chosen=True)

    def without(self, slots: Collection[int]) -> Layout:
        """Fewer slots and ranks; what is left moves up, in order."""
        kept = [slot for slot in range(len(self.nodes)) if slot not in slots]
        place = {slot: number for number, slot in enumerate(kept)}
        nodes = tuple(self.nodes[slot] for slot in kept)
        lent = {node: job for node, job in self.lent.items() if node in nodes}
        return Layout(nodes, tuple(place[slot] for slot in self.slots if slot in place), lent, self.chosen)

    def parts(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(job, its ranks in order): one srun each, since a step does not span two jobs. Job 0 is our own, and comes first."""
        jobs = [0, *sorted(set(self.lent.values()))]
        ranks = {job: tuple(r for r in range(len(self.slots)) if self.lent.get(self.node_of(r), 0) == job) for job in jobs}
        return tuple((job, mine) for job, mine in ranks.items() if mine)
