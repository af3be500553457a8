"""The checker must see what it is there for: each case breaks the records of a job that went well in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.model import record as rec
from tests.chaos.checks import NEEDS_HELP, answer, complaints, nodes_left
from tests.chaos.evidence import Blow, Evidence, Help, Step
from tests.chaos.faults import KINDS
from tests.chaos.plan import Expect, JobPlan
from tests.chaos.program import chain
from tests.live.overlap import Beat
from tests.live.stories import Start

DIGESTS = chain(6, 2)
T = 1_000_000.0


def start(rank: int, schedule: int, starts: int, attempt: int, at: float) -> Start:
    return Start(
        rank, f"n{rank + 1}", "7.0", str(schedule), str(starts), str(attempt), "", "", "", 100 * attempt + rank, "7", T + at
    )


def steps(attempt: int, first: int, last: int, at: float) -> tuple[Step, ...]:
    return tuple(Step(rank, attempt, number, DIGESTS[number], T + at + number, T + at + number + 0.5)
                 for number in range(first, last + 1) for rank in (0, 1))  # fmt: skip


def beats(attempt: int, first: float, last: float) -> tuple[Beat, ...]:
    return tuple(Beat(attempt, rank, f"n{rank + 1}", T + at) for rank in (0, 1) for at in (first, last))


def run(schedule: int, at: float) -> rec.RunBegan:
    return rec.RunBegan(T + at, f"r{schedule}", "7", "c", schedule, "k", "python", "n[1-2]")


def attempt(number: int, schedule: int, starts: int, at: float) -> rec.AttemptBegan:
    return rec.AttemptBegan(T + at, f"r{schedule}", number, schedule, "k", starts, "n[1-2]", 2, "7.0")


def trouble(number: int, at: float) -> tuple[rec.Record, ...]:
    return (rec.TroubleSeen(T + at, number, "crash", "rank 1 exited"), rec.AttemptEnded(T + at, number))


# Rank 1 fails in attempt 1 and the job is requeued; a device heals in attempt 2; attempt 3 comes to the end.
LEDGER: tuple[rec.Record, ...] = (
    run(0, 0.0), attempt(1, 0, 1, 0.5), *trouble(1, 10.0),
    rec.Decided(T + 10.1, "d1", 1, "unconditional-requeue", "crash", "rank 1 exited", cost="max_restarts"), rec.CarriedOut(T + 10.5, "d1", True),
    run(1, 20.0), attempt(2, 1, 1, 20.5), *trouble(2, 30.0),
    rec.Decided(T + 30.1, "d2", 2, "in-place-restart", "device", "80C98008"), rec.CarriedOut(T + 31.0, "d2", True),
    attempt(3, 1, 2, 31.1), rec.AttemptEnded(T + 40.0, 3), rec.Finished(T + 40.1, "r1", 0, "every rank ended with status 0"),
)  # fmt: skip
BLOWS = (
    Blow("rank-exit", T + 9.9, 1, "rank 1 with status 3", "yes", status=3, over=T + 9.9),
    Blow("device-heals", T + 29.0, 2, "80C98008 on device 0.0 of n1", "maybe", over=T + 29.0),
)
WELL = Evidence(
    JobPlan(1), 7, "COMPLETED", 0, False, LEDGER, 0,
    tuple(start(rank, *counters) for counters in ((1, 1, 1, 0.6), (2, 1, 2, 20.6), (2, 2, 3, 31.2)) for rank in (0, 1)),
    (*steps(1, 1, 2, 1.0), *steps(2, 3, 4, 20.0), *steps(3, 5, 6, 31.0)),
    (*beats(1, 0.7, 10.05), *beats(2, 20.7, 30.05), *beats(3, 31.3, 40.0)),
    ((1, 1), (1, 2), (2, 3), (2, 4), (3, 5), (3, 6)), (), (6, DIGESTS[6]), BLOWS,
)  # fmt: skip


def without(*kinds: type, attempt: int = 0) -> tuple[rec.Record, ...]:
    return tuple(r for r in LEDGER if not (isinstance(r, kinds) and (not attempt or getattr(r, "attempt", attempt) == attempt)))


def changed(kind: type, number: int, **change: Any) -> tuple[rec.Record, ...]:
    return tuple(replace(r, **change) if isinstance(r, kind) and getattr(r, "attempt", 0) == number else r for r in LEDGER)


def test_a_job_that_went_well_has_nothing_against_it() -> None:
    assert complaints(WELL) == []


BROKEN: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "it failed": (lambda e: replace(e, state="FAILED", status=1), "right_end: the job ended as FAILED"),
    "it had to be ended": (lambda e: replace(e, state=""), "right_end: the job ended as nothing"),
    "another status": (lambda e: replace(e, status=3), "right_end: it ended with status 3"),
    "another last word": (lambda e: replace(e, ledger=(*LEDGER[:-1], rec.Finished(T, "r1", 1, "no"))), "right_end: the ledger's last word"),
    "no last word": (lambda e: replace(e, ledger=LEDGER[:-1]), "right_end: the ledger's last word is None"),
    "no result": (lambda e: replace(e, result=None), "right_result: there is no result"),
    "a wrong result": (lambda e: replace(e, result=(6, DIGESTS[5])), "right_result: the result of step 6 is wrong"),
    "an old result": (lambda e: replace(e, result=(5, DIGESTS[5])), "right_result: the result is of step 5"),
    "a wrong step": (lambda e: replace(e, steps=(*e.steps, Step(1, 3, 6, "0", T, T))), "right_result: rank 1 in attempt 3"),
    "a conflict": (lambda e: replace(e, conflicts=("2 3 found 4 x",)), "steps_made_once: conflict"),
    "a step made twice": (lambda e: replace(e, commits=((1, 1), (1, 2), (2, 2), (2, 3))), "steps_made_once: attempt 2 wrote step 2"),
    "a step left out": (lambda e: replace(e, commits=((1, 1), (1, 3))), "steps_made_once: attempt 1 wrote step 3"),
    "two steps left out": (lambda e: replace(e, commits=((1, 1), (2, 4))), "steps_made_once: attempt 2 wrote step 4"),
    "an old attempt writes": (lambda e: replace(e, commits=((1, 1), (2, 2), (1, 3))), "steps_made_once: attempt 1 wrote step 3"),
    "a rank lives on": (lambda e: replace(e, beats=(*e.beats, Beat(1, 0, "n1", T + 20.9))), "nothing_beside: rank 0 of attempt 1"),
    "a gap in the numbers": (lambda e: replace(e, ledger=without(rec.AttemptBegan, attempt=2)), "attempts_in_order: the ledger numbers"),
    "a rank twice": (lambda e: replace(e, starts=(*e.starts, start(0, 2, 2, 3, 32.0))), "attempts_in_order: rank 0 started twice"),
    "an attempt of nobody's": (lambda e: replace(e, starts=(*e.starts, start(0, 2, 3, 4, 32.0))), "attempts_in_order: rank 0 ran in attempt 4"),
    "a rank saw others": (lambda e: replace(e, starts=(*e.starts[1:], start(0, 1, 2, 1, 0.6))), "counters_agree: rank 0 saw (1, 2, 1)"),
    "a slot has another node": (
        lambda e: replace(e, ledger=(*e.ledger[:2], rec.SlotsChanged(5.0, "r", 0, ("n1", "n9"), {"1": "n9"}), *e.ledger[2:])),
        "counters_agree: rank 1 saw",
    ),
    "starts do not count": (lambda e: replace(e, ledger=changed(rec.AttemptBegan, 3, starts=1)), "counters_agree: attempt 3 is start 1"),
    "an older scheduling": (lambda e: replace(e, ledger=changed(rec.AttemptBegan, 2, schedule=-1)), "counters_agree: attempt 2 is of an older"),
    "a damaged line": (lambda e: replace(e, damaged=1), "ledger_whole: 1 lines"),
    "no ledger": (lambda e: replace(e, ledger=()), "ledger_whole: there is no ledger"),
    "nobody decided": (lambda e: replace(e, ledger=without(rec.Decided, attempt=2)), "ends_explained: attempt 2 ended and attempt 3 began"),
    "no trouble": (lambda e: replace(e, ledger=without(rec.TroubleSeen, attempt=1)), "ends_explained: attempt 1 was ended by a decision without"),
    "no reason": (lambda e: replace(e, blows=()), "ends_explained: attempt 1 was ended although no blow"),
    "only harmless blows": (lambda e: replace(e, blows=tuple(replace(blow, ends="no") for blow in BLOWS)), "ends_explained: attempt 1 was ended although"),
    "a fault without trace": (lambda e: replace(e, blows=(*BLOWS, Blow("rank-kill", T + 35.0, 3, "rank 0", "yes"))), "blows_answered: rank-kill of rank 0"),
    "an open requeue": (lambda e: replace(e, ledger=(*LEDGER[:-1], rec.Decided(T + 40.05, "d3", 3, "isolated-requeue", "node", "x", cost="max_restarts"), LEDGER[-1])),
                        "requeues_done: the requeue d3 stands open"),
    "a requeue for nothing": (lambda e: replace(e, ledger=changed(rec.Decided, 1, cost="")), "requeues_done: the requeue d1 cost ''"),
    "a start long after": (lambda e: replace(e, helped=(Help("start", T + 12.0, "its start in 119 s"),)), "helped_only_where_needed: the operator had to help"),
    "held": (lambda e: replace(e, helped=(Help("held", T + 45.0, "it was held"),)), "helped_only_where_needed: the operator had to help"),
    "an orphan": (lambda e: replace(e, left={17: "python shim"}), "nothing_left: process 17 is left: python shim"),
    "still queued": (lambda e: replace(e, queued=True), "nothing_left: job 7 is still in the queue"),
    "an accident": (lambda e: replace(e, errors=("TimeoutError: x",)), "no_accident: TimeoutError"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_seen(name: str) -> None:
    breaks, words = BROKEN[name]
    found = complaints(breaks(WELL))
    assert any(complaint.startswith(words) for complaint in found), found


FAIL = rec.Decided(
    T + 40.0, "d3", 3, "fail", "crash", "rank 1 exited", passed=(("unconditional-requeue", "retry.policy is Never"),), status=137
)
FAILING = replace(
    WELL, plan=JobPlan(1, expect=Expect("FAILED", 137, "retry.policy is Never")), state="FAILED", status=137, result=None,
    ledger=(*LEDGER[:-1], *trouble(3, 39.9), FAIL, rec.Finished(T + 40.1, "r1", 137, "no")),
)  # fmt: skip


def test_a_job_that_failed_as_it_should_is_well() -> None:
    assert complaints(FAILING) == []


def test_the_right_failure_has_the_right_reason_and_status() -> None:
    another = replace(FAIL, passed=(("unconditional-requeue", "switched off"),))
    assert complaints(replace(FAILING, ledger=(*LEDGER[:-1], *trouble(3, 39.9), another, FAILING.ledger[-1])))
    assert complaints(replace(FAILING, status=1))
    assert complaints(replace(FAILING, state="COMPLETED", status=0))
    by_rank = replace(FAILING, plan=JobPlan(1, expect=Expect("FAILED", -1, finished=False)), status=3)
    assert complaints(by_rank) == []
    assert complaints(replace(by_rank, status=4))


def test_what_came_from_outside_needs_no_decision() -> None:
    requeued = (*BLOWS, Blow("operator-requeue", T + 29.5, 2, "scontrol requeue", "maybe", outside=True))
    assert complaints(replace(WELL, ledger=without(rec.Decided, attempt=2), blows=requeued)) == []


def test_an_operator_may_have_to_help_after_some_blows() -> None:
    delayed = replace(WELL, helped=(Help("start", T + 60.0, "its start in 119 s"),))
    for kind, at, well in (
        ("ctld-kill", 5.0, True),
        ("node-freeze-long", 5.0, True),
        ("ctld-kill", -90.0, False),
        ("rank-kill", 5.0, False),
    ):
        blow = Blow(kind, T + at, 1, "somebody", "maybe", outside=True, over=T + at)
        assert (complaints(replace(delayed, blows=(*BLOWS, blow))) == []) is well
    held = replace(delayed, helped=(Help("held", T + 60.0, "it was held"),))
    assert complaints(replace(held, blows=(*BLOWS, Blow("node-freeze", T + 5.0, 1, "n2", "maybe"))))


@pytest.mark.parametrize(("suspended_at", "well"), [(4.0, True), (-60.0, False), (20.0, False)])
def test_slurm_holds_a_job_that_is_requeued_while_it_is_suspended(suspended_at: float, well: bool) -> None:
    held = replace(WELL, helped=(Help("held", T + 40.0, "it was held"),))
    requeue = Blow("operator-requeue", T + 5.0, 1, "scontrol requeue", "maybe", outside=True, over=T + 5.0)
    suspend = Blow("suspend", T + suspended_at, 1, "for 2 s", "maybe", outside=True, over=T + suspended_at + 2.0)
    words = "the operator had to help"
    assert any(words in said for said in complaints(replace(held, blows=(*BLOWS, requeue, suspend)))) is not well


def test_the_kinds_that_may_need_help_are_those_there_are() -> None:
    assert frozenset().union(*NEEDS_HELP.values()) <= KINDS.keys()


def test_nodes_are_left_as_they_were_found() -> None:
    assert nodes_left({"n1": "IDLE", "n2": "IDLE"}, ("n1", "n2")) == []
    assert nodes_left({"n1": "IDLE+DRAIN"}, ("n1", "n2")) == ["node n1 is IDLE+DRAIN", "node n2 is unknown"]


def test_the_answer_to_a_blow_is_told() -> None:
    assert [answer(WELL, blow) for blow in BLOWS] == ["unconditional-requeue", "in-place-restart"]
    assert answer(WELL, Blow("cut-shim", T + 35.0, 3, "shim", "no")) == "nothing needed"
