"""What an order for a drill comes to: whom it hits, in which words, by which decision."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model.decisions import DrillDevice, DrillRanks
from ftslurm.model.events import DrillAsked
from ftslurm.model.exits import signal_name
from ftslurm.model.job import Task
from ftslurm.model.values import dataclass

# The user's word -> the shim's.
_TO_SHIMS = {"rank-crash": "crash", "hang": "hang", "slow-rank": "slow", "lost-node": "lost", "end": "end"}


@dataclass(frozen=True, slots=True)
class Drill:
    """target, how: for people. injects: False for the end of a drill."""

    target: str
    how: str
    order: DrillRanks | DrillDevice
    injects: bool = True


def plan(event: DrillAsked, tasks: Mapping[int, Task]) -> Drill | None:
    """None where there is nobody of that name in the step that runs."""
    nodes = {task.node for task in tasks.values()}
    if event.fault == "device-fault":
        if event.node not in nodes:
            return None
        order = DrillDevice(event.node, event.device, event.code, event.severity, event.kind, event.heals)
        how = f"{event.code} on device {event.device}, {'heals' if event.heals else 'does not heal'}"
        return Drill(target(event), how, order)
    on_node = [task.rank for task in tasks.values() if task.node == event.node]
    ranks = tuple(sorted(on_node)) if event.node else tuple(tasks.keys() & {event.rank})
    if not ranks or event.fault not in _TO_SHIMS:
        return None
    to_shims = DrillRanks(ranks, _TO_SHIMS[event.fault], event.status, event.signal, event.share)
    return Drill(target(event), _how(event), to_shims, event.fault != "end")


def target(event: DrillAsked) -> str:
    return f"node {event.node}" if event.node else f"rank {event.rank}"


def _how(event: DrillAsked) -> str:
    match event.fault:
        case "rank-crash":
            return f"killed by {signal_name(event.signal)}" if event.signal else f"exits with status {event.status}"
        case "slow-rank":
            return f"gets {event.share:.0%} of the time"
        case "hang":
            return "stands still"
        case "lost-node":
            return "its tasks are lost without a message"
    return "goes on as before"
