"""What earlier ftruns of the job and earlier jobs of its user have left, and what this one leaves to later ones."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ftslurm.errors import SlurmUnavailable, StateError
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.shared_file import CleanUps, NodeMemory, known_clean_ups
from ftslurm.model.decisions import TellOthers
from ftslurm.model.folds.history import CleanUpTook, History, clean_up_of
from ftslurm.model.folds.node_memory import suspect_nodes, to_remember
from ftslurm.model.record import RunBegan
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.phases import EarlierRuns, RunFacts
from ftslurm.policies.lease.predecessors import is_gone, predecessors
from ftslurm.policies.lease.take_over import cut_short
from ftslurm.sdk.page import start_ticks
from ftslurm.slurm.client import NodeState, SlurmClient
from ftslurm.system.clock import Clock
from ftslurm.system.processes import pid_space
from ftslurm.wrapper.controller.scheduler import SlurmScheduler
from ftslurm.wrapper.requeue.lenders import Lenders


def earlier_runs(
    journal: Journal, history: History, facts: RunFacts, settings: Settings, client: SlurmClient, lenders: Lenders,
    scheduler: SlurmScheduler,
) -> EarlierRuns:  # fmt: skip
    """Of this job, by its ledger and by Slurm's word."""
    records = journal.read().records
    before = predecessors(records, facts.schedule, facts.start_time, ftrun_is_gone)
    unclean = before.not_cleaned_up()
    unproven, killed = before.unproven(settings, Clock().now().unix, _down(unclean, client) if unclean else {})
    # One that was killed while it waited for a donor has not written down which.
    orphans = lenders.submitted() if before.died_alone() else ()
    loans = tuple(dict.fromkeys((*before.loans(), *orphans)))
    earlier = EarlierRuns(unproven, killed, steps_over=before.steps_over(), loans_left=loans)
    if earlier.steps_over and facts.missing:
        listed = scheduler.steps().steps or frozenset()
        earlier = replace(earlier, beside=bool(listed) and listed <= earlier.steps_over)
    if history.last_run is not None and history.last_run.schedule < facts.schedule:
        down = _down(frozenset({history.last_run.batch_node}), client)
        earlier = replace(earlier, cut_short=cut_short(records, facts.schedule, down or {}, Clock().now().unix))
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
    """node -> why it is suspect to this job. A memory that cannot be read is none."""
    try:
        known = memory.read()
    except StateError:
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
            CleanUps(root).add(facts.cluster, facts.job, Clock().now().unix, took)
    return (*known, *new)
