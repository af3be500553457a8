"""One ftrun, from its order to its exit status: on Slurm, on this machine, or in an allocation that is asked for;
and what it would do, as text.

ftrun loads in parts, of which each begins before the next is there. The door (cli/ftrun.py) takes the command line apart. This
module and `survey` find the settings and ask Slurm. The controller with its judge, more than half of all, loads beside those
questions. What only a run outside an allocation, or without Slurm, or a failure needs loads there (see diagnosis.py).
"""

from __future__ import annotations

import gc
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.errors import UsageError
from ftslurm.launchers.placement import step_width
from ftslurm.launchers.python import origin_of
from ftslurm.launchers.srun_options import join_components
from ftslurm.ledger.store import Store, state_folder
from ftslurm.model.job import Layout
from ftslurm.model.ports import Launcher
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import replace
from ftslurm.system.bundle import make_bundle
from ftslurm.system.commands import become
from ftslurm.wrapper.controller.survey import Order, Place, attaches, say, survey

if TYPE_CHECKING:
    from ftslurm.launchers.srun_options import NewAllocation


def dry_run(order: Order) -> str:
    """One command a line, then what is in force. Raises: FtslurmError."""
    from ftslurm.wrapper.controller.facts import call_read
    from ftslurm.wrapper.controller.joining import srun_launcher

    site = survey(order)
    order = replace(order, env=site.env)
    if site.place is Place.OUTSIDE:
        request = request_for(order, site.settings)
        argv = ("salloc", *request.salloc, "ftrun", *order.own, *join_components([request.component]))
        return f"# ftrun requests an allocation and runs in it:\n{shlex.join(argv)}"
    lines = [f"# launcher: {'local' if site.local else 'srun'}, restart via {site.settings.restart_via}"]
    if site.local:
        from ftslurm.wrapper.controller.locally import launcher_on, pool_for

        pool, granted = pool_for(order, site)
        nodes = pool.allocate(granted, ())
        size = len(nodes)
        launcher: Launcher = launcher_on(order, site, nodes, 1)
    else:
        assert site.allocation is not None
        nodes, size = site.allocation.nodes, site.allocation.size
        launcher = srun_launcher(order, site, site.allocation)
    layout = None
    if site.settings.nodes.spares:
        nodes = nodes[: step_width(order.components, size, site.settings.nodes.spares)]
        layout = Layout(nodes)
    for component in order.components:
        if not site.local and (origin := origin_of(component.options, order.env)):
            lines += [f"# container: {origin}; what ftrun starts for itself starts outside"]
    lines += ["# the step:", *(shlex.join(argv) for argv in launcher.step_argvs(layout))]
    lines += ["# the agents:", shlex.join(launcher.watch_argv(nodes))]
    lines += [f"# the ledger: below {state_folder(order.env)}"]
    lines += [f"# ladder: {', '.join(site.settings.ladder)}; max_restarts {site.settings.max_restarts}"]
    lines += [f"# {call_read(order.components).words}"] if not site.local else []
    return "\n".join(lines)


def run_job(order: Order) -> int:
    """Run the job to its end, or to its requeue. Gives the exit status. Raises: FtslurmError before it has begun."""
    site = survey(order, _load_controller)
    if attaches(order, site):
        become("srun", join_components(order.components), order.env)
    order = replace(order, env=site.env)
    if site.bundle:
        make_bundle(Path(site.bundle), say)
    if site.place is Place.OUTSIDE:
        from ftslurm.wrapper.controller.allocating import refusal, run_in_new_allocation

        if status := refusal(order.components, order.env):
            return status
        return run_in_new_allocation(request_for(order, site.settings), order.own, site.python)
    _load_controller()
    collect_rarely()
    if site.place is Place.ALLOCATION:
        from ftslurm.wrapper.controller.joining import run_on_slurm

        return run_on_slurm(order, site)
    from ftslurm.wrapper.controller.locally import run_locally

    return run_locally(order, site, Store(state_folder(order.env)))


def collect_rarely() -> None:
    """What is loaded is no garbage. By the default of 700 each restart of thousands of ranks would go through all objects."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()  # the door has disabled it


def _load_controller() -> None:
    import ftslurm.wrapper.controller.joining  # noqa: F401


def request_for(order: Order, settings: Settings) -> NewAllocation:
    """What to ask Slurm for where there is no allocation. Raises: UsageError."""
    if len(order.components) > 1:
        raise UsageError(
            "ftrun cannot request an allocation for a heterogeneous step (`:`)",
            hint="run ftrun in a script for sbatch, or within salloc",
        )
    from ftslurm.launchers.srun_options import new_allocation

    return new_allocation(order.components[0], order.env, settings.nodes.spares)
