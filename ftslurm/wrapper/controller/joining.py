"""Joins the parts of one ftrun to a controller; and what an ftrun in an allocation has of its own: srun, slurmctld, donor jobs,
a ledger that outlives it.

`survey` finds out where ftrun is and what is in force, `run` goes on from there: here, `locally`, or in a new allocation.
`facts` makes what the judge and the ranks are told.
"""

from __future__ import annotations

import atexit
import errno
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.errors import REQUEUED_STATUS, FtslurmError, LaunchFailed
from ftslurm.launchers.placement import mpi_default, step_width
from ftslurm.launchers.python import Runtime, runtimes_of
from ftslurm.launchers.rank_logs import RankFiles
from ftslurm.launchers.srun import BCAST_VARIABLES, Delivery, SrunLauncher, beside_argv, delivery, overruled, own_step_env
from ftslurm.ledger import output
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.output import keep_evidence
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.ledger.store import Identity, open_ledger
from ftslurm.model.folds.history import History
from ftslurm.model.job import Allocation
from ftslurm.model.messages import HandoverPlan, to_message
from ftslurm.model.ports import Launcher, Scheduler
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.kinds import port_range
from ftslurm.model.settings.tree import Settings, with_values
from ftslurm.model.text import counted, whole
from ftslurm.model.values import replace
from ftslurm.policies.judge.judge import Judge
from ftslurm.policies.judge.phases import OutputPlace, RunFacts
from ftslurm.policies.take_over import may_take_over
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import JobState
from ftslurm.system.clock import Clock
from ftslurm.system.commands import run as run_command
from ftslurm.system.files import raise_limit
from ftslurm.system.processes import killed_after_s
from ftslurm.wrapper.controller.callers import CallerLimits
from ftslurm.wrapper.controller.controller import Controller
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.effects import Effects
from ftslurm.wrapper.controller.facts import (
    check_descriptors,
    cycle_link,
    earlier_runs,
    facts_of,
    keys_without_effect,
    known_clean_up_times,
    ran_before,
    rank_logs_of,
    rank_setup,
    suspects,
    tell_others,
)
from ftslurm.wrapper.controller.live import LiveBoard, LiveTeller
from ftslurm.wrapper.controller.output_files import output_place, output_to, own_files, own_stderr, ranks_files
from ftslurm.wrapper.controller.people import Display, People, notices_for
from ftslurm.wrapper.controller.scheduler import SlurmScheduler
from ftslurm.wrapper.controller.sources import SignalPipe, Sources
from ftslurm.wrapper.controller.survey import JobSite, Order, say
from ftslurm.wrapper.wire import ENVIRONMENT, FILE, SecretFile, munge_socket, of_this_node, own_address, secret_word

if TYPE_CHECKING:
    from ftslurm.launchers.rank_logs import RankLogs


# --- Joins the parts of one ftrun to a controller, for both launchers.


def joined(
    order: Order, settings: Settings, history: History, facts: RunFacts, journal: Journal, launcher: Launcher,
    scheduler: Scheduler, addresses: list[str], memory: NodeMemory | None = None, runs: Callable[[], bool] = lambda: True,
    ports: tuple[int, int] | None = None, munge: str | None = None, bundle: str = "", alone: bool = True,
) -> Controller:  # fmt: skip
    """memory: of nodes, for later jobs; None where node names mean nothing. runs: does slurmctld say that the job does?
    ports: one of them is ours. munge: see secret_word. bundle: see Site. alone: see RankSetup. Raises: FtslurmError."""
    clock, signals, diagnosis = Clock(), SignalPipe(), Diagnosis(settings)
    keep_bytes = settings.logs.keep_bytes if facts.launcher == "srun" else 0  # nobody else runs a script anew
    files, ranks, logs = own_files(order.env), ranks_files(order.components, order.env, facts.number), rank_logs_of(settings)
    facts = replace(facts, output=_output_place(files, ranks, logs, facts.number))
    if settings.catalogs:
        diagnosis.load()  # what is wrong with a site's own file is said before the job begins
    meaning = fault_lookup(settings.devices.user_induced, settings.catalogs)
    raise_limit()
    address = own_address(settings.nodes.address, of_this_node()) if settings.nodes.address else ""
    limits = CallerLimits(settings.lease.time_s, settings.nodes.silence_s, settings.stop.grace_s)
    plans = _handover_plans(facts, settings, journal.path, whole(order.env.get("SLURM_TASK_PID", "")) or 0)
    sources = Sources(clock, signals, meaning, address, limits, ports, runs, plans)
    check_descriptors(sources.server.most, order, len(facts.nodes))
    channel = _channel(order, settings, journal.path, sources, address, addresses, munge, facts.launcher == "local", bundle)
    people = People(
        order.verbose, past=journal.seen, notices_wait_s=settings.notify.end_wait_s,
        notices=notices_for(settings, journal.path.parent.parent, facts.job, _about(facts), say),
    )  # fmt: skip
    effects = Effects(
        sources, launcher, scheduler, signals, clock, channel, diagnosis, Display(scheduler.show), people,
        rank_setup(order, settings, logs, bundle, alone),
        left=lambda told: tell_others(memory, facts, told),
        keep=lambda attempt, node, text: keep_evidence(journal.path, attempt, node, text),
        keep_output=lambda: output.keep_files(journal.path, facts.schedule, files, keep_bytes),
    )  # fmt: skip
    _begin_to_tell(people, order, settings, facts, history, journal.path, sources)
    board = sources.reports.observer = LiveBoard(sources, facts.run)
    live = LiveTeller(journal.path, sources, board)
    return Controller(Judge(settings, history, facts), sources, effects, journal, clock, live)


