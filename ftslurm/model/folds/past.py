"""What is counted of a job's past: budgets, requeues, crashes, hangs, pauses and progress. Only its own methods change each.

"Consecutive" ends, as ModelArts has it, with a decision that has an explicit cause, or with an explicit fault. What ranks only
printed ("hardware") does not end it: our own remedy for it would set the count back, and a bug never end.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from ftslurm.model import record as rec
from ftslurm.model.job import Share, unfold_shares
from ftslurm.model.rungs import REQUEUES, RESTARTS, Budget, Rung
from ftslurm.model.values import Value, field, replace

# --- its slots: on which nodes they are, how often each was scheduled, and how often its command was started there


class Slots(Value):
    size: int = 0  # nodes of the job as it was scheduled, 0 if nobody wrote it; some may have been lost or given back since
    nodes: tuple[str, ...] = ()  # by slot, once they were changed in this scheduling
    lent: Mapping[str, int] = field(default_factory=dict)  # node -> donor job, of those nobody has ended for sure
    starts: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (schedule, step key) -> runs of it
    rank_starts: Mapping[tuple[int, str, int], int] = field(default_factory=dict)  # (..., rank) -> starts of that rank alone
    rescheduled: Mapping[int, int] = field(default_factory=dict)  # slot -> how often it alone got another node
    bases: Mapping[int, Mapping[tuple[int, str], int]] = field(default_factory=dict)  # slot -> `starts` when it last did
    shares: Mapping[tuple[int, str], tuple[Share, ...]] = field(default_factory=dict)  # as starts -> by slot, of its node

    def run_began(self, size: int, scheduled_again: bool) -> Slots:
        return replace(self, nodes=() if scheduled_again else self.nodes, size=max(size, 0 if scheduled_again else self.size))

    def attempt_began(self, begun: rec.AttemptBegan) -> Slots:
        key = (begun.schedule, begun.step_key)
        starts = {**self.starts, key: max(begun.starts, self.starts.get(key, 0))}
        return replace(self, starts=starts, shares={**self.shares, key: unfold_shares(begun.cpus, begun.gpus)})

    def rank_began(self, begun: rec.RankBegan) -> Slots:
        key = (begun.schedule, begun.step_key, begun.rank)
        return replace(self, rank_starts={**self.rank_starts, key: self.rank_starts.get(key, 0) + 1})

    def changed(self, changed: rec.SlotsChanged) -> Slots:
        rescheduled, bases, shares = dict(self.rescheduled), dict(self.bases), self.shares
        if changed.kept:
            rescheduled = {now: rescheduled[was] for now, was in enumerate(changed.kept) if was in rescheduled}
            bases = {now: bases[was] for now, was in enumerate(changed.kept) if was in bases}
            shares = {key: tuple(all_[was] for was in changed.kept if was < len(all_)) for key, all_ in shares.items()}
        for slot in (int(text) for text in changed.filled if text.isdecimal()):
            rescheduled[slot] = rescheduled.get(slot, 0) + 1
            bases[slot] = dict(self.starts)
        alone = {key: number for key, number in self.rank_starts.items() if key[2] not in changed.ranks}
        if changed.moved:
            place = {was: now for now, was in enumerate(changed.moved)}
            alone = {(schedule, step, place[rank]): n for (schedule, step, rank), n in alone.items() if rank in place}
        return replace(self, rescheduled=rescheduled, bases=bases, rank_starts=alone, nodes=changed.nodes, shares=shares)

    def node_lent(self, lent: rec.NodeLent) -> Slots:
        return replace(self, lent={**self.lent, lent.node: lent.job})

    def finished(self) -> Slots:
        """Whoever finishes has ended its loans first."""
        return replace(self, lent={})


# --- the nodes that a job keeps off, why, and which of them it may use again


class Exclusions(Value):
    isolated: Mapping[str, tuple[str, float]] = field(default_factory=dict)  # node -> (reason, when)
    dead: frozenset[str] = frozenset()  # known dead when they were isolated, and no rank has run there since
    let_in: frozenset[str] = frozenset()  # that the last requeue did not keep out: the job could not have started without them
    # node -> signature, of all nodes that the job has ever left on nothing but words, but for those that a fact spoke against
    # later. Reinstated ones stay: such words have cost what they may, and have proven wrong.
    left_on_words: Mapping[str, str] = field(default_factory=dict)
    # Of those, such that it may use again, and those that an experiment left for once.
    reinstated: frozenset[str] = frozenset()

    @property
    def ours(self) -> frozenset[str]:
        """Nodes that Slurm may keep the job off because we have said so."""
        return self.reinstated.union(self.isolated)

    def left_on_words_still(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Of these, in their order."""
        return tuple(node for node in nodes if node in self.left_on_words and node in self.isolated)

    def decided(self, decided: rec.Decided) -> Exclusions:
        if not (decided.isolate or decided.dead or decided.without or self.reinstated or decided.rung in REQUEUES):
            return self
        isolated = {**self.isolated, **{node: (why, decided.at) for node, why in decided.isolate.items()}}
        words = {node: sign for node, sign in self.left_on_words.items() if node not in decided.isolate or node in decided.words}
        words |= {node: sign for node, sign in decided.words.items() if node in decided.isolate}
        requeue = decided.rung in REQUEUES
        return replace(
            self,
            isolated=isolated,
            dead=self.dead | {*decided.dead},
            let_in=frozenset(isolated.keys() - {*decided.exclude}) if requeue else self.let_in.difference(decided.isolate),
            left_on_words=words,
            reinstated=(self.reinstated | ({decided.without} if decided.without else set())).difference(isolated),
        )

    def refused(self, refused: rec.NodeRefused) -> Exclusions:
        """A node that was looked at and not taken. What was reinstated stays so, for Slurm."""
        isolated = {**self.isolated, refused.node: (refused.why, refused.at)}
        words = {node: sign for node, sign in self.left_on_words.items() if node != refused.node}
        return replace(self, isolated=isolated, let_in=self.let_in - {refused.node}, left_on_words=words)

    def experiment_ended(self, ended: rec.ExperimentEnded) -> Exclusions:
        if not ended.excluded:
            return self
        left = self.isolate({ended.node: (ended.why, ended.at)})
        return replace(left, left_on_words={**left.left_on_words, ended.node: ended.signature})

    def take_back(self, found: rec.Reinstated) -> Exclusions:
        """The words for which these nodes were left have proven wrong."""
        nodes = {node for node in found.nodes if self.left_on_words.get(node) == found.signature and node in self.isolated}
        isolated = {node: told for node, told in self.isolated.items() if node not in nodes}
        return replace(self, isolated=isolated, reinstated=self.reinstated | nodes, let_in=self.let_in - nodes)

    def isolate(self, nodes: Mapping[str, tuple[str, float]]) -> Exclusions:
        words = {node: sign for node, sign in self.left_on_words.items() if node not in nodes}
        return replace(
            self, isolated={**self.isolated, **nodes}, let_in=self.let_in.difference(nodes), left_on_words=words,
            reinstated=self.reinstated.difference(nodes),
        )  # fmt: skip

    def free(self, nodes: Iterable[str]) -> Exclusions:
        """The next requeue takes them off the nodes that Slurm keeps the job off."""
        freed = {*nodes} & self.isolated.keys()
        isolated = {node: told for node, told in self.isolated.items() if node not in freed}
        return replace(
            self, isolated=isolated, reinstated=self.reinstated | freed, let_in=self.let_in - freed, dead=self.dead - freed
        )

    def needed(self, nodes: Collection[str]) -> Exclusions:
        """The job cannot start without them, so it may run there."""
        return replace(self, let_in=self.let_in | (self.isolated.keys() & {*nodes})) if nodes else self

    def ran_on(self, nodes: Collection[str]) -> Exclusions:
        """Ranks have begun there: they live."""
        return replace(self, dead=self.dead.difference(nodes))


