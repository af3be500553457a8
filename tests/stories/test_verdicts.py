"""Stories of a known verdict: what the judge makes of what is behind a failure. Source: ModelArts' fault recovery, AIMaster's error monitoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.history import fold
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Lead, RankEnd, Retriable, Suspect, Verdict
from tests.settings import settings_with
from tests.stories.replay import HOUR_S, Job, fault, requeueing
from tests.stories.test_requests import answer, ask

FAULT = Verdict(ErrorClass.UNKNOWN, Retriable.UNKNOWN, Confidence.NONE, "exit 1", "rank 0 exited with status 1")


def verdict(
    error_class: ErrorClass = ErrorClass.USER_CODE, retriable: Retriable = Retriable.NO,
    confidence: Confidence = Confidence.STRONG, signature: str = "py-import", **more: Any,
) -> Verdict:  # fmt: skip
    return Verdict(error_class, retriable, confidence, signature, f"{signature} was seen", **more)


def told(*verdicts: Verdict) -> Any:
    """A diagnosis that gives these one after the other, the last one for ever."""
    left = list(verdicts)

    def diagnose(ends: tuple[RankEnd, ...], faults: tuple[Fault, ...], bad: Mapping[str, str]) -> Verdict:
        return left.pop(0) if len(left) > 1 else left[0]

    return diagnose


PROGRAM = verdict(program=True)
ONE_RANK = verdict()


def requeues(job: Job, times: int, rank: int = 0) -> Job:
    """The same failure again and again, as long as it is requeued."""
    for _ in range(times):
        job.begin(watched=False)
        job.exits(rank, 1)
        if not job.did(do.Requeue):
            break
        job = job.again()
    return job


def test_an_error_of_the_program_on_every_rank_fails_at_once_with_the_reason() -> None:
    job = Job(diagnose=told(PROGRAM)).begin()
    job.all_exit(1)
    assert job.rungs == ["fail"] and job.status == 1
    assert "py-import" in job.said and "cannot help" in job.said
    assert job.recorded(rec.Diagnosed)[0].program


def test_an_error_of_one_rank_is_tried_once_more_before_it_counts_as_the_program_s() -> None:
    job = requeues(Job(diagnose=told(ONE_RANK)), 4)
    assert job.facts.schedule == 1 and job.rungs == ["fail"], "one confirming try, then the end"
    assert "2 times in a row" in job.said


def test_what_one_node_s_ranks_said_first_and_another_s_next_is_the_program_s() -> None:
    """Whoever comes first stops the others before they can say the same."""
    on = {
        node: verdict(
            retriable=Retriable.ONCE,
            suspects=(Suspect(node, ranks[0], Blame.SUSPECT, "only there"),),
            shown=dict.fromkeys(ranks, node),
        )
        for node, ranks in {"n1": (0, 1), "n2": (2, 3)}.items()
    }
    job = requeues(Job(diagnose=told(on["n1"], on["n2"], on["n1"])), 4)
    assert job.facts.schedule == 1 and job.rungs == ["fail"]
    job = requeues(Job(diagnose=told(on["n1"])), 1).begin(watched=False)
    job.exits(0, 1)
    assert job.excluded == ("n1",), "twice the same node: that node's setup"


def test_a_pattern_that_wants_two_confirmations_gets_them() -> None:
    job = requeues(Job(diagnose=told(verdict(confirm=2))), 9)
    assert job.facts.schedule == 2 and job.rungs == ["fail"]


def test_another_error_in_between_starts_the_count_anew() -> None:
    job = requeues(Job(diagnose=told(ONE_RANK, verdict(signature="py-key"), ONE_RANK, ONE_RANK)), 9)
    assert job.facts.schedule == 3


def test_nothing_known_is_left_to_the_unconditional_budget() -> None:
    job = requeues(Job(diagnose=told(FAULT)), 9)
    assert job.facts.schedule == 3 and "3 unconditional requeues in a row" in job.said


@pytest.mark.parametrize(
    ("policy", "found", "rung"),
    [
        ("ExitCodeAndErrorMsg", FAULT, "fail"),
        ("ExitCodeAndErrorMsg", ONE_RANK, "fail"),
        ("ExitCodeAndErrorMsg", verdict(ErrorClass.NETWORK, Retriable.YES, signature="conn-reset"), "unconditional-requeue"),
        ("ExitCodeAndErrorMsg", verdict(retriable=Retriable.ONCE, signature="SIGSEGV"), "unconditional-requeue"),
        ("OnFailure", PROGRAM, "unconditional-requeue"),
        ("OnFailure", FAULT, "unconditional-requeue"),
        ("Never", verdict(ErrorClass.NETWORK, Retriable.YES, signature="conn-reset"), "fail"),
        ("Evidence", verdict(retriable=Retriable.NO, confidence=Confidence.WEAK, program=True), "unconditional-requeue"),
    ],
)  # fmt: skip
def test_the_policy_says_what_is_worth_another_try(policy: str, found: Verdict, rung: str) -> None:
    job = Job(requeueing(retry__policy=policy), diagnose=told(found)).begin()
    job.exits(0, 1)
    assert job.rungs == [rung]


def test_a_status_worth_one_more_try_gets_one() -> None:
    once = verdict(ErrorClass.UNKNOWN, Retriable.ONCE, Confidence.WEAK, "SIGSEGV")
    job = requeues(Job(requeueing(retry__policy="ExitCodeAndErrorMsg"), diagnose=told(once)), 9)
    assert job.facts.schedule == 1


def test_the_same_error_of_one_rank_too_often_ends_the_job() -> None:
    again = verdict(ErrorClass.NETWORK, Retriable.YES, Confidence.WEAK, "conn-reset")
    settings = requeueing(retry__same_error=2, unconditional_requeue__in_a_row=100, max_restarts=100)
    job = requeues(Job(settings, diagnose=told(again)), 9)
    assert job.facts.schedule == 2 and "3 times on rank 0" in job.said, "two are allowed, the third is not"


def test_too_large_a_share_of_failed_ranks_ends_the_job() -> None:
    again = verdict(ErrorClass.NETWORK, Retriable.YES, Confidence.WEAK, "conn-reset")
    settings = requeueing(retry__failure_rate=0.3, unconditional_requeue__in_a_row=100)
    job = Job(settings, diagnose=told(again)).begin()
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"], "1 of 4"
    job = job.again().begin()
    job.exits(1, 1)
    assert job.rungs == ["fail"] and "2 of 4 ranks have failed" in job.said


# --- nodes


def suspect(blame: Blame = Blame.SUSPECT, node: str = "n2", **more: Any) -> Verdict:
    return verdict(
        ErrorClass.HARDWARE, Retriable.YES, signature="cuda-x",
        suspects=(Suspect(node, 2, blame, f"rank 2 on {node}: broken"),), **more,
    )  # fmt: skip


def test_a_line_that_convicts_its_node_takes_it_out() -> None:
    job = Job(diagnose=told(suspect(Blame.YES))).begin()
    job.exits(2, 1)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert job.recorded(rec.Decided)[0].cause == "hardware"
    assert not job.did(do.TellOthers), "words of this job are nothing to others"


def test_a_suspicion_takes_the_node_out_only_when_it_comes_back_there() -> None:
    job = Job(diagnose=told(suspect())).begin()
    job.exits(2, 1)
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ()
    job = job.again().begin()
    job.exits(2, 1)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert "2 times in 24 h" in job.recorded(rec.Decided)[0].isolate["n2"]


def test_suspicions_of_two_nodes_do_not_add_up_and_old_ones_do_not_count() -> None:
    job = Job(diagnose=told(suspect(node="n1"), suspect(node="n2"))).begin()
    job.exits(0, 1)
    job = job.again().begin()
    job.exits(2, 1)
    assert job.excluded == ()
    job = job.again(gap_s=25 * HOUR_S).begin()
    job.exits(2, 1)
    assert job.excluded == ()


def test_a_device_error_that_heals_is_answered_in_place_and_costs_nothing() -> None:
    job = Job(diagnose=told(suspect(heals=True))).begin()
    job.exits(2, 1)
    assert job.rungs == ["in-place-restart"] and job.recorded(rec.Decided)[0].cost == ""
    job.exits(2, 1)
    assert job.rungs == ["in-place-restart"] * 2
    job.exits(2, 1)
    assert job.rungs[-1] == "isolated-requeue" and job.excluded == ("n2",), "the third time on the same node"


@pytest.mark.parametrize("error_class", [ErrorClass.USER_CODE, ErrorClass.OOM, ErrorClass.STORAGE, ErrorClass.DATA])
def test_a_suspect_of_earlier_jobs_is_not_blamed_for_what_is_not_a_node_s(error_class: ErrorClass) -> None:
    job = Job(
        diagnose=told(verdict(error_class, Retriable.YES)), remembered={"n2": "excluded after a fault by jobs 3, 4"}
    ).begin()
    job.exits(2, 1)
    assert "n2" not in job.recorded(rec.Decided)[0].isolate or job.rungs == ["unconditional-requeue"]
    assert job.recorded(rec.Decided)[0].cause == "crash"


def test_an_unexplained_failure_on_a_node_that_two_jobs_left_is_not_held_against_it() -> None:
    job = Job(diagnose=told(FAULT), remembered={"n2": "excluded after a fault by jobs 3, 4"}).begin()
    assert "n2 is suspect" in job.said
    job.exits(2, 1)
    assert job.rungs == ["unconditional-requeue"] and not job.did(do.TellOthers)
    assert job.recorded(rec.Decided)[0].cause == "crash"


def test_a_remembered_node_is_avoided_at_any_requeue_if_it_can_be_spared() -> None:
    job = Job(diagnose=told(FAULT), remembered={"n5": "excluded after a fault by jobs 3, 4"}).begin()
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ("n5",)
    assert not job.did(do.TellOthers), "this job has seen nothing there"


def test_the_same_code_on_two_chips_within_half_a_minute_is_not_the_hardware_s() -> None:
    job = Job().begin()
    for _ in range(3):
        job.shows(fault("n1"), fault("n2"))
        job.wait(HOUR_S)
    assert job.rungs == ["in-place-restart", "in-place-restart", "unconditional-requeue"] and job.excluded == ()


def test_a_code_that_takes_nodes_out_is_the_hardware_s_also_on_all_chips_of_one_node() -> None:
    broken = [fault("n2", "80E18402", device, FaultClass.ISOLATE) for device in ("0.0", "1.0")]
    job = Job().begin()
    job.shows(*broken)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_a_critical_code_is_the_hardware_s_also_on_a_second_node() -> None:
    """Isolated and called the program's own at one time would be a contradiction."""
    job = Job().begin()
    job.shows(*(fault(node, "80E18402", "0.0", FaultClass.ISOLATE) for node in ("n1", "n2")))
    decided = job.recorded(rec.Decided)[0]
    assert (decided.cause, set(decided.isolate)) == ("device", {"n1", "n2"})


