"""Who looks again and again for something that does not come does no work; who does any is never taken for one that polls.

Source of the numbers: jobs of the campaign (tests/hang), /proc of Linux 6.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.policies.hang.process_activity import (
    ASK_BYTES,
    ASK_CPU_S,
    FLOOR_BYTES_S,
    POLL_CPU_PERCENT,
    WAKE_BYTES,
    WAKE_CPU_S,
    Look,
    polling,
)

SLEEP = "230 0x7ffd95c83c50 0x7f932c8dc545"


def looks(*, per_s: int = 20, each_s: float = 0.0002, each_io: int = 0, asked: int = 0, place: str = SLEEP) -> list[Look]:
    """Six seconds of a main thread that wakes up `per_s` times in each."""
    return [
        Look(float(s), per_s * s, per_s * s * each_s, per_s * s * each_io, place, asked * s) for s in range(7)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "polls",
    [
        looks(),
        looks(per_s=1, each_s=0.003, each_io=600),
        looks(per_s=10, each_io=1000),
        looks(asked=20),
        looks(per_s=10000, each_s=0.0001, asked=10000, place=""),
        [*looks(per_s=1)[:5], replace(looks(per_s=1)[5], wakes=4), looks(per_s=1)[6]],
    ],
    ids=["a flag", "a server over HTTP", "a file of 1 kB", "a store", "a store without rest", "not in step with our looks"],
)
def test_polls(polls: list[Look]) -> None:
    assert polling(polls)


def uneven(values: list[int], **more: int) -> list[Look]:
    return [replace(look, io=io) for look, io in zip(looks(per_s=10), accumulate(values, initial=0), strict=False)]


BUSY = looks(per_s=10)


@pytest.mark.parametrize(
    "works",
    [
        looks(each_s=0.02),
        looks(per_s=50, each_s=0.004),
        looks(each_io=16 << 10),
        looks(per_s=0),
        looks(per_s=0, asked=0),
        looks(place=""),
        [replace(look, place=f"{SLEEP}{number}") for number, look in enumerate(looks())],
        [replace(look, place="" if number in (3, 4) else SLEEP) for number, look in enumerate(looks())],
        uneven([9000, 2000, 7000, 1000, 9500, 6000]),
        [replace(look, wakes=wakes) for look, wakes in zip(looks(), (0, 4, 60, 64, 120, 121, 180), strict=True)],
        looks()[:2],
    ],
    ids=["evaluates", "computes a little all the time", "reads", "sleeps", "sleeps on", "does not wait for a time", "goes through a program",
         "is awake", "reads what comes", "has now more to do and now less", "too short"],
)  # fmt: skip
def test_does_not_poll(works: list[Look]) -> None:
    assert polling(works) is None


@st.composite
def histories(draw: st.DrawFn) -> list[Look]:
    """A main thread that polls, and in some seconds does something else."""
    look, found = Look(0.0, place=SLEEP), [Look(0.0, place=SLEEP)]
    per_s, asks = draw(st.integers(0, 5000)), draw(st.booleans())
    for _ in range(draw(st.integers(1, 15))):
        took_s = draw(st.floats(0.5, 3.0))
        wakes = int(per_s * took_s)
        look = Look(
            look.at + took_s, look.wakes + wakes, look.cpu_s + wakes * 1e-4 + draw(st.sampled_from((0.0, 0.0, 0.3, 1.0))) * took_s,
            look.io + wakes * 30 + draw(st.sampled_from((0, 0, 1 << 14, 1 << 24))), draw(st.sampled_from((SLEEP, SLEEP, SLEEP, "", "7 1 2"))),
            look.asked + (wakes if asks else 0),
        )  # fmt: skip
        found.append(look)
    return found


@given(histories())
def test_what_is_taken_for_polling_hides_no_work(history: list[Look]) -> None:
    """Whatever the history: no more is taken off than so many looks for something take."""
    if (found := polling(history)) is None:
        return
    assert found.per_s > 0
    if found.asks:
        assert found.cpu_percent <= 100 * found.per_s * ASK_CPU_S and found.io_bytes_s <= found.per_s * ASK_BYTES
        return
    passed = history[-1].at - history[0].at
    assert found.cpu_percent <= min(POLL_CPU_PERCENT, 100 * found.per_s * WAKE_CPU_S) + 1e-9
    assert found.io_bytes_s <= found.per_s * WAKE_BYTES + 1e-9
    assert len({look.place for look in history if look.place}) == 1
    steady = [b.io - a.io for a, b in pairwise(history)]
    assert found.io_bytes_s <= FLOOR_BYTES_S or max(steady) < 1 << 24 or passed > 1000
