"""Trouble: all ranks are stopped, devices and Slurm are asked what they know, and the ladder is asked once there is nothing
left to wait for. What is behind the trouble is told here, and what else comes in meanwhile is taken in.
"""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import (
    Advise,
    Decision,
    Diagnose,
    LookAtDevices,
    ReadIteration,
    Say,
    ShowCard,
    StopRanks,
    TellOthers,
)
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import SWAPS, Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.model.verdict import Blame, RankEnd, Verdict, unknown
from ftslurm.policies.diagnose.blame import without_own_view
from ftslurm.policies.diagnose.contrast import Contrast, contrast, shown_by, with_contrast
from ftslurm.policies.diagnose.spread import BEGUN_S, still_on_most
from ftslurm.policies.judge.phases import ENDING_STATES, Phase
from ftslurm.policies.judge.rungs import Rungs
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGKILL, SIGTERM
from ftslurm.policies.ladder.ladder import WILLED, Cause, choose
from ftslurm.policies.ladder.situation import Trouble, acting, bad_nodes

# A rank killed so may have been killed by Slurm (a cancelled job), before anybody could see the signal itself.
_MAYBE_SLURM = frozenset({SIGINT, SIGKILL, SIGTERM})
# An answer that took so long was one of a slurmctld that had been away; srun gives up after about ten seconds.
AWAY_S = 3.0
# From the trouble to the word on what is waited for, where it is not settled by then.
TELL_S = 3.0
# What is behind a failure is known within a second or two, of a hundred megabytes of output; what takes longer is not waited for.
DIAGNOSIS_S = 60.0
# For progress.file to be read: a file system that hangs holds nobody up.
PROGRESS_S = 10.0
TOOK_TOO_LONG = f"the diagnosis did not end within {DIAGNOSIS_S:g} s"
# Between nodes whose clocks are kept.
CLOCKS_DIFFER_S = 1.0
# Of the ranks that show an error so many go into the ledger.
SHOWN_MAX = 64
# A step that does not come up may have another reason.
LAUNCHES_AGAIN = 3
# A slurmctld that has come up so lately may not know yet what nodes and jobs have (srun: "Memory required by task is not
# available", seen on 22.05 in its first second); and how long it is left to find out.
FRESH_S, GATHERS_S = 10.0, 3.0


