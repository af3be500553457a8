"""Ranks that exit or are lost, and the signals from outside that explain why, or are passed on to them."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say, ShowCard, SignalRanks, StopRanks
from ftslurm.model.events import Now
from ftslurm.model.exits import ExitStatus, of_step, signal_name
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.outcome import ENDING_STATES, Outcome
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.settings.kinds import ALONE
from ftslurm.model.text import counted, fold_numbers
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.model.verdict import Verdict, unknown
from ftslurm.policies.judge import causes, devices, ending, starting
from ftslurm.policies.judge.causes import DIAGNOSIS_S, TOOK_TOO_LONG
from ftslurm.policies.judge.ending import lose_step, time_to_save_s
from ftslurm.policies.judge.outside import Announced, Meaning
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import MARGIN_S, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, Run, record_decision, stop_ranks
from ftslurm.policies.judge.then import Answer
from ftslurm.policies.ladder import Alone, Cause, choose
from ftslurm.policies.situation import Trouble

# --- Signals from outside: they are passed on as srun does, and Slurm is asked for their meaning. After a warning the ranks
# have a grace to end by themselves; Ctrl-C and the end of the job end them

# How long a signal of ftrun's own waits for Slurm's answer whether the job is ending (then the ranks get it from Slurm).
PASS_ON_WITHIN_S = 2.0
# The signals that end ft_launcher and torchrun. Source: torch.distributed.elastic, _terminate_process_handler.
_ENDING_SIGNALS = frozenset({SIGTERM, SIGINT, SIGHUP, SIGQUIT})


def on_signal(run: Run, event: ev.SignalSeen, now: Now) -> Answer:
    """A signal while ranks run. ftrun's own signals are passed on as srun does. Slurm is asked for the meaning of a TERM or a
    warning.
    """
    if (within_s := _ends_ranks_within(run, event)) is not None:
        return _tell_to_end(run, event, within_s, now)
    if event.rank is None and event.number == SIGINT:
        return _interrupt(run, now)
    known = run.signal.announces(event.number)
    if not known or Capability.ASK not in run.facts.can:
        passed_on: list[Decision] = [SignalRanks(event.number)] if event.rank is None else []
        if not known or run.signal.number:
            return passed_on
        run.signal.take(event.number, now.mono)
        return [*passed_on, *_act_on_meaning(run, None, now)]
    if event.rank is not None:
        run.signal.by_ranks.add(event.number)
    else:
        run.signal.pass_on_later(event.number, ends=event.number == SIGTERM and not event.again)
        run.timers.set(Timer.PASS_ON, now.mono + PASS_ON_WITHIN_S)
    if run.signal.number:
        return []
    run.signal.take(event.number, now.mono)
    return [run.ask_slurm(now)]


def on_earlier_signal(run: Run, event: ev.SignalSeen, since: float, now: Now) -> Answer:
    """A signal that came before the ranks did: it counts from then on."""
    found = on_signal(run, event, now)
    run.signal.take(run.signal.number, since)
    return found


def _ends_ranks_within(run: Run, event: ev.SignalSeen) -> float | None:
    """Seconds that the ranks have to end after this signal; None if it may be only a warning."""
    st = run.settings
    if st.stop.after_signal_s:
        return st.stop.after_signal_s if event.number in _ENDING_SIGNALS else None
    alone = run.facts.launcher == "local" and event.rank is None and event.number == SIGTERM
    return st.stop.grace_s if alone and not st.warning.requeue else None


def _tell_to_end(run: Run, event: ev.SignalSeen, within_s: float, now: Now) -> Answer:
    """Send the signal to each rank once. A rank that still runs after that time is killed, and so are all at a second signal
    to ftrun.
    """
    again = run.signal.meaning is Meaning.TOLD_TO_END
    if event.rank is not None:
        run.signal.told_ranks.update([event.rank])
    if again and event.rank is None:
        run.signal.out_of_patience = True
        return [run.warning_trouble()]
    if again:
        return []
    run.signal.take(event.number, now.mono)
    told = _end_within(run, within_s, now)
    if run.attempt.all_ended:
        return [*told, run.warning_trouble()]
    at_once = event.rank is None or run.facts.launcher == "local"
    delay_s = run.settings.stop.signal_delay_s if at_once else PASS_ON_WITHIN_S  # Slurm usually signals all ranks
    if not delay_s:
        return [*told, *_pass_to_the_rest(run)]
    run.signal.pass_on_later(event.number)
    run.timers.set(Timer.PASS_ON, now.mono + min(delay_s, within_s / 2))
    return told


def _end_within(run: Run, within_s: float, now: Now) -> list[Decision]:
    """The signal that was taken ends the ranks, and by then those that take no notice of it."""
    run.signal.means(Meaning.TOLD_TO_END)
    run.timers.set(Timer.WARNING, now.mono + within_s)
    return [run.note(rec.Signalled(now.unix, signal_name(run.signal.number), Meaning.TOLD_TO_END.value))]


def _pass_to_the_rest(run: Run) -> list[Decision]:
    rest = run.signal.untold(run.attempt.ranks - run.attempt.exits.keys())
    run.signal.told_ranks.update(rest)
    run.signal.by_ranks.add(run.signal.number)
    group = bool(run.settings.stop.after_signal_s)  # torchrun's own: SubprocessHandler.close
    return [SignalRanks(run.signal.number, rest, group)] if rest else []


def is_of_lender(run: Run, event: ev.SignalSeen) -> bool:
    """Is the signal of a donor job? Slurm's signals to a rank on a lent node are about the donor job; ours may run on."""
    task = run.tasks.get(event.rank) if event.rank is not None else None
    return task is not None and task.node in run.places.lent


