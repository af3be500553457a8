"""Slow ranks and links, as windows of waits. Source: jobs of 2 to 4 ranks over TCP, some slowed down on purpose."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ftslurm.errors import WireError
from ftslurm.model.collectives import (
    CallDurations,
    Culprit,
    CulpritKind,
    EntryTimes,
    Level,
    WaitTimes,
)
from ftslurm.model.plain import from_plain, to_plain
from ftslurm.policies.hang.slow import SlowMemory, Window, between_enters, see, see_enters, steady_means, window

STEP_S = 0.020


def of(
    outside_ms: dict[int, float], transfer_ms: float = 1.0, sent_mb: float = 0.0, busy_ms: dict[int, float] | None = None
) -> Window:
    """Whoever comes last waits for the transfer alone; the others for it, too."""
    last = max(outside_ms.values())
    inside = {rank: (last - outside + transfer_ms) / 1e3 for rank, outside in outside_ms.items()}
    return Window(
        {rank: outside / 1e3 for rank, outside in outside_ms.items()}, inside, transfer_ms / 1e3,
        dict.fromkeys(outside_ms, sent_mb), busy_ms or dict.fromkeys(outside_ms, sent_mb), {rank: f"n{rank}" for rank in outside_ms},
    )  # fmt: skip


def after(*windows: Window) -> list[Culprit | None]:
    memory, found = SlowMemory(), []
    for each in windows:
        memory, finding = see(memory, each)
        found.append(finding)
    return found


def test_a_rank_that_is_slow_outside_communication_in_three_windows() -> None:
    healthy = of({0: 18, 1: 19, 2: 18, 3: 18})
    slow = of({0: 18, 1: 19, 2: 36, 3: 18})
    found = after(healthy, healthy, slow, slow, slow)
    assert found[:4] == [None] * 4
    assert found[4] is not None
    assert (found[4].kind, found[4].ranks, found[4].nodes, found[4].level) == (
        CulpritKind.NON_COMM_SLOW,
        (2,),
        ("n2",),
        Level.INFO,
    )
    assert "rank 2 36.0 ms" in found[4].cause


def test_it_has_to_be_the_same_rank_and_enough_of_the_step() -> None:
    turns = [of({rank: 36 if rank == number % 4 else 18 for rank in range(4)}) for number in range(8)]
    assert after(*turns) == [None] * 8
    little = of({0: 0.2, 1: 0.2, 2: 0.4, 3: 0.2}, transfer_ms=20)
    assert after(*[little] * 8) == [None] * 8, "twice as slow, but no part of the step"


def test_of_two_ranks_one_is_slow() -> None:
    found = after(*[of({0: 18, 1: 36})] * 3)
    assert found[2] is not None and found[2].ranks == (1,)


def busy(rank: int, mb: float, cost: float = 1.0) -> dict[int, float]:
    return {each: mb * (cost if each == rank else 1.0) for each in range(4)}


def test_a_link_that_became_slow_and_stands_out() -> None:
    quick = [of(dict.fromkeys(range(4), 18), 1.0, 10.0 * n, busy(1, 10.0 * n)) for n in range(7)]
    base = quick[-1]
    slow = [
        of(dict.fromkeys(range(4), 18), 3.0, 60.0 + 10 * n, {r: base.busy_ms[r] + c for r, c in busy(1, 10.0 * n, 6.0).items()})
        for n in range(1, 5)
    ]
    found = after(*quick, *slow)
    assert found[:-1] == [None] * 10
    assert found[-1] is not None and (found[-1].kind, found[-1].ranks) == (CulpritKind.COMM_SLOW, (1,))
    assert "3.00 ms, 1.00 ms before" in found[-1].cause


def test_what_is_slower_for_all_names_nobody() -> None:
    windows = [of(dict.fromkeys(range(4), 18), 1.0 if n < 7 else 3.0, 10.0 * n) for n in range(12)]
    found = after(*windows)
    assert found[:10] == [None] * 10
    assert (
        found[10] is not None
        and (found[10].kind, found[10].ranks) == (CulpritKind.COMM_SLOW, ())
        and "no link" in found[10].cause
    )
    assert found[11] is None, "said once, not in every window"


def test_noise_is_no_slowness() -> None:
    rng = random.Random(4)
    windows = [of({rank: 18 * rng.uniform(0.85, 1.15) for rank in range(4)}, rng.uniform(0.9, 1.1), 10.0 * n) for n in range(400)]
    assert not any(after(*windows))


def test_a_window_needs_waits_of_all_and_takes_the_shortest_stay_of_each_operation() -> None:
    def told(rank: int, stays: tuple[int, ...], first: int = 100, count: int = 60) -> WaitTimes:
        return WaitTimes(rank, f"n{rank}", count, 0.018, 0.002, (CallDurations("world", first, stays),), 5.0, 7.0)

    seen = window([told(0, (500, 900, 100)), told(1, (300, 1000, 2000), first=99)])
    assert seen is not None and seen.transfer_s == pytest.approx((500 + 900) / 2 / 1e6)
    assert seen.step_s == pytest.approx(STEP_S)
    assert window([told(0, (500,)), told(1, (300,), count=59)]) is None
    assert window([told(0, (500,))]) is None
    lonely = window([told(0, (500,)), replace(told(1, (300,)), stays=())])
    assert lonely is not None and lonely.transfer_s is None


def enters(rank: int, late_ms: float, numbers: int = 100, first: int = 7) -> EntryTimes:
    return EntryTimes(
        rank, f"n{rank}", "world", first, tuple(int(n * 20e6 + late_ms * 1e6) for n in range(first, first + numbers))
    )


def test_a_rank_that_enters_late_in_three_dumps() -> None:
    memory, found = SlowMemory(), []
    for _ in range(3):
        memory, finding = see_enters(memory, [enters(0, 0.1), enters(1, 9.0), enters(2, 0.2)])
        found.append(finding)
    assert found[:2] == [None, None]
    assert found[2] is not None and (found[2].kind, found[2].ranks) == (CulpritKind.NON_COMM_SLOW, (1,))
    memory, finding = see_enters(memory, [enters(0, 0.1), enters(1, 0.3), enters(2, 0.2)])
    assert finding is None and memory.slow[-1] == frozenset()


def test_enters_count_where_the_ranks_have_them_in_common() -> None:
    seen = between_enters([enters(0, 0.0, 100, 1), enters(1, 4.0, 100, 30)])
    assert seen is not None and seen.outside_s[1] == pytest.approx(STEP_S) and seen.outside_s[0] == pytest.approx(0.016)
    assert seen.step_s == pytest.approx(STEP_S) and seen.inside_s[0] == pytest.approx(0.004)
    assert between_enters([enters(0, 0.0, 10), enters(1, 4.0, 10)]) is None
    assert between_enters([enters(0, 0.0, 100, 1), enters(1, 4.0, 100, 500)]) is None, "none in common"
    assert between_enters([enters(0, 0.0)]) is None and between_enters([]) is None


def parallel(
    rng: random.Random, tensor: int, data: int, slow: int | None, paused: float = 0.0, steps: int = 90
) -> list[EntryTimes]:
    """Tensor groups of neighbours, twice a step; data groups across them, once. No collective of all ranks.

    slow: the rank that takes 40 % longer. paused: share of a rank's steps in which it rests for 20 steps' time.
    """
    ranks = range(tensor * data)
    now = dict.fromkeys(ranks, 1e9)
    times: dict[tuple[str, int], list[int]] = {}

    def meet(key: str, members: Sequence[int]) -> None:
        for rank in members:
            times.setdefault((key, rank), []).append(int(now[rank]))
        last = max(now[rank] for rank in members) + 0.1e6
        now.update(dict.fromkeys(members, last))

    for _ in range(steps):
        for _ in range(2):
            for rank in ranks:
                now[rank] += 10e6 * rng.uniform(0.95, 1.05) * (1.4 if rank == slow else 1.0) + 200e6 * (rng.random() < paused)
            for low in range(0, len(ranks), tensor):
                meet(f"tp{low}", range(low, low + tensor))
        for place in range(tensor):
            meet(f"dp{place}", range(place, len(ranks), tensor))
    return [EntryTimes(rank, f"n{rank // tensor}", key, 1, tuple(found)) for (key, rank), found in times.items()]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (4, 2)])
def test_a_slow_rank_is_found_over_all_groups(shape: tuple[int, int], seed: int) -> None:
    """Groups of tensor and data parallelism, and none with all ranks in it, as every LLM has."""
    rng = random.Random(f"{shape} {seed}")
    for slow in (rng.randrange(shape[0] * shape[1]), None):
        memory, finding = SlowMemory(), None
        for _ in range(3):
            memory, finding = see_enters(memory, parallel(rng, *shape, slow))
        assert (finding.ranks if finding else None) == (None if slow is None else (slow,))


@pytest.mark.parametrize("seed", range(3))
def test_rare_pauses_make_nobody_slow(seed: int) -> None:
    """Garbage collections, a busy machine: single steps, of whomever."""
    rng, memory = random.Random(seed), SlowMemory()
    for _ in range(12):
        memory, finding = see_enters(memory, parallel(rng, 2, 2, None, paused=0.02))
        assert finding is None


def test_the_steady_means() -> None:
    step = [(0.016, 0.0), (0.0, 0.004), (0.0, 0.0), (0.0, 0.0)] * 30
    assert steady_means(step) == pytest.approx((0.004, 0.001))
    assert steady_means([*step, (3.0, 0.0), (0.016, 2.0), (1.0, 0.0)]) == pytest.approx((0.004, 0.001))
    rare = [(0.016, 0.0), *[(0.0, 0.0001)] * 23] * 5
    assert steady_means(rare)[0] == pytest.approx(0.016 / 24), "few steps, many collectives"
    assert steady_means([]) == (0.0, 0.0) and steady_means([(2.0, 1.0), (4.0, 1.0)]) == (3.0, 1.0)


def test_over_the_wire() -> None:
    waits = WaitTimes(3, "n1", 61, 0.5, 0.25, (CallDurations("world", 9, (1, 2, 3)),), 1.5, None)
    assert from_plain(WaitTimes, json.loads(json.dumps(to_plain(waits)))) == waits
    assert from_plain(EntryTimes, json.loads(json.dumps(to_plain(enters(1, 3.0))))) == enters(1, 3.0)
    for hostile in (None, {}, [1, "n"], {**to_plain(waits), "rank": -1}, {**to_plain(waits), "stays": [["k", 1]]}):
        with pytest.raises(WireError):
            from_plain(WaitTimes, hostile)
