"""The Slurm client over pyslurm, in this process. `pyslurm_child` says why ftrun keeps it in another one.

Written for pyslurm 25.11, the API that began with 23.2 (`Job`, `Nodes`, `JobSubmitDescription`); docs/slurm-facts.md, "pyslurm".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from ftslurm.errors import FtslurmError, SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.model.nodes import fold
from ftslurm.slurm import commands, parse, states
from ftslurm.slurm.client import JobState, JobView, NodeView, SlurmClient
from ftslurm.slurm.complaints import parse_error
from ftslurm.slurm.retries import Retries

T = TypeVar("T")

_NEEDED = ("Job", "Jobs", "Nodes", "JobSubmitDescription", "RPCError")
_API_HINT = "this pyslurm seems to have another API: use the command line client"


def load_pyslurm() -> ModuleType | None:
    """The module, or None where it is missing, does not load with this Slurm or has another API. Never raises.

    Importing it reads slurm.conf, and Slurm's library ends the whole process (not an exception) where there is none.
    """
    try:
        pyslurm = import_module("pyslurm")
    except Exception:  # whatever a foreign extension module may raise when its library does not fit
        return None
    return pyslurm if all(hasattr(pyslurm, name) for name in _NEEDED) else None


class PyslurmSlurmClient:
    """SlurmClient over the module `pyslurm`.

    cli: does what pyslurm cannot: clear a list of nodes (it takes an empty list for "leave it"), hold for the
    user, name one task of a job array whose number is that of the array, tell an expedited job and what a job needs (asked once),
    `scontrol show config` (pyslurm renames the keys), and cancel, where pyslurm judges by an errno that a request which
    went well leaves as it was.
    """

    def __init__(
        self,
        pyslurm: Any,
        cli: SlurmClient,
        timeout_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pyslurm = pyslurm
        self._cli = cli
        self._patience = Retries(timeout_s, clock, sleep)
        self._told: dict[int, JobView] = {}

    def job(self, number: int) -> JobView:
        view = self._ask(f"show job {number}", lambda: read_job(self._load(number)))
        if number not in self._told:
            self._told[number] = self._cli.job(number)
        told = self._told[number]
        # pyslurm shows num_nodes alone, which counts the nodes that are not clean yet while the job completes.
        node_count = told.node_count if view.completing else view.node_count
        return replace(view, node_count=node_count, expedited=told.expedited, needs=told.needs, exclusive=told.exclusive)

    def _load(self, number: int) -> Any:
        # Job.load() gives the first job of the answer, which for the number of a job array is any of its tasks.
        job = self._pyslurm.Job.load(number)
        return job if job.id == number else self._pyslurm.Jobs.load()[number]

    def nodes(self) -> tuple[NodeView, ...]:
        try:
            return self._ask("show nodes", lambda: tuple(read_node(node) for node in self._pyslurm.Nodes.load().values()))
        except SlurmRefused:  # PrivateData=nodes
            return ()

    def config(self) -> dict[str, str]:
        return self._cli.config()

    def requeue_held(self, number: int) -> None:
        if self._shared(number):
            return self._cli.requeue_held(number)
        try:
            self._ask(f"requeue job {number}", lambda: self._pyslurm.Job(number).requeue(hold=True))
        except SlurmRefused:
            view = self.job(number)
            if view.state is not JobState.PENDING:
                raise
            if not view.held:  # back in the queue already; pyslurm's own hold(mode="user") crashes (25.11.2)
                self._cli.requeue_held(number)

    def requeue(self, number: int) -> None:
        self._cli.requeue(number)

    def exclude(self, number: int, nodes: Iterable[str]) -> None:
        names = sorted(nodes)
        if not names or self._shared(number):
            return self._cli.exclude(number, names)
        self._modify(number, excluded_nodes=[fold(names)])

    def require(self, number: int, nodes: Iterable[str]) -> None:
        names = sorted(nodes)
        if not names or self._shared(number):
            return self._cli.require(number, names)
        self._modify(number, required_nodes=[fold(names)])

    def start_at(self, number: int, unix_s: int | None) -> None:
        if self._shared(number):
            return self._cli.start_at(number, unix_s)
        self._modify(number, begin_time=int(time.time()) if unix_s is None else int(unix_s))

    def release(self, number: int) -> None:
        if self._shared(number):
            return self._cli.release(number)
        self._ask(f"release job {number}", lambda: self._pyslurm.Job(number).release())

    def allow_requeue(self, number: int) -> None:
        if self._shared(number):
            return self._cli.allow_requeue(number)
        self._modify(number, is_requeueable=True)

    def takes_changes(self, number: int, within_s: float) -> bool:
        return self._cli.takes_changes(number, within_s)

    def signal_steps(self, number: int, name: str) -> None:
        self._cli.signal_steps(number, name)

    def keep_nodes(self, number: int, nodes: Iterable[str]) -> None:
        self._cli.keep_nodes(number, nodes)

    def cancel(self, number: int) -> None:
        self._cli.cancel(number)

    def _modify(self, number: int, **changes: Any) -> None:
        what = f"update job {number} with {changes}"
        self._ask(what, lambda: self._pyslurm.Job(number).modify(self._pyslurm.JobSubmitDescription(**changes)))

    def _shared(self, number: int) -> bool:
        """Does a request for this number mean other tasks of an array too? Raises SlurmRefused as `address` does."""
        return commands.address(self.job(number)).array_job == number

    def _ask(self, what: str, once: Callable[[], T]) -> T:
        return self._patience.ask(lambda _: self._ask_once(what, once))

    def _ask_once(self, what: str, once: Callable[[], T]) -> T:
        try:
            return once()
        except self._pyslurm.RPCError as error:
            raise read_error(what, str(error)) from None
        except KeyError:
            raise UnknownJob(f"pyslurm could not {what}: no such job", "it ended a while ago, or never was") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise SlurmUnavailable(f"pyslurm could not {what}: {error}", _API_HINT) from None


def read_error(what: str, words: str) -> FtslurmError:
    """The error to raise for an RPCError's text."""
    complaint = parse_error(words)
    return complaint.error(f"pyslurm could not {what}: {complaint.words}", hint=complaint.hint)


