"""The variables every rank gets: the contract with re-entrant scripts, and the rendezvous if asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from ftslurm.model.devices import NO_DEVICES
from ftslurm.model.folds.history import Counters
from ftslurm.model.job import Layout, Task, fold_counts
from ftslurm.model.nodes import fold_in_order

# What the batch script's environment says of the job, and not of a place in it.
_OF_THE_JOB = (
    "SLURM_ARRAY_", "SLURM_CLUSTER_NAME", "SLURM_JOB_ACCOUNT", "SLURM_JOB_END_TIME", "SLURM_JOB_GID", "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "SLURM_JOB_RESERVATION", "SLURM_JOB_START_TIME", "SLURM_JOB_UID", "SLURM_JOB_USER",
    "SLURM_RESTART_COUNT", "SLURM_SUBMIT_", "SLURM_JOB_CPUS_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_DISTRIBUTION",
)  # fmt: skip
# MASTER_ADDR, CHIEF_HOST, RDZV_ENDPOINT
_MEET_AT = ("_ADDR", "_HOST", "_ENDPOINT")
_WHOLE, _MADE_BY_HOOKS = "FTSLURM_WHOLE_", ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# By them Slurm tells a batch script, or a step, which devices it gives; then it does so for each program.
_GIVEN_BY_SLURM = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")


def of_the_job(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a batch script's environment that hold wherever a rank of the job runs."""
    return {name: value for name, value in env.items() if name.startswith(_OF_THE_JOB)}


def of_rendezvous(env: Mapping[str, str]) -> dict[str, str]:
    """The user's variables by which ranks find each other; a script makes them of the node list before ftrun begins."""
    return {name: env[name] for name in env if name.endswith(_MEET_AT) and not name.startswith("SLURM_")}


def moved_in(text: str, moved: Mapping[str, str]) -> str:
    """`text` with each name or address of a node that is out replaced by the one that has its place."""
    if not moved:
        return text
    names = "|".join(sorted(map(re.escape, moved), key=len, reverse=True))
    return re.sub(rf"(?<![\w.-])(?:{names})(?![\w-])", lambda found: moved[found[0]], text)


def showing_none(env: Mapping[str, str]) -> frozenset[str]:
    """The variables that show programs no device, if they are a vendor's (`hidden_by` in log-patterns.yaml); none where Slurm
    sets those for each program."""
    if any(env.get(name) for name in _GIVEN_BY_SLURM):
        return frozenset()
    return frozenset(name for name, value in env.items() if value.strip() in NO_DEVICES)


def counters_env(counters: Counters) -> dict[str, str]:
    """MA_* and the attempt, for a rank or for the batch script."""
    return {
        "MA_SCHEDULE_CNT": str(counters.schedule),
        "MA_PROC_START_CNT": str(counters.starts),
        "FTSLURM_ATTEMPT": str(counters.attempt),
    }


def restart_env(rung: str, cause: str, excluded: str) -> dict[str, str]:
    """Why this attempt is not the first, and which nodes are kept out; empty values on a first attempt."""
    return {"FTSLURM_RESTART_RUNG": rung, "FTSLURM_RESTART_CAUSE": cause, "FTSLURM_EXCLUDED_NODES": excluded}


def torch_env(
    tasks: Mapping[int, Task], master: str, users: Collection[str], run: str = "none", restarts: int = 0, most: int = 0
) -> dict[int, dict[str, str]]:
    """rank -> the variables that torchrun gives its workers (env:// rendezvous), without those the user has set.

    master: address of rank 0's node. The port is one that was free there a moment ago, and of a range from which no
    connection takes one: never the last attempt's, which may still be in TIME_WAIT. run: names the job. restarts: of all
    ranks until now; most: how many there may be. Source: torch.distributed.run, "Environment Variables".
    """
    per_node: dict[str, int] = {}
    for task in tasks.values():
        per_node[task.node] = per_node.get(task.node, 0) + 1
    shared = {"MASTER_ADDR": master, "MASTER_PORT": str(tasks[0].free_port), "WORLD_SIZE": str(len(tasks))}
    shared |= {
        "GROUP_WORLD_SIZE": str(len(per_node)),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(len(tasks)),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(most),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 serves the store itself
    }
    return {
        rank: {
            name: value
            for name, value in (
                *shared.items(),
                ("RANK", str(rank)),
                ("ROLE_RANK", str(rank)),
                ("LOCAL_RANK", str(task.local_rank)),
                ("LOCAL_WORLD_SIZE", str(per_node[task.node])),
                ("NODE_RANK", str(task.slot)),
                ("GROUP_RANK", str(task.slot)),
            )
            if name not in users
        }
        for rank, task in tasks.items()
    }


def whole_env(torch: Mapping[str, str]) -> dict[str, str]:
    """Of torch_env's, what a container's hook may have made for a part of the step; the shim sees whether it has (command.py)."""
    return {f"{_WHOLE}{name}": torch[name] for name in _MADE_BY_HOOKS if name in torch}


def nvrx_env(tasks: Mapping[int, Task], users: Collection[str]) -> dict[int, dict[str, str]]:
    """rank -> what programs look for to learn that ft_launcher started them, without what the user has set.

    The names of its sockets stand for ours: our client needs none. OMP_NUM_THREADS as torchrun sets it, where several ranks
    share a node.
    """
    alone = len({task.node for task in tasks.values()}) == len(tasks)
    threads = {} if alone else {"OMP_NUM_THREADS": "1"}
    found = {
        rank: {
            "FT_RANK_MONITOR_IPC_SOCKET": f"ftslurm/{rank}", "FT_LAUNCHER_IPC_SOCKET": "ftslurm",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", **threads,
        }
        for rank in tasks
    }  # fmt: skip
    return {rank: {name: value for name, value in env.items() if name not in users} for rank, env in found.items()}


def placed_env(
    tasks: Mapping[int, Task], layout: Layout, job: Mapping[str, str], number: int, step: str
) -> dict[int, dict[str, str]]:
    """rank -> Slurm's own variables of place, where srun's would not tell the slots: spares are none of the program's nodes,
    nodes stand in the order of their slots, and on a node that is lent the job is ours and not the donor.

    job: what the batch script's environment says of the job. number: of the job. step: `123.0`, of the part that runs in it.
    """
    nodes, per_slot = fold_in_order(layout.nodes), [0] * len(layout.nodes)
    for task in tasks.values():
        per_slot[task.slot] += 1
    shared = {
        **dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"), nodes),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), str(len(layout.nodes))),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), str(len(tasks))),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), fold_counts(per_slot)),
        # Ours is arbitrary, which is no use to a program that starts another srun: that has a list for it.
        "SLURM_DISTRIBUTION": job.get("SLURM_DISTRIBUTION", "block"),
    }
    step_id = step.partition(".")[2]
    ours = {**job, **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(number))}
    ours |= dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), step_id)
    ranks_on: dict[int, list[str]] = {}
    for rank in sorted(tasks):
        ranks_on.setdefault(tasks[rank].slot, []).append(str(rank))
    return {
        rank: {
            **(ours if task.node in layout.lent else {}),
            **shared,
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": str(task.slot),
            "SLURM_GTIDS": ",".join(ranks_on[task.slot]),
        }
        for rank, task in tasks.items()
    }
