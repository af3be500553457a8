"""Dead nodes leave the job before its requeue, once Slurm knows itself that they do not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.model import record as rec
from ftslurm.model.folds.history import History
from ftslurm.slurm.client import JobState, JobView
from ftslurm.wrapper.requeue.dead_nodes import (
    DATABASE_S,
    OWN_NODES,
    Before,
    can_give_back,
    give_dead_back,
    may_lose_gpus,
    plan_before,
    prepare_requeue,
)
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
    prepared = give_dead_back(slurm, job, gone, CONFIG, clock, clock.pause)
    assert clock.now <= 30.0
    assert prepared.done == ("given back" in prepared.what)
    return prepared.what if prepared.done else ""


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


# ---- what comes first


JOB = JobView(1, JobState.RUNNING, batch=True, requeue=True, nodes=("n1", "n2", "n3"), exclusive=False)
DBD = {"AccountingStorageType": "accounting_storage/slurmdbd", "SLURM_VERSION": "22.05.8", "GresTypes": "gpu,npu"}
NO_DBD = {**DBD, "AccountingStorageType": "accounting_storage/none"}
LEAVES = ["signal_steps", "keep_nodes", "takes_changes"]


@pytest.mark.parametrize(
    ("config", "exclusive", "done"),
    [
        (DBD, False, LEAVES),
        (NO_DBD, False, []),
        # Of an exclusive job a node is taken from the site, unless Slurm would take all its GPUs instead.
        (DBD, True, LEAVES),
        ({**DBD, "GresTypes": "(null)"}, True, []),
        ({**DBD, "SLURM_VERSION": "23.02.2"}, True, []),
        (NO_DBD, True, []),
    ],
)
def test_which_job_gives_its_dead_node_back(slurm: FakeSlurm, config: dict[str, str], exclusive: bool, done: list[str]) -> None:
    slurm.dead = {"n2"}
    job = slurm.job(slurm.submit(3, exclusive=exclusive))
    prepared = prepare_requeue(slurm, job, History(), {"n2"}, config)
    assert [name for name, *_ in changes(slurm)] == done and not prepared.plain
    assert prepared.done == bool(done) and (OWN_NODES in prepared.what) == (exclusive and not done and config != NO_DBD)


@pytest.mark.parametrize(("config", "patience_s"), [(DBD, DATABASE_S), (NO_DBD, 0.0)])
def test_of_a_job_that_has_lost_nodes_slurm_may_take_no_change(
    slurm: FakeSlurm, config: dict[str, str], patience_s: float
) -> None:
    job = slurm.job(number := slurm.submit(2))
    assert not prepare_requeue(slurm, job, BEGAN_WITH_3, (), config).plain
    assert changes(slurm) == [("takes_changes", number, patience_s)]


BEGAN_WITH_3 = History().add(rec.RunBegan(1.0, "r1", "1", "c", 0, "k", "train", "n[1-3]"))


@pytest.mark.parametrize(
    ("nodes", "dead", "config", "planned"),
    [
        (("n1", "n2", "n3"), set(), DBD, Before()),
        (("n1", "n2", "n3"), {"n2", "n3"}, DBD, Before(leave=("n2", "n3"))),
        (("n1", "n2", "n3"), {"n2"}, NO_DBD, Before()),
        (("n1", "n2"), {"n3"}, DBD, Before(ask=True)),
        (("n1", "n2"), {"n2"}, DBD, Before(ask=True, leave=("n2",))),
    ],
)
def test_what_comes_before_a_requeue(nodes: tuple[str, ...], dead: set[str], config: dict[str, str], planned: Before) -> None:
    assert plan_before(replace(JOB, nodes=nodes), BEGAN_WITH_3, dead, config) == planned


@pytest.mark.parametrize(
    ("dead", "batch_node"), [({"n1"}, ""), ({"n1", "n2"}, ""), ({"n2"}, "n2"), ({"n4"}, ""), (set[str](), "")]
)
def test_the_node_of_the_script_cannot_go_nor_one_that_is_not_the_jobs(dead: set[str], batch_node: str) -> None:
    assert can_give_back(JOB, frozenset(dead), batch_node) == ()


def test_only_a_running_job_gives_nodes_back_and_no_expedited_one() -> None:
    assert can_give_back(JOB, frozenset({"n2", "n3", "n9"}), "n1") == ("n2", "n3")
    assert can_give_back(replace(JOB, state=JobState.PENDING), frozenset({"n2"}), "") == ()
    assert can_give_back(replace(JOB, expedited=True), frozenset({"n2"}), "") == ()


@pytest.mark.parametrize(
    ("release", "expected"),
    [("22.05.8", True), ("23.02.1", True), ("23.02.2", False), ("23.11.0", False), ("26.05.1-0rc1", False), ("", True)],
)
def test_a_release_that_nobody_can_read_counts_as_one_that_loses_gpus(release: str, expected: bool) -> None:
    assert may_lose_gpus({"SLURM_VERSION": release, "GresTypes": "gpu"}) is expected
    assert not may_lose_gpus({"SLURM_VERSION": release, "GresTypes": "npu"})