def on_lender_signal(run: Run, event: ev.SignalSeen, now: Now) -> list[Decision]:
    """A donor job that was cancelled or preempted, or whose time is up, loses its ranks in a moment: ask Slurm at once."""
    assert event.rank is not None
    if event.number != SIGTERM or run.phase not in (Phase.RUNNING, Phase.SETTLING):
        return []
    run.attempt.nodes.called_back.add(run.tasks[event.rank].node)
    return run.ask_slurm_unless_asked(now) if Capability.ASK in run.facts.can else []


def _lose_loans(run: Run) -> Answer:
    """Begin trouble where a loan has ended, though its ranks have not reported that yet."""
    if not run.attempt.nodes.returned:
        return []
    what = "; ".join(f"{node} is lent no more: {why}" for node, why in sorted(run.attempt.nodes.returned.items()))
    return [Trouble(Cause.LOST, what, 1)]


def pass_on(run: Run, now: Now) -> list[Decision]:
    """Pass ftrun's own signal on to the ranks, unless they got it themselves, as when Slurm signals the whole job."""
    run.timers.stop(Timer.PASS_ON)
    number = run.signal.take_to_pass_on()
    if number and run.signal.meaning is Meaning.TOLD_TO_END:
        return _pass_to_the_rest(run)
    if not number or number in run.signal.by_ranks:
        return []
    run.signal.by_ranks.add(number)
    return [SignalRanks(number)]


def _interrupt(run: Run, now: Now) -> Answer:
    """A second Ctrl-C does not wait for the grace."""
    at_once = [stop_ranks(run, 0.0)] if run.signal.meaning is Meaning.INTERRUPTED else []
    return [*at_once, *ending.interrupt(run, now)]


def on_signal_late(run: Run, event: ev.SignalSeen, now: Now) -> Answer:
    """A signal while ranks are being stopped or devices heal. If it may end the job, Slurm is asked before the decision;
    otherwise it is kept for the next ranks.
    """
    if event.rank is None and event.number == SIGINT:
        return _interrupt(run, now)
    if not run.signal.announces(event.number):
        return []
    if run.signal.number or not (event.number == SIGTERM or run.signal.asks_for_requeue(event.number)):
        run.signal.keep(event)
        return []
    run.signal.take(event.number, now.mono)
    if event.rank is None and Capability.ASK not in run.facts.can:
        run.signal.means(Meaning.END)
    return run.ask_slurm_unless_asked(now) if Capability.ASK in run.facts.can else []


def on_slurm_answered(run: Run, event: ev.SlurmAnswered, now: Now) -> Answer:
    """Slurm's answer while ranks run: about a signal, or about a fault that only a requeue can handle."""
    run.take_answer(event, now)
    if loan_over := _lose_loans(run):
        return loan_over
    if run.signal.open:
        return _act_on_meaning(run, None if event.error else ENDING_STATES.get(event.state), now)
    return [*ending.look_at_limit(run, event, now), *devices.act_on_faults(run, now)]


