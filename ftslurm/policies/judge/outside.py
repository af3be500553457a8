"""What comes from outside: signals, warnings and answers of Slurm, the time limit, and what the job's owner asks for."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from ftslurm.model import events as ev
from ftslurm.model.decisions import Decision, ReadIteration, ShowPhase, WatchCheckpoints
from ftslurm.model.events import Now
from ftslurm.model.exits import signal_name, signal_number
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import Request, State
from ftslurm.model.folds.history import History
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.record import IterationSeen
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.features import CheckpointSettings, ProgressSettings
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.phases import RunFacts
from ftslurm.policies.ladder import LADDER

# --- What Slurm has told the run: signals and warnings, its last answer, and the time limit

# --- What Slurm has said of the job: its last answer, since when slurmctld is away, and when the time limit is looked at

# How long Slurm's answer about job and nodes counts, seconds.
ANSWER_COUNTS_S = 10.0
# Seconds between two messages about the wait.
SAY_AGAIN_S = 600.0
# An answer that took this long came from a slurmctld that had been away; srun gives up after about ten seconds.
AWAY_S = 3.0
# A slurmctld that started this recently may not know the state of nodes and jobs yet (srun: "Memory required by task is not
# available", seen on 22.05 in its first second).
FRESH_S = 10.0


class SlurmContact:
    """answer: for this attempt's trouble, None before there is one; at: when it came. Times are monotonic seconds.

    ends_at: the end of the allocation as Slurm last told it, Unix seconds, 0: unknown. batch: does the job have a script?
    preempted: what becomes of a job whose preemption is announced, None: none is.
    """

    def __init__(self) -> None:
        self.answer: ev.SlurmAnswered | None = None
        self.at = 0.0
        self.ends_at = 0
        self.batch = False
        self.preempted: ev.Preempted | None = None
        self.away_since: float | None = None  # since when ftrun waits for slurmctld
        self._said_at: float | None = None  # when people were last told so

    def take(self, answer: ev.SlurmAnswered, now: float) -> None:
        self.answer, self.at = answer, now
        if not answer.error:
            self.ends_at, self.batch, self.preempted = answer.end_time, answer.batch, answer.preempted

    def forget(self) -> None:
        """Forget the answer: it is outdated."""
        self.answer = None

    def heard_lately(self, now: float) -> bool:
        """Is there a recent answer (if only that Slurm could not tell)?"""
        return self.answer is not None and now - self.at <= ANSWER_COUNTS_S

    @property
    def requeues_preempted(self) -> bool:
        """Would Slurm requeue the job at the end of the grace? Where its mode cannot be told, a job that may be requeued is."""
        requeueable = self.answer is not None and self.answer.requeueable
        return self.preempted is ev.Preempted.REQUEUED or (self.preempted is ev.Preempted.UNKNOWN and requeueable)

    @property
    def runs(self) -> bool:
        """Does the answer say that the job runs?"""
        return self.answer is not None and self.answer.state == "RUNNING" and not self.answer.error

    @property
    def runs_elsewhere(self) -> bool:
        """Does the answer say that the job has been requeued, so that another step may have our step's number?"""
        return self.answer is not None and self.answer.state == "PENDING" and not self.answer.error

    @property
    def was_away(self) -> bool:
        """Was slurmctld away for long, and does it now say that the job runs?"""
        waited = self.away_since is not None or (self.answer is not None and self.answer.late_s >= AWAY_S)
        return self.runs and waited

    def just_came_up(self, now: Now) -> bool:
        """Has slurmctld just started, and says that the job runs on nodes that are all healthy?"""
        s = self.answer
        return s is not None and self.runs and not s.bad_nodes and bool(s.up_since) and now.unix - s.up_since <= FRESH_S

    def wait_left_s(self, patience_s: float, now: float) -> float:
        """slurmctld is away, from now on if it was not. Gives how much longer to wait for it, seconds."""
        self.away_since = now if self.away_since is None else self.away_since
        return self.away_since + patience_s - now

    def to_be_said(self, now: float) -> bool:
        """Is it time to tell people? If so, the time of this message is kept."""
        if self._said_at is not None and now - self._said_at < SAY_AGAIN_S:
            return False
        self._said_at = now
        return True

    def back(self) -> float | None:
        """slurmctld has answered. Gives since when ftrun waited for it, None if it did not."""
        since, self.away_since, self._said_at = self.away_since, None, None
        return since


