"""The judge: events in, decisions out. Knows no clock, no process and no file; every answer is data.

The table at the end says, for each phase and event, which method answers. A pair that is not in it is an error, so
nothing is passed over by accident; what is ignored on purpose says so there. The methods stand in groups, a module each.
A group calls those below it; the two methods that are called from further down (`_signalled`, `_settled`) are declared there.

    judge_launching  from the first event until ranks run
    judge_ranks      ranks that end or vanish; a rank of an async job
    judge_signals    signals from outside, and what Slurm says they mean
    judge_devices    agents, and the faults that devices show
    judge_stalls     standing still and being slow, by the ranks' collectives
    judge_hangs      hangs by other signs, and what any hang leads to
    judge_nodes      nodes that are not heard of
    judge_drills     faults on purpose
    judge_requests   what the owner of the job asks for while it runs
    judge_settling   trouble: stop, find out, decide; most of the above leads there
    judge_rungs      carrying out what was decided
    judge_replacing  other nodes for the slots of bad ones
    judge_starting   starting the step and its ranks
    judge_ending     ending the step, and ftrun
    judge_patience   waiting for a slurmctld that is away
    judge_state      what the judge knows; every group stands on it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ftslurm.model import events as ev
from ftslurm.model.control import CHECKPOINT
from ftslurm.model.decisions import Decision
from ftslurm.model.events import Event, Now
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.drills import Drills
from ftslurm.policies.judge.launching import budgets
from ftslurm.policies.judge.nodes import Nodes
from ftslurm.policies.judge.phases import Phase, RunFacts
from ftslurm.policies.judge.ranks import Ranks
from ftslurm.policies.judge.requests import Requests
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
    """Keeps the job alive, on paper. `handle` is the only way in; `finished`, `exit_status`, `wakes_at` the ways out.

    history holds every record of every answer from the moment it is given.
    """

    def handle(self, event: Event, now: Now) -> tuple[Decision, ...]:
        """What follows from `event`. Raises: LookupError for an event that cannot happen in this phase."""
        waited, before = self._requests_before(event, now), self.phase
        if self.phase is Phase.FINISHED and waited:
            return tuple(waited)
        method = TABLE.get((self.phase, type(event)))
        if method is None:
            raise LookupError(f"the judge has no answer to {type(event).__name__} while {self.phase.value}")
        if isinstance(event, ev.AgentTold) and not isinstance(event, ev.ProgramSaid) and not self._is_current(event):
            return ()
        if isinstance(event, ev.SignalSeen) and self._is_of_a_lender(event):
            return tuple(self._called_back(event, now))
        found = [*waited, *method(self, event, now)]
        return (*found, *self._requests_after(event, before, now))

    def _program_told(self, event: ev.ProgramSaid, now: Now) -> list[Decision]:
        return self._checkpoint_told(event, now) if event.what == CHECKPOINT else self._program_said(event, now)

    def _time_passed(self, _: ev.TimePassed, now: Now) -> list[Decision]:
        due = self._timers.take_due(now.mono)
        for timer in _OF_HANGS & due.keys():
            if now.mono - due[timer] > AWAY_S:  # ftrun was stopped, and most likely the ranks with it
                self._timers.set(timer, now.mono + AWAY_S)
        found: list[Decision] = []
        for timer in sorted(due.keys() - self._timers.running):
            phases, overdue = DUE[timer]
            if self.phase in phases:  # else it is of a phase that another one, due at the same moment, has ended
                found += overdue(self, now)
        return found

    def _stood_still(self, event: ev.StoodStill, now: Now) -> list[Decision]:
        """In a suspended job the ranks, agents and Slurm's own time limit stood still as well."""
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


# A time that has passed so long ago has passed while ftrun stood still (a suspended job); of a hang it tells nothing.
AWAY_S = 30.0
_OF_HANGS = frozenset({Timer.EXIT, Timer.EXAMINE, Timer.EVIDENCE, Timer.USE})

_N, _L, _R, _S, _H, _P, _E, _Q = (
    Phase.NEW, Phase.LAUNCHING, Phase.RUNNING, Phase.SETTLING, Phase.HEALING, Phase.REPLACING, Phase.ENDING, Phase.REQUEUEING,
)  # fmt: skip
_ANY = frozenset(Phase)
# What follows when the time of a wait is up, and in which phases. One that comes due in another has nothing to say any more.
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

# What agents, Slurm and broken connections may still say when nobody asks any more.
_BESIDE = {ev.ShimLost, ev.AgentArrived, ev.AgentLost, ev.DevicesSeen, ev.SlurmAnswered, ev.HealingDone}

