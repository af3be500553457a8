"""Where a job has run, which nodes it keeps off, and what was behind its failures. Only its own methods change each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field

from ftslurm.model import record as rec
from ftslurm.model.job import Share, unfold_shares
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.values import dataclass, replace

# --- its slots: on which nodes they are, how often each was scheduled, and how often its command was started there


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

    def attempt_began(self, begun: rec.AttemptBegan) -> Slots:
        key = (begun.schedule, begun.step_key)
        starts = {**self.starts, key: max(begun.starts, self.starts.get(key, 0))}
        return replace(self, starts=starts, shares={**self.shares, key: unfold_shares(begun.cpus, begun.gpus)})

    def rank_began(self, begun: rec.RankBegan) -> Slots:
        key = (begun.schedule, begun.step_key, begun.rank)
        return replace(self, rank_starts={**self.rank_starts, key: self.rank_starts.get(key, 0) + 1})

    def changed(self, changed: rec.SlotsChanged) -> Slots:
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

    def node_lent(self, lent: rec.NodeLent) -> Slots:
        return replace(self, lent={**self.lent, lent.node: lent.job})

    def finished(self) -> Slots:
        """Whoever finishes has ended its loans first."""
        return replace(self, lent={})


# --- the nodes that a job keeps off, why, and which of them it may use again


@dataclass(frozen=True, slots=True)
class Exclusions:
    isolated: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # node -> (reason, when)
    dead: frozenset[str] = frozenset()  # known dead when they were isolated, and no rank has run there since
    let_in: frozenset[str] = frozenset()  # that the last requeue did not keep out: the job could not have started without them
    # node -> signature, of all nodes that the job has ever left on nothing but words, but for those that a fact spoke against
    # later. Reinstated ones stay: such words have cost what they may, and have proven wrong.
    left_on_words: Mapping[str, str] = field(default_factory=dict)
    # Of those, such that it may use again, and those that an experiment left for once.
    reinstated: frozenset[str] = frozenset()

    @property
    def ours(self) -> frozenset[str]:
        """Nodes that Slurm may keep the job off because we have said so."""
        return self.reinstated.union(self.isolated)

    def left_on_words_still(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Of these, in their order."""
        return tuple(node for node in nodes if node in self.left_on_words and node in self.isolated)

    def decided(self, decided: rec.Decided) -> Exclusions:
        isolated = {**self.isolated, **{node: (why, decided.at) for node, why in decided.isolate.items()}}
        words = {node: sign for node, sign in self.left_on_words.items() if node not in decided.isolate or node in decided.words}
        words |= {node: sign for node, sign in decided.words.items() if node in decided.isolate}
        requeue = decided.rung in REQUEUES
        return replace(
            self,
            isolated=isolated,
            dead=self.dead | {*decided.dead},
            let_in=frozenset(isolated.keys() - {*decided.exclude}) if requeue else self.let_in.difference(decided.isolate),
            left_on_words=words,
            reinstated=(self.reinstated | ({decided.without} if decided.without else set())).difference(isolated),
        )

    def refused(self, refused: rec.NodeRefused) -> Exclusions:
        """A node that was looked at and not taken. What was reinstated stays so, for Slurm."""
        isolated = {**self.isolated, refused.node: (refused.why, refused.at)}
        words = {node: sign for node, sign in self.left_on_words.items() if node != refused.node}
        return replace(self, isolated=isolated, let_in=self.let_in - {refused.node}, left_on_words=words)

    def experiment_ended(self, ended: rec.ExperimentEnded) -> Exclusions:
        if not ended.excluded:
            return self
        left = self.isolate({ended.node: (ended.why, ended.at)})
        return replace(left, left_on_words={**left.left_on_words, ended.node: ended.signature})

    def take_back(self, found: rec.Reinstated) -> Exclusions:
        """The words for which these nodes were left have proven wrong."""
        nodes = {node for node in found.nodes if self.left_on_words.get(node) == found.signature and node in self.isolated}
        isolated = {node: told for node, told in self.isolated.items() if node not in nodes}
        return replace(self, isolated=isolated, reinstated=self.reinstated | nodes, let_in=self.let_in - nodes)

    def isolate(self, nodes: Mapping[str, tuple[str, float]]) -> Exclusions:
        words = {node: sign for node, sign in self.left_on_words.items() if node not in nodes}
        return replace(
            self, isolated={**self.isolated, **nodes}, let_in=self.let_in.difference(nodes), left_on_words=words,
            reinstated=self.reinstated.difference(nodes),
        )  # fmt: skip

    def free(self, nodes: Iterable[str]) -> Exclusions:
        """The next requeue takes them off the nodes that Slurm keeps the job off."""
        freed = {*nodes} & self.isolated.keys()
        isolated = {node: told for node, told in self.isolated.items() if node not in freed}
        return replace(
            self, isolated=isolated, reinstated=self.reinstated | freed, let_in=self.let_in - freed, dead=self.dead - freed
        )

    def needed(self, nodes: Collection[str]) -> Exclusions:
        """The job cannot start without them, so it may run there."""
        return replace(self, let_in=self.let_in | (self.isolated.keys() & {*nodes})) if nodes else self

    def ran_on(self, nodes: Collection[str]) -> Exclusions:
        """Ranks have begun there: they live."""
        return replace(self, dead=self.dead.difference(nodes))


