"""A job's past, folded from its records."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model import record as rec
from ftslurm.model.folds.history import CleanUpTook, History, fold

KEY = ("n2", "0.0", "80E01801")


def began(schedule: int = 0, run: str = "r1") -> rec.RunBegan:
    return rec.RunBegan(1.0, run, "7", "c", schedule, "train", "train", "n[1-2]")


def attempt(number: int, schedule: int = 0, starts: int = 1, step_key: str = "train") -> rec.AttemptBegan:
    return rec.AttemptBegan(2.0, "r1", number, schedule, step_key, starts, "n[1-2]", 4)


def verdict(rung: str, cause: str = "crash", at: float = 10.0, cost: str = "max_restarts", **more: object) -> rec.Decided:
    return rec.Decided(at, f"{rung}@{at}", 1, rung, cause, "because", cost=cost, **more)  # type: ignore[arg-type]


def seen(at: float, key: tuple[str, str, str] = KEY) -> rec.FaultSeen:
    return rec.FaultSeen(at, *key, "HBM", "self-healing")


def requeued(submit_time: int, usual: bool = True, schedule: int = 1, *watched: rec.Record) -> History:
    decided = rec.Decided(100.0, "d", 1, "isolated-requeue", "device", "because")
    began = rec.CleanUpBegan(101.0, "d", 1000.0, usual)
    again = rec.RunBegan(2.0, "r2", "7", "c", schedule, "train", "train", "n[1-2]", submit_time=submit_time)
    return fold([rec.RunBegan(1.0, "r1", "7", "c", 0, "train", "train", "n[1-2]"), decided, began, *watched, again])


@pytest.mark.parametrize(
    ("past", "clean_ups"),
    [
        (requeued(1014), (CleanUpTook(15.0),)),
        (requeued(1014, usual=False), ()),
        (requeued(1014, schedule=2), ()),
        (requeued(0), ()),
        (requeued(9999), ()),
        (requeued(1014, True, 1, rec.CleanUpBegan(110.0, "d", 1000.0, True, 8.0, True)), (CleanUpTook(8.0),)),
        (requeued(1049, True, 1, rec.CleanUpBegan(110.0, "d", 1000.0, True, 9.0, False)), (CleanUpTook(41.0, rough=True),)),
    ],
)
def test_how_long_a_clean_up_took_is_known_in_the_scheduling_after_it(past: History, clean_ups: tuple[CleanUpTook, ...]) -> None:
    assert past.clean_ups == clean_ups


def test_nothing_has_no_past() -> None:
    past = fold([])
    assert past == History() and past.attempts == 0 and past.last_run is None and past.kept_out(0.0, 0.0) == ()


def test_attempts_and_starts_are_counted_a_scheduling_and_a_step() -> None:
    past = fold([attempt(1), attempt(2, starts=2), attempt(3, step_key="eval"), attempt(4, schedule=1)])
    assert past.attempts == 4
    assert past.slots.starts == {(0, "train"): 2, (0, "eval"): 1, (1, "train"): 1}


def test_faults_are_counted_by_node_device_and_code_from_a_time_on() -> None:
    past = fold([seen(100), seen(200), seen(300), seen(300, ("n2", "1.0", "80E01801")), seen(300, ("n1", "0.0", "80E01801"))])
    assert [past.fault_count(KEY, since) for since in (0, 100, 100.5, 300, 301)] == [3, 3, 2, 1, 0]
    assert past.fault_count(("n2", "0.0", "80E18008"), 0) == 0


def test_budgets_are_spent_by_what_a_decision_costs() -> None:
    free = verdict("in-place-restart", "device", cost="")
    past = fold(
        [verdict("isolated-requeue", "node"), free, verdict("unconditional-requeue"), verdict("x", cost="crash_restarts")]
    )
    assert past.budgets.spent == {"max_restarts": 2, "crash_restarts": 1} and past.decisions == 4


def test_the_row_of_unconditional_requeues_breaks_at_an_explicit_fault_only() -> None:
    crash, lost = verdict("unconditional-requeue"), verdict("unconditional-requeue", "lost")
    in_place, warned = verdict("in-place-restart", "device", cost=""), verdict("requeue-on-warning", "warning", cost="")
    assert fold([crash, lost, crash]).requeues.unconditional_in_a_row == 3
    assert fold([crash, warned, crash]).requeues.unconditional_in_a_row == 2
    assert fold([crash, in_place, crash]).requeues.unconditional_in_a_row == 1
    assert fold([crash, verdict("isolated-requeue", "node")]).requeues.unconditional_in_a_row == 0
    assert fold([crash, verdict("unconditional-requeue", "device")]).requeues.unconditional_in_a_row == 0
    assert fold([crash, verdict("in-place-restart", "crash", cost="crash_restarts"), crash]).requeues.unconditional_in_a_row == 2


def test_isolated_nodes_stay_out_until_their_time_is_up() -> None:
    past = fold(
        [verdict("isolated-requeue", "node", at=100.0, isolate={"n2": "down"}), verdict("x", at=500.0, isolate={"n1": "hot"})]
    )
    assert past.kept_out(1e9, 0.0) == ("n1", "n2")
    assert [past.kept_out(now, 1000.0) for now in (1099.0, 1100.0, 1499.0, 1500.0)] == [("n1", "n2"), ("n1",), ("n1",), ()]
    assert past.exclusions.isolated["n2"][0] == "down"


def test_a_node_that_is_isolated_again_starts_its_time_anew() -> None:
    past = fold([verdict("x", at=100.0, isolate={"n2": "down"}), verdict("x", at=900.0, isolate={"n2": "hot"})])
    assert past.kept_out(1500.0, 1000.0) == ("n2",)


def test_a_requeue_is_open_until_somebody_writes_what_became_of_it() -> None:
    requeue = verdict("isolated-requeue", "node")
    assert fold([began(), requeue]).requeues.open == requeue
    assert fold([began(), requeue, rec.CarriedOut(11.0, "another", True)]).requeues.open == requeue
    done = fold([began(), requeue, rec.CarriedOut(11.0, requeue.id, True)])
    assert done.requeues.open is None and done.requeues.done == 1
    refused = fold([began(), requeue, rec.CarriedOut(11.0, requeue.id, False, "refused")])
    assert refused.requeues.open is None and refused.requeues.done == 0


def test_a_later_scheduling_proves_that_the_requeue_happened() -> None:
    requeue = verdict("unconditional-requeue")
    assert fold([began(), requeue, began(schedule=1)]).requeues.open is None
    assert fold([began(), requeue, began(run="r2")]).requeues.open == requeue


def test_restarts_are_counted_for_each_command_and_requeues_for_the_job() -> None:
    other = replace(began(run="r2"), step_key="eval")
    records = [began(), verdict("in-place-restart", cost="crash_restarts"), verdict("unconditional-requeue")]
    past = fold(records)
    assert (past.budgets.job_restarts, past.budgets.spent) == (2, {"crash_restarts": 1, "max_restarts": 1})
    past = fold([*records, other])
    assert (past.budgets.job_restarts, past.budgets.spent) == (0, {"crash_restarts": 0, "max_restarts": 1})
    past = fold([*records, other, verdict("in-place-restart", cost="crash_restarts"), began(1, "r3")])
    assert (past.budgets.job_restarts, past.budgets.spent) == (2, {"crash_restarts": 1, "max_restarts": 1})


def test_a_restart_in_place_leaves_no_requeue_open() -> None:
    assert fold([began(), verdict("in-place-restart", "device", cost="")]).requeues.open is None


def of_run(run: str, number: int, rung: str, cause: str = "node", cost: str = "max_restarts", attempt: int = 1) -> rec.Decided:
    return rec.Decided(10.0, f"{run}-{number}", attempt, rung, cause, "because", cost=cost)


def test_of_several_ftruns_at_once_each_pays_for_its_own_command() -> None:
    """Seen on a real cluster: the restart in place of one, which began last, was spent for all of them."""
    two = replace(began(run="b"), step_key="eval")
    past = fold([began(run="a"), two, of_run("a", 1, "in-place-restart", "crash", "crash_restarts")])
    mine, other = past.as_seen_by("a"), past.as_seen_by("b")
    assert (mine.budgets.used("crash_restarts"), mine.budgets.job_restarts, mine.last_run) == (1, 1, began(run="a"))
    assert (other.budgets.used("crash_restarts"), other.budgets.job_restarts, other.last_run) == (0, 0, two)
    for record in (of_run("b", 2, "in-place-restart", "crash", "crash_restarts"), rec.Finished(20.0, "b", 0, "done")):
        past = past.add(record)
        assert [past.as_seen_by(run).budgets.used("crash_restarts") for run in "a"] == [1]
    assert past.as_seen_by("a").as_seen_by("a") == past.as_seen_by("a")
    assert past.beside.keys() == {"a"} and past.add(began(1, "c")).beside.keys() == {"c"}


def test_what_an_ftrun_beside_it_decides_leaves_a_requeue_open() -> None:
    """Its step takes a while to end before it is carried out."""
    requeue, beside = of_run("a", 1, "isolated-requeue"), of_run("b", 2, "in-place-restart", cost="")
    assert fold([requeue, beside]).requeues.open == requeue
    done = fold([requeue, beside, rec.CarriedOut(11.0, "a-1", True)])
    assert done.requeues.open is None and done.requeues.done == 1
    assert fold([requeue, beside, of_run("a", 3, "fail", cost="")]).requeues.open is None
    assert fold([began(), requeue, beside, began(schedule=1)]).requeues.open is None
    assert fold([requeue, of_run("b", 2, "unconditional-requeue")]).requeues.open.id == "b-2"  # type: ignore[union-attr]


def test_why_the_job_was_scheduled_anew() -> None:
    requeue, beside = of_run("r1", 1, "isolated-requeue"), of_run("b", 2, "in-place-restart", cost="")
    dead, done = rec.TroubleSeen(9.0, 1, "node", "the batch node died"), rec.CarriedOut(11.0, "r1-1", True)
    assert fold([began()]).why_scheduled(0) == ("", "")
    for past, why in (
        ([requeue], ("isolated-requeue", "node")),
        ([requeue, done, beside], ("isolated-requeue", "node")),
        ([requeue, replace(done, ok=False)], ("requeue-by-slurm", "outside")),
        ([of_run("r1", 1, "in-place-restart"), attempt(2), dead], ("requeue-by-slurm", "node")),
        ([dead, attempt(2)], ("requeue-by-slurm", "outside")),
        ([dead, rec.Finished(9.0, "r1", 143, "the job was requeued by somebody else")], ("requeue-by-slurm", "outside")),
    ):
        before = fold([began(), attempt(1), *past])
        assert before.why_scheduled(1) == before.add(began(1, "r2")).requeues.scheduled_by == why
        assert before.why_scheduled(0) == ("", "")
    twice = fold([began(), requeue, done, began(1, "r2"), dead, began(2, "r3"), began(2, "r4")])
    assert twice.requeues.scheduled_by == ("requeue-by-slurm", "node")


def test_a_requeue_that_its_ftrun_gave_up_is_open_until_the_next_one_of_the_script_decides() -> None:
    given_up = [began(run="a"), of_run("a", 1, "isolated-requeue"), rec.Finished(11.0, "a", 130, "interrupted"), began(run="b")]
    assert fold(given_up).requeues.open is not None
    assert fold([*given_up, of_run("b", 2, "in-place-restart", cost="")]).requeues.open is None
    again = fold([*given_up, of_run("b", 2, "isolated-requeue"), of_run("c", 3, "in-place-restart", cost="")])
    assert again.requeues.open is not None and again.requeues.open.id == "b-2", "that one is not given up"


def test_a_swap_that_failed_is_paid_back_whoever_has_decided_something_since() -> None:
    swap, beside = of_run("a", 1, "node-replacement", cost="node_replacements"), of_run("b", 2, "in-place-restart", cost="")
    failed = rec.CarriedOut(11.0, "a-1", False, "no node")
    past = fold([swap, beside, failed])
    assert past.budgets.spent == {"node_replacements": 0} and not past.open_swaps
    assert past.add(failed).budgets.spent == {"node_replacements": 0}, "once"
    assert fold([swap, beside, rec.CarriedOut(11.0, "a-1", True, "replaced")]).budgets.spent == {"node_replacements": 1}
    assert not fold([began(), swap, began(schedule=1)]).open_swaps


def test_a_hang_counts_once_where_its_first_answer_failed() -> None:
    records: list[rec.Record] = []
    for attempt in (1, 2):
        swap = of_run("a", 2 * attempt, "node-replacement", "hang", "node_replacements", attempt)
        requeue = of_run("a", 2 * attempt + 1, "isolated-requeue", "hang", attempt=attempt)
        records += [swap, rec.CarriedOut(11.0, swap.id, False, "no node"), requeue]
    assert fold(records).hangs.in_a_row == 2
    assert fold([swap, rec.AttemptEnded(11.0, 2, step=9), rec.CarriedOut(12.0, swap.id, False)]).hangs.in_a_row == 0
    assert fold([swap, rec.CarriedOut(12.0, swap.id, True)]).hangs.in_a_row == 1


def test_a_run_that_began_is_not_finished() -> None:
    ended = rec.Finished(5.0, "r1", 0, "every rank ended")
    assert fold([began(), ended]).finished == ended
    assert fold([began(), ended, began(run="r2")]).finished is None


RECORDS = st.lists(
    st.one_of(
        st.builds(began, st.integers(0, 2)),
        st.builds(attempt, st.integers(1, 9), st.integers(0, 2), st.integers(1, 3)),
        st.builds(seen, st.integers(0, 99)),
        st.builds(verdict, st.sampled_from(["isolated-requeue", "unconditional-requeue"]), st.sampled_from(["node", "crash"]),
                  st.integers(0, 99).map(float)),
        st.builds(rec.Finished, st.just(1.0), st.just("r1"), st.integers(0, 9), st.just("x")),
    ), max_size=20,
)  # fmt: skip


@given(RECORDS, st.integers(0, 20))
def test_the_fold_goes_on_where_it_stopped_and_changes_nothing_it_was_given(records: list[rec.Record], cut: int) -> None:
    first = fold(records[:cut])
    kept = repr(first)
    assert reduce(History.add, records[cut:], first) == fold(records)
    assert repr(first) == kept


CRASH = verdict("unconditional-requeue")


def tries(*ends: rec.AttemptEnded, lived_s: float = 60.0) -> History:
    """Attempts that live as long as each other, each answered by an unconditional requeue."""
    records: list[rec.Record] = []
    for number, ended in enumerate(ends, start=1):
        at = 1000.0 * number
        records += [replace(attempt(number), at=at), rec.TroubleSeen(at + lived_s, number, "crash", "x"), ended, CRASH]
    return fold(records)


def ended(number: int, **more: int) -> rec.AttemptEnded:
    return rec.AttemptEnded(1000.0 * number + 70.0, number, **more)


def test_a_program_that_tells_no_steps_gets_further_by_many_more_beats() -> None:
    assert tries(*(ended(number, beats=40) for number in (1, 2, 3))).requeues.unconditional_in_a_row == 3
    assert tries(ended(1, beats=40), ended(2, beats=60), ended(3, beats=70)).requeues.unconditional_in_a_row == 3
    past = tries(ended(1, beats=40), ended(2, beats=80), ended(3, beats=80))
    assert (past.requeues.unconditional_in_a_row, past.progress.most_beats) == (2, 80)


def test_or_by_what_it_has_saved_some_time_after_its_start() -> None:
    assert tries(ended(1), ended(2, saved=1), ended(3)).requeues.unconditional_in_a_row == 2
    assert tries(ended(1), ended(2, saved=1), ended(3), lived_s=5.0).requeues.unconditional_in_a_row == 3


def test_steps_tell_it_alone_where_they_are_told() -> None:
    past = tries(
        ended(1, step=90, beats=10, saved=1), ended(2, step=90, beats=99, saved=3), ended(3, step=80, beats=400, saved=1)
    )
    assert past.requeues.unconditional_in_a_row == 3


def test_beats_of_an_old_ledger_are_none() -> None:
    assert rec.AttemptEnded(1.0, 1, {"exited with status 1": 2}, 7) == rec.AttemptEnded(
        1.0, 1, {"exited with status 1": 2}, 7, 0, 0
    )


def test_a_thousand_crashes_in_a_row_are_counted_not_listed() -> None:
    """Each decision that a view shows holds the past as it was: a list of all crashes in each took gigabytes of a long ledger."""
    found = rec.Diagnosed(3.0, 1, "exit 3", "unknown", "once", "weak", "rank 0 on n1 exited", node="n1")
    crash = found, verdict("in-place-restart", cost="crash_restarts")
    past = fold([began(), attempt(1), *(crash * 1000)])
    assert past.crashes.in_place == {"train": 1000}
    assert [alike.times for alike in past.crashes.seen.values()] == [{"n1": 1000}]
