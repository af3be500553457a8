"""A job's requeues: the one that stands open, those that were done, and what led to this scheduling."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model.folds.parts.streaks import in_a_row
from ftslurm.model.record import CarriedOut, Decided, Finished
from ftslurm.model.rungs import REQUEUES, Rung
from ftslurm.model.values import dataclass

# The setting by which a job is requeued before its time limit ends it.
AT_LIMIT = "time_limit.resume"


@dataclass(frozen=True, slots=True)
class Requeues:
    open: Decided | None = None  # decided, and nobody wrote that it was done
    left: bool = False  # the ftrun that decided the open one has ended since
    last: Decided | None = None  # decided in this scheduling, unless it failed
    done: int = 0
    at_limit: int = 0  # decided because the time limit was near
    unconditional_in_a_row: int = 0  # without an explicit fault or progress between
    scheduled_by: tuple[str, str] = ("", "")  # (rung, cause) of what led to this scheduling; empty for the first

    def run_began(self, scheduled_by: tuple[str, str], scheduled_again: bool) -> Requeues:
        """scheduled_again: a later scheduling of the job, which is proof that the requeue happened, whoever finished it."""
        begun = replace(self, scheduled_by=scheduled_by)
        return replace(begun, open=None, left=False, last=None) if scheduled_again else begun

    def decided(self, decided: Decided) -> Requeues:
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

    def _still_open(self, decided: Decided) -> Decided | None:
        """The requeue that stands open, unless `decided` comes in its place. What an ftrun beside it decides does not: the keeper
        would find nothing to do, and the job end as requeued that never was."""
        before = self.open
        return before if before is not None and not self.left and run_of(before) != run_of(decided) else None

    def carried_out(self, done: CarriedOut) -> Requeues:
        if self.open is None or done.id != self.open.id:
            return self
        return replace(self, open=None, last=self.last if done.ok is not False else None, left=False, done=self.done + done.ok)

    def finished(self, finished: Finished) -> Requeues:
        left = self.open is not None and run_of(self.open) == finished.run
        return replace(self, left=self.left or left)

    def broken(self) -> Requeues:
        """What comes next is the first in a row."""
        return replace(self, unconditional_in_a_row=0)


def run_of(decided: Decided) -> str:
    """Which ftrun decided: its id begins with that of the run."""
    return decided.id.partition("-")[0]
