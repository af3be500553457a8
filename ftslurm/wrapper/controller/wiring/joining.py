"""Joins the parts of one ftrun to a controller, whatever launches its ranks."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.launchers.python import Runtime, runtimes_of
from ftslurm.launchers.rank_logs import RankFiles
from ftslurm.launchers.srun import overruled
from ftslurm.ledger import output
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.live import RequestReader
from ftslurm.ledger.output import keep_evidence
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.model.folds.history import History
from ftslurm.model.messages.wire import HandoverPlan, to_message
from ftslurm.model.ports import Launcher, Scheduler
from ftslurm.model.settings.tree import Settings
from ftslurm.model.text import counted, whole
from ftslurm.policies.judge.judge import Judge
from ftslurm.policies.judge.phases import OutputPlace, RunFacts
from ftslurm.policies.take_over import may_take_over
from ftslurm.system.clock import Clock
from ftslurm.system.files import raise_limit
from ftslurm.wrapper.controller.callers import Limits
from ftslurm.wrapper.controller.controller import Controller
from ftslurm.wrapper.controller.diagnosis import Diagnosis
from ftslurm.wrapper.controller.effects import Effects
from ftslurm.wrapper.controller.live import LiveBoard, LiveTeller
from ftslurm.wrapper.controller.people import People
from ftslurm.wrapper.controller.sources import Signals, Sources
from ftslurm.wrapper.controller.wiring.facts import tell_others
from ftslurm.wrapper.controller.wiring.ranks import check_room, cycle_info_dir, keys_without_effect, rank_logs_of, rank_setup
from ftslurm.wrapper.controller.wiring.survey import Order, say
from ftslurm.wrapper.output.output_files import output_place, output_to, own_files, own_stderr, ranks_files
from ftslurm.wrapper.telling.notices import notices_for
from ftslurm.wrapper.wire.channel import chosen, of_this_node
from ftslurm.wrapper.wire.secret_word import ENVIRONMENT, FILE, SecretFile, secret_word

if TYPE_CHECKING:
    from ftslurm.launchers.rank_logs import RankLogs


def joined(
    order: Order, settings: Settings, history: History, facts: RunFacts, journal: Journal, launcher: Launcher,
    scheduler: Scheduler, addresses: list[str], memory: NodeMemory | None = None, runs: Callable[[], bool] = lambda: True,
    ports: tuple[int, int] | None = None, munge: str | None = None, bundle: str = "", alone: bool = False,
) -> Controller:  # fmt: skip
    """memory: of nodes, for later jobs; None where node names mean nothing. runs: does slurmctld say that the job does?
    ports: one of them is ours. munge: see secret_word. bundle: see Site. alone: see RankSetup. Raises: FtslurmError."""
    clock, signals, diagnosis = Clock(), Signals(), Diagnosis(settings)
    keep_bytes = settings.logs.keep_bytes if facts.launcher == "srun" else 0  # nobody else runs a script anew
    files, ranks, logs = own_files(order.env), ranks_files(order.components, order.env, facts.number), rank_logs_of(settings)
    facts = replace(facts, output=_output_place(files, ranks, logs, facts.number))
    if settings.catalogs:
        diagnosis.load()  # what is wrong with a site's own file is said before the job begins
    meaning = fault_lookup(settings.devices.user_induced, settings.catalogs)
    raise_limit()
    address = chosen(settings.nodes.address, of_this_node()) if settings.nodes.address else ""
    limits = Limits(settings.lease.time_s, settings.nodes.silence_s, settings.stop.grace_s)
    plans = _handover_plans(facts, settings, journal.path, whole(order.env.get("SLURM_TASK_PID", "")) or 0)
    sources = Sources(clock, signals, meaning, address, limits, ports, runs, plans, own_stderr())
    check_room(sources.server.most, order, len(facts.nodes))
    sources.listen(RequestReader(journal.path).look)
    channel = _channel(order, settings, journal.path, sources, address, addresses, munge, facts.launcher == "local", bundle)
    people = People(
        order.verbose, past=journal.seen, notices_wait_s=settings.notify.end_wait_s,
        notices=notices_for(settings, journal.path.parent.parent, facts.job, _about(facts), say),
    )  # fmt: skip
    effects = Effects(
        sources, launcher, scheduler, signals, clock, channel, people,
        rank_setup(order, settings, logs, bundle, alone), diagnosis,
        left=lambda told: tell_others(memory, facts, told),
        keep=lambda attempt, node, text: keep_evidence(journal.path, attempt, node, text),
        keep_output=lambda: output.keep(journal.path, facts.schedule, files, keep_bytes),
    )  # fmt: skip
    _begin_to_tell(people, order, settings, facts, journal.path, sources)
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
) -> Callable[[], str]:  # fmt: skip
    """What shims and agents are told of how to reach us. address: the one to be used, empty for any of `addresses`."""
    runtimes = runtimes_of(order.components, order.env)
    mounted = bool(bundle) and runtimes == {Runtime.PYXIS}
    file = SecretFile(Path(bundle) if mounted else ledger.parent.parent, ledger.stem)
    atexit.register(file.remove)
    contained = runtimes != {Runtime.NONE}

    def channel() -> str:
        """Each time anew: munge's key may have been exchanged since."""
        wanted = ENVIRONMENT if local else settings.nodes.secret  # it does not leave this machine
        word = secret_word(sources.server.secret, wanted, munge, contained, say, file if mounted or wanted == FILE else None)
        return sources.server.channel_text([address] if address else addresses, only=bool(address), word=word)

    return channel


def _about(facts: RunFacts) -> str:
    """Where the job runs, for people who are elsewhere."""
    name, nodes = facts.name or facts.command[:60], counted(len(facts.nodes), "node")
    return f"({name} on {facts.cluster}, ftrun on {facts.process.host}, {nodes})"


def _begin_to_tell(people: People, order: Order, settings: Settings, facts: RunFacts, ledger: Path, sources: Sources) -> None:
    """Gives `people` what else they are told by, and says what of the order will not be."""
    if settings.metrics.dir or settings.metrics.otlp:
        from ftslurm.wrapper.measuring.live import measured

        people.at_end = measured(settings, facts.job, facts.cluster, ledger, lambda: people.records, sources.numbers, people.say)
    if facts.why_not.swap and (settings.node_replacement.enabled or settings.shrink.enabled):
        people.say(f"ftrun cannot replace a node of this step: {facts.why_not.swap}")
    if folder := cycle_info_dir(settings):
        from ftslurm.wrapper.telling.cycles import Cycles

        job = order.env.get("SLURM_ARRAY_JOB_ID") or str(facts.number)
        people.cycles = Cycles(Path(folder), job, facts.granted or facts.nodes, settings.logs.cycle_files, people.say)
    for sentence in keys_without_effect(settings):
        people.say(f"of ft_launcher's configuration {sentence}")
    for component in order.components:
        for sentence in overruled(component.options, settings.mode == "sync"):
            people.say(sentence)
