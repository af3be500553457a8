"""The ladder as a table: a situation, and the rung that answers it. Source: ModelArts, fault recovery of training jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.config.catalog_files import load_glossary
from ftslurm.model import record as rec
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.folds.history import History, fold
from ftslurm.model.rungs import RUNG_NAMES
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.ladder import LADDER, SLURM_KNOWS_S, Cause, Choice, OtherNodes, Situation, choose, let_in
from ftslurm.policies.node_charges import Series
from tests.settings import settings_with

NOW = 1_700_000_000.0
HOUR_S = 3600.0
SLURM = SlurmAnswered("RUNNING", batch=True, requeueable=True, usable=frozenset({"n1", "n2", "n3"}), node_count=2)
HEALS = Fault("n2", "0.0", "80E01801", "HBM: multi-bit ECC", FaultClass.SELF_HEALING)
BROKEN = replace(HEALS, code="80E18402", fault_class=FaultClass.ISOLATE)
USERS = replace(HEALS, code="80C98002", user_induced=True)
BLAMED = {"n2": "speaks for itself"}
IN_PLACE, HANG, REPLACE, ISOLATED, UNCONDITIONAL, FAIL = (
    "in-place-restart", "hang-restart", "node-replacement", "isolated-requeue", "unconditional-requeue", "fail",
)  # fmt: skip


def seen(fault: Fault, *hours_ago: float) -> list[rec.Record]:
    return [
        rec.FaultSeen(NOW - ago * HOUR_S, fault.node, fault.device, fault.code, fault.name, fault.fault_class.value)
        for ago in hours_ago
    ]


def decided(*verdicts: tuple[str, str], cost: str = "max_restarts") -> list[rec.Record]:
    """One record a (rung, cause)."""
    return [
        rec.Decided(NOW, f"d{number}", number, rung, cause, "because", cost=cost if rung != IN_PLACE else "")
        for number, (rung, cause) in enumerate(verdicts)
    ]


def situation(
    cause: Cause = Cause.CRASH, past: Iterable[rec.Record] = (), policy: Settings | None = None, **more: Any
) -> Situation:
    given_ = {"slurm": SLURM, "can": frozenset({"ask", "requeue"}), "step": frozenset({"n1", "n2"})} | more
    return Situation(
        cause, "something happened", 1, fold(past), policy or settings_with(in_place_restart__crash_restarts=0), NOW, **given_
    )


CRASHES = [(UNCONDITIONAL, "crash")] * 3


@pytest.mark.parametrize(
    ("told", "rung", "cost"),
    [
        # in-place restart
        (situation(Cause.DEVICE, seen(HEALS, 0), faults=(HEALS,)), IN_PLACE, ""),
        (situation(Cause.DEVICE, seen(HEALS, 0, 1), faults=(HEALS,)), IN_PLACE, ""),
        (situation(Cause.DEVICE, seen(HEALS, 0, 1, 2), faults=(HEALS,), blamed=BLAMED), ISOLATED, "max_restarts"),
        (situation(Cause.DEVICE, seen(HEALS, 0, 1, 25), faults=(HEALS,)), IN_PLACE, ""),
        (situation(Cause.DEVICE, seen(HEALS, 0, 1, 24), faults=(HEALS,), blamed=BLAMED), ISOLATED, "max_restarts"),
        (situation(Cause.DEVICE, seen(replace(HEALS, device="1.0"), 0, 1, 2), faults=(HEALS,)), IN_PLACE, ""),
        (situation(Cause.DEVICE, seen(replace(HEALS, node="n1"), 0, 1, 2), faults=(HEALS,)), IN_PLACE, ""),
        (situation(Cause.DEVICE, seen(replace(HEALS, code="80E18008"), 0, 1, 2), faults=(HEALS,)), IN_PLACE, ""),
        (situation(Cause.DEVICE, seen(USERS, 0, 1, 2), faults=(USERS,)), UNCONDITIONAL, "max_restarts"),
        (situation(Cause.DEVICE, seen(USERS, 0, 1), faults=(USERS,)), IN_PLACE, ""),
        (situation(Cause.DEVICE, faults=(BROKEN,), blamed=BLAMED), ISOLATED, "max_restarts"),
        (situation(Cause.DEVICE, faults=(HEALS, BROKEN), blamed=BLAMED), ISOLATED, "max_restarts"),
        (situation(Cause.DEVICE, faults=(HEALS,), unhealed={"n2": "no"}, blamed={"n2": "no"}), ISOLATED, "max_restarts"),
        (situation(Cause.DEVICE, faults=(HEALS,), not_in_place="a shim is gone", blamed=BLAMED), ISOLATED, "max_restarts"),
        # healing one node's chip does not bring another node back
        (situation(Cause.DEVICE, seen(HEALS, 0), faults=(HEALS,), blamed={"n1": "Slurm says DOWN"}), ISOLATED, "max_restarts"),
        # spending nothing, it needs no slurmctld and no budget
        (situation(Cause.DEVICE, faults=(HEALS,), slurm=None, can=frozenset()), IN_PLACE, ""),
        (situation(Cause.DEVICE, decided(*[(ISOLATED, "node")] * 8), faults=(HEALS,)), IN_PLACE, ""),
        # node replacement
        (situation(Cause.NODE, blamed=BLAMED, policy=settings_with(in_place_restart__crash_restarts=0, node_replacement__enabled=True, node_replacement__budget=1),
                   can=frozenset({"ask", "requeue", "replace"})), REPLACE, "node_replacements"),
        (situation(Cause.NODE, blamed=BLAMED, policy=settings_with(in_place_restart__crash_restarts=0, node_replacement__enabled=True, node_replacement__budget=1)), ISOLATED,
         "max_restarts"),
        (situation(Cause.NODE, decided((REPLACE, "node"), cost="node_replacements"), blamed=BLAMED,
                   policy=settings_with(in_place_restart__crash_restarts=0, node_replacement__enabled=True, node_replacement__budget=1),
                   can=frozenset({"ask", "requeue", "replace"})), ISOLATED, "max_restarts"),
        # isolated requeue
        (situation(Cause.NODE, blamed=BLAMED), ISOLATED, "max_restarts"),
        (situation(Cause.NODE, decided(*CRASHES), blamed=BLAMED), ISOLATED, "max_restarts"),
        (situation(Cause.NODE, blamed=BLAMED, policy=settings_with(in_place_restart__crash_restarts=0, isolated_requeue__enabled=False)), FAIL, ""),
        (situation(Cause.NODE, decided((ISOLATED, "node")), blamed=BLAMED, policy=settings_with(in_place_restart__crash_restarts=0, max_restarts=1)), FAIL, ""),
        (situation(Cause.NODE, blamed={"n1": "down", "n2": "down"}), FAIL, ""),
        (situation(Cause.NODE, blamed=BLAMED, slurm=replace(SLURM, usable=None)), ISOLATED, "max_restarts"),
        # unconditional requeue
        (situation(), UNCONDITIONAL, "max_restarts"),
        (situation(Cause.LOST), UNCONDITIONAL, "max_restarts"),
        (situation(past=decided(*CRASHES[:2])), UNCONDITIONAL, "max_restarts"),
        (situation(past=decided(*CRASHES)), FAIL, ""),
        (situation(past=decided(*CRASHES, (IN_PLACE, "device"))), UNCONDITIONAL, "max_restarts"),
        (situation(past=decided(*CRASHES, (ISOLATED, "node"))), UNCONDITIONAL, "max_restarts"),
        (situation(past=decided(*CRASHES[:2], (ISOLATED, "device"), *CRASHES[:2])), UNCONDITIONAL, "max_restarts"),
        (situation(past=decided((UNCONDITIONAL, "lost"), (UNCONDITIONAL, "crash"), (UNCONDITIONAL, "lost"))), FAIL, ""),
        (situation(past=decided(*CRASHES, *CRASHES), policy=settings_with(in_place_restart__crash_restarts=0, unconditional_requeue__in_a_row=7)), UNCONDITIONAL, "max_restarts"),
        (situation(past=decided(*CRASHES, *CRASHES), policy=settings_with(in_place_restart__crash_restarts=0, unconditional_requeue__in_a_row=7, max_restarts=6)), FAIL, ""),
        (situation(past=decided((ISOLATED, "node"), (UNCONDITIONAL, "crash")), policy=settings_with(in_place_restart__crash_restarts=0, max_restarts=2)), FAIL, ""),
        (situation(policy=settings_with(in_place_restart__crash_restarts=0, unconditional_requeue__enabled=False)), FAIL, ""),
        (situation(Cause.UNSTARTABLE), FAIL, ""),
        # a fault that the user caused is requeued by the automatic restart, in whatever row it stands
        (situation(Cause.DEVICE, [*seen(USERS, 0, 1, 2), *decided(*CRASHES)], faults=(USERS,)), UNCONDITIONAL, "max_restarts"),
        (situation(Cause.DEVICE, seen(USERS, 0, 1, 2), faults=(USERS,), policy=settings_with(in_place_restart__crash_restarts=0, unconditional_requeue__enabled=False)),
         UNCONDITIONAL, "max_restarts"),
        (situation(Cause.DEVICE, seen(USERS, 0, 1, 2), faults=(USERS,),
                   policy=settings_with(in_place_restart__crash_restarts=0, unconditional_requeue__enabled=False, isolated_requeue__enabled=False)), FAIL, ""),
        # requeues that Slurm would not take
        (situation(can=frozenset({"ask"})), FAIL, ""),
        (situation(slurm=None), FAIL, ""),
        (situation(slurm=SlurmAnswered(error="silent")), FAIL, ""),
        (situation(slurm=replace(SLURM, batch=False)), FAIL, ""),
        (situation(slurm=replace(SLURM, requeueable=False)), FAIL, ""),
        (situation(slurm=replace(SLURM, requeueable=False), policy=settings_with(in_place_restart__crash_restarts=0, requeue__even_if_no_requeue=True)), UNCONDITIONAL,
         "max_restarts"),
        # crashes in place, as ft_launcher
        (situation(policy=settings_with(in_place_restart__crash_restarts=1)), IN_PLACE, "crash_restarts"),
        (situation(Cause.LOST, policy=settings_with(in_place_restart__crash_restarts=1)), UNCONDITIONAL, "max_restarts"),
        (situation(Cause.UNSTARTABLE, policy=settings_with(in_place_restart__crash_restarts=1)), FAIL, ""),
        (situation(policy=settings_with(in_place_restart__crash_restarts=1), not_in_place="a shim is gone"), UNCONDITIONAL, "max_restarts"),
        (situation(policy=settings_with(in_place_restart__crash_restarts=1), series=Series(in_place=1)), UNCONDITIONAL,
         "max_restarts"),
        # what the ranks have read is not there again: only a requeue, which runs the script, or the end
        (situation(Cause.DEVICE, faults=(HEALS,), others=OtherNodes(not_again="read")), UNCONDITIONAL, "max_restarts"),
        (situation(policy=settings_with(in_place_restart__crash_restarts=1), others=OtherNodes(not_again="read")), UNCONDITIONAL, "max_restarts"),
        (situation(Cause.NODE, blamed=BLAMED, policy=settings_with(node_replacement__enabled=True),
                   can=frozenset({"ask", "requeue", "replace"}), others=OtherNodes(spares=1, not_again="read")), ISOLATED, "max_restarts"),
        (situation(can=frozenset({"ask"}), others=OtherNodes(not_again="read")), FAIL, ""),
        # a hang with a node to blame: without it, but only by rungs that the policy has
        (situation(Cause.HANG, blamed=BLAMED, policy=settings_with(in_place_restart__crash_restarts=0, hang_restart__enabled=True)), ISOLATED, "max_restarts"),
        (situation(Cause.HANG, blamed=BLAMED, policy=settings_with(in_place_restart__crash_restarts=0, hang_restart__enabled=True, ladder=(HANG, UNCONDITIONAL))), HANG, ""),
        (situation(Cause.HANG, blamed=BLAMED, policy=settings_with(in_place_restart__crash_restarts=0, hang_restart__enabled=True, node_replacement__enabled=True, node_replacement__budget=1,
                                                              ladder=(HANG, ISOLATED)),
                   can=frozenset({"ask", "requeue", "replace"}), slurm=None, others=OtherNodes(spares=1)), HANG, ""),
        # the policy's own order
        (situation(policy=settings_with(in_place_restart__crash_restarts=0, ladder=())), FAIL, ""),
        (situation(policy=settings_with(in_place_restart__crash_restarts=0, ladder=(ISOLATED,))), FAIL, ""),
        (situation(policy=settings_with(in_place_restart__crash_restarts=0, ladder=(FAIL, UNCONDITIONAL))), FAIL, ""),
        (situation(Cause.DEVICE, faults=(HEALS,), policy=settings_with(in_place_restart__crash_restarts=0, ladder=(UNCONDITIONAL, IN_PLACE))), UNCONDITIONAL,
         "max_restarts"),
    ],
)  # fmt: skip
def test_the_ladder(told: Situation, rung: str, cost: str) -> None:
    answer = choose(told)
    assert (answer.rung, answer.cost) == (rung, cost), answer


def whys(answer: Choice) -> dict[str, str]:
    return dict(answer.passed)


@pytest.mark.parametrize(
    ("told", "rung", "words"),
    [
        (situation(Cause.DEVICE, seen(HEALS, 0, 1, 2), faults=(HEALS,), blamed=BLAMED), IN_PLACE,
         ("80E01801", "0.0", "n2", "3rd", "24 h")),
        (situation(Cause.DEVICE, faults=(BROKEN,), blamed=BLAMED), IN_PLACE, ("80E18402", "does not heal")),
        (situation(Cause.DEVICE, faults=(HEALS,), unhealed={"n2": "still there"}, blamed=BLAMED), IN_PLACE,
         ("n2", "still there")),
        (situation(past=decided(*CRASHES)), UNCONDITIONAL, ("3", "in a row", "program")),
        (situation(past=decided(*[(ISOLATED, "node")] * 8)), UNCONDITIONAL, ("all 8", "max_restarts")),
        (situation(slurm=replace(SLURM, requeueable=False)), UNCONDITIONAL, ("sbatch --requeue",)),
        (situation(slurm=SlurmAnswered(error="no answer within 60 s")), UNCONDITIONAL, ("no answer within 60 s",)),
        (situation(Cause.NODE, blamed={"n1": "down", "n2": "down"}), ISOLATED, ("2 nodes", "only 1", "n1", "n2")),
        (situation(policy=settings_with(in_place_restart__crash_restarts=0, unconditional_requeue__enabled=False)), UNCONDITIONAL, ("switched off",)),
    ],
)  # fmt: skip
def test_a_rung_that_is_passed_says_why(told: Situation, rung: str, words: tuple[str, ...]) -> None:
    why = whys(choose(told))[rung]
    assert all(word in why for word in words), why


def test_nodes_kept_out_before_count_among_those_that_are_missing() -> None:
    past = [rec.Decided(NOW - HOUR_S, "d0", 1, ISOLATED, "node", "because", isolate={"n3": "down"}, cost="max_restarts")]
    assert choose(situation(Cause.NODE, past, blamed=BLAMED)).rung == FAIL
    expired = settings_with(isolation__expires_s=HOUR_S / 2)
    assert choose(situation(Cause.NODE, past, expired, blamed=BLAMED)).rung == ISOLATED


def test_every_rung_can_be_explained_to_people() -> None:
    assert list(LADDER) == list(load_glossary().rungs) == list(RUNG_NAMES)
    assert all(words.trigger for words in load_glossary().rungs.values())


@given(
    cause=st.sampled_from([cause for cause in Cause if cause is not Cause.WARNING]),
    policy=st.builds(
        settings_with, ladder=st.lists(st.sampled_from(RUNG_NAMES), unique=True).map(tuple), max_restarts=st.integers(1, 3),
        in_place_restart__enabled=st.booleans(), isolated_requeue__enabled=st.booleans(), unconditional_requeue__enabled=st.booleans(),
        node_replacement__enabled=st.booleans(), node_replacement__budget=st.integers(0, 2), in_place_restart__crash_restarts=st.integers(0, 1),
    ),
    faults=st.sampled_from([(), (HEALS,), (USERS,), (BROKEN,)]),
    blamed=st.sampled_from([{}, BLAMED]),
    past=st.lists(st.sampled_from(decided((ISOLATED, "node"), (UNCONDITIONAL, "crash"))), max_size=4),
    slurm=st.sampled_from([None, SLURM, SlurmAnswered(error="silent"), replace(SLURM, requeueable=False)]),
)  # fmt: skip
def test_any_choice_is_on_the_ladder_paid_and_explained(
    cause: Cause, policy: Settings, faults: tuple[Fault, ...], blamed: dict[str, str], past: list[rec.Record],
    slurm: SlurmAnswered | None,
) -> None:  # fmt: skip
    history: History = fold(past)
    answer = choose(
        Situation(
            cause,
            "",
            1,
            history,
            policy,
            NOW,
            faults=faults,
            blamed=blamed,
            slurm=slurm,
            can=frozenset({"ask", "requeue", "replace"}),
            step=frozenset(blamed),
        )
    )
    assert answer.rung in (*policy.ladder, FAIL) and answer.why
    if answer.cost:
        limit = {
            "max_restarts": policy.max_restarts,
            "node_replacements": policy.node_replacement.budget,
            "crash_restarts": policy.in_place_restart.crash_restarts,
        }
        assert history.budgets.spent.get(answer.cost, 0) < limit[answer.cost]
    above = (*policy.ladder, FAIL)[: (*policy.ladder, FAIL).index(answer.rung)]
    asked = [name for name in above if name != "rank-restart"]
    assert [name for name, _ in answer.passed] == asked and all(why for _, why in answer.passed)
    if answer.rung.endswith("requeue"):
        assert slurm is not None and slurm.batch and slurm.requeueable


# --- a node that is known dead


def left_dead(*dead: str, ago_s: float = 60.0) -> list[rec.Record]:
    """n2 and n3 were isolated, n2 before n3."""
    return [
        rec.Decided(NOW - ago_s - 1.0, "r-1", 1, REPLACE, "node", "because", isolate={"n2": "x"}, dead=tuple({"n2"} & {*dead})),
        rec.Decided(NOW - ago_s, "r-2", 1, REPLACE, "node", "because", isolate={"n3": "x"}, dead=tuple({"n3"} & {*dead})),
    ]


def test_the_node_left_longest_ago_is_let_in_but_none_that_is_known_dead() -> None:
    assert let_in(situation(Cause.LOST, left_dead())) == ("n2",)
    assert let_in(situation(Cause.LOST, left_dead("n2"))) == ("n3",)
    assert let_in(situation(Cause.LOST, left_dead("n2", "n3"))) == ()


def test_a_job_that_only_a_dead_node_could_complete_is_not_requeued_onto_it() -> None:
    choice = choose(situation(Cause.LOST, left_dead("n2", "n3")))
    assert choice.rung == FAIL
    assert "only 1 remains without n2, n3 (known dead)" in dict(choice.passed)[UNCONDITIONAL]
    assert choose(situation(Cause.LOST, left_dead("n2"))).rung == UNCONDITIONAL


def test_dead_is_dead_until_slurm_must_know_it_or_a_rank_runs_there() -> None:
    assert let_in(situation(Cause.LOST, left_dead("n2", ago_s=SLURM_KNOWS_S))) == ("n2",)
    ran = rec.AttemptBegan(NOW - 1.0, "r", 2, 0, "k", 2, "n[1-2]", 2)
    assert let_in(situation(Cause.LOST, [*left_dead("n2"), ran])) == ("n2",)


def test_a_limit_that_ends_the_job_is_named_as_a_setting() -> None:
    spent = decided(*[(ISOLATED, "node")] * 8)
    failed = choose(situation(Cause.NODE, spent, blamed=BLAMED))
    assert (failed.rung, failed.limit) == (FAIL, "max_restarts") and "(max_restarts)" in failed.why
    assert choose(situation(Cause.LAUNCH)).limit == ""
