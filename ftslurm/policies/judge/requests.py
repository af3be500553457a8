"""What the owner of the job asks for while it runs (`ftslurm control`): each request is answered in every phase, accepted or
refused with a reason, and carried out at once, after a checkpoint, or at a given time.

Nothing is stopped for a request that cannot be carried out: ftrun first asks Slurm where Slurm decides, and the ladder where the
job shall leave a node. Such a request costs no budget and is no failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, Say
from ftslurm.model.events import Now
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import Request, State
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.outcome import ENDING_STATES, STOPPED, Outcome
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.model.values import replace
from ftslurm.policies.judge import devices, ending, starting
from ftslurm.policies.judge.outside import Meaning, reply_to
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import SIGTERM, Run
from ftslurm.policies.judge.then import Answer, Next, Settled, ThenAct, ThenDecide, ThenRequeue
from ftslurm.policies.ladder import Cause, choose, why_no_requeue
from ftslurm.policies.situation import Trouble


def on_control_asked(run: Run, event: ev.ControlAsked, now: Now) -> Answer:
    asked = event.request
    if run.history.control.get(asked.number) is None:
        run.take_in(asked)
    request = run.history.control.get(asked.number)
    if request is None or request.state is State.UNDONE or asked.number in run.requests.to_consider:
        return []
    if request.state is State.DONE and not (asked.verb == ctl.STOP and request.run != run.facts.run):
        return []  # another ftrun answers for the whole job; but each stops its own ranks
    if request.state is State.TAKEN and request.waits:
        _await(run, request, now)
        return []
    if asked.drill is not None:
        return _drill(run, request, asked.drill, now)
    if asked.verb in ctl.STANDS:
        return _answer_at_once(run, request, now)
    if asked.verb in _ACT:
        return _act(run, request, now)
    return refuse(run, request, f"this version of ftrun does not know `{asked.verb}`", now)


# --- what changes nothing that runs


def _answer_at_once(run: Run, request: Request, now: Now) -> list[Decision]:
    """Answer a request that changes nothing that runs."""
    accepted, text = reply_to(request, run.history, run.settings.ladder)
    if not accepted:
        return refuse(run, request, text, now)
    if request.asked.verb == ctl.UNDO:
        run.requests.forget(request.asked.target)
    return agree(run, request, text, now)


def _drill(run: Run, request: Request, drill: rec.Drill, now: Now) -> list[Decision]:
    """Of several ftruns in a job the last one is meant. One that comes later does not make up for it."""
    *_, last = run.facts.run, *run.history.beside
    if last != run.facts.run:
        return []
    if run.phase is not Phase.RUNNING or request.asked.schedule < run.facts.schedule:
        return refuse(run, request, f"the ranks do not run just now (ftrun is {run.phase.value})", now)
    planned = devices.plan_drill(drill, run.tasks)
    if planned is None:
        return refuse(run, request, f"there is no {drill.target} in the step that runs", now)
    return [*agree(run, request, planned.how, now), *devices.inject(run, drill, planned, now)]


# --- what ends ranks


def _act(run: Run, request: Request, now: Now) -> Answer:
    """Carry the request out now, or when its checkpoints have been written."""
    asked = request.asked
    if bad := [node for node in asked.nodes if not _is_node_name(node)]:
        return refuse(run, request, f"{', '.join(bad)} is not a node name", now)
    if not request.waits:
        return _act_now(run, request, now)
    if asked.checkpoints and not asked.until and not run.requests.checkpoints.are_known(request, run.history):
        return refuse(run, request, _WHAT_IS_NEEDED, now)
    if ban := _forbidden(run, request):
        return refuse(run, request, ban, now)
    taken = agree(run, request, _waits_for(run, request), now)
    _await(run, request, now)
    return taken


def _waits_for(run: Run, request: Request) -> str:
    asked = request.asked
    if not asked.checkpoints:
        return f"it will be done at {ctl.utc(asked.until)}"
    return run.requests.checkpoints.awaited(request, run.history)


def _await(run: Run, request: Request, now: Now) -> None:
    if request.asked.until:
        run.requests.due[request.number] = now.mono + max(0.0, request.asked.until - now.unix)


def act_later(run: Run, request: Request, now: Now) -> Answer:
    """Carry out a request whose time has come, unless it was answered meanwhile."""
    known = run.history.control.get(request.number)
    waits = known is not None and known.state in (State.OPEN, State.TAKEN) and run.phase is not Phase.FINISHED
    return _act_now(run, request, now) if waits else []


def _act_now(run: Run, request: Request, now: Now) -> Answer:
    if ban := _forbidden(run, request):
        return refuse(run, request, ban, now)
    return _ACT[request.asked.verb](run, request, now)


def _forbidden(run: Run, request: Request) -> str:
    """Why settings forbid the request, empty if they do not. An owner who wants no more restarts does not mean those that
    they ask for themselves; the later request decides.
    """
    ban = run.history.control.no_restarts
    if request.asked.verb not in (ctl.RESTART, ctl.REQUEUE) or ban is None:
        return ""
    return f"request {ban.number} forbids restarts; run `ftslurm control {run.facts.job} allow-restarts` first"


# --- stop


def _stop(run: Run, request: Request, now: Now) -> Answer:
    """Stop the job gracefully, as a Ctrl-C does: ranks get the grace, waits end, no rung is asked."""
    if run.phase is Phase.REQUEUEING and Timer.REQUEUE not in run.timers:
        return []  # the step that requeues the job has control: the job's next ftrun takes the request
    if run.phase is Phase.ENDING and not run.end.another_try:
        return agree(run, request, "the job is ending already", now, done=True)
    taken = agree(run, request, "the ranks are stopped, and the job ends", now, done=True)
    what = f"{STOPPED} {request.number} of {asked_by(request)}"
    trouble = Trouble(Cause.REQUEST, what, 128 + SIGTERM, outcome=Outcome.STOPPED)
    return [*taken, *ending.break_off(run, Meaning.STOPPED, trouble, now)]


# --- restart


def _restart(run: Run, request: Request, now: Now) -> Answer:
    if run.phase is Phase.ENDING and not run.end.another_try:
        return refuse(run, request, "the job is ending", now)
    if run.phase is not Phase.RUNNING:
        return agree(run, request, "the ranks do not run now; they start again in any case", now, done=True)
    trouble = Trouble(Cause.REQUEST, _in_words(request), 1)
    s = run.situation(trouble, now)
    if why := s.not_in_place or s.others.not_again:
        return refuse(run, request, f"the ranks cannot be restarted in place: {why}", now)
    taken = agree(run, request, "the ranks are restarted in place", now, done=True)
    run.requests.in_hand = request.number
    return [*taken, trouble]


# --- requeue


def _requeue(run: Run, request: Request, now: Now) -> Answer:
    asked = request.asked
    if asked.schedule < run.facts.schedule and not request.waits and not {*asked.nodes} & {*run.facts.nodes}:
        return agree(run, request, "the job has been requeued since", now, done=True)
    if run.phase is Phase.REQUEUEING or (run.phase is Phase.ENDING and isinstance(run.end.then, ThenRequeue)):
        return agree(run, request, "the job is being requeued", now, done=True) if not asked.nodes else []
    if run.phase is Phase.ENDING and not run.end.another_try:
        return refuse(run, request, "the job is ending", now)
    trouble = Trouble(Cause.REQUEST, _in_words(request), 1)
    s = run.situation(trouble, now)
    if run.slurm.away_since is not None and s.slurm is not None and s.slurm.away:
        run.requests.to_consider += (request.number,)  # ftrun waits for slurmctld in any case, and asks again
        return []
    if Capability.ASK in run.facts.can and not (s.slurm is not None and run.slurm.heard_lately(now.mono)):
        return _consider_later(run, request, now)
    if s.slurm is not None and not s.slurm.error and s.slurm.state in ENDING_STATES:
        return refuse(run, request, ENDING_STATES[s.slurm.state].words, now)
    if why := why_no_requeue(s, asked.nodes):
        return refuse(run, request, f"the job cannot be requeued: {why}", now)
    taken = agree(run, request, "the job is requeued", now, done=True)
    run.requests.in_hand = request.number
    return [*taken, *enter_request(run, trouble, now)]


def _in_words(request: Request) -> str:
    return f"{asked_by(request)} asked to {ctl.request_in_words(request.asked)} (request {request.number})"


def _consider_later(run: Run, request: Request, now: Now) -> list[Decision]:
    run.requests.to_consider += (request.number,)
    return run.ask_slurm_unless_asked(now)


# --- leave a node


def _exclude(run: Run, request: Request, now: Now) -> Answer:
    """Leave the node: at once if ranks run on it and the job can continue without it; otherwise from the next start on."""
    here = [node for node in request.asked.nodes if node in run.step_nodes()]
    running = run.phase is Phase.RUNNING
    if request.asked.later or not here or not running:
        if run.phase is Phase.REQUEUEING:
            return []  # Slurm's list is fixed now: the job's next ftrun takes the request
        planned = {*here} if running else {*(run.places.planned(run.facts) or run.facts.nodes)}
        then = "the ranks leave it when they run" if planned & {*request.asked.nodes} and not request.asked.later else ""
        text = then or "the job does not run there from its next start on"
        return agree(run, request, text, now, done=not then)
    return _leave(run, request, here, now)


def _leave(run: Run, request: Request, here: list[str], now: Now) -> Answer:
    trouble = Trouble(Cause.REQUEST, _in_words(request), 1)
    out = dict.fromkeys(here, f"excluded by {request.who} (request {request.number})")
    s = run.situation(trouble, now, replace(run.attempt, nodes=replace(run.attempt.nodes, asked_out=out)))
    choice = choose(s)
    if choice.rung == Rung.FAIL:
        if Capability.ASK in run.facts.can and not run.slurm.heard_lately(now.mono):
            return _consider_later(run, request, now)
        why = f"the job cannot continue without {fold_nodes(here)} now: {choice.why}"
        if request.state is State.TAKEN:  # it holds for the next start, which may be possible
            return agree(run, request, why, now, done=True)
        return refuse(run, request, why, now)
    run.attempt.nodes.asked_out = out
    taken = agree(run, request, f"the job continues without {fold_nodes(here)}: {choice.rung}", now, done=True)
    run.requests.in_hand = 0
    return [*taken, trouble]


def leave_late(run: Run, now: Now) -> Answer:
    """Ranks run again: leave the nodes whose exclusion people asked for meanwhile."""
    for request in run.history.control.to_come:
        if request.asked.verb == ctl.EXCLUDE and not request.waits and run.phase is Phase.RUNNING:
            here = [node for node in request.asked.nodes if node in run.step_nodes()]
            if not here:
                return close(run, request, "no rank runs there now", now)
            return _leave(run, request, here, now)
    return []


# --- checkpoints


def on_checkpoint_made(run: Run, event: ev.CheckpointMade, now: Now) -> Answer:
    return _note_checkpoint(run, "file", event.path, event.pattern, now)


def on_checkpoint_told(run: Run, event: ev.ProgramSaid, now: Now) -> Answer:
    """A rank reports a checkpoint. Each rank may report its part: all are complete when no other follows for a while, or a
    rank reports the next one.
    """
    if not run.is_current(event):
        return []
    said = rec.ProgramSaid(now.unix, event.attempt, event.rank, ctl.CHECKPOINT, " ".join(event.words))
    before: list[Decision | Next] = [] if run.history.progress.checkpoints_told else [run.note(said)]
    if run.requests.checkpoints.has_told(event.rank):
        before += _note_told_checkpoint(run, now)
    run.requests.checkpoints.told(event.rank, now.mono)
    return before


def _note_told_checkpoint(run: Run, now: Now) -> Answer:
    told = run.requests.checkpoints.take_told()
    return _note_checkpoint(run, "program", told, "", now) if told else []


def _note_checkpoint(run: Run, sign: str, where: str, pattern: str, now: Now) -> Answer:
    found: list[Decision | Next] = []
    for request in run.history.control.to_come:
        left = run.requests.checkpoints.left(request, pattern, run.history, now.unix)
        if left is None:
            continue
        found.append(run.note(rec.CheckpointSeen(now.unix, attempt_number(run), request.number, sign, where[:500], left)))
        if not left and request.number not in run.requests.to_consider:
            found.append(ThenAct(request))
    return found


# --- around every event


def before(run: Run, event: ev.Event, now: Now) -> Answer:
    """Before an event: decide the requests that wait for Slurm's answer, before others use the event."""
    if not (run.requests.to_consider and isinstance(event, ev.SlurmAnswered)):
        return []
    run.take_answer(event, now)  # it has answered, if only that it cannot
    asked = run.requests.take_to_consider()
    return [ThenAct(request) for number in asked if (request := run.history.control.get(number))]


