"""What a job takes from the memory of nodes that its user's jobs share, and what it adds to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftslurm.model.decisions import TellOthers
from ftslurm.model.folds.node_memory import NodeFailed, NodeLeft, NodeReinstated, Told, remembered, suspects
from ftslurm.model.settings.tree import Settings


def suspect_nodes(known: Iterable[Told], cluster: str, job: str, now: float, settings: Settings) -> Mapping[str, str]:
    """node -> why it is suspect to `job`. known: the memory, in the order written. now: Unix seconds."""
    nodes = remembered(known, now, settings.memory_s, settings.memory_jobs)
    return suspects(nodes, cluster, job, settings.memory_jobs)


def to_remember(told: TellOthers, known: Iterable[Told], cluster: str, job: str, now: float) -> tuple[Told, ...]:
    """What `job` adds to the memory. A node that it uses again is taken back only if `known` has it from this job.
    now: Unix seconds."""
    said = {record.node for record in known if isinstance(record, NodeLeft) and (record.cluster, record.job) == (cluster, job)}
    return (
        *(NodeLeft(now, cluster, node, job, why) for node, why in told.nodes.items()),
        *(NodeFailed(now, cluster, node, job, why) for node, why in told.failed.items()),
        *(NodeReinstated(now, cluster, node, job, "it is the program") for node in told.reinstated if node in said),
    )
