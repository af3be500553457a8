"""Devices: the agents that look at them come and go, faults come and go, and a fault while ranks run stops them only where
a rung can answer it.
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
from ftslurm.policies.judge.state import AGENT_MAX_S
from ftslurm.policies.ladder.ladder import Cause, choose
from ftslurm.policies.ladder.situation import ACTS, Trouble

# An agent that has gone is started anew after this, and after twice as long each time.
AGENT_AGAIN_S = 10.0


class Devices(Settling):
    def _agent_arrived(self, event: ev.AgentArrived, now: Now) -> list[Decision]:
        if dismissed := self._agent_meanwhile(event, now):
            return dismissed
        watched = self._watch_ranks([event.node]) if self.phase is not Phase.LAUNCHING else []  # they have not begun
        held: list[Decision] = [*self._for_agents.pop(event.node, ()), *watched]
        return [*held, LookAtDevices(), *self._settled(now)] if Timer.LOOK in self._timers else held

    def _agent_meanwhile(self, event: ev.AgentArrived, now: Now) -> list[Decision]:
        """No rank runs that it could be told of."""
        if event.node in self._guards:
            self._agents_came[event.node] = now.mono
            return []
        if event.node not in self._agents:  # it was asked for, and its node has been left since
            return [DismissAgents((event.node,))]
        self._agents[event.node] = event.kinds
        self._agents_due.pop(event.node, None)
        self._agents_came[event.node] = now.mono
        return []

    def _agent_lost(self, event: ev.AgentLost, now: Now) -> list[Decision]:
        """Nobody is blamed for it; what it watched is unknown from here on, until another one has come up."""
        self._agents.pop(event.node, None)
        self._guards.discard(event.node)
        self._still.lose(event.node)
        self._agents_due.pop(event.node, None)
        if now.mono - self._agents_came.pop(event.node, now.mono) > AGENT_MAX_S:
            self._agents_lost.pop(event.node, None)  # one that stayed: what went before is of no account
        again = now.mono + self._doubled(AGENT_AGAIN_S, event.node)
        self._agents_lost[event.node] = self._agents_lost.get(event.node, 0) + 1
        if self.phase is Phase.RUNNING:
            self._timers.set(Timer.WATCH, min(self._timers.due_at(Timer.WATCH, again), again))
        if self._attempt.healed(event.node, f"the agent vanished while healing: {event.why}"):
            return self._healing_settled(now)
        return self._settled(now)

    def _devices_seen(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        notes = self._note_faults(event, now)
        return [*notes, *(self._device_trouble(now) if not event.asked else [])]

    def _devices_looked_at(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        notes = self._note_faults(event, now)
        if event.asked:
            self._attempt.looked.add(event.node)
            if not event.error and any(event.there.values()):
                self._attempt.seen.add(event.node)
        return [*notes, *self._settled(now)]

    def _note_faults(self, event: ev.DevicesSeen, now: Now) -> list[Decision]:
        """A fault counts once from when it is first seen until it is gone. An answer that is none changes nothing, nor does
        one of a node that was left."""
        if event.node not in self._agents:
            return []
        for kind, count in event.there.items():
            counts = self._there.setdefault(event.node, {})
            counts[kind] = max(count, counts.get(kind, 0))
        if event.error:
            return []
        before = {key for key in self._faults if key[0] == event.node}
        shown = {fault.key: fault for fault in event.faults}
        for key in before - shown.keys():
            del self._faults[key]
        self._faults.update(shown)
        return [self._note(_fault_record(shown[key], now)) for key in shown if key not in before]

    def _device_trouble(self, now: Now) -> list[Decision]:
        """A fault while ranks run. They are stopped only when a rung can answer; else they are left to run."""
        acting = [fault for key, fault in self._faults.items() if fault.fault_class in ACTS and key not in self._left_alone]
        if not acting or self._under_signal(now):
            return []
        trouble = Trouble(Cause.DEVICE, "; ".join(map(str, acting)), 1)
        choice = choose(self._situation(trouble, now))
        if choice.rung != Rung.FAIL:
            return self._into_trouble(trouble, now)
        if Capability.ASK in self.facts.can and not self._heard_lately(now):
            return [] if Timer.ASK in self._timers else [self._ask_slurm(now)]
        self._left_alone.update(fault.key for fault in acting)
        return [Say(f"{trouble.what}: no remedy ({choice.why}); the ranks still run and are left alone")]


def _fault_record(fault: Fault, now: Now) -> rec.FaultSeen:
    return rec.FaultSeen(
        now.unix, fault.node, fault.device, fault.code, fault.name, fault.fault_class.value, fault.user_induced
    )