def after(run: Run, event: ev.Event, now: Now) -> Answer:
    """After an event: carry out what is due by now."""
    if isinstance(event, ev.Begun):
        return _resume(run, now)
    return _act_on_due(run, now) if isinstance(event, ev.TimePassed) else []


def _act_on_due(run: Run, now: Now) -> Answer:
    found: list[Decision | Next] = []
    if run.requests.checkpoints.has_settled(now.mono):
        found += _note_told_checkpoint(run, now)
    for number in run.requests.take_due(now.mono):
        request = run.history.control.get(number)
        if request is not None and request.state is State.TAKEN:
            found.append(ThenAct(request))
    return found


def _resume(run: Run, now: Now) -> Answer:
    """Continue what an earlier ftrun has accepted and not carried out."""
    found: list[Decision | Next] = []
    for request in run.history.control.to_come:
        if request.waits:
            _await(run, request, now)
        elif request.asked.verb != ctl.EXCLUDE:
            found.append(ThenAct(request))
    return found


def enter_request(run: Run, trouble: Trouble, now: Now) -> Answer:
    """Go to where a request is carried out, from any phase."""
    if run.phase is Phase.RUNNING:
        return [trouble]
    dropped: list[Decision] = []
    if run.phase is Phase.LAUNCHING:
        run.new_attempt().none_begun()
        run.attempt.step_end.none(run.timers.any_of(Timer.LAUNCH_AGAIN, Timer.OTHERS))
        return [trouble]
    if run.phase is Phase.REPLACING:
        dropped = ending.drop_remedy(run, trouble.what, now)
        if not run.attempt.ranks:  # before the first start
            run.new_attempt(tasks=())
        run.attempt.step_end.none()
    if run.phase is Phase.ENDING:  # the step is ending: the request follows then
        dropped = ending.drop_remedy(run, trouble.what, now)
        run.set_trouble(trouble)
        run.end.follow_with(ThenDecide())
        return dropped
    run.set_trouble(trouble)
    run.timers.keep(*([Timer.STOP] if run.phase is Phase.SETTLING else []))
    run.attempt.devices.to_heal = {}
    run.enter(Phase.SETTLING)
    return [*dropped, Settled()]


