"""The variables every rank gets: the contract with re-entrant scripts, and the rendezvous if asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftslurm.model.job import Counters, Task


def counters_env(counters: Counters) -> dict[str, str]:
    """MA_* and the attempt, for a rank or for the batch script. Source: ModelArts, fault recovery of training jobs."""
    return {
        "MA_SCHEDULE_CNT": str(counters.schedule),
        "MA_PROC_START_CNT": str(counters.starts),
        "FTSLURM_ATTEMPT": str(counters.attempt),
    }


def restart_env(rung: str, cause: str, excluded: str) -> dict[str, str]:
    """Why this attempt is not the first, and which nodes are kept out; empty values on a first attempt."""
    return {"FTSLURM_RESTART_RUNG": rung, "FTSLURM_RESTART_CAUSE": cause, "FTSLURM_EXCLUDED_NODES": excluded}


def torch_env(tasks: Mapping[int, Task], master: str, users: Collection[str]) -> dict[int, dict[str, str]]:
    """rank -> the variables torch.distributed reads (env:// rendezvous), without those the user has set.

    master: address of rank 0's node. The port is one that was free there a moment ago: never the last attempt's,
    which may still be in TIME_WAIT.
    """
    per_node: dict[str, int] = {}
    for task in tasks.values():
        per_node[task.node] = per_node.get(task.node, 0) + 1
    shared = {"MASTER_ADDR": master, "MASTER_PORT": str(tasks[0].free_port), "WORLD_SIZE": str(len(tasks))}
    return {
        rank: {
            name: value
            for name, value in (
                *shared.items(),
                ("RANK", str(rank)),
                ("LOCAL_RANK", str(task.local_rank)),
                ("LOCAL_WORLD_SIZE", str(per_node[task.node])),
                ("NODE_RANK", str(task.slot)),
                ("GROUP_RANK", str(task.slot)),
            )
            if name not in users
        }
        for rank, task in tasks.items()
    }
