"""What every SlurmClient keeps, on whatever Slurm: one suite, run over each implementation and over the fake.

A test module makes a class of SlurmClientContract and a fixture `world`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import pytest

from ftslurm.errors import SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import AS_OF, JobState, JobView, NodeState
from ftslurm.slurm.states import is_over
from tests.machine import slowness

T = TypeVar("T")

UNKNOWN_JOB = 66_000_000  # below MaxJobId, so it is a number Slurm might give
CLOCK_S = 5.0  # Slurm tells whole seconds, and a busy machine takes its time to answer
SOON_S = 60.0  # far more than any of this takes; the 121 s of a plain requeue are far more than this
# Unlike a plain name: what a careless reader of `key=value` would take for the truth.
LYING_NAME = "x JobState=COMPLETED Requeue=0 NodeList=n9"


class World(Protocol):
    """A cluster of at least four idle nodes, and its client, which asks as an ordinary user."""

    client: SlurmClient
    user_id: int
    nodes: tuple[str, ...]

    def submit(self, node_count: int = 1, *, hold: bool = False, requeue: bool = True, batch: bool = True,
               name: str = "job", comment: str = "", as_root: bool = False, exclusive: bool = True) -> int:  # fmt: skip
        """A job that runs until it is ended."""

    def submit_array(self, tasks: int) -> list[int]:
        """An array of running tasks; their numbers, one of which is the array's own."""

    def submit_undivided_array(self) -> int:
        """An array whose tasks wait under one number."""

    def drain(self, node: str, reason: str) -> None: ...

    def take_down(self, node: str) -> None: ...

    def controller_away(self) -> AbstractContextManager[None]: ...

    def hurried(self, timeout_s: float) -> SlurmClient:
        """Another client, with this time limit."""


def wait(look: Callable[[], T], ready: Callable[[T], bool], what: str, limit_s: float = SOON_S) -> T:
    deadline = time.monotonic() + limit_s
    while not ready(seen := look()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what}; last seen: {seen}"
        time.sleep(0.1)
    return seen


def until_running(client: SlurmClient, number: int, restarts: int = 0, limit_s: float = SOON_S) -> JobView:
    return wait(lambda: client.job(number), lambda view: view.state is JobState.RUNNING and view.restarts == restarts,
                f"job {number} to run, after {restarts} restarts", limit_s)  # fmt: skip


