"""The recipe that gives a job back, from wherever the job stands. Source: SLURM-FACTS, "Requeue with excluded nodes"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from ftslurm.errors import SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.model.history import fold
from ftslurm.model.record import Decided, RunBegan
from ftslurm.slurm.client import JobState
from ftslurm.wrapper.requeue import RUNS_AGAIN, Plan, give_back, plan_for
from tests.fakes.slurm import FakeSlurm

NOBODY: frozenset[str] = frozenset()


@dataclass
class Time:
    """A clock that stands until it is moved."""

    now: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Cluster:
    """Six nodes that take 2 s to clean up."""

    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        self.slurm = FakeSlurm([f"n{n}" for n in range(1, 7)], self.time, clean_up_s=2.0)

    def give_back(self, job: int, exclude: Iterable[str] = (), ours: Iterable[str] = (), allow_first: bool = False) -> str:
        return give_back(self.slurm, job, Plan(frozenset(exclude), frozenset(ours), 4.0, allow_first), lambda: self.time.now)

    def runs_within(self, job: int, seconds: float) -> float:
        """Seconds until the job runs again."""
        began = self.time.now
        while self.slurm.job(job).state is not JobState.RUNNING:
            self.time.now += 0.5
            assert self.time.now - began <= seconds, f"{self.slurm.job(job)} after {seconds} s"
        return self.time.now - began

    def changes(self) -> list[str]:
        return [str(request[0]) for request in self.slurm.requests if request[0] not in ("job", "nodes", "config")]


def test_a_running_job_comes_back_on_other_nodes_within_seconds() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    assert cluster.slurm.job(job).nodes == ("n1", "n2")
    said = cluster.give_back(job, ["n2"])
    assert cluster.changes() == ["requeue_held", "exclude", "start_at", "release"]
    assert "n2" in said
    assert cluster.runs_within(job, 10) <= 5
    view = cluster.slurm.job(job)
    assert (view.nodes, view.excluded, view.restarts, view.held) == (("n1", "n3"), {"n2"}, 1, False)


@pytest.mark.parametrize("completing", [True, False])
def test_an_expedited_job_needs_no_start_time_and_runs_as_soon_as_its_nodes_are_clean(completing: bool) -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, expedited=True)
    if not completing:  # left held by a former try
        cluster.slurm.requeue_held(job)
        cluster.time.now += 60
    cluster.slurm.requests.clear()
    cluster.give_back(job, ["n2"])
    assert cluster.changes() == [*(["requeue_held"] if completing else []), "exclude", "release"]
    assert cluster.runs_within(job, 3) <= 2.5
    view = cluster.slurm.job(job)
    assert (view.nodes, view.excluded, view.restarts, view.held) == (("n1", "n3"), {"n2"}, 1, False)


def test_the_job_is_held_before_anything_else_so_that_nobody_schedules_it_meanwhile() -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s = 0.0
    job = cluster.slurm.submit(2)
    cluster.give_back(job, ["n2"])
    assert cluster.changes()[0] == "requeue_held" and cluster.changes()[-1] == "release"


def test_a_requeue_that_isolates_nothing_leaves_the_user_s_own_exclusions() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.give_back(job)
    cluster.runs_within(job, 10)
    cluster.slurm.requeue_held(job)
    cluster.slurm.exclude(job, ["n5"])
    cluster.slurm.release(job)
    cluster.runs_within(job, 200)
    cluster.give_back(job, ["n1"])
    assert cluster.slurm.job(job).excluded == {"n1", "n5"}


def test_a_node_that_was_asked_for_by_name_is_taken_off_that_list() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, hold=True)
    cluster.slurm.require(job, ["n1", "n3"])
    cluster.slurm.release(job)
    assert cluster.slurm.job(job).nodes == ("n1", "n3")
    said = cluster.give_back(job, ["n1"])
    assert "n1 taken off its --nodelist" in said
    cluster.runs_within(job, 10)
    view = cluster.slurm.job(job)
    assert (view.nodes, view.required) == (("n2", "n3"), {"n3"})


def test_nodes_that_were_ours_and_may_come_back_come_back() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.give_back(job, ["n1", "n2"])
    cluster.runs_within(job, 10)
    cluster.give_back(job, ["n2", "n3"], ours=["n1", "n2"])
    assert cluster.slurm.job(job).excluded == {"n2", "n3"}


@pytest.mark.parametrize("completing", [True, False])
def test_a_job_that_a_former_try_left_held_is_let_go(completing: bool) -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.slurm.requeue_held(job)
    if not completing:
        cluster.time.now += 60
        assert not cluster.slurm.job(job).completing
    cluster.slurm.requests.clear()
    cluster.give_back(job, ["n2"])
    assert "requeue_held" not in cluster.changes(), "it is held already; once more would count as another restart"
    assert cluster.runs_within(job, 10) <= 5
    assert cluster.slurm.job(job).excluded == {"n2"} and cluster.slurm.job(job).restarts == 1


def test_a_job_that_already_waits_unheld_is_kept_off_the_bad_node_too() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(6)
    other = cluster.slurm.submit(6)
    assert cluster.slurm.job(other).state is JobState.PENDING
    cluster.give_back(other, ["n2"])
    assert cluster.slurm.job(other).excluded == {"n2"} and not cluster.slurm.job(other).held
    assert "release" not in cluster.changes() and "requeue_held" not in cluster.changes()
    assert cluster.slurm.job(job).state is JobState.RUNNING


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED, JobState.FAILED, JobState.TIMEOUT, JobState.NODE_FAIL])
@pytest.mark.parametrize("later_s", [0.0, 60.0])
def test_a_job_that_is_over_is_not_brought_back(state: JobState, later_s: float) -> None:
    """scancel ends everything: also a requeue that was on its way, while the nodes still clean up."""
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.slurm.end(job, state)
    cluster.time.now += later_s
    assert cluster.slurm.job(job).completing == (later_s == 0.0)
    with pytest.raises(SlurmRefused, match=f"job {job} is over"):
        cluster.give_back(job, ["n2"])
    assert cluster.changes() == []


def test_a_job_that_may_not_be_requeued_is_left_running() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, requeue=False)
    with pytest.raises(SlurmRefused):
        cluster.give_back(job, ["n2"])
    assert cluster.slurm.job(job).state is JobState.RUNNING


def test_unless_that_was_asked_for() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, requeue=False)
    cluster.give_back(job, ["n2"], allow_first=True)
    assert cluster.changes()[:2] == ["allow_requeue", "requeue_held"]
    cluster.runs_within(job, 10)


def test_a_job_that_may_be_requeued_is_not_changed_for_it() -> None:
    cluster = Cluster()
    cluster.give_back(cluster.slurm.submit(2), ["n2"], allow_first=True)
    assert "allow_requeue" not in cluster.changes()


def test_a_job_without_a_script_is_refused_in_slurm_s_words() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, batch=False)
    with pytest.raises(SlurmRefused, match="batch"):
        cluster.give_back(job)
    assert cluster.slurm.job(job).state is JobState.RUNNING


def test_an_unknown_job_and_a_silent_slurm_are_told_apart() -> None:
    cluster = Cluster()
    with pytest.raises(UnknownJob):
        cluster.give_back(99)
    job = cluster.slurm.submit(2)
    cluster.slurm.away = True
    with pytest.raises(SlurmUnavailable):
        cluster.give_back(job)


class Moody(FakeSlurm):
    """Does not do one of its requests, once."""

    def __init__(self, refuses: str, error: Exception) -> None:
        super().__init__([f"n{n}" for n in range(1, 7)], Time(), clean_up_s=2.0)
        self.refuses, self.error = refuses, error

    def _arrive(self, *request: object) -> None:
        super()._arrive(*request)
        if request[0] == self.refuses and self.requests.count(request) == 1:
            self.refuses = ""
            raise self.error


@pytest.mark.parametrize("request_", ["exclude", "release"])
@pytest.mark.parametrize("error", [SlurmUnavailable("silent"), SlurmRefused("no")])
def test_a_job_left_half_way_is_held_and_the_next_try_finishes_it(request_: str, error: Exception) -> None:
    slurm = Moody(request_, error)
    job = slurm.submit(2)
    plan = Plan(frozenset({"n2"}), NOBODY, 4.0)
    with pytest.raises(type(error)):
        give_back(slurm, job, plan, slurm.clock)
    assert slurm.job(job).held, "not on a bad node, and not lost"
    give_back(slurm, job, plan, slurm.clock)
    assert not slurm.job(job).held and slurm.job(job).excluded == {"n2"} and slurm.job(job).restarts == 1


def test_a_start_time_that_slurm_refuses_costs_time_and_not_the_job() -> None:
    slurm = Moody("start_at", SlurmRefused("Requested start time is invalid"))
    job = slurm.submit(2)
    said = give_back(slurm, job, Plan(frozenset({"n2"}), NOBODY, 4.0), slurm.clock)
    assert "start time is invalid" in said and not slurm.job(job).held


def test_the_plan_comes_from_the_ledger() -> None:
    past = fold([Decided(1.0, "d1", 1, "isolated-requeue", "node", "because", isolate={"n1": "down", "n2": "hot"})])
    plan = plan_for(past, ("n2",), 4.0, True)
    assert plan == Plan(frozenset({"n2"}), frozenset({"n1", "n2"}), 4.0, True)
    began = RunBegan(1.0, "r1", "7", "c", 3, "k", "train", "n[1-2]")
    assert plan_for(fold([began]), ("n2",), 4.0, False).schedule == 3


def in_scheduling(schedule: int | None) -> Plan:
    return Plan(frozenset({"n2"}), NOBODY, 4.0, schedule=schedule)


def test_a_job_that_was_requeued_and_runs_again_is_left_alone() -> None:
    """Whoever had decided it was killed, or stood still, before it could write that it was done."""
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    assert "without n2" in give_back(cluster.slurm, job, in_scheduling(0), cluster.time)
    cluster.runs_within(job, 10)
    cluster.slurm.requests.clear()
    assert give_back(cluster.slurm, job, in_scheduling(0), cluster.time) == RUNS_AGAIN
    assert cluster.changes() == [] and cluster.slurm.job(job).state is JobState.RUNNING


@pytest.mark.parametrize("schedule", [1, None])
def test_one_that_runs_as_it_did_when_it_was_decided_is_requeued(schedule: int | None) -> None:
    """Also where nobody knows when that was."""
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.give_back(job)
    cluster.runs_within(job, 10)
    assert "without n2" in give_back(cluster.slurm, job, in_scheduling(schedule), cluster.time)
    assert cluster.slurm.job(job).restarts == 2
