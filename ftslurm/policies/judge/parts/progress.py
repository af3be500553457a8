"""How far the training has come, from the file that it writes (progress.file): when it is read, and what the ledger keeps."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model.decisions import Decision, ReadIteration
from ftslurm.model.events import Now
from ftslurm.model.folds.history import History
from ftslurm.model.record import IterationSeen
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.phases import RunFacts


def read_at_begin(settings: Settings, history: History, facts: RunFacts) -> list[Decision]:
    """Read the file before a start: a training that continues from a checkpoint is already this far. After a requeue the ledger
    knows it.
    """
    requeued = any(key == facts.step_key and schedule < facts.schedule for schedule, key in history.slots.starts)
    wanted = settings.progress_file and settings.progress_attempts and not requeued
    return [ReadIteration(0, settings.progress_file)] if wanted else []


def read_at_end(settings: Settings, attempt: int) -> list[Decision]:
    """Read the file after an attempt: ranks may have written a checkpoint while they were stopped."""
    wanted = settings.progress_file and settings.progress_attempts and attempt
    return [ReadIteration(attempt, settings.progress_file)] if wanted else []


def iteration_seen(event: ev.IterationRead, settings: Settings, past: History, now: Now) -> IterationSeen | None:
    """The record of a new iteration, None if there is none. An unreadable file tells nothing,
    neither progress nor a lack of it.
    """
    if not event.attempt:
        known = (event.iteration or 0, 0) == (past.progress.iteration, past.progress.in_vain)
        return None if known else IterationSeen(now.unix, 0, event.iteration or 0)
    if event.iteration is None or not (event.iteration or past.progress.iteration):
        return None
    got_on = event.iteration - past.progress.iteration >= settings.progress_least
    return IterationSeen(now.unix, event.attempt, event.iteration, 0 if got_on else past.progress.in_vain + 1)
