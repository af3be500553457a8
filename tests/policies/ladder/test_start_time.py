"""When a requeued job may start: behind its clean-up, whose length is known from earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model.decisions import Start
from ftslurm.model.folds.history import CleanUpTook
from ftslurm.model.settings.tree import Settings
from ftslurm.policies import start_time
from ftslurm.policies.start_time import (
    EPILOG_S,
    KNOWN_MAX,
    NO_EPILOG_S,
    SLURMS_OWN_S,
    after_watch,
    elsewhere_in_s,
    for_slowness,
    plan_finish,
    plan_start,
)


def behind(known_s: Sequence[float]) -> float:
    return start_time.behind([CleanUpTook(seconds) for seconds in known_s])


LENGTHS = st.lists(st.floats(0.1, 800.0), min_size=1, max_size=30)


@given(LENGTHS)
def test_a_clean_up_like_the_latest_ones_is_over_before_the_start(known: list[float]) -> None:
    usual = sorted(known)[len(known) // 2]
    for seconds in known[-KNOWN_MAX:]:
        if seconds < usual:
            assert behind(known) >= seconds


@pytest.mark.parametrize(
    ("known", "at_least", "at_most"),
    [
        ([40.5], 45.0, 53.0),  # one is no proof that the next is like it
        ([40.2, 40.9], 41.4, 43.0),
        ([0.9, 3.3, 1.2], 4.0, 6.0),
        ([3.0] * 20 + [20.0] * 10, 20.0, 21.0),
    ],
)
def test_the_more_is_known_the_closer_the_start(known: list[float], at_least: float, at_most: float) -> None:
    assert at_least <= behind(known) <= at_most


def test_a_clean_up_that_was_out_of_all_proportion_is_not_waited_for() -> None:
    assert behind([5.0, 5.2, 5.1, 400.0]) < 10.0 < SLURMS_OWN_S


def test_what_was_measured_behind_a_watch_counts_until_there_is_better() -> None:
    slow = CleanUpTook(69.0, rough=True)
    assert start_time.behind([slow]) > 69.0
    assert start_time.behind([slow, CleanUpTook(43.0)]) < 69.0
    assert start_time.behind([slow, CleanUpTook(43.0), CleanUpTook(43.4)]) < 45.0


@pytest.mark.parametrize("epilog_s", [5.0, 15.0, 40.0, 90.0])
@pytest.mark.parametrize("late_s", [0.0, 9.4])
def test_a_clean_up_behind_a_watch_has_its_margin_in_it(epilog_s: float, late_s: float) -> None:
    """Seen: Epilogs of 40 s came to 51.6 and 52.1 s behind a watch, and to 42.7 to 43.7 s without one."""
    usual_s = epilog_s + 3.2
    first = CleanUpTook(usual_s + late_s, rough=True)
    then = start_time.behind([first])
    assert usual_s + 1.0 <= then <= usual_s * 1.25 + late_s + 1.0
    assert then <= behind([usual_s + late_s]), "what is exact, and longer, asks for no less"
    assert start_time.behind([first, CleanUpTook(usual_s)]) >= usual_s * 1.12


def test_one_clean_up_counts_for_more_where_a_rough_one_agrees() -> None:
    alone, agrees, differs = behind([43.1]), CleanUpTook(52.1, rough=True), CleanUpTook(20.0, rough=True)
    assert 48.0 < start_time.behind([agrees, CleanUpTook(43.1)]) < alone - 5.0
    assert start_time.behind([differs, CleanUpTook(43.1)]) == alone


def test_nothing_is_known_at_first() -> None:
    assert behind([]) == 0.0
    assert plan_start(Settings().requeue, False, ()).in_s == NO_EPILOG_S
    assert plan_start(Settings().requeue, True, ()).in_s == EPILOG_S


def test_what_is_left_is_guessed_from_what_was_watched() -> None:
    assert after_watch(Start(6.0, 9.0), 3.0, True) == after_watch(Start(6.0, 9.0), 0.2, True)
    assert after_watch(Start(45.0, 9.0, epilog=True), 5.0, True) > 6.0
    # An Epilog of 6 s: the own node's began at slurmd's look after 20.67 s, and the start had been set to 22 (seen on 26.05).
    assert 8.0 + after_watch(Start(45.0, 9.0, epilog=True), 8.0, True) > 20.67 + 6.0
    assert after_watch(Start(45.0, 9.0, epilog=True), 9.0, False) >= 57.0, "its Epilog has not begun, and slurmd looks late"
    assert after_watch(Start(6.0, 9.0), 9.0, False) == 18.0


def test_a_machine_that_answers_slowly_gets_more_time() -> None:
    assert for_slowness(0.1) < 1.0 < for_slowness(1.0)


@pytest.mark.parametrize(
    ("least_s", "known", "watch_s", "in_s"),
    [(0.0, (), 0.0, EPILOG_S), (0.0, (), 60.0, 0.0), (5.0, (), 60.0, 5.0), (60.0, (), 0.0, 60.0)],
)
def test_whoever_finishes_a_requeue_from_outside_guesses_only_where_it_cannot_watch(
    least_s: float, known: Sequence[CleanUpTook], watch_s: float, in_s: float
) -> None:
    assert plan_finish(least_s, known, watch_s) == Start(in_s, watch_s, epilog=True)


def test_what_is_known_of_clean_ups_counts_from_outside_too() -> None:
    known = [CleanUpTook(8.0), CleanUpTook(8.2)]
    assert plan_finish(0.0, known, 60.0).in_s == start_time.behind(known) > 8.2


def test_a_job_that_was_turned_away_starts_elsewhere_at_once_or_behind_an_epilog() -> None:
    assert (elsewhere_in_s(2.0, clean=True), elsewhere_in_s(2.0, clean=False)) == (2.0, EPILOG_S)
    assert elsewhere_in_s(90.0, clean=False) == 90.0
