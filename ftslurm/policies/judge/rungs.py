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
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.outcome import ENDING_STATES
from ftslurm.model.rungs import Capability, Rung, RungRemedy
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge import ending, replacing, starting, then
from ftslurm.policies.judge.ending import STEP_END_WAIT_S
from ftslurm.policies.judge.outside import Announced, Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import MARGIN_S, SIGTERM, Run, record_decision
from ftslurm.policies.judge.then import Answer, Settled
from ftslurm.policies.ladder import WILLED, Cause, Choice, Situation, let_in, status_of_failure
from ftslurm.policies.situation import Trouble, avoidable


def carry_out(run: Run, choice: Choice, s: Situation, now: Now) -> Answer:
    return _REMEDIES[choice.remedy](run, choice, s, now)


def _restart_in_place(run: Run, choice: Choice, s: Situation, now: Now) -> Answer:
    said = ShowCard()
    decided = record_decision(run, choice, s, now)
    if not s.faults:
        return [decided, said, *restart(run, now)]
    if run.attempt.lost:  # nobody has proven that those ranks have ended; the end of the step does
        return [decided, said, *ending.end_step(run, 0, then.ThenHeal(s.faults), now)]
    return [decided, said, *heal(run, s.faults, now)]


def heal(run: Run, faults: Collection[Fault], now: Now) -> list[Decision]:
    """Heal devices: no process of the job is left, so they may be checked again, and reset."""
    devices: dict[str, dict[str, tuple[str, ...]]] = {}
    for fault in faults:
        chips = devices.setdefault(fault.node, {})
        chips[fault.device] = (*chips.get(fault.device, ()), fault.code)
    run.enter(Phase.HEALING)
    run.attempt.devices.heal({node: frozenset(chips) for node, chips in devices.items()})
    st = run.settings
    most = max(len(chips) for chips in devices.values())  # an agent heals one device after the other
    run.timers.only(
        {Timer.HEAL: now.mono + most * (st.in_place_restart.self_heal_wait_s + st.in_place_restart.reset_wait_s) + MARGIN_S}
    )
    run.watch_silence(now)
    ordered = {node: tuple(sorted(chips.items())) for node, chips in devices.items()}
    heal = HealDevices(
        ordered, st.in_place_restart.reset == "auto", st.in_place_restart.self_heal_wait_s, st.in_place_restart.reset_wait_s
    )
    return [
        heal,
        *run.wait_for(_devices(ordered), most * (st.in_place_restart.self_heal_wait_s + st.in_place_restart.reset_wait_s), now),
    ]


def on_healing_done(run: Run, event: ev.HealingDone, now: Now) -> Answer:
    silent = run.attempt.devices.to_heal.get(event.node, frozenset()) - {result.device for result in event.results}
    failed = [f"device {r.device}: {r.how}" for r in event.results if r.healed is not True]
    failed += [f"device {device}: no word from the agent" for device in sorted(silent)]
    if not run.attempt.healed(event.node, "; ".join(failed)):
        return []
    if not failed:
        run.devices.forget([event.node])
        run.attempt.devices.forget(event.node)
    return settle_healing(run, now)


def settle_healing(run: Run, now: Now) -> Answer:
    """Healing is over: restart in place if every node is healthy; otherwise ask the next rung about the others."""
    if run.attempt.devices.to_heal or run.phase is not Phase.HEALING:
        return []
    run.timers.stop(Timer.HEAL)
    if Timer.PROBE in run.timers:
        return []  # a node may be dead, and ranks would start on it
    assert run.decided is not None and run.trouble is not None
    failed = run.attempt.devices.unhealed
    what = "; ".join(f"{node}: {why}" for node, why in sorted(failed.items())) or "healed"
    done = run.note(rec.CarriedOut(now.unix, run.decided.id, not failed, what))
    if not (failed or run.signal.number or _not_by_shim(run) or run.attempt.nodes.gone):
        return [done, *restart(run, now)]
    run.enter(Phase.SETTLING)
    run.timers.keep(Timer.ASK)
    return [done, Settled()]


