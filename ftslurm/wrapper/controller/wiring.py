"""Builds the parts of one ftrun and joins them. The only place that chooses."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftslurm
from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.config.settings_files import Request, settings_in_force
from ftslurm.errors import REQUEUED_STATUS, FtslurmError, SlurmUnavailable, StateError, UsageError
from ftslurm.launchers import multi_prog
from ftslurm.launchers.launcher import Launcher
from ftslurm.launchers.placement import mpi_default, step_width, why_no_swap, why_not_over_two_jobs
from ftslurm.launchers.python import Python
from ftslurm.launchers.same_share import by_cpu
from ftslurm.launchers.srun import SrunLauncher, overruled
from ftslurm.launchers.srun_options import Component, has_flag, join_components, option_value
from ftslurm.ledger import evidence, output
from ftslurm.ledger.clean_ups import CleanUps, known_clean_ups
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.nodes import NodeMemory
from ftslurm.ledger.requests import RequestReader
from ftslurm.ledger.store import Identity, Store, state_folder
from ftslurm.model.decisions import TellOthers
from ftslurm.model.folds.history import CleanUpTook, History, clean_up_of, fold
from ftslurm.model.job import Allocation, JobId
from ftslurm.model.layout import Layout
from ftslurm.model.messages.handover import HandoverPlan, to_message
from ftslurm.model.numbers import whole
from ftslurm.model.record import RunBegan
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.told import places_told
from ftslurm.model.settings.tree import Resolved, Settings, port_range
from ftslurm.model.text import counted, visible
from ftslurm.model.values import dataclass
from ftslurm.policies.environment import hiding_variable, of_the_job
from ftslurm.policies.judge.judge import Judge
from ftslurm.policies.judge.phases import EarlierRuns, Environments, OutputPlace, OwnProcess, RunFacts, WhyNot
from ftslurm.policies.lease.predecessors import is_gone, predecessors
from ftslurm.policies.lease.take_over import cut_short, may_take_over
from ftslurm.policies.node.memory import suspect_nodes, to_remember
from ftslurm.sdk.page import start_ticks
from ftslurm.slurm.choice import choose_client
from ftslurm.slurm.client import JobState, JobView, NodeState, SlurmClient
from ftslurm.slurm.env import read_allocation
from ftslurm.slurm.retries import Retries
from ftslurm.system.clock import Clock
from ftslurm.system.commands import run as run_command
from ftslurm.system.descriptors import raise_limit
from ftslurm.system.processes import pid_space
from ftslurm.system.programs import with_folder
from ftslurm.wrapper.controller.callers import Limits
from ftslurm.wrapper.controller.controller import Controller
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.effects import Effects, Scheduler
from ftslurm.wrapper.controller.live import LiveBoard, LiveTeller
from ftslurm.wrapper.controller.orders import RankSetup
from ftslurm.wrapper.controller.people import People
from ftslurm.wrapper.controller.scheduler import SlurmScheduler
from ftslurm.wrapper.controller.signals import Signals
from ftslurm.wrapper.controller.sources import Sources
from ftslurm.wrapper.output.output_files import output_to, own_files, ranks_files
from ftslurm.wrapper.output.rank_output import output_place, own_stderr
from ftslurm.wrapper.requeue.lenders import Lenders
from ftslurm.wrapper.telling.notices import notices_for
from ftslurm.wrapper.wire.addresses import chosen, of_this_node
from ftslurm.wrapper.wire.secret_word import (
    ENVIRONMENT,
    FILE,
    SecretFile,
    begins_in_a_container,
    is_seen_in_containers,
    munge_socket,
    secret_word,
)

if TYPE_CHECKING:
    from ftslurm.launchers.allocation import NewAllocation
    from ftslurm.launchers.rank_logs import RankLogs

# What only a run outside an allocation, or without Slurm, needs is loaded there: the others start sooner.


@dataclass(frozen=True, slots=True)
class Order:
    """What ftrun was asked to do: the user's components, the settings request, and the world it runs in."""

    components: tuple[Component, ...]
    request: Request
    env: Mapping[str, str]
    verbose: bool = False
    own: tuple[str, ...] = ()  # our options, as given

    @property
    def command(self) -> str:
        """For people, and to tell one ftrun of a script from another."""
        return " : ".join(shlex.join(component.command) for component in self.components)


