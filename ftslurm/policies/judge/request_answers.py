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
from ftslurm.policies.judge import then
from ftslurm.policies.judge.ending import Ending
from ftslurm.policies.judge.outside import Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import SIGTERM, Run, record_decision
from ftslurm.policies.judge.then import Answer
from ftslurm.policies.ladder import Cause, Choice, Situation
from ftslurm.policies.situation import Trouble, bad_nodes

# --- What becomes of a request is recorded, and said: accepted, refused, done


class Answers:
    def __init__(self, run: Run, starting: Starting) -> None:
        self.run, self.starting = run, starting

    def agree(self, request: Request, text: str, now: Now, done: bool = False) -> list[Decision]:
        """Accept the request; the request itself is in the ledger, so everything that is done is recorded. done: it is carried
        out already.
        """
        said = Say(f"request {request.number} of {asked_by(request)} ({ctl.request_in_words(request.asked)}): {text}")
        if request.state is not State.OPEN:  # another ftrun of the job has answered
            return [said, *(self.close(request, text, now) if done else [])]
        answer = self._answer(request, True, text, now)
        return [answer, said, *(self.close(request, text, now) if done else [])]

    def refuse(self, request: Request, why: str, now: Now) -> list[Decision]:
        """Refuse the request. An accepted one that cannot be carried out when its time has come is refused as well."""
        said = Say(f"request {request.number} of {asked_by(request)} ({ctl.request_in_words(request.asked)}) is refused: {why}")
        self.run.requests.forget(request.number)
        if request.state is State.TAKEN:
            return [*self.close(request, why, now, ok=False), said]
        return [self._answer(request, False, why, now), said]

    def _answer(self, request: Request, ok: bool, text: str, now: Now) -> Decision:
        node = self.run.facts.batch_node or self.run.facts.process.host
        return self.run.note(
            rec.RequestAnswered(now.unix, self.run.facts.run, request.number, ok, text, self.attempt_number, node)
        )

    @property
    def attempt_number(self) -> int:
        """The number of the attempt that runs or starts."""
        return (
            self.starting.next_number()
            if self.run.phase is Phase.LAUNCHING or not self.run.attempt.number
            else self.run.attempt.number
        )

    def close(self, request: Request, text: str, now: Now, ok: bool = True) -> list[Decision]:
        if request.asked.verb not in ctl.ACTS:
            return []
        self.run.requests.forget(request.number)
        return [self.run.note(rec.RequestDone(now.unix, self.run.facts.run, request.number, ok, text, self.attempt_number))]


def asked_by(request: Request) -> str:
    return ctl.ROOT if request.who == ctl.ROOT else request.asked.by or "you"


# --- Interrupts the job's work when its owner asks, from each phase: to end the job, or to carry out a request

# Signals that end a rank that does not exit by itself.
STOPPED_STATUS = 128 + SIGTERM


