"""What the owner of the job has asked for and is still to come: when, after whose word, and the checkpoints it waits for."""

from __future__ import annotations


class RequestBook:
    """to_consider: requests that wait for Slurm's word. patterns: of files that checkpoints make or change. Times are monotonic
    seconds."""

    def __init__(self) -> None:
        self.to_consider: tuple[int, ...] = ()
        self.patterns: tuple[str, ...] = ()
        self._due: dict[int, float] = {}  # request that is carried out then at the latest
        self._in_hand = 0  # the one that the present trouble carries out
        self._settles: float | None = None  # when a checkpoint that the program has told of counts
        self._ranks: set[int] = set()  # which have told of it

    @property
    def next_due(self) -> float | None:
        due = [*self._due.values(), *([] if self._settles is None else [self._settles])]
        return min(due, default=None)

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
        """By the trouble that begins now; 0: none."""
        self._in_hand = number

    def take_in_hand(self) -> int:
        number, self._in_hand = self._in_hand, 0
        return number

    def watch(self, patterns: tuple[str, ...]) -> bool:
        """False if those are watched already."""
        changed, self.patterns = patterns != self.patterns, patterns
        return changed

    def has_told(self, rank: int) -> bool:
        return rank in self._ranks

    def told(self, rank: int, settles: float) -> None:
        """It has made its part of a checkpoint, which is complete when no other has followed by then."""
        self._ranks.add(rank)
        self._settles = settles

    def has_settled(self, now: float) -> bool:
        return self._settles is not None and self._settles <= now

    def take_checkpoint(self) -> list[int]:
        """The ranks that have told of it."""
        ranks, self._ranks, self._settles = sorted(self._ranks), set(), None
        return ranks
