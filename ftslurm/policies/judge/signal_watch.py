"""The signal from outside that an attempt has received, and one that came while no ranks ran."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from ftslurm.model import events as ev
from ftslurm.model.exits import signal_name, signal_number
from ftslurm.model.rungs import Capability
from ftslurm.model.settings.tree import Settings

SIGTERM = 15


class Announced(Enum):
    """What a warning announces, in words for people."""

    SOMETHING = "warning"  # what the job has asked Slurm for (--signal)
    LIMIT = "the time limit is near"
    PREEMPTION = "the job is being preempted"


class Meaning(Enum):
    """What a signal from outside comes to."""

    WARNING = "warning"  # the job may go on
    TOLD_TO_END = "the ranks are to end"  # and ftrun with them, within a time limit
    TERMINATED = "terminated"  # while no ranks ran, where nobody can be asked
    INTERRUPTED = "interrupted"  # Ctrl-C
    STOPPED = "stopped"  # on request of the job's owner
    END = "end"  # the job ends, by Slurm's word


class SignalWatch:
    """number: the first signal in this attempt, 0: none; at: when, monotonic seconds. meaning: None until it is known."""

    def __init__(self, settings: Settings, can: Collection[Capability]) -> None:
        self._settings, self._can = settings, can
        self.number = 0
        self.at = 0.0
        self.meaning: Meaning | None = None
        self.announced = Announced.SOMETHING  # where it is a warning
        self.out_of_patience = False  # a second signal came after ranks were told to end
        self.kept: ev.SignalSeen | None = None  # a signal that came while no ranks ran, for the next ones
        self.by_ranks: set[int] = set()  # signals that the ranks received, as their shims report, or from us
        self._told: set[int] = set()  # ranks that have received the signal that ends them
        self._to_pass_on = 0  # a signal to ftrun itself that the ranks may still need
        self._ends = False

    def announces(self, number: int) -> bool:
        """Is it a signal with which Slurm ends a job, or of which the job wants to be warned?"""
        return signal_name(number).removeprefix("SIG") in {"TERM", *self._settings.warning.signals}

    def asks_for_requeue(self, number: int) -> bool:
        """Does the signal ask for a requeue? Then nothing is started before: ranks could only hear of it until the end."""
        can = {Capability.ASK, Capability.REQUEUE} <= {*self._can}
        return self._settings.goes_on_after_warning and can and self.announces(number)

    def take(self, number: int, at: float) -> None:
        self.number, self.at = number, at

    @property
    def open(self) -> bool:
        """Has a signal come whose meaning is not known yet?"""
        return bool(self.number) and self.meaning is None

    @property
    def ends_ftrun(self) -> bool:
        """Is it a SIGTERM to ftrun itself that announces nothing? srun ends its step then; Slurm warns the ranks."""
        return bool(self._to_pass_on) and self._ends and self.announced is Announced.SOMETHING

    def means(self, meaning: Meaning) -> None:
        self.meaning = meaning

    def warn(self, announced: Announced) -> None:
        self.meaning, self.announced = Meaning.WARNING, announced

    def goes_on(self, slurm_requeues: bool) -> bool:
        """Does the warning that came end in a requeue, once the ranks have ended? slurm_requeues: would Slurm do it, too?"""
        return self._settings.goes_on_after_warning or self.goes_on_after_preemption(slurm_requeues)

    def goes_on_after_preemption(self, slurm_requeues: bool) -> bool:
        return slurm_requeues and self.announced is Announced.PREEMPTION and self._settings.preemption.requeue

    def warn_ourselves(self, at: float) -> int:
        """Warn the ranks of the time limit. Gives the signal that they get."""
        number = signal_number(next(iter(self._settings.warning.signals), "TERM"))
        self.take(number, at)
        self.warn(Announced.LIMIT)
        self.got_by_ranks(number)
        return number

    def begin_attempt(self) -> None:
        """The new ranks have received no signal."""
        self.number, self.meaning, self._to_pass_on = 0, None, 0
        self.announced = Announced.SOMETHING
        self.by_ranks, self._told = set(), set()

    def lose_patience(self, lost: bool = True) -> None:
        self.out_of_patience = lost

    def keep(self, event: ev.SignalSeen) -> None:
        """Keep the more important signal: a TERM counts more than another, and ftrun's own more than one of a rank, which may
        concern its step alone.
        """
        kept = self.kept
        if kept is None or (event.number == SIGTERM, event.rank is None) > (kept.number == SIGTERM, kept.rank is None):
            self.kept = event

    def take_kept(self) -> ev.SignalSeen | None:
        kept, self.kept = self.kept, None
        return kept

    def got_by_ranks(self, number: int) -> None:
        self.by_ranks.add(number)

    def told(self, ranks: Iterable[int]) -> None:
        """These ranks have received the signal that ends them."""
        self._told.update(ranks)

    def untold(self, ranks: Collection[int]) -> tuple[int, ...]:
        return tuple(sorted({*ranks} - self._told))

    def pass_on_later(self, number: int, ends: bool = False) -> None:
        """ends: it is one at which srun ends its step."""
        self._to_pass_on, self._ends = number, ends

    def take_to_pass_on(self) -> int:
        number, self._to_pass_on = self._to_pass_on, 0
        return number
