"""The batch node dies: stories of its standbys. What each knows goes in, what it does comes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from ftslurm.model import record as rec
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.folds.history import fold
from ftslurm.model.messages import HandoverPlan, from_message, to_message
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.ladder import choose
from ftslurm.policies.lease import longest_s
from ftslurm.policies.take_over import (
    OVERTAKE_S,
    STANDBYS,
    TURN_S,
    JobNow,
    KnownByAgent,
    LedgerNow,
    Turn,
    allowed,
    before,
    cut_short,
    due_s,
    give_up_s,
    ledger_now,
    may_take_over,
    records_of,
    situation,
    succeed,
)
from tests.settings import settings_with

ST = Settings()
LONGEST_S = longest_s(ST)
DEAD = KnownByAgent(LONGEST_S + 1.0, 0, batch_node=False, before=False, job=JobNow.OURS, ledger=LedgerNow.OURS)
WILL = HandoverPlan("/ledger", 7, 0, "r1", "7", "c", "n1", ("n1", "n2", "n3", "n4"), ST)
RUNS = SlurmAnswered("RUNNING", True, True, usable=frozenset({"n1", "n2", "n3", "n4", "n5"}), node_count=4)


def run(name: str, schedule: int = 0, node: str = "n1") -> rec.RunBegan:
    return rec.RunBegan(1.0, name, "7", "c", schedule, "k", "train", "n[1-4]", batch_node=node, size=4)


def begun(attempt: int = 1, schedule: int = 0, name: str = "r1") -> rec.AttemptBegan:
    return rec.AttemptBegan(2.0, name, attempt, schedule, "k", 1, "n[1-4]", 8)


def decided(rung: str = "isolated-requeue") -> rec.Decided:
    return rec.Decided(3.0, "r1-1", 1, rung, "node", "n3 is dead", exclude=("n3",), cost="max_restarts")


# --- who, and when


def test_no_lease_can_last_when_the_first_acts() -> None:
    """In touch for a silence longer than a node knows, it renews for another, and what it renewed lasts a lease."""
    assert ST.lease.time_s + 2 * ST.nodes.silence_s < LONGEST_S


@pytest.mark.parametrize(
    ("known", "does", "why"),
    [
        (DEAD, Turn.TAKE_OVER, "nobody else"),
        (replace(DEAD, silent_s=LONGEST_S - 1.0), Turn.WAIT, "lease"),
        (replace(DEAD, batch_node=True), Turn.LEAVE, "lives"),
        (replace(DEAD, batch_node=True, silent_s=1.0), Turn.LEAVE, "lives"),
        (replace(DEAD, batch_node=None), Turn.WAIT, "second proof"),
        (replace(DEAD, batch_node=None, silent_s=give_up_s(ST)), Turn.LEAVE, "too long"),
        (replace(DEAD, batch_node=None, silent_s=ST.slurm.patience_s - 1.0), Turn.WAIT, "second proof"),
        (replace(DEAD, job=JobNow.UNKNOWN, silent_s=ST.slurm.patience_s - 1.0), Turn.WAIT, "Slurm"),
        (replace(DEAD, silent_s=10 * give_up_s(ST)), Turn.TAKE_OVER, "nobody else"),  # slurmctld is back at last
        (replace(DEAD, silent_s=10 * give_up_s(ST), ledger=LedgerNow.OPEN), Turn.FINISH_REQUEUE, "open"),
        (replace(DEAD, job=JobNow.OVER), Turn.LEAVE, "anew"),
        (replace(DEAD, job=JobNow.UNKNOWN), Turn.WAIT, "Slurm"),
        (replace(DEAD, ledger=LedgerNow.CLOSED), Turn.LEAVE, "ledger"),
        (replace(DEAD, ledger=LedgerNow.ELSEWHERE), Turn.LEAVE, "without this node"),
        (replace(DEAD, ledger=LedgerNow.UNKNOWN), Turn.WAIT, "ledger"),
        (replace(DEAD, ledger=LedgerNow.OPEN), Turn.FINISH_REQUEUE, "open"),
        (replace(DEAD, ledger=LedgerNow.FAILED), Turn.FINISH_END, "end"),
    ],
)
def test_the_first_of_the_others(known: KnownByAgent, does: Turn, why: str) -> None:
    turn, reason = succeed(known, ST)
    assert turn is does and why in reason


def test_a_later_one_waits_for_its_turn_and_acts_only_if_all_before_it_are_dead() -> None:
    third = replace(DEAD, place=2, silent_s=due_s(2, ST) - 1.0)
    assert succeed(third, ST)[0] is Turn.WAIT
    third = replace(third, silent_s=due_s(2, ST) + 1.0)
    assert succeed(third, ST)[0] is Turn.TAKE_OVER
    assert succeed(replace(third, before=True), ST)[0] is Turn.WAIT


def test_a_node_that_lives_and_has_lost_its_agent_holds_the_others_up_but_not_for_ever() -> None:
    second = replace(DEAD, place=1, before=True, silent_s=due_s(1, ST) + OVERTAKE_S - 1.0)
    assert succeed(second, ST)[0] is Turn.WAIT
    assert succeed(replace(second, silent_s=due_s(1, ST) + OVERTAKE_S), ST)[0] is Turn.TAKE_OVER


def test_no_two_turns_come_together_and_the_last_one_comes_in_time() -> None:
    turns = [due_s(place, ST) for place in range(STANDBYS)]
    assert all(later - earlier >= TURN_S for earlier, later in pairwise(turns))
    assert turns[-1] + OVERTAKE_S < give_up_s(settings_with(ST, slurm__patience_s=0.0))


def test_leases_of_any_length_leave_time_to_act() -> None:
    st = settings_with(ST, lease__time_s=7200.0)
    assert succeed(replace(DEAD, silent_s=longest_s(st)), st)[0] is Turn.TAKE_OVER
    assert succeed(replace(DEAD, silent_s=longest_s(st), batch_node=None), st)[0] is Turn.WAIT


def test_the_places_follow_the_slots_and_only_some_stay() -> None:
    assert [WILL.place(node) for node in WILL.nodes] == [None, 0, 1, 2]
    assert WILL.before("n4") == ("n2", "n3") and WILL.place("n9") is None
    large = replace(WILL, nodes=("n1", *(f"m{number}" for number in range(100))))
    assert sum(may_take_over(large, node) for node in large.nodes) == STANDBYS
    assert not may_take_over(large, "n1")


def test_nobody_waits_for_a_node_that_has_no_agent() -> None:
    """A spare, or one that the step leaves free."""
    records = [run("r1"), replace(begun(), nodes="n[1,3-4]")]
    assert before(records, WILL, "n3") == () and before(records, WILL, "n4") == ("n3",)
    swapped = rec.SlotsChanged(3.0, "r1", 0, ("n1", "n2", "n4"), {"1": "n2"})
    assert before([*records, swapped], WILL, "n4") == ("n2", "n3"), "on n3 there may be one still"
    assert before([*records, replace(swapped, run="r2")], WILL, "n4") == ("n3",)
    assert before([run("r1")], WILL, "n4") == ("n2", "n3")


# --- what the ledger says


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([run("r1"), begun()], LedgerNow.OURS),
        ([run("r1"), begun(), decided()], LedgerNow.OPEN),
        ([run("r1"), begun(), decided("in-place-restart")], LedgerNow.OURS),
        ([run("r1"), begun(), decided("fail")], LedgerNow.FAILED),
        ([run("r1"), begun(), decided("fail"), rec.Finished(4.0, "r1", 1, "failed")], LedgerNow.CLOSED),
        ([run("r0"), replace(decided("fail"), id="r0-1"), rec.Finished(4.0, "r0", 1, "failed"), run("r1")], LedgerNow.OURS),
        ([run("r1"), begun(), decided(), rec.CarriedOut(4.0, "r1-1", True, "requeued"), run("r2", 1)], LedgerNow.CLOSED),
        ([run("r1"), begun(), rec.Finished(4.0, "r1", 0, "well")], LedgerNow.CLOSED),
        ([run("r1"), begun(), run("r2", 1)], LedgerNow.CLOSED),
        ([run("r1"), begun(), run("r2")], LedgerNow.CLOSED),  # beside it in the script: it has standbys of its own
        ([run("r1"), begun(), run("r2"), rec.Finished(4.0, "r2", 0, "well")], LedgerNow.OURS),
        ([], LedgerNow.CLOSED),
    ],
)
def test_the_ledger_tells_whether_anything_is_to_be_done(records: list[rec.Record], says: LedgerNow) -> None:
    assert ledger_now(records, WILL, "n2") is says


def on(nodes: str, attempt: int) -> rec.AttemptBegan:
    return replace(begun(attempt), nodes=nodes)


SWAPPED = rec.SlotsChanged(3.0, "r1", 0, ("n1", "n4", "n3"), {"1": "n4"})
SHRUNK = rec.SlotsChanged(3.0, "r1", 0, ("n1", "n3"), kept=(0, 2))


@pytest.mark.parametrize(
    ("records", "node", "left"),
    [
        ([on("n[1-3]", 1), SWAPPED, on("n[1,3-4]", 2)], "n2", True),
        ([on("n[1-3]", 1), SWAPPED], "n2", True),  # the next attempt is on its way
        ([on("n[1-3]", 1), SWAPPED, on("n[1,3-4]", 2)], "n3", False),
        ([on("n[1-3]", 1), SWAPPED, on("n[1,3-4]", 2)], "n4", False),  # the spare that took its place
        ([on("n[1-3]", 1), SWAPPED], "n4", False),
        ([on("n[1-3]", 1), SHRUNK, on("n[1,3]", 2)], "n2", True),
        ([on("n[1-3]", 1), on("n[1-3]", 2)], "n4", False),  # a spare
        ([], "n2", False),
        ([SWAPPED], "n2", False),  # what the ftrun before it left behind: this one was never there
        (
            [on("n[1-3]", 1), SWAPPED, on("n[1,3-4]", 2), rec.SlotsChanged(5.0, "r1", 0, ("n1", "n2", "n3"), {"1": "n2"})],
            "n2",
            False,
        ),
        ([on("n[1-3]", 1), replace(SWAPPED, run="r2")], "n2", False),  # of the ftrun beside it
    ],
)
def test_an_agent_on_a_node_that_was_left_is_none_of_the_job_s_any_more(records: list[rec.Record], node: str, left: bool) -> None:
    """Perhaps it only cannot hear the controller, which goes on with the others and writes nothing for hours."""
    assert ledger_now([run("r1"), *records], WILL, node) is (LedgerNow.ELSEWHERE if left else LedgerNow.OURS)


# --- what becomes of the job


def taken_over(
    records: Iterable[rec.Record] = (), slurm: SlurmAnswered = RUNS, **settings: object
) -> tuple[rec.Decided, tuple[rec.Record, ...]]:
    plan = replace(WILL, settings=settings_with(ST, **settings))  # type: ignore[arg-type]
    records = [run("r1"), begun(), *records]
    s = situation(plan, "its slurmd does not answer", fold(records), slurm, 1000.0)
    found, decision = records_of(plan, "n2", s, choose(s), records)
    return decision, found


def test_it_is_requeued_without_the_batch_node_like_any_other_isolated_requeue() -> None:
    decision, found = taken_over()
    assert (decision.rung, decision.cause, decision.cost, decision.exclude) == (
        "isolated-requeue",
        "node",
        "max_restarts",
        ("n1",),
    )
    assert decision.isolate == {"n1": "its slurmd does not answer"} and "decided on n2" in decision.why
    assert [type(record) for record in found] == [rec.TroubleSeen, rec.AttemptEnded, rec.Decided]
    history = fold([run("r1"), begun(), *found])
    assert history.requeues.open == decision and history.budgets.spent == {"max_restarts": 1}
    assert history.kept_out(1000.0, 0.0) == ("n1",)


def test_the_decision_has_an_id_of_its_own_beside_those_of_the_dead() -> None:
    decision, _ = taken_over([replace(decided("in-place-restart"), cost="")])
    assert decision.id not in ("r1-1", "r1-2")


def test_an_end_that_was_written_is_not_written_twice() -> None:
    _, found = taken_over([rec.AttemptEnded(3.0, 1, {"exited with status 0": 8})])
    assert [type(record) for record in found] == [rec.Decided]


@pytest.mark.parametrize(
    ("settings", "slurm", "why"),
    [
        ({"max_restarts": 1}, RUNS, "max_restarts"),
        ({"isolated_requeue__enabled": False}, RUNS, "switched off"),
        ({}, replace(RUNS, requeueable=False), "may not be requeued"),
        ({}, replace(RUNS, usable=frozenset({"n1", "n2", "n3", "n4"})), "only 3 remain"),
        # Slurm has cut the dead node out, and would requeue the job as large as it was
        ({}, replace(RUNS, usable=frozenset({"n1", "n2", "n3", "n4"}), node_count=3), "needs 4 nodes and only 3 remain"),
    ],
)
def test_where_the_ladder_says_no_the_job_ends_with_the_reason(settings: dict, slurm: SlurmAnswered, why: str) -> None:
    before = [decided(), rec.CarriedOut(3.0, "r1-1", True)]
    decision, _ = taken_over(before, slurm, **settings)
    assert decision.rung == "fail" and why in str(decision.passed) and not decision.isolate


def test_it_ends_only_what_slurm_has_left_alone() -> None:
    """Without --no-kill Slurm requeues the job itself, once it has noticed; that is better than to end it."""
    s = situation(
        replace(WILL, settings=settings_with(ST, isolated_requeue__enabled=False)), "dead", fold([run("r1")]), RUNS, 1000.0
    )
    assert allowed(choose(s), noticed=False) and not allowed(choose(s), noticed=True)
    s = situation(WILL, "dead", fold([run("r1")]), RUNS, 1000.0)
    assert not allowed(choose(s), noticed=False)


def test_the_will_arrives_as_it_was_sent() -> None:
    import json

    assert from_message(json.loads(json.dumps(to_message(WILL)))) == WILL


# --- Slurm requeued the job by itself


def test_the_next_scheduling_writes_down_how_the_one_before_ended() -> None:
    found = cut_short([run("r1"), begun()], 1, {"n1": "Slurm says DOWN*"}, 1000.0)
    assert [type(record) for record in found] == [rec.TroubleSeen, rec.AttemptEnded]
    assert found[0].what == "the batch node n1 died (Slurm says DOWN*), and Slurm requeued the job"  # type: ignore[union-attr]
    assert found[0].cause == "node" and found[1].exits == {"unknown": 8}  # type: ignore[union-attr]
    assert {record.at for record in found} == {1000.0}  # and not when the next one began
    seen = rec.TroubleSeen(1001.5, 1, "lost", "rank 3 on n2 is out of reach")
    assert cut_short([run("r1"), begun(), seen], 1, {}, 1001.0)[-1].at == seen.at  # slurmctld's clock, in whole seconds
    history = fold([run("r1"), begun(), *found, run("r2", 1)])
    assert (history.budgets.spent, history.requeues.unconditional_in_a_row, history.decisions) == ({}, 0, 0)


def test_of_a_batch_node_that_lives_it_says_only_what_it_knows() -> None:
    found = cut_short([run("r1"), begun()], 1, {}, 1000.0)
    assert found[0].cause == "outside" and "ended without a word" in found[0].what  # type: ignore[union-attr]
    seen = rec.TroubleSeen(3.0, 1, "lost", "rank 3 on n2 is out of reach")
    assert cut_short([run("r1"), begun(), seen], 1, {}, 1000.0)[0].cause == "lost"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "records",
    [
        [],
        [run("r1"), begun(), rec.Finished(3.0, "r1", 0, "requeued")],
        [run("r1", 1), begun(schedule=1)],  # the ftrun before in the same script
        [run("r1"), begun(), rec.AttemptEnded(3.0, 1)],
        [run("r1")],
    ],
)
def test_nothing_is_written_where_there_is_nothing_to_tell(records: list[rec.Record]) -> None:
    assert cut_short(records, 1, {"n1": "Slurm says DOWN*"}, 1000.0) == ()
