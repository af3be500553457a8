"""Ends the step, and ftrun. What follows (a value of `then`) begins only when nothing of the old attempt can still run: the step
has ended, and the leases of all unreachable ranks have run out.
"""

from __future__ import annotations

import math

from ftslurm.errors import REQUEUED_STATUS
from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision
from ftslurm.model.events import Now
from ftslurm.model.exits import ExitStatus, signal_name
from ftslurm.model.folds.summary import AFTER_LIMIT
from ftslurm.model.nodes import fold_nodes, mark_down
from ftslurm.model.outcome import Outcome
from ftslurm.model.record import Waiting
from ftslurm.model.rungs import SWAPS, Capability
from ftslurm.model.text import in_time
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.outside import TELL_S, Announced, Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import SIGINT, SIGKILL, SIGTERM, Run
from ftslurm.policies.judge.then import Answer, Settled, Then, ThenFinish, starts
from ftslurm.policies.ladder import Cause
from ftslurm.policies.situation import Trouble
from ftslurm.policies.start_time import plan_start

# --- What is waited for of Slurm. First a slurmctld that is away: nothing that its return would solve is given up before
# `slurm.patience` is spent. A restart in place asks nothing of Slurm and does not use this.
#
# Then the end that the job's time limit brings. Where the job asked to go on after it (`time_limit.resume`), ftrun asks Slurm
# when it is, warns the ranks in time, and requeues the job as after a warning of Slurm's (ranks.py). An operator may move
# the end at any time: Slurm is asked again, seldom, and before the warning

# Seconds from a failed request to the next one. Each request is itself repeated for `slurm.timeout`.
ASK_AGAIN_S = 5.0
# How long a slurmctld that has just started gets to learn the state of nodes and jobs.
GATHERS_S = 3.0

# The lead where no checkpoint was seen, and the least: a training step ends, and a checkpoint of some gigabytes is written.
LEAD_S, LEAST_LEAD_S = 120.0, 30.0
# Times the longest checkpoint so far: the present training step ends first, and a file system may be busier then.
CHECKPOINTS = 2.0
# At the least between two questions, at the most, and the part of the lead: a limit that was shortened is known in time.
ASK_LEAST_S, ASK_MOST_S, ASK_PART = 5.0, 300.0, 0.5
# From the end of the ranks' time to the limit: they are killed, the step ends, and Slurm takes the requeue.
REQUEUE_S = 15.0


def await_slurm(run: Run, timer: Timer, what: str, why: str, now: Now) -> list[Decision]:
    """Try `what` again when `timer` is due. Empty once the patience is spent; then nothing is waited for."""
    left_s = run.slurm.wait_left_s(run.settings.slurm.patience_s, now.mono)
    if left_s <= 0:
        return []
    run.timers.set(timer, now.mono + min(ASK_AGAIN_S, left_s))
    quiet = not run.slurm.to_be_said(now.mono)
    words = f"Slurm does not answer: {why}. ftrun waits up to {in_time(left_s)} (slurm.patience) {what}"
    until = now.unix + left_s
    waits = Waiting(now.unix, run.attempt.number, f"slurmctld, {what}", until, "systemctl start slurmctld  (an administrator)")
    noted = [] if quiet else [run.note(waits)]
    return [*noted, do.Say(words, quiet)]


def note_return(run: Run, now: Now) -> list[Decision]:
    """Call this when Slurm has answered."""
    since = run.slurm.back()
    return [] if since is None else [do.Say(f"Slurm answers again, after {in_time(now.mono - since)}")]


