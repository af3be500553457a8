"""The slots of a job: on which nodes they are, how often each was scheduled, and how often its command was started there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ftslurm.model.record import AttemptBegan, NodeLent, RankBegan, SlotsChanged
from ftslurm.model.shares import Share, unfold_shares
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Slots:
    size: int = 0  # nodes of the job as it was scheduled, 0 if nobody wrote it; some may have been lost or given back since
    nodes: tuple[str, ...] = ()  # by slot, once they were changed in this scheduling
    lent: Mapping[str, int] = field(default_factory=dict)  # node -> donor job, of those nobody has ended for sure
    starts: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (schedule, step key) -> runs of it
    rank_starts: Mapping[tuple[int, str, int], int] = field(default_factory=dict)  # (..., rank) -> starts of that rank alone
    rescheduled: Mapping[int, int] = field(default_factory=dict)  # slot -> how often it alone got another node
    bases: Mapping[int, Mapping[tuple[int, str], int]] = field(default_factory=dict)  # slot -> `starts` when it last did
    shares: Mapping[tuple[int, str], tuple[Share, ...]] = field(default_factory=dict)  # as starts -> by slot, of its node

    def run_began(self, size: int, scheduled_again: bool) -> Slots:
        return replace(self, nodes=() if scheduled_again else self.nodes, size=max(size, 0 if scheduled_again else self.size))

    def attempt_began(self, begun: AttemptBegan) -> Slots:
        key = (begun.schedule, begun.step_key)
        starts = {**self.starts, key: max(begun.starts, self.starts.get(key, 0))}
        return replace(self, starts=starts, shares={**self.shares, key: unfold_shares(begun.cpus, begun.gpus)})

    def rank_began(self, begun: RankBegan) -> Slots:
        key = (begun.schedule, begun.step_key, begun.rank)
        return replace(self, rank_starts={**self.rank_starts, key: self.rank_starts.get(key, 0) + 1})

    def changed(self, changed: SlotsChanged) -> Slots:
        rescheduled, bases, shares = dict(self.rescheduled), dict(self.bases), self.shares
        if changed.kept:
            rescheduled = {now: rescheduled[was] for now, was in enumerate(changed.kept) if was in rescheduled}
            bases = {now: bases[was] for now, was in enumerate(changed.kept) if was in bases}
            shares = {key: tuple(all_[was] for was in changed.kept if was < len(all_)) for key, all_ in shares.items()}
        for slot in (int(text) for text in changed.filled if text.isdecimal()):
            rescheduled[slot] = rescheduled.get(slot, 0) + 1
            bases[slot] = dict(self.starts)
        alone = {key: number for key, number in self.rank_starts.items() if key[2] not in changed.ranks}
        if changed.moved:
            place = {was: now for now, was in enumerate(changed.moved)}
            alone = {(schedule, step, place[rank]): n for (schedule, step, rank), n in alone.items() if rank in place}
        return replace(self, rescheduled=rescheduled, bases=bases, rank_starts=alone, nodes=changed.nodes, shares=shares)

    def node_lent(self, lent: NodeLent) -> Slots:
        return replace(self, lent={**self.lent, lent.node: lent.job})

    def finished(self) -> Slots:
        """Whoever finishes has ended its loans first."""
        return replace(self, lent={})
