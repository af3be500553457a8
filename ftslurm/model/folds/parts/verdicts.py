"""What was found to be behind a job's failures, and how often the same came again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from ftslurm.model.record import Diagnosed
from ftslurm.model.values import dataclass

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
    last: Diagnosed | None = None
    same_in_a_row: int = 0  # verdicts with the signature of the last one, without progress between
    same_words: int = 0  # of these, the last one included, those that also said the same, numbers aside
    moved: bool = False  # not all of them on one rank of one node
    errors: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (rank, signature) -> how often
    failed_ranks: frozenset[int] = frozenset()  # that ever failed by themselves
    suspicions: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)  # node -> (when, signature)
    sightings: tuple[Sighting, ...] = ()  # of words that make their node a suspect

    def diagnosed(self, found: Diagnosed, step: int) -> Verdicts:
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
