"""The judge: events in, decisions out. It knows no clock, no process and no file; every answer is data.

The table at the end of this file names, for each phase and event, the function that answers. A pair that the table lacks is an
error, so nothing is ignored by accident; the table says what is ignored on purpose. The functions get the `Run`, the event and
the time. They answer with decisions; a value of `then` among these (a trouble, what follows the end of the step) says what the
judge does next, so that no module calls one that stands on it. What answers an event is named `on_` and the event, unless it
does what its name says at other times as well. Each row names the phases that an answer may lead to: `Run.enter` checks that,
and docs/ARCHITECTURE.md shows the diagram.

A concern is a module; what it knows stands below `state` in a module of its own:

    launching        from the first event until ranks run; ranks of an earlier ftrun that may still run
    starting         the step and its ranks start
    ranks            ranks that exit or are lost, a rank of an async job, and signals from outside
    devices          agents, the faults of devices, and drills: faults that a person orders
    hangs            stalled and slow ranks, by their collectives; hangs by other signs, and what follows from any hang
    nodes            silent nodes
    requests         what the owner of the job asks for while it runs, and how the work of the job is broken off for it
    settling         trouble: stop ranks, collect facts, decide; most of the above leads there
    causes           what is behind the end of an attempt: asked beside the loop, and recorded when known
    rungs            carrying out the decision
    replacing        other nodes for the slots of bad nodes
    ending           ending the step, and ftrun; waiting for a slurmctld that is away, and for the end that the time limit brings
    state            `Run`: what the judge knows, and what every concern needs. Its parts (step, outside, spares):
                     a single fact is set where it is learned, what belongs together changes by a method.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ftslurm.model import events as ev
from ftslurm.model.decisions import Decision
from ftslurm.model.events import Event, Now
from ftslurm.model.folds.control import CHECKPOINT
from ftslurm.model.folds.history import History
from ftslurm.model.settings.kinds import ALONE
from ftslurm.model.settings.tree import Settings
from ftslurm.model.timers import Timer
from ftslurm.policies.judge import (
    causes,
    devices,
    ending,
    hangs,
    launching,
    nodes,
    ranks,
    replacing,
    requests,
    rungs,
    settling,
    starting,
    then,
)
from ftslurm.policies.judge.launching import budgets
from ftslurm.policies.judge.phases import Phase, RunFacts
from ftslurm.policies.judge.state import Run
from ftslurm.policies.judge.then import Answer, Next, Settled
from ftslurm.policies.situation import Trouble

__all__ = ["TABLE", "Judge", "Phase", "RunFacts", "budgets"]


class Judge:
    """Decides how to keep the job alive. Call `handle` with each event; read `finished`, `exit_status` and `wakes_at`.

    run: what it knows. It holds every record of every answer from the moment the answer is given.
    """

    def __init__(self, settings: Settings, history: History, facts: RunFacts) -> None:
        self.run = Run(settings, history, facts, NEXT)

    @property
    def phase(self) -> Phase:
        return self.run.phase

    @property
    def history(self) -> History:
        return self.run.history

    @property
    def settings(self) -> Settings:
        return self.run.settings

    @property
    def finished(self) -> bool:
        return self.run.phase is Phase.FINISHED

    @property
    def exit_status(self) -> int:
        return self.run.end.status

    @property
    def wakes_at(self) -> float | None:
        """Monotonic seconds at which the judge wants a TimePassed, None for never."""
        due = (self.run.timers.next_due, self.run.requests.next_due)
        return min((at for at in due if at is not None), default=None)

    @property
    def shares_numbers(self) -> bool:
        """May the next answer take the number of an attempt, while other ftruns of the job take theirs?"""
        starts = self.phase is not Phase.RUNNING or self.run.settings.mode in ALONE
        return starts and len(self.history.beside) > 1

    def handle(self, event: Event, now: Now) -> tuple[Decision, ...]:
        """Decide what follows from `event`.

        Raises: LookupError for an event that cannot happen in this phase, and for an answer that leads to a phase that the table
        does not allow.
        """
        return handle(self.run, event, now)

    def read(self, history: History) -> None:
        """Another ftrun of the same job has written to the ledger, whose attempts and budgets count as well."""
        self.run.read(history)


def handle(run: Run, event: Event, now: Now) -> tuple[Decision, ...]:
    """See `Judge.handle`."""
    run.may_enter(None)
    waited, before = _in_full(run, requests.before(run, event, now), now), run.phase
    if run.phase is Phase.FINISHED and waited:
        return tuple(waited)
    row = TABLE.get((run.phase, type(event)))
    if row is None:
        raise LookupError(f"the judge has no answer to {type(event).__name__} while {run.phase.value}")
    if isinstance(event, ev.AgentTold) and not isinstance(event, ev.ProgramSaid) and not run.is_current(event):
        return ()
    if isinstance(event, ev.SignalSeen) and ranks.is_of_lender(run, event):
        return tuple(ranks.on_lender_signal(run, event, now))
    run.may_enter(row.leads_to)
    found = [*waited, *_in_full(run, row.answer(run, event, now), now)]
    run.may_enter(None)
    if run.phase is Phase.FINISHED:
        return tuple(found)
    found += _in_full(run, requests.after(run, event, now), now)
    if run.phase is Phase.RUNNING and before is not Phase.RUNNING:
        found += _in_full(run, requests.leave_late(run, now), now)
    return (*found, *run.requests.checkpoints.watch(run.history))


def _in_full(run: Run, answer: Answer, now: Now) -> list[Decision]:
    """The decisions of an answer, and those of all that it leads to."""
    found: list[Decision] = []
    for part in answer:
        if isinstance(part, Next):
            found += _in_full(run, _follow(run, part, now), now)
        else:
            found.append(part)
    return found


def ignore(run: Run, event: Event, now: Now) -> list[Decision]:
    return []


def on_program_said(run: Run, event: ev.ProgramSaid, now: Now) -> Answer:
    if event.what == CHECKPOINT:
        return requests.on_checkpoint_told(run, event, now)
    return hangs.on_program_said(run, event, now)


def on_time_passed(run: Run, _: ev.TimePassed, now: Now) -> list[Decision]:
    found: list[Decision] = []
    for timer in run.timers.take_due(now.mono):
        phases, overdue = DUE[timer]
        if run.phase in phases:  # otherwise an event due at the same moment has ended the phase it belongs to
            found += _in_full(run, overdue(run, now), now)
    return found


def tell_wait(run: Run, now: Now) -> list[Decision]:
    return settling.tell_wait(run, now) if run.phase is Phase.SETTLING else ending.tell_wait(run, now)


def on_stood_still(run: Run, event: ev.StoodStill, now: Now) -> list[Decision]:
    """ftrun was suspended: then ranks, agents and Slurm's time limit paused as well."""
    run.timers.put_off(event.seconds)
    run.hangs.put_off(event.seconds)
    return []