def _act_on_meaning(run: Run, end: Outcome | None, now: Now) -> Answer:
    """The meaning is known. After a warning the ranks end by themselves; in a job that ends they are stopped."""
    run.signal.means(Meaning.END if end else Meaning.WARNING)
    if not end and run.slurm.preempted:
        run.signal.warn(Announced.PREEMPTION)
    goes_on = run.signal.goes_on(run.slurm.requeues_preempted)
    if not (end or goes_on or run.attempt.all_ended) and run.signal.ends_ftrun:
        told = _end_within(run, run.settings.stop.grace_s, now)
        return [*told, *_pass_to_the_rest(run)]
    words = end.words if end else run.signal.announced.value
    note = run.note(rec.Signalled(now.unix, signal_name(run.signal.number), words))
    if end:
        trouble = Trouble(Cause.WARNING, end.words, 128 + run.signal.number, outcome=end)
        return [note, trouble]
    if run.attempt.all_ended:
        return [note, run.warning_trouble()]
    note_and_signal: list[Decision] = [note, *pass_on(run, now)]
    if goes_on or run.attempt.exits:
        run.timers.set(Timer.WARNING, now.mono + _warning_grace_s(run, now))
    return note_and_signal


def on_rank_ended(run: Run, now: Now) -> Answer:
    """A rank ended after the signal: the first starts the grace of the others, the last ends the attempt."""
    if run.attempt.all_ended and run.signal.meaning is not None:
        return [run.warning_trouble()]
    run.timers.set_first(Timer.WARNING, now.mono + _warning_grace_s(run, now))
    return []


def _warning_grace_s(run: Run, now: Now) -> float:
    """Seconds of grace after a warning: at most what Slurm leaves, minus the time to stop and requeue."""
    end = run.slurm.ends_at
    if end and run.signal.announced is not Announced.SOMETHING:
        return time_to_save_s(end - now.unix)
    left = end - now.unix - 5.0 if end else run.settings.warning.grace_s
    return max(1.0, min(run.settings.warning.grace_s, left))


def on_warning_overdue(run: Run, now: Now) -> Answer:
    all_their_time = run.signal.announced is not Announced.SOMETHING
    run.signal.out_of_patience = all_their_time or run.signal.meaning is Meaning.TOLD_TO_END
    return [run.warning_trouble()]


# --- Ranks that exit, cannot be started or are lost, alone or with the step. In an async job a failed rank may start again
# while the others run

# Causes of an end that lie in the program of that rank alone.
_OF_THE_RANK = frozenset({Cause.CRASH, Cause.UNSTARTABLE})


def on_rank_exited(run: Run, event: ev.RankExited, now: Now) -> Answer:
    if not run.attempt.exited(event):
        return []
    if run.signal.number and run.signal_explains(now):
        return on_rank_ended(run, now)
    if not event.status.ok:
        what = f"rank {event.rank} on {run.tasks[event.rank].node} {event.status}"
        return fail_rank(run, event.rank, Trouble(Cause.CRASH, what, event.status.shell, event.at, rank=event.rank), now)
    if not run.attempt.all_ended or run.alone.busy:
        if run.settings.hang.exit_detection and run.settings.mode == "sync" and run.hangs.rank_ended(now.mono):
            run.await_last_end(now)
        _give_others_time(run, now)
        return []
    return _end_of_all(run, now)


def _give_others_time(run: Run, now: Now) -> None:
    if run.facts.process.wait_s:
        run.timers.set_first(Timer.OTHERS_END, now.mono + run.facts.process.wait_s)


def end_others(run: Run, now: Now) -> Answer:
    """The user has said how long ranks may outlive the first (srun --wait): no fault, and no remedy. Ranks that are killed so
    make srun's status 137.
    """
    left = sorted(run.attempt.ranks - run.attempt.exits.keys() - run.alone.given_up.keys())
    status = of_step([*run.attempt.exits.values(), *(ExitStatus(0, SIGKILL) for _ in left)]).shell
    what = f"ranks {fold_numbers(left)} still ran {run.facts.process.wait_s:g} s after the first had ended (--wait)"
    return [_note_end(run, now), Say(what), *ending.end(run, what, status, now)]


def _end_of_all(run: Run, now: Now) -> Answer:
    """Every rank has ended by itself. Where a device or node is behind the end of one, the ladder is asked now; else the
    status is srun's."""
    if not run.alone.given_up:
        return _end_well(run, now)
    for trouble in run.alone.given_up.values():
        if run.situation(trouble, now).cause not in _OF_THE_RANK:
            return [trouble]
    status = of_step(run.attempt.exits.values()).shell
    run.attempt.closing.culprit = True  # its own shim ends with that status, the others with 0
    ranks = counted(len(run.alone.given_up), "rank")
    what = f"{ranks} failed, and every other ended with status 0"
    return [_note_end(run, now), *ending.end(run, what, status, now)]


