"""Carries out what the ladder has chosen, one method per rung: restart in place (after devices have healed, if they are the
trouble), a requeue, or the end. The decision is recorded before anything of it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, HealDevices, Remember, Say, ShowCard, TellOthers
from ftslurm.model.devices import Fault
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import SWAPS, Capability, Remedy, Rung
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.ending import STEP_END_WAIT_S
from ftslurm.policies.judge.phases import ENDING_STATES, Phase
from ftslurm.policies.judge.replacing import Replacing
from ftslurm.policies.judge.state import MARGIN_S, SIGTERM, TOLD_TO_END
from ftslurm.policies.judge.then import (
    Afterwards,
    ThenFinish,
    ThenHeal,
    ThenLaunch,
    ThenReplace,
    ThenRequeue,
    ThenShrink,
    ThenStepStays,
)
from ftslurm.policies.ladder.ladder import Cause, Choice, Situation, choose, let_in, status_of_failure
from ftslurm.policies.ladder.situation import Trouble, avoidable


class Rungs(Replacing):
    def _climb(self, situation: Situation, now: Now) -> list[Decision]:
        choice = choose(situation)
        return _REMEDIES[choice.remedy](self, choice, situation, now)

    def _decision(
        self, choice: Choice, s: Situation, now: Now, isolate: bool = False, avoid: Mapping[str, str] | None = None,
        spared: Collection[str] = (),
    ) -> Remember:  # fmt: skip
        """The decision as the ledger records it before anything of it is done. avoid: further nodes to exclude, node -> why.
        spared: nodes that the next scheduling may use all the same.
        """
        isolated = {**(avoid or {}), **s.bad} if isolate else {}
        self._decided = rec.Decided(
            now.unix, f"{self.facts.run}-{self.history.decisions + 1}", self._attempt.number, choice.rung.value,
            s.cause.value, f"{s.what}; {choice.why}", choice.passed, isolated,
            tuple(sorted({*self._kept_out(now), *isolated} - {*spared})), choice.cost, s.status,
            {node: sign for node, sign in s.on_words.items() if node in isolated},
            tuple(sorted(s.dead & isolated.keys())), choice.why, choice.settings,
        )  # fmt: skip
        return self._note(self._decided, vital=True)

    def _in_place(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        said = ShowCard()
        decided = self._decision(choice, s, now)
        if not s.faults:
            return [decided, said, *self._restart(now)]
        if self._attempt.lost:  # nobody has proven that those ranks have ended; the end of the step does
            return [decided, said, *self._end_step(0, Afterwards(ThenHeal(s.faults), ThenStepStays()), now)]
        return [decided, said, *self._heal(s.faults, now)]

    def _heal(self, faults: Collection[Fault], now: Now) -> list[Decision]:
        """Heal devices: no process of the job is left, so they may be checked again, and reset."""
        devices: dict[str, dict[str, tuple[str, ...]]] = {}
        for fault in faults:
            chips = devices.setdefault(fault.node, {})
            chips[fault.device] = (*chips.get(fault.device, ()), fault.code)
        self._enter(Phase.HEALING)
        self._attempt.devices.heal({node: frozenset(chips) for node, chips in devices.items()})
        st = self.settings
        most = max(len(chips) for chips in devices.values())  # an agent heals one device after the other
        self._timers.only({Timer.HEAL: now.mono + most * (st.self_heal_wait_s + st.reset_wait_s) + MARGIN_S})
        self._watch_silence(now)
        ordered = {node: tuple(sorted(chips.items())) for node, chips in devices.items()}
        heal = HealDevices(ordered, st.reset == "auto", st.self_heal_wait_s, st.reset_wait_s)
        return [heal, *self._wait_for(_devices(ordered), most * (st.self_heal_wait_s + st.reset_wait_s), now)]

    def _healing_done(self, event: ev.HealingDone, now: Now) -> list[Decision]:
        silent = self._attempt.devices.to_heal.get(event.node, frozenset()) - {result.device for result in event.results}
        failed = [f"device {r.device}: {r.how}" for r in event.results if r.healed is not True]
        failed += [f"device {device}: no word from the agent" for device in sorted(silent)]
        if not self._attempt.healed(event.node, "; ".join(failed)):
            return []
        if not failed:
            self._devices.forget([event.node])
            self._attempt.devices.forget(event.node)
        return self._healing_settled(now)

    def _healing_settled(self, now: Now) -> list[Decision]:
        """Healing is over: restart in place if every node is healthy; otherwise ask the next rung about the others."""
        if self._attempt.devices.to_heal or self.phase is not Phase.HEALING:
            return []
        self._timers.stop(Timer.HEAL)
        if Timer.PROBE in self._timers:
            return []  # a node may be dead, and ranks would start on it
        assert self._decided is not None and self._trouble is not None
        failed = self._attempt.devices.unhealed
        what = "; ".join(f"{node}: {why}" for node, why in sorted(failed.items())) or "healed"
        done = self._note(rec.CarriedOut(now.unix, self._decided.id, not failed, what))
        if not (failed or self._signal.number or self._not_by_shim() or self._attempt.nodes.gone):
            return [done, *self._restart(now)]
        self._enter(Phase.SETTLING)
        self._timers.keep(Timer.ASK)
        return [done, *self._settled(now)]

    def _heal_overdue(self, now: Now) -> list[Decision]:
        for node in sorted(self._attempt.devices.to_heal):
            self._attempt.healed(node, "no word from the agent while healing")
        return self._healing_settled(now)

    def _slurm_while_healing(self, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
        """The meaning of a signal during healing: a job that is ending does not wait for its devices."""
        self._take(event, now)
        if event.state not in ENDING_STATES or event.error:
            return []
        return self._give_up(ENDING_STATES[event.state], 128 + (self._signal.number or SIGTERM), now)

    def _not_by_shim(self) -> bool:
        """Has the ability to restart in place been lost while devices healed?"""
        return self.settings.restart_via == "shim" and (bool(self._attempt.lost) or self._attempt.step_end.gone)

    def _restart(self, now: Now) -> list[Decision]:
        if self.settings.restart_via == "shim":
            return self._start(now)
        return self._end_step(0, Afterwards(ThenLaunch(), ThenStepStays()), now)

    def _step_stays(self, now: Now) -> list[Decision]:
        """The old step could not be ended, so nothing may start beside it. A requeue ends it, or the end of the job."""
        why = f"the old step could not be ended within {2 * STEP_END_WAIT_S:g} s"
        self._attempt.step_end.cannot_end(why)  # we can do no more about it
        self._attempt.cannot_stay(why)
        self._enter(Phase.SETTLING)
        self._timers.stop_all()
        return [*self._swap_fails(why, now), *self._settled(now)]

    def _swap_fails(self, why: str, now: Now) -> list[Decision]:
        """A replacement that was to begin after the old step fails: it costs no budget."""
        search = self._take_search()
        loans = search.drop() if search is not None else []
        if self._decided is None or self._decided.rung not in SWAPS:
            return loans
        return [*loans, self._note(rec.CarriedOut(now.unix, self._decided.id, False, why))]

    def _requeue(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        avoid = avoidable(tuple(self._devices.faults.values()), s, self.facts.remembered)
        spared = let_in(s)
        if spared:
            why = f"{choice.why}; too few nodes remain without {fold_nodes(spared)}, so the job may run there"
            choice = replace(choice, why=why)
        decided = self._decision(choice, s, now, isolate=True, avoid=avoid, spared=spared)
        assert self._decided is not None
        then = Afterwards(ThenRequeue(self._decided.id))
        tell = self._tell(s) if choice.rung == Rung.ISOLATED_REQUEUE else []
        # The job continues, so nothing is said about ranks that were only stopped.
        return [decided, ShowCard(), *tell, *self._end_step(0, then, now)]

    def _tell(self, s: Situation) -> list[Decision]:
        """Tell later jobs about bad nodes: facts only. A text that has cost this job nodes costs no other job any."""
        left = {node: why for node, why in s.bad.items() if node in s.proven}
        return [TellOthers(left)] if left and self.settings.memory_s and not self._attempt.drills else []

    def _replace(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        """Begin the search for other nodes at once, while the old step ends."""
        begun = self._swap(choice, s, now)
        assert self._places.layout is not None and self._decided is not None
        out = {slot: node for slot, node in enumerate(self._places.layout.nodes) if node in s.blamed}
        ended = [] if self._attempt.step_end.gone else self._end_step(0, Afterwards(ThenReplace(), ThenStepStays()), now)
        searched = self._begin_search(out, self._decided.id, now)
        return [*begun, *searched, *(ended or self._end_step(0, Afterwards(ThenReplace(), ThenStepStays()), now))]

    def _shrink(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        begun = self._swap(choice, s, now)
        return [*begun, *self._end_step(0, Afterwards(ThenShrink(frozenset(s.blamed)), ThenStepStays()), now)]

    def _swap(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        decided = self._decision(choice, s, now, isolate=True)
        self._places.choose(self._step_layout())
        return [decided, ShowCard(), *self._tell(s)]

    def _fail(self, choice: Choice, s: Situation, now: Now) -> list[Decision]:
        status = status_of_failure(s)
        decided = self._decision(choice, replace(s, status=status), now)
        quiet = s.cause is Cause.LAUNCH  # srun has printed the reason
        return [decided, ShowCard(quiet), *self._end_step(status, Afterwards(ThenFinish(s.what, status)), now)]

    def _after_warning(self, trouble: Trouble, now: Now) -> list[Decision]:
        """The ranks have ended after a warning: this is no failure and costs no budget. Requeue only if the job asked for it and
        the signal really was a warning.
        """
        asked = self.settings.warning_requeue and self._signal.meaning in ("warning", "")
        if asked and (held := self.history.control.why_held(Rung.ON_WARNING)):
            return [Say(f"the job is not requeued: {held}"), *self._give_up(trouble.what, self._status_after(trouble), now)]
        if not (asked and Capability.REQUEUE in self.facts.can and self._slurm.answer and self._slurm.answer.batch):
            return self._give_up(trouble.what, self._status_after(trouble), now)
        asked_by = ((Rung.ON_WARNING.value, "warning.requeue", "true"),)
        choice = Choice(Rung.ON_WARNING, "asked for by warning.requeue, costs nothing", "", (), asked_by)
        return self._requeue(choice, self._situation(trouble, now), now)

    def _status_after(self, trouble: Trouble) -> int:
        """The exit status after a warning: a rank that had to be stopped has not done its work, whatever the others returned."""
        if self._signal.meaning not in ("warning", TOLD_TO_END) or trouble.cause is not Cause.WARNING:
            return trouble.status
        return max(self._warned().status, 0 if self._attempt.all_ended else 128 + SIGTERM)


# A rank that starts again alone does not concern the whole attempt: see judge/ranks.
_REMEDIES: Mapping[Remedy, Callable[[Rungs, Choice, Situation, Now], list[Decision]]] = {
    Remedy.RESTART: Rungs._in_place,
    Remedy.REPLACE: Rungs._replace,
    Remedy.SHRINK: Rungs._shrink,
    Remedy.REQUEUE: Rungs._requeue,
    Remedy.END: Rungs._fail,
}


def _devices(chips: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]) -> str:
    where = "; ".join(f"device {', '.join(name for name, _ in found)} of {node}" for node, found in sorted(chips.items()))
    return f"{where} to heal or to be reset"
