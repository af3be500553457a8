"""How far the clock of a node is behind ours, by the messages that come from there."""

from __future__ import annotations

import pytest

from ftslurm.policies.node import NodeClock


def connected(behind_s: float, sent: float, after: float, before: float) -> NodeClock:
    """By our clock: a message was sent at `sent`, on a connection from `after`, and came at `before`."""
    clock = NodeClock()
    clock.record(sent - behind_s, after, before)
    return clock


@pytest.mark.parametrize("behind_s", [90.0, 3.0, -3.0, -90.0])
def test_a_clock_that_is_wrong_is_known_by_the_first_message(behind_s: float) -> None:
    assert connected(behind_s, 1000.0, 999.99, 1000.01).behind_s == pytest.approx(behind_s, abs=0.02)


@pytest.mark.parametrize("behind_s", [0.5, 0.0, -0.5])
def test_clocks_that_agree_to_a_second_are_left_alone(behind_s: float) -> None:
    assert connected(behind_s, 1000.0, 999.99, 1000.01).behind_s == 0.0


def test_a_message_that_took_long_is_no_clock_that_is_behind() -> None:
    clock = connected(0.0, 1000.0, 999.0, 1060.0)
    clock.record_beat(1, 0, 1005.0, 1061.0)
    assert clock.behind_s == 0.0


def test_what_came_fastest_tells_most() -> None:
    clock = connected(90.0, 1000.0, 999.0, 1004.0)
    assert clock.behind_s == pytest.approx(94.0)
    clock.record_beat(1, 0, 1005.0 - 90.0, 1005.01)
    clock.record_beat(2, 1, 1010.0 - 90.0, 1013.0)
    assert clock.behind_s == pytest.approx(90.01)


@pytest.mark.parametrize(("before_s", "after_s"), [(90.0, 0.0), (0.0, 90.0), (-90.0, 0.0), (0.0, -90.0)])
def test_a_clock_that_is_set_is_known_by_the_beats_that_follow(before_s: float, after_s: float) -> None:
    clock = connected(before_s, 1000.0, 999.99, 1000.01)
    for number in (1, 2, 3):
        clock.record_beat(number, number - 1, 1000.0 + 5 * number - (before_s if number == 1 else after_s), 1000.01 + 5 * number)
    assert clock.behind_s == pytest.approx(after_s, abs=0.02)


def test_of_one_that_tells_nothing_nothing_is_known() -> None:
    assert NodeClock().behind_s == 0.0