def look_at_limit(run: Run, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
    """Warn the ranks, or people, or ask again when that is due."""
    if run.signal.number or not (end := run.slurm.ends_at):
        return []
    if not run.settings.resumes_itself:
        return _tell_people(run, end - now.unix, now)
    left_s = end - now.unix - _lead_s(run)
    if event.error and left_s > -_lead_s(run) / 2:
        run.timers.set(Timer.LIMIT, now.mono + max(ASK_AGAIN_S, left_s))
    elif left_s > 0:
        often_s = min(ASK_MOST_S, max(ASK_LEAST_S, ASK_PART * _lead_s(run)))
        run.timers.set(Timer.LIMIT, now.mono + min(left_s, often_s))
    elif run.slurm.batch:
        return _warn(run, end - now.unix, now)
    return []


def _tell_people(run: Run, left_s: float, now: Now) -> list[Decision]:
    """The script that has called ftrun may end, and ftrun with it, at the moment of the limit: tell it before."""
    if not run.facts.ends_at or left_s <= 0:
        return []
    if left_s > TELL_S:
        run.timers.set(Timer.LIMIT, now.mono + left_s - TELL_S)
        return []
    says = run.told.tell("the time limit")
    return [do.Say(f"the time limit ends the job in {in_time(left_s)}; {AFTER_LIMIT}")] if says else []


def _lead_s(run: Run) -> float:
    asked, seen = run.settings.time_limit.resume_s, run.attempt.program.saving_s
    return asked or (max(LEAST_LEAD_S, CHECKPOINTS * seen) + REQUEUE_S if seen else LEAD_S)


def _warn(run: Run, left_s: float, now: Now) -> list[Decision]:
    """left_s: until the limit, seconds."""
    number = run.signal.warn_ourselves(now.mono)
    run.timers.set(Timer.WARNING, now.mono + time_to_save_s(left_s))
    said = f"the time limit ends the job in {in_time(left_s)}: the ranks get {signal_name(number)}, then the job is requeued"
    noted = run.note(rec.Signalled(now.unix, signal_name(number), Announced.LIMIT.value))
    return [noted, do.Say(said), do.SignalRanks(number)]


def time_to_save_s(left_s: float) -> float:
    """Of the seconds until the allocation ends, those that the ranks have."""
    return max(left_s - REQUEUE_S, left_s / 2, 0.0)


# --- the end of the step

# From releasing the shims to killing the step, and from the kill to continuing without an answer; srun waits for its slurmstepds.
STEP_END_WAIT_S = 20.0
# A proof that comes within this time needs no message about waiting.
TELL_LEASES_S = 1.0
# A step usually ends within a second, and srun says nothing however long it takes: people are told only of a wait that they would
# wonder about. On a busy cluster a few seconds are ordinary.
TELL_STEP_S = 8.0

# Why ftrun ends where `scancel JOB.STEP` has ended its step.
CANCELLED = "the step was cancelled"

# srun's status where the memory limit of the step ended a task or a process of it, by any signal or code.
# Source: srun.c, SIG_OOM (22.05 to 26.05); seen on 22.05.
OUT_OF_MEMORY = ExitStatus(1)


def is_cancelled(run: Run, event: ev.StepEnded) -> bool:
    """Has a person cancelled our step? Not where a rank had failed by itself, a node is lost, or its end was announced; nor where
    a node was lost before: once it is back, its old srun cancels the step of its number, which is ours by now (seen on 22.05)."""
    attempt = run.attempt
    own = [status for rank, status in attempt.exits.items() if rank not in attempt.late and not status.ok]
    ill = any(status.signal != SIGKILL for status in own) or attempt.nodes.gone or run.signal.number
    old_srun = bool(run.history.exclusions.dead) or run.history.requeues.scheduled_by[1] in (Cause.NODE.value, Cause.LOST.value)
    return not ill and not old_srun and run.launch.own_step(run.places.lent) in event.cancelled


def lose_step(run: Run, event: ev.StepEnded, what: str) -> None:
    run.attempt.lose_step(what)
    if is_cancelled(run, event):
        run.attempt.step_end.cancelled = event.status.shell


def end(run: Run, what: str, status: int, now: Now, outcome: Outcome = Outcome.ENDED) -> Answer:
    """End the step, and then ftrun, because the work is done or a person or Slurm wants it: no rung is asked."""
    return end_step(run, status, ThenFinish(what, status, outcome), now)


def end_step(run: Run, status: int, after: Then, now: Now) -> Answer:
    if run.attempt.step_end.gone:
        run.enter(Phase.ENDING)
        run.end.follow_with(after)
        return go_on_when_fenced(run, now)
    if run.attempt.lost and not _lost_to_dead_nodes(run):
        return kill_step(run, after, now)
    run.enter(Phase.ENDING)
    run.end.follow_with(after)
    run.fence.let_go_at = now.mono
    run.timers.only({Timer.STEP: now.mono + STEP_END_WAIT_S, Timer.TELL: now.mono + TELL_STEP_S})
    return [do.EndStep(0 if run.attempt.closing.culprit else status, forget=starts(after)), *_abandon(run)]


def _lost_to_dead_nodes(run: Run) -> bool:
    """Does the launcher miss only ranks on nodes that cannot answer it either?"""
    tasks, attempt = run.tasks, run.attempt
    return all(rank in tasks and tasks[rank].node in attempt.nodes.gone for rank in attempt.lost)


def _abandon(run: Run) -> list[Decision]:
    """Abandon the launcher once every live shim has ended: srun would wait for the dead nodes (30 s on 22.05, even when told
    to end).
    """
    attempt = run.attempt
    if not attempt.nodes.gone or attempt.step_end.abandoned:
        return []
    if len(attempt.lost) + len(attempt.shims.departed) < len(attempt.ranks):  # it is asked after each of a thousand shims
        return []
    if attempt.ranks - attempt.lost.keys() - attempt.shims.departed or not _lost_to_dead_nodes(run):
        return []
    attempt.step_end.abandoned = True
    return [do.AbandonStep()]


def on_shim_left(run: Run, event: ev.ShimLeft, now: Now) -> list[Decision]:
    run.attempt.shims.departed.add(event.rank)
    return _abandon(run) if Timer.STEP in run.timers else []


def kill_step(run: Run, after: Then, now: Now) -> list[Decision]:
    run.enter(Phase.ENDING)
    run.end.follow_with(after)
    run.fence.let_go_at = now.mono if run.fence.let_go_at is None else run.fence.let_go_at
    run.timers.only({Timer.KILLED_STEP: now.mono + STEP_END_WAIT_S, Timer.TELL: now.mono + TELL_STEP_S})
    if not run.slurm.runs_elsewhere:
        return [do.KillStep()]
    run.attempt.step_end.abandoned = True
    return [do.AbandonStep(silently=True)]


def break_off_launch(run: Run, end: ThenFinish, now: Now) -> Answer:
    """End while the step starts."""
    no_launcher = run.timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS)
    return [end] if no_launcher else kill_step(run, end, now)


