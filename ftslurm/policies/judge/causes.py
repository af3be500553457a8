"""What is behind the end of an attempt, or of one rank: analysed beside the loop, which must answer beats meanwhile; compared
with all that the job has seen before; recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Advise, Decision, Diagnose, ReadIteration, Say, ShowCard, TellOthers
from ftslurm.model.events import Now
from ftslurm.model.rungs import Capability
from ftslurm.model.text import how_often
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.model.verdict import Blame, ErrorClass, RankEnd, Verdict, unknown
from ftslurm.policies.judge.outside import iteration_seen
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import Run, drills_behind
from ftslurm.policies.judge.then import Answer, Settled
from ftslurm.policies.ladder import Cause
from ftslurm.policies.node import CLOCKS_DIFFER_S
from ftslurm.policies.node_charges import within_budget
from ftslurm.policies.situation import Trouble, acting, bad_nodes
from ftslurm.policies.weigh import BEGUN_S, Contrast, contrast, shown_by, still_on_most, with_contrast, without_own_view

# Seconds from the trouble to the message that tells what is waited for.
TELL_S = 3.0
# The cause of a failure is known within one or two seconds, even from a hundred megabytes of output; a longer analysis is not
# waited for.
DIAGNOSIS_S = 60.0
# For reading progress.file: a file system that hangs delays nobody longer.
PROGRESS_S = 10.0
# Of the ranks that show an error, at most this many are recorded in the ledger.
SHOWN_MAX = 64
TOOK_TOO_LONG = f"the diagnosis did not end within {DIAGNOSIS_S:g} s"


def ask_what_is_behind(run: Run, trouble: Trouble, now: Now) -> list[Decision]:
    """Ask for the cause, once an attempt. Empty if it is known, or nobody can tell."""
    hangs = trouble.cause is Cause.HANG and not run.shown_faults()
    asked = [*(ask_hints(run, now) if hangs else _ask_verdict(run, now)), *_ask_progress(run, now)]
    if asked:
        run.timers.set(Timer.TELL, now.mono + TELL_S)
    return asked


def _ask_progress(run: Run, now: Now) -> list[Decision]:
    """Ask how far the training has come, once an attempt, when the attempt has ended."""
    closing = run.attempt.closing
    progress, number = run.settings.progress, run.attempt.number
    if closing.progress_asked or not (progress.file and progress.attempts and number):
        return []
    closing.progress_asked = True
    run.timers.set(Timer.PROGRESS, now.mono + PROGRESS_S)
    return [ReadIteration(number, progress.file)]


def on_iteration_read(run: Run, event: ev.IterationRead, now: Now) -> Answer:
    waited = Timer.PROGRESS in run.timers and event.attempt == run.attempt.number
    seen = iteration_seen(event, run.settings.progress, run.history, now) if waited or not event.attempt else None
    noted: list[Decision] = [] if seen is None else [run.note(seen)]
    if not (event.attempt and waited):
        return noted
    run.timers.stop(Timer.PROGRESS)
    return [*noted, Settled()]


def ask_hints(run: Run, now: Now) -> list[Decision]:
    """Ask for common reasons for a hang. If the ranks have been stopped, their last output has arrived."""
    if Capability.ADVISE not in run.facts.can or run.attempt.hang.advised:
        return []
    run.attempt.hang.advised = True
    run.timers.set(Timer.ADVICE, now.mono + DIAGNOSIS_S)
    return [Advise(run.attempt.number, _before_hang(run), dict(run.attempt.hang.evidence))]


def _ask_verdict(run: Run, now: Now) -> list[Decision]:
    attempt = run.attempt
    if Capability.DIAGNOSE not in run.facts.can or attempt.verdict is not None or not (attempt.number and attempt.ranks):
        return []
    run.timers.set(Timer.DIAGNOSIS, now.mono + DIAGNOSIS_S)
    return [question(run, None)]


def question(run: Run, rank: int | None) -> Diagnose:
    """rank: ask for the cause of the end of this rank alone; None: of the attempt."""
    attempt = run.attempt
    number = attempt.number if rank is None else attempt.latest([rank])
    faults = acting(run.shown_faults(), run.history)
    bad = bad_nodes(run.slurm.answer, attempt, run.chosen_nodes())
    ends = attempt.rank_ends(run.tasks, rank)
    return Diagnose(number, ends, faults, bad, attempt.own_words(), _has_progressed(run), rank)


def _before_hang(run: Run) -> tuple[RankEnd, ...]:
    """Every rank with what it had printed before it was stopped: later output is no reason for the hang."""
    ends, hung_at = run.attempt.rank_ends(run.tasks), run.attempt.hang.at
    if not hung_at:
        return ends
    until = hung_at + CLOCKS_DIFFER_S
    return tuple(replace(end, output=tuple(piece for piece in end.output if piece.at <= until)) for end in ends)


def _has_progressed(run: Run) -> bool:
    """Has the job ever made progress?"""
    program, progress = run.attempt.program, run.history.progress
    known = max(program.step, program.saved, progress.furthest) > 0
    return known or progress.longest_s >= BEGUN_S or progress.made_at > 0


def on_diagnosed(run: Run, event: ev.Diagnosed, now: Now) -> Answer:
    """The answer about the cause; ignored if nobody waits for it any more."""
    if Timer.DIAGNOSIS not in run.timers or event.attempt != run.attempt.number or event.rank is not None:
        return []
    run.timers.stop(Timer.DIAGNOSIS)
    return [*note_verdict(run, event.verdict, now), Settled()]


def on_diagnosis_overdue(run: Run, now: Now) -> Answer:
    return [*note_verdict(run, unknown(TOOK_TOO_LONG), now), Settled()]


def on_advised(run: Run, event: ev.Advised, now: Now) -> Answer:
    if event.attempt != run.attempt.number:
        return []
    entered = any(view.groups for views in run.attempt.hang.views.values() for view in views)
    hints = [hint for hint in event.hints if not (entered and hint[0] == "before-first-collective")]
    noted: list[Decision] = [run.note(rec.Advised(now.unix, run.attempt.number, *hint)) for hint in hints]
    if Timer.ADVICE not in run.timers:
        return noted
    run.timers.stop(Timer.ADVICE)
    return [*noted, *use_advice(run, now)]


def use_advice(run: Run, now: Now) -> Answer:
    """The hints are known: the report of a hang that is left alone waited for them, and so did the decision on one that is
    not.
    """
    return [ShowCard()] if run.phase is Phase.RUNNING else [Settled()]


def note_verdict(run: Run, verdict: Verdict, now: Now, rank: int | None = None) -> list[Decision]:
    """Record the verdict. rank: it is about the end of this rank alone."""
    verdict = _corrected(run, verdict)
    shown, past, since = shown_by(verdict), run.history, now.unix - run.settings.in_place_restart.same_code_window_s
    cleared = contrast(verdict.signature, shown, past, since, past.progress.last_step, verdict.error_class)
    verdict = verdict if cleared is None else with_contrast(verdict, cleared)
    run.attempt.verdict = verdict
    noted: list[Decision] = [run.note(_verdict_record(run, verdict, rank, shown, now))]
    begun = run.history.crashes.experiment
    if rank is None and begun is not None and begun.signature == verdict.signature:
        noted += weigh_experiment(run, False, now)
    return noted if cleared is None else [*noted, *reinstate(run, verdict.signature, cleared, now)]


def _corrected(run: Run, verdict: Verdict) -> Verdict:
    """The verdict, less what the job knows better."""
    past, showing = run.history.verdicts, {node for node, _, _ in run.devices.faults}
    verdict = still_on_most(verdict, past.last if past.same_in_a_row else None)
    return without_own_view(verdict, run.facts.env.none, run.attempt.devices.seen - showing)


def _verdict_record(run: Run, v: Verdict, rank: int | None, shown: Mapping[int, str], now: Now) -> rec.Diagnosed:
    """shown: rank -> node, of those that show the error."""
    attempt = run.attempt
    against = {
        blame: {suspect.node: suspect.why for suspect in v.suspects if suspect.blame is blame}
        for blame in (Blame.YES, Blame.SUSPECT)
    }
    ends = attempt.rank_ends(run.tasks, rank)
    hung = run.trouble is not None and run.trouble.cause is Cause.HANG
    # One whose partner hangs in a drill may say that it waited in vain, and fail.
    drilled = drills_behind(run, hung or v.error_class is ErrorClass.NETWORK)
    failed = {end.rank: str(end.status) for end in ends if end.status is not None and not end.status.ok and not end.stopped}
    return rec.Diagnosed(
        now.unix, attempt.number, v.signature, v.error_class.value, v.retriable.value, v.confidence.value, v.what, v.evidence,
        against[Blame.YES], against[Blame.SUSPECT], tuple(failed), len(attempt.ranks), v.program, bool(drilled),
        {str(rank): node for rank, node in sorted(shown.items())[:SHOWN_MAX]},
        v.lead.rank, v.lead.node, v.lead.said, v.lead.meaning, v.lead.place, v.lead.spread, v.lead.advice,
        failed.get(v.lead.rank, ""), v.because,
    )  # fmt: skip


def weigh_experiment(run: Run, well: bool, now: Now) -> list[Decision]:
    """Record what came of running without a node: `well`, or the same failure again. Nothing is known if Slurm gave the job
    that node all the same."""
    begun = run.history.crashes.experiment
    if begun is None or begun.node in run.step_nodes():
        return []
    st, history = run.settings, run.history
    excluded = well and begun.times > 1 and bool(within_budget([begun.node], history, st.blame))
    why = f"failed there {how_often(begun.times)} ({begun.signature}), {'ran elsewhere' if well else 'and elsewhere'}"
    ended = rec.ExperimentEnded(now.unix, run.attempt.number, begun.node, begun.signature, well, excluded, why)
    becomes = "is excluded from this job" if excluded else "may be used again"
    told = [TellOthers({}, failed={begun.node: why})] if excluded and st.isolation.memory_s and not run.attempt.drills else []
    return [run.note(ended), Say(f"{begun.node} {becomes}: {why}"), *told]


def reinstate(run: Run, signature: str, found: Contrast, now: Now) -> list[Decision]:
    """Reinstate nodes that a contrast clears; the next card says it."""
    record = rec.Reinstated(now.unix, run.attempt.number, signature, dict.fromkeys(found.cleared, found.why))
    back = run.history.exclusions.left_on_words_still(found.cleared)
    noted: list[Decision] = [run.note(record)]
    return [*noted, TellOthers({}, back)] if back else noted
