"""Who is struck: for all kinds of faults."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

from tests.chaos.job import Job, Missed

# At most so many nodes are frozen, dead or drained at once: the others must be enough for every job.
SICK_MOST = 2
# How their commands look, as argv joined by blanks.
AGENT, FTRUN = ("ftslurm.wrapper.agent.agent import", "python"), "/ftrun --ft"
# An agent so old has called ftrun, and knows what to do without it; and how long one is waited for.
HEIR_AGE_S, HEIR_COMES_S = 4.0, 10.0


def any_rank(job: Job) -> int:
    """Raises: Missed."""
    return job.rng.choice(sorted(job.wait_running()))


def any_node(job: Job) -> str:
    """One that ranks run on. Raises: Missed."""
    nodes = job.nodes()
    if not nodes:
        raise Missed("no node runs ranks")
    return job.rng.choice(nodes)


def not_an_heir(job: Job) -> None:
    """Whoever goes on for a dead ftrun is let be: two nodes that die at once may be one too many. Raises: Missed."""
    if not job.processes(FTRUN):
        raise Missed("its ftrun is dead, and somebody goes on for it")


def wait_for_heir(job: Job, batch_node: str) -> None:
    """An agent comes up a second or two after the ranks; before that nobody notices that the batch node dies. Raises: Missed."""
    deadline = time.monotonic() + HEIR_COMES_S
    while not any(_is_heir(pid, batch_node) for pid in job.processes(*AGENT)):
        if time.monotonic() > deadline or job.over:
            raise Missed("no agent is there that could go on")
        job.tend()


def _is_heir(pid: int, batch_node: str) -> bool:
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        elsewhere = process.environ().get("SLURMD_NODENAME") != batch_node
        return elsewhere and time.time() - process.create_time() > HEIR_AGE_S
    return False


def room_to_isolate(job: Job) -> None:
    """Nodes that are kept out for good must leave enough for the job. Raises: Missed."""
    gone = set(job.history().exclusions.isolated) | {blow.victim.rpartition(" ")[2] for blow in job.blows if blow.isolates}
    left = len(job.world.cluster.nodes) - len(gone) - SICK_MOST
    if left <= job.plan.nodes:
        raise Missed("too few nodes would be left")