# --- async jobs

ASYNC = requeueing(mode="async")
RETRY = verdict(ErrorClass.NETWORK, Retriable.YES, Confidence.WEAK, "conn-reset")


def test_only_the_failed_rank_of_an_async_job_is_started_again() -> None:
    job = Job(ASYNC, diagnose=told(RETRY)).begin()
    job.exits(2, 1)
    assert job.rungs == ["rank-restart"] and job.status is None
    (stop,) = job.did(do.StopRanks)
    assert stop.ranks == (2,)
    start = job.did(do.StartRanks)[-1]
    assert list(start.env) == [2] and start.attempt == 2
    assert start.env[2]["MA_PROC_START_CNT"] == "2" and start.env[2]["MA_SCHEDULE_CNT"] == "1"
    job.exits(2, 1)
    job.wait(1.0)
    assert job.did(do.StartRanks)[-1].env[2]["MA_PROC_START_CNT"] == "3"
    job.all_exit()
    assert job.status == 0


def test_an_async_job_ends_well_only_when_the_last_rank_has() -> None:
    job = Job(ASYNC, diagnose=told(RETRY)).begin()
    job.silent.add(do.StopRanks)
    job.exits(2, 1)
    for rank in (0, 1, 3):
        job.exits(rank)
    assert job.status is None
    job.silent.clear()
    job.tell(ev.RankStopped(2, 1))
    assert job.status is None
    job.exits(2)
    assert job.status == 0