def interrupt(run: Run, now: Now) -> Answer:
    """A Ctrl-C ends everything (srun's own first one only reports)."""
    status = run.trouble.status if run.trouble is not None and run.phase is Phase.SETTLING else 128 + SIGINT
    trouble = Trouble(Cause.WARNING, "interrupted by Ctrl-C", status, outcome=Outcome.INTERRUPTED)
    return break_off(run, Meaning.INTERRUPTED, trouble, now)


def break_off(run: Run, meaning: Meaning, trouble: Trouble, now: Now) -> Answer:
    """A person ends the job, from any phase: ranks get the grace, waits end, no rung is asked."""
    finish = ThenFinish(trouble.what, trouble.status, trouble.outcome)
    match run.phase:
        case Phase.LAUNCHING:
            return break_off_launch(run, finish, now)
        case Phase.RUNNING:
            run.signal.means(meaning)
            return [trouble]
        case Phase.SETTLING:
            run.signal.means(meaning)
            run.set_trouble(trouble)
            run.timers.keep(Timer.STOP)  # other answers no longer matter
            return [Settled()]
        case Phase.HEALING:
            return end_step(run, trouble.status, finish, now)
    dropped = drop_remedy(run, trouble.what, now)
    if run.phase is not Phase.ENDING:
        return [*dropped, finish]
    run.end.follow_with(finish)
    return [*dropped, *settle(run, now)]


def drop_remedy(run: Run, why: str, now: Now) -> list[Decision]:
    """What was to follow does not: no search for nodes goes on, and nobody finds the decision open and finishes it."""
    search, decided, open_ = run.places.take_search(), run.decided, run.history.requeues.open
    run.timers.stop(Timer.SEARCH_AGAIN)
    loans = run.loans.end(search.lent.values()) if search is not None else []
    if decided is None or not (decided.rung in SWAPS or (open_ is not None and open_.id == decided.id)):
        return loans
    return [*loans, run.note(rec.CarriedOut(now.unix, decided.id, False, why))]


def go_on_when_fenced(run: Run, now: Now, overdue: bool = False) -> Answer:
    """Begin what follows, once nothing of the old attempt can still run beside it."""
    left = run.unproven(now) if run.end.another_try else {}
    if math.inf in left.values():
        # Only Slurm can end a process that cannot be killed, and it restarts the job only after that.
        run.end.as_unended()
        left = {rank: at for rank, at in left.items() if at < math.inf}
    if not left:
        run.timers.stop_all()
        return [run.end.then]
    if run.fence.let_go_at is None and (overdue or left.keys() <= run.attempt.left.keys()):
        # The launcher ended, but its shims live. They would renew leases as long as one process cannot be killed; ranks that
        # are still being stopped keep their grace.
        run.fence.let_go_at = now.mono
        return [do.EndStep(0, forget=True), *go_on_when_fenced(run, now)]
    first = Timer.LEASE not in run.timers
    run.timers.keep(Timer.TELL)
    if first:
        run.timers.set(Timer.TELL, now.mono + TELL_LEASES_S)
    run.timers.set(Timer.LEASE, max(left.values()))
    return []