def on_heal_overdue(run: Run, now: Now) -> Answer:
    for node in sorted(run.attempt.devices.to_heal):
        run.attempt.healed(node, "no word from the agent while healing")
    return settle_healing(run, now)


def on_slurm_answered(run: Run, event: ev.SlurmAnswered, now: Now) -> Answer:
    """The meaning of a signal during healing: a job that is ending does not wait for its devices."""
    run.take_answer(event, now)
    if event.state not in ENDING_STATES or event.error:
        return []
    outcome = ENDING_STATES[event.state]
    return ending.end(run, outcome.words, 128 + (run.signal.number or SIGTERM), now, outcome)


def _not_by_shim(run: Run) -> bool:
    """Has the ability to restart in place been lost while devices healed?"""
    return run.settings.restart_via == "shim" and (bool(run.attempt.lost) or run.attempt.step_end.gone)


def restart(run: Run, now: Now) -> Answer:
    if run.settings.restart_via == "shim":
        return starting.start(run, now)
    return ending.end_step(run, 0, then.ThenLaunch(), now)


def give_up_step(run: Run, now: Now) -> Answer:
    """The old step could not be ended, so nothing may start beside it. A requeue ends it, or the end of the job."""
    why = f"the old step could not be ended within {2 * STEP_END_WAIT_S:g} s"
    run.attempt.step_end.cannot_end(why)  # we can do no more about it
    run.attempt.cannot_stay(why)
    run.enter(Phase.SETTLING)
    run.timers.stop_all()
    return [*ending.drop_remedy(run, why, now), Settled()]


def requeue(run: Run, choice: Choice, s: Situation, now: Now) -> Answer:
    avoid = avoidable(tuple(run.devices.faults.values()), s, run.facts.remembered)
    spared = let_in(s)
    if spared:
        why = f"{choice.why}; too few nodes remain without {fold_nodes(spared)}, so the job may run there"
        choice = replace(choice, why=why)
    decided = record_decision(run, choice, s, now, isolate=True, avoid=avoid, spared=spared)
    assert run.decided is not None
    after = then.ThenRequeue()
    tell = _tell(run, s) if choice.rung == Rung.ISOLATED_REQUEUE else []
    # The job continues, so nothing is said about ranks that were only stopped.
    return [decided, ShowCard(), *tell, *ending.end_step(run, 0, after, now)]


def _tell(run: Run, s: Situation) -> list[Decision]:
    """Tell later jobs about bad nodes: facts only. A text that has cost this job nodes costs no other job any."""
    left = {node: why for node, why in s.bad.items() if node in s.proven}
    return [TellOthers(left)] if left and run.settings.isolation.memory_s and not run.attempt.drills else []


def _replace(run: Run, choice: Choice, s: Situation, now: Now) -> Answer:
    """Begin the search for other nodes at once, while the old step ends."""
    begun = _swap(run, choice, s, now)
    assert run.places.layout is not None and run.decided is not None
    out = {slot: node for slot, node in enumerate(run.places.layout.nodes) if node in s.leaving}
    after = then.ThenReplace()
    ended = [] if run.attempt.step_end.gone else ending.end_step(run, 0, after, now)
    searched = replacing.begin_search(run, out, run.decided.id, now)
    return [*begun, *searched, *(ended or ending.end_step(run, 0, after, now))]


def _shrink(run: Run, choice: Choice, s: Situation, now: Now) -> Answer:
    begun = _swap(run, choice, s, now)
    return [*begun, *ending.end_step(run, 0, then.ThenShrink(frozenset(s.blamed)), now)]


def _swap(run: Run, choice: Choice, s: Situation, now: Now) -> list[Decision]:
    decided = record_decision(run, choice, s, now, isolate=True)
    run.places.choose(replacing.step_layout(run))
    return [decided, ShowCard(), *_tell(run, s)]


