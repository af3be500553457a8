"""A job's past, folded from its ledger records. The judge adds its own records to the same fold as it goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import reduce

from ftslurm.errors import UsageError
from ftslurm.model.folds.control import CHECKPOINT, EXCLUDE, REINSTATE, REQUEUE, UNDO, Control, Request, State
from ftslurm.model.nodes import expand
from ftslurm.model.pauses import with_pause
from ftslurm.model.record import (
    AttemptBegan,
    AttemptEnded,
    CarriedOut,
    CheckpointSeen,
    CleanUpBegan,
    CulpritSeen,
    Decided,
    Diagnosed,
    FaultSeen,
    Finished,
    IterationSeen,
    NodeLent,
    NodeRefused,
    Paused,
    ProgramSaid,
    RankBegan,
    Record,
    Reinstated,
    RequestAnswered,
    RequestDone,
    Requested,
    RunBegan,
    SlotsChanged,
    TroubleSeen,
)
from ftslurm.model.rungs import REQUEUES, RESTARTS, SWAPS, Budget, Rung
from ftslurm.model.shares import Share, unfold_shares
from ftslurm.model.values import dataclass

# The cause of a requeue by Slurm that ftrun knew nothing of before.
OUTSIDE = "outside"
# What the next scheduling may find behind it (take_over.cut_short).
SLURM_S_CAUSES = frozenset({"node", "lost"})
# What breaks "consecutive" (ModelArts): a decision with such a cause, or a fault of such a class whatever was done about it.
# What ranks only printed ("hardware") does not: our own remedy for it would set the count back, and a bug never end.
EXPLICIT_FAULTS = frozenset({"device", "node"})
EXPLICIT_CLASSES = frozenset({"self-healing", "isolate"})
HANGS = frozenset({"RankCommHang", "RankNonCommHang"})
# As many of a job's latest clean-ups are remembered, and none that took longer: that was no clean-up, but a slurmctld away.
CLEAN_UPS_MAX = 20
CLEAN_UP_MAX_S = 900.0
# By this a hang goes among the signatures of words.
HANG = "hang"
# A program that tells no steps has come further if it has lived for so many times as long as in any try before, and for
# this long at least: the start of Python from a cold file system takes some seconds more than from a warm one.
LIVED_FACTOR, LIVED_LEAST_S = 2.0, 30.0
# A failure on thousands of ranks is nobody's in particular; of those that matter a few ranks tell.
SIGHTINGS_MAX = 1024


@dataclass(frozen=True, slots=True)
class CleanUpTook:
    """How long the nodes of a job took to clean up. rough: it may have been some seconds less, had nobody watched."""

    seconds: float
    rough: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """A rank on a node printed words that make its node a suspect. step: to which the training had come; 0: not told."""

    at: float
    signature: str
    rank: int
    node: str
    step: int


@dataclass(frozen=True, slots=True)
class History:
    """spent: budget name -> how much. isolated: node -> (reason, when). starts: (schedule, step key) -> runs of it.

    faults: (node, device, code) -> times seen. unconditional_in_a_row: without an explicit fault or progress between.
    open_requeue: a requeue that was decided and of which nobody wrote that it was done. requeue_left: the ftrun that decided
    it has ended since. open_swaps: id -> decision, of which nobody wrote what became of them. rank_starts: (schedule, step key,
    rank) -> starts of that rank alone. hangs_in_a_row: as unconditional_in_a_row. diagnosis, same_in_a_row: the last verdict,
    and how many in a row had its signature, without progress between. same_words: how many of these, the last included, also
    said the same, numbers aside; moved: not all of them on one rank of one node.
    errors: (rank, signature) -> how often. failed_ranks: that ever failed by themselves. suspicions: node -> (when,
    signature). quiet_pauses, busy_pauses: seconds, the longest first.
    furthest: the training step that any attempt has come to. culprits: attempt -> nodes of the hang that ended it.
    hung: attempt and nodes of the last hang that was seen, whatever came of it.
    rescheduled: slot -> how often it alone got another node. bases: slot -> the starts, as `starts` has them, when it last
    did. places: the nodes by slot, once they were changed in this scheduling. lent: node -> donor job, of those nobody has
    ended for sure.
    clean_ups: of the nodes after a requeue of ours, the latest last. cleaning: what is known of the one that goes on.
    requeue: the last one decided in this scheduling, unless it failed. scheduled_by: (rung, cause) of what led to this
    scheduling, empty for the first. trouble: the cause of the last one in this attempt.
    size: nodes of the job as it was scheduled, 0 if nobody wrote it; some may have been lost or given back since. let_in: nodes
    isolated that the last requeue did not keep out, since the job could not have started without them.
    sightings: of words that make their node a suspect. left_on_words: node -> signature, of all nodes that the job has ever
    left on nothing but words, but for those that a fact spoke against later; reinstated: of those that it may use again.
    began_at, longest_s: of the attempt, and the longest life of one since progress was last made. progress_at: when that
    was, or an attempt lived so much longer. last_step: of the attempt that ended last; lived_s: until its trouble began.
    most_beats: of an attempt since progress was last made. dead: nodes known dead when they were isolated, on which no
    rank has run since. control: what the owner of the job has asked for. checkpoints_told: has its program ever said that a
    checkpoint is complete? iteration, in_vain: see IterationSeen. other_commands: step key -> restarts and crash restarts, of
    those before the last one. shares: (schedule, step key) -> by slot, what the step has of its node.
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
    job_restarts: int = 0  # of all ranks, whatever the cause, but for those that cured our own choice of a port
    other_commands: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    spent: Mapping[str, int] = field(default_factory=dict)
    isolated: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    starts: Mapping[tuple[int, str], int] = field(default_factory=dict)
    rank_starts: Mapping[tuple[int, str, int], int] = field(default_factory=dict)
    faults: Mapping[tuple[str, str, str], tuple[float, ...]] = field(default_factory=dict)
    hangs_in_a_row: int = 0
    diagnosis: Diagnosed | None = None
    same_in_a_row: int = 0
    same_words: int = 0
    moved: bool = False
    errors: Mapping[tuple[int, str], int] = field(default_factory=dict)
    failed_ranks: frozenset[int] = frozenset()
    suspicions: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)
    quiet_pauses: tuple[float, ...] = ()
    busy_pauses: tuple[float, ...] = ()
    furthest: int = 0
    clean_ups: tuple[CleanUpTook, ...] = ()
    cleaning: CleanUpBegan | None = None
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
    sightings: tuple[Sighting, ...] = ()
    left_on_words: Mapping[str, str] = field(default_factory=dict)
    reinstated: frozenset[str] = frozenset()
    began_at: float = 0.0
    longest_s: float = 0.0
    progress_at: float = 0.0
    last_step: int = 0
    lived_s: float = 0.0
    most_beats: int = 0
    dead: frozenset[str] = frozenset()
    shares: Mapping[tuple[int, str], tuple[Share, ...]] = field(default_factory=dict)
    control: Control = field(default_factory=Control)
    checkpoints_told: bool = False
    iteration: int = 0
    in_vain: int = 0

    @property
    def ours(self) -> frozenset[str]:
        """Nodes that Slurm may keep the job off because we have said so."""
        return self.reinstated.union(self.isolated)

    def add(self, record: Record) -> History:
        """This history and one record more."""
        change = _ADDERS.get(type(record))
        return change(self, record) if change is not None else self

    def fault_count(self, key: tuple[str, str, str], since: float) -> int:
        """How often the same node, device and code was seen from `since` (Unix seconds) on."""
        return sum(at >= since for at in self.faults.get(key, ()))

    def kept_out(self, now: float, expires_s: float) -> tuple[str, ...]:
        """Nodes isolated and not yet expired (`expires_s` 0: never; nor are those that people exclude), sorted."""
        never = self.control.excluded if expires_s and self.control.requests else ()
        return tuple(sorted(n for n, (_, at) in self.isolated.items() if not expires_s or now - at < expires_s or n in never))

    def why_scheduled(self, schedule: int) -> tuple[str, str]:
        """(rung, cause) of what led to that scheduling: the one we know, or the next."""
        if not schedule or (self.last_run is not None and self.last_run.schedule >= schedule):
            return self.scheduled_by if schedule else ("", "")
        if self.requeue is not None:
            return self.requeue.rung, self.requeue.cause
        known = self.finished is None and self.trouble in SLURM_S_CAUSES
        return Rung.BY_SLURM.value, self.trouble if known else OUTSIDE

    def used(self, budget: str) -> int:
        """How much of that budget is spent."""
        return self.job_restarts if budget == Budget.JOB_RESTARTS else self.spent.get(budget, 0)

    def suspected(self, node: str, since: float) -> int:
        """How often a verdict held something against `node` from `since` (Unix seconds) on."""
        return sum(at >= since for at, _ in self.suspicions.get(node, ()))


