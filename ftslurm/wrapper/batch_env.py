"""The counters for the batch script itself, as shell lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from ftslurm.errors import UsageError
from ftslurm.ledger.store import Identity, Store, continues
from ftslurm.model.history import History, fold
from ftslurm.model.job import Allocation, Counters
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.policies.environment import counters_env, restart_env
from ftslurm.slurm.env import read_allocation


def export_lines(store: Store, env: Mapping[str, str]) -> str:
    """`export NAME='value'` a line. Raises: FtslurmError."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables(store, env).items())


def variables(store: Store, env: Mapping[str, str]) -> dict[str, str]:
    """Needs no slurmctld: the ledger and SLURM_RESTART_COUNT tell. Raises: FtslurmError."""
    allocation = read_allocation(env)
    if allocation is None:
        raise UsageError("not in a Slurm job", hint='write eval "$(ftslurm env)" into the script for sbatch')
    return batch_variables(allocation, _past(store, allocation))


def batch_variables(allocation: Allocation, past: History) -> dict[str, str]:
    """The values a task would get now; before the first start in a scheduling MA_PROC_START_CNT is 1 as well."""
    starts = max((n for (schedule, _), n in past.starts.items() if schedule == allocation.restarts), default=0)
    started_here = starts > 0
    counters = Counters(allocation.restarts + 1, max(starts, 1), past.attempts if started_here else past.attempts + 1)
    last = past.last_decision
    kept_out = fold_nodes(past.kept_out(0.0, 0.0))
    return counters_env(counters) | restart_env(last.rung if last else "", last.cause if last else "", kept_out)


def _past(store: Store, allocation: Allocation) -> History:
    me = Identity(allocation.cluster, str(allocation.job), allocation.restarts, allocation.start_time, allocation.name)
    history = fold(store.peek(me).records)
    return history if continues(history, me) else History()