def on_ask_overdue(run: Run, now: Now) -> list[Decision]:
    error = f"no answer within {run.settings.slurm.timeout_s:g} s"
    return [*handle(run, ev.SlurmAnswered(error=error, away=True), now)]


def _follow(run: Run, step: Next, now: Now) -> Answer:
    match step:
        case Trouble():
            return settling.begin_trouble(run, step, now)
        case Settled():
            if run.phase is Phase.ENDING:
                return ending.settle(run, now)
            return rungs.settle_healing(run, now) if run.phase is Phase.HEALING else settling.settle(run, now)
        case then.ThenLaunch():
            return starting.launch_step(run, now)
        case then.ThenHeal(faults):
            return rungs.heal(run, faults, now)
        case then.ThenReplace():
            return replacing.go_on_without_step(run, now)
        case then.ThenShrink(out):
            return replacing.shrink(run, out, now)
        case then.ThenRequeue():
            return ending.hand_over(run, now)
        case then.ThenAfterWarning(trouble):
            return rungs.after_warning(run, trouble, now)
        case then.ThenFinish(what, status, outcome):
            return ending.finish(run, what, status, now, outcome)
        case then.ThenDecide():
            return settling.decide_again(run, now)
        case then.ThenStepStays():
            return rungs.give_up_step(run, now)
        case then.ThenLauncherStays():
            return launching.give_up_launcher(run, now)
        case then.ThenAct(request):
            return requests.act_later(run, request, now)
        case then.ThenSignal(event, since):
            return ranks.on_earlier_signal(run, event, since, now)
        case ev.Diagnosed():
            return ranks.on_diagnosed(run, step, now)


