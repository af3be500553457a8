"""Ends the step, and ftrun. What follows (a value of `then`) begins only when nothing of the old attempt can still run: the step
has ended, and the leases of all unreachable ranks have run out.
"""

from __future__ import annotations

import math

from ftslurm.errors import REQUEUED_STATUS
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import (
    AbandonStep,
    CleanUp,
    Decision,
    EndStep,
    Finish,
    KeepOutput,
    KillStep,
    Requeue,
    Say,
    ShowWait,
    Start,
)
from ftslurm.model.events import Now
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.summary import MAY_GO_ON
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.slurm_away import SlurmAway
from ftslurm.policies.judge.state import SIGINT, SIGTERM
from ftslurm.policies.judge.then import Afterwards, Then, ThenFinish
from ftslurm.policies.ladder.start_time import plan_start

# From releasing the shims to killing the step, and from the kill to continuing without an answer; srun waits for its slurmstepds.
STEP_END_WAIT_S = 20.0
# A proof that comes within this time needs no message about waiting.
TELL_LEASES_S = 1.0
# A step usually ends within a second, and srun says nothing however long it takes: people are told only of a wait that they would
# wonder about. On a busy cluster a few seconds are ordinary.
TELL_STEP_S = 8.0

# Of srun, where the limit of the step's memory ended a task or a process of it; whatever signal or code that task ended with.
# Source: srun.c, SIG_OOM (22.05 to 26.05); seen on 22.05.
OUT_OF_MEMORY = ExitStatus(1)


