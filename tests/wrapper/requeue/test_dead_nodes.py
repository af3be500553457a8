"""Dead nodes leave the job before its requeue, once Slurm knows itself that they do not answer."""

from __future__ import annotations

import pytest

from ftslurm.wrapper.requeue.finish import part_with_dead
from tests.fakes.slurm import FakeSlurm


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm()


CONFIG = {"MessageTimeout": "10 sec"}


def given_back(slurm: FakeSlurm, number: int, *gone: str) -> str:
    """What was said where the job left them, empty where it did not."""
    clock = Clock()
    job = slurm.job(number)
    slurm.requests.clear()
    parted = part_with_dead(slurm, job, gone, CONFIG, clock, clock.pause)
    assert clock.now <= 30.0
    assert parted.done == ("given back" in parted.what)
    return parted.what if parted.done else ""


def changes(slurm: FakeSlurm) -> list[tuple[object, ...]]:
    return [request for request in slurm.requests if request[0] not in ("job", "nodes", "config")]


def test_slurm_notices_first_then_the_node_goes(slurm: FakeSlurm) -> None:
    slurm.dead = {"n2"}
    number = slurm.submit(3)
    assert given_back(slurm, number, "n2").startswith("n2 given back to Slurm")
    assert changes(slurm) == [("signal_steps", number, "CONT"), ("keep_nodes", number, ("n1", "n3"))]


def test_what_slurm_knows_already_needs_no_call(slurm: FakeSlurm) -> None:
    number = slurm.submit(3)
    slurm.set_node("n3", "DOWN")
    assert given_back(slurm, number, "n3")
    assert changes(slurm) == [("keep_nodes", number, ("n1", "n2"))]


def test_a_node_that_answers_slurm_stays_in_the_job(slurm: FakeSlurm) -> None:
    number = slurm.submit(3)
    assert given_back(slurm, number, "n2") == ""
    assert changes(slurm) == [("signal_steps", number, "CONT")]
    assert slurm.job(number).nodes == ("n1", "n2", "n3")


def test_where_slurm_refuses_it_the_requeue_goes_on_without(slurm: FakeSlurm) -> None:
    slurm.dead = {"n2"}
    number = slurm.submit(3)
    slurm.cut_out(number, "n3")  # Slurm refuses changes then
    assert given_back(slurm, number, "n2") == ""
    assert slurm.job(number).nodes == ("n1", "n2")


def test_a_node_that_slurm_calls_failing_may_answer_and_stays(slurm: FakeSlurm) -> None:
    number = slurm.submit(3)
    slurm.set_node("n2", "MIXED+FAIL")
    assert given_back(slurm, number, "n2") == "" and changes(slurm) == []
