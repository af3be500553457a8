"""Slurm as the giver of the allocation: what it says of job and nodes, and the requeue."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ftslurm.errors import FtslurmError
from ftslurm.launchers.srun import OWN_STEPS, beside_argv, own_step_env
from ftslurm.ledger.journal import Journal
from ftslurm.model.decisions import Start
from ftslurm.model.events import NodeProbed, RequeueEnded, SlurmAnswered, StepsListed
from ftslurm.model.nodes import Topology
from ftslurm.model.record import AttemptBegan
from ftslurm.model.values import field, replace
from ftslurm.policies.judge.ending import GATHERS_S
from ftslurm.slurm.cli_client import read_answer, slurmd_answers, slurmd_port
from ftslurm.slurm.client import JobState, JobView, NodeState, NodeView
from ftslurm.slurm.commands import (
    ANSWER_ENV,
    COMMENT_PREFIX,
    SHOW_QOS,
    SHOW_TOPOLOGY,
    address,
    show_job_argv,
    show_partition_argv,
    steps_argv,
    update_argv,
)
from ftslurm.slurm.parse import conf_seconds, end_of_grace, parse_job, parse_steps, parse_topology, preempted, unix_time
from ftslurm.slurm.retries import NoAnswerYet
from ftslurm.system.commands import CommandResult
from ftslurm.wrapper.requeue.lenders import REFUSED, STEPS_MOST, Lenders
from ftslurm.wrapper.requeue.requeue import AS_IT_IS, SlurmOutage, slurms_lead_s, steps_here

if TYPE_CHECKING:
    from ftslurm.wrapper.requeue.fit import Fit

# Requests of the keeper step, in order: job, requeue, job, require, exclude, start, job, release, one while it watches, job. The
# margin is for its waits, which end by themselves.
KEEPER_REQUESTS = 10
KEEPER_MARGIN_S = 30.0
# For a request that is only for people.
SHOW_S = 10.0
# Steps that are tried for a requeue, one after the other.
KEEPERS_MOST = STEPS_MOST
# That are tried, one after the other, before a node that does not answer is blamed for it.
ASK_OTHERS = 3


class SlurmScheduler(Lenders):
    """See ports.Scheduler. restarts: of the job before our scheduling; after more of them the job is no longer ours to judge or
    to give back."""

    nodes: tuple[str, ...] = ()  # of the allocation, where the keeper can run
    ledger: Path = Path()
    clock: Callable[[], float] = time.monotonic
    _places: dict[str, NodeView] = field(default_factory=dict)
    _near: list[Topology] = field(default_factory=list)  # once it is known
    outage: SlurmOutage = field(default_factory=SlurmOutage)

    @property
    def _timeout_s(self) -> float:
        return self.settings.slurm.timeout_s

    def ask(self, without: Sequence[str] = ()) -> SlurmAnswered:
        from ftslurm.wrapper.requeue.fit import FitQuestions

        began = self.clock()
        try:
            job = self.client.job(self.job)
            config = self.client.config()
            nodes = self.client.nodes()
            fit = FitQuestions(self.run, self.env, self._timeout_s).look(job, nodes, without)
            said = with_fit(answer(job, nodes, has_epilog(config)), fit, without)
            said = replace(said, slurmd_timeout_s=conf_seconds(config.get("SlurmdTimeout", "")))
            # Slurm's moments as our clock will show them: what is left until then is counted with it.
            lead_s = slurms_lead_s(config)
            end_time = int(said.end_time - lead_s) if said.end_time else 0
            began_at = up_since(config)
            up_at = int(began_at - lead_s) if began_at else 0
            # The job was requeued while we were away, and runs again: to us it is one that somebody else requeued.
            state = said.state if job.restarts <= self.restarts else JobState.PENDING.value
            over = self.ended()
            self.outage.note(began, True, up_at)
            late_s = self.clock() - began
            said = replace(
                said, state=state, end_time=end_time, late_s=late_s, up_since=up_at, loans_over=over, topology=self._topology()
            )
            return self._with_preemption(said, job, config, lead_s) if job.preempt_time else said
        except FtslurmError as error:
            self.outage.note(began, False)
            return SlurmAnswered(error=str(error), away=isinstance(error, NoAnswerYet))

    def _with_preemption(self, said: SlurmAnswered, job: JobView, config: Mapping[str, str], lead_s: float) -> SlurmAnswered:
        """What Slurm does at the end of the grace, and when that is. Raises: FtslurmError."""
        partition = self._show(show_partition_argv(job.partition))
        by_qos = config.get("PreemptType", "") == "preempt/qos" and "slurmdbd" in config.get("AccountingStorageType", "")
        qos = self._show(SHOW_QOS) if by_qos else ""
        grace_over = int(end_of_grace(job, partition) - lead_s)
        end_time = min((at for at in (said.end_time, grace_over) if at > 0), default=0)
        return replace(said, preempted=preempted(job, config, partition, qos), end_time=end_time)

    def _show(self, argv: Sequence[str]) -> str:
        """Slurm's answer, empty where it has none."""
        done = self.run(argv, self._timeout_s, env={**self.env, **ANSWER_ENV})
        return done.stdout if done.status == 0 else ""

    def _topology(self) -> Topology:
        """Asked once: it changes only when slurmctld is reconfigured. Not asked where no node is replaced."""
        if not self._near and self.settings.node_replacement.enabled:
            self._near.append(parse_topology(self._show(SHOW_TOPOLOGY)))
        return self._near[0] if self._near else Topology()

    def probe(self, node: str, limit_s: float) -> NodeProbed:
        """By Slurm's word, where it has one against the node, and by its slurmd."""
        view = self._places.get(node)
        try:
            self._places.update({seen.name: seen for seen in self.client.nodes()})
            view = self._places.get(node)
            if view is not None and view.state is NodeState.BAD:
                return NodeProbed(node, False, f"Slurm says {view.words}")
        except FtslurmError:
            pass  # slurmctld is away; where the node is was known before, or its name has to do
        address, port = (view.address or node, view.port) if view is not None else (node, 0)
        port = port or slurmd_port(self.client)
        alive, what = slurmd_answers(address, port, limit_s)
        if alive is False and not self._reaches_another(node, port, limit_s):
            return NodeProbed(node, None, f"{what}; nor does any other node answer, so this one may be cut off")
        return NodeProbed(node, alive, what)

    def _reaches_another(self, node: str, port: int, limit_s: float) -> bool:
        """Is it that node, and not our own network? Yes where Slurm calls no other node well. Those of other jobs come first."""
        ours = {node, self.env.get("SLURMD_NODENAME", "")}
        well = [view for name, view in self._places.items() if view.state is NodeState.GOOD and name not in ours]
        others = sorted(well, key=lambda view: (view.name in self.nodes, view.name))[:ASK_OTHERS]
        return not others or any(slurmd_answers(view.address or view.name, view.port or port, limit_s)[0] for view in others)

    def steps(self) -> StepsListed:
        """Without our own agents and keepers."""
        try:
            listed = parse_steps(read_answer(self.run(steps_argv(self.job), self._timeout_s, env=dict(self.env))))
        except FtslurmError:
            return StepsListed(None)
        return StepsListed(frozenset(f"{self.job}.{step}" for step, name in listed.items() if not name.startswith(OWN_STEPS)))

    def clean_up(self, nodes: Sequence[str], argv: Sequence[str], limit_s: float) -> str:
        """See ports.Scheduler."""
        try:
            done = self.run(beside_argv(nodes, "ftslurm-cleanup", argv), limit_s, env=own_step_env(self.env))
        except FtslurmError as error:
            return f"the clean-up could not be run: {error}"
        return ill_end(done)

    def show(self, text: str) -> None:
        """See ports.Scheduler. One question and one request, neither of them made again: it is only for people."""
        if not self.settings.slurm.comment:
            return
        with suppress(FtslurmError):
            job = parse_job(read_answer(self.run(show_job_argv(self.job), SHOW_S, env={**self.env, **ANSWER_ENV})), self.job)
            if not job.comment or job.comment.startswith(COMMENT_PREFIX):
                self.run(update_argv(address(job), Comment=f"{COMMENT_PREFIX}{text}" if text else ""), SHOW_S, env=dict(self.env))

    def requeue(self, exclude: Sequence[str], start: Start, allow_first: bool) -> RequeueEnded:
        """By a keeper step, elsewhere if it fails; by ourselves, or plainly, if Slurm gives us none and the job still runs."""
        result: CommandResult | None = None
        try:
            for node in self._keepers_places(exclude):
                if result is not None and REFUSED in result.stderr:
                    self.sleep(GATHERS_S)
                view = self._settled_view()  # nothing is begun while slurmctld is away
                if result is None and view.restarts > self.restarts:
                    return RequeueEnded(False, "somebody else requeued the job, and it runs again")
                if view.state is JobState.PENDING and not view.held:
                    return RequeueEnded(True, "requeued; the keeper was ended with the job")
                if view.state is JobState.PENDING:
                    break  # in which no step starts any more
                argv = self.keeper_argv(node, start, allow_first)
                result = self.run(argv, KEEPER_REQUESTS * self._timeout_s + KEEPER_MARGIN_S, env=own_step_env(self.env))
                if result.status == 0:
                    return RequeueEnded(True, result.stdout.strip(), recorded=True)
            return self._requeue_without_keeper(start, allow_first, _last_words(result))
        except FtslurmError as error:
            return RequeueEnded(False, str(error), isinstance(error, NoAnswerYet))

    def _settled_view(self) -> JobView:
        """The job, when slurmctld knows of the ended steps what it will ever know. Raises: FtslurmError."""
        began = self.clock()
        try:
            view = self.client.job(self.job)
        except NoAnswerYet:
            self.outage.note(began, False)
            raise
        self.outage.note(began, True)
        waited = self.outage.await_steps(lambda: steps_here(self.job).ended, self._listed_ours, self.sleep)
        return self.client.job(self.job) if waited else view

    def _listed_ours(self) -> frozenset[str] | None:
        """Steps of ftrun's ranks that Slurm lists and that do not run on this node. None: Slurm does not answer."""
        listed = self.steps().steps
        if not listed:
            return listed
        begun = {record.step for record in Journal(self.ledger).read().records if isinstance(record, AttemptBegan)}
        return (listed & begun) - steps_here(self.job).running

    def _requeue_without_keeper(self, start: Start, allow_first: bool, why: str) -> RequeueEnded:
        """The whole recipe, if we live long enough for it. A job that is left held waits for somebody's help, one that comes
        back plainly only waits longer; where a node that it left comes back with it, it is left once more."""
        from ftslurm.wrapper.requeue.finish import finish_by_ledger

        view = self.client.job(self.job)
        if view.state is JobState.RUNNING and not self._outlives_the_script():
            self.client.requeue(self.job)
            return RequeueEnded(True, f"{AS_IT_IS}: no step of ours came up{f' ({why})' if why else ''}")
        return RequeueEnded(True, finish_by_ledger(self.job, self.ledger, start, allow_first, self._timeout_s), recorded=True)

    def _outlives_the_script(self) -> bool:
        """The requeue's SIGTERM ends the script. Slurm then ends all that the script has started, where it tracks it by cgroups;
        unless the script has become this very ftrun (exec), which ignores it."""
        tracked = "cgroup" in self.client.config().get("ProctrackType", "cgroup")
        return not tracked or self.env.get("SLURM_TASK_PID") == str(os.getpid())

    def keeper_argv(self, node: str, start: Start, allow_first: bool) -> tuple[str, ...]:
        """The step that carries the requeue out; nothing secret in it."""
        from ftslurm.wrapper.requeue.finish import start_words

        words = (str(self.job), str(self.ledger), *start_words(start), str(int(allow_first)), f"{self._timeout_s:g}")
        return beside_argv([node], "ftslurm-requeue", self.python.module_argv("ftslurm.wrapper.requeue.finish", *words))

    def _keepers_places(self, exclude: Sequence[str]) -> list[str]:
        """In turn. First not where the script and ftrun end, if there is another: that clean-up takes longest, and can be
        watched then."""
        healthy = [node for node in self.nodes if node not in set(exclude)] or list(self.nodes)
        batch_node = self.env.get("SLURMD_NODENAME")
        places = sorted(healthy, key=lambda node: node == batch_node)
        return [places[number % len(places)] for number in range(KEEPERS_MOST)]