# --- What becomes of a request is recorded, and said: accepted, refused, done


def agree(run: Run, request: Request, text: str, now: Now, done: bool = False) -> list[Decision]:
    """Accept the request; the request itself is in the ledger, so everything that is done is recorded. done: it is carried
    out already.
    """
    said = Say(f"request {request.number} of {asked_by(request)} ({ctl.request_in_words(request.asked)}): {text}")
    if request.state is not State.OPEN:  # another ftrun of the job has answered
        return [said, *(close(run, request, text, now) if done else [])]
    answer = _answer(run, request, True, text, now)
    return [answer, said, *(close(run, request, text, now) if done else [])]


def refuse(run: Run, request: Request, why: str, now: Now) -> list[Decision]:
    """Refuse the request. An accepted one that cannot be carried out when its time has come is refused as well."""
    said = Say(f"request {request.number} of {asked_by(request)} ({ctl.request_in_words(request.asked)}) is refused: {why}")
    run.requests.forget(request.number)
    if request.state is State.TAKEN:
        return [*close(run, request, why, now, ok=False), said]
    return [_answer(run, request, False, why, now), said]


def _answer(run: Run, request: Request, ok: bool, text: str, now: Now) -> Decision:
    node = run.facts.batch_node or run.facts.process.host
    return run.note(rec.RequestAnswered(now.unix, run.facts.run, request.number, ok, text, attempt_number(run), node))


def attempt_number(run: Run) -> int:
    """The number of the attempt that runs or starts."""
    return starting.next_number(run) if run.phase is Phase.LAUNCHING or not run.attempt.number else run.attempt.number


def close(run: Run, request: Request, text: str, now: Now, ok: bool = True) -> list[Decision]:
    if request.asked.verb not in ctl.ACTS:
        return []
    run.requests.forget(request.number)
    return [run.note(rec.RequestDone(now.unix, run.facts.run, request.number, ok, text, attempt_number(run)))]


def asked_by(request: Request) -> str:
    return ctl.ROOT if request.who == ctl.ROOT else request.asked.by or "you"


_WHAT_IS_NEEDED = (
    "ftrun cannot tell when a checkpoint is complete: give --files PATTERN, or set checkpoint.files, or let the program call "
    "ftslurm.sdk.client.checkpoint(); with --by TIME it is done at that moment in any case"
)


def _is_node_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text) is not None


_ACT: Mapping[str, Callable[[Run, Request, Now], Answer]] = {
    ctl.STOP: _stop,
    ctl.RESTART: _restart,
    ctl.REQUEUE: _requeue,
    ctl.EXCLUDE: _exclude,
}
