"""What a ledger's records tell of a job: in one line for a list of all jobs, and as the story of its decisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ftslurm.model import record as rec
from ftslurm.model.folds.history import History, schedule_count
from ftslurm.model.nodes import fold_nodes, named_nodes
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.values import Value, field, replace

# --- a job in one line: what a list of all jobs shows of it, made of its ledger's records
#
# A list is made of thousands of ledgers, so this is a small thing that an index can keep (ledger/index.py): no fold of the
# whole past, and a tuple, which is made a hundred times sooner than the values of the judge.

# What helps a job that its time limit has ended.
AFTER_LIMIT = "to go on by itself: ftrun --ft-resume-at-limit"
# States of jobs that are over.
OVER = frozenset({"completed", "failed", "cancelled", "timeout", "stopped", "gone"})
# All of them.
STATES = (
    "starting", "running", "recovering", "hanging", "waiting", "requeued", "pending", "held", "suspended", "completing",
    *sorted(OVER),
)  # fmt: skip


class JobSummary(NamedTuple):
    """Where a job stands, in one line.

    States of a job that goes on are starting, running, recovering, waiting, hanging and requeued; of one that is over completed,
    failed, cancelled, timeout and stopped (its owner has asked for that). By Slurm's word there are besides (report/jobs.py):
    pending, held, suspended, completing and gone.
    """

    job: str
    cluster: str
    local: bool  # without Slurm
    command: str
    state: str  # one of the words above
    what: str  # more of it, for people
    over: bool  # nothing of it can follow any more, as far as the ledger knows
    attempt: int  # the last one
    schedule_count: int  # as MA_SCHEDULE_CNT
    nodes: str
    rung: str  # rung, cause: of the last decision
    cause: str
    began: float  # began, at: of the first and the last record, Unix seconds
    at: float
    requeue_open: bool
    until: float  # what is waited for has come by then, Unix seconds, 0: unknown
    number: int  # of the job, as scontrol takes it
    # host, pid_space, pid, started: of the ftrun (RunBegan)
    host: str
    pid_space: str
    pid: int
    started: int
    name: str = ""  # of the job
    ever: str = ""  # every node that an attempt ran on, folded
    since: float = 0.0  # of a standstill that is a hang by `until`, Unix seconds; 0: there is none

    @property
    def words(self) -> str:
        """State and more of it, in one; what has stopped it says that itself."""
        if self.state == "stopped":
            return self.what
        joint = " for " if self.state == "waiting" else ": "
        return f"{self.state}{joint}{self.what}" if self.what else self.state


class Stuck(Value):
    """A standstill that is no hang yet. what: for people. since: when work ended, Unix seconds. limit_s: from then until it is
    one. evidence: what the named ranks do. helps: as in CulpritSeen.
    """

    what: str
    ranks: tuple[int, ...]
    cause: str
    since: float
    limit_s: float
    evidence: tuple[str, ...] = ()
    helps: str = ""

    def so_far(self, now: float) -> str:
        """`40 s of 180 s`."""
        return f"{max(0.0, now - self.since):.0f} s of {self.limit_s:.0f} s"


def stuck_words(ranks: Sequence[int], nodes: Sequence[str], cause: str) -> str:
    return f"stuck? rank {', '.join(map(str, ranks))} on {','.join(nodes)} ({cause})"


class SlurmWord(Value):
    """What Slurm says of a job now. state: JobState's word, or COMPLETING. start_time: of one that waits; end_time: of one that
    is over; Unix seconds, 0: unknown.
    """

    state: str
    reason: str = ""
    start_time: int = 0
    held: bool = False
    end_time: int = 0


def summarise(records: Sequence[rec.Record]) -> JobSummary | None:
    """None for a ledger in which nothing has begun."""
    run: rec.RunBegan | None = None
    last: rec.AttemptBegan | None = None
    decided: rec.Decided | None = None
    attempt, open_requeue = 0, ""
    ran_on: dict[str, None] = {}
    for record in records:
        if isinstance(record, rec.RunBegan):
            if run is not None and record.schedule > run.schedule:
                open_requeue = ""
            run = record
        elif isinstance(record, rec.AttemptBegan):
            last, attempt = record, max(attempt, record.attempt)
            ran_on[record.nodes] = None
        elif isinstance(record, rec.RankBegan):
            attempt = max(attempt, record.attempt)
        elif isinstance(record, rec.Decided):
            decided = record
            open_requeue = record.id if record.rung in REQUEUES else ""
        elif isinstance(record, rec.CarriedOut) and record.id == open_requeue:
            open_requeue = ""
    if run is None:
        return None
    state, what, over, until = _state(records, decided)
    since, standstill = 0.0, stuck(records) if state == "running" else None
    if standstill is not None:
        what, since, until = standstill.what, standstill.since, standstill.since + standstill.limit_s
    nodes = last.nodes if last is not None and last.schedule == run.schedule else run.nodes
    return JobSummary(
        run.job, run.cluster, run.launcher == "local", run.command[:200], state, what[:300], over, attempt,
        schedule_count(run.schedule), nodes, decided.rung if decided else "",
        decided.cause if decided else "", records[0].at, records[-1].at,
        bool(open_requeue), until, run.number, run.host, run.pid_space, run.pid, run.started, run.name[:200],
        _union(ran_on), since,
    )  # fmt: skip


def _union(lists: Iterable[str]) -> str:
    """Folded lists as one."""
    several = list(lists)
    if len(several) < 2:
        return several[0] if several else ""
    return fold_nodes({node for text in several for node in named_nodes(text)})


def _state(records: Sequence[rec.Record], decided: rec.Decided | None) -> tuple[str, str, bool, float]:
    """State, more of it, whether the job is over, and until when it waits: from the last record that tells."""
    why = decided.why if decided is not None else ""
    if (wait := last_wait(records)) is not None:
        return "waiting", wait.what, False, wait.until
    for record in reversed(records):
        match record:
            case rec.Finished() if outcome_of(record) is Outcome.REQUEUED:
                pass  # how, stands before it
            case rec.Finished():
                return *_ended(record), 0.0
            case rec.JobEnded():
                return record.state, record.what, True, 0.0
            case rec.Decided() | rec.CarriedOut(ok=True) if decided and decided.rung in REQUEUES and record.id == decided.id:
                how = f"; {record.what}" if isinstance(record, rec.CarriedOut) else ""  # without which nodes, when it can start
                return "requeued", f"{why}{how}", False, 0.0
            case rec.Decided() | rec.CarriedOut():
                return "recovering", why, False, 0.0
            case rec.TroubleSeen():
                return "recovering", record.words, False, 0.0
            case rec.HangSeen():
                return "hanging", record.what, False, 0.0
            case rec.AttemptBegan() | rec.HangEnded() | rec.Paused():
                return "running", "", False, 0.0
            case rec.RunBegan():
                return "starting", "", False, 0.0
    return "starting", "", False, 0.0


_SLOW = frozenset({"RankCommSlow", "RankNonCommSlow"})  # they work
_TELLS = (
    rec.Finished, rec.CarriedOut, rec.Decided, rec.TroubleSeen, rec.HangSeen, rec.HangEnded, rec.AttemptBegan, rec.RunBegan,
    rec.SlotsChanged, rec.JobEnded,
)  # fmt: skip


def stuck(records: Sequence[rec.Record]) -> Stuck | None:
    """The present standstill that is no hang yet; None if the ranks make progress, work, or nobody is named."""
    for record in reversed(records):
        if isinstance(record, rec.CulpritSeen) and record.sign not in _SLOW:
            if not record.limit_s:
                return None
            words = stuck_words(record.ranks, record.nodes, record.cause)
            return Stuck(words, record.ranks, record.cause, record.since, record.limit_s, record.evidence, record.helps)
        if isinstance(record, (*_TELLS, rec.Paused, rec.StepReached)):
            return None
    return None


def last_wait(records: Sequence[rec.Record]) -> rec.Waiting | None:
    """What is waited for now; None for nothing."""
    last = next((record for record in reversed(records) if isinstance(record, (rec.Waiting, *_TELLS))), None)
    return last if isinstance(last, rec.Waiting) and last.what else None


def _ended(record: rec.Finished) -> tuple[str, str, bool]:
    outcome = outcome_of(record)
    if outcome is Outcome.BEING_ENDED:  # as after scancel: how it ends, only Slurm will know
        return "completing", "", False
    if outcome.goes_on:
        return "requeued", record.what, False
    if outcome is Outcome.STOPPED:
        return "stopped", record.what, True
    if outcome in (Outcome.CANCELLED, Outcome.TIMEOUT):
        return outcome.value, AFTER_LIMIT if outcome is Outcome.TIMEOUT else "", True
    return ("completed", "", True) if record.status == 0 else ("failed", f"status {record.status}: {record.what}", True)


# Slurm's word that hides others.
COMPLETING = "COMPLETING"
_AT_WORK = frozenset({"starting", "running", "hanging"})
# The ftrun has ended, and the job is not over.
_AWAY = frozenset({"requeued", "completing"})


def by_slurm(job: JobSummary, said: Mapping[int, SlurmWord]) -> JobSummary:
    """What the ledger could not know: ftrun writes nothing while the job waits, or after it was killed.

    said: of every job of the user that Slurm remembers; one that is not there is over, nobody knows how.
    """
    if job.over:
        return job
    word = said.get(job.number)
    if word is None:
        return job._replace(state="gone", what=f"Slurm no longer knows the job; it was {job.state} then", over=True)
    if word.state == "PENDING":
        return _waiting(job, word)
    if word.state == "RUNNING":
        return job._replace(state="starting", what="") if job.state in _AWAY and not job.requeue_open else job
    if word.state == "SUSPENDED":
        return job._replace(state="suspended")
    if word.state == COMPLETING:  # in the minute before it is clean, Slurm does not tell how it ended
        return job._replace(state="completing", what="") if job.state in _AT_WORK else job
    if word.state == "UNKNOWN":
        return job
    state = {"COMPLETED": "completed", "CANCELLED": "cancelled", "TIMEOUT": "timeout"}.get(word.state, "failed")
    what = f"{word.state}: {word.reason}" if state == "failed" and word.reason not in ("", "None") else ""
    what = AFTER_LIMIT if state == "timeout" else what
    return job._replace(state=state, what=what, over=True, at=max(job.at, float(word.end_time)))


def _hold_in_words(reason: str, number: int) -> str:
    """reason: Slurm's. Also of its own holds, `launch_failed_requeued_held`."""
    if reason == "JobHeldAdmin":
        return f"{reason}: an operator has to release it"
    return f"{reason}: scontrol release {number}" if reason else f"scontrol release {number}"


