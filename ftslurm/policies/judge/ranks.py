"""Ranks that exit or are lost, and the signals from outside that explain why, or are passed on to them."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say, ShowCard, SignalRanks, StopRanks
from ftslurm.model.events import Now
from ftslurm.model.exits import ExitStatus, of_step, signal_name
from ftslurm.model.nodes import fold_nodes as fold_nodes
from ftslurm.model.outcome import ENDING_STATES, Outcome
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.settings.kinds import ALONE
from ftslurm.model.text import counted, fold_numbers
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.model.verdict import Verdict, unknown
from ftslurm.policies.judge.causes import DIAGNOSIS_S, TOOK_TOO_LONG, Causes
from ftslurm.policies.judge.devices import Devices
from ftslurm.policies.judge.ending import TimeLimit, lose_step, time_to_save_s
from ftslurm.policies.judge.outside import Announced, Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import MARGIN_S, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, Run, record_decision, stop_ranks
from ftslurm.policies.judge.then import Answer, Settled, ThenEnd
from ftslurm.policies.ladder import Alone, Cause, choose
from ftslurm.policies.situation import Trouble

# --- Signals from outside: they are passed on as srun does, and Slurm is asked for their meaning. After a warning the ranks
# have a grace to end by themselves; Ctrl-C and the end of the job end them

# How long a signal of ftrun's own waits for Slurm's answer whether the job is ending (then the ranks get it from Slurm).
PASS_ON_WITHIN_S = 2.0
# The signals that end ft_launcher and torchrun. Source: torch.distributed.elastic, _terminate_process_handler.
_ENDING_SIGNALS = frozenset({SIGTERM, SIGINT, SIGHUP, SIGQUIT})


class Signals:
    def __init__(self, run: Run, devices: Devices, limit: TimeLimit) -> None:
        self.run, self.devices, self.limit = run, devices, limit

    def on_signal(self, event: ev.SignalSeen, now: Now) -> Answer:
        """A signal while ranks run. ftrun's own signals are passed on as srun does. Slurm is asked for the meaning of a TERM or a
        warning.
        """
        if (within_s := self._ends_ranks_within(event)) is not None:
            return self._tell_to_end(event, within_s, now)
        if event.rank is None and event.number == SIGINT:
            return self._interrupt(event, now)
        known = self.run.signal.announces(event.number)
        if not known or Capability.ASK not in self.run.facts.can:
            passed_on: list[Decision] = [SignalRanks(event.number)] if event.rank is None else []
            if not known or self.run.signal.number:
                return passed_on
            self.run.signal.take(event.number, now.mono)
            return [*passed_on, *self._act_on_meaning(None, now)]
        if event.rank is not None:
            self.run.signal.got_by_ranks(event.number)
        else:
            self.run.signal.pass_on_later(event.number, ends=event.number == SIGTERM and not event.again)
            self.run.timers.set(Timer.PASS_ON, now.mono + PASS_ON_WITHIN_S)
        if self.run.signal.number:
            return []
        self.run.signal.take(event.number, now.mono)
        return [self.run.ask_slurm(now)]

    def on_earlier_signal(self, event: ev.SignalSeen, since: float, now: Now) -> Answer:
        """A signal that came before the ranks did: it counts from then on."""
        found = self.on_signal(event, now)
        self.run.signal.take(self.run.signal.number, since)
        return found

    def _ends_ranks_within(self, event: ev.SignalSeen) -> float | None:
        """Seconds that the ranks have to end after this signal; None if it may be only a warning."""
        st = self.run.settings
        if st.stop.after_signal_s:
            return st.stop.after_signal_s if event.number in _ENDING_SIGNALS else None
        alone = self.run.facts.launcher == "local" and event.rank is None and event.number == SIGTERM
        return st.stop.grace_s if alone and not st.warning.requeue else None

    def _tell_to_end(self, event: ev.SignalSeen, within_s: float, now: Now) -> Answer:
        """Send the signal to each rank once. A rank that still runs after that time is killed, and so are all at a second signal
        to ftrun.
        """
        again = self.run.signal.meaning is Meaning.TOLD_TO_END
        if event.rank is not None:
            self.run.signal.told([event.rank])
        if again and event.rank is None:
            self.run.signal.lose_patience()
            return [self.run.warning_trouble()]
        if again:
            return []
        self.run.signal.take(event.number, now.mono)
        told = self._end_within(within_s, now)
        if self.run.attempt.all_ended:
            return [*told, self.run.warning_trouble()]
        at_once = event.rank is None or self.run.facts.launcher == "local"
        delay_s = self.run.settings.stop.signal_delay_s if at_once else PASS_ON_WITHIN_S  # Slurm usually signals all ranks
        if not delay_s:
            return [*told, *self._pass_to_the_rest()]
        self.run.signal.pass_on_later(event.number)
        self.run.timers.set(Timer.PASS_ON, now.mono + min(delay_s, within_s / 2))
        return told

    def _end_within(self, within_s: float, now: Now) -> list[Decision]:
        """The signal that was taken ends the ranks, and by then those that take no notice of it."""
        self.run.signal.means(Meaning.TOLD_TO_END)
        self.run.timers.set(Timer.WARNING, now.mono + within_s)
        return [self.run.note(rec.Signalled(now.unix, signal_name(self.run.signal.number), Meaning.TOLD_TO_END.value))]

    def _pass_to_the_rest(self) -> list[Decision]:
        rest = self.run.signal.untold(self.run.attempt.ranks - self.run.attempt.exits.keys())
        self.run.signal.told(rest)
        self.run.signal.got_by_ranks(self.run.signal.number)
        group = bool(self.run.settings.stop.after_signal_s)  # torchrun's own: SubprocessHandler.close
        return [SignalRanks(self.run.signal.number, rest, group)] if rest else []

    def is_of_lender(self, event: ev.SignalSeen) -> bool:
        """Is the signal of a donor job? Slurm's signals to a rank on a lent node are about the donor job; ours may run on."""
        task = self.run.tasks.get(event.rank) if event.rank is not None else None
        return task is not None and task.node in self.run.places.lent

    def on_lender_signal(self, event: ev.SignalSeen, now: Now) -> list[Decision]:
        """A donor job that was cancelled or preempted, or whose time is up, loses its ranks in a moment: ask Slurm at once."""
        assert event.rank is not None
        if event.number != SIGTERM or self.run.phase not in (Phase.RUNNING, Phase.SETTLING):
            return []
        self.run.attempt.nodes.call_back(self.run.tasks[event.rank].node)
        return [self.run.ask_slurm(now)] if Capability.ASK in self.run.facts.can and Timer.ASK not in self.run.timers else []

    def _end_loans(self, now: Now) -> Answer:
        """A loan has ended, though its ranks have not reported that yet."""
        if not self.run.attempt.nodes.returned:
            return []
        what = "; ".join(f"{node} is lent no more: {why}" for node, why in sorted(self.run.attempt.nodes.returned.items()))
        return [Trouble(Cause.LOST, what, 1)]

    def pass_on(self, now: Now) -> list[Decision]:
        """Pass ftrun's own signal on to the ranks, unless they got it themselves, as when Slurm signals the whole job."""
        self.run.timers.stop(Timer.PASS_ON)
        number = self.run.signal.take_to_pass_on()
        if number and self.run.signal.meaning is Meaning.TOLD_TO_END:
            return self._pass_to_the_rest()
        if not number or number in self.run.signal.by_ranks:
            return []
        self.run.signal.got_by_ranks(number)
        return [SignalRanks(number)]

    def _interrupt(self, event: ev.SignalSeen, now: Now) -> Answer:
        """A Ctrl-C ends everything (srun's own first one only reports). A second one does not wait for the grace."""
        again = self.run.signal.meaning is Meaning.INTERRUPTED
        self.run.signal.means(Meaning.INTERRUPTED)
        if self.run.phase is Phase.RUNNING:
            what, status = "interrupted by Ctrl-C", 128 + event.number
            return [Trouble(Cause.WARNING, what, status, outcome=Outcome.INTERRUPTED)]
        if self.run.phase is Phase.HEALING:
            return [ThenEnd("interrupted by Ctrl-C while devices healed", 128 + event.number, Outcome.INTERRUPTED)]
        self.run.timers.keep(Timer.STOP)  # other answers no longer matter
        return [*([stop_ranks(self.run, 0.0)] if again else []), Settled()]

    def on_signal_late(self, event: ev.SignalSeen, now: Now) -> Answer:
        """A signal while ranks are being stopped or devices heal. If it may end the job, Slurm is asked before the decision;
        otherwise it is kept for the next ranks.
        """
        if event.rank is None and event.number == SIGINT:
            return self._interrupt(event, now)
        if not self.run.signal.announces(event.number):
            return []
        if self.run.signal.number or not (event.number == SIGTERM or self.run.signal.asks_for_requeue(event.number)):
            self.run.signal.keep(event)
            return []
        self.run.signal.take(event.number, now.mono)
        if event.rank is None and Capability.ASK not in self.run.facts.can:
            self.run.signal.means(Meaning.TERMINATED)
        return [self.run.ask_slurm(now)] if Capability.ASK in self.run.facts.can and Timer.ASK not in self.run.timers else []

    def on_slurm_answered(self, event: ev.SlurmAnswered, now: Now) -> Answer:
        """Slurm's answer while ranks run: about a signal, or about a fault that only a requeue can handle."""
        self.run.take_answer(event, now)
        if loan_over := self._end_loans(now):
            return loan_over
        if self.run.signal.open:
            return self._act_on_meaning(None if event.error else ENDING_STATES.get(event.state), now)
        return [*self.limit.on_slurm_answered(event, now), *self.devices.act_on_faults(now)]

    def _act_on_meaning(self, end: Outcome | None, now: Now) -> Answer:
        """The meaning is known. After a warning the ranks end by themselves; in a job that ends they are stopped."""
        self.run.signal.means(Meaning.END if end else Meaning.WARNING)
        if not end and self.run.slurm.preempted:
            self.run.signal.warn(Announced.PREEMPTION)
        goes_on = self.run.signal.goes_on(self.run.slurm.requeues_preempted)
        if not (end or goes_on or self.run.attempt.all_ended) and self.run.signal.ends_ftrun:
            told = self._end_within(self.run.settings.stop.grace_s, now)
            return [*told, *self._pass_to_the_rest()]
        words = end.words if end else self.run.signal.announced.value
        note = self.run.note(rec.Signalled(now.unix, signal_name(self.run.signal.number), words))
        if end:
            trouble = Trouble(Cause.WARNING, end.words, 128 + self.run.signal.number, outcome=end)
            return [note, trouble]
        if self.run.attempt.all_ended:
            return [note, self.run.warning_trouble()]
        note_and_signal: list[Decision] = [note, *self.pass_on(now)]
        if goes_on or self.run.attempt.exits:
            self.run.timers.set(Timer.WARNING, now.mono + self._warning_grace_s(now))
        return note_and_signal

    def on_rank_ended(self, now: Now) -> Answer:
        """A rank ended after the signal: the first starts the grace of the others, the last ends the attempt."""
        if self.run.attempt.all_ended and self.run.signal.meaning is not None:
            return [self.run.warning_trouble()]
        self.run.timers.set_first(Timer.WARNING, now.mono + self._warning_grace_s(now))
        return []

    def _warning_grace_s(self, now: Now) -> float:
        """Seconds of grace after a warning: at most what Slurm leaves, minus the time to stop and requeue."""
        end = self.run.slurm.end_time
        if end and self.run.signal.announced is not Announced.SOMETHING:
            return time_to_save_s(end - now.unix)
        left = end - now.unix - 5.0 if end else self.run.settings.warning.grace_s
        return max(1.0, min(self.run.settings.warning.grace_s, left))

    def on_warning_overdue(self, now: Now) -> Answer:
        all_their_time = self.run.signal.announced is not Announced.SOMETHING
        self.run.signal.lose_patience(all_their_time or self.run.signal.meaning is Meaning.TOLD_TO_END)
        return [self.run.warning_trouble()]


