"""What Slurm has said of the job: its last answer, since when slurmctld is away, and when the time limit is looked at."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model.events import Now
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.phases import RunFacts

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

    @property
    def end_time(self) -> float:
        """End of the allocation, Unix seconds; 0: unknown."""
        return self.answer.end_time if self.answer else 0.0

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