# --- what was found to be behind a job's failures, and how often the same came again

# A failure on thousands of ranks is nobody's in particular; of those that matter a few ranks tell.
SIGHTINGS_MAX = 1024
# Process ids, addresses, times, numbers of nodes and steps: they differ though the failure is the same.
_VARIES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+")


@dataclass(frozen=True, slots=True)
class Sighting:
    """A rank on a node printed words that make its node a suspect. step: to which the training had come; 0: not told."""

    at: float
    signature: str
    rank: int
    node: str
    step: int


@dataclass(frozen=True, slots=True)
class Verdicts:
    last: rec.Diagnosed | None = None
    same_in_a_row: int = 0  # verdicts with the signature of the last one, without progress between
    same_words: int = 0  # of these, the last one included, those that also said the same, numbers aside
    moved: bool = False  # not all of them on one rank of one node
    errors: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (rank, signature) -> how often
    failed_ranks: frozenset[int] = frozenset()  # that ever failed by themselves
    suspicions: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)  # node -> (when, signature)
    sightings: tuple[Sighting, ...] = ()  # of words that make their node a suspect

    def diagnosed(self, found: rec.Diagnosed, step: int) -> Verdicts:
        """step: to which the training had come."""
        last = self.last
        same = last is not None and last.signature == found.signature
        again = last is not None and same and self.same_words > 0 and found.said != "" and _alike(last.said) == _alike(found.said)
        moved = last is not None and again and (self.moved or (last.rank, last.node) != (found.rank, found.node))
        errors, suspicions = dict(self.errors), dict(self.suspicions)
        for rank in found.ranks:
            errors[rank, found.signature] = errors.get((rank, found.signature), 0) + 1
        for node in {*found.suspects, *found.blamed}:
            suspicions[node] = (*suspicions.get(node, ()), (found.at, found.signature))
        shown = {int(rank): node for rank, node in found.shown.items() if _is_rank(rank)}
        sighted = self.sighted(Sighting(found.at, found.signature, rank, node, step) for rank, node in shown.items())
        return replace(
            sighted, last=found, same_in_a_row=self.same_in_a_row + 1 if same else 1, errors=errors,
            same_words=self.same_words + 1 if again else 1, moved=moved,
            failed_ranks=self.failed_ranks | {*found.ranks}, suspicions=suspicions,
        )  # fmt: skip

    def sighted(self, new: Iterable[Sighting]) -> Verdicts:
        return replace(self, sightings=(*self.sightings, *new)[-SIGHTINGS_MAX:])

    def progress_made(self) -> Verdicts:
        return replace(self, same_in_a_row=0, same_words=0, moved=False)

    def take_back(self, nodes: Iterable[str], signature: str) -> Verdicts:
        """These words make none of the nodes a suspect any more."""
        suspicions = dict(self.suspicions)
        for node in nodes:
            suspicions[node] = tuple(told for told in suspicions.get(node, ()) if told[1] != signature)
        return replace(self, suspicions=suspicions)

    def suspected(self, node: str, since: float) -> int:
        """How often a verdict held something against `node` from `since` (Unix seconds) on."""
        return sum(at >= since for at, _ in self.suspicions.get(node, ()))


def _alike(said: str) -> str:
    return _VARIES.sub("#", said.lower())


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10