# --- what was found to be behind a job's failures, and how often the same came again

# A failure on thousands of ranks is nobody's in particular; of those that matter a few ranks tell.
SIGHTINGS_MAX = 1024
# Process ids, addresses, times, numbers of nodes and steps: they differ though the failure is the same.
_VARIES = r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+"


class Sighting(Value):
    """A rank on a node printed words that make its node a suspect. step: to which the training had come; 0: not told."""

    at: float
    signature: str
    rank: int
    node: str
    step: int


class Verdicts(Value):
    last: rec.Diagnosed | None = None
    same_in_a_row: int = 0  # verdicts with the signature of the last one, without progress between
    same_words: int = 0  # of these, the last one included, those that also said the same, numbers aside
    moved: bool = False  # not all of them on one rank of one node
    errors: Mapping[tuple[int, str], int] = field(default_factory=dict)  # (rank, signature) -> how often
    failed_ranks: frozenset[int] = frozenset()  # that ever failed by themselves
    suspicions: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)  # node -> (when, signature)
    sightings: tuple[Sighting, ...] = ()  # of words that make their node a suspect

    def diagnosed(self, found: rec.Diagnosed, step: int) -> Verdicts:
        """step: to which the training had come."""
        last = self.last
        same = last is not None and last.signature == found.signature
        again = last is not None and same and self.same_words > 0 and found.said != "" and _alike(last.said) == _alike(found.said)
        moved = last is not None and again and (self.moved or (last.rank, last.node) != (found.rank, found.node))
        errors, suspicions = dict(self.errors), dict(self.suspicions)
        for rank in found.ranks:
            errors[rank, found.signature] = errors.get((rank, found.signature), 0) + 1
        for node in {*found.suspects, *found.blamed}:
            suspicions[node] = (*suspicions.get(node, ()), (found.at, found.signature))
        shown = {int(rank): node for rank, node in found.shown.items() if _is_rank(rank)}
        new = (Sighting(found.at, found.signature, rank, node, step) for rank, node in shown.items())
        return replace(
            self.sighted(new) if shown else self, last=found, same_in_a_row=self.same_in_a_row + 1 if same else 1, errors=errors,
            same_words=self.same_words + 1 if again else 1, moved=moved,
            failed_ranks=self.failed_ranks | {*found.ranks}, suspicions=suspicions,
        )  # fmt: skip

    def sighted(self, new: Iterable[Sighting]) -> Verdicts:
        return replace(self, sightings=(*self.sightings, *new)[-SIGHTINGS_MAX:])

    def progress_made(self) -> Verdicts:
        return replace(self, same_in_a_row=0, same_words=0, moved=False)

    def take_back(self, nodes: Iterable[str], signature: str) -> Verdicts:
        """These words make none of the nodes a suspect any more."""
        suspicions = dict(self.suspicions)
        for node in nodes:
            suspicions[node] = tuple(told for told in suspicions.get(node, ()) if told[1] != signature)
        return replace(self, suspicions=suspicions)

    def suspected(self, node: str, since: float) -> int:
        """How often a verdict held something against `node` from `since` (Unix seconds) on."""
        return sum(at >= since for at, _ in self.suspicions.get(node, ()))


