"""How the step comes to its end, and ftrun with it: what follows then, and with which exit status."""

from __future__ import annotations

from ftslurm.policies.judge.then import Afterwards, ThenDecide


class RunEnd:
    """after: what follows when the step has ended. status: ftrun's own. cleaned: has the job's own clean-up been ordered?"""

    def __init__(self) -> None:
        self.after = Afterwards(ThenDecide())
        self.status = 0
        self.cleaned = False

    def follow_with(self, after: Afterwards) -> None:
        self.after = after

    def as_unended(self) -> None:
        """The step cannot be ended: what follows then."""
        self.after = self.after.if_unended

    def finish(self, status: int) -> None:
        self.status = status

    def clean_up(self) -> None:
        self.cleaned = True
