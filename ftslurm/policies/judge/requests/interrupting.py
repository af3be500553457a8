"""Interrupts the job's work when its owner asks, from each phase: to end the job, or to carry out a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision
from ftslurm.model.events import Now
from ftslurm.model.rungs import SWAPS
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.launching import Launching
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import SIGTERM
from ftslurm.policies.judge.then import Afterwards, ThenDecide, ThenFinish
from ftslurm.policies.ladder.ladder import Cause
from ftslurm.policies.ladder.situation import Trouble

# Signals that end a rank that does not exit by itself.
STOPPED_STATUS = 128 + SIGTERM


class Interrupting(Launching):
    def _break_off(self, what: str, now: Now) -> list[Decision]:
        """End the job. what: whose request it is."""
        return _STOP[self.phase](self, what, now)

    def _stop_launch(self, what: str, now: Now) -> list[Decision]:
        if self._timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS):  # no step runs
            return self._finish(what, STOPPED_STATUS, now)
        return self._kill_step(Afterwards(ThenFinish(what, STOPPED_STATUS)), now)

    def _stop_running(self, what: str, now: Now) -> list[Decision]:
        self._signal.means("stopped")
        return self._into_trouble(Trouble(Cause.REQUEST, what, STOPPED_STATUS), now)

    def _stop_settling(self, what: str, now: Now) -> list[Decision]:
        self._signal.means("stopped")
        self._begin(Trouble(Cause.REQUEST, what, STOPPED_STATUS))
        self._timers.keep(Timer.STOP)  # other answers no longer matter
        return self._settled(now)

    def _stop_healing(self, what: str, now: Now) -> list[Decision]:
        return self._give_up(what, STOPPED_STATUS, now)

    def _stop_replacing(self, what: str, now: Now) -> list[Decision]:
        return [*self._drop_search(what, now), *self._finish(what, STOPPED_STATUS, now)]

    def _stop_ending(self, what: str, now: Now) -> list[Decision]:
        """End while the step ends, without what was to follow: nobody must find that open in the ledger and finish it."""
        dropped = self._drop_search(what, now) or self._drop_decision(what, now)
        self._end.follow_with(Afterwards(ThenFinish(what, STOPPED_STATUS)))
        return [*dropped, *(self._fenced(now) if Timer.LEASE in self._timers else [])]

    def _stop_requeueing(self, what: str, now: Now) -> list[Decision]:
        return [*self._drop_decision(what, now), *self._finish(what, STOPPED_STATUS, now)]

    def _drop_search(self, why: str, now: Now) -> list[Decision]:
        """Drop the search for other nodes; the decision that asked for it is cancelled."""
        search = self._take_search()
        self._timers.stop(Timer.SEARCH_AGAIN)
        if search is None:
            return []
        failed = rec.CarriedOut(now.unix, search.decision, False, why)
        return [*search.drop(), *([self._note(failed)] if search.decision else [])]

    def _drop_decision(self, why: str, now: Now) -> list[Decision]:
        decided = self._decided
        open_ = self.history.requeues.open
        known = decided is not None and (decided.rung in SWAPS or (open_ is not None and open_.id == decided.id))
        return [self._note(rec.CarriedOut(now.unix, decided.id, False, why))] if known and decided is not None else []

    def _into_request(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Go to where a request is carried out, from any phase."""
        if self.phase is Phase.RUNNING:
            return self._into_trouble(trouble, now)
        dropped: list[Decision] = []
        if self.phase is Phase.LAUNCHING:
            self._anew().none_begun()
            self._attempt.step_end.none(self._timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS))
            return self._into_trouble(trouble, now)
        if self.phase is Phase.REPLACING:
            dropped = self._drop_search(trouble.what, now)
            if not self._attempt.ranks:  # before the first start
                self._anew(tasks=())
            self._attempt.step_end.none()
        if self.phase is Phase.ENDING:  # the step is ending: the request follows then
            dropped = self._drop_search(trouble.what, now) or self._drop_decision(trouble.what, now)
            self._begin(trouble)
            self._end.follow_with(Afterwards(ThenDecide()))
            return dropped
        self._begin(trouble)
        self._timers.keep(*([Timer.STOP] if self.phase is Phase.SETTLING else []))
        self._attempt.devices.call_off()
        self._enter(Phase.SETTLING)
        return [*dropped, *self._settled(now)]


_STOP: Mapping[Phase, Callable[[Interrupting, str, Now], list[Decision]]] = {
    Phase.LAUNCHING: Interrupting._stop_launch,
    Phase.RUNNING: Interrupting._stop_running,
    Phase.SETTLING: Interrupting._stop_settling,
    Phase.HEALING: Interrupting._stop_healing,
    Phase.REPLACING: Interrupting._stop_replacing,
    Phase.ENDING: Interrupting._stop_ending,
    Phase.REQUEUEING: Interrupting._stop_requeueing,
}
