"""What does not change during one ftrun: for the judge, for the ranks, and what earlier ftruns and jobs have left."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftslurm
from ftslurm.errors import LaunchFailed, SlurmUnavailable, StateError, UsageError
from ftslurm.launchers.placement import parse_multi_prog, step_width, why_not_over_two_jobs, why_not_placed
from ftslurm.launchers.script_place import CallPlace, read_calls
from ftslurm.launchers.srun import wait_s
from ftslurm.launchers.srun_options import Component, by_cpu, has_flag, option_value, said
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.shared_file import NodeMemory, add_clean_up, known_clean_ups
from ftslurm.model.decisions import TellOthers
from ftslurm.model.folds.history import CleanUpTook, History, clean_up_of
from ftslurm.model.folds.node_memory import suspect_nodes, to_remember
from ftslurm.model.job import Allocation, Call, Reading
from ftslurm.model.record import RunBegan
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Resolved, Settings, places_told
from ftslurm.model.text import counted, fingerprint, whole
from ftslurm.model.values import replace
from ftslurm.policies.environment import of_rendezvous, of_the_job, showing_none
from ftslurm.policies.judge.phases import EarlierRuns, Environments, OwnProcess, RunFacts, WhyNot
from ftslurm.policies.lease import is_gone, predecessors
from ftslurm.policies.take_over import cut_short
from ftslurm.sdk.page import start_ticks
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import NodeState
from ftslurm.system.bundle import PACKAGES
from ftslurm.system.clock import Clock
from ftslurm.system.processes import callers, pid_space
from ftslurm.wrapper.controller.orders import RankSetup
from ftslurm.wrapper.controller.scheduler import SlurmScheduler
from ftslurm.wrapper.controller.survey import Order, say

if TYPE_CHECKING:
    from ftslurm.launchers.rank_logs import RankLogs


# --- What the ranks are started with, beside their environment: programs, ft_launcher's configuration, files of their own.


def rank_setup(order: Order, settings: Settings, logs: RankLogs | None, bundle: str = "", alone: bool = True) -> RankSetup:
    """bundle: see Site. alone: see RankSetup. Raises: UsageError, PolicyError."""
    hang = settings.hang
    return RankSetup(
        _programs(order.components),
        partial(_logs_of, logs, order.env.get("ROLE_NAME", "default")) if logs is not None else None,
        settings.logs.tail_bytes, hang.interval_s if hang.log_silence else 0.0, _inject_folder(settings, bundle),
        _spare(settings), alone, beat_config(settings),
    )  # fmt: skip


def rank_logs_of(settings: Settings) -> RankLogs | None:
    """Files of their own for the ranks; None, and nothing is loaded for it, where nobody has asked for any."""
    logs = settings.logs
    if not (logs.folder or logs.cycle_files or logs.local_ranks):
        return None
    from ftslurm.launchers.rank_logs import RankLogs

    return RankLogs(logs.folder, logs.redirects, logs.tee, logs.local_ranks, logs.cycle_files, logs.line_prefix)


def _logs_of(logs: RankLogs, role: str, rank: int, place: tuple[int, int], size: int, cycle: int) -> dict[str, Any]:
    """For the rank's shim: `folder` to be made, empty for none, and the streams."""
    from ftslurm.launchers.rank_logs import logs_told

    return {"folder": logs.rank_folder(*place, cycle), **logs_told(logs.streams(rank, place, size, cycle, role))}


def _programs(components: tuple[Component, ...]) -> Callable[[int], Mapping[int, tuple[str, ...]]]:
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
    return lambda tasks: parse_multi_prog(text, file, tuple(arguments), tasks)


def _inject_folder(settings: Settings, bundle: str) -> str:
    package = Path(bundle, PACKAGES, "ftslurm") if bundle else Path(ftslurm.__file__).resolve().parent
    return str(package / "sdk" / "inject") if settings.sdk.inject else ""


def _spare(settings: Settings) -> Mapping[str, object]:
    warm = settings.warm
    asked = {"after_s": warm.after_s, "memory": warm.memory << 20, "packages": ",".join(warm.packages)}
    return asked if warm.restart else {}


# --- ft_launcher's configuration


def _given(settings: Settings) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(settings.fault_tolerance) if settings.fault_tolerance else {}
    return values


def beat_config(settings: Settings) -> dict[str, Any]:
    """As it was given, and checked. Raises: PolicyError."""
    from ftslurm.model.settings.ft_config import limits_from

    values = _given(settings)
    limits_from(values)
    return values


def cycle_link(settings: Settings, env: Mapping[str, str], number: int) -> Path | None:
    """To ft_launcher's record of the last cycle; None where no records are wanted."""
    given = str(_given(settings).get("cycle_info_dir") or "none")
    name = f"cycle_info.{env.get('SLURM_ARRAY_JOB_ID') or number}.current"
    return None if given.lower() in ("none", "null") else Path(given).absolute() / name