def _waiting(job: JobSummary, word: SlurmWord) -> JobSummary:
    if word.held and job.requeue_open:
        return job._replace(state="held", what=f"a requeue was not finished: ftslurm requeue --finish {job.job}")
    if word.held:
        return job._replace(state="held", what=_hold_in_words(word.reason, job.number))
    return job._replace(state="pending", what=word.reason or "requeued", until=float(word.start_time))


# --- the story of a job: its decisions, each with what was known then and what became of it, and the hangs that were left alone.
# Cards and explanations render it.


class KnownThen(Value):
    """What is known of the present failure."""

    run: rec.RunBegan | None = None
    attempt: rec.AttemptBegan | None = None
    trouble: rec.TroubleSeen | None = None
    verdict: rec.Diagnosed | None = None
    faults: tuple[rec.FaultSeen, ...] = ()  # that devices of this attempt have shown, each once
    hang: rec.HangSeen | None = None
    culprit: rec.CulpritSeen | None = None
    advice: rec.Advised | None = None  # the first
    ended: rec.AttemptEnded | None = None
    back: tuple[str, ...] = ()  # nodes that were left, and may be used again
    experiment: rec.ExperimentEnded | None = None


class Answer(Value, frozen=False):
    """A decision. before, past: the history without and with it. since: the records from the answer before on, or from the
    attempt that followed that one.
    """

    decided: rec.Decided
    known: KnownThen
    before: History
    past: History
    since: tuple[rec.Record, ...]
    done: list[rec.CarriedOut] = field(default_factory=list)
    again: rec.AttemptBegan | rec.RankBegan | None = None  # the ranks, or the one rank, that ran then


