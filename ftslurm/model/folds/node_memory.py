"""What later jobs of a user remember of nodes: which were left for a fault, by which jobs, and for how long that counts.

Facts alone are remembered. What the ranks of one job printed may be its program's doing, and is no reason for another job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftslurm.model.decisions import TellOthers
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import Value


class NodeLeft(Value):
    """A job left a node for a fact. at: Unix seconds. why: one sentence."""

    at: float
    cluster: str
    node: str
    job: str
    why: str


class NodeFailed(NodeLeft):
    """A job failed there again and again, and ran well elsewhere. People are told; later jobs go by facts alone."""


class NodeCleared(Value):
    """By hand: what was remembered of the node before counts no more."""

    at: float
    cluster: str
    node: str


class NodeReinstated(Value):
    """What that job has told of the node counts no more: it uses it again. why: one sentence."""

    at: float
    cluster: str
    node: str
    job: str
    why: str


Told = NodeLeft | NodeReinstated | NodeCleared


class Remembered(Value):
    """One node. jobs: that left it, the latest last; for_facts: for facts. why, expires (Unix seconds): of the latest."""

    cluster: str
    node: str
    jobs: tuple[str, ...]
    for_facts: tuple[str, ...]
    at: float
    why: str
    expires: float
    suspect: bool


# Jobs that have excluded a node after a proven fault make it suspect to others.
SUSPECT_FROM = 2


def remembered(records: Iterable[Told], now: float, memory_s: float) -> tuple[Remembered, ...]:
    """All nodes of which something still counts. now: Unix seconds."""
    left: dict[tuple[str, str], list[NodeLeft]] = {}
    for record in records:
        key = (record.cluster, record.node)
        if isinstance(record, NodeCleared):
            left.pop(key, None)
        elif isinstance(record, NodeReinstated):
            left[key] = [told for told in left.get(key, []) if told.job != record.job]
        elif now - record.at < memory_s:
            left.setdefault(key, []).append(record)
    return tuple(_one(found, memory_s) for _, found in sorted(left.items()) if found)


def _one(found: list[NodeLeft], memory_s: float) -> Remembered:
    jobs = tuple(dict.fromkeys(record.job for record in found))
    facts = tuple(dict.fromkeys(record.job for record in found if not isinstance(record, NodeFailed)))
    last = max(found, key=lambda record: record.at)
    return Remembered(last.cluster, last.node, jobs, facts, last.at, last.why, last.at + memory_s, len(facts) >= SUSPECT_FROM)


def suspects_to(nodes: Iterable[Remembered], cluster: str, job: str) -> Mapping[str, str]:
    """node -> why it is suspect to `job`: enough other jobs left it. Its own faults the job has in its own ledger."""
    found = {}
    for node in nodes:
        others = [other for other in node.for_facts if other != job]
        if node.cluster == cluster and len(others) >= SUSPECT_FROM:
            found[node.node] = f"excluded after a fault by jobs {', '.join(others)}, last: {node.why}"
    return found


# --- what a job takes from the memory of nodes that its user's jobs share, and what it adds to it. Pure


def suspect_nodes(known: Iterable[Told], cluster: str, job: str, now: float, settings: Settings) -> Mapping[str, str]:
    """node -> why it is suspect to `job`. known: the memory, in the order written. now: Unix seconds."""
    return suspects_to(remembered(known, now, settings.isolation.memory_s), cluster, job)


def to_remember(told: TellOthers, known: Iterable[Told], cluster: str, job: str, now: float) -> tuple[Told, ...]:
    """What `job` adds to the memory. A node that it uses again is taken back only if `known` has it from this job.
    now: Unix seconds."""
    said = {record.node for record in known if isinstance(record, NodeLeft) and (record.cluster, record.job) == (cluster, job)}
    return (
        *(NodeLeft(now, cluster, node, job, why) for node, why in told.nodes.items()),
        *(NodeFailed(now, cluster, node, job, why) for node, why in told.failed.items()),
        *(NodeReinstated(now, cluster, node, job, "it is the program") for node in told.reinstated if node in said),
    )