def test_a_rank_that_fails_again_and_again_is_started_later_each_time_and_not_for_ever() -> None:
    job = Job(settings_with(ASYNC, rank_restart__in_a_row=4, unconditional_requeue__enabled=False), diagnose=told(RETRY)).begin()
    for wait_s in (0.0, 1.0, 2.0, 4.0):
        job.exits(2, 1)
        started = len(job.did(do.StartRanks))
        job.wait(max(wait_s - 0.1, 0.0))
        assert len(job.did(do.StartRanks)) == started, "not before its time"
        job.wait(0.2)
    job.exits(2, 1)
    assert job.rungs == ["rank-restart"] * 4 + ["fail"] and job.status == 1
    assert "4 restarts of rank 2 alone in a row have not helped" in job.said


def test_a_rank_that_lived_long_is_started_at_once() -> None:
    job = Job(settings_with(ASYNC, rank_restart__in_a_row=1), diagnose=told(RETRY)).begin()
    for _ in range(3):
        job.exits(2, 1)
        assert list(job.did(do.StartRanks)[-1].env) == [2]
        job.wait(700.0)
    assert job.rungs == ["rank-restart"] * 3


def test_the_end_of_the_others_waits_for_a_rank_that_is_to_start_again() -> None:
    job = Job(ASYNC, diagnose=told(RETRY)).begin()
    job.exits(2, 1)
    job.exits(2, 1)
    for rank in (0, 1, 3):
        job.exits(rank)
    assert job.status is None
    job.wait(1.0)
    job.exits(2)
    assert job.status == 0