def fold(records: Iterable[Record]) -> History:
    return reduce(History.add, records, History())


def _run_began(past: History, run: RunBegan) -> History:
    # A later scheduling of the job is proof that the requeue happened, whoever finished it.
    again = past.last_run is not None and run.schedule > past.last_run.schedule
    past = _as_command(past, run.step_key)
    return replace(
        past, last_run=run, finished=None, open_requeue=None if again else past.open_requeue,
        requeue_left=past.requeue_left and not again, open_swaps={} if again else past.open_swaps,
        places=() if again else past.places, size=max(run.size, 0 if again else past.size),
        requeue=None if again else past.requeue, scheduled_by=past.why_scheduled(run.schedule), trouble="",
        clean_ups=(*past.clean_ups, *clean_up_of(past, run))[-CLEAN_UPS_MAX:], cleaning=None if again else past.cleaning,
    )  # fmt: skip


def _as_command(past: History, step_key: str) -> History:
    """Restarts are counted for each command of a script, as torchrun and ft_launcher count them; requeues for the whole job."""
    if past.last_run is None or past.last_run.step_key == step_key:
        return past
    others = {**past.other_commands, past.last_run.step_key: (past.job_restarts, past.spent.get(Budget.CRASH_RESTARTS, 0))}
    restarts, crashes = others.pop(step_key, (0, 0))
    spent = {**past.spent, Budget.CRASH_RESTARTS.value: crashes} if crashes or Budget.CRASH_RESTARTS in past.spent else past.spent
    return replace(past, other_commands=others, job_restarts=restarts, spent=spent)


