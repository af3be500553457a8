"""Drills: faults that a person orders. Each is recorded before it is injected, so that nobody takes it for a real fault."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import AnswerDrill, Decision, DrillDevice, Say
from ftslurm.model.events import Now
from ftslurm.policies.judge.state import Run
from ftslurm.policies.node import drill_orders as drills


class Drills:
    def __init__(self, run: Run) -> None:
        self.run = run

    def on_drill_asked(self, event: ev.DrillAsked, now: Now) -> list[Decision]:
        """Record the ordered fault, then inject it, so that nobody takes it for a real one."""
        drill = drills.plan(event, self.run.tasks)
        if drill is None:
            return [AnswerDrill(event.asker, False, f"there is no {drills.target(event)} in the step that runs")]
        note = self.run.note(rec.Drilled(now.unix, self.run.attempt.number, event.fault, drill.target, drill.how), vital=True)
        told = Say(f"drill: {event.fault} on {drill.target} ({drill.how})")
        said: list[Decision] = [note, told, AnswerDrill(event.asker, True, drill.how)]
        if drill.injects:
            self.run.attempt.drills.append(f"{event.fault} on {drill.target}")
        if event.fault == "lost-node":
            self.run.attempt.nodes.drill(event.node)
        if isinstance(drill.order, DrillDevice) and not self.run.agents.here(event.node):
            self.run.agents.order_later(drill.order)  # the agent gets the order when it comes up
            return [*said, *self.run.watch(now)]
        return [*said, drill.order]

    def refuse_drill(self, event: ev.DrillAsked, now: Now) -> list[Decision]:
        return [AnswerDrill(event.asker, False, f"the ranks do not run just now (ftrun is {self.run.phase.value})")]
