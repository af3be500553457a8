"""What ftrun would do, as text."""

from __future__ import annotations

import shlex
from dataclasses import replace

from ftslurm.launchers.containers import origin_of
from ftslurm.launchers.placement import step_width
from ftslurm.launchers.srun_options import join_components
from ftslurm.ledger.store import state_folder
from ftslurm.model.layout import Layout
from ftslurm.model.ports import Launcher
from ftslurm.wrapper.controller.wiring.facts import call_read
from ftslurm.wrapper.controller.wiring.on_slurm import srun_launcher
from ftslurm.wrapper.controller.wiring.run import request_for
from ftslurm.wrapper.controller.wiring.survey import Order, Place, survey


def dry_run(order: Order) -> str:
    """One command a line, then what is in force. Raises: FtslurmError."""
    site = survey(order)
    order = replace(order, env=site.env)
    if site.place is Place.OUTSIDE:
        request = request_for(order, site.settings)
        argv = ("salloc", *request.salloc, "ftrun", *order.own, *join_components([request.component]))
        return f"# ftrun requests an allocation and runs in it:\n{shlex.join(argv)}"
    lines = [f"# launcher: {'local' if site.local else 'srun'}, restart via {site.settings.restart_via}"]
    if site.local:
        from ftslurm.wrapper.controller.wiring.locally import launcher_on, pool_for

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
    lines += [f"# {call_read().words}"] if not site.local else []
    return "\n".join(lines)
