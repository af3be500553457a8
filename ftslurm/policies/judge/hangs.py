"""Hangs by signs outside the ranks: no I/O and idle devices, no output, a missed beat, ranks that do not exit with the others.
The program may set each interval itself. Also: what follows from any hang.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import Culprit, CulpritKind, Level
from ftslurm.model.decisions import AskWords, CompareRanks, Decision, KeepEvidence, SampleUse, Say, ShowCard, TakeEvidence
from ftslurm.model.events import Now
from ftslurm.model.folds.history import HANG
from ftslurm.model.folds.past import with_pause
from ftslurm.model.folds.summary import stuck_words
from ftslurm.model.rungs import LEAVES, Capability
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.hang.stall_watch import NOBODY, Opinion, as_seconds, levels_from
from ftslurm.policies.hang.whohangs import who_hangs
from ftslurm.policies.judge import causes, ranks
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import LATER_S, MARGIN_S, Run
from ftslurm.policies.judge.then import Answer
from ftslurm.policies.ladder import Cause, choose
from ftslurm.policies.situation import Trouble
from ftslurm.policies.weigh import Contrast, contrast

# To collect evidence from a hung rank, before it is stopped.
EVIDENCE_S = 10.0


def on_quiet_seen(run: Run, event: ev.QuietSeen, now: Now) -> list[Decision]:
    """All nodes have had no I/O for long enough: ask whether the devices (or CPUs) are busy."""
    if event.quiet_s <= 0 and (over := end_hang(run, f"processes on {event.node} do IO again", now, "io")):
        run.hangs.watch.quiet(event, run.step_nodes())
        return over
    if _hold(run, now) or run.hangs.hung:
        return []
    if not run.hangs.watch.quiet(event, run.step_nodes()):
        run.timers.stop(Timer.USE)
        return []
    if Timer.USE in run.timers:
        return []
    run.timers.set(Timer.USE, now.mono + run.settings.hang.sample_time_s + MARGIN_S)
    return [SampleUse(run.settings.hang.sample_time_s)]


def on_use_sampled(run: Run, event: ev.UseSampled, now: Now) -> Answer:
    if Timer.USE not in run.timers or run.hangs.hung or not run.hangs.watch.sampled(event, run.step_nodes()):
        return []
    return judge_use(run, now)


def judge_use(run: Run, now: Now) -> Answer:
    run.timers.stop(Timer.USE)
    hang = run.hangs.watch_anew().verdict(run.step_nodes())
    # Not every device is idle, or some are unknown: the agents report again after the same time without I/O.
    return report(run, "io", hang.what, hang.evidence, now, still_s=hang.still_s) if hang else run.watch_all_ranks()


def on_rank_silent(run: Run, event: ev.RankSilent, now: Now) -> Answer:
    over = end_hang(run, f"rank {event.rank} prints again", now, "silence") if event.silent_s <= 0 else []
    if _hold(run, now) or run.hangs.hung or not run.settings.hang.log_silence:
        return over
    running = run.attempt.ranks - run.attempt.exits.keys()
    if not run.hangs.watch.silent(event, running):
        return over
    what = f"no rank has printed anything for {round(run.hangs.watch.silent_s, 1):g} s"
    return report(run, "silence", what, (), now, still_s=run.hangs.watch.silent_s)


def on_beat_overdue(run: Run, event: ev.BeatOverdue, now: Now) -> Answer:
    """A beat is overdue, judged as ft_launcher's rank monitor does. The program asked to be watched, so no further proof is
    needed.
    """
    if not event.why:
        return end_hang(run, f"rank {event.rank} is no longer overdue", now, "beat")
    if _hold(run, now) or run.hangs.hung or event.rank in run.attempt.exits:
        return []
    what = f"rank {event.rank} on {run.tasks[event.rank].node}: {event.why}"
    if run.settings.mode == "min-healthy":
        return ranks.fail_rank(run, event.rank, Trouble(Cause.HANG, f"hang: {what}", 1), now)
    return report(run, "beat", what, (), now, ranks=(event.rank,), doubt="")


def _hold(run: Run, now: Now) -> bool:
    """Can a signal explain what looks like a hang? Agents report a hang once, so all watch again after the signal."""
    if run.under_signal(now):
        run.timers.set_first(Timer.HOLD, now.mono + LATER_S)
        return True
    return False


def on_hold_due(run: Run, now: Now) -> list[Decision]:
    if _hold(run, now):
        return []
    run.hangs.watch_anew()
    run.timers.stop(Timer.USE)
    return [*run.watch_all_ranks(), run.intervals()]


def on_exit_overdue(run: Run, now: Now) -> Answer:
    if run.hangs.hung:
        return []
    if run.under_signal(now):
        run.timers.set(Timer.EXIT, now.mono + LATER_S)
        return []
    left = sorted(run.attempt.ranks - run.attempt.exits.keys())
    ranks = ", ".join(map(str, left[:8])) + (f" and {len(left) - 8} more" if len(left) > 8 else "")
    ended_s = now.mono - run.hangs.first_end if run.hangs.first_end is not None else 0.0
    ended = f"{count} ranks have" if (count := len(run.attempt.exits)) != 1 else "1 rank has"
    still = f"ranks {ranks} still run" if len(left) > 1 else f"rank {ranks} still runs"
    what = f"{ended} exited; {still} after {ended_s:.0f} s"
    return report(run, "exit", what, (), now, ranks=tuple(left), still_s=ended_s)


# --- what the program says: it knows best how long it will be silent


def on_program_said(run: Run, event: ev.ProgramSaid, now: Now) -> list[Decision]:
    """Handle a message of the program: print text for people; remember its request to the ladder for the next failure, unless
    that request has been used already.
    """
    if not run.hangs.hears(event.rank, event.attempt, event.place):
        return []
    text, current = " ".join(event.words), run.is_current(event)
    if event.what == "probe":
        return _note_lack_of_probe(run, event, current, now)
    if current:
        run.attempt.program.said.append((event.rank, event.what, event.words))
    note = run.note(rec.ProgramSaid(now.unix, event.attempt, event.rank, event.what, text))
    if current and event.what == "limits":
        run.hangs.keep_limits(event.words)
        return [note, *_restart_from_now_on(run, "calculated timeouts")]
    if current and event.what == "setting" and event.words[:1] == ("job_exit_hang_interval",):
        return [note, *_set_exit_interval(run, event.words[-1], now)]
    if event.what == "message":
        return [note, Say(f"rank {event.rank}: {text}")]
    return [note]


def _set_exit_interval(run: Run, word: str, now: Now) -> list[Decision]:
    """Set the exit interval by AIMaster's `reset_config`: seconds, or -1 for off."""
    seconds = as_seconds(word)
    if seconds is not None:
        run.hangs.exit_s = None if seconds < 0 else seconds
        run.await_last_end(now)
    return _restart_from_now_on(run, "job_exit_hang_interval") if seconds is not None and seconds > 0 else []