def clean_up_of(past: History, run: RunBegan) -> tuple[CleanUpTook, ...]:
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


def _attempt_began(past: History, begun: AttemptBegan) -> History:
    key = (begun.schedule, begun.step_key)
    starts = {**past.starts, key: max(begun.starts, past.starts.get(key, 0))}
    shares = {**past.shares, key: unfold_shares(begun.cpus, begun.gpus)}
    dead = past.dead - _named(begun.nodes) if past.dead else past.dead
    attempts = max(past.attempts, begun.attempt)
    return replace(past, attempts=attempts, starts=starts, trouble="", began_at=begun.at, shares=shares, dead=dead)


def _named(nodes: str) -> set[str]:
    try:
        return {*expand(nodes)}
    except UsageError:  # a damaged ledger
        return set()


def _trouble_seen(past: History, seen: TroubleSeen) -> History:
    """An attempt has lived until its trouble began; how long its ranks took to stop tells nothing."""
    lived_s = seen.at - past.began_at if past.began_at else 0.0
    past = replace(past, trouble=seen.cause, began_at=0.0, lived_s=lived_s)
    if past.longest_s and lived_s >= max(LIVED_FACTOR * past.longest_s, LIVED_LEAST_S):
        past = _progress(past, seen.at)
    return replace(past, longest_s=max(past.longest_s, lived_s))