# --- ft_launcher's min-healthy

MIN_HEALTHY = requeueing(
    mode="min-healthy", nodes__min_healthy=1, in_place_restart__crash_restarts=1, unconditional_requeue__enabled=False
)


def test_under_min_healthy_a_failure_ends_its_node_and_the_others_go_on() -> None:
    job = Job(MIN_HEALTHY, diagnose=told(RETRY)).begin()
    job.exits(2, 1)
    (stop,) = job.did(do.StopRanks)
    assert stop.ranks == (3,) and len(job.did(do.StartRanks)) == 1 and not job.rungs
    assert "the job continues on 1 of 2 nodes (nodes.min_healthy 1)" in job.said
    job.exits(0)
    job.exits(1)
    assert job.status == 0


def test_below_the_minimum_of_healthy_nodes_all_start_again_as_often_as_allowed() -> None:
    job = Job(MIN_HEALTHY, diagnose=told(RETRY)).begin()
    job.exits(2, 1)
    job.exits(0, 1)
    assert job.rungs == ["in-place-restart"] and len(job.did(do.StartRanks)[-1].env) == 4
    job.exits(3, 1)
    job.exits(1, 5)
    assert job.rungs == ["in-place-restart", "fail"] and job.status == 5


def test_a_missed_beat_counts_as_a_failure_under_min_healthy() -> None:
    job = Job(settings_with(MIN_HEALTHY, hang_restart__enabled=True), diagnose=told(RETRY)).begin()
    job.tell(ev.BeatOverdue(1, "no heartbeat for 3.0 s", 1))
    assert job.did(do.StopRanks)[-1].ranks == (0, 1) and not job.rungs
    job.tell(ev.BeatOverdue(3, "no heartbeat for 3.0 s", 1))
    assert job.rungs == ["hang-restart"]


def test_an_error_not_worth_another_try_ends_an_async_job_with_its_status() -> None:
    settings = requeueing(mode="async", retry__policy="ExitCodeAndErrorMsg", unconditional_requeue__enabled=False)
    job = Job(settings, diagnose=told(FAULT)).begin()
    job.exits(1, 7)
    assert job.rungs == ["fail"] and job.status == 7


def test_limits_hold_per_instance_in_an_async_job() -> None:
    settings = requeueing(mode="async", retry__same_error=1, unconditional_requeue__enabled=False)
    job = Job(settings, diagnose=told(RETRY)).begin()
    job.exits(1, 1)
    job.exits(2, 1)
    assert job.rungs == ["rank-restart"] * 2, "one each"
    job.exits(2, 1)
    assert job.rungs[-1] == "fail"


def test_a_rank_that_does_not_go_ends_the_attempt_of_all() -> None:
    job = Job(ASYNC, diagnose=told(RETRY)).begin()
    job.stuck[2] = (77,)
    job.exits(2, 1)
    assert job.rungs == ["isolated-requeue"]


def test_a_warning_while_a_rank_is_mended_starts_nothing_any_more() -> None:
    job = Job(ASYNC, diagnose=told(RETRY)).begin()
    job.silent.add(do.StopRanks)
    job.exits(2, 1)
    job.tell(ev.SignalSeen(15))
    job.silent.clear()
    job.tell(ev.RankStopped(2, 1))
    assert len(job.did(do.StartRanks)) == 1


# --- drills


def drill(job: Job, fault: str, **about: Any) -> rec.Requested:
    return ask(job, ctl.DRILL, drill=rec.Drill(fault, **about))