# --- Ranks that exit, cannot be started or are lost, alone or with the step. In an async job a failed rank may start again
# while the others run

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
        return [self._note_end(now), Say(what), ThenEnd(what, status)]

    def _end_of_all(self, now: Now) -> Answer:
        """Every rank has ended by itself. Where a device or node is behind the end of one, the ladder is asked now; else the
        status is srun's."""
        if not self.run.alone.given_up:
            return self._end_well(now)
        for trouble in self.run.alone.given_up.values():
            if self.run.situation(trouble, now).cause not in _OF_THE_RANK:
                return [trouble]
        status = of_step(self.run.attempt.exits.values()).shell
        self.run.attempt.closing.culprit = True  # its own shim ends with that status, the others with 0
        ranks = counted(len(self.run.alone.given_up), "rank")
        what = f"{ranks} failed, and every other ended with status 0"
        return [self._note_end(now), ThenEnd(what, status)]

    def _end_well(self, now: Now) -> Answer:
        but = f", except on {fold_nodes(self.run.alone.failed_nodes)}" if self.run.alone.failed_nodes else ""
        end = ThenEnd(f"every rank ended with status 0{but}", 0)
        return [self._note_end(now), *self.causes.weigh_experiment(True, now), end]

    def _note_end(self, now: Now) -> Decision:
        attempt = self.run.attempt
        return self.run.note(rec.AttemptEnded(now.unix, attempt.number, attempt.summary(), stopped=now.unix))

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