class Place(Enum):
    """Where ftrun finds itself."""

    ALLOCATION = "in an allocation"
    OUTSIDE = "where one can be asked for"
    LOCAL = "where tasks are processes of this machine"


@dataclass(frozen=True, slots=True)
class Site:
    """Where the job runs. env: for all that is started there. allocation, client, view: in an allocation, else None.
    no_slurm: why the local launcher serves though nobody has asked for it."""

    resolved: Resolved
    env: Mapping[str, str]
    place: Place
    allocation: Allocation | None = None
    client: SlurmClient | None = None
    view: JobView | None = None
    no_slurm: str = ""

    @property
    def settings(self) -> Settings:
        return self.resolved.settings

    @property
    def local(self) -> bool:
        return self.place is Place.LOCAL


def survey(order: Order) -> Site:
    """Settings in force and the allocation, if any. Raises: FtslurmError."""
    resolved = settings_in_force(order.request, order.env)
    settings = resolved.settings
    env = _of_job_named(order, with_folder(order.env, settings.slurm_bin))
    if settings.launcher == "local":
        return Site(resolved, env, Place.LOCAL)
    site = Site(resolved, env, Place.ALLOCATION, read_allocation(env))
    if site.allocation is None:
        return _survey_outside(site)
    client = choose_client(resolved.settings.slurm_client, resolved.settings.slurm_timeout_s, env)
    number = site.allocation.job.number
    patience = Retries(resolved.settings.slurm_patience_s)
    view = patience.keep_asking(lambda: client.job(number), _say)
    resolved = settings_in_force(order.request, order.env, view.comment)
    allocation = replace(
        site.allocation, nodes=view.nodes or site.allocation.nodes, restarts=view.restarts, start_time=view.start_time,
        batch=view.batch, granted=site.allocation.nodes, submit_time=view.submit_time,
    )  # fmt: skip
    return replace(site, resolved=resolved, allocation=allocation, client=client, view=view)


def _say(text: str) -> None:
    print(f"ftrun: {visible(text)}", file=sys.stderr, flush=True)


def _of_job_named(order: Order, env: Mapping[str, str]) -> Mapping[str, str]:
    """--jobid puts the step into a job that runs, wherever srun is called from; it is named by the program, and not by ours."""
    component = order.components[0]
    number = option_value(component.options, "jobid")
    if not number or "SLURM_JOB_ID" in env:
        return env
    return {"SLURM_JOB_NAME": component.command[0].rpartition("/")[2], **env, "SLURM_JOB_ID": number}


def _survey_outside(site: Site) -> Site:
    """Raises: UsageError where an allocation is wanted and nobody can give one."""
    from ftslurm.slurm.presence import why_no_slurm

    why = why_no_slurm(run_command, site.env, site.settings.slurm_timeout_s)
    if not why:
        return replace(site, place=Place.OUTSIDE)
    if site.settings.launcher == "srun":
        raise UsageError(
            f"--ft-launcher srun needs Slurm: {why}",
            hint="run ftrun where you submit jobs, or omit --ft-launcher",
        )
    return replace(site, place=Place.LOCAL, no_slurm=why)


def run_job(order: Order) -> int:
    """Run the job to its end, or to its requeue. Gives the exit status. Raises: FtslurmError before it has begun."""
    site = survey(order)
    order = replace(order, env=site.env)
    if site.place is Place.OUTSIDE:
        from ftslurm.wrapper.controller.allocating import run_in_new_allocation

        return run_in_new_allocation(_request(order, site.settings), order.own, _python(site.settings))
    store = Store(state_folder(order.env))
    if not site.local:
        return _run_on_slurm(order, site, store)
    if len(order.components) > 1:
        raise UsageError("a heterogeneous step (`:`) needs Slurm", hint="run it in an allocation, or run separate commands")
    number, journal = store.new_local()
    while (status := _run_locally(order, site, number, journal)) == REQUEUED_STATUS:
        pass  # the same command again in a new allocation, as Slurm would run the script again
    journal.close()
    return status


