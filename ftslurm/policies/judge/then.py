"""What follows when a step has ended: a value, so that it can be printed and compared. judge.py says who does it."""

from __future__ import annotations

from ftslurm.model.devices import Fault
from ftslurm.model.values import dataclass
from ftslurm.policies.ladder.situation import Trouble


@dataclass(frozen=True, slots=True)
class ThenLaunch:
    """The next step is launched."""


@dataclass(frozen=True, slots=True)
class ThenHeal:
    """The devices heal, and the command runs again in place."""

    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class ThenReplace:
    """The search for other nodes, which has begun, comes to its end."""


@dataclass(frozen=True, slots=True)
class ThenShrink:
    """The job goes on without these nodes."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class ThenRequeue:
    """The job is given back to Slurm. decision: its id in the ledger."""

    decision: str


@dataclass(frozen=True, slots=True)
class ThenAfterWarning:
    """What a warning of Slurm's leads to: a requeue, if the job asked for it, or the end."""

    trouble: Trouble


@dataclass(frozen=True, slots=True)
class ThenFinish:
    """ftrun ends."""

    what: str
    status: int


@dataclass(frozen=True, slots=True)
class ThenDecide:
    """The trouble is decided on anew."""


@dataclass(frozen=True, slots=True)
class ThenStepStays:
    """The step could not be ended, so nothing may start beside it: the ladder is asked again."""


@dataclass(frozen=True, slots=True)
class ThenLauncherStays:
    """Likewise, of a launcher that waits for nodes."""


Then = (
    ThenLaunch
    | ThenHeal
    | ThenReplace
    | ThenShrink
    | ThenRequeue
    | ThenAfterWarning
    | ThenFinish
    | ThenDecide
    | ThenStepStays
    | ThenLauncherStays
)


@dataclass(frozen=True, slots=True)
class Afterwards:
    """then: when the step has ended, and nothing of it can run any more. unended: if it cannot be ended; None: the same."""

    then: Then
    unended: Then | None = None

    @property
    def another_try(self) -> bool:
        """Is something started again, beside which nothing of the old step may run?"""
        return not isinstance(self.then, ThenFinish | ThenAfterWarning)

    @property
    def if_unended(self) -> Afterwards:
        return Afterwards(self.unended) if self.unended is not None else self