class SlurmClientContract:
    """Subclasses give the fixture `world`, which ends all jobs and resumes all nodes afterwards."""

    def test_shows_a_running_job(self, world: World) -> None:
        number = world.submit(2, name=LYING_NAME, comment="two words Comment=no")
        view = until_running(world.client, number)
        assert view.number == number
        assert (view.batch, view.requeue, view.restarts) == (True, True, 0)
        assert (view.held, view.completing) == (False, False)
        assert (view.name, view.comment, view.user_id) == (LYING_NAME, "two words Comment=no", world.user_id)
        assert len(view.nodes) == view.node_count == 2
        assert set(view.nodes) <= set(world.nodes)
        assert view.excluded == frozenset()
        assert view.array_job is None
        assert view.partition
        assert view.submit_time - 2 <= view.start_time <= time.time() + 2

    def test_shows_a_job_that_is_held(self, world: World) -> None:
        view = world.client.job(world.submit(2, hold=True))
        assert (view.state, view.held, view.nodes, view.node_count) == (JobState.PENDING, True, (), 2)
        assert (view.end_time, view.completing) == (0, False)

    @pytest.mark.parametrize("request_name", ["job", "requeue", "requeue_held", "release", "allow_requeue"])
    def test_tells_a_job_that_slurm_does_not_know(self, world: World, request_name: str) -> None:
        with pytest.raises(UnknownJob):
            getattr(world.client, request_name)(UNKNOWN_JOB)

    def test_tells_a_job_that_slurm_does_not_know_when_told_to_change_it(self, world: World) -> None:
        with pytest.raises(UnknownJob):
            world.client.exclude(UNKNOWN_JOB, [world.nodes[0]])
        with pytest.raises(UnknownJob):
            world.client.require(UNKNOWN_JOB, [world.nodes[0]])
        with pytest.raises(UnknownJob):
            world.client.start_at(UNKNOWN_JOB, None)

    def test_requeues_on_other_nodes_within_seconds(self, world: World) -> None:
        """The whole recipe, in the order that leaves no gap, while the old run still cleans up."""
        client, number = world.client, world.submit(2)
        old = until_running(client, number).nodes
        client.requeue_held(number)
        view = client.job(number)
        assert (view.state, view.held, view.restarts) == (JobState.PENDING, True, 1)
        assert (view.nodes, view.node_count) == ((), 2)
        assert view.completing == bool(view.cleaning) and set(view.cleaning) <= set(old)
        client.exclude(number, old)
        start = int(time.time()) + 8
        client.start_at(number, start)
        client.release(number)
        view = wait(lambda: client.job(number), lambda view: not view.completing, "the clean-up")
        assert (view.state, view.held, view.requeue, view.nodes, view.cleaning) == (JobState.PENDING, False, True, (), ())
        assert (view.excluded, view.start_time) == (frozenset(old), start)
        assert abs(view.submit_time - time.time()) < CLOCK_S * slowness(), "when the clean-up ended"
        view = until_running(client, number, restarts=1)
        assert not set(view.nodes) & set(old)
        assert len(view.nodes) == 2
        assert start <= view.start_time <= start + SOON_S

    def test_gives_a_node_back_and_is_requeued_in_its_old_size(self, world: World) -> None:
        """Of an exclusive one 22.05 would count the node as taken for ever (docs/slurm-facts.md, "Nodes for a running job")."""
        client, number = world.client, world.submit(2, exclusive=False)
        first, _ = until_running(client, number).nodes
        client.signal_steps(number, "CONT")
        client.keep_nodes(number, [first])
        assert client.job(number).nodes == (first,)
        client.requeue(number)
        wait(lambda: client.job(number), lambda view: not view.completing, "the clean-up")
        client.start_at(number, int(time.time()) + 2)
        assert len(until_running(client, number, restarts=1).nodes) == 2

    def test_tells_whether_a_job_has_its_nodes_for_itself(self, world: World) -> None:
        for exclusive in (True, False):
            number = world.submit(exclusive=exclusive)
            assert until_running(world.client, number).exclusive is exclusive
            world.client.cancel(number)

    def test_tells_whether_slurm_takes_changes_of_a_job(self, world: World) -> None:
        """By a change that changes nothing."""
        client, number = world.client, world.submit()
        until_running(client, number)
        assert client.takes_changes(number, 0.0)
        view = client.job(number)
        assert (view.state, view.requeue, view.restarts) == (JobState.RUNNING, True, 0)
        with pytest.raises(UnknownJob):
            client.takes_changes(UNKNOWN_JOB, 0.0)

    def test_starts_a_requeued_job_soon(self, world: World) -> None:
        """Not at once: 22.05 then now and then revokes the job's own credential, and it fails for good."""
        client, number = world.client, world.submit()
        until_running(client, number)
        client.requeue_held(number)
        wait(lambda: client.job(number), lambda view: not view.completing, "the clean-up")
        client.start_at(number, None)
        client.start_at(number, int(time.time()) + 2)
        client.release(number)
        until_running(client, number, restarts=1)

    def test_requeues_a_job_that_is_not_held(self, world: World) -> None:
        client, number = world.client, world.submit()
        until_running(client, number)
        client.requeue(number)
        view = client.job(number)
        assert (view.state, view.held, view.restarts) == (JobState.PENDING, False, 1)

    def test_takes_every_request_twice(self, world: World) -> None:
        client, number = world.client, world.submit()
        until_running(client, number)
        for _ in range(2):
            client.requeue_held(number)
        for _ in range(2):
            client.exclude(number, world.nodes[:1])
        start = int(time.time()) + 300
        for _ in range(2):
            client.start_at(number, start)
        for _ in range(2):
            client.allow_requeue(number)
        for _ in range(2):
            client.release(number)
        view = wait(lambda: client.job(number), lambda view: not view.completing, "the clean-up")
        assert (view.restarts, view.held) == (1, False)
        assert (view.excluded, view.start_time) == (frozenset(world.nodes[:1]), start)
        for _ in range(2):
            client.cancel(number)

    def test_holds_a_job_that_is_back_in_the_queue_already(self, world: World) -> None:
        client, number = world.client, world.submit(hold=True)
        client.start_at(number, int(time.time()) + 300)
        client.release(number)
        assert not client.job(number).held
        client.requeue_held(number)
        assert client.job(number).held
        client.release(number)
        assert not client.job(number).held, "its owner must be able to release it"

    def test_releases_a_running_job_without_a_word(self, world: World) -> None:
        number = world.submit()
        until_running(world.client, number)
        world.client.release(number)
        assert world.client.job(number).state is JobState.RUNNING

    def test_replaces_and_clears_the_excluded_nodes(self, world: World) -> None:
        client, number = world.client, world.submit(hold=True)
        client.exclude(number, world.nodes[:2])
        client.exclude(number, world.nodes[1:3])
        assert client.job(number).excluded == frozenset(world.nodes[1:3])
        client.exclude(number, [])
        assert client.job(number).excluded == frozenset()

    def test_replaces_and_clears_the_nodes_asked_for_by_name(self, world: World) -> None:
        client, number = world.client, world.submit(hold=True)
        assert client.job(number).required == frozenset()
        client.require(number, world.nodes[1:2])
        assert client.job(number).required == frozenset(world.nodes[1:2])
        client.release(number)
        assert until_running(client, number).nodes == world.nodes[1:2]
        client.requeue_held(number)
        client.require(number, [])
        assert client.job(number).required == frozenset()

    def test_does_not_exclude_from_a_running_job(self, world: World) -> None:
        number = world.submit()
        until_running(world.client, number)
        with pytest.raises(SlurmRefused):
            world.client.exclude(number, world.nodes[:1])
        with pytest.raises(SlurmRefused):
            world.client.start_at(number, None)
        assert world.client.job(number).excluded == frozenset()

    def test_does_not_exclude_a_node_that_is_not_there(self, world: World) -> None:
        number = world.submit(hold=True)
        with pytest.raises(SlurmRefused):
            world.client.exclude(number, ["no-such-node"])

    def test_requeues_a_job_that_must_not_be_only_when_that_is_lifted(self, world: World) -> None:
        client, number = world.client, world.submit(requeue=False)
        assert not until_running(client, number).requeue
        with pytest.raises(SlurmRefused):
            client.requeue_held(number)
        client.allow_requeue(number)
        assert client.job(number).requeue
        client.requeue_held(number)
        assert client.job(number).held

    def test_does_not_requeue_what_is_no_batch_job(self, world: World) -> None:
        number = world.submit(batch=False)
        assert not until_running(world.client, number).batch
        with pytest.raises(SlurmRefused):
            world.client.requeue_held(number)

    def test_does_not_touch_the_job_of_somebody_else(self, world: World) -> None:
        number = world.submit(as_root=True)
        until_running(world.client, number)
        for request in (world.client.requeue_held, world.client.allow_requeue, world.client.cancel):
            with pytest.raises(SlurmRefused):
                request(number)
        assert world.client.job(number).state is JobState.RUNNING

    def test_requeues_one_task_of_an_array_alone(self, world: World) -> None:
        """Slurm takes the number of the last task for the whole array."""
        client, numbers = world.client, world.submit_array(3)
        views = {number: until_running(client, number) for number in numbers}
        assert {view.array_task for view in views.values()} == {0, 1, 2}
        last = next(number for number, view in views.items() if view.array_job == number)
        client.requeue_held(last)
        client.exclude(last, world.nodes[:1])
        client.start_at(last, int(time.time()) + 300)
        client.release(last)
        view = client.job(last)
        assert (view.state, view.restarts, view.excluded) == (JobState.PENDING, 1, frozenset(world.nodes[:1]))
        client.cancel(last)
        for number in set(numbers) - {last}:
            view = client.job(number)
            assert (view.state, view.restarts, view.number) == (JobState.RUNNING, 0, number)

    def test_leaves_an_undivided_array_alone(self, world: World) -> None:
        number = world.submit_undivided_array()
        view = world.client.job(number)
        assert (view.array_job, view.array_task) == (number, None)
        with pytest.raises(SlurmRefused):
            world.client.exclude(number, world.nodes[:1])

    def test_cancels(self, world: World) -> None:
        client, number = world.client, world.submit()
        until_running(client, number)
        client.cancel(number)
        view = wait(lambda: client.job(number), is_over, "the job to be over")
        assert view.state in (JobState.CANCELLED, JobState.UNKNOWN)
        view = wait(lambda: client.job(number), lambda view: not view.completing, "the clean-up")
        assert view.state is JobState.CANCELLED
        client.cancel(number)
        client.cancel(UNKNOWN_JOB)

    def test_tells_good_nodes_from_drained_and_dead_ones(self, world: World) -> None:
        drained, dead, *good = world.nodes
        world.drain(drained, "burnt State=IDLE")
        world.take_down(dead)
        nodes = {view.name: view for view in world.client.nodes()}
        assert set(nodes) == set(world.nodes)
        assert (nodes[drained].state, nodes[drained].reason) == (NodeState.DRAINING, "burnt State=IDLE")
        assert nodes[dead].state is NodeState.BAD
        assert {nodes[name].state for name in good} == {NodeState.GOOD}
        assert all(view.partitions and view.words for view in nodes.values())

    def test_tells_the_configuration(self, world: World) -> None:
        config = world.client.config()
        assert abs(int(config[AS_OF]) - time.time()) < CLOCK_S * slowness()
        assert config["SLURM_VERSION"][:2].isdigit()
        assert config["KillWait"].endswith(" sec")
        assert config["RequeueExit"] == ""

    def test_says_within_its_limit_that_slurmctld_is_away(self, world: World) -> None:
        number = world.submit()
        began = time.monotonic()
        with world.controller_away():
            client = world.hurried(3.0)
            for request in (client.nodes, lambda: client.job(number), lambda: client.requeue_held(number)):
                began = time.monotonic()
                with pytest.raises(SlurmUnavailable) as caught:
                    request()
                assert time.monotonic() - began < 8.0 * slowness()
                assert caught.value.hint
        until_running(world.client, number)
