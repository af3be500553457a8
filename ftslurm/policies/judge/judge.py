"""The judge: events in, decisions out. It knows no clock, no process and no file; every answer is data.

The table at the end of this file names, for each phase and event, the method that answers. A pair that the table lacks is an
error, so nothing is ignored by accident; the table says what is ignored on purpose. The methods are in groups, one module each. A
group calls the groups below it; the few methods that a lower group calls are declared there. Each row names the phases that an
answer may lead to: `handle` checks that, and docs/ARCHITECTURE.md shows the diagram.

    launching        from the first event until ranks run
    earlier_steps    ranks of an earlier ftrun that may still run
    ranks            ranks that exit or are lost; a rank of an async job
    signals          signals from outside, and their meaning by Slurm
    devices          agents, and the faults of devices
    stalls           stalled and slow ranks, by their collectives
    hang_signs       hangs by other signs, and what follows from any hang
    nodes            silent nodes
    drills           faults that a person orders
    requests         what the owner of the job asks for while it runs
    interrupting     interrupting the job's work for such a request
    settling         trouble: stop ranks, collect facts, decide; most of the above leads there
    causes           what is behind the end of an attempt: asked beside the loop, and recorded when known
    rungs            carrying out the decision
    replacing        other nodes for the slots of bad nodes
    starting         starting the step and its ranks
    ending           ending the step, and ftrun
    slurm_away       waiting for a slurmctld that is away
    state            what the judge knows, and what every group needs
    parts/           its parts: each owns its state, and only its own methods change it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ftslurm.model import events as ev
from ftslurm.model.decisions import Decision
from ftslurm.model.events import Event, Now
from ftslurm.model.folds.control import CHECKPOINT
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.drills import Drills
from ftslurm.policies.judge.launching import budgets
from ftslurm.policies.judge.nodes import Nodes
from ftslurm.policies.judge.phases import Phase, RunFacts
from ftslurm.policies.judge.ranks import Ranks
from ftslurm.policies.judge.requests.requests import Requests
from ftslurm.policies.judge.stalls import Stalls
from ftslurm.policies.judge.then import (
    Then,
    ThenAfterWarning,
    ThenDecide,
    ThenFinish,
    ThenHeal,
    ThenLaunch,
    ThenLauncherStays,
    ThenReplace,
    ThenRequeue,
    ThenShrink,
    ThenStepStays,
)

__all__ = ["TABLE", "Judge", "Phase", "RunFacts", "budgets"]


class Judge(Requests, Ranks, Stalls, Nodes, Drills):
    """Decides how to keep the job alive. Call `handle` with each event; read `finished`, `exit_status` and `wakes_at`.

    history holds every record of every answer from the moment the answer is given.
    """

    def handle(self, event: Event, now: Now) -> tuple[Decision, ...]:
        """Decide what follows from `event`.

        Raises: LookupError for an event that cannot happen in this phase, and for an answer that leads to a phase that the table
        does not allow.
        """
        self._may_enter = None
        waited, before = self._requests_before(event, now), self.phase
        if self.phase is Phase.FINISHED and waited:
            return tuple(waited)
        row = TABLE.get((self.phase, type(event)))
        if row is None:
            raise LookupError(f"the judge has no answer to {type(event).__name__} while {self.phase.value}")
        if isinstance(event, ev.AgentTold) and not isinstance(event, ev.ProgramSaid) and not self._is_current(event):
            return ()
        if isinstance(event, ev.SignalSeen) and self._is_of_a_lender(event):
            return tuple(self._called_back(event, now))
        self._may_enter = row.leads_to
        found = [*waited, *row.answer(self, event, now)]
        self._may_enter = None
        return (*found, *self._requests_after(event, before, now))

    def _enter(self, phase: Phase) -> None:
        """Enter a phase. One answer may pass through several phases, each step as the table allows."""
        if phase is self.phase:
            return
        may, self._may_enter = self._may_enter, None
        if phase not in (NEXT[self.phase] if may is None else may):
            raise LookupError(f"the judge's table knows of no way from {self.phase.value} to {phase.value}")
        self.phase = phase

    def _program_told(self, event: ev.ProgramSaid, now: Now) -> list[Decision]:
        return self._checkpoint_told(event, now) if event.what == CHECKPOINT else self._program_said(event, now)

    def _time_passed(self, _: ev.TimePassed, now: Now) -> list[Decision]:
        due = self._timers.take_due(now.mono)
        for timer in _OF_HANGS & due.keys():
            if now.mono - due[timer] > AWAY_S:  # ftrun was stopped, and probably the ranks with it
                self._timers.set(timer, now.mono + AWAY_S)
        found: list[Decision] = []
        for timer in sorted(due.keys() - self._timers.running):
            phases, overdue = DUE[timer]
            if self.phase in phases:  # otherwise an event due at the same moment has ended the phase it belongs to
                found += overdue(self, now)
        return found

    def _stood_still(self, event: ev.StoodStill, now: Now) -> list[Decision]:
        """ftrun was suspended: then ranks, agents and Slurm's time limit paused as well."""
        self._timers.put_off(event.seconds)
        return []

    def _follow(self, then: Then, now: Now) -> list[Decision]:
        match then:
            case ThenLaunch():
                return self._launch_step(now)
            case ThenHeal(faults):
                return self._heal(faults, now)
            case ThenReplace():
                return self._without_step(now)
            case ThenShrink(nodes):
                return self._smaller(nodes, now)
            case ThenRequeue():
                return self._hand_over(now)
            case ThenAfterWarning(trouble):
                return self._after_warning(trouble, now)
            case ThenFinish(what, status):
                return self._finish(what, status, now)
            case ThenDecide():
                return self._settle_again(now)
            case ThenStepStays():
                return self._step_stays(now)
            case ThenLauncherStays():
                return self._launcher_stays(now)

    def _ask_overdue(self, now: Now) -> list[Decision]:
        silent = ev.SlurmAnswered(error=f"no answer within {self.settings.slurm_timeout_s:g} s", away=True)
        return self.handle(silent, now)  # type: ignore[return-value]