class Interrupting:
    def __init__(self, run: Run, ending: Ending) -> None:
        self.run, self.ending = run, ending

    def break_off(self, what: str, now: Now) -> Answer:
        """End the job. what: whose request it is."""
        return _STOP[self.run.phase](self, what, now)

    def _stop_launch(self, what: str, now: Now) -> Answer:
        if self.run.timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS):  # no step runs
            return [then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED)]
        return self.ending.kill_step(then.Afterwards(then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED)), now)

    def _stop_running(self, what: str, now: Now) -> Answer:
        self.run.signal.means(Meaning.STOPPED)
        return [Trouble(Cause.REQUEST, what, STOPPED_STATUS, outcome=Outcome.STOPPED)]

    def _stop_settling(self, what: str, now: Now) -> Answer:
        self.run.signal.means(Meaning.STOPPED)
        self.run.set_trouble(Trouble(Cause.REQUEST, what, STOPPED_STATUS, outcome=Outcome.STOPPED))
        self.run.timers.keep(Timer.STOP)  # other answers no longer matter
        return [then.Settled()]

    def _stop_healing(self, what: str, now: Now) -> Answer:
        return [then.ThenEnd(what, STOPPED_STATUS, Outcome.STOPPED)]

    def _stop_replacing(self, what: str, now: Now) -> Answer:
        return [*self._drop_search(what, now), then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED)]

    def _stop_ending(self, what: str, now: Now) -> Answer:
        """End while the step ends, without what was to follow: nobody must find that open in the ledger and finish it."""
        dropped = self._drop_search(what, now) or self._drop_decision(what, now)
        self.run.end.follow_with(then.Afterwards(then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED)))
        return [*dropped, *(self.ending.go_on_when_fenced(now) if Timer.LEASE in self.run.timers else [])]

    def _stop_requeueing(self, what: str, now: Now) -> Answer:
        return [*self._drop_decision(what, now), then.ThenFinish(what, STOPPED_STATUS, Outcome.STOPPED)]

    def _drop_search(self, why: str, now: Now) -> list[Decision]:
        """Drop the search for other nodes; the decision that asked for it is cancelled."""
        search = self.run.places.take_search()
        self.run.timers.stop(Timer.SEARCH_AGAIN)
        if search is None:
            return []
        failed = rec.CarriedOut(now.unix, search.decision, False, why)
        return [*search.drop(), *([self.run.note(failed)] if search.decision else [])]

    def _drop_decision(self, why: str, now: Now) -> list[Decision]:
        decided = self.run.decided
        open_ = self.run.history.requeues.open
        known = decided is not None and (decided.rung in SWAPS or (open_ is not None and open_.id == decided.id))
        return [self.run.note(rec.CarriedOut(now.unix, decided.id, False, why))] if known and decided is not None else []

    def enter_request(self, trouble: Trouble, now: Now) -> Answer:
        """Go to where a request is carried out, from any phase."""
        if self.run.phase is Phase.RUNNING:
            return [trouble]
        dropped: list[Decision] = []
        if self.run.phase is Phase.LAUNCHING:
            self.run.new_attempt().none_begun()
            self.run.attempt.step_end.none(self.run.timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS))
            return [trouble]
        if self.run.phase is Phase.REPLACING:
            dropped = self._drop_search(trouble.what, now)
            if not self.run.attempt.ranks:  # before the first start
                self.run.new_attempt(tasks=())
            self.run.attempt.step_end.none()
        if self.run.phase is Phase.ENDING:  # the step is ending: the request follows then
            dropped = self._drop_search(trouble.what, now) or self._drop_decision(trouble.what, now)
            self.run.set_trouble(trouble)
            self.run.end.follow_with(then.Afterwards(then.ThenDecide()))
            return dropped
        self.run.set_trouble(trouble)
        self.run.timers.keep(*([Timer.STOP] if self.run.phase is Phase.SETTLING else []))
        self.run.attempt.devices.call_off()
        self.run.enter(Phase.SETTLING)
        return [*dropped, then.Settled()]

    def start_again(self, back: Choice, trouble: Trouble, s: Situation, now: Now) -> Answer:
        """Start the stopped ranks again where they were, unless something has happened there meanwhile."""
        bad = {
            **self.run.attempt.stuck_nodes(self.run.tasks),
            **bad_nodes(self.run.slurm.answer, self.run.attempt, self.run.chosen_nodes()),
        }
        broken = "; ".join(f"{node}: {what}" for node, what in sorted(bad.items()))
        if why := self.run.attempt.step_end.unended or s.others.not_again or broken:
            self.run.set_trouble(
                Trouble(Cause.LOST, f"{trouble.what}; {why}", 1)
            )  # nothing may start beside that: the ladder is asked
            return [then.ThenDecide()]
        decided = record_decision(self.run, back, s, now)
        if self.run.attempt.step_end.gone or self.run.attempt.lost:
            return [decided, *self.ending.end_step(0, then.Afterwards(then.ThenLaunch(), then.ThenStepStays()), now)]
        return [decided, then.ThenRestart()]


_STOP: Mapping[Phase, Callable[[Interrupting, str, Now], Answer]] = {
    Phase.LAUNCHING: Interrupting._stop_launch,
    Phase.RUNNING: Interrupting._stop_running,
    Phase.SETTLING: Interrupting._stop_settling,
    Phase.HEALING: Interrupting._stop_healing,
    Phase.REPLACING: Interrupting._stop_replacing,
    Phase.ENDING: Interrupting._stop_ending,
    Phase.REQUEUEING: Interrupting._stop_requeueing,
}
