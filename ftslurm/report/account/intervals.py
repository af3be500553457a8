"""Mean time between failures, with an exact interval. Pure."""

from __future__ import annotations

from math import exp, lgamma, log

from ftslurm.model.values import dataclass

LEVEL = 0.95
METHOD = (
    "exact Poisson interval (Garwood 1936): for n failures in the time T it goes from 2T/q to 2T/p, where q and p are quantiles "
    "of chi-square with 2n+2 and 2n degrees of freedom; failures are taken to come independently, at one rate while ranks run"
)


@dataclass(frozen=True, slots=True)
class Mtbf:
    """count: failures in `exposure_s`. mean_s: 0 failures give none. low_s, high_s: of the interval; None: no end."""

    count: int
    exposure_s: float
    mean_s: float | None
    low_s: float
    high_s: float | None
    level: float = LEVEL


def mtbf(count: int, exposure_s: float, level: float = LEVEL) -> Mtbf:
    """The time of observation ends by itself and not with a failure."""
    tail = (1 - level) / 2
    most = _mean_with(count, tail)
    least = _mean_with(count - 1, 1 - tail) if count else 0.0
    high_s = exposure_s / least if least else None
    return Mtbf(count, exposure_s, exposure_s / count if count else None, exposure_s / most, high_s, level)


def _mean_with(count: int, share: float) -> float:
    """The mean of the Poisson distribution of which `share` lies at `count` and below."""
    low, high = 0.0, 2.0 * count + 20.0
    while _at_most(count, high) > share:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, middle) > share else (low, middle)
    return (low + high) / 2


def _at_most(count: int, mean: float) -> float:
    if mean <= 0:
        return 1.0
    return sum(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(count + 1))
