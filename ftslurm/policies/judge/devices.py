"""Devices: agents that start and stop reporting, device faults that appear and clear. A fault stops running ranks only if some
rung can handle it. Also drills.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import AnswerDrill, Decision, DismissAgents, DrillDevice, DrillRanks, LookAtDevices, Say
from ftslurm.model.devices import Fault
from ftslurm.model.events import DrillAsked, Now
from ftslurm.model.exits import signal_name
from ftslurm.model.job import Task
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.model.values import Value
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.state import Run
from ftslurm.policies.judge.then import Answer, Settled
from ftslurm.policies.ladder import Cause, choose
from ftslurm.policies.situation import Trouble

# --- What an order for a drill comes to: whom it hits, in which words, by which decision

# The user's word -> the shim's.
_TO_SHIMS = {"rank-crash": "crash", "hang": "hang", "slow-rank": "slow", "lost-node": "lost", "end": "end"}


class _Drill(Value):
    """how: for people."""

    how: str
    order: DrillRanks | DrillDevice


def plan_drill(event: DrillAsked, tasks: Mapping[int, Task]) -> _Drill | None:
    """None where there is nobody of that name in the step that runs."""
    nodes = {task.node for task in tasks.values()}
    if event.fault == "device-fault":
        if event.node not in nodes:
            return None
        order = DrillDevice(event.node, event.device, event.code, event.severity, event.kind, event.heals)
        how = f"{event.code} on device {event.device}, {'heals' if event.heals else 'does not heal'}"
        return _Drill(how, order)
    on_node = [task.rank for task in tasks.values() if task.node == event.node]
    ranks = tuple(sorted(on_node)) if event.node else tuple(tasks.keys() & {event.rank})
    if not ranks or event.fault not in _TO_SHIMS:
        return None
    to_shims = DrillRanks(ranks, _TO_SHIMS[event.fault], event.status, event.signal, event.share)
    return _Drill(_how(event), to_shims)


def _how(event: DrillAsked) -> str:
    match event.fault:
        case "rank-crash":
            return f"killed by {signal_name(event.signal)}" if event.signal else f"exits with status {event.status}"
        case "slow-rank":
            return f"gets {event.share:.0%} of the time"
        case "hang":
            return "stands still"
        case "lost-node":
            return "its tasks are lost without a message"
    return "goes on as before"


# --- the devices


class Devices:
    def __init__(self, run: Run) -> None:
        self.run = run

    def on_agent_arrived(self, event: ev.AgentArrived, now: Now) -> Answer:
        if dismissed := self.admit_agent(event, now):
            return dismissed
        started = self.run.phase is not Phase.LAUNCHING
        watched = self.run.watch_ranks([event.node]) if started else []
        held: list[Decision] = [*self.run.agents.take_orders(event.node), *watched]
        return [*held, LookAtDevices(), Settled()] if Timer.LOOK in self.run.timers else held

    def admit_agent(self, event: ev.AgentArrived, now: Now) -> list[Decision]:
        """An agent arrived while no rank runs that it would have to watch."""
        return [] if self.run.agents.arrive(event.node, event.kinds, now.mono) else [DismissAgents((event.node,))]

    def on_agent_lost(self, event: ev.AgentLost, now: Now) -> Answer:
        """The agent of a node ended: nobody is blamed, and what it watched is unknown until another agent is up."""
        again = self.run.agents.lose(event.node, now.mono)
        self.run.hangs.still.lose(event.node)
        if self.run.phase is Phase.RUNNING:
            self.run.timers.set(Timer.WATCH, min(self.run.timers.due_at(Timer.WATCH, again), again))
        self.run.attempt.healed(event.node, f"the agent was lost while healing: {event.why}")
        return [Settled()]

    def on_devices_seen(self, event: ev.DevicesSeen, now: Now) -> Answer:
        notes = self._note_faults(event, now)
        return [*notes, *(self.act_on_faults(now) if not event.asked else [])]

    def on_devices_looked_at(self, event: ev.DevicesSeen, now: Now) -> Answer:
        notes = self._note_faults(event, now)
        if event.asked:
            self.run.attempt.devices.look([event.node], seen=not event.error and any(event.there.values()))
        return [*notes, Settled()]

    def _note_faults(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        """Remember faults: a fault counts once, from its first report until it clears. A failed check changes nothing; nor does a
        report from an excluded node.
        """
        if event.node not in self.run.agents.kinds:
            return []
        return [self.run.note(_fault_record(fault, now)) for fault in self.run.devices.see(event)]

    def act_on_faults(self, now: Now) -> Answer:
        """Handle a fault while ranks run: stop them only if a rung can handle the fault, otherwise let them run."""
        acting = [fault for key, fault in self.run.devices.acting.items() if key not in self.run.devices.left_alone]
        if not acting or self.run.under_signal(now):
            return []
        trouble = Trouble(Cause.DEVICE, "; ".join(map(str, acting)), 1)
        choice = choose(self.run.situation(trouble, now))
        if choice.rung != Rung.FAIL:
            return [trouble]
        if Capability.ASK in self.run.facts.can and not self.run.heard_lately(now):
            return [] if Timer.ASK in self.run.timers else [self.run.ask_slurm(now)]
        self.run.devices.leave_alone(acting)
        return [Say(f"{trouble.what}: no remedy ({choice.why}); the ranks keep running")]


def _fault_record(fault: Fault, now: Now) -> rec.FaultSeen:
    return rec.FaultSeen(now.unix, fault.node, fault.device, fault.code, fault.name, fault.fault_class.value, fault.user_induced)


# --- drills: faults that a person orders. Each is recorded before it is injected, so that nobody takes it for a real one


class Drills:
    def __init__(self, run: Run) -> None:
        self.run = run

    def on_drill_asked(self, event: ev.DrillAsked, now: Now) -> list[Decision]:
        """Record the ordered fault, then inject it, so that nobody takes it for a real one."""
        drill = plan_drill(event, self.run.tasks)
        if drill is None:
            return [AnswerDrill(event.asker, False, f"there is no {event.target} in the step that runs")]
        note = self.run.note(rec.Drilled(now.unix, self.run.attempt.number, event.fault, event.target, drill.how), vital=True)
        told = Say(f"drill: {event.fault} on {event.target} ({drill.how})")
        said: list[Decision] = [note, told, AnswerDrill(event.asker, True, drill.how)]
        self.run.attempt.drill(event)
        if event.fault == "lost-node":
            self.run.attempt.nodes.drill(event.node)
        if isinstance(drill.order, DrillDevice) and not self.run.agents.here(event.node):
            self.run.agents.order_later(drill.order)  # the agent gets the order when it comes up
            return [*said, *self.run.watch(now)]
        return [*said, drill.order]

    def refuse_drill(self, event: ev.DrillAsked, now: Now) -> list[Decision]:
        return [AnswerDrill(event.asker, False, f"the ranks do not run just now (ftrun is {self.run.phase.value})")]
