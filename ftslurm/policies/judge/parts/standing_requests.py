"""Requests that change nothing that runs: they take effect when accepted, so they are answered at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import Request, State
from ftslurm.model.folds.history import History
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.values import dataclass
from ftslurm.policies.ladder.ladder import LADDER


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
