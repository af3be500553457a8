"""Exact intervals, against published tables."""

from __future__ import annotations

import pytest

from ftslurm.report.account.jobs import mtbf


@pytest.mark.parametrize(
    ("count", "low", "high"),  # of the mean number: chi-square quantiles / 2, as in Garwood's table (95 %)
    [
        (0, 0.0, 3.6889), (1, 0.0253, 5.5716), (2, 0.2422, 7.2247), (5, 1.6235, 11.6683), (10, 4.7954, 18.3904),
        (50, 37.1110, 65.9183), (100, 81.3637, 121.6271),
    ],
)  # fmt: skip
def test_garwoods_table(count: int, low: float, high: float) -> None:
    found = mtbf(count, 1000.0)
    assert found.low_s == pytest.approx(1000 / high, rel=2e-4)
    assert found.high_s == (pytest.approx(1000 / low, rel=2e-3) if low else None)
    assert found.mean_s == (1000 / count if count else None)


def test_many_failures_and_none_at_all() -> None:
    many = mtbf(5000, 5000 * 3600.0)
    assert many.mean_s == 3600 and many.high_s is not None and many.low_s < 3600 < many.high_s < 3710
    assert mtbf(0, 0.0).low_s == 0.0