def tell_wait(run: Run, now: Now) -> list[Decision]:
    """Tell people of a wait for leases, or for a step that takes longer than usual."""
    if Timer.LEASE not in run.timers:
        wait_s = max(run.timers.due_at(Timer.STEP, 0.0), run.timers.due_at(Timer.KILLED_STEP, 0.0)) - now.mono
        return run.wait_for("Slurm to end the step", wait_s, now) if wait_s > 0 else []
    left = run.unproven(now)
    if not left:
        return []
    nodes = fold_nodes({run.tasks[rank].node for rank in left})
    wait_s = run.timers.due_at(Timer.LEASE, now.mono) - now.mono
    said = f"waiting up to {wait_s:.0f} s for the leases of the ranks on {nodes} to expire"
    return run.wait_for(f"the leases of the ranks on {nodes}", wait_s, now, said)


def settle(run: Run, now: Now) -> Answer:
    """Something is known that the leases were waited for, perhaps."""
    return go_on_when_fenced(run, now) if Timer.LEASE in run.timers else []


def on_step_ended(run: Run, event: ev.StepEnded, now: Now) -> Answer:
    by_order = run.timers.any_of(Timer.STEP, Timer.KILLED_STEP) and run.end.another_try and is_cancelled(run, event)
    run.timers.stop_all()
    run.attempt.step_end.end()
    if by_order:  # srun's word came later than those of the shims
        return _drop_for_order(run, event, now)
    if run.attempt.out_of_memory and event.status == OUT_OF_MEMORY:
        run.end.finish_with(OUT_OF_MEMORY.shell)
    return go_on_when_fenced(run, now)


def _drop_for_order(run: Run, event: ev.StepEnded, now: Now) -> Answer:
    run.end.follow_with(ThenFinish(CANCELLED, event.status.shell))
    decided = run.decided
    dropped = [run.note(rec.CarriedOut(now.unix, decided.id, False, CANCELLED))] if decided is not None else []
    return [*dropped, *go_on_when_fenced(run, now)]


def on_signal(run: Run, event: ev.SignalSeen, now: Now) -> Answer:
    """A second Ctrl-C while the step ends: kill the step and start nothing again."""
    broken_off: Answer = []
    if event.rank is None and event.number == SIGINT and run.end.another_try:
        broken_off = interrupt(run, now)
    if run.end.another_try and run.signal.announces(event.number):
        run.signal.keep(event)
        return []
    if event.rank is None and event.number in (SIGINT, SIGTERM) and Timer.STEP in run.timers:
        return [*broken_off, *kill_step(run, run.end.then, now)]
    return broken_off


def on_step_overdue(run: Run, now: Now) -> list[Decision]:
    return kill_step(run, run.end.then, now)


def on_killed_step_overdue(run: Run, now: Now) -> Answer:
    """The launcher cannot end the step either: only Slurm's own clean-up remains."""
    run.attempt.step_end.give_up()
    run.end.as_unended()
    return go_on_when_fenced(run, now)


def on_lease_due(run: Run, now: Now) -> Answer:
    return go_on_when_fenced(run, now, overdue=True)


# --- ftrun ends: finished, job requeued, or without a ledger


def finish(run: Run, what: str, status: int, now: Now, outcome: Outcome) -> list[Decision]:
    run.enter(Phase.FINISHED)
    run.end.status = status
    run.timers.stop_all()
    finished = rec.Finished(now.unix, run.facts.run, status, what, _unproven_nodes(run, now), outcome.value)
    # Our own requeue has kept it already.
    kept = [do.KeepOutput()] if outcome.goes_on and outcome is not Outcome.REQUEUED else []
    card = [do.ShowCard()] if outcome is Outcome.TIMEOUT else []
    shown = [] if outcome.goes_on else run.told.show_on(0)
    return [*run.loans.end_all(), run.note(finished), *card, *kept, *shown, do.Finish(status)]


def _unproven_nodes(run: Run, now: Now) -> tuple[str, ...]:
    """Nodes whose ranks are not proven ended. Only silent nodes: on the others all connections close within moments of the
    end, and the next ftrun need not wait for that.
    """
    left = run.unproven(now)
    return tuple(sorted({run.tasks[rank].node for rank in left} & run.fence.silent.keys()))


def hand_over(run: Run, now: Now) -> list[Decision]:
    """The step has ended and only the batch script and ftrun run: requeue the job now."""
    assert run.decided is not None
    run.enter(Phase.REQUEUEING)
    run.timers.stop_all()
    st = run.settings
    slurm = run.slurm.answer
    start = plan_start(st.requeue, slurm is not None and slurm.epilog, run.facts.clean_ups or run.history.clean_ups)
    clean_up = _clean_up(run)
    run.end.cleaned = True
    told: list[Decision] = []
    if clean_up is not None:
        told = run.wait_for(f"the job's own clean-up on {fold_nodes(clean_up.nodes)}", max(clean_up.wait_s, 0.0), now)
    requeue = do.Requeue(run.decided.id, run.decided.exclude, start, st.requeue.even_if_no_requeue, clean_up)
    return [*run.loans.end_all(), *told, *_tell_requeue(run, start, now), requeue]