def _alike(said: str) -> str:
    return re.sub(_VARIES, "#", said.lower())


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


EXPLICIT_FAULTS = frozenset({"device", "node"})
EXPLICIT_CLASSES = frozenset({"self-healing", "isolate"})


def in_a_row(before: int, decided: rec.Decided, one_more: bool) -> int:
    return 0 if decided.cause in EXPLICIT_FAULTS else before + one_more


def is_explicit(fault: rec.FaultSeen) -> bool:
    return fault.fault_class in EXPLICIT_CLASSES and not fault.user_induced


# --- what a job's decisions have cost. Restarts are counted for each command of a script, as torchrun and ft_launcher count them;
# requeues for the whole job.


class Budgets(Value):
    spent: Mapping[str, int] = field(default_factory=dict)  # budget name -> how much
    job_restarts: int = 0  # of all ranks, whatever the cause, but for those that cured our own choice of a port
    other_commands: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # step key -> restarts and crash restarts

    def used(self, budget: str) -> int:
        """How much of that budget is spent."""
        return self.job_restarts if budget == Budget.JOB_RESTARTS else self.spent.get(budget, 0)

    def left(self, limits: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Name of each budget that has a limit -> (what is left, its limit)."""
        return {name: (limit - self.used(name), limit) for name, limit in limits.items() if limit}

    def decided(self, decided: rec.Decided) -> Budgets:
        spent = {**self.spent, decided.cost: self.spent.get(decided.cost, 0) + 1} if decided.cost else self.spent
        return replace(self, spent=spent, job_restarts=self.job_restarts + _restarts_job(decided))

    def take_back(self, swap: rec.Decided) -> Budgets:
        """Nothing was swapped: its price is paid back."""
        left = self.spent.get(swap.cost, 0) - 1
        spent = {**self.spent, swap.cost: left} if left >= 0 else self.spent
        return replace(self, spent=spent, job_restarts=max(self.job_restarts - _restarts_job(swap), 0))

    def command_began(self, last: str, next_: str) -> Budgets:
        """Step keys of the command that ran last, and of the one that begins."""
        others = {**self.other_commands, last: (self.job_restarts, self.spent.get(Budget.CRASH_RESTARTS, 0))}
        restarts, crashes = others.pop(next_, (0, 0))
        counts = crashes or Budget.CRASH_RESTARTS in self.spent
        spent = {**self.spent, Budget.CRASH_RESTARTS.value: crashes} if counts else self.spent
        return replace(self, other_commands=others, job_restarts=restarts, spent=spent)


def _restarts_job(decided: rec.Decided) -> bool:
    """A crash that is answered in place and costs nothing came of a port that ftrun had chosen. What people ask for is theirs."""
    own_doing = decided.cause == "request" or (
        decided.rung == Rung.IN_PLACE_RESTART and decided.cause == "crash" and not decided.cost
    )
    return decided.rung in RESTARTS and not own_doing


# --- a job's requeues: the one that stands open, those that were done, and what led to this scheduling

# The setting by which a job is requeued before its time limit ends it.
AT_LIMIT = "time_limit.resume"


class Requeues(Value):
    open: rec.Decided | None = None  # decided, and nobody wrote that it was done
    left: bool = False  # the ftrun that decided the open one has ended since
    last: rec.Decided | None = None  # decided in this scheduling, unless it failed
    done: int = 0
    at_limit: int = 0  # decided because the time limit was near
    unconditional_in_a_row: int = 0  # without an explicit fault or progress between
    scheduled_by: tuple[str, str] = ("", "")  # (rung, cause) of what led to this scheduling; empty for the first

    def run_began(self, scheduled_by: tuple[str, str], scheduled_again: bool) -> Requeues:
        """scheduled_again: a later scheduling of the job, which is proof that the requeue happened, whoever finished it."""
        begun = replace(self, scheduled_by=scheduled_by)
        return replace(begun, open=None, left=False, last=None) if scheduled_again else begun

    def decided(self, decided: rec.Decided) -> Requeues:
        requeue = decided if decided.rung in REQUEUES else self._still_open(decided)
        unconditional = decided.rung == Rung.UNCONDITIONAL_REQUEUE
        return replace(
            self,
            open=requeue,
            last=requeue if self.open is not None else requeue or self.last,
            left=self.left and requeue is self.open,
            at_limit=self.at_limit + any(setting == AT_LIMIT for _, setting, _ in decided.settings),
            unconditional_in_a_row=in_a_row(self.unconditional_in_a_row, decided, unconditional),
        )

    def _still_open(self, decided: rec.Decided) -> rec.Decided | None:
        """The requeue that stands open, unless `decided` comes in its place. What an ftrun beside it decides does not: the keeper
        would find nothing to do, and the job end as requeued that never was."""
        before = self.open
        return before if before is not None and not self.left and run_of(before) != run_of(decided) else None

    def carried_out(self, done: rec.CarriedOut) -> Requeues:
        if self.open is None or done.id != self.open.id:
            return self
        return replace(self, open=None, last=self.last if done.ok is not False else None, left=False, done=self.done + done.ok)

    def finished(self, finished: rec.Finished) -> Requeues:
        left = self.open is not None and run_of(self.open) == finished.run
        return replace(self, left=self.left or left)

    def broken(self) -> Requeues:
        """What comes next is the first in a row."""
        return replace(self, unconditional_in_a_row=0)


def run_of(decided: rec.Decided) -> str:
    """Which ftrun decided: its id begins with that of the run."""
    return decided.id.partition("-")[0]


# --- a job's crashes that no fact explains, since it last made progress: where they failed, and what experiments have left


class Alike(Value):
    """Crashes of one command with one signature, counted: a list would grow with each. times: node of the rank that the verdict
    goes by -> how often. everywhere: the nodes that all these attempts had."""

    times: Mapping[str, int]
    everywhere: frozenset[str]


class Experiment(Value):
    """The attempts from `at` on (Unix seconds) run without `node`, to see whether they fail there as well. times: how often the
    job had failed on it."""

    at: float
    node: str
    signature: str
    times: int


class Crashes(Value):
    nodes: frozenset[str] = frozenset()  # of the last attempt
    seen: Mapping[tuple[str, str], Alike] = field(
        default_factory=dict
    )  # (step key, signature) -> those since progress was last made, or a fact came between
    in_place: Mapping[str, int] = field(default_factory=dict)  # step key -> crashes answered in place since then
    left: frozenset[str] = frozenset()  # nodes that experiments have left since then
    experiment: Experiment | None = None  # that nothing has come of yet

    def once_more(self, command: str, signature: str, node: str, nodes: frozenset[str]) -> Alike:
        """Those like it, and one on `node` whose attempt had `nodes`."""
        before = self.seen.get((command, signature), Alike({}, nodes))
        return Alike({**before.times, node: before.times.get(node, 0) + 1}, before.everywhere & nodes)

    def attempt_began(self, nodes: Collection[str]) -> Crashes:
        return replace(self, nodes=frozenset(nodes))

    def decided(self, decided: rec.Decided, verdict: rec.Diagnosed | None, command: str) -> Crashes:
        """verdict: the last one. A rank of an async job that starts again alone is no crash of the job."""
        if decided.cause != "crash" or decided.rung == Rung.RANK_RESTART:
            return self
        in_place = self.in_place
        if decided.cost == Budget.CRASH_RESTARTS:
            in_place = {**in_place, command: in_place.get(command, 0) + 1}
        if verdict is None or verdict.attempt != decided.attempt or not (verdict.node and self.nodes):
            return replace(self, in_place=in_place)
        same = self.once_more(command, verdict.signature, verdict.node, self.nodes)
        found = replace(self, in_place=in_place, seen={**self.seen, (command, verdict.signature): same})
        return found._leaving(decided, verdict) if decided.without else found

    def _leaving(self, decided: rec.Decided, verdict: rec.Diagnosed) -> Crashes:
        same = (alike for (_, signature), alike in self.seen.items() if signature == verdict.signature)
        times = sum(alike.times.get(decided.without, 0) for alike in same)
        begun = Experiment(decided.at, decided.without, verdict.signature, times)
        return replace(self, left=self.left | {decided.without}, experiment=begun)

    def ended(self, _: rec.ExperimentEnded) -> Crashes:
        return replace(self, experiment=None)

    def broken(self) -> Crashes:
        """What comes next is the first in a row."""
        begun = self.experiment
        return Crashes(self.nodes, experiment=begun if begun is not None and begun.node not in self.nodes else None)


# --- what is kept of a job's pauses: of the agent's intervals, in the ledger, and for the limits that are learned from them
# (policies/hang/stall_watch.py).
# A pause is a time without progress that was long enough to be looked at, and that ended by itself. All times in seconds.

# So many intervals between two signs of progress tell the usual one.
WARM_INTERVALS = 30
# So many of a job's longest pauses are kept, of each class: they tell how heavy the tail is.
PAUSES_MAX = 25


def usual_interval_s(intervals: Sequence[float]) -> float | None:
    """The median of the first WARM_INTERVALS; None before there are so many."""
    if len(intervals) < WARM_INTERVALS:
        return None
    from statistics import median  # 5 ms to load, for commands that only read a ledger

    return median(intervals[:WARM_INTERVALS])


def with_pause(longest: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """The longest pauses, the longest first, after one more; unchanged by one that is not among them."""
    return tuple(sorted((*longest, seconds), reverse=True)[:PAUSES_MAX])


# --- a job's hangs and pauses: how many hangs came in a row, whom they began with, how long the job has paused by itself

HANGS = frozenset({"RankCommHang", "RankNonCommHang"})


class HangStreak(Value):
    in_a_row: int = 0  # decisions on hangs without an explicit fault or progress between
    last: tuple[int, frozenset[str]] = (0, frozenset())  # attempt and nodes of the last one seen, whatever came of it
    culprits: Mapping[int, frozenset[str]] = field(default_factory=dict)  # attempt -> nodes of the hang that ended it
    quiet_pauses: tuple[float, ...] = ()  # seconds, the longest first
    busy_pauses: tuple[float, ...] = ()  # likewise

    def seen(self, found: rec.CulpritSeen) -> HangStreak:
        return replace(self, last=(found.attempt, frozenset(found.nodes)))

    def decided(self, decided: rec.Decided) -> HangStreak:
        culprits = self.culprits
        if decided.cause == "hang" and self.last[0] == decided.attempt:
            culprits = {**culprits, decided.attempt: self.last[1]}
        return replace(self, culprits=culprits, in_a_row=in_a_row(self.in_a_row, decided, decided.cause == "hang"))

    def broken(self) -> HangStreak:
        """What comes next is the first in a row."""
        return replace(self, in_a_row=0)

    def take_back(self, swap: rec.Decided) -> HangStreak:
        """The hang that it was to answer counts with the answer that comes in its place."""
        return replace(self, in_a_row=max(self.in_a_row - (swap.cause == "hang"), 0))

    def paused(self, pause: rec.Paused) -> HangStreak:
        if pause.busy:
            return replace(self, busy_pauses=with_pause(self.busy_pauses, pause.seconds))
        return replace(self, quiet_pauses=with_pause(self.quiet_pauses, pause.seconds))


# --- how far a job's training has come, and how long its attempts have lived since it last came further

# A program that tells no steps has come further if it has lived for so many times as long as in any try before, and for
# this long at least: the start of Python from a cold file system takes some seconds more than from a warm one.
LIVED_FACTOR, LIVED_LEAST_S = 2.0, 30.0
# What was lost by less than this may have had no checkpoint yet.
LOST_STEPS, LOST_S = 10, 60.0


class Progress(Value):
    furthest: int = 0  # the training step that any attempt has come to
    made_at: float = 0.0  # when progress was last made, or an attempt lived so much longer; Unix seconds
    began_at: float = 0.0  # of the attempt; 0 once its trouble has begun
    lived_s: float = 0.0  # of the attempt that ended last, until its trouble began
    last_step: int = 0  # of that attempt
    longest_s: float = 0.0  # the longest life of an attempt since progress was last made
    most_beats: int = 0  # of an attempt since then
    checkpoints_told: bool = False  # has the program ever said that a checkpoint is complete?
    iteration: int = 0  # see IterationSeen
    in_vain: int = 0  # see IterationSeen
    first: tuple[str, int] = ("", 0)  # key of the step that told training steps last, and the first that it told
    began_anew: bool = False  # an attempt has told that one again although the one before had come much further

    def step_reached(self, key: str, step: int) -> Progress:
        if self.first[0] != key:
            return replace(self, first=(key, step))
        return replace(self, began_anew=self.began_anew or self.begins_anew(key, step))

    def begins_anew(self, key: str, step: int) -> bool:
        """Is the first step of this attempt, `step`, that of the job, after an attempt that had time for a checkpoint?"""
        lost = self.last_step >= step + LOST_STEPS and self.lived_s >= LOST_S
        return lost and self.first[0] == key and step <= self.first[1]

    def attempt_began(self, at: float) -> Progress:
        return replace(self, began_at=at)

    def trouble_seen(self, at: float) -> tuple[Progress, bool]:
        """Is it progress, too? An attempt has lived until its trouble began; how long its ranks took to stop tells nothing."""
        lived_s = at - self.began_at if self.began_at else 0.0
        made = bool(self.longest_s) and lived_s >= max(LIVED_FACTOR * self.longest_s, LIVED_LEAST_S)
        ended = self._made(at) if made else self
        return replace(ended, began_at=0.0, lived_s=lived_s, longest_s=max(ended.longest_s, lived_s)), made

    def attempt_ended(self, attempt: rec.AttemptEnded) -> tuple[Progress, bool]:
        """Is it progress?

        Steps tell it best. Of a program that tells none, so many more beats than in any try before do, or that it has saved what
        it has done since its start; what is saved at once holds nothing new.
        """
        if attempt.step or self.furthest:
            ended = replace(self, last_step=attempt.step)
            if attempt.step <= self.furthest:
                return ended, False
            return replace(ended, furthest=attempt.step)._made(attempt.at), True
        further = self.most_beats > 0 and attempt.beats >= LIVED_FACTOR * self.most_beats
        made = further or (bool(attempt.saved) and self.lived_s >= LIVED_LEAST_S)
        ended = self._made(attempt.at) if made else self
        return replace(ended, last_step=attempt.step, most_beats=max(ended.most_beats, attempt.beats)), made

    def checkpoint_told(self) -> Progress:
        return replace(self, checkpoints_told=True)

    def iteration_seen(self, seen: rec.IterationSeen) -> Progress:
        return replace(self, iteration=seen.iteration, in_vain=seen.in_vain)

    def _made(self, at: float) -> Progress:
        return replace(self, longest_s=0.0, most_beats=0, made_at=at)
