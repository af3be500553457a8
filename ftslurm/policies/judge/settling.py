"""Trouble: all ranks are stopped, devices and Slurm are asked what they know, and the ladder is asked when nothing is left to
wait for. This group also handles other events that arrive meanwhile.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, LookAtDevices, Say
from ftslurm.model.events import Now
from ftslurm.model.folds.control import RESTART
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.outcome import ENDING_STATES
from ftslurm.model.rungs import SWAPS, Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge import causes, ending, rungs
from ftslurm.policies.judge.causes import TELL_S
from ftslurm.policies.judge.ending import CANCELLED, GATHERS_S, lose_step
from ftslurm.policies.judge.outside import Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import MARGIN_S, SIGINT, SIGKILL, SIGTERM, Run, drills_behind, record_decision, stop_ranks
from ftslurm.policies.judge.step import LAUNCHES_AGAIN
from ftslurm.policies.judge.then import Answer, Settled, ThenDecide, ThenLaunch
from ftslurm.policies.ladder import WILLED, Cause, Choice, Situation, choose, is_answer
from ftslurm.policies.situation import Trouble, bad_nodes

# Slurm may have killed a rank that ended so (a cancelled job), before anybody could see the signal itself.
_MAYBE_SLURM = frozenset({SIGINT, SIGKILL, SIGTERM})
# Rungs of which it counts how many nodes fit the job without those that are to blame.
_MAY_NOT_FIT = frozenset({Rung.ISOLATED_REQUEUE, Rung.FAIL})


def begin_trouble(run: Run, trouble: Trouble, now: Now) -> Answer:
    """Record the trouble, then stop all ranks while devices and Slurm are asked what they know."""
    seen = trouble.seen(now.unix, run.attempt.number, drills_behind(run, trouble.cause is Cause.HANG))
    trouble = replace(trouble, what=seen.words)
    run.set_trouble(trouble)
    run.enter(Phase.SETTLING)
    run.alone.stop()
    if trouble.cause is not Cause.DEVICE:
        run.devices.left_alone = frozenset()  # they may be the reason now
    run.attempt.devices.faults = run.devices.acting  # one that clears meanwhile is still the reason
    run.attempt.closing.culprit = not all(status.ok for status in run.attempt.exits.values())
    run.attempt.closing.killed = any(status.signal in _MAYBE_SLURM for status in run.attempt.exits.values())
    if trouble.cause not in WILLED and not _has_heard(run, now):
        run.slurm.forget()
    stopped_by = now.mono + run.settings.stop.grace_s + run.settings.stop.kill_wait_s + MARGIN_S
    run.timers.only({Timer.STOP: stopped_by, Timer.TELL: now.mono + TELL_S})
    found: list[Decision] = [run.note(seen), stop_ranks(run, run.settings.stop.grace_s)]
    if trouble.cause in WILLED:
        return [*found, *_ask_who_requeued(run, trouble, now), *settle(run, now)]
    found += run.watch(now)
    if _unlooked(run):
        run.timers.set(Timer.LOOK, now.mono + run.settings.devices.answer_wait_s)
        found.append(LookAtDevices())
    elif any(kinds is not None for kinds in run.agents.kinds.values()):
        found.append(LookAtDevices())  # without waiting for a device; agents also report which ranks were working
    likely = choose(run.situation(trouble, now)).rung
    if _needs_slurm(run, likely):
        found.append(run.ask_slurm(now))
    run.fence.ask_anew()
    found += run.probe(sorted(_suspects(run)), now)
    if trouble.cause is Cause.LOST or likely == Rung.NODE_REPLACEMENT:
        found += run.look_ahead(now)
    return [*found, *settle(run, now)]


def _has_heard(run: Run, now: Now) -> bool:
    """Is Slurm's last answer recent enough? Not for donor jobs: the end of one may be the trouble."""
    return (
        run.slurm.heard_lately(now.mono) and run.slurm.answer is not None and not run.slurm.answer.error and not run.places.lent
    )


def _suspects(run: Run) -> set[str]:
    """Nodes that may be dead: silent nodes, and those of lost ranks, unless the ranks were lost with the step."""
    lost = () if run.attempt.step_end.gone else run.attempt.lost
    return {run.tasks[rank].node for rank in lost} - run.attempt.nodes.gone.keys() | set(run.silent_nodes())


