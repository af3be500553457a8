"""What is behind the end of an attempt: asked beside the loop, which must answer beats meanwhile, and recorded when known."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import (
    Decision,
    Diagnose,
    Say,
    ShowCard,
    TellOthers,
)
from ftslurm.model.events import Now
from ftslurm.model.rungs import Capability
from ftslurm.model.text import how_often
from ftslurm.model.timers import Timer
from ftslurm.model.verdict import Verdict, unknown
from ftslurm.policies.judge.inquiry import Inquiry
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.requests.progress import iteration_seen, read_at_end
from ftslurm.policies.judge.state import Run
from ftslurm.policies.judge.then import Answer, Settled
from ftslurm.policies.ladder.ladder import Cause
from ftslurm.policies.ladder.node_charges import within_budget
from ftslurm.policies.ladder.situation import Trouble, bad_nodes
from ftslurm.policies.weigh.contrast import Contrast

# Seconds from the trouble to the message that tells what is waited for.
TELL_S = 3.0
# The cause of a failure is known within one or two seconds, even from a hundred megabytes of output; a longer analysis is not
# waited for.
DIAGNOSIS_S = 60.0
# For reading progress.file: a file system that hangs delays nobody longer.
PROGRESS_S = 10.0
TOOK_TOO_LONG = f"the diagnosis did not end within {DIAGNOSIS_S:g} s"


class Causes:
    def __init__(self, run: Run) -> None:
        self.run = run

    def ask_what_is_behind(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Ask for the cause, once an attempt. Empty if it is known, or nobody can tell."""
        hangs = trouble.cause is Cause.HANG and not self.run.shown_faults()
        asked = [*(self.ask_hints(now) if hangs else self._ask_verdict(now)), *self._ask_progress(now)]
        if asked:
            self.run.timers.set(Timer.TELL, now.mono + TELL_S)
        return asked

    def _ask_progress(self, now: Now) -> list[Decision]:
        """Ask how far the training has come, once an attempt, when the attempt has ended."""
        closing = self.run.attempt.closing
        asked = [] if closing.progress_asked else read_at_end(self.run.settings, self.run.attempt.number)
        if asked:
            closing.progress_asked = True
            self.run.timers.set(Timer.PROGRESS, now.mono + PROGRESS_S)
        return asked

    def on_progress_overdue(self, now: Now) -> Answer:
        return [Settled()]

    def on_iteration_read(self, event: ev.IterationRead, now: Now) -> Answer:
        waited = Timer.PROGRESS in self.run.timers and event.attempt == self.run.attempt.number
        seen = iteration_seen(event, self.run.settings, self.run.history, now) if waited or not event.attempt else None
        noted: list[Decision] = [] if seen is None else [self.run.note(seen)]
        if not (event.attempt and waited):
            return noted
        self.run.timers.stop(Timer.PROGRESS)
        return [*noted, Settled()]

    def ask_hints(self, now: Now) -> list[Decision]:
        """Ask for common reasons for a hang. If the ranks have been stopped, their last output has arrived."""
        if Capability.ADVISE not in self.run.facts.can or self.run.attempt.hang.advised:
            return []
        self.run.attempt.hang.advised = True
        self.run.timers.set(Timer.ADVICE, now.mono + DIAGNOSIS_S)
        return [self._inquiry().hints()]

    def _ask_verdict(self, now: Now) -> list[Decision]:
        attempt = self.run.attempt
        if Capability.DIAGNOSE not in self.run.facts.can or attempt.verdict is not None or not (attempt.number and attempt.ranks):
            return []
        self.run.timers.set(Timer.DIAGNOSIS, now.mono + DIAGNOSIS_S)
        return [self.question(None)]

    def question(self, rank: int | None) -> Diagnose:
        """rank: ask for the cause of the end of this rank alone; None: of the attempt."""
        return self._inquiry(rank).question(
            self.run.shown_faults(), bad_nodes(self.run.slurm.answer, self.run.attempt, self.run.chosen_nodes())
        )

    def _inquiry(self, rank: int | None = None) -> Inquiry:
        return Inquiry(self.run.attempt, self.run.tasks, self.run.history, self.run.settings, self.run.facts, rank)

    def on_diagnosed(self, event: ev.Diagnosed, now: Now) -> Answer:
        """The answer about the cause; ignored if nobody waits for it any more."""
        if Timer.DIAGNOSIS not in self.run.timers or event.attempt != self.run.attempt.number or event.rank is not None:
            return []
        self.run.timers.stop(Timer.DIAGNOSIS)
        return [*self.note_verdict(event.verdict, now), Settled()]

    def on_diagnosis_overdue(self, now: Now) -> Answer:
        return [*self.note_verdict(unknown(TOOK_TOO_LONG), now), Settled()]

    def on_advised(self, event: ev.Advised, now: Now) -> Answer:
        if event.attempt != self.run.attempt.number:
            return []
        entered = any(view.groups for views in self.run.attempt.hang.views.values() for view in views)
        hints = [hint for hint in event.hints if not (entered and hint[0] == "before-first-collective")]
        noted: list[Decision] = [self.run.note(rec.Advised(now.unix, self.run.attempt.number, *hint)) for hint in hints]
        if Timer.ADVICE not in self.run.timers:
            return noted
        self.run.timers.stop(Timer.ADVICE)
        return [*noted, *self.use_advice(now)]

    def use_advice(self, now: Now) -> Answer:
        """The hints are known: the report of a hang that is left alone waited for them, and so did the decision on one that is
        not.
        """
        return [ShowCard()] if self.run.phase is Phase.RUNNING else [Settled()]

    def note_verdict(self, verdict: Verdict, now: Now, rank: int | None = None) -> list[Decision]:
        """Record the verdict. rank: it is about the end of this rank alone."""
        showing = frozenset(node for node, _, _ in self.run.devices.faults)
        found = self._inquiry(rank).weigh(verdict, showing, now)
        self.run.attempt.verdict = found.verdict
        noted: list[Decision] = [self.run.note(found.record)]
        begun = self.run.history.crashes.experiment
        if rank is None and begun is not None and begun.signature == found.verdict.signature:
            noted += self.weigh_experiment(False, now)
        cleared = found.cleared
        return noted if cleared is None else [*noted, *self.reinstate(found.verdict.signature, cleared, now)]

    def weigh_experiment(self, well: bool, now: Now) -> list[Decision]:
        """Record what came of running without a node: `well`, or the same failure again. Nothing is known if Slurm gave the job
        that node all the same."""
        begun = self.run.history.crashes.experiment
        if begun is None or begun.node in self.run.step_nodes():
            return []
        st, history = self.run.settings, self.run.history
        excluded = well and begun.times > 1 and bool(within_budget([begun.node], history, st))
        why = f"failed there {how_often(begun.times)} ({begun.signature}), {'ran elsewhere' if well else 'and elsewhere'}"
        ended = rec.ExperimentEnded(now.unix, self.run.attempt.number, begun.node, begun.signature, well, excluded, why)
        becomes = "is excluded from this job" if excluded else "may be used again"
        told = [TellOthers({}, failed={begun.node: why})] if excluded and st.memory_s and not self.run.attempt.drills else []
        return [self.run.note(ended), Say(f"{begun.node} {becomes}: {why}"), *told]

    def reinstate(self, signature: str, found: Contrast, now: Now) -> list[Decision]:
        """Reinstate nodes that a contrast clears; the next card says it."""
        record = rec.Reinstated(now.unix, self.run.attempt.number, signature, dict.fromkeys(found.cleared, found.why))
        back = self.run.history.exclusions.left_on_words_still(found.cleared)
        noted: list[Decision] = [self.run.note(record)]
        return [*noted, TellOthers({}, back)] if back else noted
