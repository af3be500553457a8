"""Waits for a slurmctld that is away: nothing that its return would solve is given up before `slurm.patience` is spent.

A restart in place asks nothing of Slurm and does not use this.
"""

from __future__ import annotations

from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.record import Waiting
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.state import Run

# Seconds from a failed request to the next one. Each request is itself repeated for `slurm.timeout`.
ASK_AGAIN_S = 5.0
# How long a slurmctld that has just started gets to learn the state of nodes and jobs.
GATHERS_S = 3.0


class SlurmAway:
    def __init__(self, run: Run) -> None:
        self.run = run

    def await_slurm(self, timer: Timer, what: str, why: str, now: Now) -> list[Decision]:
        """Try `what` again when `timer` is due. Empty once the patience is spent; then nothing is waited for."""
        left_s = self.run.slurm.wait_left_s(self.run.settings.slurm_patience_s, now.mono)
        if left_s <= 0:
            return []
        self.run.timers.set(timer, now.mono + min(ASK_AGAIN_S, left_s))
        quiet = not self.run.slurm.to_be_said(now.mono)
        words = f"Slurm does not answer: {why}. ftrun waits up to {in_time(left_s)} (slurm.patience) {what}"
        until = now.unix + left_s
        noted = [] if quiet else [self.run.note(Waiting(now.unix, self.run.attempt.number, f"slurmctld, {what}", until))]
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
