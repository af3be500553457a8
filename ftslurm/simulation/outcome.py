"""What became of a trace under one policy, and of each of its faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ftslurm.model import record as rec
from ftslurm.model.values import dataclass
from ftslurm.simulation.clockwork import Part
from ftslurm.simulation.trace import Fault


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one fault. answers: the rungs, in order, each with its reason. hit: did it meet the job at all? lost_s: time
    that was not useful until the job trained again, without work done anew. passed: rung -> why it was not the one. left: nodes
    that were excluded."""

    fault: Fault
    at: float
    node: str
    hit: bool
    answers: tuple[tuple[str, str], ...] = ()
    passed: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one trace."""

    name: str
    ended: str  # completed, failed, trains (until the end of the trace), hangs, pending
    why: str
    at: float  # when, in seconds from the first start
    wall_s: float  # the time that all parts add up to
    parts: Mapping[Part, float]
    lost_to: Mapping[str, float]
    rungs: Mapping[str, int]
    budgets: Mapping[str, tuple[int, int]]
    faults: tuple[Answered, ...]
    starts: int
    requeues: int
    excluded: tuple[str, ...]
    node_s: float  # nodes held, times seconds
    plan_nodes: int
    ledger: tuple[rec.Record, ...] = field(default=(), repr=False)

    @property
    def over(self) -> bool:
        """Has the job come to its end?"""
        return self.ended in ("completed", "failed")

    @property
    def useful_s(self) -> float:
        return self.parts[Part.USEFUL]

    @property
    def goodput(self) -> float:
        """Useful share of the time, 0 to 1."""
        return self.useful_s / self.wall_s if self.wall_s else 0.0

    @property
    def node_goodput(self) -> float:
        """Useful share of the time of all nodes that were held, spares and loans too."""
        return self.useful_s * self.plan_nodes / self.node_s if self.node_s else 0.0


def answered(fault: Fault, at: float, node: str, hit: bool, decided: Sequence[rec.Decided]) -> Answered:
    """decided: what followed, in order."""
    return Answered(
        fault, at, node, hit, tuple((record.rung, record.reason or record.why) for record in decided),
        {rung: why for record in decided for rung, why in record.passed},
        tuple(dict.fromkeys(node for record in decided for node in record.isolate)),
    )  # fmt: skip
