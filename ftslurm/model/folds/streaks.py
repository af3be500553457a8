"""What is counted of a job's past: budgets, requeues, crashes, hangs, pauses and progress. Only its own methods change each.

"Consecutive" ends, as ModelArts has it, with a decision that has an explicit cause, or with an explicit fault. What ranks only
printed ("hardware") does not end it: our own remedy for it would set the count back, and a bug never end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from ftslurm.model import record as rec
from ftslurm.model.rungs import REQUEUES, RESTARTS, Budget, Rung
from ftslurm.model.values import dataclass, replace

EXPLICIT_FAULTS = frozenset({"device", "node"})
EXPLICIT_CLASSES = frozenset({"self-healing", "isolate"})


def in_a_row(before: int, decided: rec.Decided, one_more: bool) -> int:
    return 0 if decided.cause in EXPLICIT_FAULTS else before + one_more


def is_explicit(fault: rec.FaultSeen) -> bool:
    return fault.fault_class in EXPLICIT_CLASSES and not fault.user_induced


# --- what a job's decisions have cost. Restarts are counted for each command of a script, as torchrun and ft_launcher count them;
# requeues for the whole job.


@dataclass(frozen=True, slots=True)
class Budgets:
    spent: Mapping[str, int] = field(default_factory=dict)  # budget name -> how much
    job_restarts: int = 0  # of all ranks, whatever the cause, but for those that cured our own choice of a port
    other_commands: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # step key -> restarts and crash restarts

    def used(self, budget: str) -> int:
        """How much of that budget is spent."""
        return self.job_restarts if budget == Budget.JOB_RESTARTS else self.spent.get(budget, 0)

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


@dataclass(frozen=True, slots=True)
class Requeues:
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


@dataclass(frozen=True, slots=True)
class Crash:
    """command: its step key. node: of the rank that the verdict goes by. nodes: all those of the attempt."""

    command: str
    signature: str
    node: str
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Experiment:
    """The attempts from `at` on (Unix seconds) run without `node`, to see whether they fail there as well. times: how often the
    job had failed on it."""

    at: float
    node: str
    signature: str
    times: int


@dataclass(frozen=True, slots=True)
class Crashes:
    nodes: frozenset[str] = frozenset()  # of the last attempt
    seen: tuple[Crash, ...] = ()  # since progress was last made, or a fact came between
    in_place: Mapping[str, int] = field(default_factory=dict)  # step key -> crashes answered in place since then
    left: frozenset[str] = frozenset()  # nodes that experiments have left since then
    experiment: Experiment | None = None  # that nothing has come of yet

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
        seen = (*self.seen, Crash(command, verdict.signature, verdict.node, self.nodes))
        found = replace(self, in_place=in_place, seen=seen)
        return found._leaving(decided, verdict) if decided.without else found

    def _leaving(self, decided: rec.Decided, verdict: rec.Diagnosed) -> Crashes:
        times = sum((crash.signature, crash.node) == (verdict.signature, decided.without) for crash in self.seen)
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


@dataclass(frozen=True, slots=True)
class Hangs:
    in_a_row: int = 0  # decisions on hangs without an explicit fault or progress between
    last: tuple[int, frozenset[str]] = (0, frozenset())  # attempt and nodes of the last one seen, whatever came of it
    culprits: Mapping[int, frozenset[str]] = field(default_factory=dict)  # attempt -> nodes of the hang that ended it
    quiet_pauses: tuple[float, ...] = ()  # seconds, the longest first
    busy_pauses: tuple[float, ...] = ()  # likewise

    def seen(self, found: rec.CulpritSeen) -> Hangs:
        return replace(self, last=(found.attempt, frozenset(found.nodes)))

    def decided(self, decided: rec.Decided) -> Hangs:
        culprits = self.culprits
        if decided.cause == "hang" and self.last[0] == decided.attempt:
            culprits = {**culprits, decided.attempt: self.last[1]}
        return replace(self, culprits=culprits, in_a_row=in_a_row(self.in_a_row, decided, decided.cause == "hang"))

    def broken(self) -> Hangs:
        """What comes next is the first in a row."""
        return replace(self, in_a_row=0)

    def take_back(self, swap: rec.Decided) -> Hangs:
        """The hang that it was to answer counts with the answer that comes in its place."""
        return replace(self, in_a_row=max(self.in_a_row - (swap.cause == "hang"), 0))

    def paused(self, pause: rec.Paused) -> Hangs:
        if pause.busy:
            return replace(self, busy_pauses=with_pause(self.busy_pauses, pause.seconds))
        return replace(self, quiet_pauses=with_pause(self.quiet_pauses, pause.seconds))


# --- how far a job's training has come, and how long its attempts have lived since it last came further

# A program that tells no steps has come further if it has lived for so many times as long as in any try before, and for
# this long at least: the start of Python from a cold file system takes some seconds more than from a warm one.
LIVED_FACTOR, LIVED_LEAST_S = 2.0, 30.0
# What was lost by less than this may have had no checkpoint yet.
LOST_STEPS, LOST_S = 10, 60.0


@dataclass(frozen=True, slots=True)
class Progress:
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
        ended = replace(self, began_at=0.0, lived_s=lived_s)
        ended = ended._made(at) if made else ended
        return replace(ended, longest_s=max(ended.longest_s, lived_s)), made

    def attempt_ended(self, attempt: rec.AttemptEnded) -> tuple[Progress, bool]:
        """Is it progress?

        Steps tell it best. Of a program that tells none, so many more beats than in any try before do, or that it has saved what
        it has done since its start; what is saved at once holds nothing new.
        """
        ended = replace(self, last_step=attempt.step)
        if attempt.step or self.furthest:
            if attempt.step <= self.furthest:
                return ended, False
            return replace(ended, furthest=attempt.step)._made(attempt.at), True
        further = self.most_beats > 0 and attempt.beats >= LIVED_FACTOR * self.most_beats
        made = further or (bool(attempt.saved) and self.lived_s >= LIVED_LEAST_S)
        ended = ended._made(attempt.at) if made else ended
        return replace(ended, most_beats=max(ended.most_beats, attempt.beats)), made

    def checkpoint_told(self) -> Progress:
        return replace(self, checkpoints_told=True)

    def iteration_seen(self, seen: rec.IterationSeen) -> Progress:
        return replace(self, iteration=seen.iteration, in_vain=seen.in_vain)

    def _made(self, at: float) -> Progress:
        return replace(self, longest_s=0.0, most_beats=0, made_at=at)
