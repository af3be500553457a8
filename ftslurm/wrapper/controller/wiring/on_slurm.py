"""What an ftrun in an allocation has of its own: srun, slurmctld, donor jobs, and a ledger that outlives it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from itertools import chain

from ftslurm.errors import REQUEUED_STATUS, FtslurmError, LaunchFailed
from ftslurm.launchers.placement import mpi_default, step_width
from ftslurm.launchers.python import Runtime, runtimes_of
from ftslurm.launchers.srun import BCAST_VARIABLES, Delivery, SrunLauncher, beside_argv, delivery, own_step_env
from ftslurm.ledger import output
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.ledger.store import Identity, open_ledger
from ftslurm.model.job import Allocation
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.kinds import port_range
from ftslurm.model.settings.tree import with_values
from ftslurm.slurm.client import JobState, SlurmClient
from ftslurm.system.commands import run as run_command
from ftslurm.system.processes import killed_after_s
from ftslurm.wrapper.controller.scheduler import SlurmScheduler
from ftslurm.wrapper.controller.wiring.facts import earlier_runs, facts_of, known_clean_up_times, ran_before, suspects
from ftslurm.wrapper.controller.wiring.joining import joined
from ftslurm.wrapper.controller.wiring.survey import Order, Site, say
from ftslurm.wrapper.requeue.lenders import Lenders
from ftslurm.wrapper.wire.channel import of_this_node
from ftslurm.wrapper.wire.secret_word import munge_socket

BCAST_LIMIT_S = 3600.0
# From the end of the grace to that of ftrun, at whose kill the ranks' last words, and its status, are lost.
TO_END_S = 2.0


def run_on_slurm(order: Order, site: Site) -> int:
    """To the end of the job, or of its scheduling. Gives the exit status. Raises: FtslurmError before it has begun."""
    allocation, client, settings = site.allocation, site.client, site.settings
    assert allocation is not None and client is not None
    if within_s := killed_after_s():
        settings = with_values(settings, {"stop.grace": min(settings.stop.grace_s, max(0.0, within_s - TO_END_S))})
    me = Identity(
        allocation.cluster, str(allocation.job), allocation.restarts, allocation.start_time, allocation.name,
        allocation.submit_time,
    )  # fmt: skip
    opened = open_ledger(order.env, me, say)
    journal, history, root = opened.journal, opened.history, opened.store.root
    output.settle(journal.path)
    for each in _deliveries(order, allocation):
        if each.argv:
            _deliver(each.argv, order, allocation)
    launcher = replace(srun_launcher(order, site, allocation), again=ran_before(order, history, allocation.restarts))
    number = allocation.job.number
    lenders = Lenders(client, number, allocation.restarts, order.env, site.python, run_command, settings)
    scheduler = SlurmScheduler(
        client, number, allocation.nodes, journal.path, order.env, site.python, run_command,
        settings.slurm.timeout_s, lenders, schedule=allocation.restarts, comments=settings.slurm.comment,
    )  # fmt: skip
    config = _config(site, client)
    can = frozenset(Capability) - (frozenset() if opened.lasts else {Capability.REQUEUE})
    facts = facts_of(order, allocation, "srun", can, site.resolved, mpi_default(settings, config))
    facts = replace(facts, why_not=replace(facts.why_not, requeue=_why_no_requeue(site, allocation, can)))
    memory = NodeMemory(root)
    facts = replace(facts, clean_ups=known_clean_up_times(root, facts, history))
    facts = replace(facts, remembered=suspects(memory, facts, settings))
    facts = replace(facts, earlier=earlier_runs(journal, history, facts, settings, client, lenders, scheduler))
    controller = joined(
        order, settings, history, facts, journal, launcher, scheduler, _addresses(order), memory,
        lambda: _runs(client, allocation), ports=settings.nodes.ports or srun_ports(config), munge=munge_socket(config),
        bundle=site.bundle, alone=signals_task_alone(config),
    )  # fmt: skip
    status = controller.run()
    if status != REQUEUED_STATUS:
        journal.close()
    return status


def _why_no_requeue(site: Site, allocation: Allocation, can: frozenset[Capability]) -> str:
    if Capability.REQUEUE not in can:
        return "its state has no place that a requeue would find again"
    if not allocation.batch:
        return "only a batch job can be requeued"
    allowed = site.view is None or site.view.requeue or site.settings.requeue.even_if_no_requeue
    return "" if allowed else "it was submitted with --no-requeue"


def srun_launcher(order: Order, site: Site, allocation: Allocation) -> SrunLauncher:
    """Raises: UsageError."""
    width = step_width(order.components, allocation.size, site.settings.nodes.spares)
    components = tuple(each.component for each in _deliveries(order, allocation))
    env = {name: value for name, value in order.env.items() if name not in BCAST_VARIABLES}
    return SrunLauncher(components, env, site.python, site.settings.devices.poll_s, allocation.size, width, bundle=site.bundle)


def _deliveries(order: Order, allocation: Allocation) -> list[Delivery]:
    return [delivery(each, order.env, allocation.job.number) for each in order.components]


def _deliver(argv: tuple[str, ...], order: Order, allocation: Allocation) -> None:
    """Raises: LaunchFailed, as srun fails where a folder of that name is there that may be the user's own."""
    done = run_command(argv, BCAST_LIMIT_S, env=order.env)
    if done.status == errno.EEXIST and allocation.restarts:  # libraries of an earlier scheduling, which sbcast does not replace
        env = own_step_env(order.env)
        run_command(beside_argv(allocation.nodes, "ftslurm-bcast", ("rm", "-rf", f"{argv[-1]}_libs")), BCAST_LIMIT_S, env=env)
        done = run_command(argv, BCAST_LIMIT_S, env=order.env)
    if done.status != 0:
        raise LaunchFailed(f"the program cannot be copied to the nodes (--bcast): {done.stderr.strip()[-300:]}")


def _addresses(order: Order) -> list[str]:
    """A name, and for OCI bundles, which may have no resolver and no /etc/hosts, the addresses of this node too."""
    name = socket.gethostname()
    if Runtime.OCI not in runtimes_of(order.components, order.env):
        return [name]
    found = [ip_address(each) for each in chain.from_iterable(of_this_node().values())]
    return [name, *(str(each) for each in found if not each.is_loopback and not each.is_link_local)]


def srun_ports(config: Mapping[str, str]) -> tuple[int, int] | None:
    """Those that srun keeps to, since a firewall may let no others through. Source: slurm.conf(5), SrunPortRange."""
    try:
        return port_range(config.get("SrunPortRange", ""))
    except ValueError:
        return None


def signals_task_alone(config: Mapping[str, str]) -> bool:
    """Does Slurm signal a task, and not what is below it? Also where a cgroup namespace hides that from the shim. Source:
    proctrack_p_signal in Slurm's proctrack plugins.
    """
    return config.get("ProctrackType") == "proctrack/cgroup"


def _config(site: Site, client: SlurmClient) -> Mapping[str, str]:
    """Empty where slurmctld does not tell. It may have come back since it was first asked."""
    for ask in (site.config.answer if site.config is not None else client.config, client.config):
        with suppress(FtslurmError):
            return ask()
    return {}


def _runs(client: SlurmClient, allocation: Allocation) -> bool:
    """In touch with slurmctld, and the job is still the one that we keep?"""
    try:
        view = client.job(allocation.job.number)
    except FtslurmError:
        return False
    ours = (view.restarts, view.start_time) == (allocation.restarts, allocation.start_time)
    return view.state in (JobState.RUNNING, JobState.SUSPENDED) and ours