def _progress(past: History, at: float) -> History:
    """Breaks whatever counts in a row."""
    return replace(
        past, unconditional_in_a_row=0, hangs_in_a_row=0, same_in_a_row=0, same_words=0, moved=False, longest_s=0.0,
        most_beats=0, progress_at=at,
    )  # fmt: skip


def _slots_changed(past: History, changed: SlotsChanged) -> History:
    rescheduled, bases = dict(past.rescheduled), dict(past.bases)
    if changed.kept:
        rescheduled = {now: rescheduled[was] for now, was in enumerate(changed.kept) if was in rescheduled}
        bases = {now: bases[was] for now, was in enumerate(changed.kept) if was in bases}
    for slot in (int(text) for text in changed.filled if text.isdecimal()):
        rescheduled[slot] = rescheduled.get(slot, 0) + 1
        bases[slot] = dict(past.starts)
    shares = past.shares
    if changed.kept:
        shares = {key: tuple(all_[was] for was in changed.kept if was < len(all_)) for key, all_ in shares.items()}
    alone = {key: number for key, number in past.rank_starts.items() if key[2] not in changed.ranks}
    if changed.moved:
        place = {was: now for now, was in enumerate(changed.moved)}
        alone = {(schedule, step, place[rank]): n for (schedule, step, rank), n in alone.items() if rank in place}
    return replace(past, rescheduled=rescheduled, bases=bases, rank_starts=alone, places=changed.nodes, shares=shares)


def _node_lent(past: History, lent: NodeLent) -> History:
    return replace(past, lent={**past.lent, lent.node: lent.job})


def _node_refused(past: History, refused: NodeRefused) -> History:
    isolated = {**past.isolated, refused.node: (refused.why, refused.at)}
    words = {node: sign for node, sign in past.left_on_words.items() if node != refused.node}
    return replace(past, isolated=isolated, let_in=past.let_in - {refused.node}, left_on_words=words)


def _rank_began(past: History, begun: RankBegan) -> History:
    key = (begun.schedule, begun.step_key, begun.rank)
    starts = {**past.rank_starts, key: past.rank_starts.get(key, 0) + 1}
    return replace(past, attempts=max(past.attempts, begun.attempt), rank_starts=starts)


def _diagnosed(past: History, found: Diagnosed) -> History:
    last = past.diagnosis
    same = last is not None and last.signature == found.signature
    again = last is not None and same and past.same_words > 0 and found.said != "" and _alike(last.said) == _alike(found.said)
    moved = last is not None and again and (past.moved or (last.rank, last.node) != (found.rank, found.node))
    errors, suspicions = dict(past.errors), dict(past.suspicions)
    for rank in found.ranks:
        errors[rank, found.signature] = errors.get((rank, found.signature), 0) + 1
    for node in {*found.suspects, *found.blamed}:
        suspicions[node] = (*suspicions.get(node, ()), (found.at, found.signature))
    shown = {int(rank): node for rank, node in found.shown.items() if _is_rank(rank)}
    new = (Sighting(found.at, found.signature, rank, node, past.last_step) for rank, node in shown.items())
    past = replace(past, sightings=(*past.sightings, *new)[-SIGHTINGS_MAX:])
    return replace(
        past, diagnosis=found, same_in_a_row=past.same_in_a_row + 1 if same else 1, errors=errors,
        same_words=past.same_words + 1 if again else 1, moved=moved,
        failed_ranks=past.failed_ranks | {*found.ranks}, suspicions=suspicions,
    )  # fmt: skip


# Process ids, addresses, times, numbers of nodes and steps: they differ though the failure is the same.
_VARIES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+")


def _alike(said: str) -> str:
    return _VARIES.sub("#", said.lower())


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _reinstated(past: History, found: Reinstated) -> History:
    """left_on_words stays as it is: such words have cost what they may, and have proven wrong."""
    nodes = {node for node in found.nodes if past.left_on_words.get(node) == found.signature and node in past.isolated}
    isolated = {node: told for node, told in past.isolated.items() if node not in nodes}
    suspicions = dict(past.suspicions)
    for node in found.nodes:
        suspicions[node] = tuple(told for told in suspicions.get(node, ()) if told[1] != found.signature)
    return replace(past, isolated=isolated, suspicions=suspicions, reinstated=past.reinstated | nodes, let_in=past.let_in - nodes)


