"""The pyslurm client on a pyslurm of a few lines; on the real one tests/live keeps it to its contract."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.errors import SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.slurm.client import JobState, NodeState
from ftslurm.slurm.pyslurm_client import PyslurmSlurmClient, read_job, read_node
from tests.fakes.slurm import FakeSlurm


class RPCError(Exception):
    """As pyslurm's: its text is slurm_strerror()'s."""


def job(number: int = 7, **changes: Any) -> SimpleNamespace:
    """A running job with the attributes of pyslurm.Job that are read."""
    fields: dict[str, Any] = {
        "id": number, "state": "RUNNING", "state_reason": None, "run_time": 5, "start_time": 1000, "end_time": 4600,
        "eligible_time": 999, "submit_time": 998, "time_limit": 60, "is_batch_job": True, "is_requeueable": True,
        "requeue_count": 0, "allocated_nodes": "n[1-2]", "excluded_nodes": None, "required_nodes": None,
        "num_nodes": 2, "partition": "main",
        "name": "x", "user_id": 1000, "comment": None, "priority": 4, "array_id": None, "array_task_id": None,
        "array_tasks_waiting": None,
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **changes})


class Pyslurm:
    """The module: answers with `jobs`; every change fails with `error` if there is one."""

    RPCError = RPCError

    def __init__(self, *jobs: SimpleNamespace, error: str = "") -> None:
        self.jobs = {each.id: each for each in jobs}
        self.error = error
        self.done: list[tuple[Any, ...]] = []
        self.Job = SimpleJob(self)
        self.Jobs = SimpleNamespace(load=lambda: self.jobs)
        self.JobSubmitDescription = dict

    def do(self, *what: Any) -> None:
        self.done.append(what)
        if self.error:
            raise RPCError(self.error)


class SimpleJob:
    def __init__(self, module: Pyslurm) -> None:
        self._module = module

    def load(self, number: int) -> SimpleNamespace:
        if number not in self._module.jobs:
            raise RPCError("Invalid job id specified")
        return next(iter(self._module.jobs.values()))  # what the real one does with the number of an array

    def __call__(self, number: int) -> SimpleNamespace:
        do = self._module.do
        return SimpleNamespace(
            requeue=lambda hold: do("requeue", number, hold),
            modify=lambda changes: do("modify", number, changes),
            release=lambda: do("release", number),
        )


def client(module: Pyslurm, timeout_s: float = 1.0, cli: FakeSlurm | None = None) -> PyslurmSlurmClient:
    now = [0.0]
    return PyslurmSlurmClient(
        module, cli or with_jobs(20), timeout_s, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s)
    )


def with_jobs(count: int, expedited: bool = False) -> FakeSlurm:
    slurm = FakeSlurm()
    for _ in range(count):
        slurm.submit(hold=True, expedited=expedited)
    return slurm


@pytest.mark.parametrize("expedited", [True, False])
def test_asks_the_command_line_once_whether_a_job_is_expedited(expedited: bool) -> None:
    cli = with_jobs(7, expedited)
    slurm = client(Pyslurm(job()), cli=cli)
    assert [slurm.job(7).expedited for _ in range(3)] == [expedited] * 3
    assert cli.requests == [("job", 7)]


def test_what_a_job_needs_on_each_node_the_command_line_tells() -> None:
    cli = with_jobs(7)
    cli.needs(7, gres="npu:8", min_cpus=16, features="a100")
    view = client(Pyslurm(job()), cli=cli).job(7)
    assert (view.needs.gres, view.needs.min_cpus, view.needs.features) == ("npu:8", 16, "a100")


def test_a_completing_job_asks_for_as_many_nodes_as_ever() -> None:
    """pyslurm counts the nodes that are not clean yet."""
    cli = with_jobs(7)
    view = client(Pyslurm(job(state="COMPLETING", num_nodes=9)), cli=cli).job(7)
    assert view.completing and view.node_count == cli.job(7).node_count


def test_reads_a_job() -> None:
    view = read_job(job())
    assert (view.state, view.nodes, view.node_count, view.end_time) == (JobState.RUNNING, ("n1", "n2"), 2, 4600)


def test_sees_that_a_completing_job_waits() -> None:
    view = read_job(job(state="COMPLETING", run_time=0, priority=0, state_reason="job requeued in held state"))
    assert (view.state, view.completing, view.held, view.nodes) == (JobState.PENDING, True, True, ())
    assert view.reason == "job_requeued_in_held_state"
    assert (view.start_time, view.end_time) == (999, 0)


def test_reads_a_node() -> None:
    node = SimpleNamespace(name="n1", state="IDLE+DRAIN", reason="burnt\nbadly", partitions=["a", "b"])
    view = read_node(node)
    assert (view.state, view.reason, view.partitions) == (NodeState.DRAINING, "burnt", {"a", "b"})


def test_makes_the_changes() -> None:
    module = Pyslurm(job())
    slurm = client(module)
    slurm.requeue_held(7)
    slurm.exclude(7, {"n2", "n1"})
    slurm.require(7, {"n3"})
    slurm.start_at(7, 1234)
    slurm.release(7)
    slurm.allow_requeue(7)
    assert module.done == [
        ("requeue", 7, True),
        ("modify", 7, {"excluded_nodes": ["n[1-2]"]}),
        ("modify", 7, {"required_nodes": ["n3"]}),
        ("modify", 7, {"begin_time": 1234}),
        ("release", 7),
        ("modify", 7, {"is_requeueable": True}),
    ]


def test_finds_the_task_that_has_the_number_of_its_array() -> None:
    """Job.load() would give the first task of the array."""
    module = Pyslurm(job(8, array_id=7, array_task_id=1), job(7, array_id=7, array_task_id=2))
    assert client(module).job(7).array_task == 2


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({}, None),
        ({"array_id": 7, "array_task_id": 3}, 3),
        ({"array_id": 7}, 0),  # task 0, as pyslurm shows it
        ({"array_id": 7, "array_tasks_waiting": "0-3"}, None),
    ],
)
def test_reads_the_place_in_an_array(fields: dict[str, Any], task: int | None) -> None:
    assert read_job(job(**fields)).array_task == task


def test_leaves_such_a_task_to_the_command_line() -> None:
    """What pyslurm asks for goes by number alone, and that number is the whole array's."""
    module, cli = Pyslurm(job(7, array_id=7, array_task_id=2)), with_jobs(7)
    client(module, cli=cli).requeue_held(7)
    assert (module.done, cli.requests[-1]) == ([], ("requeue_held", 7))


def test_a_requeue_that_was_done_already_is_no_error() -> None:
    waiting = job(state="PENDING", run_time=0, priority=0)
    client(Pyslurm(waiting, error="Job is pending execution")).requeue_held(7)


def test_tells_refused_from_unavailable() -> None:
    with pytest.raises(SlurmRefused, match="no longer pending"):
        client(Pyslurm(job(), error="Job is no longer pending execution")).exclude(7, ["n1"])
    with pytest.raises(SlurmUnavailable, match="could not release job 7"):
        client(Pyslurm(job(), error="Unable to contact slurm controller (connect failure)")).release(7)
    with pytest.raises(UnknownJob):
        client(Pyslurm()).job(7)


def test_another_api_is_no_answer() -> None:
    with pytest.raises(SlurmUnavailable, match="another API"):
        client(Pyslurm(SimpleNamespace(id=7))).job(7)


def test_loading_never_raises() -> None:
    """In a process of its own: the real one ends it where there is no slurm.conf, without an exception."""
    script = f"import sys\nsys.path[:] = {sys.path!r}\nfrom ftslurm.slurm.pyslurm_client import load_pyslurm\nload_pyslurm()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180, check=False)
    assert "Traceback" not in done.stderr