_N, _L, _R, _S, _H, _P, _E, _Q, _F = (
    Phase.NEW, Phase.LAUNCHING, Phase.RUNNING, Phase.SETTLING, Phase.HEALING, Phase.REPLACING, Phase.ENDING, Phase.REQUEUEING,
    Phase.FINISHED,
)  # fmt: skip
_ANY = frozenset(Phase)
# What follows when a timer ends, and in which phases. In other phases it is ignored.
DUE: Mapping[Timer, tuple[Collection[Phase], Callable[..., Answer]]] = {
    Timer.WATCH: ({_R}, starting.on_watch_due),
    Timer.COMMANDS: ({_R}, starting.tell_commands),
    Timer.IDLE: ({_R}, nodes.probe_idle),
    Timer.MEND: (_ANY, ranks.on_mend_overdue),
    Timer.RANK_AGAIN: ({_R}, ranks.start_again),
    Timer.USE: (_ANY, hangs.judge_use),
    Timer.EXIT: ({_R}, hangs.on_exit_overdue),
    Timer.OTHERS_END: ({_R}, ranks.end_others),
    Timer.HOLD: ({_R}, hangs.on_hold_due),
    Timer.EVIDENCE: ({_R}, hangs.on_evidence_overdue),
    Timer.EXAMINE: (_ANY, hangs.look_closer),
    Timer.COMPARE: ({_R}, hangs.compare_ranks),
    Timer.LAUNCH: (_ANY, launching.on_launch_overdue),
    Timer.LAUNCH_AGAIN: ({_L}, starting.launch_step),
    Timer.STRAGGLERS: ({_L}, launching.on_stragglers_overdue),
    Timer.STRAGGLERS_KNOWN: ({_L}, launching.give_up_stragglers),
    Timer.SEARCH_AGAIN: ({_P}, replacing.search_again),
    Timer.SLOW_LAUNCH: ({_L}, launching.look_for_nodes),
    Timer.HINTS: (_ANY, hangs.on_hints_due),
    Timer.PASS_ON: (_ANY, ranks.pass_on),
    Timer.STOP: (_ANY, settling.on_stop_overdue),
    Timer.TELL: ({_S, _E}, tell_wait),
    Timer.LOOK: (_ANY, settling.on_look_overdue),
    Timer.ASK: (_ANY, on_ask_overdue),
    Timer.DIAGNOSIS: ({_S}, causes.on_diagnosis_overdue),
    Timer.PROGRESS: ({_S}, settling.settle),
    Timer.ADVICE: ({_R, _S}, causes.use_advice),
    Timer.AWAY: ({_S}, Run.ask_slurm_unless_asked),
    Timer.REQUEUE: (_ANY, ending.hand_over),
    Timer.WARNING: ({_R}, ranks.on_warning_overdue),
    Timer.LIMIT: ({_R}, Run.ask_slurm_unless_asked),
    Timer.HEAL: (_ANY, rungs.on_heal_overdue),
    Timer.STEP: (_ANY, ending.on_step_overdue),
    Timer.KILLED_STEP: (_ANY, ending.on_killed_step_overdue),
    Timer.PROBE: (_ANY, nodes.on_probe_overdue),
    Timer.PROBE_AGAIN: ({_R, _H, _S}, nodes.probe_again),
    Timer.SILENCE: ({_R, _H}, nodes.probe_silent),
    Timer.NODE: (_ANY, replacing.on_search_overdue),
    Timer.LEASES: ({_R, _H}, nodes.on_leases_over),
    Timer.LEASE: ({_E}, ending.on_lease_due),
    Timer.OTHERS: ({_L}, launching.on_leases_over),
    Timer.LOOK_FOR_OTHERS: (_ANY, launching.look_for_others),
}