def _fault_seen(past: History, fault: FaultSeen) -> History:
    key = (fault.node, fault.device, fault.code)
    explicit = fault.fault_class in EXPLICIT_CLASSES and not fault.user_induced
    row, hangs = (0, 0) if explicit else (past.unconditional_in_a_row, past.hangs_in_a_row)
    faults = {**past.faults, key: (*past.faults.get(key, ()), fault.at)}
    return replace(past, faults=faults, unconditional_in_a_row=row, hangs_in_a_row=hangs)


def _decided(past: History, decided: Decided) -> History:
    spent = dict(past.spent)
    if decided.cost:
        spent[decided.cost] = spent.get(decided.cost, 0) + 1
    culprits = past.culprits
    if decided.cause == "hang" and past.hung[0] == decided.attempt:
        culprits = {**culprits, decided.attempt: past.hung[1]}
    isolated = {**past.isolated, **{node: (why, decided.at) for node, why in decided.isolate.items()}}
    words = {node: sign for node, sign in past.left_on_words.items() if node not in decided.isolate or node in decided.words}
    words |= {node: sign for node, sign in decided.words.items() if node in decided.isolate}
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
        job_restarts=past.job_restarts + _restarts_job(decided),
        unconditional_in_a_row=_in_a_row(past.unconditional_in_a_row, decided, decided.rung == Rung.UNCONDITIONAL_REQUEUE),
        hangs_in_a_row=_in_a_row(past.hangs_in_a_row, decided, decided.cause == "hang"),
        left_on_words=words,
        reinstated=past.reinstated.difference(isolated),
        culprits=culprits,
        spent=spent,
        isolated=isolated,
        dead=past.dead | {*decided.dead},
        let_in=frozenset(isolated.keys() - {*decided.exclude}) if requeues else past.let_in.difference(decided.isolate),
    )


def _restarts_job(decided: Decided) -> bool:
    """A crash that is answered in place and costs nothing came of a port that ftrun had chosen. What people ask for is theirs."""
    own_doing = decided.cause == "request" or (
        decided.rung == Rung.IN_PLACE_RESTART and decided.cause == "crash" and not decided.cost
    )
    return decided.rung in RESTARTS and not own_doing


def _run_of(decided: Decided) -> str:
    """Which ftrun decided: its id begins with that of the run."""
    return decided.id.partition("-")[0]


def _still_open(past: History, decided: Decided) -> Decided | None:
    """The requeue that stands open, unless `decided` comes in its place. What an ftrun beside it decides does not: the keeper
    would find nothing to do, and the job end as requeued that never was."""
    before = past.open_requeue
    return before if before is not None and not past.requeue_left and _run_of(before) != _run_of(decided) else None


def _in_a_row(before: int, decided: Decided, one_more: bool) -> int:
    return 0 if decided.cause in EXPLICIT_FAULTS else before + one_more


def _clean_up_began(past: History, began: CleanUpBegan) -> History:
    return replace(past, cleaning=began)


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
    return replace(
        past, hangs_in_a_row=max(hangs, 0), spent={**past.spent, swap.cost: spent} if spent >= 0 else past.spent,
        job_restarts=max(past.job_restarts - _restarts_job(swap), 0),
    )  # fmt: skip


def _attempt_ended(past: History, ended: AttemptEnded) -> History:
    """Progress beyond the point of the last failure breaks what counts in a row.

    Steps tell it best. Of a program that tells none, so many more beats than in any try before do, or that it has saved what
    it has done since its start; what is saved at once holds nothing new.
    """
    past = replace(past, last_step=ended.step)
    if ended.step or past.furthest:
        return _progress(replace(past, furthest=ended.step), ended.at) if ended.step > past.furthest else past
    further = past.most_beats and ended.beats >= LIVED_FACTOR * past.most_beats
    if further or (ended.saved and past.lived_s >= LIVED_LEAST_S):
        past = _progress(past, ended.at)
    return replace(past, most_beats=max(past.most_beats, ended.beats))


