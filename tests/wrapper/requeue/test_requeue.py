"""The recipe that gives a job back, from wherever the job stands. Source: docs/slurm-facts.md, "Changes to a requeued job"."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from ftslurm.errors import SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import fold
from ftslurm.model.record import CarriedOut, Decided, Reinstated, RunBegan
from ftslurm.slurm.client import JobState, JobView
from ftslurm.wrapper.requeue.requeue import RUNS_AGAIN, Plan, follow_recipe, plan_for, slurms_clock, start_when_clean
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

    def follow_recipe(self, job: int, exclude: Iterable[str] = (), ours: Iterable[str] = (), allow_first: bool = False) -> str:
        plan = Plan(frozenset(exclude), frozenset(ours), Start(4.0), allow_first)
        return follow_recipe(self.slurm, job, plan, lambda: self.time.now).what

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
    said = cluster.follow_recipe(job, ["n2"])
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
    cluster.follow_recipe(job, ["n2"])
    assert cluster.changes() == [*(["requeue_held"] if completing else []), "exclude", "release"]
    assert cluster.runs_within(job, 3) <= 2.5
    view = cluster.slurm.job(job)
    assert (view.nodes, view.excluded, view.restarts, view.held) == (("n1", "n3"), {"n2"}, 1, False)


def test_the_job_is_held_before_anything_else_so_that_nobody_schedules_it_meanwhile() -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s = 0.0
    job = cluster.slurm.submit(2)
    cluster.follow_recipe(job, ["n2"])
    assert cluster.changes()[0] == "requeue_held" and cluster.changes()[-1] == "release"


def test_a_step_of_the_job_does_not_hold_it_so_that_an_operators_priority_stays() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    plan = Plan(frozenset({"n2"}), frozenset(), Start(4.0), here="n1", in_step=True)
    follow_recipe(cluster.slurm, job, plan, lambda: cluster.time.now)
    assert cluster.changes() == ["requeue", "exclude", "start_at"]
    assert cluster.runs_within(job, 10) <= 5
    assert cluster.slurm.job(job).nodes == ("n1", "n3")


def test_it_is_held_where_slurm_refuses_to_exclude_the_node() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    with pytest.raises(SlurmRefused):
        follow_recipe(
            cluster.slurm, job, Plan(frozenset({"n77"}), frozenset(), Start(4.0), in_step=True), lambda: cluster.time.now
        )
    assert cluster.slurm.job(job).held


def test_a_job_that_somebody_has_held_while_it_ran_waits_for_his_release() -> None:
    """Seen on a real cluster: ftrun's own release at the end of the requeue undid `scontrol hold`."""
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    ran = cluster.slurm._jobs[job]
    ran.view = replace(ran.view, to_be_held=True)
    assert "stays held" in cluster.follow_recipe(job, ["n2"])
    assert cluster.changes() == ["requeue_held", "exclude", "start_at"]
    view = cluster.slurm.job(job)
    assert (view.state, view.held, view.excluded) == (JobState.PENDING, True, {"n2"})


def test_a_requeue_that_isolates_nothing_leaves_the_user_s_own_exclusions() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.follow_recipe(job)
    cluster.runs_within(job, 10)
    cluster.slurm.requeue_held(job)
    cluster.slurm.exclude(job, ["n5"])
    cluster.slurm.release(job)
    cluster.runs_within(job, 200)
    cluster.follow_recipe(job, ["n1"])
    assert cluster.slurm.job(job).excluded == {"n1", "n5"}


def test_a_node_that_was_asked_for_by_name_is_taken_off_that_list() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, hold=True)
    cluster.slurm.require(job, ["n1", "n3"])
    cluster.slurm.release(job)
    assert cluster.slurm.job(job).nodes == ("n1", "n3")
    said = cluster.follow_recipe(job, ["n1"])
    assert "n1 taken off its --nodelist" in said
    cluster.runs_within(job, 10)
    view = cluster.slurm.job(job)
    assert (view.nodes, view.required) == (("n2", "n3"), {"n3"})


def test_nodes_that_were_ours_and_may_come_back_come_back() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.follow_recipe(job, ["n1", "n2"])
    cluster.runs_within(job, 10)
    cluster.follow_recipe(job, ["n2", "n3"], ours=["n1", "n2"])
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
    cluster.follow_recipe(job, ["n2"])
    assert "requeue_held" not in cluster.changes(), "it is held already; once more would count as another restart"
    assert cluster.runs_within(job, 10) <= 5
    assert cluster.slurm.job(job).excluded == {"n2"} and cluster.slurm.job(job).restarts == 1


def test_a_job_that_already_waits_unheld_is_kept_off_the_bad_node_too() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(6)
    other = cluster.slurm.submit(6)
    assert cluster.slurm.job(other).state is JobState.PENDING
    cluster.follow_recipe(other, ["n2"])
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
        cluster.follow_recipe(job, ["n2"])
    assert cluster.changes() == []


def test_a_job_that_may_not_be_requeued_is_left_running() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, requeue=False)
    with pytest.raises(SlurmRefused):
        cluster.follow_recipe(job, ["n2"])
    assert cluster.slurm.job(job).state is JobState.RUNNING