class _Row:
    """answer: the function that handles the event. leads_to: the phases that the answer may lead to directly, beside staying in
    its phase; from there the same event may lead on, as NEXT says.
    """

    def __init__(self, answer: Callable[..., Answer], *leads_to: Phase) -> None:
        self.answer = answer
        self.leads_to = frozenset(leads_to)


# Phases that a decision may lead to once its conditions hold; what may follow the end of a step.
_DECIDED, _AFTERWARDS = (_L, _R, _H, _E), (_L, _S, _H, _P, _Q, _F)
# Phases that a request of the job's owner may lead to.
_REQUESTED: Mapping[Phase, tuple[Phase, ...]] = {
    _L: (_S, _E, _F), _R: (_S,), _S: _DECIDED, _H: (_S, _E), _P: (_S, _F), _E: (_F,), _Q: (_F,),
}  # fmt: skip
# Also the passing of time, which may be the moment of a request.
_IN_TIME: Mapping[Phase, tuple[Phase, ...]] = {
    _L: (_P, _S, _E, _F), _R: (_S, _E), _S: _DECIDED, _H: (_R, _S, _E), _P: (_L, _S, _F), _E: _AFTERWARDS, _Q: (_F,),
}  # fmt: skip

# From the first event to the last: what comes in each of these phases, and what is done with it where nobody waits for it.
_LIVE = (_L, _R, _S, _H, _P, _E, _Q)
_ELSEWHERE: Mapping[type, Callable[..., Answer]] = {
    # signs of activity and of none; late messages of an ended attempt, a released shim, a step that does not come up
    **dict.fromkeys(
        (
            ev.QuietSeen, ev.UseSampled, ev.RankSilent, ev.RankWords, ev.BeatOverdue, ev.StallSeen, ev.RanksCompared, ev.StageSet,
            ev.RankStarted, ev.RankExited, ev.RankUnstartable, ev.TaskArrived, ev.RankClaimedTwice, ev.TasksEnded,
            ev.PartEnded, ev.ShimLeft, ev.StepsListed, ev.DevicesSeen, ev.HealingDone, ev.DonorSubmitted, ev.Diagnosed,
            ev.Advised,
        ),
        ignore,
    ),
    ev.Progressed: hangs.on_progressed,
    ev.RanksAlive: hangs.on_ranks_alive,
    ev.EvidenceTaken: hangs.on_evidence_taken,
    ev.IterationRead: causes.on_iteration_read,
    ev.NodeHeard: nodes.on_node_heard,
    ev.RankPaused: nodes.on_rank_paused,
    # nodes that arrive too late, or leave
    ev.NodeChecked: replacing.on_spare_checked,
    ev.NodeBorrowed: replacing.end_late_loan,
    ev.LoansEnded: replacing.on_loans_ended,
    ev.NodesReleased: replacing.on_nodes_released,
    # our own contact: the leases decide what follows
    ev.CutOff: nodes.on_cut_off,
    ev.InTouch: nodes.on_in_touch,
    ev.StoodStill: on_stood_still,
}  # fmt: skip
# Requests of the job's owner; a program tells of the checkpoints that they wait for.
_OF_REQUESTS: Mapping[type, Callable[..., Answer]] = {
    ev.ControlAsked: requests.on_control_asked, ev.CheckpointMade: requests.on_checkpoint_made,
    ev.ProgramSaid: on_program_said,
}  # fmt: skip
# What agents, Slurm and closed connections may still report when nobody waits for it.
_BESIDE: Mapping[Phase, tuple[type, ...]] = {
    _L: (ev.RankStopped,),
    _H: (ev.RankStopped,),
    _P: (ev.RankStopped, ev.ShimLost, ev.SlurmAnswered, ev.StepEnded, ev.NodeProbed),
    _E: (ev.SlurmAnswered, ev.NodeProbed),
    _Q: (
        ev.RankStopped, ev.ShimLost, ev.SlurmAnswered, ev.StepEnded, ev.NodeProbed, ev.NodeSilent, ev.AgentArrived, ev.AgentLost,
        ev.SignalSeen,  # that comes from the requeue itself
    ),
}  # fmt: skip