def _needs_slurm(run: Run, likely: Rung) -> bool:
    """Is Slurm's answer needed? Not for a restart in place, which works while slurmctld is away. likely: the rung that what
    is known leads to.
    """
    if Capability.ASK not in run.facts.can or Timer.ASK in run.timers or run.slurm.answer is not None:
        return False
    return run.attempt.closing.killed or bool(run.attempt.nodes.called_back) or likely != Rung.IN_PLACE_RESTART


def _ask_who_requeued(run: Run, trouble: Trouble, now: Now) -> list[Decision]:
    """Ranks that were warned may have requeued the job themselves since Slurm was asked (submitit, Lightning)."""
    needed = trouble.cause is Cause.WARNING and _warning_needs_slurm(run) and Capability.ASK in run.facts.can
    return [run.ask_slurm(now)] if needed and run.slurm.at < now.mono else []


def _unlooked(run: Run) -> bool:
    return run.agents.may_tell(run.attempt.nodes.gone, run.attempt.devices.looked)


def settle(run: Run, now: Now) -> Answer:
    """Decide, once nothing is left to wait for."""
    if run.phase is not Phase.SETTLING:
        return []
    if all_stopped := run.attempt.all_stopped:
        run.timers.stop(Timer.STOP)
        run.attempt.closing.stopped_at = run.attempt.closing.stopped_at or now.unix
    if Timer.LOOK in run.timers and not _unlooked(run):
        run.timers.stop(Timer.LOOK)
    if not all_stopped or run.timers.running - {Timer.TELL}:
        return []
    run.timers.stop_all()
    return decide(run, now)


def decide_again(run: Run, now: Now) -> Answer:
    run.enter(Phase.SETTLING)
    run.timers.stop_all()
    return settle(run, now)


def tell_wait(run: Run, now: Now) -> list[Decision]:
    """Tell people what is waited for; usually all is known in a moment, and nothing is printed."""
    st = run.settings
    if not run.attempt.all_stopped:
        what, until = f"the ranks to end (stop.grace {st.stop.grace_s:g} s)", run.timers.due_at(Timer.STOP, now.mono)
        return run.wait_for(what, until - now.mono, now)
    word = f"an answer about {fold_nodes(run.fence.asked)}"
    asked = {Timer.LOOK: "the device checks", Timer.PROBE: word, Timer.ASK: "Slurm's answer about the job and its nodes"}
    asked |= dict.fromkeys((Timer.DIAGNOSIS, Timer.ADVICE), "the analysis of the ranks' output")
    asked[Timer.PROGRESS] = st.progress.file
    known = [(run.timers.at(wait), what) for wait, what in asked.items() if wait in run.timers]
    return run.wait_for(known[0][1], known[0][0] - now.mono, now) if known else []


def decide(run: Run, now: Now) -> Answer:
    trouble = run.trouble
    assert trouble is not None
    if trouble.cause is Cause.CRASH:  # others may have failed before they were stopped
        trouble = replace(trouble, status=run.attempt.own_status or trouble.status)
        run.set_trouble(trouble)
    willed = trouble.cause is Cause.REQUEST
    again = run.launch.failed and not willed and run.launch.in_vain < LAUNCHES_AGAIN
    if again and (why := _not_launched_by_slurm(run, now)):
        _launch_later(run, now)
        return [*ending.note_return(run, now), Say(f"{why}; starting it again")]
    # For a failure `_ask_ladder` waits for slurmctld; for a request nothing has failed, and the search would begin for ever.
    if willed or run.slurm.answer is None or not run.slurm.answer.away:
        run.attempt.search.settle(again=run.slurm.was_away and not run.signal.number)
    ended = _note_end_of_attempt(run, now)
    run.attempt.ended_on_loan(run.tasks, run.places.lent)
    if run.slurm.answer and not run.slurm.answer.away:
        ended += ending.note_return(run, now)
    if run.slurm.answer and run.slurm.answer.state in ENDING_STATES and not run.slurm.answer.error:
        outcome = ENDING_STATES[run.slurm.answer.state]
        return [*ended, *ending.end(run, outcome.words, trouble.status, now, outcome)]
    if status := run.attempt.step_end.cancelled:
        return [*ended, *ending.end(run, CANCELLED, status, now)]
    by_person = run.signal.meaning in (Meaning.INTERRUPTED, Meaning.STOPPED)
    if trouble.cause is Cause.WARNING or run.signal.open or by_person:
        waiting = _patience_with_slurm(run, _warning_needs_slurm(run), now)
        return [*ended, *(waiting or rungs.after_warning(run, trouble, now))]
    if willed:
        return [*ended, *_carry_out_request(run, trouble, now)]
    return [*ended, *_ask_ladder(run, trouble, now)]