class LeftAlone(Value, frozen=False):
    """A hang that nothing was done about. after_s: it went on by itself after so long; None: it has not."""

    seen: rec.HangSeen
    known: KnownThen
    after_s: float | None = None


class AtLimit(Value):
    """The time limit ended the job."""

    finished: rec.Finished
    known: KnownThen


class Story:
    """Of a growing ledger: each record is read once. told: in order. since: records since the last answer, as there. past: the
    history with all records. by_slurm: ids of ftruns whose scheduling no decision led to.
    """

    def __init__(self, records: Iterable[rec.Record] = ()) -> None:
        self.told: list[Answer | LeftAlone | AtLimit] = []
        self.since: list[rec.Record] = []
        self.by_slurm: set[str] = set()
        self._known, self.past = KnownThen(), History()
        self._answers: dict[str, Answer] = {}
        self._open: Answer | None = None  # the last answer, until ranks run
        for record in records:
            self.see(record)

    def see(self, record: rec.Record) -> None:
        before, self.past = self.past, self.past.add(record)
        self.since.append(record)
        match record:
            case rec.RunBegan():
                self._run_began(record)
            case rec.AttemptBegan():
                self._goes_on(record)
                self._known = KnownThen(self._known.run, record)
            case rec.RankBegan():
                self._goes_on(record)
            case rec.TroubleSeen():
                self._know(trouble=record)
                if record.cause == "hang":
                    self._drop_hang(record.attempt)
            case rec.Diagnosed():
                self._know(verdict=record)
            case rec.FaultSeen():
                same = (record.node, record.device, record.code)
                others = [each for each in self._known.faults if (each.node, each.device, each.code) != same]
                self._know(faults=(*others, record))
            case rec.Reinstated():
                left, isolated = before.exclusions.left_on_words, before.exclusions.isolated
                self._know(back=tuple(node for node in record.nodes if left.get(node) == record.signature and node in isolated))
            case rec.AttemptEnded():
                self._know(ended=record)
            case rec.ExperimentEnded():
                self._know(experiment=record)
            case rec.HangSeen():
                self._know(hang=record)
                self._drop_hang(record.attempt)
                self.told.append(LeftAlone(record, self._known))
            case rec.HangEnded():
                self._hang_is_over(record.attempt, record.at - self._known.hang.at if self._known.hang else 0.0)
            case rec.Paused() if self._known.hang is not None:
                self._hang_is_over(record.attempt, record.seconds)
            case rec.CulpritSeen():
                self._know(culprit=record)
            case rec.Advised() if self._known.advice is None:
                self._know(advice=record)
                if (hang := self._left_alone(record.attempt)) is not None:
                    hang.known = replace(hang.known, advice=record)
            case rec.Decided():
                self._open = Answer(record, self._known, before, self.past, tuple(self.since[:-1]))
                self._answers[record.id] = self._open
                self.told.append(self._open)
                self.since = []
            case rec.CarriedOut() if record.id in self._answers:
                self._answers[record.id].done.append(record)
            case rec.Finished() if outcome_of(record) is Outcome.TIMEOUT:
                self.told.append(AtLimit(record, self._known))
            case _:
                pass

    def forget(self) -> None:
        """All but the last that is told: each holds the history as it was."""
        del self.told[:-1]
        self._answers = {each.decided.id: each for each in self.told if isinstance(each, Answer)}

    @property
    def known(self) -> KnownThen:
        """At the end of the records."""
        return self._known

    def _know(self, **more: object) -> None:
        self._known = replace(self._known, **more)  # type: ignore[arg-type]

    def _run_began(self, run: rec.RunBegan) -> None:
        last, answer = self._known.run, self._open
        decided_in = answer.known.run if answer is not None and answer.decided.rung in REQUEUES else None
        ours = decided_in is not None and run.schedule == decided_in.schedule + 1
        if last is not None and run.schedule > last.schedule and not ours:
            self.by_slurm.add(run.run)
        self._known = KnownThen(run, self._known.attempt, self._known.trouble)

    def _goes_on(self, begun: rec.AttemptBegan | rec.RankBegan) -> None:
        if self._open is not None:
            self._open.again, self._open, self.since = begun, None, []

    def _left_alone(self, attempt: int) -> LeftAlone | None:
        last = self.told[-1] if self.told else None
        return last if isinstance(last, LeftAlone) and last.seen.attempt == attempt else None

    def _drop_hang(self, attempt: int) -> None:
        """It is seen anew or answered."""
        if self._left_alone(attempt) is not None:
            self.told.pop()

    def _hang_is_over(self, attempt: int, after_s: float) -> None:
        if (hang := self._left_alone(attempt)) is not None:
            hang.after_s = max(0.0, after_s)
        self._know(hang=None)
