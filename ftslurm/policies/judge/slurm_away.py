"""What is waited for of Slurm. First a slurmctld that is away: nothing that its return would solve is given up before
`slurm.patience` is spent. A restart in place asks nothing of Slurm and does not use this.

Then the end that the job's time limit brings. Where the job asked to go on after it (`time_limit.resume`), ftrun asks Slurm when
it is, warns the ranks in time, and requeues the job as after a warning of Slurm's (signals.py). An operator may move the end at
any time: Slurm is asked again, seldom, and before the warning.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say, SignalRanks
from ftslurm.model.events import Now
from ftslurm.model.exits import signal_name
from ftslurm.model.folds.summary import AFTER_LIMIT
from ftslurm.model.record import Waiting
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.signal_watch import Announced
from ftslurm.policies.judge.slurm_contact import TELL_S
from ftslurm.policies.judge.state import Run

# Seconds from a failed request to the next one. Each request is itself repeated for `slurm.timeout`.
ASK_AGAIN_S = 5.0
# How long a slurmctld that has just started gets to learn the state of nodes and jobs.
GATHERS_S = 3.0

# The lead where no checkpoint was seen, and the least: a training step ends, and a checkpoint of some gigabytes is written.
LEAD_S, LEAST_LEAD_S = 120.0, 30.0
# Times the longest checkpoint so far: the present training step ends first, and a file system may be busier then.
CHECKPOINTS = 2.0
# At the least between two questions, at the most, and the part of the lead: a limit that was shortened is known in time.
ASK_LEAST_S, ASK_MOST_S, ASK_PART = 5.0, 300.0, 0.5
# From the end of the ranks' time to the limit: they are killed, the step ends, and Slurm takes the requeue.
REQUEUE_S = 15.0


class SlurmAway:
    def __init__(self, run: Run) -> None:
        self.run = run

    def await_slurm(self, timer: Timer, what: str, why: str, now: Now) -> list[Decision]:
        """Try `what` again when `timer` is due. Empty once the patience is spent; then nothing is waited for."""
        left_s = self.run.slurm.wait_left_s(self.run.settings.slurm.patience_s, now.mono)
        if left_s <= 0:
            return []
        self.run.timers.set(timer, now.mono + min(ASK_AGAIN_S, left_s))
        quiet = not self.run.slurm.to_be_said(now.mono)
        words = f"Slurm does not answer: {why}. ftrun waits up to {in_time(left_s)} (slurm.patience) {what}"
        until = now.unix + left_s
        waits = Waiting(
            now.unix, self.run.attempt.number, f"slurmctld, {what}", until, "systemctl start slurmctld  (an administrator)"
        )
        noted = [] if quiet else [self.run.note(waits)]
        return [*noted, Say(words, quiet)]

    def note_return(self, now: Now) -> list[Decision]:
        """Call this when Slurm has answered."""
        since = self.run.slurm.back()
        return [] if since is None else [Say(f"Slurm answers again, after {in_time(now.mono - since)}")]


def in_time(seconds: float) -> str:
    """The duration in words: `90 s`, `45 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


class TimeLimit:
    def __init__(self, run: Run) -> None:
        self.run = run

    def on_limit_due(self, now: Now) -> list[Decision]:
        return [] if Timer.ASK in self.run.timers else [self.run.ask_slurm(now)]

    def on_slurm_answered(self, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
        """Warn the ranks, or people, or ask again when that is due."""
        if self.run.signal.number or not (end := self.run.slurm.ends_at):
            return []
        if not self.run.settings.resumes_itself:
            return self._tell_people(end - now.unix, now)
        left_s = end - now.unix - self._lead_s()
        if event.error and left_s > -self._lead_s() / 2:
            self.run.timers.set(Timer.LIMIT, now.mono + max(ASK_AGAIN_S, left_s))
        elif left_s > 0:
            often_s = min(ASK_MOST_S, max(ASK_LEAST_S, ASK_PART * self._lead_s()))
            self.run.timers.set(Timer.LIMIT, now.mono + min(left_s, often_s))
        elif self.run.slurm.batch:
            return self._warn(end - now.unix, now)
        return []

    def _tell_people(self, left_s: float, now: Now) -> list[Decision]:
        """The script that has called ftrun may end, and ftrun with it, at the moment of the limit: tell it before."""
        if not self.run.facts.ends_at or left_s <= 0:
            return []
        if left_s > TELL_S:
            self.run.timers.set(Timer.LIMIT, now.mono + left_s - TELL_S)
            return []
        says = self.run.told.tell("the time limit")
        return [Say(f"the time limit ends the job in {in_time(left_s)}; {AFTER_LIMIT}")] if says else []

    def _lead_s(self) -> float:
        asked, seen = self.run.settings.time_limit.resume_s, self.run.attempt.program.saving_s
        return asked or (max(LEAST_LEAD_S, CHECKPOINTS * seen) + REQUEUE_S if seen else LEAD_S)

    def _warn(self, left_s: float, now: Now) -> list[Decision]:
        """left_s: until the limit, seconds."""
        number = self.run.signal.warn_ourselves(now.mono)
        self.run.timers.set(Timer.WARNING, now.mono + time_to_save_s(left_s))
        said = f"the time limit ends the job in {in_time(left_s)}: the ranks get {signal_name(number)}, then the job is requeued"
        noted = self.run.note(rec.Signalled(now.unix, signal_name(number), Announced.LIMIT.value))
        return [noted, Say(said), SignalRanks(number)]


def time_to_save_s(left_s: float) -> float:
    """Of the seconds until the allocation ends, those that the ranks have."""
    return max(left_s - REQUEUE_S, left_s / 2, 0.0)
