"""A job's crashes that no fact explains, since it last made progress: where they failed, and what experiments have left."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

from ftslurm.model.record import Decided, Diagnosed, ExperimentEnded
from ftslurm.model.rungs import Budget, Rung
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Crash:
    """command: its step key. node: of the rank that the verdict goes by. nodes: all those of the attempt."""

    command: str
    signature: str
    node: str
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The attempts from `at` on (Unix seconds) run without `node`, to see whether they fail there as well. times: how often the
    job had failed on it."""

    at: float
    node: str
    signature: str
    times: int


@dataclass(frozen=True, slots=True)
class Crashes:
    nodes: frozenset[str] = frozenset()  # of the last attempt
    seen: tuple[Crash, ...] = ()  # since progress was last made, or a fact came between
    in_place: Mapping[str, int] = field(default_factory=dict)  # step key -> crashes answered in place since then
    left: frozenset[str] = frozenset()  # nodes that experiments have left since then
    experiment: Experiment | None = None  # that nothing has come of yet

    def attempt_began(self, nodes: Collection[str]) -> Crashes:
        return replace(self, nodes=frozenset(nodes))

    def decided(self, decided: Decided, verdict: Diagnosed | None, command: str) -> Crashes:
        """verdict: the last one. A rank of an async job that starts again alone is no crash of the job."""
        if decided.cause != "crash" or decided.rung == Rung.RANK_RESTART:
            return self
        in_place = self.in_place
        if decided.cost == Budget.CRASH_RESTARTS:
            in_place = {**in_place, command: in_place.get(command, 0) + 1}
        if verdict is None or verdict.attempt != decided.attempt or not (verdict.node and self.nodes):
            return replace(self, in_place=in_place)
        seen = (*self.seen, Crash(command, verdict.signature, verdict.node, self.nodes))
        found = replace(self, in_place=in_place, seen=seen)
        return found._leaving(decided, verdict) if decided.without else found

    def _leaving(self, decided: Decided, verdict: Diagnosed) -> Crashes:
        times = sum((crash.signature, crash.node) == (verdict.signature, decided.without) for crash in self.seen)
        begun = Experiment(decided.at, decided.without, verdict.signature, times)
        return replace(self, left=self.left | {decided.without}, experiment=begun)

    def ended(self, _: ExperimentEnded) -> Crashes:
        return replace(self, experiment=None)

    def broken(self) -> Crashes:
        """What comes next is the first in a row."""
        begun = self.experiment
        return Crashes(self.nodes, experiment=begun if begun is not None and begun.node not in self.nodes else None)
