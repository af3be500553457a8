"""What may still run where nobody can see it, and until when its lease lets it.

A rank's end is proven by its shim (nothing is left); or by its step: the launcher has ended and the shim has hung up; or
its shim has hung up, by no reset, which a firewall may send, and its node answers by no way any more. What is left below a
shim that was killed is ended by Slurm, or by the shims of the next step there before they start anything. Whatever is not proven
ends at the latest when its lease does, which was last renewed when its node was last heard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ftslurm.model import record as rec
from ftslurm.model.job import Task
from ftslurm.model.nodes import expand
from ftslurm.model.rungs import REQUEUES
from ftslurm.model.settings import Settings
from ftslurm.policies.attempt import Attempt


@dataclass(slots=True)
class Fence:
    """silent: node -> monotonic seconds when it was last heard. let_go_at: since when no lease has been renewed, None while
    they are. paused: ranks that were stopped with the whole job, and whose leases do not run out before they are heard of
    again: their end is proven by their step alone."""

    silent: dict[str, float] = field(default_factory=dict)
    paused: set[int] = field(default_factory=set)
    let_go_at: float | None = None

    def over_at(self, node: str, settings: Settings) -> float:
        """When the leases of a silent node have run out, with the margin; monotonic seconds."""
        return self.silent[node] + settings.lease_s + settings.lease_margin_s

    def unproven(self, attempt: Attempt, tasks: Mapping[int, Task], settings: Settings, now: float) -> dict[int, float]:
        """rank -> monotonic seconds until which it may run, infinite if nobody knows; only those that still may."""
        free = attempt.stopped - attempt.left.keys()
        if attempt.step_ended:
            free |= attempt.closed
        free |= {rank for rank in attempt.closed - attempt.reset if rank in tasks and tasks[rank].node in attempt.gone}
        base = now if self.let_go_at is None else self.let_go_at
        wait_s = settings.lease_s + settings.lease_margin_s
        until = {rank: self.silent.get(tasks[rank].node, base) + wait_s for rank in attempt.started - free if rank in tasks}
        until.update(dict.fromkeys(self.paused & until.keys(), math.inf))
        return {rank: at for rank, at in until.items() if at > now}


def left_behind(records: Iterable[rec.Record], schedule: int) -> frozenset[str]:
    """Nodes on which an earlier scheduling of the job started ranks and its ftrun never said how that ended: it was
    requeued by somebody else. Where Slurm could not clean up either, they may still run.

    Whoever requeues the job for ftrun has waited for them before. ftrun itself seldom lives to say so after that: Slurm kills
    all of a batch step as soon as its script has ended (proctrack/cgroup)."""
    begun: dict[str, frozenset[str]] = {}
    requeues: set[str] = set()
    for record in records:
        if isinstance(record, rec.AttemptBegan) and record.schedule < schedule:
            begun[record.run] = frozenset(expand(record.nodes))
        elif isinstance(record, rec.Decided) and record.rung in REQUEUES:
            requeues.add(record.id)
        elif isinstance(record, rec.CarriedOut) and record.ok and record.id in requeues:
            begun.pop(record.id.partition("-")[0], None)
        elif isinstance(record, rec.Finished):
            begun.pop(record.run, None)
    return frozenset().union(*begun.values())


def left_before(records: Iterable[rec.Record], schedule: int, settings: Settings, now: float) -> frozenset[str]:
    """Nodes on which ranks of an earlier ftrun of this scheduling may still run: it ended and did not wait for their leases,
    since it started nothing after them. Whoever comes after it in the script does. now: Unix seconds."""
    runs: set[str] = set()
    nodes: set[str] = set()
    wait_s = settings.lease_s + settings.lease_margin_s
    for record in records:
        if isinstance(record, rec.RunBegan) and record.schedule == schedule:
            runs.add(record.run)
        elif isinstance(record, rec.Finished) and record.run in runs and now < record.at + wait_s:
            nodes.update(record.unproven)
    return frozenset(nodes)


def killed_before(records: Iterable[rec.Record], schedule: int, gone: Callable[[rec.RunBegan], bool]) -> frozenset[str]:
    """Nodes on which ranks of an earlier ftrun of this scheduling may still run: it does not run any more (gone) and did not
    live to say how they ended. Who began an attempt of the same command after it has waited for them."""
    killed: set[str] = set()
    last: dict[str, rec.AttemptBegan] = {}  # by command
    for record in records:
        if isinstance(record, rec.RunBegan) and record.schedule == schedule and gone(record):
            killed.add(record.run)
        elif isinstance(record, rec.AttemptBegan) and record.schedule == schedule:
            last[record.step_key] = record
        elif isinstance(record, rec.Finished):
            killed.discard(record.run)
    return frozenset(node for began in last.values() if began.run in killed for node in expand(began.nodes))


def begun_anew(records: Iterable[rec.Record], schedule: int, start_time: int) -> frozenset[str]:
    """Nodes of ftruns of a scheduling that Slurm counts like this one, or later, and which began at another time: slurmctld
    went back to an older state, and may have seen no clean-up of theirs. start_time: Unix seconds, 0 if not known."""
    forgotten: set[str] = set()
    nodes: dict[str, str] = {}
    for record in records:
        if isinstance(record, rec.RunBegan) and record.schedule >= schedule:
            other = record.start_time != start_time if record.schedule == schedule else True
            if other and record.start_time and start_time:
                forgotten.add(record.run)
        elif isinstance(record, rec.AttemptBegan):
            nodes[record.run] = record.nodes
        elif isinstance(record, rec.Finished):
            forgotten.discard(record.run)
    return frozenset(node for run in forgotten & nodes.keys() for node in expand(nodes[run]))


def loans_left(records: Iterable[rec.Record], gone: Callable[[rec.RunBegan], bool]) -> tuple[int, ...]:
    """Donor jobs of ftruns that do not run any more (gone) and did not live to end them."""
    left: dict[str, list[int]] = {}
    for record in records:
        if isinstance(record, rec.RunBegan) and gone(record):
            left[record.run] = []
        elif isinstance(record, rec.NodeLent) and record.run in left:
            left[record.run].append(record.job)
        elif isinstance(record, rec.Finished):
            left.pop(record.run, None)
    return tuple(job for jobs in left.values() for job in jobs)


def died_alone(records: Iterable[rec.Record], schedule: int, gone: Callable[[rec.RunBegan], bool]) -> bool:
    """Has an ftrun of this scheduling died without a word, and none lives beside? Then a donor job that nobody has written down
    is nobody's: it was submitted, and waited for."""
    left = dict[str, bool]()
    for record in records:
        if isinstance(record, rec.RunBegan) and record.schedule == schedule:
            left[record.run] = gone(record)
        elif isinstance(record, rec.Finished):
            left.pop(record.run, None)
    return bool(left) and all(left.values())


def steps_over(records: Iterable[rec.Record], schedule: int, gone: Callable[[rec.RunBegan], bool]) -> frozenset[str]:
    """Steps of earlier ftruns in this scheduling of the job that have ended, or (gone) do not run any more.

    Slurm may hold the nodes for one for ever: where it was ended while its node or slurmctld was down, nobody tells it.
    """
    over: set[str] = set()
    steps: dict[str, set[str]] = {}
    for record in records:
        if isinstance(record, rec.Finished) or (isinstance(record, rec.RunBegan) and gone(record)):
            over.add(record.run)
        elif isinstance(record, rec.AttemptBegan) and record.schedule == schedule:
            steps.setdefault(record.run, set()).add(record.step)
    return frozenset().union(*(steps[run] for run in steps.keys() & over)) - {""}