class Ending(SlurmAway):
    def _give_up(self, what: str, status: int, now: Now) -> list[Decision]:
        """End because a person or Slurm wants it: asks no rung, and prints nothing that Slurm does not print itself."""
        return self._end_step(status, Afterwards(ThenFinish(what, status)), now)

    def _end_step(self, status: int, after: Afterwards, now: Now) -> list[Decision]:
        if self._attempt.step_end.gone:
            self._enter(Phase.ENDING)
            self._end.follow_with(after)
            return self._fenced(now)
        if self._attempt.lost and not self._lost_to_dead_nodes():
            return self._kill_step(after, now)
        self._enter(Phase.ENDING)
        self._end.follow_with(after)
        self._fence.let_go_at = now.mono
        self._timers.only({Timer.STEP: now.mono + STEP_END_WAIT_S, Timer.TELL_STEP: now.mono + TELL_STEP_S})
        return [EndStep(0 if self._attempt.closing.culprit else status, forget=after.unended is not None), *self._abandon()]

    def _lost_to_dead_nodes(self) -> bool:
        """Does the launcher miss only ranks on nodes that cannot answer it either?"""
        return all(rank in self._tasks and self._tasks[rank].node in self._attempt.nodes.gone for rank in self._attempt.lost)

    def _abandon(self) -> list[Decision]:
        """Abandon the launcher once every live shim has ended: srun would wait for the dead nodes (30 s on 22.05, even when told
        to end).
        """
        attempt = self._attempt
        waited_for = attempt.ranks - attempt.lost.keys() - attempt.shims.departed
        if not attempt.nodes.gone or attempt.step_end.abandoned or waited_for:
            return []
        attempt.step_end.abandon()
        return [AbandonStep()]

    def _shim_left(self, event: ev.ShimLeft, now: Now) -> list[Decision]:
        self._attempt.shims.depart(event.rank)
        return self._abandon() if Timer.STEP in self._timers and self._lost_to_dead_nodes() else []

    def _kill_step(self, after: Afterwards, now: Now) -> list[Decision]:
        self._enter(Phase.ENDING)
        self._end.follow_with(after)
        self._fence.let_go_at = now.mono if self._fence.let_go_at is None else self._fence.let_go_at
        self._timers.only({Timer.KILLED_STEP: now.mono + STEP_END_WAIT_S, Timer.TELL_STEP: now.mono + TELL_STEP_S})
        return [KillStep()]

    def _fenced(self, now: Now, overdue: bool = False) -> list[Decision]:
        """Begin what follows, once nothing of the old attempt can still run beside it."""
        left = self._fence.unproven(self._attempt, self._tasks, self.settings, now.mono) if self._end.after.another_try else {}
        if math.inf in left.values():
            # Only Slurm can end a process that cannot be killed, and it restarts the job only after that.
            self._end.as_unended()
            left = {rank: at for rank, at in left.items() if at < math.inf}
        if not left:
            self._timers.stop_all()
            return self._follow(self._end.after.then, now)
        if self._fence.let_go_at is None and (overdue or left.keys() <= self._attempt.left.keys()):
            # The launcher ended, but its shims live. They would renew leases as long as one process cannot be killed; ranks that
            # are still being stopped keep their grace.
            self._fence.let_go_at = now.mono
            return [EndStep(0, forget=True), *self._fenced(now)]
        first = Timer.LEASE not in self._timers
        self._timers.keep(Timer.TELL_LEASES)
        if first:
            self._timers.set_first(Timer.TELL_LEASES, now.mono + TELL_LEASES_S)
        self._timers.set(Timer.LEASE, max(left.values()))
        return []

    def _tell_leases(self, now: Now) -> list[Decision]:
        left = self._fence.unproven(self._attempt, self._tasks, self.settings, now.mono)
        if not left:
            return []
        nodes = fold_nodes({self._tasks[rank].node for rank in left})
        wait_s = self._timers.due_at(Timer.LEASE, now.mono) - now.mono
        said = f"waiting up to {wait_s:.0f} s for the leases of the ranks on {nodes} to expire"
        return self._wait_for(f"the leases of the ranks on {nodes}", wait_s, now, said)

    def _tell_step(self, now: Now) -> list[Decision]:
        """Tell people that the step is ending. Usually it ends in less than a second, and nothing is printed."""
        wait_s = max(self._timers.due_at(Timer.STEP, 0.0), self._timers.due_at(Timer.KILLED_STEP, 0.0)) - now.mono
        return self._wait_for("Slurm to end the step", wait_s, now) if wait_s > 0 else []

    def _shim_closed(self, event: ev.ShimLost, now: Now) -> list[Decision]:
        self._attempt.close(event.rank, event.why, event.hangup)
        return self._fenced(now) if Timer.LEASE in self._timers else []

    def _stopped_while_ending(self, event: ev.RankStopped, now: Now) -> list[Decision]:
        self._attempt.stop(event)
        return self._fenced(now) if Timer.LEASE in self._timers else []

    def _silent_while_ending(self, event: ev.NodeSilent, now: Now) -> list[Decision]:
        self._fence.fall_silent([event.node], now.mono - event.silent_s)
        return self._fenced(now) if Timer.LEASE in self._timers else []

    def _step_ended(self, event: ev.StepEnded, now: Now) -> list[Decision]:
        self._timers.stop_all()
        self._attempt.step_end.end()
        if self._attempt.out_of_memory and event.status == OUT_OF_MEMORY:
            self._end.finish_with(OUT_OF_MEMORY.shell)
        return self._fenced(now)

    def _ending_signalled(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """A second Ctrl-C while the step ends: kill the step and start nothing again."""
        if event.rank is None and event.number == SIGINT and self._end.after.another_try:
            self._end.follow_with(Afterwards(ThenFinish("interrupted by Ctrl-C", 128 + event.number)))
            if Timer.LEASE in self._timers:
                return self._fenced(now)
        if self._end.after.another_try and self._announces(event.number):
            self._signal.keep(event)
            return []
        if event.rank is None and event.number in (SIGINT, SIGTERM) and Timer.STEP in self._timers:
            return self._kill_step(self._end.after, now)
        return []

    def _step_overdue(self, now: Now) -> list[Decision]:
        return self._kill_step(self._end.after, now)

    def _killed_step_overdue(self, now: Now) -> list[Decision]:
        """The launcher cannot end the step either: only Slurm's own clean-up remains."""
        self._attempt.step_end.give_up()
        self._end.as_unended()
        return self._fenced(now)

    def _lease_due(self, now: Now) -> list[Decision]:
        return self._fenced(now, overdue=True)

    def _follow(self, then: Then, now: Now) -> list[Decision]:
        """Begin what follows (implemented in judge/judge.py, since it can lead to every phase)."""
        raise NotImplementedError

    # --- ftrun ends: finished, job requeued, or without a ledger

    def _finish(self, what: str, status: int, now: Now) -> list[Decision]:
        self._enter(Phase.FINISHED)
        self._end.finish(status)
        self._timers.stop_all()
        finished = rec.Finished(now.unix, self.facts.run, status, what, self._unproven_nodes(now))
        kept = [KeepOutput()] if what in MAY_GO_ON and what != "requeued" else []  # our own requeue has kept it already
        return [*self._loans.end_all(), self._note(finished), *kept, Finish(status)]

    def _unproven_nodes(self, now: Now) -> tuple[str, ...]:
        """Nodes whose ranks are not proven ended. Only silent nodes: on the others all connections close within moments of the
        end, and the next ftrun need not wait for that.
        """
        left = self._fence.unproven(self._attempt, self._tasks, self.settings, now.mono)
        return tuple(sorted({self._tasks[rank].node for rank in left} & self._fence.silent.keys()))

    def _hand_over(self, now: Now) -> list[Decision]:
        """The step has ended and only the batch script and ftrun run: requeue the job now."""
        assert self._decided is not None
        self._enter(Phase.REQUEUEING)
        self._timers.stop_all()
        st = self.settings
        slurm = self._slurm.answer
        start = plan_start(st, slurm is not None and slurm.epilog, self.facts.clean_ups or self.history.clean_ups)
        clean_up = self._clean_up()
        self._end.clean_up()
        told: list[Decision] = []
        if clean_up is not None:
            told = self._wait_for(f"the job's own clean-up on {fold_nodes(clean_up.nodes)}", max(clean_up.wait_s, 0.0), now)
        requeue = Requeue(self._decided.id, self._decided.exclude, start, st.even_if_no_requeue, clean_up)
        return [*self._loans.end_all(), *told, *self._tell_requeue(start, now), requeue]

    def _tell_requeue(self, start: Start, now: Now) -> list[Decision]:
        """Tell people about the requeue now, because ftrun does not run while the job waits. Each message is printed once, even
        if slurmctld is away and is asked again.
        """
        assert self._decided is not None
        dead = self._decided.dead
        limit_s = self._slurm.answer.slurmd_timeout_s if self._slurm.answer is not None else 0.0
        timeout = f" (SlurmdTimeout {limit_s:g} s, up to twice that)" if limit_s else ""
        down = f"Slurm marks {fold_nodes(dead)} down{timeout}"
        what = f"its nodes to be clean, which they are at the latest when {down}" if dead else "its nodes to be clean"
        if Capability.ASK not in self.facts.can or not self._told.tell(what, shown=False):
            return []
        if dead:
            when = f"as soon as its nodes are clean, at the latest when {down}"
        else:
            soon = f"in about {start.in_s:.0f} s, if its nodes are clean by then"
            when = "as soon as its nodes are clean" if start.watch_s else soon
        number = self._attempt.number or self.history.attempts
        waits = self._note(rec.Waiting(now.unix, number, what))
        return [waits, Say(f"requeueing the job: it starts again {when}"), ShowWait(number, f"{what}, requeued")]

    def _clean_up(self) -> CleanUp | None:
        """The clean-up that the job configured: once, on our nodes where ranks ran and a step can start."""
        away = {*self._attempt.nodes.gone, *self._fence.silent, *self._places.lent}
        nodes = tuple(node for node in self._step_nodes() if node not in away)
        wanted = self.settings.cleanup and nodes and not self._end.cleaned
        return CleanUp(self.settings.cleanup, nodes, self.settings.cleanup_grace_s) if wanted else None

    def _requeue_ended(self, event: ev.RequeueEnded, now: Now) -> list[Decision]:
        assert self._decided is not None
        if event.ok:
            done = self._note(rec.CarriedOut(now.unix, self._decided.id, True, event.why))
            return [done, *self._slurm_is_back(now), *self._finish("requeued", REQUEUED_STATUS, now)]
        if event.away and (waiting := self._await_slurm(Timer.REQUEUE, "to requeue the job", event.why, now)):
            return waiting  # the decision stays open, and its budget is charged once
        done = self._note(rec.CarriedOut(now.unix, self._decided.id, False, event.why))
        what = f"{self._decided.why}; the requeue failed: {event.why}"
        return [done, Say(f"the requeue failed: {event.why}"), *self._finish(what, self._decided.status or 1, now)]

    def _ledger_failed(self, event: ev.LedgerFailed, now: Now) -> list[Decision]:
        """The ledger could not be written, and what is not recorded is not done: the job ends as if there were no ladder."""
        self._loans.all_again()
        status = self._trouble.status if self._trouble else 1
        what = f"{self._trouble.what if self._trouble else 'cannot go on'}; ftrun takes no remedy: {event.why}"
        if self.phase is Phase.FINISHED:
            return [Say(what), *self._loans.end_all(), Finish(self.exit_status)]
        return [Say(what), *self._end_step(status, Afterwards(ThenFinish(what, status)), now)]
