"""Small traces whose right answer is plain, and what holds for every trace: time adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as quickly
from hypothesis import strategies as st

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.config.settings_files import SettingsAsked
from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.devices import FaultClass
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable
from ftslurm.simulation.clockwork import TimePart
from ftslurm.simulation.command import PlayAsked, play_trace
from ftslurm.simulation.measured import PolicyOutcome
from ftslurm.simulation.play import play
from ftslurm.simulation.trace import LEAST, FaultKind, JobPlan, Trace, TraceFault, parts, with_few_nodes
from tests.settings import settings_with

HOUR_S = 3600.0
PLAN = JobPlan(nodes=4, other_nodes=2, until_s=24 * HOUR_S)
BOOK = load_pattern_book().of_ranks()
HEALS, BROKEN = "heals", "broken"
SPARE = settings_with(node_replacement__enabled=True, node_replacement__budget=2, nodes__spares=1, nodes__donor=False)


def grade(fault: TraceFault, node: str) -> DeviceFault:
    graded = FaultClass.SELF_HEALING if fault.code == HEALS else FaultClass.ISOLATE
    return DeviceFault(node, fault.device, fault.code, fault.code, graded)


def played(*faults: TraceFault, settings: Settings | None = None, plan: JobPlan = PLAN) -> PolicyOutcome:
    found = play(Trace(plan, faults), settings or Settings(), grade, BOOK, "tested")
    assert sum(found.parts.values()) == pytest.approx(found.wall_s), "every second belongs to one part"
    assert sum(found.lost_to.values()) + found.useful_s == pytest.approx(found.wall_s)
    return found


def answers(outcome: PolicyOutcome) -> list[list[str]]:
    return [[rung for rung, _ in one.answers] for one in outcome.faults]


def test_a_job_without_faults_loses_its_first_start_alone() -> None:
    found = played()
    assert (found.ended, found.starts, found.requeues) == ("trains", 1, 0)
    assert found.useful_s == pytest.approx(24 * HOUR_S - PLAN.launch_s - PLAN.program_start_s, abs=1)


def test_a_device_that_heals_costs_a_restart_in_place_and_the_work_since_the_last_checkpoint() -> None:
    found = played(TraceFault(HOUR_S, FaultKind.DEVICE, node=2, code=HEALS))
    assert dict(found.rungs) == {"in-place-restart": 1} and found.budgets["max_restarts"] == (8, 8)
    work = HOUR_S - PLAN.launch_s - PLAN.program_start_s - PLAN.checkpoint_s  # one checkpoint had been made
    assert found.parts[TimePart.REDONE] == pytest.approx(work, abs=1)
    assert found.parts[TimePart.NOTICING] == pytest.approx(PLAN.device_look_s / 2, abs=0.5)
    assert found.parts[TimePart.HEALING] == pytest.approx(PLAN.heal_s, abs=0.5)


def test_a_device_that_does_not_heal_costs_a_requeue_without_its_node() -> None:
    found = played(TraceFault(HOUR_S, FaultKind.DEVICE, node=2, code=HEALS, heals=False))
    assert answers(found) == [["in-place-restart", "isolated-requeue"]] and found.excluded == ("n2",)


def test_a_dead_node_is_replaced_by_a_spare_and_without_one_the_job_is_requeued() -> None:
    death = TraceFault(HOUR_S, FaultKind.NODE_DEATH, node=3)
    without, spare = played(death), played(death, settings=SPARE)
    assert answers(without) == [["isolated-requeue"]] and without.budgets["max_restarts"] == (7, 8) and without.requeues == 1
    assert answers(spare) == [["node-replacement"]] and spare.budgets["max_restarts"] == (8, 8) and spare.requeues == 0
    assert spare.useful_s > without.useful_s and spare.node_goodput < spare.goodput, "the spare was paid for"
    st = Settings()
    assert without.parts[TimePart.NOTICING] == pytest.approx(st.nodes.silence_s + PLAN.node_known_s, abs=0.5), (
        "the judge's own limits"
    )
    assert without.parts[TimePart.REPLACING] == pytest.approx(st.lease.time_s + st.lease.margin_s - st.nodes.silence_s, abs=3), (
        "and its lease"
    )


def test_a_donor_lends_a_node_where_no_spare_is_kept() -> None:
    found = played(
        TraceFault(HOUR_S, FaultKind.NODE_DEATH, node=3), settings=settings_with(SPARE, nodes__spares=0, nodes__donor=True)
    )
    assert answers(found) == [["node-replacement"]]


def test_a_budget_that_is_spent_ends_the_job() -> None:
    faults = [TraceFault(HOUR_S * hour, FaultKind.DEVICE, node=hour, code=BROKEN) for hour in (2, 3, 4)]
    found = played(*faults, settings=Settings(max_restarts=2), plan=replace(PLAN, other_nodes=8))
    assert answers(found) == [["isolated-requeue"], ["isolated-requeue"], ["fail"]]
    assert found.ended == "failed" and found.budgets["max_restarts"] == (0, 2)
    assert found.parts[TimePart.ENDED] == pytest.approx(20 * HOUR_S, abs=90)


def test_the_same_trace_costs_more_with_the_rung_switched_off() -> None:
    faults = [TraceFault(HOUR_S * hour, FaultKind.DEVICE, rank=1, code=HEALS) for hour in (2, 9)]
    on, off = played(*faults), played(*faults, settings=settings_with(in_place_restart__enabled=False))
    assert "in-place-restart" not in off.rungs and off.useful_s < on.useful_s
    none = played(*faults, settings=Settings(ladder=("fail",)))
    assert none.ended == "failed" and none.useful_s < off.useful_s


def test_a_hang_is_answered_where_it_is_proven_or_that_is_switched_on_and_else_by_a_person() -> None:
    hang = TraceFault(HOUR_S, FaultKind.HANG, node=2)
    on, off = played(hang), played(hang, settings=settings_with(hang_restart__enabled=False))
    assert answers(on) == [["hang-restart"]] and on.parts[TimePart.NOTICING] == pytest.approx(180, abs=15), "hang.stall"
    assert answers(off) == [[]] and off.parts[TimePart.NOTICING] == pytest.approx(PLAN.person_s, abs=1)
    unseen = [
        played(hang, settings=settings_with(hang_restart__enabled=wanted), plan=replace(PLAN, probe=False))
        for wanted in (True, None)
    ]
    assert [answers(each) for each in unseen] == [[["hang-restart"]], [[]]], "only IO and use of devices speak"
    assert unseen[0].parts[TimePart.NOTICING] == pytest.approx(1861, abs=15), "hang.detect_time and hang.sample_time"


def test_a_hang_inside_communication_costs_the_node_whose_connections_are_stuck() -> None:
    found = played(TraceFault(HOUR_S, FaultKind.HANG, node=2, network=True))
    assert answers(found) == [["isolated-requeue"]] and found.excluded == ("n2",)


def test_a_bug_ends_the_job_and_a_crash_that_may_pass_does_not() -> None:
    bug = TraceFault(
        HOUR_S, FaultKind.CRASH, node=2, error_class=ErrorClass.USER_CODE, retriable=Retriable.NO, confidence=Confidence.STRONG,
        signature="py-import", program=True,
    )  # fmt: skip
    assert played(bug).ended == "failed"
    assert answers(played(TraceFault(HOUR_S, FaultKind.CRASH, node=2))) == [["in-place-restart"]]


def test_a_preemption_with_a_warning_saves_the_work_where_the_program_saves() -> None:
    warned = TraceFault(HOUR_S, FaultKind.PREEMPTION, warning_s=60, wait_s=600)
    plain = played(warned, settings=settings_with(warning__requeue=True))
    saves = played(warned, settings=settings_with(warning__requeue=True), plan=replace(PLAN, saves_on_signal=True))
    assert answers(plain) == answers(saves) == [["requeue-on-warning"]]
    assert plain.parts[TimePart.REDONE] > 1000 and saves.parts[TimePart.REDONE] == 0
    assert played(replace(warned, warning_s=0)).parts[TimePart.QUEUE] == pytest.approx(600 + PLAN.plain_requeue_s)


def test_ftrun_dies_with_its_own_node() -> None:
    found = played(TraceFault(HOUR_S, FaultKind.NODE_DEATH, node=1))
    assert answers(found) == [[]] and found.requeues == 1
    assert found.parts[TimePart.QUEUE] == pytest.approx(PLAN.slurmd_timeout_s + PLAN.plain_requeue_s)


def test_the_work_is_done_once_it_is_all_kept() -> None:
    found = played(TraceFault(HOUR_S, FaultKind.DEVICE, node=2, code=HEALS), plan=replace(PLAN, work_s=5 * HOUR_S))
    assert found.ended == "completed" and found.useful_s == pytest.approx(5 * HOUR_S)
    assert found.at == found.wall_s < 6 * HOUR_S


def test_what_fails_where_the_job_is_not_costs_nothing() -> None:
    found = played(TraceFault(HOUR_S, FaultKind.CRASH, node=6), TraceFault(2 * HOUR_S, FaultKind.NODE_DEATH, node=5))
    assert [one.hit for one in found.faults] == [False, False] and found.starts == 1


FAULTS = st.builds(
    TraceFault,
    at=st.floats(0, 12 * HOUR_S),
    kind=st.sampled_from(FaultKind),
    node=st.integers(1, 6),
    code=st.sampled_from([HEALS, BROKEN]),
    heals=st.sampled_from([None, False]),
    for_s=st.sampled_from([0.0, 600.0]),
    network=st.booleans(),
    warning_s=st.sampled_from([0.0, 60.0]),
    wait_s=st.sampled_from([0.0, 900.0]),
)
SETTINGS = st.builds(
    settings_with,
    hang_restart__enabled=st.booleans(),
    in_place_restart__enabled=st.booleans(),
    node_replacement__enabled=st.booleans(),
    node_replacement__budget=st.integers(0, 3),
    nodes__spares=st.integers(0, 1),
    max_restarts=st.integers(0, 4),
    warning__requeue=st.booleans(),
    shrink__enabled=st.booleans(),
    nodes__min=st.integers(1, 4),
)


@quickly(deadline=None, max_examples=40)
@given(st.lists(FAULTS, max_size=8), SETTINGS, st.sampled_from([0.0, 5 * HOUR_S]), st.sampled_from([0.0, 30.0]))
def test_time_adds_up(faults: list[TraceFault], settings: Settings, work_s: float, save_s: float) -> None:
    plan = replace(PLAN, until_s=14 * HOUR_S, work_s=work_s, save_s=save_s, tasks_per_node=2)
    faults = sorted(faults, key=lambda fault: fault.at)
    found = played(*faults, settings=settings, plan=plan)
    assert all(seconds > -1e-6 for seconds in found.parts.values())
    assert found.wall_s == pytest.approx(plan.until_s) or found.ended == "completed"
    assert found.ended != "completed" or found.useful_s >= plan.work_s - 1e-3
    again = played(*faults, settings=settings, plan=plan)
    assert (again.parts, again.rungs) == (found.parts, found.rungs), "the same trace, the same result"


def test_random_faults_of_a_large_cluster() -> None:
    asked = PlayAsked(rates=("crash=0.002", "device=0.002", "node-death=0.001"), seed=3,
                  job=("nodes=200", "other_nodes=20", "until=10d"), others=("none:ladder=fail",))  # fmt: skip
    trace, (policy, none) = play_trace(asked, {})
    assert trace.faults == play_trace(asked, {})[0].faults and 5 < len(trace.faults) < 30
    assert none.ended == "failed" and none.useful_s < policy.useful_s


FAULTS = st.builds(
    lambda at, kind, node, code: TraceFault(at, kind, node=node, code=code if kind is FaultKind.DEVICE else ""),
    st.floats(60.0, 20 * HOUR_S), st.sampled_from(list(FaultKind)), st.integers(1, 44), st.sampled_from([HEALS, BROKEN]),
)  # fmt: skip


def same(one: PolicyOutcome, other: PolicyOutcome) -> bool:
    """In all that may not depend on how many nodes are played."""
    for name in (
        "at",
        "parts",
        "lost_to",
        "rungs",
        "budgets",
        "node_s",
        "node_goodput",
        "ended",
        "starts",
        "requeues",
        "excluded",
    ):
        assert getattr(one, name) == pytest.approx(getattr(other, name)), name
    first, second = (
        [(each.node, each.hit, [rung for rung, _ in each.answers], each.left) for each in outcome.faults]
        for outcome in (one, other)
    )
    return first == second


@quickly(max_examples=40, deadline=None)
@given(
    st.lists(FAULTS, max_size=6),
    st.sampled_from([Settings(), SPARE, settings_with(nodes__donor=True, node_replacement__enabled=True)]),
)
def test_nodes_to_which_nothing_happens_change_nothing(faults: list[TraceFault], policy: Settings) -> None:
    plan = JobPlan(nodes=40, other_nodes=40, until_s=24 * HOUR_S)
    whole = Trace(plan, tuple(sorted(faults, key=lambda fault: fault.at)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftslurm.simulation.trace.LEAST", 2)
        few = with_few_nodes(whole, policy)
    assert few.alike >= 40 - 2 - len(faults) - 1 and few.plan.nodes + few.alike == 40
    one, other = (play(trace, policy, grade, BOOK, "tested") for trace in (whole, few))
    assert same(one, other)


def test_a_job_that_ends_in_a_part_of_the_trace_ends_so_in_the_whole() -> None:
    asked = PlayAsked(rates=("node-death=0.2", "preemption=0.1"), job=("nodes=200", "other_nodes=60", "until=10d"),
                  others=("short:max_restarts=20",))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftslurm.simulation.trace.FIRST", 4)
        trace, (_, parted) = play_trace(asked, {})
        assert [len(part.faults) for part in parts(trace)] == [4, 40, 400, len(trace.faults)]
        patch.setattr("ftslurm.simulation.trace.FIRST", 10_000)
        _, (_, whole) = play_trace(asked, {})
    assert same(parted, whole) and whole.ended == "failed"
    assert whole.wall_s == 10 * 24 * HOUR_S and 20 < len(whole.faults) < 100


def test_who_takes_the_job_away_costs_no_node_that_is_played() -> None:
    faults = tuple(TraceFault(60.0 * at, FaultKind.PREEMPTION, node=at) for at in range(2, 402))
    few = with_few_nodes(Trace(JobPlan(nodes=400, other_nodes=1, until_s=HOUR_S), faults), Settings())
    assert few.plan.nodes == LEAST + 1 and {fault.named for fault in few.faults[40:-2]} == {f"n{at:03d}" for at in range(42, 400)}


def test_what_heals_costs_no_node_that_is_played() -> None:
    faults = tuple(TraceFault(60.0 * at, FaultKind.DEVICE, node=1 + at % 400, code=HEALS, heals=True) for at in range(2, 1003))
    few = with_few_nodes(Trace(JobPlan(nodes=400, other_nodes=1, until_s=HOUR_S), faults), Settings())
    assert few.plan.nodes == LEAST + 202, "of those that it happens to three times, the limit, and of the first one"
    assert {fault.named for fault in few.faults} == {"", *(f"n{at:03d}" for at in range(235, 401))}


def test_what_heals_elsewhere_is_answered_as_where_it_happened() -> None:
    asked = PlayAsked(
        rates=("device=0.1", "crash=0.02", "node-death=0.01"), job=("nodes=60", "other_nodes=10", "until=8d"),
        base=SettingsAsked(values={"max_restarts": ("64", "")}), others=("off:rungs.in-place-restart.enabled=false",),
    )  # fmt: skip
    _, some = play_trace(asked, {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ftslurm.simulation.trace.LEAST", 1000)
        _, every = play_trace(asked, {})
    assert all(map(same, some, every)) and max(one.rungs.get("in-place-restart", 0) for one in some) > 30


def test_where_a_policy_counts_nodes_all_are_played() -> None:
    whole = Trace(JobPlan(nodes=400, until_s=HOUR_S))
    assert with_few_nodes(whole, Settings()).alike > 300
    for policy in (settings_with(nodes__min=399), settings_with(nodes__min_healthy=3), settings_with(retry__failure_rate=0.5)):
        assert with_few_nodes(whole, policy) is whole