def _request(order: Order, settings: Settings) -> NewAllocation:
    """Raises: UsageError."""
    if len(order.components) > 1:
        raise UsageError(
            "ftrun cannot request an allocation for a heterogeneous step (`:`)",
            hint="run ftrun in a script for sbatch, or within salloc",
        )
    from ftslurm.launchers.allocation import new_allocation

    return new_allocation(order.components[0], order.env, settings.spares)


def _run_on_slurm(order: Order, site: Site, store: Store) -> int:
    allocation, client = site.allocation, site.client
    assert allocation is not None and client is not None
    me = Identity(
        allocation.cluster, str(allocation.job), allocation.restarts, allocation.start_time, allocation.name,
        allocation.submit_time,
    )  # fmt: skip
    journal, history = store.open(me)
    output.settle(journal.path)
    python = _python(site.settings)
    launcher = replace(_srun(order, allocation, site.settings), again=_ran_before(order, history))
    number = allocation.job.number
    lenders = Lenders(client, number, allocation.restarts, order.env, python, run_command, site.settings)
    scheduler = SlurmScheduler(
        client, number, allocation.nodes, journal.path, order.env, python, run_command,
        site.settings.slurm_client, site.settings.slurm_timeout_s, lenders,
        schedule=allocation.restarts, comments=site.settings.slurm_comment,
    )  # fmt: skip
    can = frozenset(Capability)
    config = _config(client)
    facts = _facts(order, allocation, "srun", can, site.resolved, mpi_default(site.settings, config))
    memory = NodeMemory(store.root)
    facts = replace(facts, clean_ups=_clean_ups(store.root, facts, history))
    facts = replace(facts, remembered=_remembered(memory, facts, site.settings))
    records = journal.read().records
    before = predecessors(records, allocation.restarts, allocation.start_time, _is_gone)
    unclean = before.not_cleaned_up()
    unproven, killed = before.unproven(site.settings, Clock().now().unix, _down(unclean, client) if unclean else {})
    # One that was killed while it waited for a donor has not written down which.
    orphans = lenders.submitted() if before.died_alone() else ()
    loans = tuple(dict.fromkeys((*before.loans(), *orphans)))
    earlier = EarlierRuns(unproven, killed, steps_over=before.steps_over(), loans_left=loans)
    if earlier.steps_over and facts.missing:
        listed = scheduler.steps().steps or frozenset()
        earlier = replace(earlier, beside=bool(listed) and listed <= earlier.steps_over)
    if history.last_run is not None and history.last_run.schedule < allocation.restarts:
        down = _down(frozenset({history.last_run.batch_node}), client)
        earlier = replace(earlier, cut_short=cut_short(records, allocation.restarts, down or {}, Clock().now().unix))
    facts = replace(facts, earlier=earlier)
    controller = _controller(
        order, site.settings, history, facts, journal, launcher, scheduler, [socket.gethostname()], memory,
        lambda: _runs(client, allocation), ports=site.settings.ports or srun_ports(config), munge=munge_socket(config),
    )  # fmt: skip
    status = controller.run()
    if status != REQUEUED_STATUS:
        journal.close()
    return status