def _note_lack_of_probe(run: Run, event: ev.ProgramSaid, current: bool, now: Now) -> list[Decision]:
    """An agent reports that nobody can see the progress of its ranks' collectives. One rank stands for all."""
    known = any(what == "probe" for _, what, _ in run.attempt.program.said)
    if not current or known or not run.settings.sdk.inject:
        return []
    run.attempt.program.said.append((event.rank, event.what, event.words))
    why = " ".join(event.words)
    note = run.note(rec.ProgramSaid(now.unix, event.attempt, event.rank, event.what, why))
    then = "ftrun detects a hang only by I/O (hang.detect_time) and cannot name the hung rank"
    told = f"rank {event.rank} has no probe: {why}; {then}"
    return [note, Say(told)]


def _restart_from_now_on(run: Run, what: str) -> list[Decision]:
    """Does the job want a restart for this hang? A job that sets a limit (by option or in the program) wants it, unless
    hang-restart is off.
    """
    if run.settings.hang_restart.enabled is not None:
        return []
    run.restart_on_hangs()
    return [Say(f"the program has set limits of its own ({what}): ftrun now restarts the job when it hangs")]


def on_progressed(run: Run, event: ev.Progressed, now: Now) -> list[Decision]:
    program, before = run.attempt.program, run.attempt.program.step
    program.count(event.beats, event.saved, event.saving_s)
    if event.step <= before:
        return []
    program.step = event.step
    run.hangs.still.lives(now.mono)
    over = end_hang(run, f"the program has come to step {event.step}", now)
    further = event.step > run.history.progress.furthest >= before
    if run.phase is not Phase.RUNNING or not (further or not before):
        return over
    return [*_step_reached(run, event.step, not before, further, now), *over]