def keys_without_effect(settings: Settings) -> tuple[str, ...]:
    """A sentence for each."""
    from ftslurm.config.ft_launcher import why_ignored

    return why_ignored(_given(settings))


def sdk_env(settings: Settings, cycles: Path | None) -> dict[str, str]:
    """What the program interface in the ranks has to know. cycles: as `cycle_link`. Raises: PolicyError."""
    from ftslurm.model.settings.ft_config import rank_env

    provide = {"FTSLURM_PROVIDE": ",".join(settings.sdk.provide)} if settings.sdk.provide else {}
    watch = {"FTSLURM_WATCH": settings.hang.watch} if settings.hang.watch != "L0" else {}
    cycle = {"NVRX_CURRENT_CYCLE_INFO": str(cycles)} if cycles else {}
    return {**rank_env(beat_config(settings)), **provide, **watch, **cycle}


def check_descriptors(most: int, order: Order, nodes: int) -> None:
    """Each rank and each node's agent keeps a connection to ftrun. most: connections that ftrun may have at the same time.

    Raises: LaunchFailed before anything starts: ranks that cannot connect would name a firewall as the cause.
    """
    ranks = sum(_ranks_at_least(component.options, order.env, nodes) for component in order.components)
    if ranks + nodes > most:
        raise LaunchFailed(
            f"{ranks} ranks on {counted(nodes, 'node')} need {ranks + nodes} connections to ftrun, which may open {most} here",
            hint="raise the hard limit of open files where ftrun runs (`ulimit -Hn`; LimitNOFILE of slurmd)",
        )


def _ranks_at_least(options: Sequence[str], env: Mapping[str, str], nodes: int) -> int:
    """By what was said of their number; srun may make more of them."""
    if tasks := whole(option_value(options, "ntasks") or ""):
        return tasks
    said = any(has_flag(options, name) for name in ("nodes", "nodelist", "ntasks-per-node"))
    if not said and (tasks := whole(env.get("SLURM_NTASKS", ""))):
        return tasks
    wide = whole(option_value(options, "nodes") or "") or (1 if has_flag(options, "nodes") else nodes)
    return wide * (whole(option_value(options, "ntasks-per-node") or "") or 1)


def earlier_runs(
    journal: Journal, history: History, facts: RunFacts, settings: Settings, client: SlurmClient, scheduler: SlurmScheduler
) -> EarlierRuns:
    """Of this job, by its ledger and by Slurm's word."""
    records = journal.seen  # what has come since is another ftrun's, and changes the history too
    before = predecessors(records, facts.schedule, facts.start_time, ftrun_is_gone)
    unclean = before.not_cleaned_up()
    unproven, killed = before.unproven(settings, Clock().now().unix, _down(unclean, client) if unclean else {})
    # One that was killed while it waited for a donor has not written down which.
    orphans = scheduler.submitted() if before.died_alone() else ()
    loans = tuple(dict.fromkeys((*before.loans(), *orphans)))
    earlier = EarlierRuns(unproven, killed, steps_over=before.steps_over(), loans_left=loans)
    if earlier.steps_over and facts.missing:
        listed = scheduler.steps().steps or frozenset()
        earlier = replace(earlier, beside=bool(listed) and listed <= earlier.steps_over)
    if history.last_run is not None and history.last_run.schedule < facts.schedule:
        down = _down(frozenset({history.last_run.batch_node}), client)
        now = Clock().now().unix
        clean = min(facts.submit_time or now, now)
        earlier = replace(earlier, cut_short=cut_short(records, facts.schedule, down or {}, clean))
    return earlier


def ftrun_is_gone(began: RunBegan) -> bool:
    """Has that ftrun ended, as far as this machine can tell?"""
    return is_gone(began, socket.gethostname(), pid_space(), start_ticks(began.pid))


def _down(nodes: frozenset[str], client: SlurmClient) -> dict[str, str] | None:
    """node -> Slurm's words, of those that it takes for dead; None where it does not answer."""
    try:
        views = {view.name: view for view in client.nodes()}
    except SlurmUnavailable:
        return None
    return {node: f"Slurm says {views[node].words}" for node in nodes & views.keys() if views[node].state is NodeState.BAD}


def suspects(memory: NodeMemory, facts: RunFacts, settings: Settings) -> Mapping[str, str]:
    """node -> why it is suspect to this job; people are told where the memory cannot be read, and so no node is avoided."""
    try:
        known = memory.read()
    except StateError as error:
        say(f"{error}: this job avoids no node that an earlier one excluded")
        return {}
    return suspect_nodes(known, facts.cluster, facts.job, Clock().now().unix, settings)


def tell_others(memory: NodeMemory | None, facts: RunFacts, told: TellOthers) -> None:
    """memory: None where node names mean nothing. Raises: StateError."""
    if memory is None:
        return
    known = memory.read() if told.reinstated else ()
    if records := to_remember(told, known, facts.cluster, facts.job, Clock().now().unix):
        memory.add(records)


