"""What an answer of a group leads to, or what follows when a step has ended: values, so that they can be printed and compared.
judge.py carries them out. An answer is the decisions of a group; what stands among them leads on from there.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.model.decisions import Decision
from ftslurm.model.devices import Fault
from ftslurm.model.events import Diagnosed, SignalSeen
from ftslurm.model.folds.control import Request
from ftslurm.model.outcome import Outcome
from ftslurm.model.values import Value, replace
from ftslurm.policies.situation import Trouble


class ThenLaunch(Value):
    """Launch the next step. again: the one before has not come up."""

    again: bool = False


class ThenHeal(Value):
    """Let the devices heal, and start the command again in place."""

    faults: tuple[Fault, ...]


class ThenReplace(Value):
    """Complete the search for other nodes, which has begun."""


class ThenShrink(Value):
    """Continue the job without these nodes."""

    nodes: frozenset[str]


class ThenRequeue(Value):
    """Requeue the job."""


class ThenAfterWarning(Value):
    """After a warning of Slurm: requeue if the job asked for that, otherwise end."""

    trouble: Trouble


class ThenFinish(Value):
    """End ftrun."""

    what: str
    status: int
    outcome: Outcome = Outcome.ENDED


class ThenDecide(Value):
    """Decide on the trouble again."""


class ThenStepStays(Value):
    """The step could not be ended, so nothing may start beside it: ask the ladder again."""


class ThenLauncherStays(Value):
    """The launcher waits for nodes and could not be ended: ask the ladder again."""


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


class ThenAct(Value):
    """Carry out this request, or stop the ranks for it."""

    request: Request


class ThenSignal(Value):
    """Handle a signal that came while no ranks ran. since: when it came, monotonic seconds."""

    event: SignalSeen
    since: float


class Settled(Value):
    """Something that was waited for has come, or will not: decide, or end the healing, if nothing is left to wait for."""


# Trouble: stop the ranks, collect facts, decide. Diagnosed: handle it as if it came now.
Next = Then | ThenAct | ThenSignal | Settled | Trouble | Diagnosed
Answer = Sequence[Decision | Next]


def starts(then: Then) -> bool:
    """Does it start something in this allocation?"""
    return isinstance(then, ThenLaunch | ThenHeal | ThenReplace | ThenShrink)


class RunEnd:
    """then: what follows when the step has ended, and nothing of it can still run. status: ftrun's exit status. cleaned: has the
    configured clean-up been ordered?
    """

    def __init__(self) -> None:
        self.then: Then = ThenDecide()
        self.status = 0
        self.cleaned = False

    @property
    def another_try(self) -> bool:
        """Is something started again, beside which nothing of the old step may run?"""
        return not isinstance(self.then, ThenFinish | ThenAfterWarning)

    def follow_with(self, then: Then) -> None:
        self.then = then

    def as_unended(self) -> None:
        """The step cannot be ended: what would start beside it does not."""
        if starts(self.then):
            self.then = ThenLauncherStays() if self.then == ThenLaunch(again=True) else ThenStepStays()

    def finish_with(self, status: int) -> None:
        """If ftrun is to end, then with this status."""
        if isinstance(self.then, ThenFinish):
            self.then = replace(self.then, status=status)
