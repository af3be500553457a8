"""The local launcher: the contract of the Slurm launcher, with processes on this machine and simulated nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count

from ftslurm.errors import CommandMissing, UsageError
from ftslurm.launchers.srun import SrunLauncher
from ftslurm.launchers.step import ProcessStep
from ftslurm.model import events as ev
from ftslurm.model.decisions import Start
from ftslurm.model.nodes import Near
from ftslurm.model.values import Value, field
from ftslurm.system.commands import run


class LocalPool(Value):
    """The simulated cluster: `size` nodes named local1, local2, ..."""

    size: int

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(f"local{number}" for number in range(1, self.size + 1))

    def allocate(self, count: int, excluded: Iterable[str]) -> tuple[str, ...]:
        """The first `count` nodes that are not excluded. Raises: UsageError if there are not as many."""
        left = [node for node in self.nodes if node not in set(excluded)]
        if len(left) < count:
            raise UsageError(
                f"{count} nodes requested, only {len(left)} of {self.size} available",
                hint=f"--ft-local-nodes {count} simulates as many",
            )
        return tuple(left[:count])


class LocalScheduler(Value):
    """Answers as Slurm would for a batch job on the pool; a requeue lets the same ftrun go on with other nodes."""

    pool: LocalPool
    count: int

    def ask(self, without: Sequence[str] = ()) -> ev.SlurmAnswered:
        nodes = frozenset(self.pool.nodes)
        return ev.SlurmAnswered("RUNNING", batch=True, requeueable=True, usable=nodes, node_count=self.count, idle=nodes)

    def probe(self, node: str, limit_s: float) -> ev.NodeProbed:
        return ev.NodeProbed(node, None, "a local node has no other way to it")

    def check(self, node: str, lender: int, limit_s: float) -> ev.NodeChecked:
        return ev.NodeChecked(node, True, "a local node is only a name")

    def show(self, text: str) -> None:
        """Does nothing: there is no queue to show the text in."""

    def borrow(
        self, slot: int, exclude: Sequence[str], wait_s: float, submitted: Callable[[int, str], object], near: Near
    ) -> ev.NodeBorrowed:
        return ev.NodeBorrowed(slot, "", 0, "there are no jobs to borrow from")

    def end_loans(self, jobs: Sequence[int]) -> ev.LoansEnded:
        return ev.LoansEnded()

    def call_off(self) -> None:
        """Does nothing: there are no donor jobs."""

    def steps(self) -> ev.StepsListed:
        return ev.StepsListed(frozenset())

    def release(self, nodes: Sequence[str]) -> ev.NodesReleased:
        return ev.NodesReleased(tuple(nodes), True)

    def clean_up(self, nodes: Sequence[str], argv: Sequence[str], limit_s: float) -> str:
        """Run it once for each node, one after the other."""
        for node in nodes:
            try:
                done = run(argv, limit_s, env={**os.environ, "SLURMD_NODENAME": node})
            except CommandMissing as error:
                return f"the clean-up could not be run: {error}"
            if done.status != 0:
                return f"the clean-up of {node} ended with status {done.status}"
        return ""

    def requeue(self, exclude: Sequence[str], start: Start, allow_first: bool) -> ev.RequeueEnded:
        try:
            self.pool.allocate(self.count, exclude)
        except UsageError as error:
            return ev.RequeueEnded(False, error.message)
        return ev.RequeueEnded(True, "continued in the same ftrun")


class LocalLauncher(SrunLauncher):
    """With local_step for srun. nodes: of the allocation. job: number of the simulated job."""

    nodes: tuple[str, ...] = ()
    job: int = 0
    numbers: Iterator[int] = field(default_factory=count)

    @property
    def srun(self) -> tuple[str, ...]:
        return self.python.module_argv("ftslurm.launchers.local_step")

    def _process(self, argv: Sequence[str], env: Mapping[str, str], quiet: bool = False, unread: bool = False) -> ProcessStep:
        played = {"NODES": ",".join(self.nodes), "JOB": str(self.job), "STEP": str(next(self.numbers))}
        return ProcessStep(argv, {**env, **{f"FTSLURM_LOCAL_{name}": value for name, value in played.items()}}, quiet)
