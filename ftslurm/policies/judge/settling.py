"""Trouble: all ranks are stopped, devices and Slurm are asked what they know, and the ladder is asked when nothing is left to
wait for. This group also handles other events that arrive meanwhile.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, LookAtDevices, Say
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold_nodes as fold_nodes
from ftslurm.model.outcome import ENDING_STATES
from ftslurm.model.rungs import SWAPS, Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge.causes import TELL_S, Causes
from ftslurm.policies.judge.ending import CANCELLED, GATHERS_S, SlurmAway, lose_step
from ftslurm.policies.judge.outside import Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGKILL, SIGTERM, Run, drills_behind, stop_ranks
from ftslurm.policies.judge.step import LAUNCHES_AGAIN
from ftslurm.policies.judge.then import Answer, ThenAfterWarning, ThenEnd, ThenFulfil, ThenRemedy
from ftslurm.policies.ladder import WILLED, Cause, Choice, Situation, choose, is_answer
from ftslurm.policies.situation import Trouble

# Slurm may have killed a rank that ended so (a cancelled job), before anybody could see the signal itself.
_MAYBE_SLURM = frozenset({SIGINT, SIGKILL, SIGTERM})
# Rungs of which it counts how many nodes fit the job without those that are to blame.
_MAY_NOT_FIT = frozenset({Rung.ISOLATED_REQUEUE, Rung.FAIL})


class Settling:
    def __init__(self, run: Run, slurm_away: SlurmAway, causes: Causes) -> None:
        self.run, self.slurm_away, self.causes = run, slurm_away, causes

    def begin_trouble(self, trouble: Trouble, now: Now) -> Answer:
        """Record the trouble, then stop all ranks while devices and Slurm are asked what they know."""
        if drilled := drills_behind(self.run, trouble.cause is Cause.HANG):
            trouble = replace(trouble, what=f"{trouble.what} [drill: {', '.join(drilled)}]")
        self.run.set_trouble(trouble)
        self.run.enter(Phase.SETTLING)
        self.run.alone.stop()
        if trouble.cause is not Cause.DEVICE:
            self.run.devices.look_anew()
        self.run.attempt.devices.begin(self.run.devices.acting)
        self.run.attempt.closing.culprit = not all(status.ok for status in self.run.attempt.exits.values())
        self.run.attempt.closing.killed = any(status.signal in _MAYBE_SLURM for status in self.run.attempt.exits.values())
        if trouble.cause not in WILLED and not self._has_heard(now):
            self.run.slurm.forget()
        stopped_by = now.mono + self.run.settings.stop.grace_s + self.run.settings.stop.kill_wait_s + MARGIN_S
        self.run.timers.only({Timer.STOP: stopped_by, Timer.TELL: now.mono + TELL_S})
        seen = rec.TroubleSeen(now.unix, self.run.attempt.number, trouble.cause.value, trouble.what, trouble.since)
        found: list[Decision] = [self.run.note(seen), stop_ranks(self.run, self.run.settings.stop.grace_s)]
        if trouble.cause in WILLED:
            return [*found, *self._ask_who_requeued(trouble, now), *self.settle(now)]
        found += self.run.watch(now)
        if self._unlooked():
            self.run.timers.set(Timer.LOOK, now.mono + self.run.settings.devices.answer_wait_s)
            found.append(LookAtDevices())
        elif any(kinds is not None for kinds in self.run.agents.kinds.values()):
            found.append(LookAtDevices())  # without waiting for a device; agents also report which ranks were working
        likely = choose(self.run.situation(trouble, now)).rung
        if self._needs_slurm(likely):
            found.append(self.run.ask_slurm(now))
        self.run.fence.ask_anew()
        found += self.run.probe(sorted(self._suspects()), now)
        if trouble.cause is Cause.LOST or likely == Rung.NODE_REPLACEMENT:
            found += self.run.look_ahead(now)
        return [*found, *self.settle(now)]

    def _has_heard(self, now: Now) -> bool:
        """Is Slurm's last answer recent enough? Not for donor jobs: the end of one may be the trouble."""
        return (
            self.run.heard_lately(now)
            and self.run.slurm.answer is not None
            and not self.run.slurm.answer.error
            and not self.run.places.lent
        )

    def _suspects(self) -> set[str]:
        """Nodes that may be dead: silent nodes, and those of lost ranks, unless the ranks were lost with the step."""
        lost = () if self.run.attempt.step_end.gone else self.run.attempt.lost
        return {self.run.tasks[rank].node for rank in lost} - self.run.attempt.nodes.gone.keys() | set(self.run.silent_nodes())

    def _needs_slurm(self, likely: Rung) -> bool:
        """Is Slurm's answer needed? Not for a restart in place, which works while slurmctld is away. likely: the rung that what
        is known leads to.
        """
        if Capability.ASK not in self.run.facts.can or Timer.ASK in self.run.timers or self.run.slurm.answer is not None:
            return False
        return self.run.attempt.closing.killed or bool(self.run.attempt.nodes.called_back) or likely != Rung.IN_PLACE_RESTART

    def _ask_who_requeued(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Ranks that were warned may have requeued the job themselves since Slurm was asked (submitit, Lightning)."""
        needed = trouble.cause is Cause.WARNING and self._warning_needs_slurm() and Capability.ASK in self.run.facts.can
        return [self.run.ask_slurm(now)] if needed and self.run.slurm.at < now.mono else []

    def _unlooked(self) -> bool:
        return self.run.agents.may_tell(self.run.attempt.nodes.gone, self.run.attempt.devices.looked)

    def settle(self, now: Now) -> Answer:
        """Decide, once nothing is left to wait for."""
        if self.run.phase is not Phase.SETTLING:
            return []
        if all_stopped := self.run.attempt.all_stopped:
            self.run.timers.stop(Timer.STOP)
            self.run.attempt.closing.stopped_at = self.run.attempt.closing.stopped_at or now.unix
        if Timer.LOOK in self.run.timers and not self._unlooked():
            self.run.timers.stop(Timer.LOOK)
        if not all_stopped or self.run.timers.running - {Timer.TELL}:
            return []
        self.run.timers.stop_all()
        return self.decide(now)

    def decide_again(self, now: Now) -> Answer:
        self.run.enter(Phase.SETTLING)
        self.run.timers.stop_all()
        return self.settle(now)

    def tell_wait(self, now: Now) -> list[Decision]:
        """Tell people what is waited for; usually all is known in a moment, and nothing is printed."""
        st = self.run.settings
        if not self.run.attempt.all_stopped:
            what, until = f"the ranks to end (stop.grace {st.stop.grace_s:g} s)", self.run.timers.due_at(Timer.STOP, now.mono)
            return self.run.wait_for(what, until - now.mono, now)
        word = f"an answer about {fold_nodes(self.run.fence.asked)}"
        asked = {
            Timer.LOOK: "the device checks",
            Timer.PROBE: word,
            Timer.ASK: "Slurm's answer about the job and its nodes",
        }
        asked |= dict.fromkeys((Timer.DIAGNOSIS, Timer.ADVICE), "the analysis of the ranks' output")
        asked[Timer.PROGRESS] = st.progress.file
        known = [(self.run.timers.at(wait), what) for wait, what in asked.items() if wait in self.run.timers]
        return self.run.wait_for(known[0][1], known[0][0] - now.mono, now) if known else []

    def decide(self, now: Now) -> Answer:
        trouble = self.run.trouble
        assert trouble is not None
        if trouble.cause is Cause.CRASH:  # others may have failed before they were stopped
            trouble = replace(trouble, status=self.run.attempt.own_status or trouble.status)
            self.run.set_trouble(trouble)
        willed = trouble.cause is Cause.REQUEST
        again = self.run.launch.failed and not willed and self.run.launch.in_vain < LAUNCHES_AGAIN
        if again and (why := self._not_launched_by_slurm(now)):
            self._launch_later(now)
            return [*self.slurm_away.note_return(now), Say(f"{why}; starting it again")]
        if self.run.slurm.answer is None or not self.run.slurm.answer.away:
            self.run.attempt.search.settle(again=self.run.slurm.was_away and not self.run.signal.number)
        ended = self._note_end_of_attempt(now)
        self.run.attempt.ended_on_loan(self.run.tasks, self.run.places.lent)
        if self.run.slurm.answer and not self.run.slurm.answer.away:
            ended += self.slurm_away.note_return(now)
        if self.run.slurm.answer and self.run.slurm.answer.state in ENDING_STATES and not self.run.slurm.answer.error:
            outcome = ENDING_STATES[self.run.slurm.answer.state]
            return [*ended, ThenEnd(outcome.words, trouble.status, outcome)]
        if status := self.run.attempt.step_end.cancelled:
            return [*ended, ThenEnd(CANCELLED, status)]
        if trouble.cause is Cause.WARNING or self.run.signal.open or self.run.signal.meaning is Meaning.INTERRUPTED:
            waiting = self._patience_with_slurm(self._warning_needs_slurm(), now)
            return [*ended, *waiting] if waiting else [*ended, ThenAfterWarning(trouble)]
        if willed:
            return [*ended, ThenFulfil(trouble)]
        return [*ended, *self._ask_ladder(trouble, now)]

    def _ask_ladder(self, trouble: Trouble, now: Now) -> Answer:
        """Ask the ladder, once what it looks at is known: what is behind the trouble, and what Slurm knows, where that counts."""
        s = self.run.situation(trouble, now)
        if is_answer(s):
            return self._return_answer(s)
        if asked := self.causes.ask_what_is_behind(trouble, now):
            return asked
        choice = choose(s)
        if self.run.signal.meaning is None and self._needs_slurm(choice.rung):
            # What was found while stopping has ruled out the rung that needed nothing from Slurm.
            return [self.run.ask_slurm(now)]
        if s.slurm is not None and s.slurm.away:
            if waiting := self._patience_with_slurm(self.run.launch.failed or _answer_would_help(s, choice), now):
                return waiting
            self.run.attempt.search.settle(again=False)
            s = self.run.situation(trouble, now)
            choice = choose(s)
        return [self.run.ask_slurm(now)] if _fit_is_unasked(s, choice) else [ThenRemedy(choice, s)]

    def _return_answer(self, s: Situation) -> Answer:
        """The script wants to know the status, so nothing is done but to return it; said once, however often it asks."""
        first = self.run.history.slots.starts.get((self.run.facts.schedule, self.run.facts.step_key), 0) <= 1
        said = [Say(f"the status {s.status} is returned: {s.wish.call.words}")] if first else []
        return [*said, ThenEnd(s.what, s.status)]

    def _patience_with_slurm(self, mends: bool, now: Now) -> list[Decision]:
        """Ask Slurm again while it is away and its answer could still help."""
        if not mends or self.run.slurm.answer is None or not self.run.slurm.answer.away:
            return []
        return self.slurm_away.await_slurm(Timer.AWAY, "to decide what to do", self.run.slurm.answer.error, now)

    def _warning_needs_slurm(self) -> bool:
        return (
            self.run.signal.goes_on(self.run.slurm.requeues_preempted)
            and self.run.signal.meaning in (Meaning.WARNING, None)
            and Capability.REQUEUE in self.run.facts.can
        )

    def _not_launched_by_slurm(self, now: Now) -> str:
        if self.run.signal.number:
            return ""
        if self.run.slurm.was_away:
            return "slurmctld was away while the step was to start"
        if self.run.launch.undelivered:
            return f"srun could not start the step on every node ({self.run.launch.undelivered})"
        return "slurmctld had just come up when the step was to start" if self.run.slurm.just_came_up(now) else ""

    def _launch_later(self, now: Now) -> None:
        """Launch when slurmctld has had time to learn the state of nodes and jobs."""
        self.run.enter(Phase.LAUNCHING)
        self.run.timers.only({Timer.LAUNCH_AGAIN: now.mono + GATHERS_S * max(1, self.run.launch.in_vain)})
        self.run.launch.again()

    def ask_slurm_again(self, now: Now) -> list[Decision]:
        return [] if Timer.ASK in self.run.timers else [self.run.ask_slurm(now)]

    def _note_end_of_attempt(self, now: Now) -> list[Decision]:
        if self.run.attempt.closing.written:
            return []
        self.run.attempt.closing.written = True
        a, program = self.run.attempt, self.run.attempt.program
        ended = rec.AttemptEnded(
            now.unix, a.number, a.summary(), program.step, program.beats, program.saved, a.closing.stopped_at,
            a.closing.saves_told(),
        )  # fmt: skip
        begun = self.run.history.crashes.experiment
        noted: list[Decision] = [self.run.note(ended)]
        further = begun is not None and self.run.history.progress.made_at > begun.at
        return [*noted, *self.causes.weigh_experiment(True, now)] if further else noted

    # --- other events that arrive meanwhile

    def on_rank_stopped(self, event: ev.RankStopped, now: Now) -> Answer:
        if (
            self.run.attempt.stop(event) and event.free_port and event.rank in self.run.tasks
        ):  # otherwise it is too late for its launch
            self.run.arrive(self.run.tasks[event.rank].with_port(event.free_port))
        return self.settle(now)

    def on_rank_exited(self, event: ev.RankExited, now: Now) -> list[Decision]:
        self.run.attempt.exited(event)
        return []

    def on_rank_unstartable(self, event: ev.RankUnstartable, now: Now) -> list[Decision]:
        self.run.attempt.could_not_start(event)
        return []

    def on_shim_lost(self, event: ev.ShimLost, now: Now) -> Answer:
        self.run.attempt.close(event.rank, event.why, event.hangup)
        return self.settle(now)

    def on_step_ended(self, event: ev.StepEnded, now: Now) -> Answer:
        lose_step(self.run, event, f"the step ended; its launcher {event.status}")
        return self.settle(now)

    def on_slurm_answered(self, event: ev.SlurmAnswered, now: Now) -> Answer:
        self.run.take_answer(event, now)
        return self.settle(now)

    def on_stop_overdue(self, now: Now) -> Answer:
        self.run.attempt.lose_rest("unknown whether its processes have ended")
        return self.settle(now)

    def on_look_overdue(self, now: Now) -> Answer:
        """The device checks took too long: devices that do not answer are unknown, neither good nor to blame."""
        self.run.attempt.devices.look(self.run.agents.kinds)
        self.run.agents.wait_no_more()
        return self.settle(now)


def _answer_would_help(s: Situation, choice: Choice) -> bool:
    """Would the job fail only because Slurm has not answered? Or does it need another step, which Slurm alone gives?"""
    hoped = ev.SlurmAnswered("RUNNING", batch=True, requeueable=True, node_count=1)
    return choice.rung in SWAPS or (choice.rung == Rung.FAIL and choose(replace(s, slurm=hoped)).rung != Rung.FAIL)


def _fit_is_unasked(s: Situation, choice: Choice) -> bool:
    """Has Slurm told whether the job fits without other nodes than those that it would now be kept off?"""
    told = s.slurm.without if s.slurm and not s.slurm.error else None
    return told is not None and bool(s.blamed) and told != s.kept_out.keys() and choice.rung in _MAY_NOT_FIT
