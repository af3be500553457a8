"""One ftrun, from its order to its exit status: on Slurm, on this machine, or in an allocation that is asked for.

What only a run outside an allocation, or without Slurm, needs is loaded there: the others start sooner.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.errors import UsageError
from ftslurm.launchers.srun_options import join_components
from ftslurm.ledger.store import Store, state_folder
from ftslurm.model.settings.tree import Settings
from ftslurm.system.bundle import Bundle
from ftslurm.system.programs import become
from ftslurm.wrapper.controller.wiring.on_slurm import run_on_slurm
from ftslurm.wrapper.controller.wiring.survey import Order, Place, attaches, say, survey

if TYPE_CHECKING:
    from ftslurm.launchers.allocation import NewAllocation


def run_job(order: Order) -> int:
    """Run the job to its end, or to its requeue. Gives the exit status. Raises: FtslurmError before it has begun."""
    site = survey(order)
    if attaches(order, site):
        become("srun", join_components(order.components), order.env)
    order = replace(order, env=site.env)
    if site.bundle:
        Bundle(Path(site.bundle)).make(say)
    if site.place is Place.OUTSIDE:
        from ftslurm.wrapper.controller.allocating import refusal, run_in_new_allocation

        if status := refusal(order.components, order.env):
            return status
        return run_in_new_allocation(request_for(order, site.settings), order.own, site.python)
    if site.place is Place.ALLOCATION:
        return run_on_slurm(order, site)
    from ftslurm.wrapper.controller.wiring.locally import run_locally

    return run_locally(order, site, Store(state_folder(order.env)))


def request_for(order: Order, settings: Settings) -> NewAllocation:
    """What to ask Slurm for where there is no allocation. Raises: UsageError."""
    if len(order.components) > 1:
        raise UsageError(
            "ftrun cannot request an allocation for a heterogeneous step (`:`)",
            hint="run ftrun in a script for sbatch, or within salloc",
        )
    from ftslurm.launchers.allocation import new_allocation

    return new_allocation(order.components[0], order.env, settings.nodes.spares)
