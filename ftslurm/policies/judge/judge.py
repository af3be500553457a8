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

from collections.abc import Callable, Mapping

from ftslurm.model import events as ev
from ftslurm.model.control import CHECKPOINT
from ftslurm.model.decisions import Decision
from ftslurm.model.events import Event, Now
from ftslurm.policies.judge.drills import Drills
from ftslurm.policies.judge.launching import budgets
from ftslurm.policies.judge.nodes import Nodes
from ftslurm.policies.judge.phases import Phase, RunFacts
from ftslurm.policies.judge.ranks import Ranks
from ftslurm.policies.judge.requests import Requests
from ftslurm.policies.judge.stalls import Stalls

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
        due = {name: deadline for name, deadline in self._waits.items() if deadline <= now.mono}
        for name, deadline in due.items():
            del self._waits[name]
            if name in _OF_HANGS and now.mono - deadline > AWAY_S:  # ftrun was stopped, and most likely the ranks with it
                self._waits[name] = now.mono + AWAY_S
        found: list[Decision] = []
        for name in sorted(due.keys() - self._waits.keys()):
            found += _OVERDUE[name](self, now)
        return found

    def _stood_still(self, event: ev.StoodStill, now: Now) -> list[Decision]:
        """In a suspended job the ranks, agents and Slurm's own time limit stood still as well."""
        self._waits = {name: deadline + event.seconds for name, deadline in self._waits.items()}
        return []

    def _ask_overdue(self, now: Now) -> list[Decision]:
        silent = ev.SlurmAnswered(error=f"no answer within {self.settings.slurm_timeout_s:g} s", away=True)
        return self.handle(silent, now)  # type: ignore[return-value]


# A time that has passed so long ago has passed while ftrun stood still (a suspended job); of a hang it tells nothing.
AWAY_S = 30.0
_OF_HANGS = frozenset({"exit", "examine", "evidence", "use"})
_OVERDUE: dict[str, Callable[[Judge, Now], list[Decision]]] = {
    "watch": Judge._watch_due,
    "idle": Judge._idle_due,
    "mend": Judge._mend_overdue,
    "rank again": Judge._start_ranks_again,
    "use": Judge._use_known,
    "exit": Judge._exit_overdue,
    "hold": Judge._hold_due,
    "evidence": Judge._evidence_overdue,
    "examine": Judge._look_closer,
    "compare": Judge._compare,
    "launch": Judge._launch_overdue,
    "launch again": Judge._launch_again,
    "stragglers": Judge._stragglers_overdue,
    "stragglers known": Judge._stragglers_known,
    "search again": Judge._search_again,
    "slow launch": Judge._slow_launch,
    "hints": Judge._hints_due,
    "pass on": Judge._passed_on,
    "stop": Judge._stop_overdue,
    "tell": Judge._tell_settling,
    "look": Judge._look_overdue,
    "ask": Judge._ask_overdue,
    "away": Judge._ask_again,
    "requeue": Judge._hand_over,
    "warning": Judge._warning_overdue,
    "heal": Judge._heal_overdue,
    "step": Judge._step_overdue,
    "killed step": Judge._killed_step_overdue,
    "probe": Judge._probe_overdue,
    "probe again": Judge._probe_again,
    "silence": Judge._silence_goes_on,
    "node": Judge._node_overdue,
    "leases": Judge._leases_over,
    "lease": Judge._lease_due,
    "tell leases": Judge._tell_leases,
    "tell step": Judge._tell_step,
    "others": Judge._others_over,
    "look for others": Judge._look_for_others,
}

_N, _L, _R, _S, _H, _P, _E, _Q = (
    Phase.NEW, Phase.LAUNCHING, Phase.RUNNING, Phase.SETTLING, Phase.HEALING, Phase.REPLACING, Phase.ENDING, Phase.REQUEUEING,
)  # fmt: skip
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
