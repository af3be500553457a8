"""How often a slot was scheduled and its command started: the contract with re-entrant scripts, and the only arithmetic of it.

MA_SCHEDULE_CNT: how often the place of a rank was scheduled. Each scheduling of the job counts, and each node that its slot
alone was given since. MA_PROC_START_CNT: how often the command ran there since. An attempt counts for every rank, a start of
one rank alone for that rank; what ran before the slot was given its node counts no more.
Source: ModelArts, fault recovery of training jobs.
"""

from __future__ import annotations

from ftslurm.model.folds.history import History
from ftslurm.model.record import AttemptBegan
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """schedule: MA_SCHEDULE_CNT; starts: MA_PROC_START_CNT; attempt: over the whole life of the job. All from 1."""

    schedule: int = 1
    starts: int = 1
    attempt: int = 1


def counters(past: History, schedule: int, step_key: str, slot: int | None = None, rank: int | None = None) -> Counters:
    """What the command is told that was started last, as `past` has it: `starts` is 0 before its first start.

    schedule: requeues of the job so far. step_key: which command. slot None: one that has kept its node. rank None: one that
    was never started alone.
    """
    key = schedule, step_key
    alone = past.slots.rank_starts.get((*key, rank), 0) if rank is not None else 0
    starts = past.slots.starts.get(key, 0) - _base(past, slot, key) + alone
    return Counters(_of_slot(past, schedule, slot), starts, past.attempts)


def counters_of_node(past: History, schedule: int, slot: int | None) -> Counters:
    """For the batch script and steps of plain srun on the node of `slot`, None where it has none: of the command that was
    started most often there. Before the first start in `schedule` it is what a first one would be told."""
    here = [(starts - _base(past, slot, key), starts) for key, starts in past.slots.starts.items() if key[0] == schedule]
    started = any(starts for _, starts in here)
    most = max(1, *(since for since, _ in here)) if here else 1
    return Counters(_of_slot(past, schedule, slot), most, past.attempts if started else past.attempts + 1)


def counters_of_attempt(begun: AttemptBegan) -> Counters:
    """As every rank is told whose slot has kept its node."""
    return Counters(schedule_count(begun.schedule), begun.starts, begun.attempt)


def restarts(past: History, step_key: str) -> int:
    """Starts of the command after its first, in all schedulings: what torchrun calls restart count and ft_launcher cycle."""
    started = sum(times for (_, key), times in past.slots.starts.items() if key == step_key)
    return max(0, started + sum(times for (_, key, _), times in past.slots.rank_starts.items() if key == step_key) - 1)


def schedule_count(schedule: int) -> int:
    """Of a slot that has kept its node. schedule: requeues of the job so far."""
    return schedule + 1


def _of_slot(past: History, schedule: int, slot: int | None) -> int:
    return schedule_count(schedule) + (past.slots.rescheduled.get(slot, 0) if slot is not None else 0)


def _base(past: History, slot: int | None, key: tuple[int, str]) -> int:
    """Starts of the command before `slot` was last given another node."""
    return past.slots.bases.get(slot, {}).get(key, 0) if slot is not None else 0