# A deadline that passed this long ago passed while ftrun was suspended; it is no evidence of a hang.
AWAY_S = 30.0
_OF_HANGS = frozenset({Timer.EXIT, Timer.EXAMINE, Timer.EVIDENCE, Timer.USE})

_N, _L, _R, _S, _H, _P, _E, _Q, _F = (
    Phase.NEW, Phase.LAUNCHING, Phase.RUNNING, Phase.SETTLING, Phase.HEALING, Phase.REPLACING, Phase.ENDING, Phase.REQUEUEING,
    Phase.FINISHED,
)  # fmt: skip
_ANY = frozenset(Phase)
# What follows when a timer ends, and in which phases. In other phases it is ignored.
DUE: Mapping[Timer, tuple[Collection[Phase], Callable[[Judge, Now], list[Decision]]]] = {
    Timer.WATCH: ({_R}, Judge._watch_due),
    Timer.IDLE: ({_R}, Judge._idle_due),
    Timer.MEND: (_ANY, Judge._mend_overdue),
    Timer.RANK_AGAIN: ({_R}, Judge._start_ranks_again),
    Timer.USE: (_ANY, Judge._use_known),
    Timer.EXIT: ({_R}, Judge._exit_overdue),
    Timer.HOLD: ({_R}, Judge._hold_due),
    Timer.EVIDENCE: ({_R}, Judge._evidence_overdue),
    Timer.EXAMINE: (_ANY, Judge._look_closer),
    Timer.COMPARE: ({_R}, Judge._compare),
    Timer.LAUNCH: (_ANY, Judge._launch_overdue),
    Timer.LAUNCH_AGAIN: ({_L}, Judge._launch_again),
    Timer.STRAGGLERS: ({_L}, Judge._stragglers_overdue),
    Timer.STRAGGLERS_KNOWN: ({_L}, Judge._stragglers_known),
    Timer.SEARCH_AGAIN: ({_P}, Judge._search_again),
    Timer.SLOW_LAUNCH: ({_L}, Judge._slow_launch),
    Timer.HINTS: (_ANY, Judge._hints_due),
    Timer.PASS_ON: (_ANY, Judge._passed_on),
    Timer.STOP: (_ANY, Judge._stop_overdue),
    Timer.TELL: ({_S}, Judge._tell_settling),
    Timer.LOOK: (_ANY, Judge._look_overdue),
    Timer.ASK: (_ANY, Judge._ask_overdue),
    Timer.DIAGNOSIS: ({_S}, Judge._diagnosis_overdue),
    Timer.PROGRESS: ({_S}, Judge._progress_overdue),
    Timer.ADVICE: ({_R, _S}, Judge._advice_known),
    Timer.AWAY: ({_S}, Judge._ask_again),
    Timer.REQUEUE: (_ANY, Judge._hand_over),
    Timer.WARNING: ({_R}, Judge._warning_overdue),
    Timer.HEAL: (_ANY, Judge._heal_overdue),
    Timer.STEP: (_ANY, Judge._step_overdue),
    Timer.KILLED_STEP: (_ANY, Judge._killed_step_overdue),
    Timer.PROBE: (_ANY, Judge._probe_overdue),
    Timer.PROBE_AGAIN: ({_R, _H, _S}, Judge._probe_again),
    Timer.SILENCE: ({_R, _H}, Judge._silence_goes_on),
    Timer.NODE: (_ANY, Judge._node_overdue),
    Timer.LEASES: ({_R, _H}, Judge._leases_over),
    Timer.LEASE: ({_E}, Judge._lease_due),
    Timer.TELL_LEASES: (_ANY, Judge._tell_leases),
    Timer.TELL_STEP: ({_E}, Judge._tell_step),
    Timer.OTHERS: ({_L}, Judge._others_over),
    Timer.LOOK_FOR_OTHERS: (_ANY, Judge._look_for_others),
}

