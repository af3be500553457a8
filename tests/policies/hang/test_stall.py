"""Learned limits of a stall. Source: NVRx and AIMaster for the fixed ones beside them; synthetic series for the alarms."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.policies.hang.stall import (
    Pauses,
    Phase,
    Stall,
    StallLimits,
    StallMemory,
    factor,
    false_alarm,
    judge,
    learn,
    limit_s,
)
from tests.hang.intervals import KINDS, follow, intervals

LIMITS = StallLimits()


def taught(*lengths: tuple[float, bool]) -> StallMemory:
    memory = StallMemory()
    for _ in range(40):
        memory = learn(memory, 2.0, False)
    for length, busy in lengths:
        memory = learn(memory, length, busy)
    return memory


def test_before_anything_is_known_the_floor_holds_for_quiet_stalls_and_the_cap_for_busy_ones() -> None:
    for busy, act_s in ((False, 180.0), (True, 1800.0)):
        verdict = judge(StallMemory(), act_s - 1, busy, Phase.RUNNING, LIMITS)
        assert (verdict.stall, verdict.act_s) == (Stall.WARN if busy else Stall.NONE, act_s)
        assert judge(StallMemory(), act_s, busy, Phase.RUNNING, LIMITS).stall is Stall.ACT


def test_one_pause_is_known_before_the_usual_interval_is() -> None:
    memory = StallMemory(quiet=Pauses(160.0, (160.0,)))
    assert judge(memory, 0.0, False, Phase.RUNNING, LIMITS).act_s == pytest.approx(160 * 0.05 ** (-1 / 2))


def test_a_steady_job_that_stands_still_without_work() -> None:
    memory = taught()
    assert limit_s(memory, False, LIMITS) == pytest.approx(4 * 2.0 * 0.05 ** (-1 / 2)), "4 times the median, and the prior tail"
    for stalled_s, stall in ((9.0, Stall.NONE), (12.0, Stall.WARN), (179.0, Stall.WARN), (180.0, Stall.ACT)):
        assert judge(memory, stalled_s, False, Phase.RUNNING, LIMITS).stall is stall
    soon = StallLimits(act_floor_s=30.0)
    assert judge(memory, 37.0, False, Phase.RUNNING, soon).stall is Stall.ACT


def test_work_going_on_has_the_cap_until_four_pauses_were_seen() -> None:
    assert limit_s(taught(*[(25.0, True)] * 3), True, LIMITS) == 1800.0
    memory = taught(*[(25.0, True), (30.0, True), (26.0, True), (28.0, True)])
    assert 2.0 * 30 <= limit_s(memory, True, LIMITS) <= 4.5 * 30
    assert limit_s(memory, False, LIMITS) < 60, "of a quiet stall nothing is learned from that"


def test_pauses_among_the_first_intervals_count() -> None:
    memory = StallMemory()
    for number in range(30):
        memory = learn(memory, 40.0 if number % 7 == 0 else 2.0, number % 7 == 0)
    assert memory.median_s == 2.0 and memory.busy.top == (40.0,) * 5 and memory.quiet.top == ()


def test_the_factor_follows_the_tail() -> None:
    assert factor(()) == pytest.approx(4.47, abs=0.01)
    assert factor((30.0, 29.0, 28.0, 27.0, 26.0)) < 3.0, "a few, all alike"
    rng = random.Random(2)
    heavy = tuple(sorted((rng.paretovariate(1.0) for _ in range(25)), reverse=True))
    light = tuple(sorted((rng.paretovariate(6.0) for _ in range(25)), reverse=True))
    assert 2.0 <= factor(light) < 2.6 and 5.0 < factor(heavy) <= 8.0


def test_a_false_alarm_doubles_the_limit_of_its_class() -> None:
    memory = false_alarm(taught(), False)
    assert judge(memory, 0.0, False, Phase.RUNNING, LIMITS).act_s == 360.0
    assert judge(memory, 0.0, True, Phase.RUNNING, LIMITS).act_s == 1800.0
    assert limit_s(memory, False, LIMITS) == 2 * limit_s(taught(), False, LIMITS)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.ENDING])
def test_starting_and_ending_have_limits_of_their_own(phase: Phase) -> None:
    for stalled_s, stall in ((199.0, Stall.NONE), (200.0, Stall.WARN), (600.0, Stall.ACT)):
        verdict = judge(taught(), stalled_s, False, phase, LIMITS)
        assert verdict.stall is stall and "600 s" in verdict.reason


@pytest.mark.parametrize(("kind", "at_most"), [("steady", 0), ("ckpt", 0), ("messy", 2)])
def test_alarms_in_jobs_in_which_nothing_hangs(kind: str, at_most: int) -> None:
    """In 128 hours, of which the first are the worst. More of them: bench/hang.py."""
    outcomes = [follow(intervals(random.Random(seed), 16, kind), LIMITS, random.Random(seed)) for seed in range(8)]
    assert sum(each.alarms for each in outcomes) <= at_most
    assert kind in KINDS


@given(st.lists(st.tuples(st.floats(0, 1e5), st.booleans()), max_size=80))
def test_limits_stay_between_floor_and_cap(lengths: list[tuple[float, bool]]) -> None:
    memory = StallMemory()
    for length, busy in lengths:
        memory = learn(memory, length, busy)
    for busy in (True, False):
        assert LIMITS.floor_s <= limit_s(memory, busy, LIMITS) <= LIMITS.cap_s
        assert len(memory.of(busy).top) <= 25
        assert memory.of(busy) == Pauses() or memory.of(busy).longest_s >= max(memory.of(busy).top, default=0.0)