def end_hang(run: Run, what: str, now: Now, sign: str = "") -> list[Decision]:
    """Close a hang that was left alone and that `sign` reported. sign: empty for any."""
    standing = run.attempt.hang.standing
    if not standing or sign not in ("", standing):
        return []
    run.attempt.hang.standing = ""
    return [
        run.note(rec.HangEnded(now.unix, run.attempt.number, standing, what)),
        Say(f"the job makes progress again: {what}"),
        *run.told.show_on(run.attempt.number),
    ]


def on_ranks_alive(run: Run, event: ev.RanksAlive, now: Now) -> list[Decision]:
    """The answer of nodes at the beginning of trouble: ranks that worked until then are not those that others waited for."""
    signs = {rank: (now.unix - ago_s, what) for rank, (ago_s, what) in event.signs.items() if rank in run.attempt.ranks}
    run.attempt.alive.update(signs)
    return []


def on_stage_set(run: Run, event: ev.StageSet, now: Now) -> list[Decision]:
    before = run.intervals()
    if event.seconds is None:
        run.attempt.program.stages.pop(event.rank, None)
    else:
        run.attempt.program.stages[event.rank] = event.seconds
    asked: list[Decision] = []
    if event.seconds is not None and event.seconds > 0 and (said := _restart_from_now_on(run, "hang interval")):
        words = f"{event.seconds:g} s"
        asked = [run.note(rec.ProgramSaid(now.unix, run.attempt.number, event.rank, "interval", words)), *said]
    if run.intervals() == before:
        return asked
    run.hangs.watch_anew()
    run.timers.stop(Timer.USE)
    return [*asked, run.intervals()]


# --- what a hang leads to


def report(run: Run, kind: str, what: str, evidence: tuple[str, ...], now: Now, found: Culprit | None = None,
    ranks: tuple[int, ...] = (), still_s: float = 0.0, doubt: str = NOBODY,
) -> Answer:  # fmt: skip
    """Record and print the hang. If a rung handles it, look at what the ranks do before they are stopped.

    found: the finding, if the ranks were examined. ranks: the hung ranks, if known without a finding. still_s: how long
    nothing has moved, seconds; 0: unknown. doubt: why it is no proof; empty: a rank is named from within.
    """
    since = now.unix - still_s if still_s else 0.0
    told = rec.HangSeen(now.unix, run.attempt.number, kind, what, evidence, str(found or ""), since=since)
    left = "" if answers(run, found, now, doubt) else _why_left(run, doubt)
    seen = run.note(replace(_hang_record(run, told, found, ranks), left=left))
    run.attempt.hang.at = now.unix
    run.attempt.hang.proven = not doubt and _has_progressed(run)
    if left:
        run.attempt.hang.standing = kind
        return [seen, *run.told.show(run.attempt.number, f"seems to hang: {what}"), *_advise_on_hang(run, now)]
    run.attempt.hang.blamed, cleared = held_against(run, found, now)
    seen_of = causes.reinstate(run, HANG, cleared, now) if cleared is not None else []
    run.hangs.hung = trouble = Trouble(Cause.HANG, f"hang: {what}", 1, since)
    if found is not None:
        keep = [KeepEvidence(run.attempt.number, node, text) for node, text in run.attempt.hang.evidence.items()]
        return [seen, *seen_of, *keep, *begin_trouble(run, trouble, now, found)]
    if not run.watched_nodes():
        return [seen, trouble]
    run.timers.set(Timer.EVIDENCE, now.mono + EVIDENCE_S)
    return [seen, TakeEvidence(EVIDENCE_S)]