def known_clean_up_times(root: Path, facts: RunFacts, history: History) -> tuple[CleanUpTook, ...]:
    """Those known, with the one before this scheduling, which is remembered from now on; that it cannot be is no harm."""
    began = RunBegan(0.0, "", facts.job, facts.cluster, facts.schedule, "", "", "", submit_time=facts.submit_time)
    new = clean_up_of(history, began)
    known = known_clean_ups(root, facts.cluster, history)
    with suppress(StateError):
        for took in new:
            add_clean_up(root, facts.cluster, facts.job, Clock().now().unix, took)
    return (*known, *new)


_COMMAND_MAX = 2000  # characters of it that are told


def facts_of(
    order: Order, allocation: Allocation, launcher: str, can: frozenset[Capability], resolved: Resolved, mpi_default: str = ""
) -> RunFacts:
    """can: of the launcher; this step may rule some out. mpi_default: see placement. Raises: UsageError, PolicyError."""
    command, settings = order.command, resolved.settings
    wide = step_width(order.components, allocation.size, settings.nodes.spares)
    no_swap = why_not_placed(order.components)
    no_donor = why_not_over_two_jobs(order.components[0].options, order.env, mpi_default)
    read = call_read(order.components) if launcher == "srun" else Call()
    again = input_spent(order)
    sdk = sdk_env(settings, cycle_link(settings, order.env, allocation.job.number))
    by_itself = again if launcher != "srun" else ""  # without Slurm no script runs again at a requeue, ftrun does
    return RunFacts(
        run=os.urandom(4).hex(),
        job=str(allocation.job),
        cluster=allocation.cluster,
        schedule=allocation.restarts,
        step_key=step_key(command),
        command=command[:_COMMAND_MAX],
        nodes=allocation.nodes,
        start_time=allocation.start_time,
        name=allocation.name,
        launcher=launcher,
        number=allocation.job.number,
        can=can - ({Capability.REPLACE} if no_swap else set()) - ({Capability.REQUEUE} if by_itself else set()),
        why_not=WhyNot(
            no_donor if launcher == "srun" else "there is no Slurm",
            no_swap,
            again=again,
            requeue=by_itself,
            split=no_donor if by_cpu(order.components[0].options, order.env) else "",
        ),
        width=wide,
        batch_node=order.env.get("SLURMD_NODENAME", ""),
        granted=allocation.granted,
        submit_time=allocation.submit_time,
        ends_at=allocation.end_time if allocation.batch else 0,
        process=OwnProcess(
            ftslurm.__version__,
            socket.gethostname(),
            os.getpid(),
            pid_space(),
            start_ticks(os.getpid()) or 0,
            read,
            max(wait_s(component.options, order.env) for component in order.components),
        ),
        env=Environments(of_the_job(order.env), frozenset(order.env), sdk, of_rendezvous(order.env), showing_none(order.env)),
        places=places_told(resolved),
    )


def input_spent(order: Order) -> str:
    """Why this ftrun cannot start its ranks again: what they read from its input is there once, and a second start that finds
    the end may take that for a program without a line, and end well. Empty where nothing is to be read.

    A pipe whose first byte comes later is not noticed.
    """
    for component in order.components:
        source = said(component.options, order.env, "input") or "all"
        # With a file for each task the shim reads it from its beginning.
        if source.lower() != "none" and "%" not in source and _to_read(source):
            return "what its ranks read from standard input cannot be read again"
    return ""


def _to_read(said: str) -> int:
    """How many bytes wait there. said: as `--input` takes it: a file, or who gets ftrun's own input."""
    with suppress(OSError):
        if not (said.isdigit() or said.lower().startswith("all")):
            return Path(said).stat().st_size
        if not os.isatty(0):
            return int.from_bytes(fcntl.ioctl(0, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def call_read(components: Sequence[Component]) -> Call:
    """How the caller of this ftrun (script, shell, program) takes a failure of its step. An interactive shell has its last
    command's status, which its user has seen."""
    if has_flag(components[0].options, "pty") and os.isatty(0):
        return Call(Reading.ANSWER, "--pty: who sits at the terminal sees it")
    own = frozenset({"ftrun", Path(sys.argv[0]).name})
    # Slurm's own name of a script says nothing.
    places = [CallPlace(each.text, each.offset, "" if each.name == "slurm_script" else each.name) for each in callers(own)]
    return read_calls(places, own, sys.argv[1:])


def step_key(command: str) -> str:
    """Which ftrun of a script: the same command is the same step."""
    return fingerprint(command)


def ran_before(order: Order, history: History, now: int) -> bool:
    """In an earlier scheduling: then its files hold what must not be overwritten. Again in this one it is the script that repeats
    it, and the files begin anew, as srun's do."""
    key = step_key(order.command)
    return any(step == key and schedule < now for schedule, step in history.slots.starts)
