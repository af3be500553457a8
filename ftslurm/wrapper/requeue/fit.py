"""Does our job still fit the cluster without some of its nodes? Asked of Slurm as the job's owner, with the job's own request."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from ftslurm.errors import FtslurmError
from ftslurm.model.values import Value, replace
from ftslurm.slurm import commands
from ftslurm.slurm.cli_client import SlurmClient, read_answer
from ftslurm.slurm.client import JobView, NodeState, NodeView
from ftslurm.slurm.fitting import FitAsked, asked_of, fit_answer, fit_argv, fitting, idle
from ftslurm.slurm.parse import parse_reservation
from ftslurm.system.commands import CommandResult, Runner, run

# For one question of a requeue, whose steps end after KillWait (30 s).
TEST_S = 5.0
# A batch script that only asks.
SCRIPT = "#!/bin/sh\n"
# Option of sbatch -> variable in which the job has it.
_AS_OURS = {"account": "SLURM_JOB_ACCOUNT", "qos": "SLURM_JOB_QOS", "reservation": "SLURM_JOB_RESERVATION"}


class Fit(Value):
    """usable, idle: nodes that fit, and those outside of the job that run nothing; usable is None where Slurm hides its nodes.
    least: of nodes that it needs. fits: could it start without those nodes? None: not known.
    """

    usable: frozenset[str] | None
    idle: frozenset[str]
    least: int
    fits: bool | None = None


class FitQuestions(Value):
    """env: ftrun's, or of a step of the job. timeout_s: for each command."""

    run: Runner
    env: Mapping[str, str]
    timeout_s: float

    def look(self, job: JobView, nodes: Collection[NodeView], without: Collection[str] = ()) -> Fit:
        """Never raises: what is not answered is not known."""
        job = self._with_gres(job)
        asked = self._asked(job) if without else FitAsked(job.partition, job.node_count)
        job = replace(job, partition=asked.partition)
        usable = fitting(job, nodes, self._reserved(job.needs.reservation)) if nodes else None
        by_name = bool(job.required)  # the job waits for those, and for no other node
        free = frozenset() if by_name else idle(job, nodes) & (usable or frozenset()) - {*job.nodes}
        fits = self._fits(job, asked, nodes, usable, {*without}) if without else None
        return Fit(usable, free, asked.least, fits)

    def takes(self, job: JobView, nodes: Collection[NodeView], layout: Collection[str]) -> bool | None:
        """Would Slurm place such a job on exactly these nodes? Not asked with -w: 24.11 says no to two segments in two blocks
        then. nodes: all of them.
        """
        asked = replace(self._asked(job), partition=job.partition, least=len(layout))
        others = {node.name for node in nodes} - {*layout}
        return self._test(self._with_gres(job), asked, others)

    def _with_gres(self, job: JobView) -> JobView:
        return replace(job, needs=replace(job.needs, gres=commands.gres_of(job, self.env)))

    def _fits(
        self, job: JobView, asked: FitAsked, nodes: Collection[NodeView], usable: frozenset[str] | None, without: set[str]
    ) -> bool | None:
        """A no counts where Slurm says yes to the same request with those nodes, and where enough others that seem to fit are up:
        nodes that are down may come back while the job waits."""
        said = self._test(job, asked, job.excluded | without)
        if said is not False:
            return said
        up = {node.name for node in nodes if node.state is NodeState.GOOD}
        left = None if usable is None else usable - job.excluded - without
        waits = left is not None and len(left) >= asked.least > len(left & up)
        return None if waits or not self._test(job, asked, job.excluded - without) else False

    def _test(self, job: JobView, asked: FitAsked, exclude: Collection[str]) -> bool | None:
        try:
            options = inherited(self.env, but="reservation")
            done = self._ask(fit_argv(job, asked, options, sorted(exclude)), SCRIPT)
        except FtslurmError:
            return None
        return fit_answer(done.status, done.stderr)

    def _asked(self, job: JobView) -> FitAsked:
        if not job.batch:
            return FitAsked(job.partition, job.node_count)
        try:
            done = self._ask(commands.batch_script_argv(job.number))
            script = done.stdout if done.status == 0 else ""
        except FtslurmError:
            script = ""
        return asked_of(job, script, self.env)

    def _reserved(self, name: str) -> frozenset[str] | None:
        if not name:
            return None
        try:
            return parse_reservation(read_answer(self._ask(commands.show_reservation_argv(name))))
        except FtslurmError:
            return None

    def _ask(self, argv: Sequence[str], stdin: str = "") -> CommandResult:
        return self.run(argv, self.timeout_s, stdin=stdin, env=plain_env(self.env))


def still_fits(client: SlurmClient, job: JobView, without: frozenset[str]) -> bool | None:
    """See `Fit.fits`; asked by a step of the job, or by another caller that finishes its requeue."""
    try:
        nodes = client.nodes()
    except FtslurmError:
        return None
    return FitQuestions(run, os.environ, TEST_S).look(job, nodes, without).fits


def inherited(env: Mapping[str, str], but: str = "") -> dict[str, str]:
    """Options with which our job was submitted. env: of the job."""
    return {option: env[name] for option, name in _AS_OURS.items() if env.get(name) and option != but}


def plain_env(env: Mapping[str, str]) -> dict[str, str]:
    """The part of our environment that another job's script needs: slurmctld stores it, so it must hold nothing private."""
    return {name: env[name] for name in ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF") if name in env}