def test_unless_that_was_asked_for() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, requeue=False)
    cluster.follow_recipe(job, ["n2"], allow_first=True)
    assert cluster.changes()[:2] == ["allow_requeue", "requeue_held"]
    cluster.runs_within(job, 10)


def test_a_job_that_may_be_requeued_is_not_changed_for_it() -> None:
    cluster = Cluster()
    cluster.follow_recipe(cluster.slurm.submit(2), ["n2"], allow_first=True)
    assert "allow_requeue" not in cluster.changes()


def test_a_job_without_a_script_is_refused_in_slurm_s_words() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(2, batch=False)
    with pytest.raises(SlurmRefused, match="batch"):
        cluster.follow_recipe(job)
    assert cluster.slurm.job(job).state is JobState.RUNNING


def test_an_unknown_job_and_a_silent_slurm_are_told_apart() -> None:
    cluster = Cluster()
    with pytest.raises(UnknownJob):
        cluster.follow_recipe(99)
    job = cluster.slurm.submit(2)
    cluster.slurm.away = True
    with pytest.raises(SlurmUnavailable):
        cluster.follow_recipe(job)


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
    plan = Plan(frozenset({"n2"}), NOBODY, Start(4.0))
    with pytest.raises(type(error)):
        follow_recipe(slurm, job, plan, slurm.clock)
    assert slurm.job(job).held, "not on a bad node, and not lost"
    follow_recipe(slurm, job, plan, slurm.clock)
    assert not slurm.job(job).held and slurm.job(job).excluded == {"n2"} and slurm.job(job).restarts == 1


def test_a_start_time_that_slurm_refuses_costs_time_and_not_the_job() -> None:
    slurm = Moody("start_at", SlurmRefused("Requested start time is invalid"))
    job = slurm.submit(2)
    said = follow_recipe(slurm, job, Plan(frozenset({"n2"}), NOBODY, Start(4.0)), slurm.clock).what
    assert "start time is invalid" in said and not slurm.job(job).held


@pytest.mark.parametrize(("fits", "excluded"), [(False, {"n5"}), (None, {"n2", "n5"}), (True, {"n2", "n5"})])
def test_a_node_without_which_slurm_could_never_start_the_job_is_not_excluded(fits: bool | None, excluded: set[str]) -> None:
    cluster = Cluster()
    asked: list[tuple[JobState, frozenset[str], frozenset[str]]] = []

    def answer(job: JobView, without: frozenset[str]) -> bool | None:
        asked.append((job.state, job.excluded, without))
        return fits

    job = cluster.slurm.submit(2, hold=True)
    cluster.slurm.exclude(job, ["n5"])
    given = follow_recipe(cluster.slurm, job, Plan(frozenset({"n2"}), NOBODY, Start(4.0), fits=answer), cluster.time)
    assert asked == [(JobState.PENDING, {"n5"}, {"n2"})], "a job that waits shows all that it asks for"
    assert cluster.slurm.job(job).excluded == excluded and not cluster.slurm.job(job).held
    assert given.let_in == {"n2"} - excluded and ("n2 not excluded" in given.what) is (fits is False)


def test_what_the_job_keeps_after_all_it_may_run_on() -> None:
    left = Decided(1.0, "d1", 1, "isolated-requeue", "node", "because", isolate={"n1": "down"}, exclude=("n1",))
    past = fold([left])
    assert past.exclusions.let_in == frozenset()
    assert past.add(CarriedOut(2.0, "d1", True, "requeued", ("n1", "n9"))).exclusions.let_in == {"n1"}


def test_the_plan_comes_from_the_ledger() -> None:
    past = fold([Decided(1.0, "d1", 1, "isolated-requeue", "node", "because", isolate={"n1": "down", "n2": "hot"})])
    plan = plan_for(past, ("n2",), Start(4.0), True)
    assert (plan.exclude, plan.ours, plan.start, plan.schedule) == ({"n2"}, {"n1", "n2"}, Start(4.0), None)
    by_words = past.add(
        Decided(2.0, "d2", 2, "isolated-requeue", "hardware", "because", isolate={"n3": "x"}, words={"n3": "ecc"})
    )
    again = by_words.add(Reinstated(3.0, 3, "ecc", {"n3": "it is the program"}))
    assert plan_for(again, (), Start(4.0), True).ours == {"n1", "n2", "n3"}, "what is reinstated comes off Slurm's list"
    began = RunBegan(1.0, "r1", "7", "c", 3, "k", "train", "n[1-2]")
    assert plan_for(fold([began]), ("n2",), Start(4.0), False).schedule == 3


def in_scheduling(schedule: int | None) -> Plan:
    return Plan(frozenset({"n2"}), NOBODY, Start(4.0), schedule=schedule)


def test_a_job_that_was_requeued_and_runs_again_is_left_alone() -> None:
    """Whoever had decided it was killed, or stood still, before it could write that it was done."""
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    assert "without n2" in follow_recipe(cluster.slurm, job, in_scheduling(0), cluster.time).what
    cluster.runs_within(job, 10)
    cluster.slurm.requests.clear()
    assert follow_recipe(cluster.slurm, job, in_scheduling(0), cluster.time).what == RUNS_AGAIN
    assert cluster.changes() == [] and cluster.slurm.job(job).state is JobState.RUNNING