def _run_locally(order: Order, site: Site, number: int, journal: Journal) -> int:
    from ftslurm.launchers.local import LocalLauncher, LocalPool, LocalScheduler, nodes_wanted

    history = fold(journal.read().records)
    options = order.components[0].options
    wanted = nodes_wanted(options)
    granted = wanted + site.settings.spares
    pool = LocalPool(site.settings.local_nodes or granted)
    kept_out = history.kept_out(Clock().now().unix, site.settings.isolation_expires_s)
    allocation = local_allocation(number, pool.allocate(granted, kept_out), history)
    launcher = LocalLauncher(
        order.components, order.env, _python(site.settings), allocation.nodes, number, site.settings.poll_s,
        step_width(order.components, allocation.size, site.settings.spares), again=_ran_before(order, history),
    )  # fmt: skip
    can = frozenset(Capability) - {Capability.PROBE, Capability.RELEASE, Capability.STEPS}
    facts = _facts(order, allocation, "local", can, site.resolved)
    scheduler = LocalScheduler(pool, granted)
    controller = _controller(order, site.settings, history, facts, journal, launcher, scheduler, ["127.0.0.1"])
    if site.no_slurm and not history.requeues.done:
        _say(f"{site.no_slurm}: the command runs on this machine alone")
    return controller.run()


def local_allocation(number: int, nodes: tuple[str, ...], history: History) -> Allocation:
    return Allocation(JobId(number), "local", nodes, restarts=history.requeues.done, batch=True)


def _controller(
    order: Order, settings: Settings, history: History, facts: RunFacts, journal: Journal, launcher: Launcher,
    scheduler: Scheduler, addresses: list[str], memory: NodeMemory | None = None, runs: Callable[[], bool] = lambda: True,
    ports: tuple[int, int] | None = None, munge: str | None = None,
) -> Controller:  # fmt: skip
    """memory: of nodes, for later jobs; None where node names mean nothing. runs: does slurmctld say that the job does?
    ports: one of them is ours. munge: see secret_word."""
    clock, signals, diagnosis = Clock(), Signals(), Diagnosis(settings)
    keep_bytes = settings.keep_bytes if facts.launcher == "srun" else 0  # nobody else runs a script anew
    files, ranks = own_files(order.env), ranks_files(order.components, order.env, facts.number)
    log, labels = output_place(ranks, facts.number, own_stderr())
    own_logs = _rank_logs(settings)
    if own_logs is not None and (place := own_logs.place_of_errors()):
        log, labels = place
    kept = output_to(files, ranks, own_logs.as_text() if own_logs else "")
    facts = replace(facts, output=OutputPlace(kept, log, labels))
    if settings.catalogs:
        diagnosis.load()  # what is wrong with a site's own file is said before the job begins
    meaning = fault_lookup(settings.user_induced, settings.catalogs)
    raise_limit()
    address = chosen(settings.address, of_this_node()) if settings.address else ""
    limits = Limits(settings.lease_s, settings.silence_s, settings.stop_grace_s)
    plans = handover_plans(facts, settings, journal.path, whole(order.env.get("SLURM_TASK_PID", "")) or 0)
    sources = Sources(clock, signals, meaning, address, limits, ports, runs, plans)
    sources.listen(RequestReader(journal.path).look)
    contained = begins_in_a_container(order.components, order.env)
    state = journal.path.parent.parent
    file = SecretFile(state, journal.path.stem)
    seen = settings.secret == FILE or is_seen_in_containers(state, order.components, order.env)
    atexit.register(file.remove)

    def channel() -> str:
        """Each time anew: munge's key may have been exchanged since."""
        wanted = ENVIRONMENT if facts.launcher == "local" else settings.secret  # it does not leave this machine
        word = secret_word(sources.server.secret, wanted, munge, contained, _say, file if seen else None)
        return sources.server.channel_text([address] if address else addresses, only=bool(address), word=word)

    people = People(
        order.verbose, past=journal.read().records, notices_wait_s=settings.notify_wait_s,
        notices=notices_for(settings, journal.path.parent.parent, facts.job, _about(facts), _say),
    )  # fmt: skip
    setup = RankSetup(
        programs(order.components), ranks.banner,
        partial(_logs_of, own_logs, order.env.get("ROLE_NAME", "default")) if own_logs is not None else None,
        settings.tail_bytes, settings.hang_interval_s if settings.hang_silence else 0.0, inject_folder(settings),
        beat_config(settings),
    )  # fmt: skip
    effects = Effects(
        sources, launcher, scheduler, signals, clock, channel, people, setup, diagnosis,
        left=lambda told: _left(memory, facts, told),
        keep=lambda attempt, node, text: evidence.keep(journal.path, attempt, node, text),
        keep_output=lambda: output.keep(journal.path, facts.schedule, files, keep_bytes),
    )  # fmt: skip
    if settings.metrics_dir or settings.metrics_otlp:
        from ftslurm.wrapper.measuring.live import measured

        people.at_end = measured(
            settings, facts.job, facts.cluster, journal.path, lambda: people.records, sources.numbers, people.say
        )
    if facts.why_not.swap and (settings.node_replacement or settings.shrink):
        people.say(f"ftrun cannot replace a node of this step: {facts.why_not.swap}")
    if folder := _cycle_info_dir(settings):
        from ftslurm.wrapper.telling.cycles import Cycles

        job = order.env.get("SLURM_ARRAY_JOB_ID") or str(facts.number)
        people.cycles = Cycles(Path(folder), job, facts.granted or facts.nodes, settings.cycle_files, people.say)
    for sentence in _without_effect(settings):
        people.say(f"of ft_launcher's configuration {sentence}")
    for component in order.components:
        for sentence in overruled(component.options, settings.mode == "sync"):
            people.say(sentence)
    board = sources.reports.observer = LiveBoard(sources, facts.run)
    live = LiveTeller(journal.path, sources, board)
    return Controller(Judge(settings, history, facts), sources, effects, journal, clock, live)


