"""Devices: agents that start and stop reporting, device faults that appear and clear. A fault stops running ranks only if some
rung can handle it.
"""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, DismissAgents, LookAtDevices, Say
from ftslurm.model.devices import Fault
from ftslurm.model.events import Now
from ftslurm.model.rungs import Capability, Rung
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.settling import Settling
from ftslurm.policies.ladder.ladder import Cause, choose
from ftslurm.policies.ladder.situation import Trouble


class Devices(Settling):
    def _agent_arrived(self, event: ev.AgentArrived, now: Now) -> list[Decision]:
        if dismissed := self._agent_meanwhile(event, now):
            return dismissed
        watched = self._watch_ranks([event.node]) if self.phase is not Phase.LAUNCHING else []  # the ranks have not started yet
        held: list[Decision] = [*self._agents.take_orders(event.node), *watched]
        return [*held, LookAtDevices(), *self._settled(now)] if Timer.LOOK in self._timers else held

    def _agent_meanwhile(self, event: ev.AgentArrived, now: Now) -> list[Decision]:
        """An agent arrived while no rank runs that it would have to watch."""
        return [] if self._agents.arrive(event.node, event.kinds, now.mono) else [DismissAgents((event.node,))]

    def _agent_lost(self, event: ev.AgentLost, now: Now) -> list[Decision]:
        """The agent of a node ended: nobody is blamed, and what it watched is unknown until another agent is up."""
        again = self._agents.lose(event.node, now.mono)
        self._hangs.still.lose(event.node)
        if self.phase is Phase.RUNNING:
            self._timers.set(Timer.WATCH, min(self._timers.due_at(Timer.WATCH, again), again))
        if self._attempt.healed(event.node, f"the agent was lost while healing: {event.why}"):
            return self._healing_settled(now)
        return self._settled(now)

    def _devices_seen(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        notes = self._note_faults(event, now)
        return [*notes, *(self._device_trouble(now) if not event.asked else [])]

    def _devices_looked_at(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        notes = self._note_faults(event, now)
        if event.asked:
            self._attempt.devices.look([event.node], seen=not event.error and any(event.there.values()))
        return [*notes, *self._settled(now)]

    def _note_faults(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        """Remember faults: a fault counts once, from its first report until it clears. A failed check changes nothing; nor does a
        report from an excluded node.
        """
        if event.node not in self._agents.kinds:
            return []
        return [self._note(_fault_record(fault, now)) for fault in self._devices.see(event)]

    def _device_trouble(self, now: Now) -> list[Decision]:
        """Handle a fault while ranks run: stop them only if a rung can handle the fault, otherwise let them run."""
        acting = [fault for key, fault in self._devices.acting.items() if key not in self._devices.left_alone]
        if not acting or self._under_signal(now):
            return []
        trouble = Trouble(Cause.DEVICE, "; ".join(map(str, acting)), 1)
        choice = choose(self._situation(trouble, now))
        if choice.rung != Rung.FAIL:
            return self._into_trouble(trouble, now)
        if Capability.ASK in self.facts.can and not self._heard_lately(now):
            return [] if Timer.ASK in self._timers else [self._ask_slurm(now)]
        self._devices.leave_alone(acting)
        return [Say(f"{trouble.what}: no remedy ({choice.why}); the ranks keep running")]


def _fault_record(fault: Fault, now: Now) -> rec.FaultSeen:
    return rec.FaultSeen(now.unix, fault.node, fault.device, fault.code, fault.name, fault.fault_class.value, fault.user_induced)