# What agents, Slurm and closed connections may still report when nobody waits for it.
_BESIDE = {ev.ShimLost, ev.AgentArrived, ev.AgentLost, ev.DevicesSeen, ev.SlurmAnswered, ev.HealingDone}


class Row:
    """answer: the method that handles the event. leads_to: the phases that the answer may lead to directly, beside staying in its
    phase; from there the same event may lead on, as NEXT says.
    """

    def __init__(self, answer: Callable[..., list[Decision]], *leads_to: Phase) -> None:
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
    _L: (_P, _S, _E, _F), _R: (_S,), _S: _DECIDED, _H: (_R, _S, _E), _P: (_L, _S, _F), _E: _AFTERWARDS, _Q: (_F,),
}  # fmt: skip

TABLE: Mapping[tuple[Phase, type], Row] = {
    (_N, ev.Begun): Row(Judge._begun, _L, _P, _S),
    # the step starts
    (_L, ev.TaskArrived): Row(Judge._task_arrived, _R, _S),
    (_L, ev.StepEnded): Row(Judge._launch_ended, _S),
    (_L, ev.ShimLost): Row(Judge._launch_lost, _S),
    (_L, ev.SignalSeen): Row(Judge._launch_signalled, _E, _F),
    (_L, ev.AgentArrived): Row(Judge._agent_arrived),
    (_L, ev.AgentLost): Row(Judge._agent_lost),
    (_L, ev.DevicesSeen): Row(Judge._nothing),  # checked again while ranks run
    (_L, ev.SlurmAnswered): Row(Judge._slurm_while_launching, _P, _S),
    # ranks run
    (_R, ev.RankStarted): Row(Judge._nothing),
    (_R, ev.RankExited): Row(Judge._rank_exited, _S, _E),
    (_R, ev.RankUnstartable): Row(Judge._rank_unstartable, _S, _E),
    (_R, ev.RankStopped): Row(Judge._stopped_alone, _S),
    (_R, ev.ShimLost): Row(Judge._shim_lost, _S),
    (_R, ev.NodeSilent): Row(Judge._node_silent),
    (_R, ev.NodeProbed): Row(Judge._node_probed, _S),
    (_R, ev.StepEnded): Row(Judge._step_ended_early, _S),
    (_R, ev.AgentArrived): Row(Judge._agent_arrived),
    (_R, ev.AgentLost): Row(Judge._agent_lost),
    (_R, ev.DevicesSeen): Row(Judge._devices_seen, _S),
    (_R, ev.SignalSeen): Row(Judge._signalled, _S),
    (_R, ev.SlurmAnswered): Row(Judge._slurm_answered, _S),
    (_R, ev.QuietSeen): Row(Judge._quiet_seen),
    (_R, ev.UseSampled): Row(Judge._use_sampled, _S),
    (_R, ev.RankSilent): Row(Judge._rank_silent, _S),
    (_R, ev.RankWords): Row(Judge._rank_words),
    (_R, ev.EvidenceTaken): Row(Judge._evidence_taken, _S),
    (_R, ev.StallSeen): Row(Judge._stall_seen),
    (_R, ev.RanksCompared): Row(Judge._compared),
    (_R, ev.StageSet): Row(Judge._stage_set),
    (_R, ev.Progressed): Row(Judge._progressed),
    (_R, ev.BeatOverdue): Row(Judge._beat_overdue, _S, _E),
    (_R, ev.ProgramSaid): Row(Judge._program_told, *_REQUESTED[_R]),
    # ranks are being stopped, facts are collected
    (_S, ev.RankStarted): Row(Judge._nothing),
    (_S, ev.RankExited): Row(Judge._rank_exited_late),
    (_S, ev.RankUnstartable): Row(Judge._unstartable_late),
    (_S, ev.RankStopped): Row(Judge._rank_stopped, *_DECIDED),
    (_S, ev.ShimLost): Row(Judge._shim_lost_late, *_DECIDED),
    (_S, ev.NodeSilent): Row(Judge._node_silent),
    (_S, ev.NodeProbed): Row(Judge._node_probed, *_DECIDED),
    (_S, ev.StepEnded): Row(Judge._step_ended_late, *_DECIDED),
    (_S, ev.AgentArrived): Row(Judge._agent_arrived, *_DECIDED),
    (_S, ev.AgentLost): Row(Judge._agent_lost, *_DECIDED),
    (_S, ev.DevicesSeen): Row(Judge._devices_looked_at, *_DECIDED),
    (_S, ev.SignalSeen): Row(Judge._signalled_late, *_DECIDED),
    (_S, ev.SlurmAnswered): Row(Judge._slurm_answered_late, *_DECIDED),
    # devices heal
    (_H, ev.HealingDone): Row(Judge._healing_done, _R, _S, _E),
    (_H, ev.ShimLost): Row(Judge._shim_lost_late),
    (_H, ev.StepEnded): Row(Judge._step_ended_late),
    (_H, ev.AgentLost): Row(Judge._agent_lost, _R, _S, _E),
    (_H, ev.NodeSilent): Row(Judge._node_silent),
    (_H, ev.NodeProbed): Row(Judge._node_probed, _R, _S, _E),
    (_H, ev.DevicesSeen): Row(Judge._nothing),  # the healing agent's own result counts
    (_H, ev.SignalSeen): Row(Judge._signalled_late, _E),
    (_H, ev.SlurmAnswered): Row(Judge._slurm_while_healing, _E),
    # no step: a search for other nodes runs
    (_P, ev.NodeChecked): Row(Judge._node_checked, _L, _S),
    (_P, ev.NodeBorrowed): Row(Judge._node_borrowed, _L, _S),
    **{(phase, ev.DonorSubmitted): Row(Judge._donor_submitted) for phase in (_P, _E)},
    **{(phase, ev.DonorSubmitted): Row(Judge._nothing) for phase in (_L, _R, _S, _H, _Q)},
    (_P, ev.SignalSeen): Row(Judge._replacing_signalled, _S, _F),
    (_P, ev.NodeSilent): Row(Judge._silent_meanwhile),
    **{(_P, kind): Row(Judge._nothing) for kind in (_BESIDE | {ev.StepEnded, ev.TaskArrived}) - {ev.AgentArrived, ev.AgentLost}},
    # the step is ending
    (_E, ev.NodeChecked): Row(Judge._node_checked),
    (_E, ev.NodeBorrowed): Row(Judge._node_borrowed),
    (_E, ev.StepEnded): Row(Judge._step_ended, *_AFTERWARDS),
    (_E, ev.SignalSeen): Row(Judge._ending_signalled, _F),
    **{(_E, kind): Row(Judge._nothing) for kind in (_BESIDE | {ev.TaskArrived}) - {ev.ShimLost, ev.AgentArrived, ev.AgentLost}},
    **{(phase, ev.AgentArrived): Row(Judge._agent_meanwhile) for phase in (_H, _P, _E)},
    **{(phase, ev.AgentLost): Row(Judge._agent_lost) for phase in (_P, _E)},
    # the job is being requeued: a signal now comes from the requeue itself
    (_Q, ev.RequeueEnded): Row(Judge._requeue_ended, _F),
    **{(_Q, kind): Row(Judge._nothing) for kind in _BESIDE | {ev.SignalSeen, ev.StepEnded}},
    # late messages of an ended attempt
    **{
        (phase, kind): Row(Judge._nothing)
        for phase in (_L, _H, _P, _E, _Q)
        for kind in (ev.RankStarted, ev.RankExited, ev.RankStopped, ev.RankUnstartable)
        if (phase, kind) != (_E, ev.RankStopped)
    },
    **{(phase, ev.HealingDone): Row(Judge._nothing) for phase in (_L, _R, _S)},
    **{(phase, ev.TaskArrived): Row(Judge._nothing) for phase in (_R, _S, _H, _Q)},
    # signs of activity and of none, when nobody waits for them
    **{
        (phase, kind): Row(Judge._nothing)
        for phase in (_L, _S, _H, _P, _E, _Q)
        for kind in (
            ev.QuietSeen,
            ev.UseSampled,
            ev.RankSilent,
            ev.RankWords,
            ev.BeatOverdue,
            ev.StallSeen,
            ev.RanksCompared,
            ev.StageSet,
        )
    },
    **{(phase, ev.Progressed): Row(Judge._progressed) for phase in (_L, _S, _H, _P, _E, _Q)},
    **{(phase, ev.RanksAlive): Row(Judge._ranks_alive) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.ProgramSaid): Row(Judge._program_told, *_REQUESTED[phase]) for phase in (_L, _S, _H, _P, _E, _Q)},
    **{(phase, ev.EvidenceTaken): Row(Judge._evidence_taken) for phase in (_L, _S, _H, _P, _E, _Q)},
    # the cause of a failure or a hang, where it was asked for
    (_R, ev.Diagnosed): Row(Judge._diagnosed_while_running, _S),
    (_S, ev.Diagnosed): Row(Judge._diagnosed, *_DECIDED),
    **{(phase, ev.Diagnosed): Row(Judge._nothing) for phase in (_L, _H, _P, _E, _Q)},
    **{(phase, ev.Advised): Row(Judge._advised, *(_DECIDED if phase is _S else ())) for phase in (_R, _S)},
    **{(phase, ev.Advised): Row(Judge._nothing) for phase in (_L, _H, _P, _E, _Q)},
    (_S, ev.IterationRead): Row(Judge._iteration_read, *_DECIDED),
    **{(phase, ev.IterationRead): Row(Judge._iteration_read) for phase in (_L, _R, _H, _P, _E, _Q)},
    # drills: only while ranks run
    (_R, ev.DrillAsked): Row(Judge._drill),
    **{(phase, ev.DrillAsked): Row(Judge._no_drill) for phase in (_L, _S, _H, _P, _E, _Q)},
    # requests of the job's owner, in every phase
    **{(phase, ev.ControlAsked): Row(Judge._control_asked, *_REQUESTED[phase]) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.CheckpointMade): Row(Judge._checkpoint_made, *_REQUESTED[phase]) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # silence, when nobody waits for the node, and what counts of it then
    (_L, ev.NodeSilent): Row(Judge._silent_meanwhile),
    (_E, ev.NodeSilent): Row(Judge._silent_while_ending, *_AFTERWARDS),
    (_E, ev.ShimLost): Row(Judge._shim_closed, *_AFTERWARDS),
    (_E, ev.RankStopped): Row(Judge._stopped_while_ending, *_AFTERWARDS),
    (_Q, ev.NodeSilent): Row(Judge._nothing),
    (_L, ev.NodeProbed): Row(Judge._launch_probed, _S),
    (_L, ev.StepsListed): Row(Judge._steps_listed, _S, _E),
    **{(phase, ev.StepsListed): Row(Judge._nothing) for phase in (_R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.NodeProbed): Row(Judge._nothing) for phase in (_P, _E, _Q)},
    (_R, ev.NodeLate): Row(Judge._node_late),
    **{(phase, ev.NodeLate): Row(Judge._nothing) for phase in (_L, _S, _H, _P, _E, _Q)},
    **{(phase, ev.NodeHeard): Row(Judge._node_heard) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # a step that spans several jobs
    (_L, ev.PartEnded): Row(Judge._launch_ended_in_part, _S),
    **{(phase, ev.PartEnded): Row(Judge._nothing) for phase in (_R, _S, _H, _P, _E, _Q)},
    # released shims; nodes that arrive too late, or leave
    (_E, ev.ShimLeft): Row(Judge._shim_left),
    **{(phase, ev.ShimLeft): Row(Judge._nothing) for phase in (_L, _R, _S, _H, _P, _Q)},
    (_L, ev.NodeChecked): Row(Judge._straggler_checked, _S),
    **{(phase, ev.NodeChecked): Row(Judge._looked_ahead) for phase in (_R, _S, _H, _Q)},
    **{(phase, ev.NodeBorrowed): Row(Judge._loan_too_late) for phase in (_L, _R, _S, _H, _Q)},
    **{(phase, ev.LoansEnded): Row(Judge._loans_ended) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.NodesReleased): Row(Judge._released) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # our own contact, in every phase: the leases decide what follows
    **{(phase, ev.CutOff): Row(Judge._cut_off) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.InTouch): Row(Judge._in_touch) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # time and the ledger, in every phase
    **{(phase, ev.TimePassed): Row(Judge._time_passed, *_IN_TIME[phase]) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.RankPaused): Row(Judge._rank_paused) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.StoodStill): Row(Judge._stood_still) for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.LedgerFailed): Row(Judge._ledger_failed, _E) for phase in (_L, _R, _S, _H, _P, _Q)},
    (_E, ev.LedgerFailed): Row(Judge._ledger_failed, _F),
    (_F, ev.LedgerFailed): Row(Judge._ledger_failed),
}
# The phases that each phase may lead to.
NEXT: Mapping[Phase, frozenset[Phase]] = {
    phase: frozenset(to for (of, _), row in TABLE.items() if of is phase for to in row.leads_to) for phase in Phase
}
