"""A job's past, folded from its ledger records. The judge adds its own records to the same fold as it goes.

Each concern is a part (`streaks.py`, `control.py`) that takes the records that it needs; here stands which record
goes to which, and what two parts have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from ftslurm.model import record as rec
from ftslurm.model.folds.control import CHECKPOINT, EXCLUDE, REINSTATE, REQUEUE, UNDO, Control, Request, State
from ftslurm.model.folds.past import (
    EXPLICIT_FAULTS,
    HANGS,
    Budgets,
    Crashes,
    Exclusions,
    HangStreak,
    Progress,
    Requeues,
    Sighting,
    Slots,
    Verdicts,
    is_explicit,
    run_of,
)
from ftslurm.model.nodes import named_nodes
from ftslurm.model.rungs import SWAPS, Rung
from ftslurm.model.values import Value, field, replace

# The cause of a requeue by Slurm that ftrun knew nothing of before.
OUTSIDE = "outside"
# The cause of what a person has asked for, who may have mended something.
ON_REQUEST = "request"
# What the next scheduling may find behind it (take_over.cut_short).
SLURM_S_CAUSES = frozenset({"node", "lost"})
# As many of a job's latest clean-ups are remembered, and none that took longer: that was no clean-up, but a slurmctld away.
CLEAN_UPS_MAX = 20
CLEAN_UP_MAX_S = 900.0
# By this a hang goes among the signatures of words.
HANG = "hang"


class CleanUpTook(Value):
    """How long the nodes of a job took to clean up. rough: it may have been some seconds less, had nobody watched."""

    seconds: float
    rough: bool = False


class History(Value):
    attempts: int = 0
    last_run: rec.RunBegan | None = None
    beside: Mapping[str, rec.RunBegan] = field(default_factory=dict)  # run -> of those of this scheduling that have not ended
    last_decision: rec.Decided | None = None
    decisions: int = 0
    finished: rec.Finished | None = None
    trouble: str = ""  # the cause of the last one in this attempt
    open_swaps: Mapping[str, rec.Decided] = field(
        default_factory=dict
    )  # id -> decision, of which nobody wrote what became of them
    faults: dict[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)  # (node, device, code) -> when seen
    clean_ups: tuple[CleanUpTook, ...] = ()  # of the nodes after a requeue of ours, the latest last
    cleaning: rec.CleanUpBegan | None = None  # what is known of the one that goes on
    requeues: Requeues = field(default_factory=Requeues)
    exclusions: Exclusions = field(default_factory=Exclusions)
    slots: Slots = field(default_factory=Slots)
    budgets: Budgets = field(default_factory=Budgets)
    progress: Progress = field(default_factory=Progress)
    verdicts: Verdicts = field(default_factory=Verdicts)
    hangs: HangStreak = field(default_factory=HangStreak)
    crashes: Crashes = field(default_factory=Crashes)
    control: Control = field(default_factory=Control)  # what the owner of the job has asked for

    def add(self, record: rec.Record) -> History:
        """This history and one record more."""
        change = _ADDERS.get(type(record))
        return change(self, record) if change is not None else self

    def as_seen_by(self, run: str) -> History:
        """Budgets and last_run are those of the command of that ftrun, which runs beside others of the script."""
        mine, last = self.beside.get(run), self.last_run
        if mine is None or last is None or mine.run == last.run:
            return self
        return replace(self, last_run=mine, budgets=_budgets_of(self, mine))

    def fault_count(self, key: tuple[str, str, str], since: float) -> int:
        """How often the same node, device and code was seen from `since` (Unix seconds) on."""
        return sum(at >= since for at in self.faults.get(key, ()))

    def kept_out(self, now: float, expires_s: float) -> tuple[str, ...]:
        """Nodes isolated and not yet expired (`expires_s` 0: never; nor are those that people exclude), sorted."""
        never = self.control.excluded if expires_s and self.control.requests else ()
        isolated = self.exclusions.isolated
        return tuple(sorted(n for n, (_, at) in isolated.items() if not expires_s or now - at < expires_s or n in never))

    def why_scheduled(self, schedule: int) -> tuple[str, str]:
        """(rung, cause) of what led to that scheduling: the one we know, or the next."""
        if not schedule or (self.last_run is not None and self.last_run.schedule >= schedule):
            return self.requeues.scheduled_by if schedule else ("", "")
        if self.requeues.last is not None:
            return self.requeues.last.rung, self.requeues.last.cause
        known = self.finished is None and self.trouble in SLURM_S_CAUSES
        return Rung.BY_SLURM.value, self.trouble if known else OUTSIDE


def fold(records: Iterable[rec.Record]) -> History:
    return reduce(History.add, records, History())


def _run_began(past: History, run: rec.RunBegan) -> History:
    again = past.last_run is not None and run.schedule > past.last_run.schedule
    past = _afresh(past) if again and _was_over(past) else past
    return replace(
        past, last_run=run, finished=None, trouble="", budgets=_budgets_of(past, run),
        beside={**({} if again else past.beside), run.run: run},
        requeues=past.requeues.run_began(past.why_scheduled(run.schedule), again),
        open_swaps={} if again else past.open_swaps, slots=past.slots.run_began(run.size, again),
        clean_ups=(*past.clean_ups, *clean_up_of(past, run))[-CLEAN_UPS_MAX:], cleaning=None if again else past.cleaning,
    )  # fmt: skip


def _was_over(past: History) -> bool:
    """Had the job ended for good? Then a person has requeued it, who has mended something."""
    failed = past.last_decision is not None and past.last_decision.rung == Rung.FAIL
    return past.finished is not None and (failed or past.finished.status == 0)


def _budgets_of(past: History, run: rec.RunBegan) -> Budgets:
    if past.last_run is None or past.last_run.step_key == run.step_key:
        return past.budgets
    return past.budgets.command_began(past.last_run.step_key, run.step_key)


def clean_up_of(past: History, run: rec.RunBegan) -> tuple[CleanUpTook, ...]:
    """How long the nodes took to clean up before the scheduling of `run`; empty where that is not known.

    Slurm tells its end in whole seconds, cut off: the moment lies up to one later. A node from which the others were watched
    began only after that: where they were clean by then, they show how long it takes without a watch; where not, all that is
    known is how long the last node took, whose slurmd may have looked late.
    """
    began, last = past.cleaning, past.last_run
    if began is None or not began.usual or last is None or run.schedule != last.schedule + 1:
        return ()
    seconds = run.submit_time + 1 - began.since
    took = CleanUpTook(max(seconds - began.watched_s, began.watched_s), began.watched_s > 0 and not began.others_clean)
    return (took,) if 0 < seconds <= CLEAN_UP_MAX_S else ()


def _attempt_began(past: History, begun: rec.AttemptBegan) -> History:
    nodes = named_nodes(begun.nodes)
    exclusions = past.exclusions.ran_on(nodes) if past.exclusions.dead else past.exclusions
    return replace(
        past, attempts=max(past.attempts, begun.attempt), trouble="", exclusions=exclusions,
        crashes=past.crashes.attempt_began(nodes),
        slots=past.slots.attempt_began(begun), progress=past.progress.attempt_began(begun.at),
    )  # fmt: skip


def _step_reached(past: History, reached: rec.StepReached) -> History:
    key = past.last_run.step_key if past.last_run is not None else ""
    return replace(past, progress=past.progress.step_reached(key, reached.step))


def _trouble_seen(past: History, seen: rec.TroubleSeen) -> History:
    progress, made = past.progress.trouble_seen(seen.at)
    return _with_progress(past, progress, made, trouble=seen.cause)


def _attempt_ended(past: History, ended: rec.AttemptEnded) -> History:
    return _with_progress(past, *past.progress.attempt_ended(ended))


def _with_progress(past: History, progress: Progress, made: bool, **more: str) -> History:
    """Progress beyond the point of the last failure breaks whatever counts in a row."""
    past = replace(past, progress=progress, **more)  # type: ignore[arg-type]
    return _afresh(past) if made else past


def _afresh(past: History) -> History:
    """Whatever comes next is the first in a row."""
    return replace(
        past, requeues=past.requeues.broken(), hangs=past.hangs.broken(), crashes=past.crashes.broken(),
        verdicts=past.verdicts.progress_made(),
    )  # fmt: skip


def _rank_began(past: History, begun: rec.RankBegan) -> History:
    return replace(past, attempts=max(past.attempts, begun.attempt), slots=past.slots.rank_began(begun))


def _diagnosed(past: History, found: rec.Diagnosed) -> History:
    return replace(past, verdicts=past.verdicts.diagnosed(found, past.progress.last_step))


def _reinstated(past: History, found: rec.Reinstated) -> History:
    verdicts = past.verdicts.take_back(found.nodes, found.signature)
    return replace(past, exclusions=past.exclusions.take_back(found), verdicts=verdicts)


def _experiment_ended(past: History, ended: rec.ExperimentEnded) -> History:
    return replace(past, crashes=past.crashes.ended(ended), exclusions=past.exclusions.experiment_ended(ended))


def _fault_seen(past: History, fault: rec.FaultSeen) -> History:
    key = (fault.node, fault.device, fault.code)
    faults = {**past.faults}
    faults[key] = (*faults.pop(key, ()), fault.at)  # the last in it
    past = replace(past, faults=faults)
    if not is_explicit(fault):
        return past
    return replace(past, requeues=past.requeues.broken(), hangs=past.hangs.broken(), crashes=past.crashes.broken())


def _decided(past: History, decided: rec.Decided) -> History:
    past = past.as_seen_by(run_of(decided))
    swaps = {key: swap for key, swap in past.open_swaps.items() if run_of(swap) != run_of(decided)}
    if decided.rung in SWAPS:
        swaps[decided.id] = decided
    command = past.last_run.step_key if past.last_run is not None else ""
    past = _afresh(past) if decided.cause == ON_REQUEST else past
    crashes = past.crashes.broken() if decided.cause in EXPLICIT_FAULTS else past.crashes
    return replace(
        past, last_decision=decided, decisions=past.decisions + 1, open_swaps=swaps, requeues=past.requeues.decided(decided),
        exclusions=past.exclusions.decided(decided), budgets=past.budgets.decided(decided), hangs=past.hangs.decided(decided),
        crashes=crashes.decided(decided, past.verdicts.last, command),
    )  # fmt: skip


def _clean_up_began(past: History, began: rec.CleanUpBegan) -> History:
    return replace(past, cleaning=began)


def _carried_out(past: History, done: rec.CarriedOut) -> History:
    past = replace(past, requeues=past.requeues.carried_out(done), exclusions=past.exclusions.needed(done.let_in))
    swap = past.open_swaps.get(done.id)
    if swap is None:
        return past
    past = replace(past, open_swaps={key: other for key, other in past.open_swaps.items() if key != done.id})
    if done.ok is False:  # nothing was swapped
        past = past.as_seen_by(run_of(swap))
        past = replace(past, budgets=past.budgets.take_back(swap), hangs=past.hangs.take_back(swap))
    return past


def _culprit_seen(past: History, found: rec.CulpritSeen) -> History:
    if found.sign not in HANGS:
        return past
    ranks = found.ranks if len(found.nodes) == 1 else ()
    sighted = past.verdicts.sighted(Sighting(found.at, HANG, rank, found.nodes[0], 0) for rank in ranks)
    return replace(past, hangs=past.hangs.seen(found), verdicts=sighted)


def _finished(past: History, finished: rec.Finished) -> History:
    beside = {run: began for run, began in past.beside.items() if run != finished.run}
    return replace(past, finished=finished, beside=beside, slots=past.slots.finished(), requeues=past.requeues.finished(finished))


def _request_answered(past: History, answer: rec.RequestAnswered) -> History:
    """What is in force from now on. A request that is undone leaves nodes as they were before it."""
    request = past.control.get(answer.number)
    control = past.control.answered(answer, past.exclusions.isolated)
    if request is None or not answer.ok or control is past.control:
        return replace(past, control=control)
    asked = request.asked
    past = replace(past, control=control)
    if asked.verb in (EXCLUDE, REQUEUE) and asked.nodes:
        why = f"excluded by {request.who} (request {asked.number})"
        return _isolate(past, dict.fromkeys(asked.nodes, (why, asked.at)))
    if asked.verb == REINSTATE:
        return _free(past, asked.nodes)
    target = control.get(asked.target) if asked.verb == UNDO else None
    return _as_before(past, target) if target is not None and target.state is State.UNDONE and target.order else past


def _as_before(past: History, request: Request) -> History:
    """As if it had not been taken."""
    if request.asked.verb == REINSTATE:
        return _isolate(past, request.before)
    return _isolate(_free(past, request.asked.nodes), request.before) if request.asked.nodes else past


def _isolate(past: History, nodes: Mapping[str, tuple[str, float]]) -> History:
    return replace(past, exclusions=past.exclusions.isolate(nodes))


def _free(past: History, nodes: Iterable[str]) -> History:
    return replace(past, exclusions=past.exclusions.free(nodes))


def _request_done(past: History, done: rec.RequestDone) -> History:
    request, past = past.control.get(done.number), replace(past, control=past.control.done(done))
    return past if request is None or done.ok or not request.in_force else _as_before(past, request)


def _program_said(past: History, said: rec.ProgramSaid) -> History:
    return replace(past, progress=past.progress.checkpoint_told()) if said.what == CHECKPOINT else past


def _of_part(name: str, change: Callable[[Any, Any], Any]) -> Callable[..., History]:
    """For a record that concerns one part alone."""
    return lambda past, record: replace(past, **{name: change(getattr(past, name), record)})


_ADDERS: Mapping[type, Callable[..., History]] = {
    rec.ProgramSaid: _program_said,
    rec.Requested: _of_part("control", Control.asked),
    rec.RequestAnswered: _request_answered,
    rec.RequestDone: _request_done,
    rec.CheckpointSeen: _of_part("control", Control.checkpoint),
    rec.IterationSeen: _of_part("progress", Progress.iteration_seen),
    rec.RunBegan: _run_began,
    rec.AttemptBegan: _attempt_began,
    rec.RankBegan: _rank_began,
    rec.TroubleSeen: _trouble_seen,
    rec.AttemptEnded: _attempt_ended,
    rec.StepReached: _step_reached,
    rec.Diagnosed: _diagnosed,
    rec.Reinstated: _reinstated,
    rec.ExperimentEnded: _experiment_ended,
    rec.CulpritSeen: _culprit_seen,
    rec.Paused: _of_part("hangs", HangStreak.paused),
    rec.SlotsChanged: _of_part("slots", Slots.changed),
    rec.NodeLent: _of_part("slots", Slots.node_lent),
    rec.NodeRefused: _of_part("exclusions", Exclusions.refused),
    rec.FaultSeen: _fault_seen,
    rec.Decided: _decided,
    rec.CleanUpBegan: _clean_up_began,
    rec.CarriedOut: _carried_out,
    rec.Finished: _finished,
}


# --- how often a slot was scheduled and its command started: the contract with re-entrant scripts, and the only arithmetic of it.
# MA_SCHEDULE_CNT: how often the place of a rank was scheduled. Each scheduling of the job counts, and each node that its slot
# alone was given since. MA_PROC_START_CNT: how often the command ran there since. An attempt counts for every rank, a start of
# one rank alone for that rank; what ran before the slot was given its node counts no more.
# Source: ModelArts, fault recovery of training jobs.


class Counters(Value):
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


def counters_of_attempt(begun: rec.AttemptBegan) -> Counters:
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
