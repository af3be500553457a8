"""The standard library's averages, loaded when one is asked for: fractions and decimal come with them, 2 ms of each start."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    import statistics

    return statistics.median(values)


def fmean(values: Iterable[float]) -> float:
    import statistics

    return statistics.fmean(values)


def pstdev(values: Iterable[float]) -> float:
    import statistics

    return statistics.pstdev(values)
