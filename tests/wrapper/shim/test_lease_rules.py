"""The lease as a value: random histories of answers, pauses and silence."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ftslurm.wrapper.shim.lease import CUT_OFF, PAUSE_S, Lease

LASTS_S = 30.0
seconds = st.floats(0.0, 3 * LASTS_S)
answers = st.fixed_dictionaries({}, optional={"cut_off": st.booleans(), "let_go": st.booleans(), "paused": st.booleans()})
steps = st.lists(st.one_of(
    st.tuples(st.just("answer"), seconds, answers), st.tuples(st.just("pause"), seconds, st.just({})),
    st.tuples(st.just("resume"), seconds, st.just({})), st.tuples(st.just("end"), seconds, st.just({})),
), max_size=30)  # fmt: skip


class Told:
    """One lease, and what it was told, as a reader of its rules would keep account of it."""

    def __init__(self) -> None:
        self.lease = Lease()
        self.lease.lasts(LASTS_S)
        self.lease.renew(0.0, {})
        self.asked_at = 0.0  # of the last answer that renews
        self.promised = self.ended = False

    def step(self, what: str, now: float, answer: dict[str, Any], asked_at: float) -> None:
        if what == "answer":
            self.lease.renew(asked_at, answer)
            self.lease.promised(answer)
            self.promised = self.lease.pausing and bool(answer.get("paused"))
            if not answer.get("let_go") and not answer.get("cut_off"):
                self.asked_at = max(self.asked_at, asked_at)
            if answer.get("let_go"):
                self.lease.end("let go", now)
                self.promised = False
        elif what == "pause":
            assert self.lease.pause(now)
        elif what == "resume":
            self.promised = False if self.lease.resume(now) else self.promised
        else:
            self.lease.end("gone on", now)
            self.promised = False

    def may_run(self, now: float) -> bool:
        return not self.lease.over(now) and not self.lease.held


@given(steps, st.data())
def test_nothing_runs_for_longer_than_a_lease_after_the_question_that_was_answered_or_under_a_promise(
    history: list[tuple[str, float, dict[str, Any]]], data: st.DataObject
) -> None:
    told, now = Told(), 0.0
    for what, wait_s, answer in history:
        now += wait_s
        assert not told.may_run(now) or now < told.asked_at + LASTS_S or told.promised
        told.step(what, now, answer, asked_at=now - data.draw(st.floats(0.0, now)))
        assert not told.may_run(now) or now < told.asked_at + LASTS_S or told.promised


@given(st.lists(st.floats(0.0, LASTS_S - 1.0), min_size=1, max_size=20))
def test_answers_in_time_keep_it(waits_s: list[float]) -> None:
    lease, now = Lease(), 100.0
    lease.lasts(LASTS_S)
    lease.renew(now, {})
    for wait_s in waits_s:
        asked_at, now = now, now + wait_s
        assert not lease.over(now) and not lease.held
        lease.renew(asked_at, {})
        assert lease.until == asked_at + LASTS_S and lease.answered == asked_at
        lease.renew(now, {})
    assert lease.over(now + LASTS_S) and lease.why == CUT_OFF


def test_a_lease_that_ran_out_under_a_promise_counts_anew_and_holds_all_until_an_answer_to_a_later_question() -> None:
    lease = Lease()
    lease.lasts(LASTS_S)
    lease.renew(0.0, {})
    assert lease.pause(1.0) and lease.wakes_at() == 1.0 + PAUSE_S
    lease.promised({"paused": True})
    assert not lease.over(1000.0)
    assert lease.resume(1000.0) and lease.held and lease.until == 1000.0 + LASTS_S
    lease.renew(999.0, {})
    lease.renew(1001.0, {"cut_off": True})
    assert lease.held
    lease.renew(1002.0, {})
    assert not lease.held and lease.until == 1002.0 + LASTS_S and not lease.resume(1003.0)


def test_who_has_no_lease_never_ends_by_it() -> None:
    lease = Lease()
    lease.renew(1.0, {})
    assert not lease.pause(2.0) and not lease.over(1e9) and lease.wakes_at() == float("inf")
    lease.end("gone on", 3.0)
    assert lease.over(3.0) and lease.why == "gone on"