def _ask_ladder(run: Run, trouble: Trouble, now: Now) -> Answer:
    """Ask the ladder, once what it looks at is known: what is behind the trouble, and what Slurm knows, where that counts."""
    s = run.situation(trouble, now)
    if is_answer(s):
        return _return_answer(run, s, now)
    if asked := causes.ask_what_is_behind(run, trouble, now):
        return asked
    choice = choose(s)
    if run.signal.meaning is None and _needs_slurm(run, choice.rung):
        # What was found while stopping has ruled out the rung that needed nothing from Slurm.
        return [run.ask_slurm(now)]
    if s.slurm is not None and s.slurm.away:
        if waiting := _patience_with_slurm(run, run.launch.failed or _answer_would_help(s, choice), now):
            return waiting
        run.attempt.search.settle(again=False)
        s = run.situation(trouble, now)
        choice = choose(s)
    return [run.ask_slurm(now)] if _fit_is_unasked(s, choice) else rungs.carry_out(run, choice, s, now)


def _return_answer(run: Run, s: Situation, now: Now) -> Answer:
    """The script wants to know the status, so nothing is done but to return it; said once, however often it asks."""
    first = run.history.slots.starts.get((run.facts.schedule, run.facts.step_key), 0) <= 1
    said = [Say(f"the status {s.status} is returned: {s.wish.call.words}")] if first else []
    return [*said, *ending.end(run, s.what, s.status, now)]


def _patience_with_slurm(run: Run, mends: bool, now: Now) -> list[Decision]:
    """Ask Slurm again while it is away and its answer could still help."""
    if not mends or run.slurm.answer is None or not run.slurm.answer.away:
        return []
    return ending.await_slurm(run, Timer.AWAY, "to decide what to do", run.slurm.answer.error, now)


def _warning_needs_slurm(run: Run) -> bool:
    return (
        run.signal.goes_on(run.slurm.requeues_preempted)
        and run.signal.meaning in (Meaning.WARNING, None)
        and Capability.REQUEUE in run.facts.can
    )


def _not_launched_by_slurm(run: Run, now: Now) -> str:
    if run.signal.number:
        return ""
    if run.slurm.was_away:
        return "slurmctld was away while the step was to start"
    if run.launch.undelivered:
        return f"srun could not start the step on every node ({run.launch.undelivered})"
    return "slurmctld had just come up when the step was to start" if run.slurm.just_came_up(now) else ""


def _launch_later(run: Run, now: Now) -> None:
    """Launch when slurmctld has had time to learn the state of nodes and jobs."""
    run.enter(Phase.LAUNCHING)
    run.timers.only({Timer.LAUNCH_AGAIN: now.mono + GATHERS_S * max(1, run.launch.in_vain)})
    run.launch.again()


def _note_end_of_attempt(run: Run, now: Now) -> list[Decision]:
    if run.attempt.closing.written:
        return []
    run.attempt.closing.written = True
    a, program = run.attempt, run.attempt.program
    ended = rec.AttemptEnded(
        now.unix, a.number, a.summary(), program.step, program.beats, program.saved, a.closing.stopped_at,
        a.closing.saves_told(),
    )  # fmt: skip
    begun = run.history.crashes.experiment
    noted: list[Decision] = [run.note(ended)]
    further = begun is not None and run.history.progress.made_at > begun.at
    return [*noted, *causes.weigh_experiment(run, True, now)] if further else noted


# --- the ranks have been stopped: carry out the request


