"""A job of very many nodes, played with few: nodes to which nothing happens are alike, so a few of them stand for all. Pure.

What a simulation costs is then a matter of its faults and not of its nodes. It is done only where nothing that a policy does
depends on how many nodes there are.
"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model.settings.tree import Settings
from ftslurm.simulation.trace import Trace

# Nodes of the job to which nothing happens that are played at least; and free ones, beside two for each fault.
LEAST, FREE = 32, 8


def with_few_nodes(trace: Trace, settings: Settings) -> Trace:
    """The same trace without most of the nodes to which nothing happens (`Trace.alike`): the others keep order and names."""
    plan, met = trace.plan, {1, *(fault.node for fault in trace.faults)}
    if trace.names or _counts_nodes(settings) or any(not fault.node and fault.rank for fault in trace.faults):
        return trace
    whole = plan.cluster + settings.spares
    mine = _filled(met, range(1, plan.nodes + 1), LEAST)
    others = _filled(met, range(plan.nodes + 1, whole + 1), 2 * len(trace.faults) + settings.spares + FREE)
    kept = (*mine, *others)
    if len(kept) == whole:
        return trace
    digits, place = len(str(whole)), {node: at for at, node in enumerate(kept, 1)} | {0: 0}
    few = replace(plan, nodes=len(mine), other_nodes=len(others) - settings.spares)
    faults = tuple(replace(fault, node=place[fault.node]) for fault in trace.faults)
    names = tuple(f"n{node:0{digits}d}" for node in kept)
    return replace(trace, plan=few, faults=faults, names=names, alike=plan.nodes - len(mine))


def _filled(met: set[int], nodes: range, more: int) -> list[int]:
    """Of `nodes` those that are met, and the first `more` of the others."""
    mine = {node for node in met if node in nodes}
    others = [node for node in nodes[: more + len(mine)] if node not in mine]
    return sorted((*mine, *others[:more]))


def _counts_nodes(settings: Settings) -> bool:
    """Does a setting name a number or a share of nodes or ranks?"""
    return bool(settings.min_nodes or settings.min_healthy or settings.failure_rate >= 0)
