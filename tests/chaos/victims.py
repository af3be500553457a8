"""Who is struck: for all kinds of faults."""

from __future__ import annotations

from tests.chaos.job import Job, Missed

# At most so many nodes are frozen, dead or drained at once: the others must be enough for every job.
SICK_MOST = 2


def any_rank(job: Job) -> int:
    """Raises: Missed."""
    return job.rng.choice(sorted(job.wait_running()))


def any_node(job: Job) -> str:
    """One that ranks run on. Raises: Missed."""
    nodes = job.nodes()
    if not nodes:
        raise Missed("no node runs ranks")
    return job.rng.choice(nodes)


def room_to_isolate(job: Job) -> None:
    """Nodes that are kept out for good must leave enough for the job. Raises: Missed."""
    gone = set(job.history().isolated) | {blow.victim.rpartition(" ")[2] for blow in job.blows if blow.isolates}
    left = len(job.world.cluster.nodes) - len(gone) - SICK_MOST
    if left <= job.plan.nodes:
        raise Missed("too few nodes would be left")