def _end_well(run: Run, now: Now) -> Answer:
    but = f", except on {fold_nodes(run.alone.failed_nodes)}" if run.alone.failed_nodes else ""
    what = f"every rank ended with status 0{but}"
    return [_note_end(run, now), *causes.weigh_experiment(run, True, now), *ending.end(run, what, 0, now)]


def _note_end(run: Run, now: Now) -> Decision:
    attempt = run.attempt
    return run.note(rec.AttemptEnded(now.unix, attempt.number, attempt.summary(), stopped=now.unix))


def on_rank_unstartable(run: Run, event: ev.RankUnstartable, now: Now) -> Answer:
    if not run.attempt.could_not_start(event):
        return []
    what = f"rank {event.rank} on {run.tasks[event.rank].node} could not be started: {event.why}"
    return fail_rank(run, event.rank, Trouble(Cause.CRASH, what, event.status, rank=event.rank), now)


def on_shim_lost(run: Run, event: ev.ShimLost, now: Now) -> Answer:
    run.attempt.close(event.rank, event.why, event.hangup)
    what = f"the shim of rank {event.rank} on {run.tasks[event.rank].node} was lost: {event.why}"
    return [Trouble(Cause.LOST, what, 1, hung_up=event.hangup is ev.Hangup.CLOSED)]


def on_step_ended(run: Run, event: ev.StepEnded, now: Now) -> Answer:
    """The step has ended before its ranks reported.

    This is also what `scancel JOB.0` looks like: SIGKILL for shims and ranks at once, without a SIGTERM before; srun exits
    with 137, the job runs on, and Slurm's record of the step is gone, as after any other end. Only a line on srun's stderr
    tells it apart (`*** STEP 1.0 ON n1 CANCELLED AT ... ***` without `DUE TO`; seen on 22.05 and 26.05): a step that a person
    has cancelled ends for good. Where stderr is no file, the line cannot be read, and a lost step is started again.
    """
    what = f"the step ended while ranks were running; its launcher {event.status}"
    lose_step(run, event, what)
    return [Trouble(Cause.LOST, what, event.status.shell or 1)]


# --- a rank of an async job


def fail_rank(run: Run, rank: int, trouble: Trouble, now: Now) -> Answer:
    """A rank failed. In an async job the others run on: stop only what this rank has left running, then start it again."""
    if run.settings.mode == "min-healthy":
        return _fail_node(run, rank, trouble, now)
    if run.settings.mode not in ALONE or run.attempt.lost:
        return [trouble]
    st = run.settings
    run.alone.mend(rank, trouble, now.mono + st.stop.grace_s + st.stop.kill_wait_s + MARGIN_S)
    run.timers.follow(Timer.MEND, run.alone.next_mended)
    seen = trouble.seen(now.unix, run.attempt.number)
    number = run.attempt.numbers.get(rank, run.attempt.number)
    return [run.note(seen), StopRanks(number, st.stop.grace_s, st.stop.kill_wait_s, ranks=(rank,))]


def _fail_node(run: Run, rank: int, trouble: Trouble, now: Now) -> Answer:
    """A rank failed in a job with ft_launcher's min-healthy: the node's other ranks are stopped; those of other nodes run on
    while enough nodes are healthy.
    """
    node, nodes, st = run.tasks[rank].node, run.step_nodes(), run.settings
    if node in run.alone.failed_nodes:
        return _end_well(run, now) if run.attempt.all_ended else []
    left, least = len(nodes) - len(run.alone.failed_nodes) - 1, st.nodes.min_healthy or len(nodes)
    if left < least:
        needed = f"nodes without a failed rank: {left} of {len(nodes)}, and the job needs {least}"
        return [replace(trouble, what=f"{trouble.what}; {needed}" if st.nodes.min_healthy else trouble.what)]
    run.alone.failed_nodes[node] = trouble.what
    seen = run.note(trouble.seen(now.unix, run.attempt.number))
    said = Say(f"{trouble.what}: the job continues on {left} of {counted(len(nodes), 'node')} (nodes.min_healthy {least})")
    others = tuple(sorted(other for other in run.ranks_on(node) if other not in run.attempt.exits))
    stop = [StopRanks(run.attempt.number, st.stop.grace_s, st.stop.kill_wait_s, ranks=others)] if others else []
    return [seen, said, *stop, *(_end_well(run, now) if run.attempt.all_ended else [])]


