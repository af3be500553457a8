"""The nodes that a job keeps off, why, and which of them it may use again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace

from ftslurm.model.record import Decided, ExperimentEnded, NodeRefused, Reinstated
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.values import dataclass


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

    def decided(self, decided: Decided) -> Exclusions:
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

    def refused(self, refused: NodeRefused) -> Exclusions:
        """A node that was looked at and not taken. What was reinstated stays so, for Slurm."""
        isolated = {**self.isolated, refused.node: (refused.why, refused.at)}
        words = {node: sign for node, sign in self.left_on_words.items() if node != refused.node}
        return replace(self, isolated=isolated, let_in=self.let_in - {refused.node}, left_on_words=words)

    def experiment_ended(self, ended: ExperimentEnded) -> Exclusions:
        if not ended.excluded:
            return self
        left = self.isolate({ended.node: (ended.why, ended.at)})
        return replace(left, left_on_words={**left.left_on_words, ended.node: ended.signature})

    def take_back(self, found: Reinstated) -> Exclusions:
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
