"""A Slurm in memory that keeps the contract of SlurmClient (tests/contract/slurm_client_contract.py holds it to that).

It knows what a supervisor meets: the hold, exclusion and begin time of pending jobs, the clean-up after a requeue and
the 121 s that follow it, refusals. Nodes are granted whole. Nothing happens between two requests: each first settles
what is due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from ftslurm.errors import SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.slurm.client import AS_OF, JobState, JobView, Needs, NodeState, NodeView
from ftslurm.slurm.states import is_over, node_state

# slurmctld's cred_expire + 1, added when a job that was requeued has cleaned up and its begin time is past.
REQUEUE_DELAY_S = 121
CONFIG = {
    "SLURM_VERSION": "22.05.8",
    "ClusterName": "fake",
    "KillWait": "30 sec",
    "SlurmdTimeout": "300 sec",
    "RequeueExit": "",
}


@dataclass
class _Job:
    """begin: Unix seconds, the earliest start. clean_at: node -> when it is clean after the last run, empty when all are."""

    view: JobView
    begin: float
    clean_at: dict[str, float] = field(default_factory=dict)


class FakeSlurm:
    """away: slurmctld does not answer. requests: every request so far, as (name, arguments...).

    dead: nodes of which slurmctld takes no notice until it calls them. clean_up_s: how long nodes stay completing after a run; slow: of those that take their own time. clock: Unix seconds. user_id: who asks; 0 may do everything.
    """

    def __init__(
        self,
        nodes: Iterable[str] = ("n1", "n2", "n3", "n4"),
        clock: Callable[[], float] = time.time,
        clean_up_s: float = 0.0,
        user_id: int = 1000,
    ) -> None:
        self.away = False
        self._cut: set[int] = set()
        self.dead: set[str] = set()
        self.requests: list[tuple[object, ...]] = []
        self.clock = clock
        self.clean_up_s = clean_up_s
        self.slow: dict[str, float] = {}
        self.settings = dict(CONFIG)
        self.user_id = user_id
        self._nodes = {name: NodeView(name, NodeState.GOOD, "IDLE", partitions=frozenset({"main"})) for name in nodes}
        self._jobs: dict[int, _Job] = {}

    # ---- what a test arranges ----

    def submit(
        self,
        node_count: int = 1,
        *,
        hold: bool = False,
        requeue: bool = True,
        batch: bool = True,
        name: str = "job",
        comment: str = "",
        user_id: int | None = None,
        expedited: bool = False,
        exclusive: bool = True,
        array_job: int | None = None,
        array_task: int | None = None,
    ) -> int:
        """A new job; its number."""
        number, now = len(self._jobs) + 1, self.clock()
        view = JobView(
            number,
            JobState.PENDING,
            held=hold,
            batch=batch,
            requeue=requeue,
            submit_time=int(now),
            node_count=node_count,
            partition="main",
            name=name,
            user_id=self.user_id if user_id is None else user_id,
            comment=comment,
            expedited=expedited,
            exclusive=exclusive,
            array_job=array_job,
            array_task=array_task,
        )
        self._jobs[number] = _Job(view, now)
        self._settle()
        return number

    def set_node(self, name: str, words: str, reason: str = "") -> None:
        """The node's state in Slurm's words, e.g. `IDLE+DRAIN`."""
        self._nodes[name] = replace(self._nodes[name], state=node_state(words), words=words, reason=reason)

    def cut_out(self, number: int, node: str) -> None:
        """A dead node, as Slurm does with --no-kill: until the job waits, it refuses every change."""
        self._cut.add(number)
        job = self._jobs[number]
        job.view = replace(job.view, nodes=tuple(name for name in job.view.nodes if name != node))

    def needs(self, number: int, gres: str = "", min_cpus: int = 0, features: str = "") -> None:
        """What it has asked for on each node."""
        job = self._jobs[number]
        job.view = replace(job.view, needs=Needs(features, gres, min_cpus))

    def end(self, number: int, state: JobState) -> None:
        """The job ends by itself, or by an accident."""
        job = self._jobs[number]
        self._leave_nodes(job)
        job.view = replace(job.view, state=state, held=False, end_time=int(self.clock()))

    # ---- SlurmClient ----

    def job(self, number: int) -> JobView:
        return self._begin("job", number).view

    def nodes(self) -> tuple[NodeView, ...]:
        self._arrive("nodes")
        return tuple(self._nodes.values())

    def config(self) -> dict[str, str]:
        self._arrive("config")
        return {**self.settings, AS_OF: str(int(self.clock()))}

    def requeue(self, number: int) -> None:
        self._requeue(self._begin("requeue", number), held=False)

    def requeue_held(self, number: int) -> None:
        self._requeue(self._begin("requeue_held", number), held=True)

    def _requeue(self, job: _Job, held: bool) -> None:
        _require_owner(job, self.user_id)
        number = job.view.number
        if job.view.array_job is not None and job.view.array_task is None:
            raise SlurmRefused(f"job {number} is a job array, not one job")
        if not job.view.batch:
            raise SlurmRefused(f"job {number}: Only batch jobs are accepted or processed")
        if not job.view.requeue:
            raise SlurmRefused(f"job {number}: Requested operation is presently disabled")
        if job.view.state is not JobState.PENDING:
            self._leave_nodes(job)
            restarts = job.view.restarts + 1
            job.view = replace(job.view, state=JobState.PENDING, nodes=(), restarts=restarts, start_time=0, end_time=0)
            self._show_clean_up(job)
        job.view = replace(job.view, held=held)

    def exclude(self, number: int, nodes: Iterable[str]) -> None:
        names = frozenset(nodes)
        job = self._begin_change("exclude", number, names)
        _require_pending(job)
        if names - self._nodes.keys():
            raise SlurmRefused(f"job {number}: Invalid node name specified")
        job.view = replace(job.view, excluded=names)

    def require(self, number: int, nodes: Iterable[str]) -> None:
        names = frozenset(nodes)
        job = self._begin_change("require", number, names)
        _require_pending(job)
        if names - self._nodes.keys():
            raise SlurmRefused(f"job {number}: Invalid node name specified")
        job.view = replace(job.view, required=names)

    def start_at(self, number: int, unix_s: int | None) -> None:
        job = self._begin_change("start_at", number, unix_s)
        _require_pending(job)
        job.begin = self.clock() if unix_s is None else unix_s
        job.view = replace(job.view, start_time=int(job.begin))

    def release(self, number: int) -> None:
        job = self._begin_change("release", number)
        job.view = replace(job.view, held=False)

    def allow_requeue(self, number: int) -> None:
        job = self._begin_change("allow_requeue", number)
        job.view = replace(job.view, requeue=True)

    def takes_changes(self, number: int, within_s: float) -> bool:
        try:
            self._begin_change("takes_changes", number, within_s)
        except SlurmUnavailable:
            self._arrive("job", number)
            return False
        return True

    def signal_steps(self, number: int, name: str) -> None:
        job = self._begin("signal_steps", number, name)
        for node in self.dead & {*job.view.nodes}:
            self.set_node(node, "MIXED+NOT_RESPONDING")

    def keep_nodes(self, number: int, nodes: Iterable[str]) -> None:
        kept = tuple(nodes)
        job = self._begin_change("keep_nodes", number, kept)
        if job.view.state is not JobState.RUNNING or not {*kept} <= {*job.view.nodes}:
            raise SlurmRefused(f"job {number}: Invalid node name specified")
        job.view = replace(job.view, nodes=kept)

    def cancel(self, number: int) -> None:
        self._arrive("cancel", number)
        if number in self._jobs and not is_over(self._jobs[number].view):
            _require_owner(self._jobs[number], self.user_id)
            self.end(number, JobState.CANCELLED)

    # ---- how it works ----

    def _arrive(self, *request: object) -> None:
        self.requests.append(request)
        if self.away:
            raise SlurmUnavailable("slurmctld does not answer", hint="the test took it away")
        self._settle()

    def _begin(self, *request: object) -> _Job:
        self._arrive(*request)
        if request[1] not in self._jobs:
            raise UnknownJob(f"Slurm does not know job {request[1]}")
        return self._jobs[request[1]]  # type: ignore[index]

    def _begin_change(self, *request: object) -> _Job:
        job = self._begin(*request)
        _require_owner(job, self.user_id)
        if job.view.array_job is not None and job.view.array_task is None:
            raise SlurmRefused(f"job {job.view.number} is a job array, not one job")
        if job.view.number in self._cut and (job.view.state is JobState.RUNNING or job.view.completing):
            raise SlurmUnavailable("Job update not available right now, the DB index is being set, try again in a bit")
        return job

    def _leave_nodes(self, job: _Job) -> None:
        if job.view.state is JobState.RUNNING:
            now = self.clock()
            job.clean_at = {node: now + self.slow.get(node, self.clean_up_s) for node in job.view.nodes}
            job.view = replace(job.view, completing=True)

    def _show_clean_up(self, job: _Job) -> None:
        """Of a job that waits: the nodes that are not clean yet."""
        now = self.clock()
        job.view = replace(job.view, cleaning=tuple(node for node, at in job.clean_at.items() if at > now))

    def _settle(self) -> None:
        now = self.clock()
        for job in self._jobs.values():
            if job.view.completing and max(job.clean_at.values(), default=0.0) <= now:
                self._clean(job)
            elif job.view.completing and job.view.state is JobState.PENDING:
                self._show_clean_up(job)
        for job in self._jobs.values():
            if _may_start(job, now):
                self._schedule(job, now)

    def _clean(self, job: _Job) -> None:
        ended = max(job.clean_at.values(), default=self.clock())
        if job.view.state is JobState.PENDING:
            if job.begin <= ended:
                job.begin = 0 if job.view.expedited else ended + REQUEUE_DELAY_S
            job.view = replace(job.view, start_time=int(job.begin), submit_time=int(ended), cleaning=())
        job.view = replace(job.view, completing=False)
        job.clean_at = {}

    def _schedule(self, job: _Job, now: float) -> None:
        running = [other.view for other in self._jobs.values() if other.view.state is JobState.RUNNING]
        taken = job.view.excluded.union(*(view.nodes for view in running))
        free = [name for name, node in self._nodes.items() if node.state is NodeState.GOOD and name not in taken]
        free.sort(key=lambda name: name not in job.view.required)
        if job.view.required & job.view.excluded:
            job.view = replace(job.view, reason="BadConstraints")
        elif len(free) >= job.view.node_count and job.view.required <= {*free}:
            nodes = tuple(sorted(free[: job.view.node_count]))
            job.view = replace(job.view, state=JobState.RUNNING, nodes=nodes, start_time=int(now), reason="")


def _may_start(job: _Job, now: float) -> bool:
    view = job.view
    return view.state is JobState.PENDING and not (view.held or view.completing) and job.begin <= now


def _require_owner(job: _Job, user_id: int) -> None:
    if user_id not in (0, job.view.user_id):
        raise SlurmRefused(f"job {job.view.number}: Access/permission denied")


def _require_pending(job: _Job) -> None:
    if job.view.state is not JobState.PENDING:
        raise SlurmRefused(f"job {job.view.number}: Job is no longer pending execution")