def _carry_out_request(run: Run, trouble: Trouble, now: Now) -> Answer:
    number = run.requests.take_in_hand()
    s = run.situation(trouble, now)
    request = run.history.control.get(number)
    if request is not None and request.asked.verb == RESTART:
        back = Choice(Rung.IN_PLACE_RESTART, f"as request {number} asks", "", ())
        return _start_again(run, back, trouble, s, now)
    if number:
        choice = Choice(Rung.ON_REQUEST, f"as request {number} asks", "", ())
        return rungs.carry_out(run, choice, s, now)
    choice = choose(s)
    if choice.rung != Rung.FAIL:
        return rungs.carry_out(run, choice, s, now)
    # What was possible before the ranks were stopped no longer is. Nothing has failed: they start again where they were.
    why = f"the node cannot be excluded after all: {choice.why}"
    back = Choice(Rung.IN_PLACE_RESTART, why, "", choice.passed, choice.settings)
    return _start_again(run, back, trouble, s, now)


def _start_again(run: Run, back: Choice, trouble: Trouble, s: Situation, now: Now) -> Answer:
    """Start the stopped ranks again where they were, unless something has happened there meanwhile."""
    bad = {**run.attempt.stuck_nodes(run.tasks), **bad_nodes(run.slurm.answer, run.attempt, run.chosen_nodes())}
    broken = "; ".join(f"{node}: {what}" for node, what in sorted(bad.items()))
    if why := run.attempt.step_end.unended or s.others.not_again or broken:
        run.set_trouble(
            Trouble(Cause.LOST, f"{trouble.what}; {why}", 1, rank=trouble.rank)
        )  # nothing may start beside that: the ladder is asked
        return [ThenDecide()]
    decided = record_decision(run, back, s, now)
    if run.attempt.step_end.gone or run.attempt.lost:
        return [decided, *ending.end_step(run, 0, ThenLaunch(), now)]
    return [decided, *rungs.restart(run, now)]


# --- other events that arrive meanwhile


def on_rank_stopped(run: Run, event: ev.RankStopped, now: Now) -> Answer:
    if run.attempt.stop(event) and event.free_port and event.rank in run.tasks:  # otherwise it is too late for its launch
        run.arrive(run.tasks[event.rank].with_port(event.free_port))
    return [Settled()]


def on_rank_exited(run: Run, event: ev.RankExited, now: Now) -> list[Decision]:
    run.attempt.exited(event)
    return []


def on_rank_unstartable(run: Run, event: ev.RankUnstartable, now: Now) -> list[Decision]:
    run.attempt.could_not_start(event)
    return []


def on_shim_lost(run: Run, event: ev.ShimLost, now: Now) -> Answer:
    run.attempt.close(event.rank, event.why, event.hangup)
    return [Settled()]


def on_step_ended(run: Run, event: ev.StepEnded, now: Now) -> Answer:
    lose_step(run, event, f"the step ended; its launcher {event.status}")
    return settle(run, now)


def on_slurm_answered(run: Run, event: ev.SlurmAnswered, now: Now) -> Answer:
    run.take_answer(event, now)
    return settle(run, now)


def on_stop_overdue(run: Run, now: Now) -> Answer:
    for rank in run.attempt.ranks - run.attempt.stopped:
        run.attempt.lose(rank, "unknown whether its processes have ended")
    return settle(run, now)


def on_look_overdue(run: Run, now: Now) -> Answer:
    """The device checks took too long: devices that do not answer are unknown, neither good nor to blame."""
    run.attempt.devices.look(run.agents.kinds)
    run.agents.wait_no_more()
    return settle(run, now)


def _answer_would_help(s: Situation, choice: Choice) -> bool:
    """Would the job fail only because Slurm has not answered? Or does it need another step, which Slurm alone gives?"""
    hoped = ev.SlurmAnswered("RUNNING", batch=True, requeueable=True, node_count=1)
    return choice.rung in SWAPS or (choice.rung == Rung.FAIL and choose(replace(s, slurm=hoped)).rung != Rung.FAIL)


def _fit_is_unasked(s: Situation, choice: Choice) -> bool:
    """Has Slurm told whether the job fits without other nodes than those that it would now be kept off?"""
    told = s.slurm.without if s.slurm and not s.slurm.error else None
    return told is not None and bool(s.blamed) and told != s.kept_out.keys() and choice.rung in _MAY_NOT_FIT