@pytest.mark.parametrize("schedule", [1, None])
def test_one_that_runs_as_it_did_when_it_was_decided_is_requeued(schedule: int | None) -> None:
    """Also where nobody knows when that was."""
    cluster = Cluster()
    job = cluster.slurm.submit(2)
    cluster.follow_recipe(job)
    cluster.runs_within(job, 10)
    assert "without n2" in follow_recipe(cluster.slurm, job, in_scheduling(schedule), cluster.time).what
    assert cluster.slurm.job(job).restarts == 2


# ---- where nothing is known of the clean-up ----


def watched(cluster: Cluster, job: int, watch_s: float = 9.0, epilog: bool = False, here: str = "n1") -> tuple[str, float]:
    """What was done, and for how long; the keeper's own node is not clean before the keeper has ended."""
    began = cluster.time.now

    def pause(seconds: float) -> None:
        cluster.time.now += seconds

    plan = Plan(NOBODY, NOBODY, Start(6.0, watch_s, epilog), here=here)
    said = follow_recipe(cluster.slurm, job, plan, cluster.time, pause=pause).what
    return said, cluster.time.now - began


@pytest.mark.parametrize(("others_s", "own_s"), [(0.3, 1.0), (2.7, 3.2), (6.2, 3.5)])
def test_the_others_are_watched_and_the_start_is_moved_behind_the_own_node(others_s: float, own_s: float) -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s, cluster.slurm.slow = others_s, {"n1": others_s + own_s}
    job = cluster.slurm.submit(3)
    said, took_s = watched(cluster, job)
    assert said == "requeued" and others_s <= took_s < others_s + 0.6
    assert cluster.changes() == ["requeue_held", "start_at", "release", "start_at"]
    assert cluster.runs_within(job, 6) <= 5.5


def test_slurmd_may_see_the_own_end_only_at_its_look_after_20_s() -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s, cluster.slurm.slow = 8.0, {"n1": 26.7}
    job = cluster.slurm.submit(2)
    watched(cluster, job, epilog=True)
    assert cluster.runs_within(job, 26) <= 25


def test_an_epilog_takes_as_long_on_the_own_node_as_on_the_others() -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s, cluster.slurm.slow = 5.0, {"n1": 10.5}
    job = cluster.slurm.submit(2)
    watched(cluster, job, epilog=True)
    assert cluster.runs_within(job, 12) <= 11.5


def test_a_clean_up_that_takes_long_is_watched_for_a_while_only() -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s = 16.0
    job = cluster.slurm.submit(2)
    _, took_s = watched(cluster, job)
    assert 9.0 <= took_s < 10.0
    assert cluster.runs_within(job, 20) <= 19.0, "twice as long as it was watched"


def test_where_there_is_no_other_node_nothing_can_be_watched() -> None:
    cluster = Cluster()
    job = cluster.slurm.submit(1)
    _, took_s = watched(cluster, job)
    assert took_s == 0.0 and cluster.changes() == ["requeue_held", "start_at", "release"]
    assert 5.0 <= cluster.runs_within(job, 10) <= 7.5


def test_whoever_dies_while_watching_leaves_a_start_below_slurm_s_own() -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s = 5.0
    job = cluster.slurm.submit(2)

    def killed(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow_recipe(cluster.slurm, job, Plan(NOBODY, NOBODY, Start(6.0, 9.0), here="n1"), cluster.time, pause=killed)
    assert not cluster.slurm.job(job).held
    assert 90 < cluster.runs_within(job, 110) <= 101


def test_somebody_on_none_of_the_nodes_needs_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.slurm.clean_up_s = 250.0

    def pause(seconds: float) -> None:
        cluster.time.now += seconds

    monkeypatch.setattr("time.sleep", pause)
    job = cluster.slurm.submit(2)
    follow_recipe(cluster.slurm, job, Plan(NOBODY, NOBODY, Start(6.0)), cluster.time)
    cluster.slurm.start_at(job, int(cluster.time.now) + 100)
    assert "clean" in start_when_clean(cluster.slurm, job, 600.0, cluster.time)
    assert cluster.runs_within(job, 5) <= 3.0
    assert start_when_clean(cluster.slurm, job, 600.0, cluster.time) == "", "one that runs is left alone"


@pytest.mark.parametrize("ahead_s", [-90.0, -1.0, 0.0, 1.0, 90.0])
def test_start_times_are_slurmctld_s_whatever_the_node_s_clock_says(ahead_s: float) -> None:
    clock = slurms_clock({"AS_OF": str(int(time.time() + ahead_s))})
    assert abs(clock() - time.time() - ahead_s) < 2.5
    assert (clock is time.time) == (abs(ahead_s) < 2)


def test_a_clock_that_slurm_does_not_show_is_taken_for_right() -> None:
    assert slurms_clock({}) is time.time is slurms_clock({"AS_OF": "soon"})