def test_a_crash_in_a_drill_is_a_real_one_and_says_that_it_is_a_drill() -> None:
    job = Job(diagnose=told(FAULT)).begin()
    drill(job, "rank-crash", rank=1, status=3)
    (order,) = job.did(do.DrillRanks)
    assert (order.ranks, order.what, order.status) == ((1,), "crash", 3)
    assert answer(job, 1) == (True, "exits with status 3") and job.recorded(rec.Drilled)[0].target == "rank 1"
    job.exits(1, 3)
    assert job.rungs == ["unconditional-requeue"] and "drill" in job.recorded(rec.Decided)[0].why
    assert job.recorded(rec.Diagnosed)[0].drill


def test_the_mark_of_a_drill_stands_on_its_own_failure_alone() -> None:
    job = Job(diagnose=told(PROGRAM)).begin()
    drill(job, "hang", rank=1)
    drill(job, "device-fault", node="n2", device="0", code="XID 63", kind="nvidia")
    job.exits(3, 1)
    assert not job.recorded(rec.TroubleSeen)[0].drill and not job.recorded(rec.Diagnosed)[0].drill
    job = Job(diagnose=told(PROGRAM)).begin()
    drill(job, "hang", rank=1)
    drill(job, "end", rank=1)
    job.exits(1, 1)
    assert not job.recorded(rec.TroubleSeen)[0].drill


