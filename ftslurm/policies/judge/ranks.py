"""Ranks that exit, cannot be started or are lost, alone or with the step. In an async job a failed rank may start again while the
others run.
"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say, ShowCard, StopRanks
from ftslurm.model.events import Now
from ftslurm.model.exits import ExitStatus, of_step
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.settings.kinds import ALONE
from ftslurm.model.text import counted, fold_numbers
from ftslurm.model.timers import Timer
from ftslurm.model.verdict import Verdict, unknown
from ftslurm.policies.judge.causes import DIAGNOSIS_S, TOOK_TOO_LONG, Causes
from ftslurm.policies.judge.ending import lose_step
from ftslurm.policies.judge.launch.starting import Starting
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.signals import Signals
from ftslurm.policies.judge.state import MARGIN_S, SIGKILL, Run, record_decision
from ftslurm.policies.judge.then import Answer, ThenEnd
from ftslurm.policies.ladder.ladder import Alone, Cause, choose
from ftslurm.policies.ladder.situation import Trouble

# Causes of an end that lie in the program of that rank alone.
_OF_THE_RANK = frozenset({Cause.CRASH, Cause.UNSTARTABLE})


class Ranks:
    def __init__(self, run: Run, starting: Starting, causes: Causes, signals: Signals) -> None:
        self.run, self.starting, self.causes, self.signals = run, starting, causes, signals

    def on_rank_exited(self, event: ev.RankExited, now: Now) -> Answer:
        if not self.run.attempt.exited(event):
            return []
        if self.run.signal.number and self.run.signal_explains(now):
            return self.signals.on_rank_ended(now)
        if not event.status.ok:
            what = f"rank {event.rank} on {self.run.tasks[event.rank].node} {event.status}"
            return self.fail_rank(event.rank, Trouble(Cause.CRASH, what, event.status.shell, event.at), now)
        if not self.run.attempt.all_ended or self.run.alone.busy:
            if self.run.settings.hang.exit_detection and self.run.settings.mode == "sync" and self.run.hangs.rank_ended(now.mono):
                self.run.await_last_end(now)
            self._give_others_time(now)
            return []
        return self._end_of_all(now)

    def _give_others_time(self, now: Now) -> None:
        if self.run.facts.process.wait_s:
            self.run.timers.set_first(Timer.OTHERS_END, now.mono + self.run.facts.process.wait_s)

    def end_others(self, now: Now) -> Answer:
        """The user has said how long ranks may outlive the first (srun --wait): no fault, and no remedy. Ranks that are killed so
        make srun's status 137.
        """
        left = sorted(self.run.attempt.ranks - self.run.attempt.exits.keys() - self.run.alone.given_up.keys())
        status = of_step([*self.run.attempt.exits.values(), *(ExitStatus(0, SIGKILL) for _ in left)]).shell
        what = f"ranks {fold_numbers(left)} still ran {self.run.facts.process.wait_s:g} s after the first had ended (--wait)"
        ended = self.run.note(rec.AttemptEnded(now.unix, self.run.attempt.number, self.run.attempt.summary(), stopped=now.unix))
        return [ended, Say(what), ThenEnd(what, status)]

    def _end_of_all(self, now: Now) -> Answer:
        """Every rank has ended by itself. Where a device or node is behind the end of one, the ladder is asked now; else the
        status is srun's."""
        if not self.run.alone.given_up:
            return self._end_well(now)
        for trouble in self.run.alone.given_up.values():
            if self.run.situation(trouble, now).cause not in _OF_THE_RANK:
                return [trouble]
        status = of_step(self.run.attempt.exits.values()).shell
        ended = self.run.note(rec.AttemptEnded(now.unix, self.run.attempt.number, self.run.attempt.summary(), stopped=now.unix))
        self.run.attempt.closing.culprit = True  # its own shim ends with that status, the others with 0
        ranks = counted(len(self.run.alone.given_up), "rank")
        what = f"{ranks} failed, and every other ended with status 0"
        return [ended, ThenEnd(what, status)]

    def _end_well(self, now: Now) -> Answer:
        ended = self.run.note(rec.AttemptEnded(now.unix, self.run.attempt.number, self.run.attempt.summary(), stopped=now.unix))
        but = f", except on {fold_nodes(self.run.alone.failed_nodes)}" if self.run.alone.failed_nodes else ""
        return [
            ended,
            *self.causes.weigh_experiment(True, now),
            ThenEnd(f"every rank ended with status 0{but}", 0),
        ]

    def on_rank_unstartable(self, event: ev.RankUnstartable, now: Now) -> Answer:
        if not self.run.attempt.could_not_start(event):
            return []
        what = f"rank {event.rank} on {self.run.tasks[event.rank].node} could not be started: {event.why}"
        return self.fail_rank(event.rank, Trouble(Cause.CRASH, what, event.status), now)

    def on_shim_lost(self, event: ev.ShimLost, now: Now) -> Answer:
        self.run.attempt.close(event.rank, event.why, event.hangup)
        what = f"the shim of rank {event.rank} on {self.run.tasks[event.rank].node} was lost: {event.why}"
        return [Trouble(Cause.LOST, what, 1)]

    def on_step_ended(self, event: ev.StepEnded, now: Now) -> Answer:
        """The step has ended before its ranks reported.

        This is also what `scancel JOB.0` looks like: SIGKILL for shims and ranks at once, without a SIGTERM before; srun exits
        with 137, the job runs on, and Slurm's record of the step is gone, as after any other end. Only a line on srun's stderr
        tells it apart (`*** STEP 1.0 ON n1 CANCELLED AT ... ***` without `DUE TO`; seen on 22.05 and 26.05): a step that a person
        has cancelled ends for good. Where stderr is no file, the line cannot be read, and a lost step is started again.
        """
        what = f"the step ended while ranks were running; its launcher {event.status}"
        lose_step(self.run, event, what)
        return [Trouble(Cause.LOST, what, event.status.shell or 1)]

    # --- a rank of an async job

    def fail_rank(self, rank: int, trouble: Trouble, now: Now) -> Answer:
        """A rank failed. In an async job the others run on: stop only what this rank has left running, then start it again."""
        if self.run.settings.mode == "min-healthy":
            return self._fail_node(rank, trouble, now)
        if self.run.settings.mode not in ALONE or self.run.attempt.lost:
            return [trouble]
        st = self.run.settings
        self.run.alone.mend(rank, trouble, now.mono + st.stop.grace_s + st.stop.kill_wait_s + MARGIN_S)
        self._await_mending()
        seen = rec.TroubleSeen(now.unix, self.run.attempt.number, trouble.cause.value, trouble.what, trouble.since)
        number = self.run.attempt.numbers.get(rank, self.run.attempt.number)
        return [self.run.note(seen), StopRanks(number, st.stop.grace_s, st.stop.kill_wait_s, ranks=(rank,))]

    def _fail_node(self, rank: int, trouble: Trouble, now: Now) -> Answer:
        """A rank failed in a job with ft_launcher's min-healthy: the node's other ranks are stopped; those of other nodes run on
        while enough nodes are healthy.
        """
        node, nodes, st = self.run.tasks[rank].node, self.run.step_nodes(), self.run.settings
        if node in self.run.alone.failed_nodes:
            return self._end_well(now) if self.run.attempt.all_ended else []
        left, least = len(nodes) - len(self.run.alone.failed_nodes) - 1, st.nodes.min_healthy or len(nodes)
        if left < least:
            needed = f"nodes without a failed rank: {left} of {len(nodes)}, and the job needs {least}"
            return [replace(trouble, what=f"{trouble.what}; {needed}" if st.nodes.min_healthy else trouble.what)]
        self.run.alone.fail_node(node, trouble.what)
        seen = self.run.note(rec.TroubleSeen(now.unix, self.run.attempt.number, trouble.cause.value, trouble.what))
        said = Say(f"{trouble.what}: the job continues on {left} of {counted(len(nodes), 'node')} (nodes.min_healthy {least})")
        others = tuple(sorted(other for other in self.run.ranks_on(node) if other not in self.run.attempt.exits))
        stop = [StopRanks(self.run.attempt.number, st.stop.grace_s, st.stop.kill_wait_s, ranks=others)] if others else []
        return [seen, said, *stop, *(self._end_well(now) if self.run.attempt.all_ended else [])]

    def _await_mending(self) -> None:
        self.run.timers.stop(Timer.MEND)
        if (due := self.run.alone.next_mended) is not None:
            self.run.timers.set(Timer.MEND, due)

    def on_rank_stopped(self, event: ev.RankStopped, now: Now) -> Answer:
        """All processes of the failed rank have ended: ask the ladder for this rank alone, and for all ranks if that is no
        answer.
        """
        mine = event.attempt == self.run.attempt.numbers.get(event.rank, self.run.attempt.number)
        if not self.run.alone.is_mended(event.rank) or not mine or not self.run.attempt.stop(event):
            return []
        may_ask = Capability.DIAGNOSE in self.run.facts.can and self.run.attempt.verdict is None
        if may_ask and not event.left and not (self.run.signal.number and self.run.signal_explains(now)):
            self.run.alone.ask(event.rank, now.mono + DIAGNOSIS_S)
            self._await_mending()
            return [self.causes.question(event.rank)]
        trouble = self.run.alone.take(event.rank)
        self._await_mending()
        if self.run.signal.number and self.run.signal_explains(now):
            return self.signals.on_rank_ended(now)
        return [trouble] if event.left else self._decide_alone(event.rank, trouble, now)

    def on_diagnosed(self, event: ev.Diagnosed, now: Now) -> Answer:
        """The cause of the end of a rank of an async job is known: the others run on."""
        if event.rank is None or not self.run.alone.is_asked(event.rank):
            return []
        if event.attempt != self.run.attempt.latest([event.rank]):
            return []
        return self._decide_with_cause(event.rank, event.verdict, now)

    def _decide_with_cause(self, rank: int, verdict: Verdict, now: Now) -> Answer:
        """Decide on that rank, with the cause of its end."""
        trouble = self.run.alone.take(rank)
        self._await_mending()
        if self.run.signal.number and self.run.signal_explains(now):
            return self.signals.on_rank_ended(now)
        return [*self.causes.note_verdict(verdict, now, rank), *self._decide_alone(rank, trouble, now)]

    def _decide_alone(self, rank: int, trouble: Trouble, now: Now) -> Answer:
        independent = self.run.settings.mode == "independent"
        in_a_row = self.run.alone.times(rank) if independent else self.run.alone.in_a_row(rank, now.mono)
        situation = replace(self.run.situation(trouble, now), alone=Alone(rank, in_a_row))
        choice = choose(situation)
        if choice.rung != Rung.RANK_RESTART and independent:
            return self._give_up(rank, trouble, dict(choice.passed).get(Rung.RANK_RESTART, ""), now)
        if choice.rung != Rung.RANK_RESTART and in_a_row >= self.run.settings.rank_restart.in_a_row:
            trouble = replace(trouble, what=f"{trouble.what}; {dict(choice.passed).get(Rung.RANK_RESTART, '')}")
        if choice.rung != Rung.RANK_RESTART:
            return [trouble]
        self.run.attempt.verdict = None
        decided: list[Decision] = [record_decision(self.run, choice, situation, now), ShowCard()]
        wait_s = self.run.alone.start(rank, now.mono)
        if not wait_s:
            return [*decided, *self.starting.start_alone(rank, now)]
        self._await_starts()
        return [*decided, Say(f"rank {rank} starts again in {wait_s:g} s")]

    def _give_up(self, rank: int, trouble: Trouble, why: str, now: Now) -> Answer:
        """The rank does not start again; the others run on."""
        self.run.alone.given_up[rank] = trouble
        self.run.attempt.verdict = None
        said = Say(f"{trouble.what}; it does not start again ({why}), and the other ranks run on (mode independent)")
        over = self.run.attempt.all_ended and not self.run.alone.busy
        self._give_others_time(now)
        return [said, *(self._end_of_all(now) if over else [])]

    def _await_starts(self) -> None:
        if (due := self.run.alone.next_again) is not None:
            self.run.timers.set(Timer.RANK_AGAIN, due)

    def start_again(self, now: Now) -> Answer:
        """Start the ranks whose individual restart was delayed."""
        due = self.run.alone.take_due(now.mono)
        self._await_starts()
        if self.run.signal.number and self.run.signal_explains(now):
            return self.signals.on_rank_ended(now) if due else []
        return [decision for rank in due for decision in self.starting.start_alone(rank, now)]

    def on_mend_overdue(self, now: Now) -> Answer:
        late = self.run.alone.late(now.mono)
        left = [rank for rank in late if not self.run.alone.is_asked(rank)]
        for rank in left:
            self.run.attempt.lose(rank, "unknown whether its processes have ended")
        if left:
            return [late[left[0]]] if self.run.phase is Phase.RUNNING else []
        # If an earlier one stops all, nobody waits for the others any more.
        return [ev.Diagnosed(self.run.attempt.latest([rank]), unknown(TOOK_TOO_LONG), rank) for rank in late]
