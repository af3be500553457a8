"""How the step and ftrun end: what follows then, and the exit status."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.policies.judge.then import Afterwards, ThenDecide, ThenFinish


class RunEnd:
    """after: what follows when the step has ended. status: ftrun's exit status. cleaned: has the configured clean-up been
    ordered?
    """

    def __init__(self) -> None:
        self.after = Afterwards(ThenDecide())
        self.status = 0
        self.cleaned = False

    def follow_with(self, after: Afterwards) -> None:
        self.after = after

    def as_unended(self) -> None:
        """Switch to what follows if the step cannot be ended."""
        self.after = self.after.if_unended

    def finish_with(self, status: int) -> None:
        """If ftrun is to end, then with this status."""
        if isinstance(then := self.after.then, ThenFinish):
            self.after = replace(self.after, then=replace(then, status=status))

    def finish(self, status: int) -> None:
        self.status = status

    def clean_up(self) -> None:
        self.cleaned = True