def _output_place(files: tuple[str, ...], ranks: RankFiles, logs: RankLogs | None, number: int) -> OutputPlace:
    log, labels = output_place(ranks, number, own_stderr())
    if logs is not None and (place := logs.place_of_errors()):
        log, labels = place
    return OutputPlace(output_to(files, ranks, logs.as_text() if logs else ""), log, labels)


def _handover_plans(facts: RunFacts, settings: Settings, ledger: Path, script: int) -> Callable[[str], dict[str, Any] | None]:
    """node -> what its agent is left with, None for one that could not go on without us. script: see HandoverPlan."""
    if facts.batch_node not in facts.nodes:
        return lambda node: None
    plan = HandoverPlan(
        str(ledger), facts.number, facts.schedule, facts.run, facts.job, facts.cluster, facts.batch_node, facts.nodes, settings,
        script,
    )  # fmt: skip
    return lambda node: to_message(plan) if may_take_over(plan, node) else None


def _channel(
    order: Order, settings: Settings, ledger: Path, sources: Sources, address: str, addresses: list[str], munge: str | None,
    local: bool, bundle: str,
) -> Callable[[int], str]:  # fmt: skip
    """What shims and agents are told of how to reach us: see Effects. address: to be used, empty for any of `addresses`."""
    runtimes = runtimes_of(order.components, order.env)
    mounted = bool(bundle) and runtimes == {Runtime.PYXIS}
    file = SecretFile(Path(bundle) if mounted else ledger.parent.parent, ledger.stem)
    atexit.register(file.remove)
    contained = runtimes != {Runtime.NONE}

    def channel(launch: int) -> str:
        """Made for each launch: munge's key may have been exchanged since the last."""
        wanted = ENVIRONMENT if local else settings.nodes.secret  # it does not leave this machine
        word = secret_word(sources.server.secret, wanted, munge, contained, say, file if mounted or wanted == FILE else None)
        return sources.server.channel_text([address] if address else addresses, only=bool(address), word=word, launch=launch)

    return channel


def _about(facts: RunFacts) -> str:
    """Where the job runs, for people who are elsewhere."""
    name, nodes = facts.name or facts.command[:60], counted(len(facts.nodes), "node")
    return f"({name} on {facts.cluster}, ftrun on {facts.process.host}, {nodes})"


def _begin_to_tell(
    people: People, order: Order, settings: Settings, facts: RunFacts, history: History, ledger: Path, sources: Sources
) -> None:
    """Gives `people` what else they are told by, and says what of the order will not be."""
    if settings.metrics.dir or settings.metrics.otlp:
        from ftslurm.wrapper.metrics import measured

        people.at_end = measured(settings, facts.job, facts.cluster, ledger, sources.numbers, people.say)
    if facts.why_not.swap and (settings.node_replacement.enabled or settings.shrink.enabled):
        people.say(f"ftrun cannot replace a node of this step: {facts.why_not.swap}")
    if link := cycle_link(settings, order.env, facts.number):
        from ftslurm.wrapper.controller.cycles import Cycles

        people.cycles = Cycles(link, facts.granted or facts.nodes, settings.logs.cycle_files, people.say, history)
    for sentence in keys_without_effect(settings):
        people.say(f"of ft_launcher's configuration {sentence}")
    for component in order.components:
        for sentence in overruled(component.options, settings.mode == "sync"):
            people.say(sentence)


BCAST_LIMIT_S = 3600.0
# From the end of the grace to that of ftrun, at whose kill the ranks' last words, and its status, are lost.
TO_END_S = 2.0


def run_on_slurm(order: Order, site: JobSite) -> int:
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
    scheduler = SlurmScheduler(
        client, number, allocation.restarts, order.env, site.python, run_command, settings, nodes=allocation.nodes,
        ledger=journal.path,
    )  # fmt: skip
    config = _config(site, client)
    can = frozenset(Capability) - (frozenset() if opened.lasts else {Capability.REQUEUE})
    facts = facts_of(order, allocation, "srun", can, site.resolved, mpi_default(settings, config))
    facts = replace(facts, why_not=replace(facts.why_not, requeue=_why_no_requeue(site, allocation, can)))
    memory = NodeMemory(root)
    facts = replace(facts, clean_ups=known_clean_up_times(root, facts, history))
    facts = replace(facts, remembered=suspects(memory, facts, settings))
    facts = replace(facts, earlier=earlier_runs(journal, history, facts, settings, client, scheduler))
    controller = joined(
        order, settings, history, facts, journal, launcher, scheduler, _addresses(order), memory,
        lambda: _runs(client, allocation), ports=settings.nodes.ports or srun_ports(config), munge=munge_socket(config),
        bundle=site.bundle, alone=signals_task_alone(config),
    )  # fmt: skip
    status = controller.run()
    if status != REQUEUED_STATUS:
        journal.close()
    return status


def _why_no_requeue(site: JobSite, allocation: Allocation, can: frozenset[Capability]) -> str:
    if Capability.REQUEUE not in can:
        return "its state has no place that a requeue would find again"
    if not allocation.batch:
        return "only a batch job can be requeued"
    allowed = site.view is None or site.view.requeue or site.settings.requeue.even_if_no_requeue
    return "" if allowed else "it was submitted with --no-requeue"


def srun_launcher(order: Order, site: JobSite, allocation: Allocation) -> SrunLauncher:
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
    """Does Slurm signal a task, and not what is below it? Where nobody tells, its default is. Source: proctrack_p_signal in
    Slurm's proctrack plugins.
    """
    return config.get("ProctrackType", "proctrack/cgroup") == "proctrack/cgroup"


def _config(site: JobSite, client: SlurmClient) -> Mapping[str, str]:
    """Empty where slurmctld does not tell. It may have come back since it was first asked."""
    for ask in (site.config or client.config, client.config):
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
