"""The judge: events in, decisions out. It knows no clock, no process and no file; every answer is data.

The table at the end of this file names, for each phase and event, the method that answers. A pair that the table lacks is an
error, so nothing is ignored by accident; the table says what is ignored on purpose. The methods are in groups, one class and
module each. They answer with decisions; a value of `then` among these (a trouble, what follows the end of the step) says what the
judge does next, so that no group calls one that stands on it. What answers an event is named `on_` and the event, unless it does
what its name says at other times as well. Each row names the phases that an answer may lead to: `Run.enter` checks that, and
docs/ARCHITECTURE.md shows the diagram.

A concern is a module; what it knows stands below `state` in a module of its own:

    launching        from the first event until ranks run; ranks of an earlier ftrun that may still run
    starting         the step and its ranks start
    ranks            ranks that exit or are lost, a rank of an async job, and signals from outside
    devices          agents, the faults of devices, and drills: faults that a person orders
    hangs            stalled and slow ranks, by their collectives; hangs by other signs, and what follows from any hang
    nodes            silent nodes
    requests         what the owner of the job asks for while it runs; request_answers: what is answered at once, and how the
                     work of the job is broken off
    settling         trouble: stop ranks, collect facts, decide; most of the above leads there
    causes           what is behind the end of an attempt: asked beside the loop, and recorded when known
    rungs            carrying out the decision
    replacing        other nodes for the slots of bad nodes
    ending           ending the step, and ftrun; waiting for a slurmctld that is away, and for the end that the time limit brings
    state            `Run`: what the judge knows, and what every group needs. Its parts (step, outside, spares)
                     own their state, and only their own methods change it.
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
from ftslurm.policies.judge import then
from ftslurm.policies.judge.causes import Causes
from ftslurm.policies.judge.devices import Devices, Drills
from ftslurm.policies.judge.ending import Ending, SlurmAway, TimeLimit
from ftslurm.policies.judge.hangs import Hangs, Stalls
from ftslurm.policies.judge.launching import EarlierSteps, Launching, budgets
from ftslurm.policies.judge.nodes import Nodes
from ftslurm.policies.judge.phases import Phase, RunFacts
from ftslurm.policies.judge.ranks import Ranks, Signals
from ftslurm.policies.judge.replacing import Replacing
from ftslurm.policies.judge.request_answers import Answers, Interrupting
from ftslurm.policies.judge.requests import Requests
from ftslurm.policies.judge.rungs import Rungs
from ftslurm.policies.judge.settling import Settling
from ftslurm.policies.judge.starting import Starting
from ftslurm.policies.judge.state import Run
from ftslurm.policies.judge.then import Afterwards, Answer, Next, Settled
from ftslurm.policies.situation import Trouble

__all__ = ["TABLE", "Judge", "Phase", "RunFacts", "budgets"]


class Judge:
    """Decides how to keep the job alive. Call `handle` with each event; read `finished`, `exit_status` and `wakes_at`.

    run: what it knows. It holds every record of every answer from the moment the answer is given.
    """

    def __init__(self, settings: Settings, history: History, facts: RunFacts) -> None:
        run = self.run = Run(settings, history, facts, NEXT)
        slurm_away, devices, limit = SlurmAway(run), Devices(run), TimeLimit(run)
        self.ending = Ending(run, slurm_away)
        self.starting = Starting(run)
        self.replacing = Replacing(run, self.starting)
        self.rungs = Rungs(run, self.ending, self.starting, self.replacing)
        causes = Causes(run)
        self.settling = Settling(run, slurm_away, causes)
        earlier_steps = EarlierSteps(run, self.replacing)
        self.launching = Launching(run, self.ending, self.starting, self.replacing, earlier_steps)
        interrupting = Interrupting(run, self.ending)
        self.requests = Requests(run, interrupting, Answers(run, self.starting))
        self.signals = Signals(run, devices, limit)
        self.ranks = Ranks(run, self.starting, causes, self.signals)
        self.hangs = Hangs(run, causes)
        others = (devices, limit, causes, earlier_steps, Stalls(run, self.hangs), Nodes(run, self.replacing), Drills(run))
        groups = (self, *vars(self).values(), *others)
        # A row names an answer as its class has it; this is the object that gives it.
        self._gives = {answer: group for group in groups for answer in vars(type(group)).values() if callable(answer)}

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
    def afterwards(self) -> Afterwards:
        """What follows when the step has ended, while it is ending."""
        return self.run.end.after

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
        self.run.may_enter(None)
        waited, before = self._in_full(self.requests.before(event, now), now), self.phase
        if self.phase is Phase.FINISHED and waited:
            return tuple(waited)
        row = TABLE.get((self.phase, type(event)))
        if row is None:
            raise LookupError(f"the judge has no answer to {type(event).__name__} while {self.phase.value}")
        if isinstance(event, ev.AgentTold) and not isinstance(event, ev.ProgramSaid) and not self.run.is_current(event):
            return ()
        if isinstance(event, ev.SignalSeen) and self.signals.is_of_lender(event):
            return tuple(self.signals.on_lender_signal(event, now))
        self.run.may_enter(row.leads_to)
        found = [*waited, *self._in_full(row.answer(self._gives[row.answer], event, now), now)]
        self.run.may_enter(None)
        if self.finished:
            return tuple(found)
        found += self._in_full(self.requests.after(event, now), now)
        if self.phase is Phase.RUNNING and before is not Phase.RUNNING:
            found += self._in_full(self.requests.leave_late(now), now)
        return (*found, *self.requests.watch_checkpoints())

    def _in_full(self, answer: Answer, now: Now) -> list[Decision]:
        """The decisions of an answer, and those of all that it leads to."""
        found: list[Decision] = []
        for part in answer:
            if isinstance(part, Next):
                found += self._in_full(self._follow(part, now), now)
            else:
                found.append(part)
        return found

    def read(self, history: History) -> None:
        """Another ftrun of the same job has written to the ledger, whose attempts and budgets count as well."""
        self.run.read(history)

    def ignore(self, event: Event, now: Now) -> list[Decision]:
        return []

    def on_program_said(self, event: ev.ProgramSaid, now: Now) -> Answer:
        if event.what == CHECKPOINT:
            return self.requests.on_checkpoint_told(event, now)
        return self.hangs.on_program_said(event, now)

    def on_time_passed(self, _: ev.TimePassed, now: Now) -> list[Decision]:
        timers = self.run.timers
        due = timers.take_due(now.mono)
        for timer in _OF_HANGS & due.keys():
            if now.mono - due[timer] > AWAY_S:  # ftrun was stopped, and probably the ranks with it
                timers.set(timer, now.mono + AWAY_S)
        found: list[Decision] = []
        for timer in sorted(due.keys() - timers.running):
            phases, overdue = DUE[timer]
            if self.phase in phases:  # otherwise an event due at the same moment has ended the phase it belongs to
                found += self._in_full(overdue(self._gives[overdue], now), now)
        return found

    def on_stood_still(self, event: ev.StoodStill, now: Now) -> list[Decision]:
        """ftrun was suspended: then ranks, agents and Slurm's time limit paused as well."""
        self.run.timers.put_off(event.seconds)
        self.run.hangs.put_off(event.seconds)
        return []

    def on_ask_overdue(self, now: Now) -> list[Decision]:
        error = f"no answer within {self.settings.slurm.timeout_s:g} s"
        return [*self.handle(ev.SlurmAnswered(error=error, away=True), now)]

    def _follow(self, step: Next, now: Now) -> Answer:
        match step:
            case Trouble():
                return self.settling.begin_trouble(step, now)
            case Settled():
                healing = self.phase is Phase.HEALING
                return self.rungs.settle_healing(now) if healing else self.settling.settle(now)
            case then.ThenLaunch():
                return self.starting.launch_step(now)
            case then.ThenHeal(faults):
                return self.rungs.heal(faults, now)
            case then.ThenReplace():
                return self.replacing.go_on_without_step(now)
            case then.ThenShrink(nodes):
                return self.replacing.shrink(nodes, now)
            case then.ThenRequeue():
                return self.ending.hand_over(now)
            case then.ThenAfterWarning(trouble):
                return self.rungs.after_warning(trouble, now)
            case then.ThenFinish(what, status, outcome):
                return self.ending.finish(what, status, now, outcome)
            case then.ThenDecide():
                return self.settling.decide_again(now)
            case then.ThenStepStays():
                return self.rungs.give_up_step(now)
            case then.ThenLauncherStays():
                return self.launching.give_up_launcher(now)
            case then.ThenEnd(what, status, outcome):
                return self.ending.end_step(status, Afterwards(then.ThenFinish(what, status, outcome)), now)
            case then.ThenFulfil(trouble):
                return self.requests.carry_out(trouble, now)
            case then.ThenAct(request):
                return self.requests.act_later(request, now)
            case then.ThenRemedy(choice, situation):
                return self.rungs.carry_out(choice, situation, now)
            case then.ThenRestart():
                return self.rungs.restart(now)
            case then.ThenFail(rank, trouble):
                return self.ranks.fail_rank(rank, trouble, now)
            case then.ThenSignal(event, since):
                return self.signals.on_earlier_signal(event, since, now)
            case ev.Diagnosed():
                return self.ranks.on_diagnosed(step, now)


