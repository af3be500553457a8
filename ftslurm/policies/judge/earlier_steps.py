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
from ftslurm.policies.judge.settling import Settling
from ftslurm.policies.lease.quorum import longest_s

# Seconds between two looks at Slurm's list of steps, while steps of a killed ftrun end.
LOOK_AGAIN_S = 3.0


def beside(steps: Collection[str]) -> Say:
    held = ", ".join(sorted(steps))
    return Say(f"Slurm still holds the nodes for {held}, which has ended; launching beside it (--overlap)")


class EarlierSteps(Settling):
    def _await_others(self, now: Now) -> list[Decision]:
        """Wait for ranks of an earlier ftrun: Slurm requeued the job away from a node that could not confirm that its ranks have
        ended, or the ftrun before this one was killed. With --overlap or --exact, srun would start beside them.
        """
        self._enter(Phase.LAUNCHING)
        wait_s = longest_s(self.settings)
        self._timers.only({Timer.OTHERS: now.mono + wait_s})
        nodes_of: dict[str, set[str]] = {}
        for node, why in self.facts.earlier.unproven.items():
            nodes_of.setdefault(why, set()).add(node)
        where = "; ".join(sorted(f"{fold_nodes(nodes)}: {why}" for why, nodes in nodes_of.items()))
        sooner = ", or for Slurm to list no step of theirs" if self._slurm_knows_of_others else ""
        said = f"waiting up to {wait_s:g} s for the leases of an earlier ftrun's ranks to expire{sooner} ({where})"
        nodes = fold_nodes(self.facts.earlier.unproven)
        return [*self._wait_for(f"the leases of ranks on {nodes}", wait_s, now, said), *self._look_for_others(now)]

    @property
    def _slurm_knows_of_others(self) -> bool:
        """Does slurmctld know of the other steps? It forgets a step when each of its nodes has confirmed the end, or is down. It
        does not tell this for the part in a donor job.
        """
        f = self.facts
        lists = {Capability.ASK, Capability.STEPS} <= f.can
        return (
            lists
            and bool(f.earlier.steps_over)
            and f.earlier.unproven.keys() == f.earlier.killed
            and f.earlier.killed <= set(f.nodes)
        )

    def _look_for_others(self, now: Now) -> list[Decision]:
        if Timer.OTHERS not in self._timers or not self._slurm_knows_of_others:
            return []
        self._timers.set(Timer.LOOK_FOR_OTHERS, now.mono + LOOK_AGAIN_S)
        return [ListSteps()]

    def _others_listed(self, event: ev.StepsListed, now: Now) -> list[Decision]:
        """The listed steps have arrived: if none is left, a node that is down could still not confirm anything."""
        if not self._slurm_knows_of_others or event.steps is None:
            return []
        self._launch.others_listed(event.steps if event.steps <= self.facts.earlier.steps_over else None)
        if event.steps & self.facts.earlier.steps_over or Timer.ASK in self._timers:
            return []
        self._launch.no_others_listed()
        return [self._ask_slurm(now)]

    def _slurm_while_launching(self, event: ev.SlurmAnswered, now: Now) -> list[Decision]:
        self._take(event, now)
        unlisted = self._launch.others_unlisted
        self._launch.no_others_listed(False)
        if (
            Timer.OTHERS not in self._timers
            or not unlisted
            or event.error
            or self.facts.earlier.killed & dict(event.bad_nodes).keys()
        ):
            return []
        self._timers.stop(Timer.OTHERS)
        return self._first_launch(now)

    def _others_over(self, now: Now) -> list[Decision]:
        """Every lease has run out. A step that Slurm still lists is on a node that could not confirm its end."""
        if not self._launch.others_hold:
            return self._first_launch(now)
        self._launch.beside()
        return [beside(self._launch.others_hold), *self._first_launch(now)]