def read_job(job: Any) -> JobView:
    """A pyslurm.Job as JobView; the same judgement as over scontrol's text, which shows the same few words."""
    word, reason = job.state or "", job.state_reason or ""
    start, end = _seconds(job.start_time), _seconds(job.end_time)
    view = JobView(
        number=job.id,
        state=states.job_state(word, reason, states.waits_still(bool(job.run_time), start, end)),
        reason="" if reason == "None" else "_".join(reason.split()),  # as scontrol writes it
        completing=word in states.COMPLETING_WORDS,
        configuring=word in states.CONFIGURING_WORDS,
        batch=bool(job.is_batch_job),
        requeue=bool(job.is_requeueable),
        restarts=job.requeue_count or 0,
        start_time=start,
        end_time=end if job.time_limit is not None or end <= time.time() else 0,
        submit_time=_seconds(job.submit_time),
        nodes=parse.node_names(job.allocated_nodes or ""),
        excluded=frozenset(parse.node_names(job.excluded_nodes or "")),
        required=frozenset(parse.node_names(job.required_nodes or "")),
        node_count=job.num_nodes or 0,
        partition=job.partition or "",
        name=job.name or "",
        user_id=-1 if job.user_id is None else job.user_id,
        comment=job.comment or "",
        array_job=job.array_id or None,
        array_task=_array_task(job),
    )
    priority = -1 if job.priority is None else job.priority
    held, later = states.is_held(word, view.state, priority), states.is_to_be_held(view.state, priority)
    return parse.while_waiting(replace(view, held=held, to_be_held=later), _seconds(job.eligible_time))


def _array_task(job: Any) -> int | None:
    """pyslurm shows task 0 as None, and the tasks that wait under one number too; those it lists apart."""
    if not job.array_id or job.array_tasks_waiting:
        return None
    return int(job.array_task_id or 0)


def read_node(node: Any) -> NodeView:
    return NodeView(
        name=node.name,
        state=states.node_state(node.state or ""),
        words=node.state or "",
        reason=(node.reason or "").split("\n")[0],
        partitions=frozenset(node.partitions or ()),
        address=getattr(node, "address", None) or "",
        port=int(getattr(node, "slurmd_port", None) or 0),
    )


def _seconds(value: int | None) -> int:
    return int(value or 0)