# A deadline that passed this long ago passed while ftrun was suspended; it is no evidence of a hang.
AWAY_S = 30.0
_OF_HANGS = frozenset({Timer.EXIT, Timer.EXAMINE, Timer.EVIDENCE, Timer.USE})

_N, _L, _R, _S, _H, _P, _E, _Q, _F = (
    Phase.NEW, Phase.LAUNCHING, Phase.RUNNING, Phase.SETTLING, Phase.HEALING, Phase.REPLACING, Phase.ENDING, Phase.REQUEUEING,
    Phase.FINISHED,
)  # fmt: skip
_ANY = frozenset(Phase)
# What follows when a timer ends, and in which phases. In other phases it is ignored.
DUE: Mapping[Timer, tuple[Collection[Phase], Callable[..., Answer]]] = {
    Timer.WATCH: ({_R}, Starting.on_watch_due),
    Timer.COMMANDS: ({_R}, Starting.tell_commands),
    Timer.IDLE: ({_R}, Nodes.probe_idle),
    Timer.MEND: (_ANY, Ranks.on_mend_overdue),
    Timer.RANK_AGAIN: ({_R}, Ranks.start_again),
    Timer.USE: (_ANY, Hangs.judge_use),
    Timer.EXIT: ({_R}, Hangs.on_exit_overdue),
    Timer.OTHERS_END: ({_R}, Ranks.end_others),
    Timer.HOLD: ({_R}, Hangs.on_hold_due),
    Timer.EVIDENCE: ({_R}, Stalls.on_evidence_overdue),
    Timer.EXAMINE: (_ANY, Stalls.look_closer),
    Timer.COMPARE: ({_R}, Stalls.compare_ranks),
    Timer.LAUNCH: (_ANY, Launching.on_launch_overdue),
    Timer.LAUNCH_AGAIN: ({_L}, Launching.launch_again),
    Timer.STRAGGLERS: ({_L}, Launching.on_stragglers_overdue),
    Timer.STRAGGLERS_KNOWN: ({_L}, Launching.give_up_stragglers),
    Timer.SEARCH_AGAIN: ({_P}, Replacing.search_again),
    Timer.SLOW_LAUNCH: ({_L}, Launching.look_for_nodes),
    Timer.HINTS: (_ANY, Hangs.on_hints_due),
    Timer.PASS_ON: (_ANY, Signals.pass_on),
    Timer.STOP: (_ANY, Settling.on_stop_overdue),
    Timer.TELL: ({_S}, Settling.tell_wait),
    Timer.LOOK: (_ANY, Settling.on_look_overdue),
    Timer.ASK: (_ANY, Judge.on_ask_overdue),
    Timer.DIAGNOSIS: ({_S}, Causes.on_diagnosis_overdue),
    Timer.PROGRESS: ({_S}, Causes.on_progress_overdue),
    Timer.ADVICE: ({_R, _S}, Causes.use_advice),
    Timer.AWAY: ({_S}, Settling.ask_slurm_again),
    Timer.REQUEUE: (_ANY, Ending.hand_over),
    Timer.WARNING: ({_R}, Signals.on_warning_overdue),
    Timer.LIMIT: ({_R}, TimeLimit.on_limit_due),
    Timer.HEAL: (_ANY, Rungs.on_heal_overdue),
    Timer.STEP: (_ANY, Ending.on_step_overdue),
    Timer.KILLED_STEP: (_ANY, Ending.on_killed_step_overdue),
    Timer.PROBE: (_ANY, Nodes.on_probe_overdue),
    Timer.PROBE_AGAIN: ({_R, _H, _S}, Nodes.probe_again),
    Timer.SILENCE: ({_R, _H}, Nodes.probe_silent),
    Timer.NODE: (_ANY, Replacing.on_search_overdue),
    Timer.LEASES: ({_R, _H}, Nodes.on_leases_over),
    Timer.LEASE: ({_E}, Ending.on_lease_due),
    Timer.TELL_LEASES: (_ANY, Ending.tell_leases),
    Timer.TELL_STEP: ({_E}, Ending.tell_step),
    Timer.OTHERS: ({_L}, EarlierSteps.on_leases_over),
    Timer.LOOK_FOR_OTHERS: (_ANY, EarlierSteps.look_for_others),
}