def _tell_requeue(run: Run, start: do.Start, now: Now) -> list[Decision]:
    """Tell people about the requeue now, because ftrun does not run while the job waits. Each message is printed once, even
    if slurmctld is away and is asked again.
    """
    assert run.decided is not None
    dead = run.decided.dead
    limit_s = run.slurm.answer.slurmd_timeout_s if run.slurm.answer is not None else 0.0
    timeout = f" (SlurmdTimeout {limit_s:g} s, up to twice that)" if limit_s else ""
    down = f"Slurm marks {fold_nodes(dead)} down{timeout}"
    what = f"its nodes to be clean, which they are at the latest when {down}" if dead else "its nodes to be clean"
    if Capability.ASK not in run.facts.can or not run.told.tell(what):
        return []
    if dead:
        when = f"as soon as its nodes are clean, at the latest when {down}; at once by an administrator: {mark_down(dead)}"
    else:
        watched = start.watch_s and len(run.facts.nodes) > 1  # a single node has none beside it to watch
        why = "as nobody knows yet how long a clean-up takes here" if start.watch_s else "if its nodes are clean by then"
        when = "as soon as its nodes are clean" if watched else f"in about {start.in_s:.0f} s, {why}"
        if "SLURM_HET_SIZE" in run.facts.env.user:
            when += ", with the next run of Slurm's backfill (bf_interval), as every heterogeneous job"
    helps = f"{mark_down(dead)}  (an administrator)" if dead else ""
    if run.slurm.answer is not None and run.slurm.answer.to_be_held:
        helps = f"scontrol release {run.facts.number}"
        when = f"when it is released, as somebody has held it: {helps}"
    number = run.attempt.number or run.history.attempts
    waits = run.note(rec.Waiting(now.unix, number, what, helps=helps))
    shown = run.told.show(number, f"waiting for {what}, requeued")
    return [waits, do.Say(f"requeueing the job: it starts again {when}"), *shown]


def _clean_up(run: Run) -> do.CleanUp | None:
    """The clean-up that the job configured: once, on our nodes where ranks ran and a step can start."""
    away = {*run.attempt.nodes.gone, *run.fence.silent, *run.places.lent}
    nodes = tuple(node for node in run.step_nodes() if node not in away)
    wanted = run.settings.requeue.cleanup and nodes and not run.end.cleaned
    return do.CleanUp(run.settings.requeue.cleanup, nodes, run.settings.requeue.cleanup_grace_s) if wanted else None


def on_requeue_ended(run: Run, event: ev.RequeueEnded, now: Now) -> list[Decision]:
    assert run.decided is not None
    if event.ok:
        told = _note_requeue(run, rec.CarriedOut(now.unix, run.decided.id, True, event.why), event.recorded)
        requeued = finish(run, Outcome.REQUEUED.words, REQUEUED_STATUS, now, Outcome.REQUEUED)
        return [*told, *note_return(run, now), *requeued]
    if event.away and (waiting := await_slurm(run, Timer.REQUEUE, "to requeue the job", event.why, now)):
        return waiting  # the decision stays open, and its budget is charged once
    done = run.note(rec.CarriedOut(now.unix, run.decided.id, False, event.why))
    what = f"{run.decided.why}; the requeue failed: {event.why}"
    ends = finish(run, what, run.decided.status or 1, now, Outcome.ENDED)
    return [done, do.Say(f"the requeue failed: {event.why}"), *ends]


def _note_requeue(run: Run, done: rec.CarriedOut, recorded: bool) -> list[Decision]:
    """recorded: the step that has requeued the job has written it down."""
    if not recorded:
        return [run.note(done)]
    run.take_in(done)
    return []


def on_ledger_failed(run: Run, event: ev.LedgerFailed, now: Now) -> Answer:
    """The ledger could not be written, and what is not recorded is not done: the job ends as if there were no ladder."""
    run.loans.all_again()
    status = run.trouble.status if run.trouble else 1
    what = f"{run.trouble.what if run.trouble else 'cannot go on'}; ftrun takes no remedy: {event.why}"
    if run.phase is Phase.FINISHED:
        return [do.Say(what), *run.loans.end_all(), do.Finish(run.end.status)]
    return [do.Say(what), *end_step(run, status, ThenFinish(what, status), now)]
