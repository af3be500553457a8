"""What the owner of a job has asked for (`ftslurm control`), as people and programs read it. Pure: records in, values out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ftslurm.model.folds.control import Control, Request, State, in_words, utc
from ftslurm.model.folds.history import fold
from ftslurm.model.record import Record
from ftslurm.model.rungs import Rung
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request of the owner of the job, for people; fields without a comment as in record.Requested. Times in Unix seconds, 0:
    not, or not yet."""

    number: int
    state: str  # open (nobody has taken it yet), taken, refused, done, undone
    verb: str
    what: str
    text: str  # the answer, or what came of it
    by: str
    host: str
    at: float
    answered_at: float = 0.0
    done_at: float = 0.0
    attempt: int = 0  # attempt, node: of the ftrun that answered
    node: str = ""
    nodes: tuple[str, ...] = ()
    rung: str = ""
    checkpoints: int = 0
    seen: int = 0  # checkpoints that counted so far
    after: float = 0.0
    until: float = 0.0
    files: str = ""
    target: int = 0


@dataclass(frozen=True, slots=True)
class InForce:
    """What requests hold now. held: rung -> since when (Unix seconds) and by whom. no_restarts: likewise, None if allowed."""

    held: dict[str, tuple[float, str]]
    no_restarts: tuple[float, str] | None
    excluded: tuple[str, ...]

    def why_held(self, rung: str, moment: Callable[[float], str]) -> str:
        """In words; empty if it is not."""
        if rung == Rung.FAIL:
            return ""
        if self.no_restarts is not None:
            return f"no more restarts, by {self.no_restarts[1]} since {moment(self.no_restarts[0])}"
        if rung in self.held:
            at, who = self.held[rung]
            return f"held by {who} since {moment(at)}"
        return ""


def requests(records: Iterable[Record], moment: Callable[[float], str] = utc) -> tuple[RequestView, ...]:
    """All, in the order they were asked. moment: writes Unix seconds for people."""
    return tuple(_view(request, moment) for request in fold(records).control.requests.values())


def _view(r: Request, moment: Callable[[float], str]) -> RequestView:
    a = r.asked
    return RequestView(
        r.number, r.state.value, a.verb, in_words(a, moment), r.text, a.by, a.host, a.at, r.answered_at, r.done_at, r.attempt,
        r.node, a.nodes, a.rung, a.checkpoints, r.seen, a.after, a.until, a.files, a.target,
    )  # fmt: skip


def in_force(control: Control) -> InForce:
    ban = control.no_restarts
    return InForce(
        {rung: (request.asked.at, request.who) for rung, request in control.held.items()},
        (ban.asked.at, ban.who) if ban is not None else None, tuple(sorted(control.excluded)),
    )  # fmt: skip


def to_come(views: Iterable[RequestView]) -> list[RequestView]:
    """Those that nobody has taken or carried out yet."""
    return [view for view in views if view.state in (State.OPEN.value, State.TAKEN.value)]


def in_a_line(view: RequestView) -> str:
    """Without its time."""
    state = "not taken yet" if view.state == State.OPEN.value else view.state
    seen = f", {view.seen} of {view.checkpoints} checkpoints" if view.checkpoints and view.state == State.TAKEN.value else ""
    return f"{view.what}: {state}{seen}{f' ({view.text})' if view.text else ''}"


def table(views: Sequence[RequestView], moment: Callable[[float], str]) -> list[str]:
    """A line each."""
    width = max((len(str(view.number)) for view in views), default=0)
    rows = [(view, f"{view.by}{f' on {view.host}' if view.host else ''}") for view in views]
    return [f"{view.number:>{width}}  {moment(view.at)}  {who}  {in_a_line(view)}" for view, who in rows]