def _rank_logs(settings: Settings) -> RankLogs | None:
    """Files of their own for the ranks; None, and nothing is loaded for it, where nobody has asked for any."""
    if not (settings.log_folder or settings.cycle_files or settings.console_ranks):
        return None
    from ftslurm.launchers.rank_logs import rank_logs

    return rank_logs(settings)


def _logs_of(logs: RankLogs, role: str, rank: int, place: tuple[int, int], size: int, cycle: int) -> dict[str, Any]:
    """For the rank's shim: `folder` to be made, empty for none, and the streams."""
    from ftslurm.launchers.rank_logs import told

    return {"folder": logs.rank_folder(*place, cycle), **told(logs.streams(rank, place, size, cycle, role))}


def _about(facts: RunFacts) -> str:
    """Where the job runs, for people who are elsewhere."""
    name, nodes = facts.name or facts.command[:60], counted(len(facts.nodes), "node")
    return f"({name} on {facts.cluster}, ftrun on {facts.process.host}, {nodes})"


def _runs(client: SlurmClient, allocation: Allocation) -> bool:
    """In touch with slurmctld, and the job is still the one that we keep?"""
    try:
        view = client.job(allocation.job.number)
    except FtslurmError:
        return False
    ours = (view.restarts, view.start_time) == (allocation.restarts, allocation.start_time)
    return view.state in (JobState.RUNNING, JobState.SUSPENDED) and ours


def handover_plans(facts: RunFacts, settings: Settings, ledger: Path, script: int = 0) -> Callable[[str], dict[str, Any] | None]:
    """node -> what its agent is left with, None for one that could not go on without us. script: see HandoverPlan."""
    if facts.batch_node not in facts.nodes:
        return lambda node: None
    plan = HandoverPlan(
        str(ledger), facts.number, facts.schedule, facts.run, facts.job, facts.cluster, facts.batch_node, facts.nodes, settings,
        script,
    )  # fmt: skip
    return lambda node: to_message(plan) if may_take_over(plan, node) else None


def beat_config(settings: Settings) -> dict[str, Any]:
    """ft_launcher's configuration, checked. Raises: PolicyError."""
    from ftslurm.model.settings.ft_config import limits_from

    values: dict[str, Any] = json.loads(settings.ft_config) if settings.ft_config else {}
    limits_from(values)
    return values


def _cycle_info_dir(settings: Settings) -> str:
    """Of ft_launcher's configuration; empty for none."""
    given = json.loads(settings.ft_config).get("cycle_info_dir") if settings.ft_config else ""
    return given if isinstance(given, str) and given.lower() not in ("none", "null") else ""


