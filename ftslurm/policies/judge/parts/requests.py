"""Requests of the job's owner that are still to be carried out: when, after which answer, and after which checkpoints."""

from __future__ import annotations

from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.parts.checkpoints import Checkpoints


class RequestBook:
    """to_consider: requests that wait for Slurm's answer. Times are monotonic seconds."""

    def __init__(self, settings: Settings) -> None:
        self.checkpoints = Checkpoints(settings)
        self.to_consider: tuple[int, ...] = ()
        self._due: dict[int, float] = {}  # request -> its latest time
        self._in_hand = 0  # the request that the present trouble carries out

    @property
    def next_due(self) -> float | None:
        due = (*self._due.values(), self.checkpoints.next_due)
        return min((at for at in due if at is not None), default=None)

    def forget(self, number: int) -> None:
        self._due.pop(number, None)
        self.to_consider = tuple(other for other in self.to_consider if other != number)

    def consider_later(self, number: int) -> None:
        self.to_consider = (*self.to_consider, number)

    def take_to_consider(self) -> tuple[int, ...]:
        asked, self.to_consider = self.to_consider, ()
        return asked

    def due_at(self, number: int, at: float) -> None:
        self._due[number] = at

    def take_due(self, now: float) -> list[int]:
        due = sorted(number for number, at in self._due.items() if at <= now)
        self._due = {number: at for number, at in self._due.items() if number not in due}
        return due

    def carry_out(self, number: int) -> None:
        """The trouble that begins now carries out this request; 0: none."""
        self._in_hand = number

    def take_in_hand(self) -> int:
        number, self._in_hand = self._in_hand, 0
        return number