def on_rank_stopped(run: Run, event: ev.RankStopped, now: Now) -> Answer:
    """All processes of the failed rank have ended: ask the ladder for this rank alone, and for all ranks if that is no
    answer.
    """
    mine = event.attempt == run.attempt.numbers.get(event.rank, run.attempt.number)
    if not run.alone.is_mended(event.rank) or not mine or not run.attempt.stop(event):
        return []
    may_ask = Capability.DIAGNOSE in run.facts.can and run.attempt.verdict is None
    if may_ask and not event.left and not (run.signal.number and run.signal_explains(now)):
        run.alone.ask(event.rank, now.mono + DIAGNOSIS_S)
        run.timers.follow(Timer.MEND, run.alone.next_mended)
        return [causes.question(run, event.rank)]
    trouble = run.alone.take(event.rank)
    run.timers.follow(Timer.MEND, run.alone.next_mended)
    if run.signal.number and run.signal_explains(now):
        return on_rank_ended(run, now)
    return [trouble] if event.left else _decide_alone(run, event.rank, trouble, now)


def on_diagnosed(run: Run, event: ev.Diagnosed, now: Now) -> Answer:
    """The cause of the end of a rank of an async job is known: the others run on."""
    if event.rank is None or not run.alone.is_asked(event.rank):
        return []
    if event.attempt != run.attempt.latest([event.rank]):
        return []
    return _decide_with_cause(run, event.rank, event.verdict, now)


def _decide_with_cause(run: Run, rank: int, verdict: Verdict, now: Now) -> Answer:
    """Decide on that rank, with the cause of its end."""
    trouble = run.alone.take(rank)
    run.timers.follow(Timer.MEND, run.alone.next_mended)
    if run.signal.number and run.signal_explains(now):
        return on_rank_ended(run, now)
    return [*causes.note_verdict(run, verdict, now, rank), *_decide_alone(run, rank, trouble, now)]


def _decide_alone(run: Run, rank: int, trouble: Trouble, now: Now) -> Answer:
    independent = run.settings.mode == "independent"
    in_a_row = run.alone.times(rank) if independent else run.alone.in_a_row(rank, now.mono)
    situation = replace(run.situation(trouble, now), alone=Alone(rank, in_a_row))
    choice = choose(situation)
    if choice.rung != Rung.RANK_RESTART and independent:
        return _give_up(run, rank, trouble, dict(choice.passed).get(Rung.RANK_RESTART, ""), now)
    if choice.rung != Rung.RANK_RESTART and in_a_row >= run.settings.rank_restart.in_a_row:
        trouble = replace(trouble, what=f"{trouble.what}; {dict(choice.passed).get(Rung.RANK_RESTART, '')}")
    if choice.rung != Rung.RANK_RESTART:
        return [trouble]
    run.attempt.verdict = None
    decided: list[Decision] = [record_decision(run, choice, situation, now), ShowCard()]
    wait_s = run.alone.start(rank, now.mono)
    if not wait_s:
        return [*decided, *starting.start_alone(run, rank, now)]
    run.timers.follow(Timer.RANK_AGAIN, run.alone.next_again)
    return [*decided, Say(f"rank {rank} starts again in {wait_s:g} s")]


def _give_up(run: Run, rank: int, trouble: Trouble, why: str, now: Now) -> Answer:
    """The rank does not start again; the others run on."""
    run.alone.given_up[rank] = trouble
    run.attempt.verdict = None
    said = Say(f"{trouble.what}; it does not start again ({why}), and the other ranks run on (mode independent)")
    over = run.attempt.all_ended and not run.alone.busy
    _give_others_time(run, now)
    return [said, *(_end_of_all(run, now) if over else [])]


def start_again(run: Run, now: Now) -> Answer:
    """Start the ranks whose individual restart was delayed."""
    due = run.alone.take_due(now.mono)
    run.timers.follow(Timer.RANK_AGAIN, run.alone.next_again)
    if run.signal.number and run.signal_explains(now):
        return on_rank_ended(run, now) if due else []
    return [decision for rank in due for decision in starting.start_alone(run, rank, now)]


def on_mend_overdue(run: Run, now: Now) -> Answer:
    late = run.alone.late(now.mono)
    left = [rank for rank in late if not run.alone.is_asked(rank)]
    for rank in left:
        run.attempt.lose(rank, "unknown whether its processes have ended")
    if left:
        return [late[left[0]]] if run.phase is Phase.RUNNING else []
    # If an earlier one stops all, nobody waits for the others any more.
    return [ev.Diagnosed(run.attempt.latest([rank]), unknown(TOOK_TOO_LONG), rank) for rank in late]
