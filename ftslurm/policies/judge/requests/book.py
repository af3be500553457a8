"""Requests of the job's owner that are still to be carried out: when, after which answer, and after which checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ftslurm.model.decisions import Decision, ShowPhase
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import Request, State
from ftslurm.model.folds.history import History
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass
from ftslurm.policies.judge.requests.progress import Checkpoints
from ftslurm.policies.ladder.ladder import LADDER


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


# --- requests that change nothing that runs: they take effect when accepted, so they are answered at once


@dataclass(frozen=True, slots=True)
class Reply:
    ok: bool  # accepted or refused
    text: str


def reply_to(request: Request, history: History, ladder: Collection[str]) -> Reply:
    """The reply to a request whose verb is in `ctl.STANDS`. ladder: the rungs of this job."""
    return _REPLIES[request.asked.verb](request, history, ladder)


def _hold(request: Request, _: History, ladder: Collection[str]) -> Reply:
    rung = request.asked.rung
    if rung not in ctl.HOLDABLE:
        return Reply(False, f"there is no rung `{rung}` that could be held")
    off = "" if rung in ladder or rung not in LADDER else "; it is not in this job's ladder anyway"
    return Reply(True, f"ftrun skips {rung} from now on{off}")


def _release(request: Request, history: History, _: Collection[str]) -> Reply:
    rung = request.asked.rung
    held = rung in history.control.held
    return Reply(held, f"ftrun uses {rung} again" if held else f"{rung} is not held")


def _no_restarts(_: Request, __: History, ___: Collection[str]) -> Reply:
    return Reply(True, "the next failure ends the job")


def _allow_restarts(_: Request, history: History, __: Collection[str]) -> Reply:
    banned = history.control.no_restarts is not None
    return Reply(banned, "the ladder answers failures again" if banned else "restarts are allowed")


def _reinstate(request: Request, history: History, _: Collection[str]) -> Reply:
    if never := [node for node in request.asked.nodes if node not in history.exclusions.isolated]:
        return Reply(False, f"{fold_nodes(never)} is not excluded")
    return Reply(True, "the job may run there again from its next start on")


def _undo(request: Request, history: History, _: Collection[str]) -> Reply:
    target = history.control.get(request.asked.target)
    if target is None:
        return Reply(False, "there is nothing to undo")
    never_taken = target.state is State.UNDONE and not target.order
    if not never_taken and (why := ctl.not_undoable(target)):
        return Reply(False, why)
    return Reply(True, f"request {target.number} ({ctl.in_words(target.asked)}) no longer counts")


_REPLIES: Mapping[str, Callable[[Request, History, Collection[str]], Reply]] = {
    ctl.HOLD: _hold,
    ctl.RELEASE: _release,
    ctl.NO_RESTARTS: _no_restarts,
    ctl.ALLOW_RESTARTS: _allow_restarts,
    ctl.REINSTATE: _reinstate,
    ctl.UNDO: _undo,
}


# --- what people were told that ftrun waits for


class WaitTold:
    """what: the last message; empty: none. again: an earlier ftrun of the job may have left a phase in the job's comment."""

    def __init__(self, again: bool) -> None:
        self.what = ""
        self._shown = (0, "?") if again else None  # attempt and phase in the job's comment; None: nothing of this job

    def tell(self, what: str) -> bool:
        """Tell people; False if they were told already."""
        if self.what == what:
            return False
        self.what = what
        return True

    def forget(self) -> None:
        """The next wait is told again."""
        self.what = ""

    def show(self, attempt: int, what: str = "", until: float = 0.0) -> list[Decision]:
        """Let the job's comment tell the phase, once."""
        if self._shown == (attempt, what):
            return []
        self._shown = attempt, what
        return [ShowPhase(attempt, what, until)]

    def show_start(self, attempt: int) -> list[Decision]:
        """The comment tells of an earlier ftrun no more. A job that has had nothing to show costs slurmctld no request."""
        return self.show(attempt, "starting") if self._shown is not None else []

    def show_running(self, attempt: int) -> list[Decision]:
        """The attempt runs: no wait needs a further record."""
        self.what = ""
        return self.show(attempt) if self._shown is not None else []

    def show_nothing(self) -> list[Decision]:
        """The job has ended."""
        return self.show(0) if self._shown is not None else []
