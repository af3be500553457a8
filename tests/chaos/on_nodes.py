"""Faults of nodes: frozen, dead, drained, without their slurmd."""

from __future__ import annotations

import time

from tests.chaos.job import Job, Missed
from tests.chaos.plan import LEASE_S
from tests.chaos.victims import SICK_MOST, any_node, not_an_heir, room_to_isolate, wait_for_heir
from tests.live.stories import admin

UNDRAIN_S = 30.0


def node_frozen(job: Job) -> str:
    return freeze(job, job.rng.uniform(0.5, 3.0))


def node_frozen_beyond_the_lease(job: Job) -> str:
    room_to_isolate(job)
    return freeze(job, LEASE_S + job.rng.uniform(4.0, 10.0))


def freeze(job: Job, seconds: float) -> str:
    """Not the batch node's: of that an own kind tells."""
    not_an_heir(job)
    node = take(job, other_node(job))
    job.world.node("node-freeze", node)
    job.undo_in(seconds, lambda: back(job, node, "node-thaw", node))
    return f"{node} for {seconds:.1f} s"


def batch_node_frozen(job: Job) -> str:
    seconds, node = job.rng.uniform(0.5, 4.0), take(job, batch_node(job))
    job.world.node("node-freeze", node)
    job.undo_in(seconds, lambda: back(job, node, "node-thaw", node))
    return f"{node} for {seconds:.1f} s"


def node_killed(job: Job) -> str:
    not_an_heir(job)
    room_to_isolate(job)
    return crash(job, other_node(job))


def batch_node_killed(job: Job) -> str:
    room_to_isolate(job)
    wait_for_heir(job, batch_node(job))
    return crash(job, batch_node(job))


def crash(job: Job, node: str) -> str:
    take(job, node)
    job.world.node("node-crash", node)
    job.undo_in(job.rng.uniform(2.0, 12.0), lambda: back(job, node, "node-up", node))
    return f"all of {node}"


def slurmd_restarted(job: Job) -> str:
    node = take(job, any_node(job))
    job.world.node("node-down", node)
    job.undo_in(job.rng.uniform(0.0, 5.0), lambda: back(job, node, "node-up", node))
    return f"slurmd of {node}"


def drained(job: Job) -> str:
    node = take(job, any_node(job))
    job.world.operator("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=chaos")
    job.undo_in(job.rng.uniform(3.0, 15.0), lambda: undrain(job, node))
    return f"{node}"


def set_down(job: Job) -> str:
    """With --no-kill not the batch node: Slurm kills the script there, and takes that for the end of the job."""
    not_an_heir(job)
    room_to_isolate(job)
    node = take(job, other_node(job) if "--no-kill" in job.plan.sbatch else any_node(job))
    job.world.operator("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
    job.undo_in(job.rng.uniform(3.0, 15.0), lambda: lift(job, node, "DOWN", "RESUME"))
    return f"an administrator of {node}"


def undrain(job: Job, node: str) -> None:
    lift(job, node, "DRAIN", "UNDRAIN")


def lift(job: Job, node: str, state: str, change: str) -> None:
    """A slurmctld that was killed may have forgotten it, and takes no change of a node that it has not heard of yet.
    One that is killed now would forget that it was lifted: nobody kills it before that is saved.
    """
    cluster = job.world.cluster
    saved = cluster.folder / "state/node_state"
    lifted_at = 0.0

    def in_use() -> bool:
        nonlocal lifted_at
        if state not in cluster.node(node)["State"]:
            return True
        lifted_at = time.time()
        cluster.run(["scontrol", "update", f"NodeName={node}", f"State={change}"], user=admin())
        return False

    with job.world.alone():
        cluster.wait_for(in_use, UNDRAIN_S, f"{node} to be {state} no more")
        cluster.wait_for(lambda: saved.stat().st_mtime > lifted_at, UNDRAIN_S, f"that to be saved of {node}")
    job.world.sick.discard(node)


def take(job: Job, node: str) -> str:
    """Nobody else may have it meanwhile. Raises: Missed."""
    if node in job.world.sick or len(job.world.sick) >= SICK_MOST:
        raise Missed("enough nodes are sick already")
    job.world.sick.add(node)
    return node


def back(job: Job, node: str, *argv: str) -> None:
    job.world.node(*argv)
    job.world.sick.discard(node)


def batch_node(job: Job) -> str:
    job.ask()
    node = job.fields.get("BatchHost", "")
    if job.fields.get("JobState") != "RUNNING" or not node:
        raise Missed("it does not run")
    return node


def other_node(job: Job) -> str:
    others = [node for node in job.nodes() if node != batch_node(job)]
    if not others:
        raise Missed("no other node")
    return job.rng.choice(others)