def _fail(run: Run, choice: Choice, s: Situation, now: Now) -> Answer:
    status = status_of_failure(s)
    decided = record_decision(run, choice, replace(s, status=status), now)
    after, launch = then.ThenFinish(s.what, status), run.launch
    quiet = s.cause is Cause.LAUNCH and launch.failed and not launch.ended  # srun has printed the reason
    # Without ranks nobody could be asked to leave, and srun would wait.
    unasked = s.cause is Cause.LAUNCH and not run.attempt.step_end.gone
    end = ending.kill_step(run, after, now) if unasked else ending.end_step(run, status, after, now)
    return [decided, ShowCard(quiet), *end]


def after_warning(run: Run, trouble: Trouble, now: Now) -> Answer:
    """The ranks have ended after a warning: this is no failure and costs no budget. Requeue only if the job asked for it, or
    Slurm would do it too, and the signal really was a warning.
    """
    asked = run.signal.goes_on(run.slurm.requeues_preempted) and run.signal.meaning in (Meaning.WARNING, None)
    if asked and (held := run.history.control.why_held(Rung.ON_WARNING) or _resumed_enough(run)):
        return [Say(f"the job is not requeued: {held}"), *_end_after(run, trouble, now)]
    if not (asked and Capability.REQUEUE in run.facts.can and run.slurm.answer and run.slurm.answer.batch):
        return _end_after(run, trouble, now)
    setting, value = _asked_by(run)
    why = "Slurm would requeue it too" if setting == _PREEMPTION else f"asked for by {setting}"
    choice = Choice(Rung.ON_WARNING, f"{why}, costs nothing", "", (), ((Rung.ON_WARNING.value, setting, value),))
    return requeue(run, choice, run.situation(trouble, now), now)


def _asked_by(run: Run) -> tuple[str, str]:
    """(setting, value) by which the job is requeued after a warning."""
    st = run.settings
    if run.signal.goes_on_after_preemption(run.slurm.requeues_preempted):
        return _PREEMPTION, "true"
    if st.warning.requeue and run.signal.announced is not Announced.LIMIT:
        return "warning.requeue", "true"
    return AT_LIMIT, f"{st.time_limit.resume_s:g}s" if st.time_limit.resume_s else "auto"


def _resumed_enough(run: Run) -> str:
    """Why the job is not requeued once more at its time limit, empty if it may be."""
    done, most = run.history.requeues.at_limit, run.settings.time_limit.resumes
    enough = _asked_by(run)[0] == AT_LIMIT and done >= most
    return f"its time limit was met {done + 1} times (time_limit.resumes {most})" if enough else ""


def _end_after(run: Run, trouble: Trouble, now: Now) -> Answer:
    return ending.end(run, trouble.what, _status_after(run, trouble), now, trouble.outcome)


def _status_after(run: Run, trouble: Trouble) -> int:
    """The exit status after a warning: a rank that had to be stopped has not done its work, even if all others ended well."""
    if run.signal.meaning not in (Meaning.WARNING, Meaning.TOLD_TO_END, Meaning.STOPPED) or trouble.cause not in WILLED:
        return trouble.status
    return max(run.warning_trouble().status, 0 if run.attempt.all_ended else 128 + SIGTERM)


_PREEMPTION = "preemption.requeue"

# A rank that starts again alone does not concern the whole attempt: see judge/ranks.
_REMEDIES: Mapping[RungRemedy, Callable[[Run, Choice, Situation, Now], Answer]] = {
    RungRemedy.RESTART: _restart_in_place,
    RungRemedy.REPLACE: _replace,
    RungRemedy.SHRINK: _shrink,
    RungRemedy.REQUEUE: requeue,
    RungRemedy.END: _fail,
}


def _devices(chips: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]) -> str:
    where = "; ".join(f"device {', '.join(name for name, _ in found)} of {node}" for node, found in sorted(chips.items()))
    return f"{where} to heal or to be reset"
