"""Carries out what the ladder has chosen, one method per rung: restart in place (after devices have healed, if they are the
trouble), a requeue, or the end. The decision is recorded before anything of it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, HealDevices, Say, ShowCard, TellOthers
from ftslurm.model.devices import Fault
from ftslurm.model.events import Now
from ftslurm.model.folds.past import AT_LIMIT
from ftslurm.model.nodes import fold_nodes as fold_nodes
from ftslurm.model.outcome import ENDING_STATES
from ftslurm.model.rungs import SWAPS, Capability, Rung, RungRemedy
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge import then
from ftslurm.policies.judge.ending import STEP_END_WAIT_S, Ending
from ftslurm.policies.judge.outside import Announced, Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.replacing import Replacing
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import MARGIN_S, SIGTERM, Run, record_decision
from ftslurm.policies.judge.then import Afterwards, Answer, Settled
from ftslurm.policies.ladder import Cause, Choice, Situation, let_in, status_of_failure
from ftslurm.policies.situation import Trouble, avoidable


class Rungs:
    def __init__(self, run: Run, ending: Ending, starting: Starting, replacing: Replacing) -> None:
        self.run, self.ending, self.starting, self.replacing = run, ending, starting, replacing

    def carry_out(self, choice: Choice, s: Situation, now: Now) -> Answer:
        return _REMEDIES[choice.remedy](self, choice, s, now)

    def _restart_in_place(self, choice: Choice, s: Situation, now: Now) -> Answer:
        said = ShowCard()
        decided = record_decision(self.run, choice, s, now)
        if not s.faults:
            return [decided, said, *self.restart(now)]
        if self.run.attempt.lost:  # nobody has proven that those ranks have ended; the end of the step does
            return [decided, said, *self.ending.end_step(0, Afterwards(then.ThenHeal(s.faults), then.ThenStepStays()), now)]
        return [decided, said, *self.heal(s.faults, now)]

    def heal(self, faults: Collection[Fault], now: Now) -> list[Decision]:
        """Heal devices: no process of the job is left, so they may be checked again, and reset."""
        devices: dict[str, dict[str, tuple[str, ...]]] = {}
        for fault in faults:
            chips = devices.setdefault(fault.node, {})
            chips[fault.device] = (*chips.get(fault.device, ()), fault.code)
        self.run.enter(Phase.HEALING)
        self.run.attempt.devices.heal({node: frozenset(chips) for node, chips in devices.items()})
        st = self.run.settings
        most = max(len(chips) for chips in devices.values())  # an agent heals one device after the other
        self.run.timers.only(
            {Timer.HEAL: now.mono + most * (st.in_place_restart.self_heal_wait_s + st.in_place_restart.reset_wait_s) + MARGIN_S}
        )
        self.run.watch_silence(now)
        ordered = {node: tuple(sorted(chips.items())) for node, chips in devices.items()}
        heal = HealDevices(
            ordered, st.in_place_restart.reset == "auto", st.in_place_restart.self_heal_wait_s, st.in_place_restart.reset_wait_s
        )
        return [
            heal,
            *self.run.wait_for(
                _devices(ordered), most * (st.in_place_restart.self_heal_wait_s + st.in_place_restart.reset_wait_s), now
            ),
        ]

    def on_healing_done(self, event: ev.HealingDone, now: Now) -> Answer:
        silent = self.run.attempt.devices.to_heal.get(event.node, frozenset()) - {result.device for result in event.results}
        failed = [f"device {r.device}: {r.how}" for r in event.results if r.healed is not True]
        failed += [f"device {device}: no word from the agent" for device in sorted(silent)]
        if not self.run.attempt.healed(event.node, "; ".join(failed)):
            return []
        if not failed:
            self.run.devices.forget([event.node])
            self.run.attempt.devices.forget(event.node)
        return self.settle_healing(now)

    def settle_healing(self, now: Now) -> Answer:
        """Healing is over: restart in place if every node is healthy; otherwise ask the next rung about the others."""
        if self.run.attempt.devices.to_heal or self.run.phase is not Phase.HEALING:
            return []
        self.run.timers.stop(Timer.HEAL)
        if Timer.PROBE in self.run.timers:
            return []  # a node may be dead, and ranks would start on it
        assert self.run.decided is not None and self.run.trouble is not None
        failed = self.run.attempt.devices.unhealed
        what = "; ".join(f"{node}: {why}" for node, why in sorted(failed.items())) or "healed"
        done = self.run.note(rec.CarriedOut(now.unix, self.run.decided.id, not failed, what))
        if not (failed or self.run.signal.number or self._not_by_shim() or self.run.attempt.nodes.gone):
            return [done, *self.restart(now)]
        self.run.enter(Phase.SETTLING)
        self.run.timers.keep(Timer.ASK)
        return [done, Settled()]

    def on_heal_overdue(self, now: Now) -> Answer:
        for node in sorted(self.run.attempt.devices.to_heal):
            self.run.attempt.healed(node, "no word from the agent while healing")
        return self.settle_healing(now)

    def on_slurm_answered(self, event: ev.SlurmAnswered, now: Now) -> Answer:
        """The meaning of a signal during healing: a job that is ending does not wait for its devices."""
        self.run.take_answer(event, now)
        if event.state not in ENDING_STATES or event.error:
            return []
        outcome = ENDING_STATES[event.state]
        return [then.ThenEnd(outcome.words, 128 + (self.run.signal.number or SIGTERM), outcome)]

    def _not_by_shim(self) -> bool:
        """Has the ability to restart in place been lost while devices healed?"""
        return self.run.settings.restart_via == "shim" and (bool(self.run.attempt.lost) or self.run.attempt.step_end.gone)

    def restart(self, now: Now) -> Answer:
        if self.run.settings.restart_via == "shim":
            return self.starting.start(now)
        return self.ending.end_step(0, Afterwards(then.ThenLaunch(), then.ThenStepStays()), now)

    def give_up_step(self, now: Now) -> Answer:
        """The old step could not be ended, so nothing may start beside it. A requeue ends it, or the end of the job."""
        why = f"the old step could not be ended within {2 * STEP_END_WAIT_S:g} s"
        self.run.attempt.step_end.cannot_end(why)  # we can do no more about it
        self.run.attempt.cannot_stay(why)
        self.run.enter(Phase.SETTLING)
        self.run.timers.stop_all()
        return [*self._drop_swap(why, now), Settled()]

    def _drop_swap(self, why: str, now: Now) -> list[Decision]:
        """A replacement that was to begin after the old step fails: it costs no budget."""
        search = self.run.places.take_search()
        loans = search.drop() if search is not None else []
        if self.run.decided is None or self.run.decided.rung not in SWAPS:
            return loans
        return [*loans, self.run.note(rec.CarriedOut(now.unix, self.run.decided.id, False, why))]

    def requeue(self, choice: Choice, s: Situation, now: Now) -> Answer:
        avoid = avoidable(tuple(self.run.devices.faults.values()), s, self.run.facts.remembered)
        spared = let_in(s)
        if spared:
            why = f"{choice.why}; too few nodes remain without {fold_nodes(spared)}, so the job may run there"
            choice = replace(choice, why=why)
        decided = record_decision(self.run, choice, s, now, isolate=True, avoid=avoid, spared=spared)
        assert self.run.decided is not None
        after = Afterwards(then.ThenRequeue(self.run.decided.id))
        tell = self._tell(s) if choice.rung == Rung.ISOLATED_REQUEUE else []
        # The job continues, so nothing is said about ranks that were only stopped.
        return [decided, ShowCard(), *tell, *self.ending.end_step(0, after, now)]

    def _tell(self, s: Situation) -> list[Decision]:
        """Tell later jobs about bad nodes: facts only. A text that has cost this job nodes costs no other job any."""
        left = {node: why for node, why in s.bad.items() if node in s.proven}
        return [TellOthers(left)] if left and self.run.settings.isolation.memory_s and not self.run.attempt.drills else []

    def _replace(self, choice: Choice, s: Situation, now: Now) -> Answer:
        """Begin the search for other nodes at once, while the old step ends."""
        begun = self._swap(choice, s, now)
        assert self.run.places.layout is not None and self.run.decided is not None
        out = {slot: node for slot, node in enumerate(self.run.places.layout.nodes) if node in s.leaving}
        after = Afterwards(then.ThenReplace(), then.ThenStepStays())
        ended = [] if self.run.attempt.step_end.gone else self.ending.end_step(0, after, now)
        searched = self.replacing.begin_search(out, self.run.decided.id, now)
        return [*begun, *searched, *(ended or self.ending.end_step(0, after, now))]

    def _shrink(self, choice: Choice, s: Situation, now: Now) -> Answer:
        begun = self._swap(choice, s, now)
        return [*begun, *self.ending.end_step(0, Afterwards(then.ThenShrink(frozenset(s.blamed)), then.ThenStepStays()), now)]

    def _swap(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        decided = record_decision(self.run, choice, s, now, isolate=True)
        self.run.places.choose(self.replacing.step_layout())
        return [decided, ShowCard(), *self._tell(s)]

    def _fail(self, choice: Choice, s: Situation, now: Now) -> Answer:
        status = status_of_failure(s)
        decided = record_decision(self.run, choice, replace(s, status=status), now)
        after, launch = Afterwards(then.ThenFinish(s.what, status)), self.run.launch
        quiet = s.cause is Cause.LAUNCH and launch.failed and not launch.ended  # srun has printed the reason
        # Without ranks nobody could be asked to leave, and srun would wait.
        unasked = s.cause is Cause.LAUNCH and not self.run.attempt.step_end.gone
        end = self.ending.kill_step(after, now) if unasked else self.ending.end_step(status, after, now)
        return [decided, ShowCard(quiet), *end]

    def after_warning(self, trouble: Trouble, now: Now) -> Answer:
        """The ranks have ended after a warning: this is no failure and costs no budget. Requeue only if the job asked for it, or
        Slurm would do it too, and the signal really was a warning.
        """
        asked = self.run.signal.goes_on(self.run.slurm.requeues_preempted) and self.run.signal.meaning in (Meaning.WARNING, None)
        if asked and (held := self.run.history.control.why_held(Rung.ON_WARNING) or self._resumed_enough()):
            return [Say(f"the job is not requeued: {held}"), *self._end_after(trouble)]
        if not (asked and Capability.REQUEUE in self.run.facts.can and self.run.slurm.answer and self.run.slurm.answer.batch):
            return self._end_after(trouble)
        setting, value = self._asked_by()
        why = "Slurm would requeue it too" if setting == _PREEMPTION else f"asked for by {setting}"
        choice = Choice(Rung.ON_WARNING, f"{why}, costs nothing", "", (), ((Rung.ON_WARNING.value, setting, value),))
        return self.requeue(choice, self.run.situation(trouble, now), now)

    def _asked_by(self) -> tuple[str, str]:
        """(setting, value) by which the job is requeued after a warning."""
        st = self.run.settings
        if self.run.signal.goes_on_after_preemption(self.run.slurm.requeues_preempted):
            return _PREEMPTION, "true"
        if st.warning.requeue and self.run.signal.announced is not Announced.LIMIT:
            return "warning.requeue", "true"
        return AT_LIMIT, f"{st.time_limit.resume_s:g}s" if st.time_limit.resume_s else "auto"

    def _resumed_enough(self) -> str:
        """Why the job is not requeued once more at its time limit, empty if it may be."""
        done, most = self.run.history.requeues.at_limit, self.run.settings.time_limit.resumes
        enough = self._asked_by()[0] == AT_LIMIT and done >= most
        return f"its time limit was met {done + 1} times (time_limit.resumes {most})" if enough else ""

    def _end_after(self, trouble: Trouble) -> list[then.ThenEnd]:
        return [then.ThenEnd(trouble.what, self._status_after(trouble), trouble.outcome)]

    def _status_after(self, trouble: Trouble) -> int:
        """The exit status after a warning: a rank that had to be stopped has not done its work, whatever the others returned."""
        if self.run.signal.meaning not in (Meaning.WARNING, Meaning.TOLD_TO_END) or trouble.cause is not Cause.WARNING:
            return trouble.status
        return max(self.run.warning_trouble().status, 0 if self.run.attempt.all_ended else 128 + SIGTERM)


_PREEMPTION = "preemption.requeue"

# A rank that starts again alone does not concern the whole attempt: see judge/ranks.
_REMEDIES: Mapping[RungRemedy, Callable[[Rungs, Choice, Situation, Now], Answer]] = {
    RungRemedy.RESTART: Rungs._restart_in_place,
    RungRemedy.REPLACE: Rungs._replace,
    RungRemedy.SHRINK: Rungs._shrink,
    RungRemedy.REQUEUE: Rungs.requeue,
    RungRemedy.END: Rungs._fail,
}


def _devices(chips: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]) -> str:
    where = "; ".join(f"device {', '.join(name for name, _ in found)} of {node}" for node, found in sorted(chips.items()))
    return f"{where} to heal or to be reset"
