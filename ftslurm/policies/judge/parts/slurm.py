"""What Slurm said last, and since when it is waited for."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model.events import Now

# What Slurm said of job and nodes this long ago still counts, monotonic seconds.
ANSWER_COUNTS_S = 10.0
# Between two lines that say what is waited for.
SAY_AGAIN_S = 600.0
# An answer that took so long was one of a slurmctld that had been away; srun gives up after about ten seconds.
AWAY_S = 3.0
# A slurmctld that has come up so lately may not know yet what nodes and jobs have (srun: "Memory required by task is not
# available", seen on 22.05 in its first second).
FRESH_S = 10.0


class SlurmContact:
    """answer: of this attempt's trouble, None before there is one; at: when it came. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.answer: ev.SlurmAnswered | None = None
        self.at = 0.0
        self.away_since: float | None = None  # since when slurmctld is waited for
        self._said_at: float | None = None  # when people were told so

    def take(self, answer: ev.SlurmAnswered, now: float) -> None:
        self.answer, self.at = answer, now

    def forget(self) -> None:
        """What it said is of a time before."""
        self.answer = None

    def heard_lately(self, now: float) -> bool:
        """Has it said something (if only that it could not) that still counts?"""
        return self.answer is not None and now - self.at <= ANSWER_COUNTS_S

    @property
    def runs(self) -> bool:
        """Does it say that the job does?"""
        return self.answer is not None and self.answer.state == "RUNNING" and not self.answer.error

    @property
    def was_away(self) -> bool:
        """Has slurmctld kept us waiting, and now says that the job runs?"""
        waited = self.away_since is not None or (self.answer is not None and self.answer.late_s >= AWAY_S)
        return self.runs and waited

    def just_came_up(self, now: Now) -> bool:
        """And says that the job runs, on nodes that are all well?"""
        s = self.answer
        return s is not None and self.runs and not s.bad_nodes and bool(s.up_since) and now.unix - s.up_since <= FRESH_S

    @property
    def end_time(self) -> float:
        """Of the allocation, Unix seconds; 0: not known."""
        return self.answer.end_time if self.answer else 0.0

    def wait_left_s(self, patience_s: float, now: float) -> float:
        """It is away, from now on if it was not: for how much longer is it waited for?"""
        self.away_since = now if self.away_since is None else self.away_since
        return self.away_since + patience_s - now

    def to_be_said(self, now: float) -> bool:
        """Is it time to tell people? Then they are told now."""
        if self._said_at is not None and now - self._said_at < SAY_AGAIN_S:
            return False
        self._said_at = now
        return True

    def back(self) -> float | None:
        """It has answered. Since when it was waited for, None if it was not."""
        since, self.away_since, self._said_at = self.away_since, None, None
        return since
