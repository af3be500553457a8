"""Signals from outside: they are passed on as srun does, and Slurm is asked for their meaning. After a warning the ranks have a
grace to end by themselves; Ctrl-C and the end of the job end them.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, SignalRanks
from ftslurm.model.events import Now
from ftslurm.model.exits import signal_name
from ftslurm.model.outcome import ENDING_STATES, Outcome
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.devices import Devices
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.signal_watch import Announced, Meaning
from ftslurm.policies.judge.slurm_away import TimeLimit, time_to_save_s
from ftslurm.policies.judge.state import SIGHUP, SIGINT, SIGQUIT, SIGTERM, Run, stop_ranks
from ftslurm.policies.judge.then import Answer, Settled, ThenEnd
from ftslurm.policies.ladder.ladder import Cause
from ftslurm.policies.ladder.situation import Trouble

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