TABLE: Mapping[tuple[Phase, type], _Row] = {
    **{(phase, kind): _Row(answer) for kind, answer in _ELSEWHERE.items() for phase in _LIVE},
    **{(phase, kind): _Row(answer, *_REQUESTED[phase]) for kind, answer in _OF_REQUESTS.items() for phase in _LIVE},
    **{(phase, kind): _Row(ignore) for phase, kinds in _BESIDE.items() for kind in kinds},
    **{(phase, ev.TimePassed): _Row(on_time_passed, *_IN_TIME[phase]) for phase in _LIVE},
    **{(phase, ev.LedgerFailed): _Row(ending.on_ledger_failed, _E) for phase in (_L, _R, _S, _H, _P, _Q)},
    (_N, ev.Begun): _Row(launching.on_begun, _L, _P, _S),
    # the step starts
    (_L, ev.TaskArrived): _Row(launching.on_task_arrived, _R, _S),
    (_L, ev.RankClaimedTwice): _Row(launching.on_rank_claimed_twice, _S),
    (_L, ev.StepEnded): _Row(launching.on_step_ended, _S),
    (_L, ev.PartEnded): _Row(launching.on_part_ended, _S),
    (_L, ev.TasksEnded): _Row(launching.on_tasks_ended, _S),
    (_L, ev.StepsListed): _Row(launching.on_steps_listed, _S, _E),
    (_L, ev.ShimLost): _Row(launching.on_shim_lost, _S),
    (_L, ev.NodeChecked): _Row(launching.on_node_checked, _S),
    (_L, ev.NodeProbed): _Row(launching.on_node_probed, _S),
    (_L, ev.NodeSilent): _Row(nodes.note_silence),
    (_L, ev.SignalSeen): _Row(launching.on_signal, _E, _F),
    (_L, ev.AgentArrived): _Row(devices.on_agent_arrived),
    (_L, ev.AgentLost): _Row(devices.on_agent_lost),
    (_L, ev.SlurmAnswered): _Row(launching.on_slurm_answered, _P, _S),
    # ranks run
    (_R, ev.RankExited): _Row(ranks.on_rank_exited, _S, _E),
    (_R, ev.RankUnstartable): _Row(ranks.on_rank_unstartable, _S, _E),
    (_R, ev.RankStopped): _Row(ranks.on_rank_stopped, _S, _E),
    (_R, ev.ShimLost): _Row(ranks.on_shim_lost, _S),
    (_R, ev.NodeSilent): _Row(nodes.on_node_silent),
    (_R, ev.NodeProbed): _Row(nodes.on_node_probed, _S),
    (_R, ev.StepEnded): _Row(ranks.on_step_ended, _S),
    (_R, ev.AgentArrived): _Row(devices.on_agent_arrived),
    (_R, ev.AgentLost): _Row(devices.on_agent_lost),
    (_R, ev.DevicesSeen): _Row(devices.on_devices_seen, _S),
    (_R, ev.SignalSeen): _Row(ranks.on_signal, _S),
    (_R, ev.SlurmAnswered): _Row(ranks.on_slurm_answered, _S),
    (_R, ev.QuietSeen): _Row(hangs.on_quiet_seen),
    (_R, ev.UseSampled): _Row(hangs.on_use_sampled, _S),
    (_R, ev.RankSilent): _Row(hangs.on_rank_silent, _S),
    (_R, ev.RankWords): _Row(hangs.on_rank_words),
    (_R, ev.EvidenceTaken): _Row(hangs.on_evidence_taken, _S),
    (_R, ev.StallSeen): _Row(hangs.on_stall_seen),
    (_R, ev.RanksCompared): _Row(hangs.on_ranks_compared),
    (_R, ev.StageSet): _Row(hangs.on_stage_set),
    (_R, ev.BeatOverdue): _Row(hangs.on_beat_overdue, _S, _E),
    (_R, ev.Diagnosed): _Row(ranks.on_diagnosed, _S, _E),
    (_R, ev.Advised): _Row(causes.on_advised),
    # ranks are being stopped, facts are collected
    (_S, ev.RankExited): _Row(settling.on_rank_exited),
    (_S, ev.RankUnstartable): _Row(settling.on_rank_unstartable),
    (_S, ev.RankStopped): _Row(settling.on_rank_stopped, *_DECIDED),
    (_S, ev.ShimLost): _Row(settling.on_shim_lost, *_DECIDED),
    (_S, ev.NodeSilent): _Row(nodes.on_node_silent),
    (_S, ev.NodeProbed): _Row(nodes.on_node_probed, *_DECIDED),
    (_S, ev.StepEnded): _Row(settling.on_step_ended, *_DECIDED),
    (_S, ev.AgentArrived): _Row(devices.on_agent_arrived, *_DECIDED),
    (_S, ev.AgentLost): _Row(devices.on_agent_lost, *_DECIDED),
    (_S, ev.DevicesSeen): _Row(devices.on_devices_looked_at, *_DECIDED),
    (_S, ev.SignalSeen): _Row(ranks.on_signal_late, *_DECIDED),
    (_S, ev.SlurmAnswered): _Row(settling.on_slurm_answered, *_DECIDED),
    (_S, ev.Diagnosed): _Row(causes.on_diagnosed, *_DECIDED),
    (_S, ev.Advised): _Row(causes.on_advised, *_DECIDED),
    (_S, ev.IterationRead): _Row(causes.on_iteration_read, *_DECIDED),
    # devices heal
    (_H, ev.HealingDone): _Row(rungs.on_healing_done, _R, _S, _E),  # the healing agent's own result counts
    (_H, ev.ShimLost): _Row(settling.on_shim_lost),
    (_H, ev.StepEnded): _Row(settling.on_step_ended),
    (_H, ev.AgentArrived): _Row(devices.admit_agent),
    (_H, ev.AgentLost): _Row(devices.on_agent_lost, _R, _S, _E),
    (_H, ev.NodeSilent): _Row(nodes.on_node_silent),
    (_H, ev.NodeProbed): _Row(nodes.on_node_probed, _R, _S, _E),
    (_H, ev.SignalSeen): _Row(ranks.on_signal_late, _E),
    (_H, ev.SlurmAnswered): _Row(rungs.on_slurm_answered, _E),
    # no step: a search for other nodes runs
    (_P, ev.NodeChecked): _Row(replacing.on_node_checked, _L, _S),
    (_P, ev.NodeBorrowed): _Row(replacing.on_node_borrowed, _L, _S),
    (_P, ev.DonorSubmitted): _Row(replacing.on_donor_submitted),
    (_P, ev.SignalSeen): _Row(replacing.on_signal, _S, _F),
    (_P, ev.NodeSilent): _Row(nodes.note_silence),
    (_P, ev.AgentArrived): _Row(devices.admit_agent),
    (_P, ev.AgentLost): _Row(devices.on_agent_lost),
    # the step is ending
    (_E, ev.NodeChecked): _Row(replacing.on_node_checked),
    (_E, ev.NodeBorrowed): _Row(replacing.on_node_borrowed),
    (_E, ev.DonorSubmitted): _Row(replacing.on_donor_submitted),
    (_E, ev.StepEnded): _Row(ending.on_step_ended, *_AFTERWARDS),
    (_E, ev.NodeSilent): _Row(nodes.note_silence, *_AFTERWARDS),
    (_E, ev.ShimLost): _Row(settling.on_shim_lost, *_AFTERWARDS),
    (_E, ev.ShimLeft): _Row(ending.on_shim_left),
    (_E, ev.RankStopped): _Row(settling.on_rank_stopped, *_AFTERWARDS),
    (_E, ev.SignalSeen): _Row(ending.on_signal, _F),
    (_E, ev.AgentArrived): _Row(devices.admit_agent),
    (_E, ev.AgentLost): _Row(devices.on_agent_lost, *_AFTERWARDS),
    (_E, ev.LedgerFailed): _Row(ending.on_ledger_failed, _F),
    # the job is being requeued; ftrun ends
    (_Q, ev.RequeueEnded): _Row(ending.on_requeue_ended, _F),
    (_F, ev.LedgerFailed): _Row(ending.on_ledger_failed),
}
# The phases that each phase may lead to.
NEXT: Mapping[Phase, frozenset[Phase]] = {
    phase: frozenset(to for (of, _), row in TABLE.items() if of is phase for to in row.leads_to) for phase in Phase
}