# --- the time limit

# People are told this long before the limit ends a job that does not go on.
TELL_S = 60.0


def look_at_limit_in_s(settings: Settings, facts: RunFacts, now: Now) -> float | None:
    """Seconds from the start of ranks to the first question about the limit, None for never."""
    can = {Capability.ASK, Capability.REQUEUE} <= facts.can
    if settings.resumes_itself:
        return 0.0 if can else None
    return max(0.0, facts.ends_at - now.unix - TELL_S) if can and facts.ends_at else None


# --- The signal from outside that an attempt has received, and one that came while no ranks ran

SIGTERM = 15


class Announced(Enum):
    """What a warning announces, in words for people."""

    SOMETHING = "warning"  # what the job has asked Slurm for (--signal)
    LIMIT = "the time limit is near"
    PREEMPTION = "the job is being preempted"


class Meaning(Enum):
    """What a signal from outside comes to."""

    WARNING = "warning"  # the job may go on
    TOLD_TO_END = "the ranks are to end"  # and ftrun with them, within a time limit
    INTERRUPTED = "interrupted"  # Ctrl-C
    STOPPED = "stopped"  # on request of the job's owner
    END = "end"  # the job ends, by Slurm's word, or as far as is known where nobody can be asked


class SignalWatch:
    """number: the first signal in this attempt, 0: none; at: when, monotonic seconds. meaning: None until it is known."""

    def __init__(self, settings: Settings, can: Collection[Capability]) -> None:
        self._settings, self._can = settings, can
        self.at = 0.0
        self.out_of_patience = False  # a second signal came after ranks were told to end
        self.kept: ev.SignalSeen | None = None  # a signal that came while no ranks ran, for the next ones
        self._ends = False
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """The new ranks have received no signal."""
        self.number = 0
        self.meaning: Meaning | None = None
        self.announced = Announced.SOMETHING  # where it is a warning
        self.by_ranks: set[int] = set()  # signals that the ranks received, as their shims report, or from us
        self.told_ranks: set[int] = set()  # ranks that have received the signal that ends them
        self._to_pass_on = 0  # a signal to ftrun itself that the ranks may still need

    def announces(self, number: int) -> bool:
        """Is it a signal with which Slurm ends a job, or of which the job wants to be warned?"""
        return signal_name(number).removeprefix("SIG") in {"TERM", *self._settings.warning.signals}

    def asks_for_requeue(self, number: int) -> bool:
        """Does the signal ask for a requeue? Then nothing is started before: ranks could only hear of it until the end."""
        can = {Capability.ASK, Capability.REQUEUE} <= {*self._can}
        return self._settings.goes_on_after_warning and can and self.announces(number)

    def take(self, number: int, at: float) -> None:
        self.number, self.at = number, at

    @property
    def open(self) -> bool:
        """Has a signal come whose meaning is not known yet?"""
        return bool(self.number) and self.meaning is None

    @property
    def ends_ftrun(self) -> bool:
        """Is it a SIGTERM to ftrun itself that announces nothing? srun ends its step then; Slurm warns the ranks."""
        return bool(self._to_pass_on) and self._ends and self.announced is Announced.SOMETHING

    def means(self, meaning: Meaning) -> None:
        self.meaning = meaning

    def warn(self, announced: Announced) -> None:
        self.meaning, self.announced = Meaning.WARNING, announced

    def goes_on(self, slurm_requeues: bool) -> bool:
        """Does the warning that came end in a requeue, once the ranks have ended? slurm_requeues: would Slurm do it, too?"""
        return self._settings.goes_on_after_warning or self.goes_on_after_preemption(slurm_requeues)

    def goes_on_after_preemption(self, slurm_requeues: bool) -> bool:
        return slurm_requeues and self.announced is Announced.PREEMPTION and self._settings.preemption.requeue

    def warn_ourselves(self, at: float) -> int:
        """Warn the ranks of the time limit. Gives the signal that they get."""
        number = signal_number(next(iter(self._settings.warning.signals), "TERM"))
        self.take(number, at)
        self.warn(Announced.LIMIT)
        self.by_ranks.add(number)
        return number

    def keep(self, event: ev.SignalSeen) -> None:
        """Keep the more important signal: a TERM counts more than another, and ftrun's own more than one of a rank, which may
        concern its step alone.
        """
        kept = self.kept
        if kept is None or (event.number == SIGTERM, event.rank is None) > (kept.number == SIGTERM, kept.rank is None):
            self.kept = event

    def take_kept(self) -> ev.SignalSeen | None:
        kept, self.kept = self.kept, None
        return kept

    def untold(self, ranks: Collection[int]) -> tuple[int, ...]:
        return tuple(sorted({*ranks} - self.told_ranks))

    def pass_on_later(self, number: int, ends: bool = False) -> None:
        """ends: it is one at which srun ends its step."""
        self._to_pass_on, self._ends = number, ends

    def take_to_pass_on(self) -> int:
        number, self._to_pass_on = self._to_pass_on, 0
        return number