class _Row:
    """answer: the method that handles the event. leads_to: the phases that the answer may lead to directly, beside staying in its
    phase; from there the same event may lead on, as NEXT says.
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
            ev.NodeLate, ev.RankStarted, ev.RankExited, ev.RankUnstartable, ev.TaskArrived, ev.RankClaimedTwice, ev.TasksEnded,
            ev.PartEnded, ev.ShimLeft, ev.StepsListed, ev.DevicesSeen, ev.HealingDone, ev.DonorSubmitted, ev.Diagnosed,
            ev.Advised,
        ),
        Judge.ignore,
    ),
    ev.Progressed: Hangs.on_progressed,
    ev.RanksAlive: Hangs.on_ranks_alive,
    ev.EvidenceTaken: Stalls.on_evidence_taken,
    ev.IterationRead: Causes.on_iteration_read,
    ev.DrillAsked: Drills.refuse_drill,  # only while ranks run
    ev.NodeHeard: Nodes.on_node_heard,
    ev.RankPaused: Nodes.on_rank_paused,
    # nodes that arrive too late, or leave
    ev.NodeChecked: Replacing.on_spare_checked,
    ev.NodeBorrowed: Replacing.end_late_loan,
    ev.LoansEnded: Replacing.on_loans_ended,
    ev.NodesReleased: Replacing.on_nodes_released,
    # our own contact: the leases decide what follows
    ev.CutOff: Nodes.on_cut_off,
    ev.InTouch: Nodes.on_in_touch,
    ev.StoodStill: Judge.on_stood_still,
}  # fmt: skip
# Requests of the job's owner; a program tells of the checkpoints that they wait for.
_OF_REQUESTS: Mapping[type, Callable[..., Answer]] = {
    ev.ControlAsked: Requests.on_control_asked, ev.CheckpointMade: Requests.on_checkpoint_made,
    ev.ProgramSaid: Judge.on_program_said,
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
    **{(phase, kind): _Row(Judge.ignore) for phase, kinds in _BESIDE.items() for kind in kinds},
    **{(phase, ev.TimePassed): _Row(Judge.on_time_passed, *_IN_TIME[phase]) for phase in _LIVE},
    **{(phase, ev.LedgerFailed): _Row(Ending.on_ledger_failed, _E) for phase in (_L, _R, _S, _H, _P, _Q)},
    (_N, ev.Begun): _Row(Launching.on_begun, _L, _P, _S),
    # the step starts
    (_L, ev.TaskArrived): _Row(Launching.on_task_arrived, _R, _S),
    (_L, ev.RankClaimedTwice): _Row(Launching.on_rank_claimed_twice, _S),
    (_L, ev.StepEnded): _Row(Launching.on_step_ended, _S),
    (_L, ev.PartEnded): _Row(Launching.on_part_ended, _S),
    (_L, ev.TasksEnded): _Row(Launching.on_tasks_ended, _S),
    (_L, ev.StepsListed): _Row(Launching.on_steps_listed, _S, _E),
    (_L, ev.ShimLost): _Row(Launching.on_shim_lost, _S),
    (_L, ev.NodeChecked): _Row(Launching.on_node_checked, _S),
    (_L, ev.NodeProbed): _Row(Launching.on_node_probed, _S),
    (_L, ev.NodeSilent): _Row(Nodes.note_silence),
    (_L, ev.SignalSeen): _Row(Launching.on_signal, _E, _F),
    (_L, ev.AgentArrived): _Row(Devices.on_agent_arrived),
    (_L, ev.AgentLost): _Row(Devices.on_agent_lost),
    (_L, ev.SlurmAnswered): _Row(EarlierSteps.on_slurm_answered, _P, _S),
    # ranks run
    (_R, ev.RankExited): _Row(Ranks.on_rank_exited, _S, _E),
    (_R, ev.RankUnstartable): _Row(Ranks.on_rank_unstartable, _S, _E),
    (_R, ev.RankStopped): _Row(Ranks.on_rank_stopped, _S, _E),
    (_R, ev.ShimLost): _Row(Ranks.on_shim_lost, _S),
    (_R, ev.NodeLate): _Row(Nodes.on_node_late),
    (_R, ev.NodeSilent): _Row(Nodes.on_node_silent),
    (_R, ev.NodeProbed): _Row(Nodes.on_node_probed, _S),
    (_R, ev.StepEnded): _Row(Ranks.on_step_ended, _S),
    (_R, ev.AgentArrived): _Row(Devices.on_agent_arrived),
    (_R, ev.AgentLost): _Row(Devices.on_agent_lost),
    (_R, ev.DevicesSeen): _Row(Devices.on_devices_seen, _S),
    (_R, ev.SignalSeen): _Row(Signals.on_signal, _S),
    (_R, ev.SlurmAnswered): _Row(Signals.on_slurm_answered, _S),
    (_R, ev.QuietSeen): _Row(Hangs.on_quiet_seen),
    (_R, ev.UseSampled): _Row(Hangs.on_use_sampled, _S),
    (_R, ev.RankSilent): _Row(Hangs.on_rank_silent, _S),
    (_R, ev.RankWords): _Row(Hangs.on_rank_words),
    (_R, ev.EvidenceTaken): _Row(Stalls.on_evidence_taken, _S),
    (_R, ev.StallSeen): _Row(Stalls.on_stall_seen),
    (_R, ev.RanksCompared): _Row(Stalls.on_ranks_compared),
    (_R, ev.StageSet): _Row(Hangs.on_stage_set),
    (_R, ev.BeatOverdue): _Row(Hangs.on_beat_overdue, _S, _E),
    (_R, ev.Diagnosed): _Row(Ranks.on_diagnosed, _S, _E),
    (_R, ev.Advised): _Row(Causes.on_advised),
    (_R, ev.DrillAsked): _Row(Drills.on_drill_asked),
    # ranks are being stopped, facts are collected
    (_S, ev.RankExited): _Row(Settling.on_rank_exited),
    (_S, ev.RankUnstartable): _Row(Settling.on_rank_unstartable),
    (_S, ev.RankStopped): _Row(Settling.on_rank_stopped, *_DECIDED),
    (_S, ev.ShimLost): _Row(Settling.on_shim_lost, *_DECIDED),
    (_S, ev.NodeSilent): _Row(Nodes.on_node_silent),
    (_S, ev.NodeProbed): _Row(Nodes.on_node_probed, *_DECIDED),
    (_S, ev.StepEnded): _Row(Settling.on_step_ended, *_DECIDED),
    (_S, ev.AgentArrived): _Row(Devices.on_agent_arrived, *_DECIDED),
    (_S, ev.AgentLost): _Row(Devices.on_agent_lost, *_DECIDED),
    (_S, ev.DevicesSeen): _Row(Devices.on_devices_looked_at, *_DECIDED),
    (_S, ev.SignalSeen): _Row(Signals.on_signal_late, *_DECIDED),
    (_S, ev.SlurmAnswered): _Row(Settling.on_slurm_answered, *_DECIDED),
    (_S, ev.Diagnosed): _Row(Causes.on_diagnosed, *_DECIDED),
    (_S, ev.Advised): _Row(Causes.on_advised, *_DECIDED),
    (_S, ev.IterationRead): _Row(Causes.on_iteration_read, *_DECIDED),
    # devices heal
    (_H, ev.HealingDone): _Row(Rungs.on_healing_done, _R, _S, _E),  # the healing agent's own result counts
    (_H, ev.ShimLost): _Row(Settling.on_shim_lost),
    (_H, ev.StepEnded): _Row(Settling.on_step_ended),
    (_H, ev.AgentArrived): _Row(Devices.admit_agent),
    (_H, ev.AgentLost): _Row(Devices.on_agent_lost, _R, _S, _E),
    (_H, ev.NodeSilent): _Row(Nodes.on_node_silent),
    (_H, ev.NodeProbed): _Row(Nodes.on_node_probed, _R, _S, _E),
    (_H, ev.SignalSeen): _Row(Signals.on_signal_late, _E),
    (_H, ev.SlurmAnswered): _Row(Rungs.on_slurm_answered, _E),
    # no step: a search for other nodes runs
    (_P, ev.NodeChecked): _Row(Replacing.on_node_checked, _L, _S),
    (_P, ev.NodeBorrowed): _Row(Replacing.on_node_borrowed, _L, _S),
    (_P, ev.DonorSubmitted): _Row(Replacing.on_donor_submitted),
    (_P, ev.SignalSeen): _Row(Replacing.on_signal, _S, _F),
    (_P, ev.NodeSilent): _Row(Nodes.note_silence),
    (_P, ev.AgentArrived): _Row(Devices.admit_agent),
    (_P, ev.AgentLost): _Row(Devices.on_agent_lost),
    # the step is ending
    (_E, ev.NodeChecked): _Row(Replacing.on_node_checked),
    (_E, ev.NodeBorrowed): _Row(Replacing.on_node_borrowed),
    (_E, ev.DonorSubmitted): _Row(Replacing.on_donor_submitted),
    (_E, ev.StepEnded): _Row(Ending.on_step_ended, *_AFTERWARDS),
    (_E, ev.NodeSilent): _Row(Ending.on_node_silent, *_AFTERWARDS),
    (_E, ev.ShimLost): _Row(Ending.on_shim_lost, *_AFTERWARDS),
    (_E, ev.ShimLeft): _Row(Ending.on_shim_left),
    (_E, ev.RankStopped): _Row(Ending.on_rank_stopped, *_AFTERWARDS),
    (_E, ev.SignalSeen): _Row(Ending.on_signal, _F),
    (_E, ev.AgentArrived): _Row(Devices.admit_agent),
    (_E, ev.AgentLost): _Row(Devices.on_agent_lost),
    (_E, ev.LedgerFailed): _Row(Ending.on_ledger_failed, _F),
    # the job is being requeued; ftrun ends
    (_Q, ev.RequeueEnded): _Row(Ending.on_requeue_ended, _F),
    (_F, ev.LedgerFailed): _Row(Ending.on_ledger_failed),
}
# The phases that each phase may lead to.
NEXT: Mapping[Phase, frozenset[Phase]] = {
    phase: frozenset(to for (of, _), row in TABLE.items() if of is phase for to in row.leads_to) for phase in Phase
}
