"""Learned limits of a stall. Source: NVRx and AIMaster for the fixed ones beside them; synthetic series for the alarms."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model.folds.past import usual_interval_s, with_pause
from ftslurm.policies.hang.stall_watch import PauseLimits, Stall, StallLimits, factor, judge_pause, limit_s
from tests.hang.intervals import KINDS, follow, intervals

LIMITS = StallLimits()


def taught(*lengths: tuple[float, bool]) -> PauseLimits:
    learned = PauseLimits(2.0)
    for length, busy in lengths:
        pauses = with_pause(learned.busy if busy else learned.quiet, length)
        learned = replace(learned, busy=pauses) if busy else replace(learned, quiet=pauses)
    return learned


def test_before_anything_is_known_the_floor_holds_for_quiet_stalls_and_the_cap_for_busy_ones() -> None:
    for busy, act_s in ((False, 180.0), (True, 1800.0)):
        verdict = judge_pause(PauseLimits(), act_s - 1, busy, True, LIMITS)
        assert (verdict.stall, verdict.act_s) == (Stall.WARN if busy else Stall.NONE, act_s)
        assert judge_pause(PauseLimits(), act_s, busy, True, LIMITS).stall is Stall.ACT


def test_one_pause_is_known_before_the_usual_interval_is() -> None:
    memory = PauseLimits(quiet=(160.0,))
    assert judge_pause(memory, 0.0, False, True, LIMITS).act_s == pytest.approx(160 * 0.05 ** (-1 / 2))


def test_a_steady_job_that_stands_still_without_work() -> None:
    memory = taught()
    assert limit_s(memory, False, LIMITS) == pytest.approx(4 * 2.0 * 0.05 ** (-1 / 2)), "4 times the median, and the prior tail"
    for stalled_s, stall in ((9.0, Stall.NONE), (12.0, Stall.WARN), (179.0, Stall.WARN), (180.0, Stall.ACT)):
        assert judge_pause(memory, stalled_s, False, True, LIMITS).stall is stall
    soon = StallLimits(act_floor_s=30.0)
    assert judge_pause(memory, 37.0, False, True, soon).stall is Stall.ACT


def test_work_going_on_has_the_cap_until_four_pauses_were_seen() -> None:
    assert limit_s(taught(*[(25.0, True)] * 3), True, LIMITS) == 1800.0
    memory = taught(*[(25.0, True), (30.0, True), (26.0, True), (28.0, True)])
    assert 2.0 * 30 <= limit_s(memory, True, LIMITS) <= 4.5 * 30
    assert limit_s(memory, False, LIMITS) < 60, "of a quiet stall nothing is learned from that"


def test_what_is_shorter_than_a_few_usual_intervals_is_no_pause() -> None:
    learned = replace(taught(*[(40.0, True)] * 5), usual_s=9.0)
    assert learned.top(True) == (40.0,) * 5 and learned.is_known(True)
    assert replace(learned, usual_s=10.0).top(True) == () and not replace(learned, usual_s=10.0).is_known(True)


def test_the_usual_interval_is_the_median_of_the_first() -> None:
    intervals = [40.0 if number % 7 == 0 else 2.0 for number in range(40)]
    assert [usual_interval_s(intervals[:count]) for count in (0, 29, 30, 40)] == [None, None, 2.0, 2.0]


def test_only_the_longest_pauses_are_kept() -> None:
    longest: tuple[float, ...] = ()
    for seconds in range(100, 160):
        longest = with_pause(longest, float(seconds))
    assert longest == tuple(float(seconds) for seconds in range(159, 134, -1))
    assert with_pause(longest, 135.0) == longest and with_pause(longest, 136.0) != longest


def test_the_factor_follows_the_tail() -> None:
    assert factor(()) == pytest.approx(4.47, abs=0.01)
    assert factor((30.0, 29.0, 28.0, 27.0, 26.0)) < 3.0, "a few, all alike"
    rng = random.Random(2)
    heavy = tuple(sorted((rng.paretovariate(1.0) for _ in range(25)), reverse=True))
    light = tuple(sorted((rng.paretovariate(6.0) for _ in range(25)), reverse=True))
    assert 2.0 <= factor(light) < 2.6 and 5.0 < factor(heavy) <= 8.0


def test_false_alarms_double_the_limits_twice_at_most() -> None:
    for false_alarms, times in ((1, 2.0), (2, 4.0), (3, 4.0)):
        learned = replace(taught(), false_alarms=false_alarms)
        assert judge_pause(learned, 0.0, False, True, LIMITS).act_s == times * 180.0
        assert judge_pause(learned, 0.0, True, True, LIMITS).act_s == times * 1800.0
        assert limit_s(learned, False, LIMITS) == times * limit_s(taught(), False, LIMITS)


def test_the_start_has_a_limit_of_its_own() -> None:
    for stalled_s, stall in ((199.0, Stall.NONE), (200.0, Stall.WARN), (600.0, Stall.ACT)):
        verdict = judge_pause(taught(), stalled_s, False, False, LIMITS)
        assert verdict.stall is stall and "600 s" in verdict.reason


@pytest.mark.parametrize(("kind", "at_most"), [("steady", 0), ("ckpt", 0), ("messy", 2)])
def test_alarms_in_jobs_in_which_nothing_hangs(kind: str, at_most: int) -> None:
    """In 128 hours, of which the first are the worst. More of them: bench/hang.py."""
    outcomes = [follow(intervals(random.Random(seed), 16, kind), LIMITS, random.Random(seed)) for seed in range(8)]
    assert sum(each.alarms for each in outcomes) <= at_most
    assert kind in KINDS


@given(st.lists(st.tuples(st.floats(0, 1e5), st.booleans()), max_size=80), st.none() | st.floats(0, 1e4))
def test_limits_stay_between_floor_and_cap(lengths: list[tuple[float, bool]], usual_s: float | None) -> None:
    learned = replace(taught(*lengths), usual_s=usual_s)
    for busy in (True, False):
        assert LIMITS.floor_s <= limit_s(learned, busy, LIMITS) <= LIMITS.cap_s
        assert len(learned.top(busy)) <= 25 and learned.longest_s(busy) >= max(learned.top(busy), default=0.0)
