"""Signs of life in samples. Source: ModelArts, hang detection for the rule, measured gloo jobs for what a poller and a polling wait look like."""

from __future__ import annotations

import pytest

from ftslurm.policies.hang.process_activity import (
    Connections,
    Quiet,
    Sample,
    cpu_unchanged,
    rates,
    received,
    streamed,
    use_unchanged,
)

MB = 1 << 20


def after(quiet: Quiet, *samples: tuple[float, dict[int, int]]) -> float:
    """samples: (when, rank -> bytes so far)."""
    passed = 0.0
    for at, ranks in samples:
        passed = quiet.observe({rank: Sample({(100 + rank, 1.0): size}, 0.0) for rank, size in ranks.items()}, at)
    return passed


def test_no_io_on_any_rank_is_quiet_and_io_on_one_is_life() -> None:
    assert after(Quiet(0.0), (0, {0: 5, 1: 7}), (10, {0: 5, 1: 7}), (20, {0: 5, 1: 7})) == 20
    assert after(Quiet(0.0), (0, {0: 5, 1: 7}), (10, {0: 5, 1: 7 + MB}), (20, {0: 5, 1: 7 + MB})) == 10


def test_a_poller_s_hundred_bytes_a_second_are_no_life() -> None:
    assert after(Quiet(0.0), *((second, {0: 107 * second}) for second in range(0, 100, 10))) == 90


def test_a_process_that_ends_is_no_io_and_one_that_began_counts_with_what_it_did() -> None:
    quiet = Quiet(0.0)
    quiet.observe({0: Sample({(1, 1.0): 9 * MB, (2, 1.0): 0}, 0.0)}, 0)
    assert quiet.observe({0: Sample({(2, 1.0): 0}, 0.0)}, 10) == 10
    assert quiet.observe({0: Sample({(2, 1.0): 0, (3, 15.0): MB}, 0.0)}, 20) == 0
    assert quiet.observe({0: Sample({(2, 1.0): 0, (3, 25.0): 0}, 0.0)}, 30) == 10, "a number given out again is another process"


def test_a_rank_without_processes_is_quiet() -> None:
    quiet = Quiet(0.0)
    quiet.observe({0: Sample({}, 0.0)}, 0)
    assert quiet.observe({0: Sample({}, 0.0)}, 30) == 30


@pytest.mark.parametrize(
    ("use", "power", "expected"),
    [
        ({"0": [100.0] * 5, "1": [100.0] * 5}, {}, True),
        ({"0": [0.0] * 5}, {}, True),
        ({"0": [0.0, 90.0, 10.0, 95.0]}, {}, False),
        ({"0": [100.0] * 5, "1": [30.0, 60.0, 90.0]}, {}, False),
        ({"0": [100.0] * 5}, {"0": [300.0, 500.0, 420.0, 610.0]}, False),
        ({"0": [100.0] * 5}, {"0": [120.0, 121.0, 119.0]}, True),
        ({"0": [100.0]}, {}, None),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_use_that_does_not_vary(use: dict[str, list[float]], power: dict[str, list[float]], expected: bool | None) -> None:
    unchanged, why = use_unchanged(use, power)
    assert unchanged is expected and why


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({0: [0.1, 0.2, 0.1], 1: [0.2, 0.2, 0.1]}, True),
        ({0: [0.1, 0.2, 0.1], 1: [82.0, 82.0, 82.0]}, None),
        ({0: [0.1, 0.2, 0.1], 1: [20.0, 90.0, 60.0]}, False),
        ({0: [0.1]}, None),
    ],
)  # fmt: skip
def test_cpu_that_does_not_move_is_a_hang_and_cpu_that_turns_steadily_tells_nothing(
    series: dict[int, list[float]], expected: bool | None
) -> None:
    assert cpu_unchanged(series)[0] is expected


def test_rates_are_per_cent_of_a_core() -> None:
    assert rates([(0.0, 1.0), (2.0, 2.0), (4.0, 4.0)]) == [50.0, 100.0]


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ({1: (100, 100)}, {1: (100, 20_100)}, 20_000),
        ({1: (100, 100)}, {1: (30_100, 1_100)}, 31_000),
        ({1: (100, 100)}, {1: (2_100, 900)}, 0),
        ({1: (100, 100)}, {1: (400_100, 300_100)}, 700_000),
        ({}, {1: (300, 50_000)}, 50_300),
        ({1: (100, 100)}, {}, 0),
    ],
    ids=["a download", "an upload", "questions and answers", "much both ways", "a new connection", "one that has gone"],
)
def test_what_connections_move(before: Connections, after: Connections, moved: int) -> None:
    assert streamed(before, after, 1.0) == moved


def test_what_comes_into_a_network_as_data() -> None:
    assert received((100, 100), (900, 200_100), 1.0) == 200_000
    assert received((100, 100), (200_100, 400), 1.0) == 0, "sent again and again"
    assert received((100, 100), (3_000, 4_000), 1.0) == 0, "questions and answers"