# --- What the owner of the job has asked for, what of it is open, and how far the training is

# --- How far the training has come, from the file that it writes (progress.file), and the checkpoints that requests wait for


def read_at_begin(progress: ProgressSettings, history: History, facts: RunFacts) -> list[Decision]:
    """Read the file before a start: a training that continues from a checkpoint is already this far. After a requeue the ledger
    knows it.
    """
    requeued = any(key == facts.step_key and schedule < facts.schedule for schedule, key in history.slots.starts)
    wanted = progress.file and progress.attempts and not requeued
    return [ReadIteration(0, progress.file)] if wanted else []


def iteration_seen(event: ev.IterationRead, progress: ProgressSettings, past: History, now: Now) -> IterationSeen | None:
    """The record of a new iteration, None if there is none. An unreadable file tells nothing,
    neither progress nor a lack of it.
    """
    if not event.attempt:
        known = (event.iteration or 0, 0) == (past.progress.iteration, past.progress.in_vain)
        return None if known else IterationSeen(now.unix, 0, event.iteration or 0)
    if event.iteration is None or not (event.iteration or past.progress.iteration):
        return None
    got_on = event.iteration - past.progress.iteration >= progress.iterations
    return IterationSeen(now.unix, event.attempt, event.iteration, 0 if got_on else past.progress.in_vain + 1)


# --- checkpoints that requests wait for: the sign of each, when one is complete, and for which requests it counts


class Checkpoints:
    """patterns: of files that are watched because checkpoints create or change them. Times are monotonic seconds."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self.patterns: tuple[str, ...] = ()
        self._files, self._settle_s = settings.files, settings.settle_s
        self._settles: float | None = None  # when a checkpoint that the program reported counts
        self._ranks: set[int] = set()  # the ranks that have reported it
        self._watched: History | None = None  # in which the waiting requests were looked for last

    @property
    def next_due(self) -> float | None:
        return self._settles

    def pattern(self, request: Request, history: History) -> str:
        """The pattern of the files that show its checkpoints; empty: the program reports them."""
        return request.asked.files or ("" if history.progress.checkpoints_told else self._files)

    def are_known(self, request: Request, history: History) -> bool:
        return history.progress.checkpoints_told or bool(self.pattern(request, history))

    def awaited(self, request: Request, history: History) -> str:
        """What the request waits for, in words."""
        left = request.asked.checkpoints - request.seen
        more = "the next checkpoint" if left == 1 else f"{left} checkpoints"
        if pattern := self.pattern(request, history):
            return f"it waits for {more}: a new or changed {pattern}"
        unknown = "" if history.progress.checkpoints_told else ", which has said nothing of checkpoints yet"
        return f"it waits for {more}, as told by the program{unknown}"

    def watch(self, history: History) -> list[Decision]:
        """Watch the files of all waiting requests, unless they are watched already."""
        if history is self._watched:
            return []
        self._watched = history
        waiting = [request for request in history.control.to_come if request.asked.checkpoints]
        patterns = tuple(sorted({pattern for request in waiting if (pattern := self.pattern(request, history))}))
        changed, self.patterns = patterns != self.patterns, patterns
        return [WatchCheckpoints(patterns, self._settle_s)] if changed else []

    def has_told(self, rank: int) -> bool:
        return rank in self._ranks

    def told(self, rank: int, now: float) -> None:
        """The rank has written its part of a checkpoint, which is complete when no other follows for a while."""
        self._ranks.add(rank)
        self._settles = now + self._settle_s

    def has_settled(self, now: float) -> bool:
        return self._settles is not None and self._settles <= now

    def take_told(self) -> str:
        """The ranks that have reported the complete checkpoint, in words; empty: none."""
        ranks, self._ranks, self._settles = sorted(self._ranks), set(), None
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}" if ranks else ""

    def left(self, request: Request, pattern: str, history: History, at: float) -> int | None:
        """How many more checkpoints the request waits for after one that was seen now; None: that one does not count for it. at:
        Unix seconds.
        """
        asked = request.asked
        if not asked.checkpoints or self.pattern(request, history) != pattern or at < asked.after:
            return None
        return max(0, asked.checkpoints - request.seen - 1)


# --- Requests of the job's owner that are still to be carried out: when, after which answer, and after which checkpoints


class RequestBook:
    """to_consider: requests that wait for Slurm's answer. Times are monotonic seconds."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self.checkpoints = Checkpoints(settings)
        self.to_consider: tuple[int, ...] = ()
        self.due: dict[int, float] = {}  # request -> its latest time
        self.in_hand = 0  # the request that the present trouble carries out

    @property
    def next_due(self) -> float | None:
        due = (*self.due.values(), self.checkpoints.next_due)
        return min((at for at in due if at is not None), default=None)

    def forget(self, number: int) -> None:
        self.due.pop(number, None)
        self.to_consider = tuple(other for other in self.to_consider if other != number)

    def take_to_consider(self) -> tuple[int, ...]:
        asked, self.to_consider = self.to_consider, ()
        return asked

    def take_due(self, now: float) -> list[int]:
        due = sorted(number for number, at in self.due.items() if at <= now)
        self.due = {number: at for number, at in self.due.items() if number not in due}
        return due

    def take_in_hand(self) -> int:
        number, self.in_hand = self.in_hand, 0
        return number


