"""What a job's decisions have cost. Restarts are counted for each command of a script, as torchrun and ft_launcher count them;
requeues for the whole job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ftslurm.model.record import Decided
from ftslurm.model.rungs import RESTARTS, Budget, Rung
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class Budgets:
    spent: Mapping[str, int] = field(default_factory=dict)  # budget name -> how much
    job_restarts: int = 0  # of all ranks, whatever the cause, but for those that cured our own choice of a port
    other_commands: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # step key -> restarts and crash restarts

    def used(self, budget: str) -> int:
        """How much of that budget is spent."""
        return self.job_restarts if budget == Budget.JOB_RESTARTS else self.spent.get(budget, 0)

    def decided(self, decided: Decided) -> Budgets:
        spent = {**self.spent, decided.cost: self.spent.get(decided.cost, 0) + 1} if decided.cost else self.spent
        return replace(self, spent=spent, job_restarts=self.job_restarts + _restarts_job(decided))

    def take_back(self, swap: Decided) -> Budgets:
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


def _restarts_job(decided: Decided) -> bool:
    """A crash that is answered in place and costs nothing came of a port that ftrun had chosen. What people ask for is theirs."""
    own_doing = decided.cause == "request" or (
        decided.rung == Rung.IN_PLACE_RESTART and decided.cause == "crash" and not decided.cost
    )
    return decided.rung in RESTARTS and not own_doing
