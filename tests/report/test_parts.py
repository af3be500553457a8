"""Where a job's time went: hand-made ledgers with the answer beside them, and random ones of which the parts must add up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.ledger.journal import from_line, to_line
from ftslurm.model import record as rec
from ftslurm.report.account.parts import Spent, in_order, seconds_of, spent
from tests.ledger.test_records import RECORDS
from tests.stories.test_blame_random import LIVES, lived

T = 1_700_000_000.0


def run(at: float, schedule: int = 0, name: str = "r", **more: Any) -> rec.RunBegan:
    return rec.RunBegan(T + at, f"{name}{schedule}", "7", "c", schedule, "k", "train", "n[1-2]", **more)


def begun(at: float, attempt: int = 1, schedule: int = 0, launched: float | None = None, **more: Any) -> rec.AttemptBegan:
    values = {"step_key": "k", "gpus": "4(x2)", **more}
    return rec.AttemptBegan(
        T + at,
        "r",
        attempt,
        schedule,
        starts=1,
        nodes="n[1-2]",
        tasks=8,
        launched=T + (at if launched is None else launched),
        **values,
    )


def trouble(
    at: float, since: float = 0.0, attempt: int = 1, cause: str = "crash", what: str = "rank 1 failed"
) -> rec.TroubleSeen:
    return rec.TroubleSeen(T + at, attempt, cause, what, T + since if since else 0.0)


def ended(at: float, stopped: float = 0.0, attempt: int = 1, step: int = 0) -> rec.AttemptEnded:
    return rec.AttemptEnded(T + at, attempt, {"exited with status 1": 8}, step, stopped=T + stopped if stopped else 0.0)


def decided(at: float, rung: str, attempt: int = 1, cause: str = "crash") -> rec.Decided:
    return rec.Decided(T + at, f"r-{attempt}", attempt, rung, cause, "because")


def step(at: float, number: int, further: bool, attempt: int = 1) -> rec.StepReached:
    return rec.StepReached(T + at, attempt, number, further)


def finished(at: float, status: int = 0, what: str = "every rank ended with status 0") -> rec.Finished:
    return rec.Finished(T + at, "r", status, what)


def seconds(found: Spent) -> dict[str, float]:
    return {part.value: round(value, 6) for part, value in found.parts.items() if value}


REQUEUED = (
    run(0), begun(10), trouble(110, since=100), ended(115, stopped=113), decided(120, "unconditional-requeue"),
    rec.CarriedOut(T + 121, "r-1", True, "requeued"), finished(122, 75, "requeued"),
)  # fmt: skip
IN_PLACE = (run(0), begun(10), trouble(110, cause="device"), ended(112, 111), decided(112, "in-place-restart", cause="device"))

STORIES: dict[str, tuple[Sequence[rec.Record], float, bool, dict[str, float]]] = {
    "a job without a fault": (
        (run(0), begun(10), ended(110, 110), finished(112)), 500, True, {"starting": 10, "training": 100, "stopping": 2},
    ),
    "one that runs": ((run(0), begun(10)), 110, False, {"starting": 10, "training": 100}),
    "one that has not begun": ((run(0),), 7, False, {"starting": 7}),
    "one that was requeued and waits in the queue": (
        REQUEUED, 1000, False, {"starting": 10, "training": 90, "noticing": 10, "stopping": 3, "deciding": 7, "healing or waiting": 880},
    ),
    "one that was requeued: the start is Slurm's, the script's and the step's": (
        (*REQUEUED, run(165, 1, start_time=int(T) + 160), begun(180, 2, 1, launched=168)), 200, False,
        {"starting": 30, "training": 90, "noticing": 10, "stopping": 3, "deciding": 7, "healing or waiting": 40, "new or redone work": 20},
    ),
    "a restart redoes at most what had been done": (
        (*REQUEUED, run(160, 1), begun(160, 2, 1)), 360, False,
        {"starting": 10, "training": 200, "noticing": 10, "stopping": 3, "deciding": 7, "healing or waiting": 40, "new or redone work": 90},
    ),
    "in place: the device heals, and the step goes on": (
        (*IN_PLACE, begun(152, 2)), 172, False,
        {"starting": 10, "training": 100, "stopping": 1, "deciding": 1, "healing or waiting": 40, "new or redone work": 20},
    ),
    "in place with a new step": (
        (*IN_PLACE, begun(152, 2, launched=142)), 152, False,
        {"starting": 20, "training": 100, "stopping": 1, "deciding": 1, "healing or waiting": 30},
    ),
    "an old ledger does not know when the step was asked for": (
        (*IN_PLACE[:3], ended(112), IN_PLACE[4], replace(begun(152, 2), launched=0.0)), 152, False,
        {"starting": 10, "training": 100, "stopping": 2, "healing or waiting": 40},
    ),
    "with steps, work is new or redone, and the program starts until its first": (
        (
            run(0), begun(10), step(15, 1, True), trouble(110), ended(110, 110, step=100), decided(110, "in-place-restart"),
            begun(110, 2), step(120, 80, False, 2), step(141, 101, True, 2),
        ), 200, False,
        {"starting": 15 + 10, "training": 95 + 59, "redone work": 21},
    ),
    "one that never comes to a step again has not started": (
        (
            run(0), begun(10), step(15, 1, True), trouble(110), ended(110, 110, step=100), decided(110, "in-place-restart"),
            begun(110, 2),
        ), 200, False, {"starting": 105, "training": 95},
    ),
    "the job fails: nothing comes after it": (
        (run(0), begun(10), trouble(60), ended(61, 61), decided(61, "fail"), finished(63, 1, "failed")), 9999, True,
        {"starting": 10, "training": 50, "stopping": 3},
    ),
    "two ftruns in one script, and something between": (
        (run(0), begun(10), ended(20, 20), finished(20), run(50, 0, "s"), begun(55, 2, step_key="other"), ended(70, 70, 2), finished(70)),
        99, True, {"starting": 15, "training": 25, "outside ftrun": 30},
    ),
    "a rank of an async job: the others go on": (
        (run(0), begun(10), trouble(20), decided(21, "rank-restart"), rec.RankBegan(T + 21, "r", 2, 0, "k", 3, 2)), 100, False,
        {"starting": 10, "training": 90},
    ),
    "Slurm requeued it away from a dead node, and nobody lived to write when": (
        (
            run(0), begun(10), trouble(3010, cause="node"), ended(3010),
            run(3010, 1, start_time=int(T) + 3000, submit_time=int(T) + 2900), begun(3020, 2, 1),
        ), 3020, False,
        {"starting": 10 + 20, "training": 2290, "not known": 600, "healing or waiting": 100},
    ),
    "it hung and went on by itself": (
        (run(0), begun(10), rec.HangSeen(T + 70, 1, "stall", "no progress", since=T + 50), rec.Paused(T + 90, 1, 40.0, False)),
        100, False, {"starting": 10, "training": 50, "healing or waiting": 40},
    ),
    "it seems to hang, and nobody does anything": (
        (run(0), begun(10), rec.HangSeen(T + 70, 1, "silence", "no output", since=T + 50)), 100, False,
        {"starting": 10, "training": 40, "not known": 50},
    ),
    "what seemed to hang and was none, or is over": (
        (
            run(0), begun(10), rec.HangSeen(T + 70, 1, "silence", "no output", since=T + 50),
            rec.HangEnded(T + 80, 1, "silence", "rank 1 prints again"),
        ), 100, False, {"starting": 10, "training": 60, "not known": 30},
    ),
    "a hang that is answered": (
        (
            run(0), begun(10), rec.HangSeen(T + 70, 1, "stall", "no progress", since=T + 40),
            trouble(75, since=40, cause="hang"), ended(76, 76), decided(76, "hang-restart", cause="hang"), begun(76, 2),
        ), 76, False, {"starting": 10, "training": 30, "noticing": 35, "stopping": 1},
    ),
    "leases of others are waited for before the step is asked for": (
        (run(0), rec.Waiting(T + 1, 0, "the leases of ranks on n1"), begun(100, launched=96)), 100, False,
        {"starting": 1 + 4, "healing or waiting": 95},
    ),
    "nothing at all": ((), 5, False, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_every_second_has_its_part(name: str) -> None:
    records, now, over, expected = STORIES[name]
    found = spent(records, T + now, over)
    assert seconds(found) == expected
    assert found.whole_s == pytest.approx(sum(expected.values()))


def test_what_an_outage_cost_is_owed_to_it_up_to_the_first_new_step() -> None:
    records = (
        run(0), begun(10), step(15, 1, True), trouble(110, since=108), ended(111, 110, step=100), decided(112, "in-place-restart"),
        begun(112, 2), step(120, 80, False, 2), step(141, 101, True, 2), trouble(180, attempt=2), ended(180, 180, 2),
    )  # fmt: skip
    found = spent(records, T + 190, False)
    first, second = found.outages
    assert (first.rung, first.back - T, second.rung, second.back) == ("in-place-restart", 112.0, "", 0.0)
    cost = [{part.value: value for part, value in seconds_of(owed).items() if value} for owed in found.by_outage()]
    assert cost == [{"noticing": 2.0, "deciding": 2.0, "starting": 8.0, "redone work": 21.0}, {"deciding": 10.0}]
    assert {stretch.gpus for stretch in found.stretches} == {-1, 8}


def test_the_ratio_is_a_range_where_something_is_not_known() -> None:
    records, now, over, _ = STORIES["a restart redoes at most what had been done"]
    ratio = spent(records, T + now, over).ettr
    assert ratio is not None and (ratio.low, ratio.high) == (pytest.approx(200 / 360), pytest.approx(290 / 360))
    assert spent((), T, True).ettr is None


@pytest.mark.parametrize(
    ("what", "by_others"),
    [("the job was cancelled", True), ("the time limit was reached", True), ("Slurm ended the job because a node failed", False)],
)
def test_what_others_wanted_is_no_failure(what: str, by_others: bool) -> None:
    found = spent((run(0), begun(10), trouble(60), ended(60), finished(61, 1, what)), T + 99, True)
    assert [outage.by_others for outage in found.outages] == [by_others]


@pytest.mark.parametrize(
    ("times", "expected", "misfits"),
    [
        ([1, 2, 3], [1, 2, 3], 0),
        ([5, 6, 1e15, 7, 8], [5, 6, 6, 7, 8], 1),  # a damaged line from the future does not hide the rest
        ([5, 6, 1, 7, 8], [5, 6, 6, 7, 8], 1),
        ([0, 5, 6], [5, 5, 6], 1),
        ([3, 3, 3], [3, 3, 3], 0),
        ([-7, 0], [0, 0], 2),
        ([], [], 0),
    ],
)
def test_times_that_fit_no_order_are_passed_over(times: list[float], expected: list[float], misfits: int) -> None:
    assert in_order(times) == (expected, misfits)


@given(st.lists(st.floats(-1e15, 1e15), max_size=60))
def test_the_order_found_never_falls(times: list[float]) -> None:
    found, misfits = in_order(times)
    assert found == sorted(found) and len(found) == len(times)
    assert misfits == sum(a != b for a, b in zip(times, found, strict=True)) or misfits >= 0


def check(found: Spent, begin: float, end: float) -> None:
    """The parts add up to the whole, without a gap."""
    assert fsum(found.parts.values()) == pytest.approx(found.whole_s, rel=1e-9, abs=1e-5)
    assert found.whole_s == pytest.approx(max(0.0, end - begin), rel=1e-9, abs=1e-5)
    for one, two in zip(found.stretches, found.stretches[1:], strict=False):
        assert one.end == two.begin
    assert all(stretch.seconds > 0 and -1 <= stretch.outage < len(found.outages) for stretch in found.stretches)
    ratio = found.ettr
    assert ratio is None or 0 <= ratio.low <= ratio.high <= 1


@settings(max_examples=60, deadline=None)
@given(**LIVES, seed=st.integers(), over=st.booleans())
def test_the_parts_of_random_lives_add_up_also_of_damaged_ones(seed: int, over: bool, **life: Any) -> None:
    ledger = lived(**life).job.ledger
    now = ledger[-1].at + 12.5
    check(spent(ledger, now, over), ledger[0].at, ledger[-1].at if over else now)
    assert not spent(ledger, now, over).misfits
    rng = random.Random(seed)
    lines = [to_line(record) for record in ledger]
    torn = [line[: rng.randrange(len(line))] if rng.random() < 0.2 else line for line in lines if rng.random() > 0.2]
    rng.shuffle(torn) if rng.random() < 0.3 else None
    left = [record for line in torn if (record := from_line(line)) is not None]
    found = spent(left, now, over)
    times, _ = in_order([record.at for record in left])
    check(found, times[0] if times else 0.0, (times[-1] if over else now) if times else 0.0)


@settings(max_examples=200, deadline=None)
@given(st.lists(RECORDS, max_size=12), st.floats(1, 2e9), st.booleans())
def test_no_ledger_however_wild_ends_the_sum(records: list[rec.Record], now: float, over: bool) -> None:
    found = spent(records, now, over)
    assert fsum(found.parts.values()) == pytest.approx(found.whole_s, rel=1e-9, abs=1e-3)