def _advise_on_hang(run: Run, now: Now) -> list[Decision]:
    """The card of a hang that is left alone, once the ranks' output and activity are known; they show common reasons."""
    if Capability.ADVISE not in run.facts.can or run.attempt.hang.advised or Timer.HINTS in run.timers:
        return [ShowCard()]
    run.timers.set(Timer.HINTS, now.mono + EVIDENCE_S)
    run.attempt.hang.words.clear()
    taken = run.attempt.hang.evidence.keys() >= set(run.watched_nodes()) and bool(run.attempt.hang.views)
    return [AskWords(), *([] if taken else [TakeEvidence(EVIDENCE_S)]), *ask_hints_when_known(run, now)]


def on_rank_words(run: Run, event: ev.RankWords, now: Now) -> list[Decision]:
    if Timer.HINTS not in run.timers or not run.attempt.belongs(event.rank, event.attempt):
        return []
    run.attempt.hang.words[event.rank] = event.output
    return ask_hints_when_known(run, now)


def ask_hints_when_known(run: Run, now: Now) -> list[Decision]:
    """Continue once every running rank and every node has answered."""
    running = run.attempt.ranks - run.attempt.exits.keys() - run.attempt.lost.keys()
    nodes = set(run.watched_nodes())
    known = running <= run.attempt.hang.words.keys() and nodes <= run.attempt.hang.evidence.keys()
    if Timer.HINTS not in run.timers or not known:
        return []
    return on_hints_due(run, now)


def on_hints_due(run: Run, now: Now) -> list[Decision]:
    run.timers.stop(Timer.HINTS)
    if run.phase is not Phase.RUNNING:
        return []
    asked = causes.ask_hints(run, now)
    run.attempt.hang.words.clear()  # for a thousand ranks this may be a hundred megabytes
    return asked or [ShowCard()]


def _hang_record(run: Run, seen: rec.HangSeen, found: Culprit | None, ranks: tuple[int, ...]) -> rec.HangSeen:
    """The record of a hang, with the hung ranks, for programs that read the ledger."""
    if found is not None:
        return replace(
            seen, ranks=found.ranks, nodes=found.nodes, hang_class=found.kind.value, level=found.level.value,
            operation=found.operation, cause=found.cause, blamed=found.blamed, helps=found.helps,
        )  # fmt: skip
    nodes = tuple(dict.fromkeys(run.tasks[rank].node for rank in ranks if rank in run.tasks))
    return replace(seen, ranks=ranks, nodes=nodes)


def answers(run: Run, found: Culprit | None, now: Now, doubt: str) -> bool:
    """Does the ladder have an answer? Without hang restarts, only a restart without the nodes to blame is one."""
    wanted = run.settings.hang_restart.enabled
    return (not doubt and _has_progressed(run) if wanted is None else wanted) or can_leave(run, found, now)


def can_leave(run: Run, found: Culprit | None, now: Now) -> bool:
    """Can the job continue without the nodes that the finding blames?"""
    hung, _ = held_against(run, found, now)
    if not hung:
        return False
    attempt = replace(run.attempt, hang=replace(run.attempt.hang, blamed=hung))
    rung = choose(run.situation(Trouble(Cause.HANG, str(found), 1), now, attempt)).rung
    return rung in LEAVES


def held_against(run: Run, found: Culprit | None, now: Now) -> tuple[dict[str, str], Contrast | None]:
    """Gives node -> reason, for an Error; and the contrast that blames the program instead: the same rank has hung on another
    node.
    """
    if found is None or found.level is not Level.ERROR or not found.blamed:
        return {}, None
    ranks = dict.fromkeys(found.ranks, found.nodes[0]) if len(found.nodes) == 1 else {}
    cleared = contrast(HANG, ranks, run.history, now.unix - run.settings.in_place_restart.same_code_window_s)
    return ({}, cleared) if cleared is not None else ({node: str(found) for node in found.blamed}, None)


def begin_trouble(run: Run, trouble: Trouble, now: Now, found: Culprit | None = None) -> Answer:
    """Begin trouble for a hang, with the rank that caused it, if the finding tells."""
    found = found or who_hangs(view for views in run.attempt.hang.views.values() for view in views)
    if found is None or found.kind is CulpritKind.UNKNOWN:
        return [trouble]
    trouble = replace(trouble, what=f"{trouble.what}; {found}")
    return [run.note(culprit_record(run, found, now)), trouble]