class Settling(Rungs):
    def _into_trouble(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Written down, then all ranks are stopped while devices and Slurm are asked what they know."""
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
            found.append(LookAtDevices())  # with no device to wait for; they also tell which ranks were at work
        if self._needs_slurm(trouble, now):
            found.append(self._ask_slurm(now))
        self._fence.ask_anew()
        found += self._probe(sorted(self._suspects()), now)
        if trouble.cause is Cause.LOST or choose(self._situation(trouble, now)).rung == Rung.NODE_REPLACEMENT:
            found += self._look_ahead(now)
        return [*found, *self._settled(now)]

    def _has_heard(self, now: Now) -> bool:
        """Is what Slurm said last good enough? Not of donors: the end of one may be what the trouble is."""
        return (
            self._heard_lately(now) and self._slurm.answer is not None and not self._slurm.answer.error and not self._places.lent
        )

    def _suspects(self) -> set[str]:
        """Nodes that may be lost: silent ones, and those of lost ranks, unless they were lost with the step."""
        lost = () if self._attempt.step_end.gone else self._attempt.lost
        return {self._tasks[rank].node for rank in lost} - self._attempt.nodes.gone.keys() | set(self._silent_here())

    def _stop_ranks(self, grace_s: float) -> StopRanks:
        """A SIGTERM of long ago, which the ranks outlived, does not count as having asked them."""
        asked = self._trouble is not None and self._trouble.cause is Cause.WARNING and SIGTERM in self._signal.by_ranks
        grace_s = 0.0 if self._signal.out_of_patience else grace_s
        return StopRanks(self._attempt.number, grace_s, self.settings.kill_wait_s, asked)

    def _needs_slurm(self, trouble: Trouble, now: Now) -> bool:
        """Not where the ladder can answer from what is known: a restart in place works with slurmctld away."""
        if Capability.ASK not in self.facts.can or Timer.ASK in self._timers or self._slurm.answer is not None:
            return False
        if self._attempt.closing.killed or self._attempt.nodes.called_back:
            return True
        return choose(self._situation(trouble, now)).rung != Rung.IN_PLACE_RESTART

    def _unlooked(self) -> bool:
        """Is there a node whose devices could still tell something? An agent that has not arrived yet may."""
        return any(
            node not in self._attempt.nodes.gone and (kinds is None or (kinds and node not in self._attempt.devices.looked))
            for node, kinds in self._agents.kinds.items()
        )

    def _settled(self, now: Now) -> list[Decision]:
        """Decide, once there is nothing left to wait for."""
        if self.phase is not Phase.SETTLING:
            return []
        if self._attempt.all_stopped:
            self._timers.stop(Timer.STOP)
            self._attempt.closing.stopped_at = self._attempt.closing.stopped_at or now.unix
        if not self._unlooked():
            self._timers.stop(Timer.LOOK)
        if not self._attempt.all_stopped or self._timers.running - {Timer.TELL}:
            return []
        self._timers.stop_all()
        return self._decide(now)

    def _tell_settling(self, now: Now) -> list[Decision]:
        """Mostly all is known in a moment, and then there is nothing to tell."""
        st = self.settings
        if not self._attempt.all_stopped:
            what, until = f"the ranks to end (stop.grace {st.stop_grace_s:g} s)", self._timers.due_at(Timer.STOP, now.mono)
            return self._wait_for(what, until - now.mono, now)
        word = f"a word on {fold_nodes(self._fence.asked)}"
        asked = {Timer.LOOK: "the devices to be looked at", Timer.PROBE: word, Timer.ASK: "Slurm's word on job and nodes"}
        asked |= dict.fromkeys((Timer.DIAGNOSIS, Timer.ADVICE), "what the ranks' last words tell")
        asked[Timer.PROGRESS] = st.progress_file
        known = [(self._timers.at(wait), what) for wait, what in asked.items() if wait in self._timers]
        return self._wait_for(known[0][1], known[0][0] - now.mono, now) if known else []

    def _decide(self, now: Now) -> list[Decision]:
        trouble = self._trouble
        assert trouble is not None
        willed = trouble.cause is Cause.REQUEST
        again = self._launch.failed and not willed and self._launch.in_vain < LAUNCHES_AGAIN
        if again and (why := self._not_launched_by_slurm(now)):
            self._launch_later(now)
            return [*self._slurm_is_back(now), Say(f"{why}; starting it again")]
        if self._slurm.answer is None or not self._slurm.answer.away:
            self._search_has_failed(again=self._was_away())
        ended = self._attempt_ended(now)
        self._returned_with_its_ranks()
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
            # What was found while stopping has closed the rung that needed nothing.
            return [*ended, self._ask_slurm(now)]
        if waiting := self._patience_with_slurm(self._launch.failed or self._answer_would_help(trouble, now), now):
            return [*ended, *waiting]
        self._search_has_failed(again=False)
        return [*ended, *self._climb(self._situation(trouble, now), now)]

    def _patience_with_slurm(self, mends: bool, now: Now) -> list[Decision]:
        """Asks it again while it is away and its answer could still mend something."""
        if not mends or self._slurm.answer is None or not self._slurm.answer.away:
            return []
        return self._await_slurm(Timer.AWAY, "before anything is decided", self._slurm.answer.error, now)

    def _warning_needs_slurm(self) -> bool:
        return self.settings.warning_requeue and self._signal.meaning in ("warning", "") and Capability.REQUEUE in self.facts.can

    def _answer_would_help(self, trouble: Trouble, now: Now) -> bool:
        """Is it only for want of Slurm's word that the job would fail? Or is it to get another step, which Slurm alone gives?"""
        s = self._situation(trouble, now)
        if choose(s).rung in SWAPS:
            return True
        hoped = ev.SlurmAnswered("RUNNING", batch=True, requeueable=True, node_count=1)
        return choose(s).rung == Rung.FAIL and choose(replace(s, slurm=hoped)).rung != Rung.FAIL

    def _returned_with_its_ranks(self) -> None:
        """A rank on loan that was told to end and did: its donor may show as running until its grace is over (preemption)."""
        for rank in self._attempt.exits.keys() | self._attempt.lost.keys():
            node = self._tasks[rank].node if rank in self._tasks else ""
            if node in self._attempt.nodes.called_back and node in self._places.lent and rank not in self._attempt.late:
                why = f"its donor job {self._places.lent[node]} was told to end"
                self._attempt.nodes.take_back({node: self._attempt.nodes.returned.get(node, why)})

    def _search_has_failed(self, again: bool) -> None:
        """One that had no answers. again: slurmctld was away meanwhile, and other nodes may be had after all."""
        self._attempt.search.settle(again)

    def _not_launched_by_slurm(self, now: Now) -> str:
        if self._was_away():
            return "slurmctld was away while the step was to start"
        return "slurmctld had just come up when the step was to start" if self._just_came_up(now) else ""

    def _launch_later(self, now: Now) -> None:
        """When slurmctld has had the time to learn what it has."""
        self._enter(Phase.LAUNCHING)
        self._timers.only({Timer.LAUNCH_AGAIN: now.mono + GATHERS_S * max(1, self._launch.in_vain)})
        self._launch.again()

    def _just_came_up(self, now: Now) -> bool:
        s = self._slurm.answer
        if s is None or s.error or s.state != "RUNNING" or s.bad_nodes or self._signal.number:
            return False
        return bool(s.up_since) and now.unix - s.up_since <= FRESH_S

    def _was_away(self) -> bool:
        """Has slurmctld kept us waiting, and now says that the job runs?"""
        s = self._slurm.answer
        waited = self._slurm.away_since is not None or (s is not None and s.late_s >= AWAY_S)
        return s is not None and not s.error and s.state == "RUNNING" and waited and not self._signal.number

    def _ask_again(self, now: Now) -> list[Decision]:
        return [] if Timer.ASK in self._timers else [self._ask_slurm(now)]

    # --- what is behind it: found out beside the loop, which has beats to answer meanwhile

    def _ask_what_is_behind(self, trouble: Trouble, now: Now) -> list[Decision]:
        """Once an attempt. Empty where that is known, or nobody can say."""
        hangs = trouble.cause is Cause.HANG and not self._shown()
        asked = [*(self._ask_hints(now) if hangs else self._ask_verdict(now)), *self._ask_progress(now)]
        if asked:
            self._timers.set(Timer.TELL, now.mono + TELL_S)
        return asked

    def _ask_progress(self, now: Now) -> list[Decision]:
        """Once an attempt, when it has ended: a checkpoint may have been written while the ranks were stopped."""
        attempt, st = self._attempt, self.settings
        if not (st.progress_file and st.progress_attempts and attempt.number) or attempt.closing.progress_asked:
            return []
        attempt.closing.progress_asked = True
        self._timers.set(Timer.PROGRESS, now.mono + PROGRESS_S)
        return [ReadIteration(attempt.number, st.progress_file)]

    def _ask_where_it_begins(self) -> list[Decision]:
        """A training that goes on from a checkpoint has come so far already. After a requeue the ledger knows."""
        st, f = self.settings, self.facts
        requeued = any(key == f.step_key and schedule < f.schedule for schedule, key in self.history.starts)
        return [ReadIteration(0, st.progress_file)] if st.progress_file and st.progress_attempts and not requeued else []

    def _progress_overdue(self, now: Now) -> list[Decision]:
        return self._settled(now)

    def _iteration_read(self, event: ev.IterationRead, now: Now) -> list[Decision]:
        """A file that cannot be read tells nothing: neither that there was progress nor that there was none."""
        past = self.history
        if not event.attempt:
            known = (event.iteration or 0, 0) == (past.iteration, past.in_vain)
            return [] if known else [self._note(rec.IterationSeen(now.unix, 0, event.iteration or 0))]
        if Timer.PROGRESS not in self._timers or event.attempt != self._attempt.number:
            return []
        self._timers.stop(Timer.PROGRESS)
        noted: list[Decision] = []
        if event.iteration is not None and (event.iteration or past.iteration):
            got_on = event.iteration - past.iteration >= self.settings.progress_least
            in_vain = 0 if got_on else past.in_vain + 1
            noted = [self._note(rec.IterationSeen(now.unix, event.attempt, event.iteration, in_vain))]
        return [*noted, *self._settled(now)]

    def _ask_hints(self, now: Now) -> list[Decision]:
        """Common reasons for a hang. Where the ranks have been stopped their last words are here."""
        if Capability.ADVISE not in self.facts.can or self._attempt.hang.advised:
            return []
        self._attempt.hang.advised = True
        self._timers.set(Timer.ADVICE, now.mono + DIAGNOSIS_S)
        return [Advise(self._attempt.number, self._before_hang(), dict(self._attempt.hang.evidence))]

    def _ask_verdict(self, now: Now) -> list[Decision]:
        attempt = self._attempt
        if Capability.DIAGNOSE not in self.facts.can or attempt.verdict is not None or not (attempt.number and attempt.ranks):
            return []
        self._timers.set(Timer.DIAGNOSIS, now.mono + DIAGNOSIS_S)
        return [self._question(None)]

    def _question(self, rank: int | None) -> Diagnose:
        """rank: what is behind the end of that one alone."""
        attempt = self._attempt
        bad = bad_nodes(self._slurm.answer, attempt, self._chosen())
        number = attempt.number if rank is None else attempt.latest([rank])
        return Diagnose(
            number, attempt.rank_ends(self._tasks, rank), acting(self._shown(), self.history), bad,
            attempt.own_words(), self._has_progressed(), rank,
        )  # fmt: skip

    def _diagnosed(self, event: ev.Diagnosed, now: Now) -> list[Decision]:
        """One that nobody waits for any more is of no use."""
        if Timer.DIAGNOSIS not in self._timers or event.attempt != self._attempt.number or event.rank is not None:
            return []
        self._timers.stop(Timer.DIAGNOSIS)
        return [*self._note_verdict(event.verdict, now), *self._settled(now)]

    def _diagnosis_overdue(self, now: Now) -> list[Decision]:
        return [*self._note_verdict(unknown(TOOK_TOO_LONG), now), *self._settled(now)]

    def _advised(self, event: ev.Advised, now: Now) -> list[Decision]:
        if event.attempt != self._attempt.number:
            return []
        entered = any(view.groups for views in self._attempt.hang.views.values() for view in views)
        hints = [hint for hint in event.hints if not (entered and hint[0] == "before-first-collective")]
        noted: list[Decision] = [self._note(rec.Advised(now.unix, self._attempt.number, *hint)) for hint in hints]
        if Timer.ADVICE not in self._timers:
            return noted
        self._timers.stop(Timer.ADVICE)
        return [*noted, *self._advice_known(now)]

    def _advice_known(self, now: Now) -> list[Decision]:
        """The report of a hang that is left alone waits for it, and so does what is decided on one that is not."""
        return [ShowCard()] if self.phase is Phase.RUNNING else self._settled(now)

    def _before_hang(self) -> tuple[RankEnd, ...]:
        """Every rank with what it had printed by then: what it said of being stopped is no reason for the hang."""
        ends, until = self._attempt.rank_ends(self._tasks), self._attempt.hang.at + CLOCKS_DIFFER_S
        if not self._attempt.hang.at:
            return ends
        return tuple(replace(end, output=tuple(piece for piece in end.output if piece.at <= until)) for end in ends)

    def _note_verdict(self, v: Verdict, now: Now, rank: int | None = None) -> list[Decision]:
        """What is behind it, against what the job has seen before; `rank`: behind the end of that one alone."""
        attempt = self._attempt
        ends = attempt.rank_ends(self._tasks, rank)
        v = still_on_most(v, self.history.diagnosis if self.history.same_in_a_row else None)
        v = without_own_view(v, self.facts.hidden, attempt.devices.seen - {node for node, _, _ in self._devices.faults})
        shown, window_s = shown_by(v), self.settings.same_code_window_s
        since = now.unix - window_s
        cleared = contrast(v.signature, shown, self.history, since, self.history.last_step, v.error_class)
        v = attempt.verdict = v if cleared is None else with_contrast(v, cleared)
        against = {
            blame: {suspect.node: suspect.why for suspect in v.suspects if suspect.blame is blame}
            for blame in (Blame.YES, Blame.SUSPECT)
        }
        ranks = tuple(end.rank for end in ends if end.status is not None and not end.status.ok and not end.stopped)
        found = rec.Diagnosed(
            now.unix, attempt.number, v.signature, v.error_class.value, v.retriable.value, v.confidence.value, v.what, v.evidence,
            against[Blame.YES], against[Blame.SUSPECT], ranks, len(attempt.ranks), v.program, bool(attempt.drills),
            {str(rank): node for rank, node in sorted(shown.items())[:SHOWN_MAX]},
            v.lead.rank, v.lead.node, v.lead.said, v.lead.meaning, v.lead.place, v.lead.spread, v.lead.advice,
        )  # fmt: skip
        noted: list[Decision] = [self._note(found)]
        return [*noted, *self._reinstate(v.signature, cleared, now)] if cleared is not None else noted

    def _has_progressed(self) -> bool:
        """Has the job ever got anywhere?"""
        known = max(self._attempt.program.step, self._attempt.program.saved, self.history.furthest) > 0
        return known or self.history.longest_s >= BEGUN_S or self.history.progress_at > 0

    def _reinstate(self, signature: str, found: Contrast, now: Now) -> list[Decision]:
        """The card of what follows says it."""
        record = rec.Reinstated(now.unix, self._attempt.number, signature, dict.fromkeys(found.cleared, found.why))
        back = [node for node in found.cleared if node in self.history.left_on_words and node in self.history.isolated]
        noted: list[Decision] = [self._note(record)]
        return [*noted, TellOthers({}, tuple(back))] if back else noted

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
        """In requests."""
        raise NotImplementedError

    # --- what comes in meanwhile

    def _rank_stopped(self, event: ev.RankStopped, now: Now) -> list[Decision]:
        if self._attempt.stop(event) and event.free_port and event.rank in self._tasks:  # or it came too late for its launch
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
        self._attempt.lose_rest("no word whether its processes are gone")
        return self._settled(now)

    def _look_overdue(self, now: Now) -> list[Decision]:
        """Devices that do not answer are unknown: neither good nor to blame."""
        self._attempt.devices.look(self._agents.kinds)
        self._agents.wait_no_more()
        return self._settled(now)
