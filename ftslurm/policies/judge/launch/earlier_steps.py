"""Ranks of an earlier ftrun that may still run: nothing starts before their leases are over, or Slurm forgets their steps."""

from __future__ import annotations

from collections.abc import Collection

from ftslurm.model import events as ev
from ftslurm.model.decisions import Decision, ListSteps, Say
from ftslurm.model.events import Now
from ftslurm.model.nodes import fold as fold_nodes
from ftslurm.model.rungs import Capability
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.phases import Phase
from ftslurm.policies.judge.replace.replacing import Replacing
from ftslurm.policies.judge.state import Run
from ftslurm.policies.judge.then import Answer
from ftslurm.policies.lease.quorum import longest_s

# Seconds between two looks at Slurm's list of steps, while steps of a killed ftrun end.
LOOK_AGAIN_S = 1.0


def beside(steps: Collection[str]) -> Say:
    held = ", ".join(sorted(steps))
    return Say(f"Slurm still holds the nodes for {held}, which has ended; launching beside it (--overlap)")


class EarlierSteps:
    def __init__(self, run: Run, replacing: Replacing) -> None:
        self.run, self.replacing = run, replacing

    def await_others(self, now: Now) -> list[Decision]:
        """Wait for ranks of an earlier ftrun: Slurm requeued the job away from a node that could not confirm that its ranks have
        ended, or the ftrun before this one was killed. With --overlap or --exact, srun would start beside them.
        """
        self.run.enter(Phase.LAUNCHING)
        self.run.timers.only({Timer.OTHERS: now.mono + longest_s(self.run.settings)})
        # The step of a killed ftrun ends with it, so Slurm's first answer is most often the last.
        return self._look(now) if self._slurm_knows_of_others else self._tell(now)

    def _tell(self, now: Now) -> list[Decision]:
        wait_s = longest_s(self.run.settings)
        nodes_of: dict[str, set[str]] = {}
        for node, why in self.run.facts.earlier.unproven.items():
            nodes_of.setdefault(why, set()).add(node)
        where = "; ".join(sorted(f"{fold_nodes(nodes)}: {why}" for why, nodes in nodes_of.items()))
        sooner = ", or for Slurm to list no step of theirs" if self._slurm_knows_of_others else ""
        said = f"waiting up to {wait_s:g} s for the leases of an earlier ftrun's ranks to expire{sooner} ({where})"
        nodes = fold_nodes(self.run.facts.earlier.unproven)
        return self.run.wait_for(f"the leases of ranks on {nodes}", wait_s, now, said)

    @property
    def _slurm_knows_of_others(self) -> bool:
        """Does slurmctld know of the other steps? It forgets a step when each of its nodes has confirmed the end, or is down. It
        does not tell this for the part in a donor job.
        """
        f = self.run.facts
        lists = {Capability.ASK, Capability.STEPS} <= f.can
        return (
            lists
            and bool(f.earlier.steps_over)
            and f.earlier.unproven.keys() == f.earlier.killed
            and f.earlier.killed <= set(f.nodes)
        )

    def look_for_others(self, now: Now) -> list[Decision]:
        """Look once more, and say why."""
        return [*self._tell(now), *self._look(now)] if Timer.OTHERS in self.run.timers else []

    def _look(self, now: Now) -> list[Decision]:
        self.run.timers.set(Timer.LOOK_FOR_OTHERS, now.mono + LOOK_AGAIN_S)
        return [ListSteps()]

    def on_steps_listed(self, event: ev.StepsListed, now: Now) -> list[Decision]:
        """The listed steps have arrived: if none is left, a node that is down could still not confirm anything."""
        if not self._slurm_knows_of_others or event.steps is None:
            return []
        self.run.launch.others_listed(event.steps if event.steps <= self.run.facts.earlier.steps_over else None)
        if event.steps & self.run.facts.earlier.steps_over or Timer.ASK in self.run.timers:
            return []
        self.run.launch.no_others_listed()
        return [self.run.ask_slurm(now)]

    def on_slurm_answered(self, event: ev.SlurmAnswered, now: Now) -> Answer:
        self.run.take_answer(event, now)
        unlisted = self.run.launch.others_unlisted
        self.run.launch.no_others_listed(False)
        if (
            Timer.OTHERS not in self.run.timers
            or not unlisted
            or event.error
            or self.run.facts.earlier.killed & dict(event.bad_nodes).keys()
        ):
            return []
        self.run.timers.stop(Timer.OTHERS)
        return self.replacing.first_launch(now)

    def on_leases_over(self, now: Now) -> Answer:
        """Every lease has run out. A step that Slurm still lists is on a node that could not confirm its end."""
        if not self.run.launch.others_hold:
            return self.replacing.first_launch(now)
        self.run.launch.beside()
        return [beside(self.run.launch.others_hold), *self.replacing.first_launch(now)]
