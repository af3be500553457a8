"""Trouble: all ranks are stopped, devices and Slurm are asked what they know, and the ladder is asked when nothing is left to
wait for. This group also handles other events that arrive meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import (
    Decision,
    LookAtDevices,
    Say,
    StopRanks,
)
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import SWAPS, Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.causes import TELL_S, Causes
from ftslurm.policies.judge.phases import ENDING_STATES, Phase
from ftslurm.policies.judge.slurm_away import GATHERS_S
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGKILL, SIGTERM
from ftslurm.policies.ladder.ladder import WILLED, Cause, choose
from ftslurm.policies.ladder.situation import Trouble

# Slurm may have killed a rank that ended so (a cancelled job), before anybody could see the signal itself.
_MAYBE_SLURM = frozenset({SIGINT, SIGKILL, SIGTERM})
# A step that does not start may have another reason.
LAUNCHES_AGAIN = 3


class Settling(Causes):
    def _into_trouble(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Record the trouble, then stop all ranks while devices and Slurm are asked what they know."""
        if self._attempt.drills:
            trouble = replace(trouble, what=f"{trouble.what} [drill: {', '.join(self._attempt.drills)}]")
        self._begin(trouble)
        self._enter(Phase.SETTLING)
        self._alone.stop()
        if trouble.cause is not Cause.DEVICE:
            self._devices.look_anew()
        self._attempt.devices.begin(self._devices.acting)
        self._attempt.closing.culprit = not all(status.ok for status in self._attempt.exits.values())
        self._attempt.closing.killed = any(status.signal in _MAYBE_SLURM for status in self._attempt.exits.values())
        if trouble.cause not in WILLED and not self._has_heard(now):
            self._slurm.forget()
        stopped_by = now.mono + self.settings.stop_grace_s + self.settings.kill_wait_s + MARGIN_S
        self._timers.only({Timer.STOP: stopped_by, Timer.TELL: now.mono + TELL_S})
        seen = rec.TroubleSeen(now.unix, self._attempt.number, trouble.cause.value, trouble.what, trouble.since)
        found: list[Decision] = [self._note(seen), self._stop_ranks(self.settings.stop_grace_s)]
        if trouble.cause in WILLED:
            return [*found, *self._settled(now)]
        found += self._watch(now)
        if self._unlooked():
            self._timers.set(Timer.LOOK, now.mono + self.settings.answer_wait_s)
            found.append(LookAtDevices())
        elif any(kinds is not None for kinds in self._agents.kinds.values()):
            found.append(LookAtDevices())  # without waiting for a device; agents also report which ranks were working
        if self._needs_slurm(trouble, now):
            found.append(self._ask_slurm(now))
        self._fence.ask_anew()
        found += self._probe(sorted(self._suspects()), now)
        if trouble.cause is Cause.LOST or choose(self._situation(trouble, now)).rung == Rung.NODE_REPLACEMENT:
            found += self._look_ahead(now)
        return [*found, *self._settled(now)]

    def _has_heard(self, now: Now) -> bool:
        """Is Slurm's last answer recent enough? Not for donor jobs: the end of one may be the trouble."""
        return (
            self._heard_lately(now) and self._slurm.answer is not None and not self._slurm.answer.error and not self._places.lent
        )

    def _suspects(self) -> set[str]:
        """Nodes that may be dead: silent nodes, and those of lost ranks, unless the ranks were lost with the step."""
        lost = () if self._attempt.step_end.gone else self._attempt.lost
        return {self._tasks[rank].node for rank in lost} - self._attempt.nodes.gone.keys() | set(self._silent_here())

    def _stop_ranks(self, grace_s: float) -> StopRanks:
        """Stop the ranks. A SIGTERM of long ago that they outlived does not count as a request to end."""
        asked = self._trouble is not None and self._trouble.cause is Cause.WARNING and SIGTERM in self._signal.by_ranks
        grace_s = 0.0 if self._signal.out_of_patience else grace_s
        return StopRanks(self._attempt.number, grace_s, self.settings.kill_wait_s, asked)

    def _needs_slurm(self, trouble: Trouble, now: Now) -> bool:
        """Is Slurm's answer needed? Not if the ladder can answer from what is known: a restart in place works while slurmctld is
        away.
        """
        if Capability.ASK not in self.facts.can or Timer.ASK in self._timers or self._slurm.answer is not None:
            return False
        if self._attempt.closing.killed or self._attempt.nodes.called_back:
            return True
        return choose(self._situation(trouble, now)).rung != Rung.IN_PLACE_RESTART

    def _unlooked(self) -> bool:
        return self._agents.may_tell(self._attempt.nodes.gone, self._attempt.devices.looked)

    def _settled(self, now: Now) -> list[Decision]:
        """Decide, once nothing is left to wait for."""
        if self.phase is not Phase.SETTLING:
            return []
        if all_stopped := self._attempt.all_stopped:
            self._timers.stop(Timer.STOP)
            self._attempt.closing.stopped_at = self._attempt.closing.stopped_at or now.unix
        if not self._unlooked():
            self._timers.stop(Timer.LOOK)
        if not all_stopped or self._timers.running - {Timer.TELL}:
            return []
        self._timers.stop_all()
        return self._decide(now)

    def _tell_settling(self, now: Now) -> list[Decision]:
        """Tell people what is waited for; usually all is known in a moment, and nothing is printed."""
        st = self.settings
        if not self._attempt.all_stopped:
            what, until = f"the ranks to end (stop.grace {st.stop_grace_s:g} s)", self._timers.due_at(Timer.STOP, now.mono)
            return self._wait_for(what, until - now.mono, now)
        word = f"an answer about {fold_nodes(self._fence.asked)}"
        asked = {
            Timer.LOOK: "the device checks",
            Timer.PROBE: word,
            Timer.ASK: "Slurm's answer about the job and its nodes",
        }
        asked |= dict.fromkeys((Timer.DIAGNOSIS, Timer.ADVICE), "the analysis of the ranks' output")
        asked[Timer.PROGRESS] = st.progress_file
        known = [(self._timers.at(wait), what) for wait, what in asked.items() if wait in self._timers]
        return self._wait_for(known[0][1], known[0][0] - now.mono, now) if known else []

    def _decide(self, now: Now) -> list[Decision]:
        trouble = self._trouble
        assert trouble is not None
        if trouble.cause is Cause.CRASH:  # others may have failed before they were stopped
            trouble = self._trouble = replace(trouble, status=self._attempt.own_status or trouble.status)
        willed = trouble.cause is Cause.REQUEST
        again = self._launch.failed and not willed and self._launch.in_vain < LAUNCHES_AGAIN
        if again and (why := self._not_launched_by_slurm(now)):
            self._launch_later(now)
            return [*self._slurm_is_back(now), Say(f"{why}; starting it again")]
        if self._slurm.answer is None or not self._slurm.answer.away:
            self._attempt.search.settle(again=self._slurm.was_away and not self._signal.number)
        ended = self._attempt_ended(now)
        self._attempt.ended_on_loan(self._tasks, self._places.lent)
        if self._slurm.answer and not self._slurm.answer.away:
            ended += self._slurm_is_back(now)
        if self._slurm.answer and self._slurm.answer.state in ENDING_STATES and not self._slurm.answer.error:
            return [*ended, *self._give_up(ENDING_STATES[self._slurm.answer.state], trouble.status, now)]
        if trouble.cause is Cause.WARNING or self._signal.open or self._signal.meaning == "interrupted":
            waiting = self._patience_with_slurm(self._warning_needs_slurm(), now)
            return [*ended, *(waiting or self._after_warning(trouble, now))]
        if willed:
            return [*ended, *self._carry_out_request(trouble, now)]
        if asked := self._ask_what_is_behind(trouble, now):
            return [*ended, *asked]
        if not self._signal.meaning and self._needs_slurm(trouble, now):
            # What was found while stopping has ruled out the rung that needed nothing from Slurm.
            return [*ended, self._ask_slurm(now)]
        if waiting := self._patience_with_slurm(self._launch.failed or self._answer_would_help(trouble, now), now):
            return [*ended, *waiting]
        self._attempt.search.settle(again=False)
        return [*ended, *self._climb(self._situation(trouble, now), now)]

    def _patience_with_slurm(self, mends: bool, now: Now) -> list[Decision]:
        """Ask Slurm again while it is away and its answer could still help."""
        if not mends or self._slurm.answer is None or not self._slurm.answer.away:
            return []
        return self._await_slurm(Timer.AWAY, "to decide what to do", self._slurm.answer.error, now)

    def _warning_needs_slurm(self) -> bool:
        return self.settings.warning_requeue and self._signal.meaning in ("warning", "") and Capability.REQUEUE in self.facts.can

    def _answer_would_help(self, trouble: Trouble, now: Now) -> bool:
        """Would the job fail only because Slurm has not answered? Or does it need another step, which Slurm alone gives?"""
        s = self._situation(trouble, now)
        if choose(s).rung in SWAPS:
            return True
        hoped = ev.SlurmAnswered("RUNNING", batch=True, requeueable=True, node_count=1)
        return choose(s).rung == Rung.FAIL and choose(replace(s, slurm=hoped)).rung != Rung.FAIL

    def _not_launched_by_slurm(self, now: Now) -> str:
        if self._signal.number:
            return ""
        if self._slurm.was_away:
            return "slurmctld was away while the step was to start"
        if self._launch.undelivered:
            return f"srun could not start the step on every node ({self._launch.undelivered})"
        return "slurmctld had just come up when the step was to start" if self._slurm.just_came_up(now) else ""

    def _launch_later(self, now: Now) -> None:
        """Launch when slurmctld has had time to learn the state of nodes and jobs."""
        self._enter(Phase.LAUNCHING)
        self._timers.only({Timer.LAUNCH_AGAIN: now.mono + GATHERS_S * max(1, self._launch.in_vain)})
        self._launch.again()

    def _ask_again(self, now: Now) -> list[Decision]:
        return [] if Timer.ASK in self._timers else [self._ask_slurm(now)]

    def _attempt_ended(self, now: Now) -> list[Decision]:
        if self._attempt.closing.written:
            return []
        self._attempt.closing.written = True
        a, program = self._attempt, self._attempt.program
        ended = rec.AttemptEnded(
            now.unix, a.number, a.summary(), program.step, program.beats, program.saved, a.closing.stopped_at
        )  # fmt: skip
        return [self._note(ended)]

    def _carry_out_request(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Carry the request out (implemented in requests)."""
        raise NotImplementedError

    # --- other events that arrive meanwhile

    def _rank_stopped(self, event: ev.RankStopped, now: Now) -> list[Decision]:
        if self._attempt.stop(event) and event.free_port and event.rank in self._tasks:  # otherwise it is too late for its launch
            self._arrive(self._tasks[event.rank].with_port(event.free_port))
        return self._settled(now)

    def _rank_exited_late(self, event: ev.RankExited, now: Now) -> list[Decision]:
        self._attempt.exited(event)
        return []

    def _unstartable_late(self, event: ev.RankUnstartable, now: Now) -> list[Decision]:
        self._attempt.could_not_start(event)
        return []

    def _shim_lost_late(self, event: ev.ShimLost, now: Now) -> list[Decision]:
        self._attempt.close(event.rank, event.why, event.hangup)
        return self._settled(now)

    def _step_ended_late(self, event: ev.StepEnded, now: Now) -> list[Decision]:
        self._attempt.lose_step(f"the step ended; its launcher {event.status}")
        return self._settled(now)

    def _slurm_answered_late(self, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
        self._take(event, now)
        return self._settled(now)

    def _stop_overdue(self, now: Now) -> list[Decision]:
        self._attempt.lose_rest("unknown whether its processes have ended")
        return self._settled(now)

    def _look_overdue(self, now: Now) -> list[Decision]:
        """The device checks took too long: devices that do not answer are unknown, neither good nor to blame."""
        self._attempt.devices.look(self._agents.kinds)
        self._agents.wait_no_more()
        return self._settled(now)
