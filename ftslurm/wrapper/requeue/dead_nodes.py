"""A job gives its dead nodes back before it is requeued, so that its next start does not wait until Slurm marks them DOWN.

A requeued job starts when all its nodes are clean, and Slurm waits for a dead one for SlurmdTimeout (300 s by default), up to
twice that. A running job may give nodes back, keeps its size for the next scheduling, and is then clean within seconds. Slurm
before 23.02.2 also starts a job without its GPUs if the last node that it waited for went down instead of becoming clean, and
counts these GPUs as allocated forever (its bug 16121; seen on 22.05).

A node that is given back is free for other jobs. So Slurm must know first that it does not answer: a signal to the job's steps
makes slurmctld call all its nodes, and a silent one is NOT_RESPONDING after MessageTimeout and gets no job (seen on 22.05 and
26.05). SIGCONT has no effect on a process that is not stopped.

Without slurmdbd, 22.05 accepts no change of a job that gave nodes back until the job is clean, so nobody could exclude a node
that returns meanwhile. Such a job keeps its dead nodes, and waits; so do most exclusive jobs: see course.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ftslurm.errors import FtslurmError
from ftslurm.model.nodes import fold
from ftslurm.slurm.client import JobView, NodeState, SlurmClient
from ftslurm.slurm.parse import seconds
from ftslurm.wrapper.requeue.course import Parted

# MessageTimeout if Slurm does not tell it, and what slurmctld needs in addition to see that it has passed.
MESSAGE_S, BESIDES_S = 10.0, 10.0
LOOK_AGAIN_S = 0.5
# Slurm's own words for the state of a node.
SILENT = ("NOT_RESPONDING", "DOWN")


def part_with_dead(
    client: SlurmClient, job: JobView, gone: Collection[str], config: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep,
) -> Parted:  # fmt: skip
    """Give the dead nodes back. job: its state. gone: nodes of it to give back. config: Slurm's. clock: any seconds. pause: waits
    for the given number of seconds.
    """
    stays = f"{fold(gone)} stays in the job until Slurm marks it down"
    limit_s = (seconds(config.get("MessageTimeout", "")) or MESSAGE_S) + BESIDES_S
    try:
        if not _noticed(client, job.number, gone, limit_s, clock, pause):
            return Parted(what=f"{stays}: Slurm has not noticed that it does not respond")
        client.keep_nodes(job.number, [node for node in job.nodes if node not in gone])
    except FtslurmError as error:
        return Parted(what=f"{stays}: {error.message}")
    return Parted(True, f"{fold(gone)} given back to Slurm, which knows that nothing responds there")


def _noticed(
    client: SlurmClient, number: int, gone: Iterable[str], limit_s: float,
    clock: Callable[[], float], pause: Callable[[float], None],
) -> bool:  # fmt: skip
    """Does Slurm itself know that it reaches none of them? No if it is unknown, because nodes are hidden from users; no for a
    node that is marked for another reason: it may answer.
    """
    until, called = clock() + limit_s, False
    while True:
        nodes = {node.name: node for node in client.nodes() if node.name in gone}
        silent = {name for name, node in nodes.items() if any(word in node.words for word in SILENT)}
        if silent >= {*gone}:
            return True
        ill = any(node.state is NodeState.BAD and name not in silent for name, node in nodes.items())
        if not nodes or ill or clock() >= until:
            return False
        if not called:
            client.signal_steps(number, "CONT")
            called = True
        pause(LOOK_AGAIN_S)