def _without_effect(settings: Settings) -> tuple[str, ...]:
    if not settings.ft_config:
        return ()
    from ftslurm.model.settings.ft_config import why_ignored

    return why_ignored(json.loads(settings.ft_config))


def sdk_env(settings: Settings) -> dict[str, str]:
    """What the program interface in the ranks has to know. Raises: PolicyError."""
    from ftslurm.model.settings.ft_config import rank_env

    provide = {"FTSLURM_PROVIDE": ",".join(settings.provide)} if settings.provide else {}
    watch = {"FTSLURM_WATCH": settings.watch} if settings.watch != "L0" else {}
    return {**rank_env(beat_config(settings)), **provide, **watch}


def inject_folder(settings: Settings) -> str:
    return str(Path(ftslurm.__file__).resolve().parent / "sdk" / "inject") if settings.inject else ""


def _remembered(memory: NodeMemory, facts: RunFacts, settings: Settings) -> Mapping[str, str]:
    """node -> why it is suspect to this job. A memory that cannot be read is none."""
    try:
        known = memory.read()
    except StateError:
        return {}
    return suspect_nodes(known, facts.cluster, facts.job, Clock().now().unix, settings)


def _clean_ups(root: Path, facts: RunFacts, history: History) -> tuple[CleanUpTook, ...]:
    """Those known, with the one before this scheduling, which is remembered from now on; that it cannot be is no harm."""
    began = RunBegan(0.0, "", facts.job, facts.cluster, facts.schedule, "", "", "", submit_time=facts.submit_time)
    new = clean_up_of(history, began)
    known = known_clean_ups(root, facts.cluster, history)
    with suppress(StateError):
        for took in new:
            CleanUps(root).add(facts.cluster, facts.job, Clock().now().unix, took)
    return (*known, *new)


def _is_gone(began: RunBegan) -> bool:
    """Has that ftrun ended, as far as this machine can tell?"""
    return is_gone(began, socket.gethostname(), pid_space(), start_ticks(began.pid))


def _down(nodes: frozenset[str], client: SlurmClient) -> dict[str, str] | None:
    """node -> Slurm's words, of those that it takes for dead; None where it does not answer."""
    try:
        views = {view.name: view for view in client.nodes()}
    except SlurmUnavailable:
        return None
    return {node: f"Slurm says {views[node].words}" for node in nodes & views.keys() if views[node].state is NodeState.BAD}


def _left(memory: NodeMemory | None, facts: RunFacts, told: TellOthers) -> None:
    """Raises: StateError."""
    if memory is None:
        return
    known = memory.read() if told.reinstated else ()
    if records := to_remember(told, known, facts.cluster, facts.job, Clock().now().unix):
        memory.add(records)


def _config(client: SlurmClient) -> Mapping[str, str]:
    """Empty where slurmctld does not tell."""
    try:
        return client.config()
    except FtslurmError:
        return {}


def srun_ports(config: Mapping[str, str]) -> tuple[int, int] | None:
    """Those that srun keeps to, since a firewall may let no others through. Source: slurm.conf(5), SrunPortRange."""
    try:
        return port_range(config.get("SrunPortRange", ""))
    except ValueError:
        return None


def _facts(
    order: Order, allocation: Allocation, launcher: str, can: frozenset[Capability], resolved: Resolved, mpi_default: str = ""
) -> RunFacts:
    command, settings = order.command, resolved.settings
    wide = step_width(order.components, allocation.size, settings.spares)
    no_swap = why_no_swap(order.components, order.env, allocation.nodes, allocation.size, wide)
    no_donor = why_not_over_two_jobs(order.components[0].options, order.env, mpi_default)
    return RunFacts(
        run=os.urandom(4).hex(),
        job=str(allocation.job),
        cluster=allocation.cluster,
        schedule=allocation.restarts,
        step_key=step_key(command),
        command=command[:2000],
        nodes=allocation.nodes,
        start_time=allocation.start_time,
        name=allocation.name,
        launcher=launcher,
        number=allocation.job.number,
        can=can - ({Capability.REPLACE} if no_swap else set()),
        why_not=WhyNot(
            no_donor if launcher == "srun" else "there is no Slurm",
            no_swap,
            no_donor if by_cpu(order.components[0].options, order.env) else "",
        ),
        width=wide,
        batch_node=order.env.get("SLURMD_NODENAME", ""),
        granted=allocation.granted,
        submit_time=allocation.submit_time,
        process=OwnProcess(ftslurm.__version__, socket.gethostname(), os.getpid(), pid_space(), start_ticks(os.getpid()) or 0),
        env=Environments(
            of_the_job(order.env),
            frozenset(order.env),
            sdk_env(settings),
            hiding_variable(order.env),
        ),
        places=places_told(resolved),
    )


