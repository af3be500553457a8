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
from ftslurm.policies.ladder import Choice, Situation
from ftslurm.policies.situation import Trouble


class ThenLaunch(Value):
    """Launch the next step."""


class ThenHeal(Value):
    """Let the devices heal, and start the command again in place."""

    faults: tuple[Fault, ...]


class ThenReplace(Value):
    """Complete the search for other nodes, which has begun."""


class ThenShrink(Value):
    """Continue the job without these nodes."""

    nodes: frozenset[str]


class ThenRequeue(Value):
    """Requeue the job. decision: its id in the ledger."""

    decision: str


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


class ThenEnd(Value):
    """End the step, and then ftrun, because the work is done or a person or Slurm wants it: no rung is asked."""

    what: str
    status: int
    outcome: Outcome = Outcome.ENDED


class ThenFulfil(Value):
    """Carry out what the owner of the job asked for; the ranks have been stopped for it."""

    trouble: Trouble


class ThenAct(Value):
    """Carry out this request, or stop the ranks for it."""

    request: Request


class ThenRemedy(Value):
    """Carry out what the ladder has chosen."""

    choice: Choice
    situation: Situation


class ThenRestart(Value):
    """Start the ranks again where they were."""


class ThenFail(Value):
    """Stop what this rank has left running, and start it again alone where the job allows that; otherwise its trouble begins."""

    rank: int
    trouble: Trouble


class ThenSignal(Value):
    """Handle a signal that came while no ranks ran. since: when it came, monotonic seconds."""

    event: SignalSeen
    since: float


class Settled(Value):
    """Something that was waited for has come, or will not: decide, or end the healing, if nothing is left to wait for."""


# Trouble: stop the ranks, collect facts, decide. Diagnosed: handle it as if it came now.
Next = (
    Then | ThenEnd | ThenFulfil | ThenAct | ThenRemedy | ThenRestart | ThenFail | ThenSignal | Settled | Trouble | Diagnosed
)  # fmt: skip
Answer = Sequence[Decision | Next]


class Afterwards(Value):
    """then: what follows when the step has ended, and nothing of it can still run. unended: what follows if it cannot be ended;
    None: the same.
    """

    then: Then
    unended: Then | None = None

    @property
    def another_try(self) -> bool:
        """Is something started again, beside which nothing of the old step may run?"""
        return not isinstance(self.then, ThenFinish | ThenAfterWarning)

    @property
    def if_unended(self) -> Afterwards:
        return Afterwards(self.unended) if self.unended is not None else self


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
