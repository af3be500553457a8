"""Traces that are made: faults at a constant rate, and a job of very many nodes as one of few."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from ftslurm.errors import UsageError
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable
from ftslurm.simulation.trace import MOST_FAULTS, Fault, JobPlan, Kind, Trace

# Nodes of the job to which nothing happens that are played at least; and free ones, beside two for each fault.
LEAST, FREE = 32, 8
# Faults of the first part of a trace; each part has so many times the faults of the one before.
FIRST, GROWS = 256, 10
# They take the whole job away and leave nothing behind on their node.
_PASSING = frozenset({Kind.PREEMPTION, Kind.REQUEUE})


def parts(trace: Trace) -> Iterator[Trace]:
    """Longer and longer beginnings of it, the whole at the end. Where the job ends in one of them, that is its end in the whole.
    Faults of a real job wait for their turn, so that they come together."""
    plan, most = replace(trace.plan, until_s=trace.until), FIRST
    while most < len(trace.faults) and not trace.names:
        yield replace(trace, plan=plan, faults=trace.faults[:most], stop_at=trace.faults[most].at)
        most *= GROWS
    yield trace


def with_few_nodes(trace: Trace, settings: Settings) -> Trace:
    """The same trace without most of the nodes to which nothing happens (`Trace.alike`): the others keep order and names."""
    plan = trace.plan
    lasting = [fault for fault in trace.faults if fault.kind not in _PASSING or fault.node > plan.nodes]
    met = {1, *(fault.node for fault in lasting)}
    if trace.names or _counts_nodes(settings) or any(not fault.node and fault.rank for fault in trace.faults):
        return trace
    whole = plan.cluster + settings.nodes.spares
    mine = _filled(met, range(1, plan.nodes + 1), LEAST)
    others = _filled(met, range(plan.nodes + 1, whole + 1), 2 * len(lasting) + settings.nodes.spares + FREE)
    kept = (*mine, *others)
    if len(kept) == whole:
        return trace
    digits, place = len(str(whole)), {node: at for at, node in enumerate(kept, 1)} | {0: 0}
    alike = next((place[node] for node in mine if node not in met), 0)  # stands for every node of the job that is not played
    few = replace(plan, nodes=len(mine), other_nodes=len(others) - settings.nodes.spares)
    faults = tuple(
        replace(fault, node=place.get(fault.node, alike), named="" if fault.node in place else f"n{fault.node:0{digits}d}")
        for fault in trace.faults
    )
    names = tuple(f"n{node:0{digits}d}" for node in kept)
    return replace(trace, plan=few, faults=faults, names=names, alike=plan.nodes - len(mine))


def _filled(met: set[int], nodes: range, more: int) -> list[int]:
    """Of `nodes` those that are met, and the first `more` of the others."""
    mine = {node for node in met if node in nodes}
    others = [node for node in nodes[: more + len(mine)] if node not in mine]
    return sorted((*mine, *others[:more]))


def _counts_nodes(settings: Settings) -> bool:
    """Does a setting name a number or a share of nodes or ranks?"""
    return bool(settings.nodes.min or settings.nodes.min_healthy or settings.retry.failure_rate >= 0)


# --- random traces: faults that come at a constant rate, each on any node of the cluster. The same seed gives the same trace

# One typical fault of each kind. `device` heals; `broken-device` does not.
SAMPLES: Mapping[str, Fault] = {
    "device": Fault(0.0, Kind.DEVICE, code="80E01801"),
    "broken-device": Fault(0.0, Kind.DEVICE, code="Xid 79", vendor="nvidia", heals=False),
    "crash": Fault(0.0, Kind.CRASH),
    "bug": Fault(
        0.0, Kind.CRASH, error_class=ErrorClass.USER_CODE, retriable=Retriable.NO, confidence=Confidence.STRONG,
        signature="bug", program=True,
    ),
    "hang": Fault(0.0, Kind.HANG),
    "network-hang": Fault(0.0, Kind.HANG, network=True),
    "node-death": Fault(0.0, Kind.NODE_DEATH),
    "preemption": Fault(0.0, Kind.PREEMPTION),
    "requeue": Fault(0.0, Kind.REQUEUE),
}  # fmt: skip


def rate_of(text: str) -> tuple[str, float]:
    """`crash=0.002` -> kind and faults for each day of each node. Raises: UsageError."""
    name, _, number = text.partition("=")
    if name not in SAMPLES:
        raise UsageError(f"--random {text}: no such kind{suggestion(name, SAMPLES)}", hint=f"there are {', '.join(SAMPLES)}")
    try:
        rate = float(number)
    except ValueError:
        rate = -1.0
    if not 0 <= rate <= 1000:
        raise UsageError(f"--random {text}: a rate is a number of faults per node and day", hint=f"such as {name}=0.002")
    return name, rate


def random_trace(plan: JobPlan, rates: Sequence[tuple[str, float]], seed: int) -> Trace:
    """plan: with its `until_s`. Raises: UsageError for more faults than can be simulated."""
    random, days = Random(seed), plan.until_s / 86400.0
    faults: list[Fault] = []
    for name, rate in rates:
        whole = rate * plan.cluster
        if whole * days > MOST_FAULTS:
            raise UsageError(f"--random {name}={rate:g}: more than {MOST_FAULTS} faults", hint="take a lower rate, or less time")
        at = random.expovariate(whole) if whole else days
        while at < days:
            faults.append(replace(SAMPLES[name], at=at * 86400.0, node=random.randrange(plan.cluster) + 1))
            at += random.expovariate(whole)
    return Trace(plan, tuple(sorted(faults, key=lambda fault: fault.at)), f"random, seed {seed}")