def culprit_record(run: Run, found: Culprit, now: Now) -> rec.CulpritSeen:
    return rec.CulpritSeen(
        now.unix, run.attempt.number, found.kind.value, found.level.value, found.ranks, found.nodes, found.operation,
        found.cause, found.evidence, found.blamed, helps=found.helps,
    )  # fmt: skip


def _has_progressed(run: Run) -> bool:
    """Has the job ever done what it is for? One that never got through its start would hang there again."""
    known, program = run.history, run.attempt.program
    before = known.progress.furthest or known.progress.most_beats or known.hangs.in_a_row or known.hangs.quiet_pauses
    return bool(before or program.step or program.beats or run.hangs.still.begun)


def _why_left(run: Run, doubt: str) -> str:
    if run.settings.hang_restart.enabled is False:
        return "hang-restart is switched off"
    return doubt or "the job has made no progress yet that a restart could bring back"


def _step_reached(run: Run, step: int, first: bool, further: bool, now: Now) -> list[Decision]:
    """Record the step. If the training began again at its start, ask people once for its checkpoint. first: of this attempt."""
    progress = run.history.progress
    anew = first and not progress.began_anew and progress.begins_anew(run.facts.step_key, step)
    come = f"the program began again at step {step}, and the attempt before had come to step {progress.last_step}"
    asked = [Say(f"{come}: does it load its checkpoint? (docs/reentrant.md)")] if anew and run.settings.tips else []
    return [run.note(rec.StepReached(now.unix, run.attempt.number, step, further)), *asked]


# --- Stalled and slow ranks, both by the collectives of the ranks: when all nodes are asked what their ranks do,
# and what follows from the answers


def on_stall_seen(run: Run, event: ev.StallSeen, now: Now) -> list[Decision]:
    pause = run.hangs.still.seen(event, now.mono)
    if pause is None:
        return look_closer(run, now)
    told = rec.Paused(now.unix, run.attempt.number, pause.seconds, pause.busy)
    shown = run.told.show_on(run.attempt.number) if pause.told else []
    over = end_hang(run, "its ranks make progress in their collectives again", now, "stall")
    run.timers.stop(Timer.EXAMINE)
    known = run.history.hangs.busy_pauses if pause.busy else run.history.hangs.quiet_pauses
    kept = pause.told or with_pause(known, pause.seconds) != known
    return [*over, *([run.note(told)] if kept else []), *shown]


def look_closer(run: Run, now: Now) -> list[Decision]:
    """Ask all nodes at once which rank hangs. If ranks have ended, the exit hang handles it; after a signal, Slurm's answer
    does.
    """
    if Timer.EXAMINE in run.timers or Timer.EVIDENCE in run.timers or _not_now(run, now) or not _stalled_s(run, now):
        return []
    run.hangs.still.ask()
    run.attempt.hang.views = {}
    run.timers.set(Timer.EVIDENCE, now.mono + EVIDENCE_S)
    return [TakeEvidence(EVIDENCE_S)]


def _not_now(run: Run, now: Now) -> bool:
    """Is there a reason other than a hang for ranks that make no progress?"""
    if run.under_signal(now):
        run.timers.set(Timer.EXAMINE, now.mono + LATER_S)
        return True
    return bool(run.hangs.hung or run.attempt.exits)


def _stalled_s(run: Run, now: Now) -> float:
    return run.hangs.still.stalled_s(run.step_nodes(), len(run.tasks), now.mono)


