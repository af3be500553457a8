"""What becomes of a request is recorded, and said: accepted, refused, done."""

from __future__ import annotations

from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import Request, State
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.requests.interrupting import Interrupting


class Answers(Interrupting):
    def _agree(self, request: Request, text: str, now: Now, done: bool = False) -> list[Decision]:
        """Accept the request; the request itself is in the ledger, so everything that is done is recorded. done: it is carried
        out already.
        """
        said = Say(f"request {request.number} of {asked_by(request)} ({ctl.in_words(request.asked)}): {text}")
        if request.state is not State.OPEN:  # another ftrun of the job has answered
            return [said, *(self._done(request, text, now) if done else [])]
        answer = self._answer(request, True, text, now)
        return [answer, said, *(self._done(request, text, now) if done else [])]

    def _refuse(self, request: Request, why: str, now: Now) -> list[Decision]:
        """Refuse the request. An accepted one that cannot be carried out when its time has come is refused as well."""
        said = Say(f"request {request.number} of {asked_by(request)} ({ctl.in_words(request.asked)}) is refused: {why}")
        self._requests.forget(request.number)
        if request.state is State.TAKEN:
            return [*self._done(request, why, now, ok=False), said]
        return [self._answer(request, False, why, now), said]

    def _answer(self, request: Request, ok: bool, text: str, now: Now) -> Decision:
        node = self.facts.batch_node or self.facts.process.host
        return self._note(rec.RequestAnswered(now.unix, self.facts.run, request.number, ok, text, self._of_attempt, node))

    @property
    def _of_attempt(self) -> int:
        """The number of the attempt that runs or starts."""
        return self._next_number() if self.phase is Phase.LAUNCHING or not self._attempt.number else self._attempt.number

    def _done(self, request: Request, text: str, now: Now, ok: bool = True) -> list[Decision]:
        if request.asked.verb not in ctl.ACTS:
            return []
        self._requests.forget(request.number)
        return [self._note(rec.RequestDone(now.unix, self.facts.run, request.number, ok, text, self._of_attempt))]


def asked_by(request: Request) -> str:
    return ctl.ROOT if request.who == ctl.ROOT else request.asked.by or "you"