def _ran_before(order: Order, history: History) -> bool:
    """In an earlier scheduling or by an earlier ftrun: then its files hold what must not be overwritten."""
    key = step_key(order.command)
    return any(step == key for _, step in history.slots.starts)


def _srun(order: Order, allocation: Allocation, settings: Settings) -> SrunLauncher:
    wide = step_width(order.components, allocation.size, settings.spares)
    return SrunLauncher(order.components, order.env, _python(settings), settings.poll_s, allocation.size, wide)


def step_key(command: str) -> str:
    """Which ftrun of a script: the same command is the same step."""
    return blake2s(command.encode(errors="surrogateescape"), digest_size=6).hexdigest()


def _python(settings: Settings) -> Python:
    return Python(settings.python or sys.executable, str(Path(ftslurm.__file__).resolve().parent.parent))


def programs(components: tuple[Component, ...]) -> Callable[[int], Mapping[int, tuple[str, ...]]]:
    """For --multi-prog: how many tasks -> rank -> argv. Raises: UsageError when the file cannot be read."""
    first = components[0]
    if not has_flag(first.options, "multi-prog"):
        return lambda tasks: {}
    if len(components) > 1:
        raise UsageError("--multi-prog in a heterogeneous step is not supported", hint="give each component its program")
    file, *arguments = first.command
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--multi-prog: {file} cannot be read: {error}", hint="correct the path") from None
    return lambda tasks: multi_prog.parse(text, file, tuple(arguments), tasks)


def dry_run(order: Order) -> str:
    """What would run, as text: one command a line, then what is in force."""
    site = survey(order)
    order = replace(order, env=site.env)
    python = _python(site.settings)
    if site.place is Place.OUTSIDE:
        request = _request(order, site.settings)
        argv = ("salloc", *request.salloc, "ftrun", *order.own, *join_components([request.component]))
        return f"# ftrun requests an allocation and runs in it:\n{shlex.join(argv)}"
    lines = [f"# launcher: {'local' if site.local else 'srun'}, restart via {site.settings.restart_via}"]
    if site.local:
        from ftslurm.launchers.local import LocalLauncher, LocalPool, nodes_wanted

        granted = nodes_wanted(order.components[0].options) + site.settings.spares
        nodes = LocalPool(site.settings.local_nodes or granted).allocate(granted, ())
        wide = step_width(order.components, len(nodes), site.settings.spares)
        launcher: Launcher = LocalLauncher(order.components, order.env, python, nodes, 1, site.settings.poll_s, wide)
    else:
        assert site.allocation is not None
        nodes = site.allocation.nodes
        launcher = _srun(order, site.allocation, site.settings)
    layout = None
    if site.settings.spares:
        size = site.allocation.size if site.allocation else len(nodes)
        nodes = nodes[: step_width(order.components, size, site.settings.spares)]
        layout = Layout(nodes)
    lines += ["# the step:", *(shlex.join(argv) for argv in launcher.step_argvs(layout))]
    lines += ["# the agents:", shlex.join(launcher.watch_argv(nodes))]
    lines += [f"# the ledger: below {state_folder(order.env)}"]
    lines += [f"# ladder: {', '.join(site.settings.ladder)}; max_restarts {site.settings.max_restarts}"]
    return "\n".join(lines)
