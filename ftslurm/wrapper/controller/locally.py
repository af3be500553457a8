"""What an ftrun without Slurm has of its own: nodes that are only names, and a requeue that starts the command again here."""

from __future__ import annotations

from ftslurm.errors import REQUEUED_STATUS, UsageError
from ftslurm.launchers.local import LocalLauncher, LocalPool, LocalScheduler
from ftslurm.launchers.local_layout import nodes_asked
from ftslurm.launchers.placement import step_width
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.store import Store
from ftslurm.model.folds.history import fold
from ftslurm.model.job import Allocation, JobId
from ftslurm.model.rungs import Capability
from ftslurm.system.clock import Clock
from ftslurm.wrapper.controller.facts import facts_of, ran_before
from ftslurm.wrapper.controller.joining import joined
from ftslurm.wrapper.controller.survey import JobSite, Order, say


def run_locally(order: Order, site: JobSite, store: Store) -> int:
    """To the end of the job. Gives the exit status. Raises: FtslurmError."""
    if len(order.components) > 1:
        raise UsageError("a heterogeneous step (`:`) needs Slurm", hint="run it in an allocation, or run separate commands")
    number, journal = store.new_local()
    while (status := _run_once(order, site, number, journal)) == REQUEUED_STATUS:
        pass  # the same command again in a new allocation, as Slurm would run the script again
    journal.close()
    return status


def pool_for(order: Order, site: JobSite) -> tuple[LocalPool, int]:
    """The nodes of this machine, and how many of them the job has. Raises: UsageError."""
    granted = (nodes_asked(order.components[0].options) or 1) + site.settings.nodes.spares
    return LocalPool(site.settings.local_nodes or granted), granted


def launcher_on(order: Order, site: JobSite, nodes: tuple[str, ...], number: int, again: bool = False) -> LocalLauncher:
    """nodes: of the allocation. number: of the job. again: as in SrunLauncher. Raises: UsageError."""
    width = step_width(order.components, len(nodes), site.settings.nodes.spares)
    return LocalLauncher(
        order.components, order.env, site.python, site.settings.devices.poll_s, len(nodes), width, again=again, nodes=nodes,
        job=number,
    )  # fmt: skip


def _run_once(order: Order, site: JobSite, number: int, journal: Journal) -> int:
    settings, history = site.settings, fold(journal.read().records)
    pool, granted = pool_for(order, site)
    nodes = pool.allocate(granted, history.kept_out(Clock().now().unix, settings.isolation.expires_s))
    allocation = Allocation(JobId(number), "local", nodes, restarts=history.requeues.done, batch=True)
    launcher = launcher_on(order, site, nodes, number, ran_before(order, history, history.requeues.done))
    can = frozenset(Capability) - {Capability.PROBE, Capability.RELEASE, Capability.STEPS}
    facts = facts_of(order, allocation, "local", can, site.resolved)
    controller = joined(
        order, settings, history, facts, journal, launcher, LocalScheduler(pool, granted), ["127.0.0.1"], bundle=site.bundle
    )
    if site.no_slurm and not history.requeues.done:
        say(f"{site.no_slurm}: the command runs on this machine alone")
    return controller.run()
