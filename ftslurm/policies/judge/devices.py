"""Devices: agents that start and stop reporting, device faults that appear and clear. A fault stops running ranks only if some
rung can handle it. Also drills.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Decision, DismissAgents, DrillDevice, DrillRanks, LookAtDevices, Say
from ftslurm.model.devices import Fault
from ftslurm.model.events import Now
from ftslurm.model.exits import signal_name
from ftslurm.model.job import Task
from ftslurm.model.record import Drill
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

# What becomes of the ranks, where no number says it.
_HOW = {"hang": "stands still", "lost-node": "its tasks are lost without a message", "end": "goes on as before"}


class PlannedDrill(Value):
    """how: for people."""

    how: str
    order: DrillRanks | DrillDevice


def plan_drill(drill: Drill, tasks: Mapping[int, Task]) -> PlannedDrill | None:
    """None where there is nobody of that name in the step that runs."""
    nodes = {task.node for task in tasks.values()}
    if drill.fault == "device-fault":
        if drill.node not in nodes:
            return None
        order = DrillDevice(drill.node, drill.device, drill.code, drill.severity, drill.kind, drill.heals)
        how = f"{drill.code} on device {drill.device}, {'heals' if drill.heals else 'does not heal'}"
        return PlannedDrill(how, order)
    on_node = [task.rank for task in tasks.values() if task.node == drill.node]
    ranks = tuple(sorted(on_node)) if drill.node else tuple(tasks.keys() & {drill.rank})
    if not ranks or drill.fault not in _TO_SHIMS:
        return None
    to_shims = DrillRanks(ranks, _TO_SHIMS[drill.fault], drill.status, drill.signal, drill.share)
    return PlannedDrill(_how(drill), to_shims)


def _how(drill: Drill) -> str:
    if drill.fault == "rank-crash":
        return f"killed by {signal_name(drill.signal)}" if drill.signal else f"exits with status {drill.status}"
    return f"gets {drill.share:.0%} of the time" if drill.fault == "slow-rank" else _HOW[drill.fault]


# --- the devices


def on_agent_arrived(run: Run, event: ev.AgentArrived, now: Now) -> Answer:
    if dismissed := admit_agent(run, event, now):
        return dismissed
    started = run.phase is not Phase.LAUNCHING
    watched = run.watch_ranks([event.node]) if started else []
    held: list[Decision] = [*run.agents.orders.pop(event.node, []), *watched]
    return [*held, LookAtDevices(event.node), Settled()] if Timer.LOOK in run.timers else held


def admit_agent(run: Run, event: ev.AgentArrived, now: Now) -> list[Decision]:
    """An agent arrived while no rank runs that it would have to watch."""
    return [] if run.agents.arrive(event.node, event.kinds, now.mono) else [DismissAgents((event.node,))]


def on_agent_lost(run: Run, event: ev.AgentLost, now: Now) -> Answer:
    """The agent of a node ended: nobody is blamed, and what it watched is unknown until another agent is up."""
    again = run.agents.lose(event.node, now.mono)
    run.hangs.still.lose(event.node)
    if run.phase is Phase.RUNNING:
        run.timers.set(Timer.WATCH, min(run.timers.due_at(Timer.WATCH, again), again))
    run.attempt.healed(event.node, f"the agent was lost while healing: {event.why}")
    return [Settled()]


def on_devices_seen(run: Run, event: ev.DevicesSeen, now: Now) -> Answer:
    notes = _note_faults(run, event, now)
    return [*notes, *(act_on_faults(run, now) if not event.asked else [])]


def on_devices_looked_at(run: Run, event: ev.DevicesSeen, now: Now) -> Answer:
    notes = _note_faults(run, event, now)
    if event.asked:
        run.attempt.devices.look([event.node], seen=not event.error and any(event.there.values()))
    return [*notes, Settled()]


def _note_faults(run: Run, event: ev.DevicesSeen, now: Now) -> list[Decision]:
    """Remember faults: a fault counts once, from its first report until it clears. A failed check changes nothing; nor does a
    report from an excluded node.
    """
    if event.node not in run.agents.kinds:
        return []
    return [run.note(_fault_record(fault, now)) for fault in run.devices.see(event)]


def act_on_faults(run: Run, now: Now) -> Answer:
    """Handle a fault while ranks run: stop them only if a rung can handle the fault, otherwise let them run."""
    acting = [fault for key, fault in run.devices.acting.items() if key not in run.devices.left_alone]
    if not acting or run.under_signal(now):
        return []
    trouble = Trouble(Cause.DEVICE, "; ".join(map(str, acting)), 1)
    choice = choose(run.situation(trouble, now))
    if choice.rung != Rung.FAIL:
        return [trouble]
    if Capability.ASK in run.facts.can and not run.slurm.heard_lately(now.mono):
        return run.ask_slurm_unless_asked(now)
    run.devices.leave_alone(acting)
    return [Say(f"{trouble.what}: no remedy ({choice.why}); the ranks keep running")]


def _fault_record(fault: Fault, now: Now) -> rec.FaultSeen:
    return rec.FaultSeen(now.unix, fault.node, fault.device, fault.code, fault.name, fault.fault_class.value, fault.user_induced)


# --- drills: faults that a person orders. Each is recorded before it is injected, so that nobody takes it for a real one


def inject(run: Run, drill: Drill, plan: PlannedDrill, now: Now) -> list[Decision]:
    """Record the ordered fault, then inject it, so that nobody takes it for a real one."""
    note = run.note(rec.Drilled(now.unix, run.attempt.number, drill.fault, drill.target, plan.how), vital=True)
    run.attempt.drill(drill)
    if drill.fault == "lost-node":
        run.attempt.nodes.drilled_away[drill.node] = "taken for lost in a drill"
    if isinstance(plan.order, DrillDevice) and not run.agents.here(drill.node):
        run.agents.orders.setdefault(drill.node, []).append(plan.order)  # the agent gets the order when it comes up
        return [note, *run.watch(now)]
    return [note, plan.order]
