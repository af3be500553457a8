"""What becomes of a request is recorded, and said: accepted, refused, done."""

from __future__ import annotations

from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import Request, State
from ftslurm.policies.judge.launch.starting import Starting
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import Run


class Answers:
    def __init__(self, run: Run, starting: Starting) -> None:
        self.run, self.starting = run, starting

    def agree(self, request: Request, text: str, now: Now, done: bool = False) -> list[Decision]:
        """Accept the request; the request itself is in the ledger, so everything that is done is recorded. done: it is carried
        out already.
        """
        said = Say(f"request {request.number} of {asked_by(request)} ({ctl.in_words(request.asked)}): {text}")
        if request.state is not State.OPEN:  # another ftrun of the job has answered
            return [said, *(self.close(request, text, now) if done else [])]
        answer = self._answer(request, True, text, now)
        return [answer, said, *(self.close(request, text, now) if done else [])]

    def refuse(self, request: Request, why: str, now: Now) -> list[Decision]:
        """Refuse the request. An accepted one that cannot be carried out when its time has come is refused as well."""
        said = Say(f"request {request.number} of {asked_by(request)} ({ctl.in_words(request.asked)}) is refused: {why}")
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
