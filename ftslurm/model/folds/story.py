"""The story of a job: its decisions, each with what was known then and what became of it, and the hangs that were left alone.
Cards and explanations render it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from ftslurm.model import record as rec
from ftslurm.model.folds.history import History
from ftslurm.model.outcome import Outcome, outcome_of
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.values import dataclass, replace


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the present failure."""

    run: rec.RunBegan | None = None
    attempt: rec.AttemptBegan | None = None
    trouble: rec.TroubleSeen | None = None
    verdict: rec.Diagnosed | None = None
    faults: tuple[rec.FaultSeen, ...] = ()  # that devices of this attempt have shown, each once
    hang: rec.HangSeen | None = None
    culprit: rec.CulpritSeen | None = None
    advice: rec.Advised | None = None  # the first
    ended: rec.AttemptEnded | None = None
    back: tuple[str, ...] = ()  # nodes that were left, and may be used again
    experiment: rec.ExperimentEnded | None = None


@dataclass(slots=True)
class Answer:
    """A decision. before, past: the history without and with it. since: the records from the answer before on, or from the
    attempt that followed that one.
    """

    decided: rec.Decided
    known: Known
    before: History
    past: History
    since: tuple[rec.Record, ...]
    done: list[rec.CarriedOut] = field(default_factory=list)
    again: rec.AttemptBegan | rec.RankBegan | None = None  # the ranks, or the one rank, that ran then


@dataclass(slots=True)
class LeftAlone:
    """A hang that nothing was done about. after_s: it went on by itself after so long; None: it has not."""

    seen: rec.HangSeen
    known: Known
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class AtLimit:
    """The time limit ended the job."""

    finished: rec.Finished
    known: Known


class Story:
    """Of a growing ledger: each record is read once. told: in order. since: records since the last answer, as there. past: the
    history with all records. by_slurm: ids of ftruns whose scheduling no decision led to.
    """

    def __init__(self, records: Iterable[rec.Record] = ()) -> None:
        self.told: list[Answer | LeftAlone | AtLimit] = []
        self.since: list[rec.Record] = []
        self.by_slurm: set[str] = set()
        self._known, self.past = Known(), History()
        self._answers: dict[str, Answer] = {}
        self._open: Answer | None = None  # the last answer, until ranks run
        for record in records:
            self.see(record)

    def see(self, record: rec.Record) -> None:
        before, self.past = self.past, self.past.add(record)
        self.since.append(record)
        match record:
            case rec.RunBegan():
                self._run_began(record)
            case rec.AttemptBegan():
                self._goes_on(record)
                self._known = Known(self._known.run, record)
            case rec.RankBegan():
                self._goes_on(record)
            case rec.TroubleSeen():
                self._know(trouble=record)
                if record.cause == "hang":
                    self._drop_hang(record.attempt)
            case rec.Diagnosed():
                self._know(verdict=record)
            case rec.FaultSeen():
                same = (record.node, record.device, record.code)
                others = [each for each in self._known.faults if (each.node, each.device, each.code) != same]
                self._know(faults=(*others, record))
            case rec.Reinstated():
                left, isolated = before.exclusions.left_on_words, before.exclusions.isolated
                self._know(back=tuple(node for node in record.nodes if left.get(node) == record.signature and node in isolated))
            case rec.AttemptEnded():
                self._know(ended=record)
            case rec.ExperimentEnded():
                self._know(experiment=record)
            case rec.HangSeen():
                self._know(hang=record)
                self._drop_hang(record.attempt)
                self.told.append(LeftAlone(record, self._known))
            case rec.HangEnded():
                self._hang_is_over(record.attempt, record.at - self._known.hang.at if self._known.hang else 0.0)
            case rec.Paused() if self._known.hang is not None:
                self._hang_is_over(record.attempt, record.seconds)
            case rec.CulpritSeen():
                self._know(culprit=record)
            case rec.Advised() if self._known.advice is None:
                self._know(advice=record)
                if (hang := self._left_alone(record.attempt)) is not None:
                    hang.known = replace(hang.known, advice=record)
            case rec.Decided():
                self._open = Answer(record, self._known, before, self.past, tuple(self.since[:-1]))
                self._answers[record.id] = self._open
                self.told.append(self._open)
                self.since = []
            case rec.CarriedOut() if record.id in self._answers:
                self._answers[record.id].done.append(record)
            case rec.Finished() if outcome_of(record) is Outcome.TIMEOUT:
                self.told.append(AtLimit(record, self._known))
            case _:
                pass

    def forget(self) -> None:
        """All but the last that is told: each holds the history as it was."""
        del self.told[:-1]
        self._answers = {each.decided.id: each for each in self.told if isinstance(each, Answer)}

    @property
    def known(self) -> Known:
        """At the end of the records."""
        return self._known

    def _know(self, **more: object) -> None:
        self._known = replace(self._known, **more)  # type: ignore[arg-type]

    def _run_began(self, run: rec.RunBegan) -> None:
        last, answer = self._known.run, self._open
        decided_in = answer.known.run if answer is not None and answer.decided.rung in REQUEUES else None
        ours = decided_in is not None and run.schedule == decided_in.schedule + 1
        if last is not None and run.schedule > last.schedule and not ours:
            self.by_slurm.add(run.run)
        self._known = Known(run, self._known.attempt, self._known.trouble)

    def _goes_on(self, begun: rec.AttemptBegan | rec.RankBegan) -> None:
        if self._open is not None:
            self._open.again, self._open, self.since = begun, None, []

    def _left_alone(self, attempt: int) -> LeftAlone | None:
        last = self.told[-1] if self.told else None
        return last if isinstance(last, LeftAlone) and last.seen.attempt == attempt else None

    def _drop_hang(self, attempt: int) -> None:
        """It is seen anew or answered."""
        if self._left_alone(attempt) is not None:
            self.told.pop()

    def _hang_is_over(self, attempt: int, after_s: float) -> None:
        if (hang := self._left_alone(attempt)) is not None:
            hang.after_s = max(0.0, after_s)
        self._know(hang=None)
