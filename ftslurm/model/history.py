"""A job's past, folded from its ledger records. The judge adds its own records to the same fold as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from ftslurm.model.record import (
    AttemptBegan,
    AttemptEnded,
    CarriedOut,
    CulpritSeen,
    Decided,
    Diagnosed,
    FaultSeen,
    Finished,
    NodeLent,
    NodeRefused,
    Paused,
    RankBegan,
    Record,
    RunBegan,
    SlotsChanged,
    TroubleSeen,
)

REQUEUES = frozenset({"isolated-requeue", "unconditional-requeue", "requeue-on-warning"})
# What the job has from Slurm, or from people by way of it, as a rung; and the cause of one that ftrun knew nothing of before.
BY_SLURM, OUTSIDE = "requeue-by-slurm", "outside"
# What the next scheduling may find behind it (succession.cut_short).
SLURM_S_CAUSES = frozenset({"node", "lost"})
SWAPS = frozenset({"node-replacement", "shrink"})
# What breaks "consecutive" (ModelArts): a verdict with such a cause, or a fault of such a class whatever was done about it.
EXPLICIT_FAULTS = frozenset({"device", "node", "hardware"})
EXPLICIT_CLASSES = frozenset({"self-healing", "isolate"})
HANGS = frozenset({"RankCommHang", "RankNonCommHang"})
# Slurm adds 121 s to a start time that has passed when the clean-up ends; it may also be that no nodes were free.
SLOW_REQUEUE_S = 100.0
# As many of a job's longest pauses are remembered; its limits are learned from them.
PAUSES_MAX = 25


@dataclass(frozen=True, slots=True)
class History:
    """spent: budget name -> how much. isolated: node -> (reason, when). starts: (schedule, step key) -> runs of it.

    faults: (node, device, code) -> times seen. unconditional_in_a_row: without an explicit fault between.
    open_requeue: a requeue that was decided and of which nobody wrote that it was done. requeue_left: the ftrun that decided
    it has ended since. open_swaps: id -> decision, of which nobody wrote what became of them. rank_starts: (schedule, step key,
    rank) -> starts of that rank alone. hangs_in_a_row: hang restarts with no other remedy between. diagnosis, same_in_a_row:
    the last verdict, and how many in a row had its signature. errors: (rank, signature) -> how often. failed_ranks: that
    ever failed by themselves. suspicions: node -> (when, signature). quiet_pauses, busy_pauses: seconds, the longest first.
    furthest: the training step that any attempt has come to. culprits: attempt -> nodes of the hang that ended it.
    hung: attempt and nodes of the last hang that was seen, whatever came of it.
    rescheduled: slot -> how often it alone got another node. bases: slot -> the starts, as `starts` has them, when it last
    did. places: the nodes by slot, once they were changed in this scheduling. lent: node -> donor job, of those nobody has
    ended for sure.
    slow_requeues: after which it took so long to run again that the start time had passed before the clean-up ended.
    requeue: the last one decided in this scheduling, unless it failed. scheduled_by: (rung, cause) of what led to this
    scheduling, empty for the first. trouble: the cause of the last one in this attempt.
    size: nodes of the job as it was scheduled, 0 if nobody wrote it; some may have been lost or given back since. let_in: nodes
    isolated that the last requeue did not keep out, since the job could not have started without them.
    """

    attempts: int = 0
    last_run: RunBegan | None = None
    last_decision: Decided | None = None
    open_requeue: Decided | None = None
    requeue_left: bool = False
    open_swaps: Mapping[str, Decided] = field(default_factory=dict)
    finished: Finished | None = None
    decisions: int = 0
    requeues_done: int = 0
    unconditional_in_a_row: int = 0
    spent: Mapping[str, int] = field(default_factory=dict)
    isolated: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    starts: Mapping[tuple[int, str], int] = field(default_factory=dict)
    rank_starts: Mapping[tuple[int, str, int], int] = field(default_factory=dict)
    faults: Mapping[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)
    hangs_in_a_row: int = 0
    diagnosis: Diagnosed | None = None
    same_in_a_row: int = 0
    errors: Mapping[tuple[int, str], int] = field(default_factory=dict)
    failed_ranks: frozenset[int] = frozenset()
    suspicions: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)
    quiet_pauses: tuple[float, ...] = ()
    busy_pauses: tuple[float, ...] = ()
    furthest: int = 0
    slow_requeues: int = 0
    requeue: Decided | None = None
    scheduled_by: tuple[str, str] = ("", "")
    trouble: str = ""
    hung: tuple[int, frozenset[str]] = (0, frozenset())
    culprits: Mapping[int, frozenset[str]] = field(default_factory=dict)
    rescheduled: Mapping[int, int] = field(default_factory=dict)
    bases: Mapping[int, Mapping[tuple[int, str], int]] = field(default_factory=dict)
    lent: Mapping[str, int] = field(default_factory=dict)
    places: tuple[str, ...] = ()
    size: int = 0
    let_in: frozenset[str] = frozenset()

    def add(self, record: Record) -> History:
        """This history and one record more."""
        change = _ADDERS.get(type(record))
        return change(self, record) if change is not None else self

    def fault_count(self, key: tuple[str, str, str], since: float) -> int:
        """How often the same node, device and code was seen from `since` (Unix seconds) on."""
        return sum(at >= since for at in self.faults.get(key, ()))

    def kept_out(self, now: float, expires_s: float) -> tuple[str, ...]:
        """Nodes isolated and not yet expired (`expires_s` 0: never), sorted."""
        return tuple(sorted(n for n, (_, at) in self.isolated.items() if not expires_s or now - at < expires_s))

    def why_scheduled(self, schedule: int) -> tuple[str, str]:
        """(rung, cause) of what led to that scheduling: the one we know, or the next."""
        if not schedule or (self.last_run is not None and self.last_run.schedule >= schedule):
            return self.scheduled_by if schedule else ("", "")
        if self.requeue is not None:
            return self.requeue.rung, self.requeue.cause
        known = self.finished is None and self.trouble in SLURM_S_CAUSES
        return BY_SLURM, self.trouble if known else OUTSIDE

    def starts_of(self, schedule: int, step_key: str) -> int:
        return self.starts.get((schedule, step_key), 0)

    def base_of(self, slot: int, schedule: int, step_key: str) -> int:
        """Starts of the step before `slot` was last given another node."""
        return self.bases.get(slot, {}).get((schedule, step_key), 0)

    def starts_of_rank(self, schedule: int, step_key: str, rank: int) -> int:
        """With those of the rank alone."""
        return self.starts_of(schedule, step_key) + self.rank_starts.get((schedule, step_key, rank), 0)

    def suspected(self, node: str, since: float) -> int:
        """How often a verdict held something against `node` from `since` (Unix seconds) on."""
        return sum(at >= since for at, _ in self.suspicions.get(node, ()))


def fold(records: Iterable[Record]) -> History:
    return reduce(History.add, records, History())


def _run_began(past: History, run: RunBegan) -> History:
    # A later scheduling of the job is proof that the requeue happened, whoever finished it.
    again = past.last_run is not None and run.schedule > past.last_run.schedule
    decided = past.last_decision
    slow = again and decided is not None and decided.rung in REQUEUES and run.at - decided.at > SLOW_REQUEUE_S
    return replace(
        past, last_run=run, finished=None, open_requeue=None if again else past.open_requeue,
        requeue_left=past.requeue_left and not again, open_swaps={} if again else past.open_swaps,
        places=() if again else past.places, size=max(run.size, 0 if again else past.size),
        requeue=None if again else past.requeue, scheduled_by=past.why_scheduled(run.schedule), trouble="",
        slow_requeues=past.slow_requeues + slow,
    )  # fmt: skip


def _attempt_began(past: History, begun: AttemptBegan) -> History:
    key = (begun.schedule, begun.step_key)
    starts = {**past.starts, key: max(begun.starts, past.starts.get(key, 0))}
    return replace(past, attempts=max(past.attempts, begun.attempt), starts=starts, trouble="")


def _trouble_seen(past: History, seen: TroubleSeen) -> History:
    return replace(past, trouble=seen.cause)


def _slots_changed(past: History, changed: SlotsChanged) -> History:
    rescheduled, bases = dict(past.rescheduled), dict(past.bases)
    if changed.kept:
        rescheduled = {now: rescheduled[was] for now, was in enumerate(changed.kept) if was in rescheduled}
        bases = {now: bases[was] for now, was in enumerate(changed.kept) if was in bases}
    for slot in (int(text) for text in changed.filled if text.isdecimal()):
        rescheduled[slot] = rescheduled.get(slot, 0) + 1
        bases[slot] = dict(past.starts)
    alone = {key: number for key, number in past.rank_starts.items() if key[2] not in changed.ranks}
    if changed.moved:
        place = {was: now for now, was in enumerate(changed.moved)}
        alone = {(schedule, step, place[rank]): n for (schedule, step, rank), n in alone.items() if rank in place}
    return replace(past, rescheduled=rescheduled, bases=bases, rank_starts=alone, places=changed.nodes)


def _node_lent(past: History, lent: NodeLent) -> History:
    return replace(past, lent={**past.lent, lent.node: lent.job})


def _node_refused(past: History, refused: NodeRefused) -> History:
    isolated = {**past.isolated, refused.node: (refused.why, refused.at)}
    return replace(past, isolated=isolated, let_in=past.let_in - {refused.node})


def _rank_began(past: History, begun: RankBegan) -> History:
    key = (begun.schedule, begun.step_key, begun.rank)
    starts = {**past.rank_starts, key: past.rank_starts.get(key, 0) + 1}
    return replace(past, attempts=max(past.attempts, begun.attempt), rank_starts=starts)


def _diagnosed(past: History, found: Diagnosed) -> History:
    same = past.diagnosis is not None and past.diagnosis.signature == found.signature
    errors, suspicions = dict(past.errors), dict(past.suspicions)
    for rank in found.ranks:
        errors[rank, found.signature] = errors.get((rank, found.signature), 0) + 1
    for node in {*found.suspects, *found.blamed}:
        suspicions[node] = (*suspicions.get(node, ()), (found.at, found.signature))
    return replace(
        past, diagnosis=found, same_in_a_row=past.same_in_a_row + 1 if same else 1, errors=errors,
        failed_ranks=past.failed_ranks | {*found.ranks}, suspicions=suspicions,
    )  # fmt: skip


def _fault_seen(past: History, fault: FaultSeen) -> History:
    key = (fault.node, fault.device, fault.code)
    row = 0 if fault.fault_class in EXPLICIT_CLASSES else past.unconditional_in_a_row
    faults = {**past.faults, key: (*past.faults.get(key, ()), fault.at)}
    return replace(past, faults=faults, unconditional_in_a_row=row)


def _decided(past: History, decided: Decided) -> History:
    spent = dict(past.spent)
    if decided.cost:
        spent[decided.cost] = spent.get(decided.cost, 0) + 1
    culprits = past.culprits
    if decided.cause == "hang" and past.hung[0] == decided.attempt:
        culprits = {**culprits, decided.attempt: past.hung[1]}
    isolated = {**past.isolated, **{node: (why, decided.at) for node, why in decided.isolate.items()}}
    requeues = decided.rung in REQUEUES
    swaps = {key: swap for key, swap in past.open_swaps.items() if _run_of(swap) != _run_of(decided)}
    if decided.rung in SWAPS:
        swaps[decided.id] = decided
    requeue = decided if requeues else _still_open(past, decided)
    return replace(
        past,
        last_decision=decided,
        decisions=past.decisions + 1,
        open_requeue=requeue,
        requeue=requeue if past.open_requeue is not None else requeue or past.requeue,
        requeue_left=past.requeue_left and requeue is past.open_requeue,
        open_swaps=swaps,
        unconditional_in_a_row=_in_a_row(past.unconditional_in_a_row, decided),
        hangs_in_a_row=past.hangs_in_a_row + 1 if decided.cause == "hang" else 0,
        culprits=culprits,
        spent=spent,
        isolated=isolated,
        let_in=frozenset(isolated.keys() - {*decided.exclude}) if requeues else past.let_in.difference(decided.isolate),
    )


def _run_of(decided: Decided) -> str:
    """Which ftrun decided: its id begins with that of the run."""
    return decided.id.partition("-")[0]


def _still_open(past: History, decided: Decided) -> Decided | None:
    """The requeue that stands open, unless `decided` comes in its place. What an ftrun beside it decides does not: the keeper
    would find nothing to do, and the job end as requeued that never was."""
    before = past.open_requeue
    return before if before is not None and not past.requeue_left and _run_of(before) != _run_of(decided) else None


def _in_a_row(before: int, decided: Decided) -> int:
    if decided.cause in EXPLICIT_FAULTS:
        return 0
    return before + (decided.rung == "unconditional-requeue")


def _carried_out(past: History, done: CarriedOut) -> History:
    if swap := past.open_swaps.get(done.id):
        swaps = {key: other for key, other in past.open_swaps.items() if key != done.id}
        past = replace(past, open_swaps=swaps)
        if done.ok is False:  # nothing was swapped
            past = _as_if_not(past, swap)
    if past.open_requeue is None or done.id != past.open_requeue.id:
        return past
    kept = past.requeue if done.ok is not False else None
    return replace(past, open_requeue=None, requeue=kept, requeue_left=False, requeues_done=past.requeues_done + done.ok)


def _as_if_not(past: History, swap: Decided) -> History:
    """Its price is paid back, and the hang that it was to answer counts with the answer that comes in its place."""
    hangs = past.hangs_in_a_row - (swap.cause == "hang")
    spent = past.spent.get(swap.cost, 0) - 1
    return replace(past, hangs_in_a_row=max(hangs, 0), spent={**past.spent, swap.cost: spent} if spent >= 0 else past.spent)


def _attempt_ended(past: History, ended: AttemptEnded) -> History:
    """Progress beyond the point of the last failure breaks what counts in a row."""
    if ended.step <= past.furthest:
        return past
    return replace(past, furthest=ended.step, unconditional_in_a_row=0, hangs_in_a_row=0)


def _culprit_seen(past: History, found: CulpritSeen) -> History:
    if found.sign not in HANGS:
        return past
    return replace(past, hung=(found.attempt, frozenset(found.nodes)))


def _paused(past: History, pause: Paused) -> History:
    if pause.busy:
        return replace(past, busy_pauses=_longest(past.busy_pauses, pause.seconds))
    return replace(past, quiet_pauses=_longest(past.quiet_pauses, pause.seconds))


def _longest(known: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    return tuple(sorted((*known, seconds), reverse=True)[:PAUSES_MAX])


def _finished(past: History, finished: Finished) -> History:
    """Whoever finishes has ended its loans first."""
    left = past.open_requeue is not None and _run_of(past.open_requeue) == finished.run
    return replace(past, finished=finished, lent={}, requeue_left=past.requeue_left or left)


_ADDERS: Mapping[type, Callable[..., History]] = {
    RunBegan: _run_began,
    AttemptBegan: _attempt_began,
    RankBegan: _rank_began,
    TroubleSeen: _trouble_seen,
    AttemptEnded: _attempt_ended,
    Diagnosed: _diagnosed,
    CulpritSeen: _culprit_seen,
    Paused: _paused,
    SlotsChanged: _slots_changed,
    NodeLent: _node_lent,
    NodeRefused: _node_refused,
    FaultSeen: _fault_seen,
    Decided: _decided,
    CarriedOut: _carried_out,
    Finished: _finished,
}
