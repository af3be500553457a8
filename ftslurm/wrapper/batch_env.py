"""The counters for the batch script, as shell lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from ftslurm.errors import UsageError
from ftslurm.ledger.store import Identity, Store, continues
from ftslurm.model.folds.history import History, counters_of_node, fold
from ftslurm.model.job import Allocation
from ftslurm.model.nodes import fold_nodes
from ftslurm.policies.environment import counters_env, restart_env
from ftslurm.slurm.env import read_allocation


def export_lines(store: Store, env: Mapping[str, str]) -> str:
    """One `export NAME='value'` per line. Raises: FtslurmError."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables(store, env).items())


def variables(store: Store, env: Mapping[str, str]) -> dict[str, str]:
    """The variables, from the ledger and SLURM_RESTART_COUNT; slurmctld is not needed. Raises: FtslurmError."""
    allocation = read_allocation(env)
    if allocation is None:
        raise UsageError("not in a Slurm job", hint='write eval "$(ftslurm env)" into the script for sbatch')
    return batch_variables(allocation, _past(store, allocation), env.get("SLURMD_NODENAME", ""))


def batch_variables(allocation: Allocation, past: History, node: str = "") -> dict[str, str]:
    """The values that a task on `node` would get now; before the first start of a scheduling, MA_PROC_START_CNT is 1 too."""
    same = past.last_run is not None and past.last_run.schedule == allocation.restarts
    places = (past.slots.nodes if same else ()) or allocation.nodes
    counters = counters_of_node(past, allocation.restarts, places.index(node) if node in places else None)
    kept_out = fold_nodes(past.kept_out(0.0, 0.0))
    return counters_env(counters) | restart_env(*past.why_scheduled(allocation.restarts), kept_out)


def _past(store: Store, allocation: Allocation) -> History:
    me = Identity(allocation.cluster, str(allocation.job), allocation.restarts, allocation.start_time, allocation.name)
    history = fold(store.peek(me).records)
    return history if continues(history, me) else History()
