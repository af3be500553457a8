"""Ranks that exit, cannot be started or are lost, alone or with the step. In an async job a failed rank may start again while the
others run.
"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say, ShowCard, StopRanks
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.text import counted
from ftslurm.model.timers import Timer
from ftslurm.model.verdict import Verdict, unknown
from ftslurm.policies.judge.causes import DIAGNOSIS_S, TOOK_TOO_LONG
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.signals import Signals
from ftslurm.policies.judge.state import MARGIN_S
from ftslurm.policies.judge.then import Afterwards, ThenFinish
from ftslurm.policies.ladder.ladder import Cause, choose
from ftslurm.policies.ladder.situation import Trouble


class Ranks(Signals):
    def _rank_exited(self, event: ev.RankExited, now: Now) -> list[Decision]:
        if not self._attempt.exited(event):
            return []
        if self._signal.number and self._explained(now):
            return self._rank_ended_after_signal(now)
        if not event.status.ok:
            what = f"rank {event.rank} on {self._tasks[event.rank].node} {event.status}"
            return self._rank_failed(event.rank, Trouble(Cause.CRASH, what, event.status.shell, event.at), now)
        if not self._attempt.all_ended or self._alone.busy:
            if self.settings.hang_exit and self.settings.mode == "sync" and self._hangs.rank_ended(now.mono):
                self._await_last_end(now)
            return []
        return self._ended_well(now)

    def _ended_well(self, now: Now) -> list[Decision]:
        ended = self._note(rec.AttemptEnded(now.unix, self._attempt.number, self._attempt.summary(), stopped=now.unix))
        but = f", except on {fold_nodes(self._alone.failed_nodes)}" if self._alone.failed_nodes else ""
        return [ended, *self._end_step(0, Afterwards(ThenFinish(f"every rank ended with status 0{but}", 0)), now)]

    def _rank_unstartable(self, event: ev.RankUnstartable, now: Now) -> list[Decision]:
        if not self._attempt.could_not_start(event):
            return []
        what = f"rank {event.rank} on {self._tasks[event.rank].node} could not be started: {event.why}"
        return self._rank_failed(event.rank, Trouble(Cause.CRASH, what, event.status), now)

    def _shim_lost(self, event: ev.ShimLost, now: Now) -> list[Decision]:
        self._attempt.close(event.rank, event.why, event.hangup)
        what = f"the shim of rank {event.rank} on {self._tasks[event.rank].node} was lost: {event.why}"
        return self._into_trouble(Trouble(Cause.LOST, what, 1), now)

    def _step_ended_early(self, event: ev.StepEnded, now: Now) -> list[Decision]:
        """The step has ended before its ranks reported.

        This is also what `scancel JOB.0` looks like: SIGKILL for shims and ranks at once, without a SIGTERM before; srun exits
        with 137, the job runs on, and Slurm's record of the step is gone, as after any other end. Only a line on srun's stderr,
        which belongs to the user, tells it apart (`*** STEP 1.0 ON n1 CANCELLED AT ... ***` without `DUE TO`; seen on 22.05). A
        lost step must be started again, so that is the answer to both; `scancel JOB` ends the job.
        """
        what = f"the step ended while ranks were running; its launcher {event.status}"
        self._attempt.lose_step(what)
        return self._into_trouble(Trouble(Cause.LOST, what, event.status.shell or 1), now)

    # --- a rank of an async job

    def _rank_failed(self, rank: int, trouble: Trouble, now: Now) -> list[Decision]:
        """A rank failed. In an async job the others run on: stop only what this rank has left running, then start it again."""
        if self.settings.mode == "min-healthy":
            return self._node_failed(rank, trouble, now)
        if self.settings.mode != "async" or self._attempt.lost:
            return self._into_trouble(trouble, now)
        st = self.settings
        self._alone.mend(rank, trouble, now.mono + st.stop_grace_s + st.kill_wait_s + MARGIN_S)
        self._await_mending()
        seen = rec.TroubleSeen(now.unix, self._attempt.number, trouble.cause.value, trouble.what, trouble.since)
        number = self._attempt.numbers.get(rank, self._attempt.number)
        return [self._note(seen), StopRanks(number, st.stop_grace_s, st.kill_wait_s, ranks=(rank,))]

    def _node_failed(self, rank: int, trouble: Trouble, now: Now) -> list[Decision]:
        """A rank failed in a job with ft_launcher's min-healthy: the node's other ranks are stopped; those of other nodes run on
        while enough nodes are healthy.
        """
        node, nodes, st = self._tasks[rank].node, self._step_nodes(), self.settings
        if node in self._alone.failed_nodes:
            return self._ended_well(now) if self._attempt.all_ended else []
        left, least = len(nodes) - len(self._alone.failed_nodes) - 1, st.min_healthy or len(nodes)
        if left < least:
            needed = f"nodes without a failed rank: {left} of {len(nodes)}, and the job needs {least}"
            return self._into_trouble(replace(trouble, what=f"{trouble.what}; {needed}" if st.min_healthy else trouble.what), now)
        self._alone.fail_node(node, trouble.what)
        seen = self._note(rec.TroubleSeen(now.unix, self._attempt.number, trouble.cause.value, trouble.what))
        said = Say(f"{trouble.what}: the job continues on {left} of {counted(len(nodes), 'node')} (nodes.min_healthy {least})")
        others = tuple(sorted(other for other in self._ranks_on(node) if other not in self._attempt.exits))
        stop = [StopRanks(self._attempt.number, st.stop_grace_s, st.kill_wait_s, ranks=others)] if others else []
        return [seen, said, *stop, *(self._ended_well(now) if self._attempt.all_ended else [])]

    def _await_mending(self) -> None:
        self._timers.stop(Timer.MEND)
        if (due := self._alone.next_mended) is not None:
            self._timers.set(Timer.MEND, due)

    def _stopped_alone(self, event: ev.RankStopped, now: Now) -> list[Decision]:
        """All processes of the failed rank have ended: ask the ladder for this rank alone, and for all ranks if that is no
        answer.
        """
        mine = event.attempt == self._attempt.numbers.get(event.rank, self._attempt.number)
        if not self._alone.is_mended(event.rank) or not mine or not self._attempt.stop(event):
            return []
        may_ask = Capability.DIAGNOSE in self.facts.can and self._attempt.verdict is None
        if may_ask and not event.left and not (self._signal.number and self._explained(now)):
            self._alone.ask(event.rank, now.mono + DIAGNOSIS_S)
            self._await_mending()
            return [self._question(event.rank)]
        trouble = self._alone.take(event.rank)
        self._await_mending()
        if self._signal.number and self._explained(now):
            return self._rank_ended_after_signal(now)
        return self._into_trouble(trouble, now) if event.left else self._decide_alone(event.rank, trouble, now)

    def _diagnosed_while_running(self, event: ev.Diagnosed, now: Now) -> list[Decision]:
        """The cause of the end of a rank of an async job is known: the others run on."""
        if event.rank is None or not self._alone.is_asked(event.rank):
            return []
        if event.attempt != self._attempt.latest([event.rank]):
            return []
        return self._known_alone(event.rank, event.verdict, now)

    def _known_alone(self, rank: int, verdict: Verdict, now: Now) -> list[Decision]:
        """Decide on that rank, with the cause of its end."""
        trouble = self._alone.take(rank)
        self._await_mending()
        if self._signal.number and self._explained(now):
            return self._rank_ended_after_signal(now)
        return [*self._note_verdict(verdict, now, rank), *self._decide_alone(rank, trouble, now)]

    def _decide_alone(self, rank: int, trouble: Trouble, now: Now) -> list[Decision]:
        in_a_row = self._alone.in_a_row(rank, now.mono)
        situation = replace(self._situation(trouble, now), rank=rank, alone_in_a_row=in_a_row)
        choice = choose(situation)
        if choice.rung != Rung.RANK_RESTART and in_a_row >= self.settings.rank_restarts_in_a_row:
            trouble = replace(trouble, what=f"{trouble.what}; {dict(choice.passed).get(Rung.RANK_RESTART, '')}")
        if choice.rung != Rung.RANK_RESTART:
            return self._into_trouble(trouble, now)
        self._attempt.verdict = None
        decided: list[Decision] = [self._decision(choice, situation, now), ShowCard()]
        wait_s = self._alone.start(rank, now.mono)
        if not wait_s:
            return [*decided, *self._start_alone(rank, now)]
        self._await_starts()
        return [*decided, Say(f"rank {rank} starts again in {wait_s:g} s")]

    def _await_starts(self) -> None:
        if (due := self._alone.next_again) is not None:
            self._timers.set(Timer.RANK_AGAIN, due)

    def _start_ranks_again(self, now: Now) -> list[Decision]:
        """Start the ranks whose individual restart was delayed."""
        due = self._alone.take_due(now.mono)
        self._await_starts()
        if self._signal.number and self._explained(now):
            return self._rank_ended_after_signal(now) if due else []
        return [decision for rank in due for decision in self._start_alone(rank, now)]

    def _mend_overdue(self, now: Now) -> list[Decision]:
        late = self._alone.late(now.mono)
        left = [rank for rank in late if not self._alone.is_asked(rank)]
        for rank in left:
            self._attempt.lose(rank, "unknown whether its processes have ended")
        if left:
            return self._into_trouble(late[left[0]], now) if self.phase is Phase.RUNNING else []
        found: list[Decision] = []
        for rank in late:
            if self._alone.is_asked(rank):  # otherwise an earlier one has stopped all
                found += self._known_alone(rank, unknown(TOOK_TOO_LONG), now)
        return found