# --- requests that change nothing that runs: they take effect when accepted, so they are answered at once


def reply_to(request: Request, history: History, ladder: Collection[str]) -> tuple[bool, str]:
    """(is it accepted? the reply) to a request whose verb is in `ctl.STANDS`. ladder: the rungs of this job."""
    rung = request.asked.rung
    match request.asked.verb:
        case ctl.HOLD if rung not in ctl.HOLDABLE:
            return False, f"there is no rung `{rung}` that could be held"
        case ctl.HOLD:
            off = "" if rung in ladder or rung not in LADDER else "; it is not in this job's ladder anyway"
            return True, f"ftrun skips {rung} from now on{off}"
        case ctl.RELEASE:
            held = rung in history.control.held
            return held, f"ftrun uses {rung} again" if held else f"{rung} is not held"
        case ctl.NO_RESTARTS:
            return True, "the next failure ends the job"
        case ctl.ALLOW_RESTARTS:
            banned = history.control.no_restarts is not None
            return banned, "the ladder answers failures again" if banned else "restarts are allowed"
        case ctl.REINSTATE:
            never = [node for node in request.asked.nodes if node not in history.exclusions.isolated]
            again = "the job may run there again from its next start on"
            return (False, f"{fold_nodes(never)} is not excluded") if never else (True, again)
    return _undo(request, history)


def _undo(request: Request, history: History) -> tuple[bool, str]:
    target = history.control.get(request.asked.target)
    if target is None:
        return False, "there is nothing to undo"
    never_taken = target.state is State.UNDONE and not target.order
    if not never_taken and (why := ctl.not_undoable(target)):
        return False, why
    return True, f"request {target.number} ({ctl.request_in_words(target.asked)}) no longer counts"


# --- what people were told that ftrun waits for


class WaitTold:
    """what: the last message; empty: none. again: an earlier ftrun of the job may have left a phase in the job's comment."""

    def __init__(self, again: bool) -> None:
        self.what = ""
        self._shown = (0, "?") if again else None  # attempt and phase in the job's comment; None: nothing of this job

    def tell(self, what: str) -> bool:
        """Tell people; False if they were told already."""
        if self.what == what:
            return False
        self.what = what
        return True

    def show(self, attempt: int, what: str = "", until: float = 0.0) -> list[Decision]:
        """Let the job's comment tell the phase, once."""
        if self._shown == (attempt, what):
            return []
        self._shown = attempt, what
        return [ShowPhase(attempt, what, until)]

    def show_on(self, attempt: int, what: str = "") -> list[Decision]:
        """No wait needs a further record: the attempt runs or starts, or (0) the job has ended. A job that had nothing to show
        costs slurmctld no request.
        """
        self.what = ""
        return self.show(attempt, what) if self._shown is not None else []