def _last_words(done: CommandResult | None) -> str:
    """The last line that it printed, on stderr rather; empty if it has not run."""
    texts = (done.stderr, done.stdout) if done is not None else ()
    return next((line for text in texts for line in reversed(text.splitlines()) if line.strip()), "")


def ill_end(done: CommandResult) -> str:
    """Of a clean-up, in words, its own last ones among them; empty for a good one."""
    if done.status == 0:
        return ""
    lines = [line for line in (*done.stdout.splitlines(), *done.stderr.splitlines()) if line and not line.startswith("srun:")]
    ended = "took too long" if done.status is None else f"ended with status {done.status}"
    return f"the clean-up {ended}{': ' + lines[-1] if lines else ''}"


def has_epilog(config: Mapping[str, str]) -> bool:
    """Does a program clean up on each node? From 23.11 on there may be several, `Epilog[0]`."""
    return any(key.partition("[")[0] == "Epilog" and value not in ("", "(null)") for key, value in config.items())


def up_since(config: Mapping[str, str]) -> int:
    """Unix seconds at which slurmctld came up, 0 if it does not say."""
    try:
        return unix_time(config.get("BOOT_TIME", ""))
    except ValueError:
        return 0


def answer(job: JobView, nodes: Sequence[NodeView], epilog: bool = False) -> SlurmAnswered:
    """What Slurm said, as the judge takes it. Nodes of an unknown state are neither bad nor lost."""
    mine = set(job.nodes)
    bad = tuple(
        (node.name, f"{node.words}{': ' + node.reason if node.reason else ''}")
        for node in nodes
        if node.name in mine and node.state is NodeState.BAD
    )
    # While it cleans up Slurm shows nothing but that (unless the job waits to run again).
    state = "COMPLETING" if job.completing and job.state is JobState.UNKNOWN else job.state.value
    return SlurmAnswered(
        state, job.batch, job.requeue, job.end_time, bad, node_count=max(job.node_count, len(mine), 1), epilog=epilog,
        excluded=job.excluded, to_be_held=job.to_be_held,
    )  # fmt: skip


def with_fit(said: SlurmAnswered, fit: Fit, without: Sequence[str]) -> SlurmAnswered:
    least = fit.least if fit.least < said.node_count else 0
    asked = frozenset(without)
    return replace(said, usable=fit.usable or None, idle=fit.idle, least=least, without=asked, fits=fit.fits)
