"""Two kinds of requests: those that are answered at once, and those that interrupt the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import Request, State
from ftslurm.model.outcome import Outcome
from ftslurm.model.rungs import SWAPS
from ftslurm.model.timers import Timer
from ftslurm.policies.judge import ending, starting, then
from ftslurm.policies.judge.outside import Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import SIGTERM, Run
from ftslurm.policies.judge.then import Answer
from ftslurm.policies.ladder import Cause
from ftslurm.policies.situation import Trouble

# --- What becomes of a request is recorded, and said: accepted, refused, done


def agree(run: Run, request: Request, text: str, now: Now, done: bool = False) -> list[Decision]:
    """Accept the request; the request itself is in the ledger, so everything that is done is recorded. done: it is carried
    out already.
    """
    said = Say(f"request {request.number} of {asked_by(request)} ({ctl.request_in_words(request.asked)}): {text}")
    if request.state is not State.OPEN:  # another ftrun of the job has answered
        return [said, *(close(run, request, text, now) if done else [])]
    answer = _answer(run, request, True, text, now)
    return [answer, said, *(close(run, request, text, now) if done else [])]


def refuse(run: Run, request: Request, why: str, now: Now) -> list[Decision]:
    """Refuse the request. An accepted one that cannot be carried out when its time has come is refused as well."""
    said = Say(f"request {request.number} of {asked_by(request)} ({ctl.request_in_words(request.asked)}) is refused: {why}")
    run.requests.forget(request.number)
    if request.state is State.TAKEN:
        return [*close(run, request, why, now, ok=False), said]
    return [_answer(run, request, False, why, now), said]


def _answer(run: Run, request: Request, ok: bool, text: str, now: Now) -> Decision:
    node = run.facts.batch_node or run.facts.process.host
    return run.note(rec.RequestAnswered(now.unix, run.facts.run, request.number, ok, text, attempt_number(run), node))


def attempt_number(run: Run) -> int:
    """The number of the attempt that runs or starts."""
    return starting.next_number(run) if run.phase is Phase.LAUNCHING or not run.attempt.number else run.attempt.number


def close(run: Run, request: Request, text: str, now: Now, ok: bool = True) -> list[Decision]:
    if request.asked.verb not in ctl.ACTS:
        return []
    run.requests.forget(request.number)
    return [run.note(rec.RequestDone(now.unix, run.facts.run, request.number, ok, text, attempt_number(run)))]


def asked_by(request: Request) -> str:
    return ctl.ROOT if request.who == ctl.ROOT else request.asked.by or "you"


# --- Interrupts the job's work when its owner asks, from each phase: to end the job, or to carry out a request

# Signals that end a rank that does not exit by itself.
STOPPED_STATUS = 128 + SIGTERM


def break_off(run: Run, what: str, now: Now) -> Answer:
    """End the job. what: whose request it is."""
    return _STOP[run.phase](run, what, now)


def _stop_launch(run: Run, what: str, now: Now) -> Answer:
    return ending.break_off_launch(run, then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED), now)


def _stop_running(run: Run, what: str, now: Now) -> Answer:
    run.signal.means(Meaning.STOPPED)
    return [Trouble(Cause.REQUEST, what, STOPPED_STATUS, outcome=Outcome.STOPPED)]


def _stop_settling(run: Run, what: str, now: Now) -> Answer:
    run.signal.means(Meaning.STOPPED)
    run.set_trouble(Trouble(Cause.REQUEST, what, STOPPED_STATUS, outcome=Outcome.STOPPED))
    run.timers.keep(Timer.STOP)  # other answers no longer matter
    return [then.Settled()]


def _stop_healing(run: Run, what: str, now: Now) -> Answer:
    return ending.end(run, what, STOPPED_STATUS, now, Outcome.STOPPED)


def _stop_replacing(run: Run, what: str, now: Now) -> Answer:
    return [*_drop_search(run, what, now), then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED)]


def _stop_ending(run: Run, what: str, now: Now) -> Answer:
    """End while the step ends, without what was to follow: nobody must find that open in the ledger and finish it."""
    dropped = _drop_search(run, what, now) or _drop_decision(run, what, now)
    run.end.follow_with(then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED))
    return [*dropped, *(ending.go_on_when_fenced(run, now) if Timer.LEASE in run.timers else [])]


def _stop_requeueing(run: Run, what: str, now: Now) -> Answer:
    return [*_drop_decision(run, what, now), then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED)]


def _drop_search(run: Run, why: str, now: Now) -> list[Decision]:
    """Drop the search for other nodes; the decision that asked for it is cancelled."""
    search = run.places.take_search()
    run.timers.stop(Timer.SEARCH_AGAIN)
    if search is None:
        return []
    failed = rec.CarriedOut(now.unix, search.decision, False, why)
    return [*search.drop(), *([run.note(failed)] if search.decision else [])]


def _drop_decision(run: Run, why: str, now: Now) -> list[Decision]:
    decided = run.decided
    open_ = run.history.requeues.open
    known = decided is not None and (decided.rung in SWAPS or (open_ is not None and open_.id == decided.id))
    return [run.note(rec.CarriedOut(now.unix, decided.id, False, why))] if known and decided is not None else []


def enter_request(run: Run, trouble: Trouble, now: Now) -> Answer:
    """Go to where a request is carried out, from any phase."""
    if run.phase is Phase.RUNNING:
        return [trouble]
    dropped: list[Decision] = []
    if run.phase is Phase.LAUNCHING:
        run.new_attempt().none_begun()
        run.attempt.step_end.none(run.timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS))
        return [trouble]
    if run.phase is Phase.REPLACING:
        dropped = _drop_search(run, trouble.what, now)
        if not run.attempt.ranks:  # before the first start
            run.new_attempt(tasks=())
        run.attempt.step_end.none()
    if run.phase is Phase.ENDING:  # the step is ending: the request follows then
        dropped = _drop_search(run, trouble.what, now) or _drop_decision(run, trouble.what, now)
        run.set_trouble(trouble)
        run.end.follow_with(then.ThenDecide())
        return dropped
    run.set_trouble(trouble)
    run.timers.keep(*([Timer.STOP] if run.phase is Phase.SETTLING else []))
    run.attempt.devices.to_heal = {}
    run.enter(Phase.SETTLING)
    return [*dropped, then.Settled()]


_STOP: Mapping[Phase, Callable[[Run, str, Now], Answer]] = {
    Phase.LAUNCHING: _stop_launch,
    Phase.RUNNING: _stop_running,
    Phase.SETTLING: _stop_settling,
    Phase.HEALING: _stop_healing,
    Phase.REPLACING: _stop_replacing,
    Phase.ENDING: _stop_ending,
    Phase.REQUEUEING: _stop_requeueing,
}