def test_a_node_lost_in_a_drill_is_taken_out_and_not_held_against_it_later() -> None:
    job = Job(diagnose=told(FAULT)).begin()
    drill(job, "lost-node", node="n2")
    assert job.did(do.DrillRanks)[0].ranks == (2, 3) and answer(job, 1) == (True, "its tasks are lost without a message")
    job.tell(ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert not job.did(do.TellOthers)


def test_a_drilled_device_fault_reaches_an_agent_that_is_still_coming_up() -> None:
    job = Job().begin(watched=False)
    drill(job, "device-fault", node="n2", device="0.0", code="80E01801", kind="ascend")
    assert [order.node for order in job.did(do.DrillDevice)] == ["n2"]
    assert job.recorded(rec.Drilled)


@pytest.mark.parametrize("about", [("rank-crash", 9), ("lost-node", -1, "n9"), ("nonsense", 1)])
def test_a_drill_on_nobody_is_refused_in_words(about: tuple[Any, ...]) -> None:
    job = Job().begin()
    ask(job, ctl.DRILL, drill=rec.Drill(*about))
    ok, text = answer(job, 1)
    assert not ok and text and not job.did(do.DrillRanks)


def test_no_drill_while_nothing_runs() -> None:
    job = Job().begin()
    job.silent.add(do.StopRanks)
    job.exits(0, 1)
    drill(job, "hang", rank=1)
    assert answer(job, 1)[0] is False


def test_of_several_ftruns_of_a_job_the_last_one_answers_a_drill() -> None:
    job = Job().begin()
    job.ledger.append(replace(job.recorded(rec.RunBegan)[0], run="beside", step_key="another"))
    job.judge.read(fold(job.ledger))
    asked = drill(job, "hang", rank=1)
    assert not job.did(do.DrillRanks) and not any(isinstance(record, rec.RequestAnswered) for record in job.ledger)
    job.ledger.append(rec.Finished(job.now.unix, "beside", 0, "it has ended"))
    job.judge.read(fold(job.ledger))
    job.tell(ev.ControlAsked(asked))
    assert answer(job, 1)[0] and job.did(do.DrillRanks)


def test_words_of_a_rank_that_fell_before_the_stop_count_and_those_after_it_do_not() -> None:
    seen: list[tuple[RankEnd, ...]] = []

    def diagnose(ends: tuple[RankEnd, ...], faults: tuple[Fault, ...], bad: Mapping[str, str]) -> Verdict:
        seen.append(ends)
        return FAULT

    job = Job(diagnose=diagnose).begin()
    job.silent.add(do.StopRanks)
    job.exits(1, 1)
    job.tell(ev.RankExited(2, 1, ExitStatus(0, 15), job.now.unix, stopped=True), job.exit_of(3, 1))
    job.tell(*(ev.RankStopped(rank, 1) for rank in range(4)))
    (ends,) = seen
    assert [end.stopped for end in ends] == [True, False, True, False]


def taken(port: int) -> Verdict:
    return verdict(
        ErrorClass.UNKNOWN, Retriable.YES, signature="address-in-use", evidence=(f"rank 0 on n1: failed to bind to [::]:{port}",),
    )  # fmt: skip


def ports(job: Job) -> list[str]:
    return [start.env[0]["MASTER_PORT"] for start in job.did(do.StartRanks)]


@pytest.mark.parametrize(
    ("times", "rungs"), [(5, ["in-place-restart"] * 5), (6, ["in-place-restart"] * 5 + ["unconditional-requeue"])]
)
def test_a_port_of_our_own_choice_that_somebody_else_has_costs_nothing_and_another_is_tried(times: int, rungs: list[str]) -> None:
    """Not for ever: what takes each of them is something else."""
    jobs: list[Job] = []

    def diagnose(ends: tuple[RankEnd, ...], faults: tuple[Fault, ...], bad: Mapping[str, str]) -> Verdict:
        return taken(int(ports(jobs[0])[-1]))

    job = Job(requeueing(rendezvous="torch"), diagnose=diagnose)
    jobs.append(job)
    job.begin()
    for _ in range(times):
        job.exits(0, 1)
    assert job.rungs == rungs and {d.cost for d in job.recorded(rec.Decided)[:5]} == {""}
    assert len(set(ports(job))) == len(ports(job)) == 6


@pytest.mark.parametrize(
    ("seen", "more"),
    [(30000, {}), (20000, {"user_env": ("MASTER_PORT",)}), (120000, {}), (20000, {"policy": requeueing()})],
)
def test_a_port_that_is_not_ours_is_a_failure_as_any_other(seen: int, more: dict[str, Any]) -> None:
    policy = more.pop("policy", requeueing(rendezvous="torch"))
    job = Job(policy, diagnose=told(taken(seen)), **more).begin()
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"]


# --- a weak `no`: the program's own fault, as far as its own words tell


def weak(words: str = "fatal: no such scheme: foo", rank: int = 0, node: str = "n1", **more: Any) -> Verdict:
    return verdict(confidence=Confidence.WEAK, signature="exit 1", lead=Lead(rank, node, words), **more)


def test_the_same_words_of_another_node_are_the_program_s() -> None:
    job = requeues(Job(diagnose=told(weak(node="n1"), weak(node="n2"))), 9)
    assert job.facts.schedule == 1 and job.rungs == ["fail"], "one more try, then the end"
    assert "cannot help: exit 1 with the same words on other ranks or nodes, 2 times in a row" in job.said


def test_so_are_those_of_another_rank_and_those_of_every_rank() -> None:
    assert requeues(Job(diagnose=told(weak(rank=0), weak(rank=1))), 9).facts.schedule == 1
    everywhere = requeues(Job(diagnose=told(weak(program=True))), 9)
    assert everywhere.facts.schedule == 1 and "on most ranks" in everywhere.said


def test_on_one_rank_of_one_node_they_are_asked_for_once_more() -> None:
    job = requeues(Job(diagnose=told(weak())), 9)
    assert job.facts.schedule == 2 and "with the same words, 3 times in a row" in job.said


def test_numbers_in_the_words_make_no_difference() -> None:
    found = weak("worker 4711: cannot open shard 12", node="n1"), weak("worker 815: cannot open shard 9", node="n2")
    assert requeues(Job(diagnose=told(*found)), 9).facts.schedule == 1


def test_other_words_or_none_are_left_to_the_unconditional_budget() -> None:
    each = [weak(f"fatal: {word}", node=node) for word, node in zip(("a", "b", "c", "d"), ("n1", "n2", "n1", "n2"), strict=True)]
    assert requeues(Job(diagnose=told(*each)), 9).facts.schedule == 3
    assert requeues(Job(diagnose=told(weak("", node="n1"), weak("", node="n2"))), 9).facts.schedule == 3


def test_words_after_progress_begin_anew() -> None:
    job = Job(diagnose=told(weak(node="n1"), weak(node="n2"))).begin(watched=False)
    job.wait(20)
    job.exits(0, 1)
    job = job.again().begin(watched=False)
    job.wait(200)
    job.exits(0, 1)
    assert job.did(do.Requeue), "it has lived ten times as long"


def test_what_is_worth_another_try_is_not_ended_by_its_words() -> None:
    again = weak(node="n1"), weak(node="n2"), weak(node="n1"), weak(node="n2")
    worth = [replace(each, retriable=Retriable.YES) for each in again]
    assert requeues(Job(diagnose=told(*worth)), 9).facts.schedule == 3