def _judge_stall(run: Run, now: Now) -> Answer:
    """All nodes have reported what their ranks do."""
    stalled_s = _stalled_s(run, now)
    if not stalled_s or _not_now(run, now):
        return []
    o = run.hangs.still.opinion(stalled_s, run.history, now.mono)
    if o.act and answers(run, o.finding, now, o.doubt):
        return _report(run, o, stalled_s, now)
    run.timers.set(Timer.EXAMINE, now.mono + o.again_s)
    if o.act and _wants_slurm(run, o.finding, now):
        return [run.ask_slurm(now)]
    if o.act and not run.hangs.still.left_alone:
        run.hangs.still.leave_alone()
        return _report(run, o, stalled_s, now)
    if not o.tell or o.finding is None:
        return []
    keep = [KeepEvidence(run.attempt.number, node, text) for node, text in run.attempt.hang.evidence.items()]
    seen = replace(culprit_record(run, o.finding, now), since=now.unix - o.idle_s, limit_s=o.limit_s)
    return [run.note(seen), *_said_of(run, o.finding, o.what), *keep, *_show_stuck(run, seen)]


def _show_stuck(run: Run, seen: rec.CulpritSeen) -> list[Decision]:
    number = run.attempt.number
    if not (seen.limit_s and seen.ranks):
        return run.told.show_on(number)
    what = stuck_words(seen.ranks, seen.nodes, seen.cause)
    if not run.told.tell(what):
        return []
    return run.told.show(number, f"{what}, a hang if it lasts", seen.since + seen.limit_s)


def _report(run: Run, o: Opinion, stalled_s: float, now: Now) -> Answer:
    evidence = o.finding.evidence if o.finding else ()
    return report(run, "stall", o.what, evidence, now, o.finding, still_s=stalled_s, doubt=o.doubt)


def _wants_slurm(run: Run, found: Culprit | None, now: Now) -> bool:
    """Could the ladder have an answer once Slurm reports the state of job and nodes?"""
    convicted = found is not None and found.level is Level.ERROR and found.blamed
    may_ask = Capability.ASK in run.facts.can and Timer.ASK not in run.timers
    return bool(convicted and may_ask and not run.slurm.heard_lately(now.mono))


def _said_of(run: Run, finding: Culprit, what: str = "") -> list[Decision]:
    if not levels_from(run.settings.hang.c4d_level)[finding.level]:
        return []
    if finding.kind is CulpritKind.UNKNOWN and not finding.ranks:  # nobody can act on it; the history keeps it
        return []
    return [Say(f"{finding.level.value}: {finding}{f' ({what})' if what else ''}")]


def on_evidence_taken(run: Run, event: ev.EvidenceTaken, now: Now) -> Answer:
    run.attempt.hang.evidence[event.node], run.attempt.hang.views[event.node] = event.text, event.views
    there = run.watched_nodes()
    if Timer.HINTS in run.timers:
        kept = KeepEvidence(run.attempt.number, event.node, event.text)
        return [kept, *ask_hints_when_known(run, now)]
    if run.hangs.hung is None:
        if not run.hangs.still.examined(event.node, event.views, there) or Timer.EVIDENCE not in run.timers:
            return []
        run.timers.stop(Timer.EVIDENCE)
        return _judge_stall(run, now) if run.phase is Phase.RUNNING else []
    keep: list[Decision] = [KeepEvidence(run.attempt.number, event.node, event.text)]
    if Timer.EVIDENCE not in run.timers or not run.hangs.watch.looked_at(event.node, there):
        return keep
    return [*keep, *begin_trouble(run, run.hangs.hung, now)]


def on_evidence_overdue(run: Run, now: Now) -> Answer:
    """Some nodes did not answer in time. Half of the ranks do not tell who hangs, but a hang that was noticed is handled
    without it.
    """
    if run.hangs.hung is None:
        run.timers.set(Timer.EXAMINE, now.mono + run.settings.hang.c4d_timeout_s)
        return []
    return [run.hangs.hung]


# --- ranks slower than the others


def compare_ranks(run: Run, now: Now) -> list[Decision]:
    run.timers.set(Timer.COMPARE, now.mono + run.settings.hang.compare_s)
    run.hangs.slow.ask()
    return [CompareRanks()] if not (run.under_signal(now) or run.hangs.hung or run.attempt.exits) else []


def on_ranks_compared(run: Run, event: ev.RanksCompared, now: Now) -> list[Decision]:
    finding = run.hangs.slow.seen(event, run.watched_nodes(), len(run.tasks))
    return [run.note(culprit_record(run, finding, now)), *_said_of(run, finding)] if finding else []