TABLE: Mapping[tuple[Phase, type], Callable[..., list[Decision]]] = {
    (_N, ev.Begun): Judge._begun,
    # the step comes up
    (_L, ev.TaskArrived): Judge._task_arrived,
    (_L, ev.StepEnded): Judge._launch_ended,
    (_L, ev.ShimLost): Judge._launch_lost,
    (_L, ev.SignalSeen): Judge._launch_signalled,
    (_L, ev.AgentArrived): Judge._agent_arrived,
    (_L, ev.AgentLost): Judge._agent_lost,
    (_L, ev.DevicesSeen): Judge._nothing,  # looked at again while ranks run
    (_L, ev.SlurmAnswered): Judge._slurm_while_launching,
    # ranks run
    (_R, ev.RankStarted): Judge._nothing,
    (_R, ev.RankExited): Judge._rank_exited,
    (_R, ev.RankUnstartable): Judge._rank_unstartable,
    (_R, ev.RankStopped): Judge._stopped_alone,
    (_R, ev.ShimLost): Judge._shim_lost,
    (_R, ev.NodeSilent): Judge._node_silent,
    (_R, ev.NodeProbed): Judge._node_probed,
    (_R, ev.StepEnded): Judge._step_ended_early,
    (_R, ev.AgentArrived): Judge._agent_arrived,
    (_R, ev.AgentLost): Judge._agent_lost,
    (_R, ev.DevicesSeen): Judge._devices_seen,
    (_R, ev.SignalSeen): Judge._signalled,
    (_R, ev.SlurmAnswered): Judge._slurm_answered,
    (_R, ev.QuietSeen): Judge._quiet_seen,
    (_R, ev.UseSampled): Judge._use_sampled,
    (_R, ev.RankSilent): Judge._rank_silent,
    (_R, ev.RankWords): Judge._rank_words,
    (_R, ev.EvidenceTaken): Judge._evidence_taken,
    (_R, ev.StallSeen): Judge._stall_seen,
    (_R, ev.RanksCompared): Judge._compared,
    (_R, ev.StageSet): Judge._stage_set,
    (_R, ev.Progressed): Judge._progressed,
    (_R, ev.BeatOverdue): Judge._beat_overdue,
    (_R, ev.ProgramSaid): Judge._program_told,
    # ranks are being stopped, facts collected
    (_S, ev.RankStarted): Judge._nothing,
    (_S, ev.RankExited): Judge._rank_exited_late,
    (_S, ev.RankUnstartable): Judge._unstartable_late,
    (_S, ev.RankStopped): Judge._rank_stopped,
    (_S, ev.ShimLost): Judge._shim_lost_late,
    (_S, ev.NodeSilent): Judge._node_silent,
    (_S, ev.NodeProbed): Judge._node_probed,
    (_S, ev.StepEnded): Judge._step_ended_late,
    (_S, ev.AgentArrived): Judge._agent_arrived,
    (_S, ev.AgentLost): Judge._agent_lost,
    (_S, ev.DevicesSeen): Judge._devices_looked_at,
    (_S, ev.SignalSeen): Judge._signalled_late,
    (_S, ev.SlurmAnswered): Judge._slurm_answered_late,
    # devices heal
    (_H, ev.HealingDone): Judge._healing_done,
    (_H, ev.ShimLost): Judge._shim_lost_late,
    (_H, ev.StepEnded): Judge._step_ended_late,
    (_H, ev.AgentLost): Judge._agent_lost,
    (_H, ev.NodeSilent): Judge._node_silent,
    (_H, ev.NodeProbed): Judge._node_probed,
    (_H, ev.DevicesSeen): Judge._nothing,  # the healing agent's own result is what counts
    (_H, ev.SignalSeen): Judge._signalled_late,
    (_H, ev.SlurmAnswered): Judge._slurm_while_healing,
    # no step: other nodes are being had
    (_P, ev.NodeChecked): Judge._node_checked,
    (_P, ev.NodeBorrowed): Judge._node_borrowed,
    **{(phase, ev.DonorSubmitted): Judge._donor_submitted for phase in (_P, _E)},
    **{(phase, ev.DonorSubmitted): Judge._nothing for phase in (_L, _R, _S, _H, _Q)},
    (_P, ev.SignalSeen): Judge._replacing_signalled,
    (_P, ev.NodeSilent): Judge._silent_meanwhile,
    **{
        (_P, kind): Judge._nothing
        for kind in (_BESIDE | {ev.StepEnded, ev.TaskArrived}) - {ev.AgentArrived, ev.AgentLost}
    },
    # the step is let go
    (_E, ev.NodeChecked): Judge._node_checked,
    (_E, ev.NodeBorrowed): Judge._node_borrowed,
    (_E, ev.StepEnded): Judge._step_ended,
    (_E, ev.SignalSeen): Judge._ending_signalled,
    **{
        (_E, kind): Judge._nothing
        for kind in (_BESIDE | {ev.TaskArrived}) - {ev.ShimLost, ev.AgentArrived, ev.AgentLost}
    },
    **{(phase, ev.AgentArrived): Judge._agent_meanwhile for phase in (_H, _P, _E)},
    **{(phase, ev.AgentLost): Judge._agent_lost for phase in (_P, _E)},
    # the job is given back: a signal now is the requeue's own
    (_Q, ev.RequeueEnded): Judge._requeue_ended,
    **{
        (_Q, kind): Judge._nothing
        for kind in _BESIDE | {ev.SignalSeen, ev.StepEnded}
    },
    # stragglers of an attempt that is over
    **{
        (phase, kind): Judge._nothing
        for phase in (_L, _H, _P, _E, _Q)
        for kind in (ev.RankStarted, ev.RankExited, ev.RankStopped, ev.RankUnstartable)
        if (phase, kind) != (_E, ev.RankStopped)
    },
    **{(phase, ev.HealingDone): Judge._nothing for phase in (_L, _R, _S)},
    **{(phase, ev.TaskArrived): Judge._nothing for phase in (_R, _S, _H, _Q)},
    # signs of life and of none, when nobody asks any more
    **{
        (phase, kind): Judge._nothing
        for phase in (_L, _S, _H, _P, _E, _Q)
        for kind in (
            ev.QuietSeen, ev.UseSampled, ev.RankSilent, ev.RankWords, ev.BeatOverdue, ev.StallSeen, ev.RanksCompared, ev.StageSet,
        )
    },
    **{(phase, ev.Progressed): Judge._progressed for phase in (_L, _S, _H, _P, _E, _Q)},
    **{(phase, ev.RanksAlive): Judge._ranks_alive for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.ProgramSaid): Judge._program_told for phase in (_L, _S, _H, _P, _E, _Q)},
    **{(phase, ev.EvidenceTaken): Judge._evidence_taken for phase in (_L, _S, _H, _P, _E, _Q)},
    # what is behind a failure or a hang, where it was asked for
    (_R, ev.Diagnosed): Judge._diagnosed_while_running,
    (_S, ev.Diagnosed): Judge._diagnosed,
    **{(phase, ev.Diagnosed): Judge._nothing for phase in (_L, _H, _P, _E, _Q)},
    **{(phase, ev.Advised): Judge._advised for phase in (_R, _S)},
    **{(phase, ev.Advised): Judge._nothing for phase in (_L, _H, _P, _E, _Q)},
    # drills: only while ranks run
    (_R, ev.DrillAsked): Judge._drill,
    **{(phase, ev.DrillAsked): Judge._no_drill for phase in (_L, _S, _H, _P, _E, _Q)},
    # what the owner of the job asks for, whenever
    **{(phase, ev.ControlAsked): Judge._control_asked for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.CheckpointMade): Judge._checkpoint_made for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # silence, when nobody waits for the node, and what counts of it then
    (_L, ev.NodeSilent): Judge._silent_meanwhile,
    (_E, ev.NodeSilent): Judge._silent_while_ending,
    (_E, ev.ShimLost): Judge._shim_closed,
    (_E, ev.RankStopped): Judge._stopped_while_ending,
    (_Q, ev.NodeSilent): Judge._nothing,
    (_L, ev.NodeProbed): Judge._launch_probed,
    (_L, ev.StepsListed): Judge._steps_listed,
    **{(phase, ev.StepsListed): Judge._nothing for phase in (_R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.NodeProbed): Judge._nothing for phase in (_P, _E, _Q)},
    (_R, ev.NodeLate): Judge._node_late,
    **{(phase, ev.NodeLate): Judge._nothing for phase in (_L, _S, _H, _P, _E, _Q)},
    **{(phase, ev.NodeHeard): Judge._node_heard for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # a step over several jobs
    (_L, ev.PartEnded): Judge._launch_ended_in_part,
    **{(phase, ev.PartEnded): Judge._nothing for phase in (_R, _S, _H, _P, _E, _Q)},
    # shims that were let go; nodes that come too late, or go
    (_E, ev.ShimLeft): Judge._shim_left,
    **{(phase, ev.ShimLeft): Judge._nothing for phase in (_L, _R, _S, _H, _P, _Q)},
    (_L, ev.NodeChecked): Judge._straggler_checked,
    **{(phase, ev.NodeChecked): Judge._looked_ahead for phase in (_R, _S, _H, _Q)},
    **{(phase, ev.NodeBorrowed): Judge._loan_too_late for phase in (_L, _R, _S, _H, _Q)},
    **{(phase, ev.LoansEnded): Judge._loans_ended for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.NodesReleased): Judge._released for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # ourselves, whenever: what follows from it is the leases' to do
    **{(phase, ev.CutOff): Judge._cut_off for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.InTouch): Judge._in_touch for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    # time and the ledger, whenever
    **{(phase, ev.TimePassed): Judge._time_passed for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.RankPaused): Judge._rank_paused for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.StoodStill): Judge._stood_still for phase in (_L, _R, _S, _H, _P, _E, _Q)},
    **{(phase, ev.LedgerFailed): Judge._ledger_failed for phase in Phase if phase is not _N},
}