def _culprit_seen(past: History, found: CulpritSeen) -> History:
    if found.sign not in HANGS:
        return past
    ranks = found.ranks if len(found.nodes) == 1 else ()
    new = (Sighting(found.at, HANG, rank, found.nodes[0], 0) for rank in ranks)
    return replace(past, hung=(found.attempt, frozenset(found.nodes)), sightings=(*past.sightings, *new)[-SIGHTINGS_MAX:])


def _paused(past: History, pause: Paused) -> History:
    if pause.busy:
        return replace(past, busy_pauses=with_pause(past.busy_pauses, pause.seconds))
    return replace(past, quiet_pauses=with_pause(past.quiet_pauses, pause.seconds))


def _finished(past: History, finished: Finished) -> History:
    """Whoever finishes has ended its loans first."""
    left = past.open_requeue is not None and _run_of(past.open_requeue) == finished.run
    return replace(past, finished=finished, lent={}, requeue_left=past.requeue_left or left)


def _requested(past: History, asked: Requested) -> History:
    return replace(past, control=past.control.asked(asked))


def _request_answered(past: History, answer: RequestAnswered) -> History:
    """What is in force from now on. A request that is undone leaves nodes as they were before it."""
    request = past.control.get(answer.number)
    control = past.control.answered(answer, past.isolated)
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
    words = {node: sign for node, sign in past.left_on_words.items() if node not in nodes}
    return replace(
        past, isolated={**past.isolated, **nodes}, let_in=past.let_in.difference(nodes), left_on_words=words,
        reinstated=past.reinstated.difference(nodes),
    )  # fmt: skip


def _free(past: History, nodes: Iterable[str]) -> History:
    """The next requeue takes them off the nodes that Slurm keeps the job off."""
    freed = {*nodes} & past.isolated.keys()
    isolated = {node: told for node, told in past.isolated.items() if node not in freed}
    return replace(
        past, isolated=isolated, reinstated=past.reinstated | freed, let_in=past.let_in - freed, dead=past.dead - freed
    )


def _request_done(past: History, done: RequestDone) -> History:
    request, past = past.control.get(done.number), replace(past, control=past.control.done(done))
    return past if request is None or done.ok or not request.in_force else _as_before(past, request)


def _checkpoint_seen(past: History, seen: CheckpointSeen) -> History:
    return replace(past, control=past.control.checkpoint(seen))


def _program_said(past: History, said: ProgramSaid) -> History:
    return replace(past, checkpoints_told=True) if said.what == CHECKPOINT else past


def _iteration_seen(past: History, seen: IterationSeen) -> History:
    return replace(past, iteration=seen.iteration, in_vain=seen.in_vain)


_ADDERS: Mapping[type, Callable[..., History]] = {
    ProgramSaid: _program_said,
    Requested: _requested,
    RequestAnswered: _request_answered,
    RequestDone: _request_done,
    CheckpointSeen: _checkpoint_seen,
    IterationSeen: _iteration_seen,
    RunBegan: _run_began,
    AttemptBegan: _attempt_began,
    RankBegan: _rank_began,
    TroubleSeen: _trouble_seen,
    AttemptEnded: _attempt_ended,
    Diagnosed: _diagnosed,
    Reinstated: _reinstated,
    CulpritSeen: _culprit_seen,
    Paused: _paused,
    SlotsChanged: _slots_changed,
    NodeLent: _node_lent,
    NodeRefused: _node_refused,
    FaultSeen: _fault_seen,
    Decided: _decided,
    CleanUpBegan: _clean_up_began,
    CarriedOut: _carried_out,
    Finished: _finished,
}
