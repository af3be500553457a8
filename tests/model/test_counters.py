"""MA_SCHEDULE_CNT and MA_PROC_START_CNT, as ranks and the batch script are told: a ledger goes in, counters come out."""

from __future__ import annotations

import pytest

from ftslurm.model.folds.history import Counters, counters, counters_of_attempt, counters_of_node, fold, restarts
from ftslurm.model.record import AttemptBegan, RankBegan, Record, SlotsChanged


def began(attempt: int, starts: int = 1, schedule: int = 0, step_key: str = "train") -> AttemptBegan:
    return AttemptBegan(float(attempt), "r", attempt, schedule, step_key, starts, "n[1-2]", 4)


def alone(attempt: int, rank: int, schedule: int = 0) -> RankBegan:
    return RankBegan(float(attempt), "r", attempt, schedule, "train", rank, 0)


def swapped(slot: int, ranks: tuple[int, ...] = ()) -> SlotsChanged:
    return SlotsChanged(9.0, "r", 0, ("n1", "n3"), {str(slot): "n3"}, ranks=ranks)


ONE, TWO = [began(1)], [began(1), began(2, 2)]

# The ledger; requeues of the job; slot and rank; what the rank is told; what a script on the node of the slot is told.
TABLE = [
    ("nothing was started yet", [], 0, 0, 0, (1, 0, 0), (1, 1, 1)),
    ("first start", ONE, 0, 0, 0, (1, 1, 1), (1, 1, 1)),
    ("started again on the same nodes", TWO, 0, 0, 0, (1, 2, 2), (1, 2, 2)),
    ("requeued, and not yet started", TWO, 1, 0, 0, (2, 0, 2), (2, 1, 3)),
    ("requeued", [*TWO, began(3, 1, 1)], 1, 0, 0, (2, 1, 3), (2, 1, 3)),
    ("a rank that was started alone", [*ONE, alone(2, 3)], 0, 1, 3, (1, 2, 2), (1, 1, 2)),
    ("a rank beside one that was started alone", [*ONE, alone(2, 3)], 0, 1, 2, (1, 1, 2), (1, 1, 2)),
    ("alone and then with all others", [*ONE, alone(2, 3), began(3, 2)], 0, 1, 3, (1, 3, 3), (1, 2, 3)),
    ("alone, before a requeue", [*ONE, alone(2, 3), began(3, 1, 1)], 1, 1, 3, (2, 1, 3), (2, 1, 3)),
    ("a slot that was given another node", [*TWO, swapped(1, (2, 3)), began(3, 3)], 0, 1, 2, (2, 1, 3), (2, 1, 3)),
    ("another slot than the one that was", [*TWO, swapped(1, (2, 3)), began(3, 3)], 0, 0, 0, (1, 3, 3), (1, 3, 3)),
    ("given another node, not yet started there", [*TWO, swapped(1, (2, 3))], 0, 1, 2, (2, 0, 2), (2, 1, 2)),
    ("alone before its slot was given another node", [*ONE, alone(2, 3), swapped(1, (2, 3)), began(3, 2)], 0, 1, 3, (2, 1, 3), (2, 1, 3)),
    ("given another node before a requeue", [*ONE, swapped(1, (2, 3)), began(2, 1, 1)], 1, 1, 2, (3, 1, 2), (3, 1, 2)),
    ("two commands of one script", [*TWO, began(3, 1, step_key="eval")], 0, 0, 0, (1, 2, 3), (1, 2, 3)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ledger", "schedule", "slot", "rank", "told", "script"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_a_rank_and_a_script_on_its_node_are_told(
    ledger: list[Record], schedule: int, slot: int, rank: int, told: tuple[int, ...], script: tuple[int, ...]
) -> None:
    past = fold(ledger)
    assert counters(past, schedule, "train", slot, rank) == Counters(*told)
    assert counters_of_node(past, schedule, slot) == Counters(*script)


def test_a_node_without_a_slot_and_a_job_as_a_whole_count_as_if_no_slot_had_changed() -> None:
    past = fold([*TWO, swapped(1), began(3, 3)])
    assert counters_of_node(past, 0, None) == counters(past, 0, "train") == counters_of_attempt(began(3, 3)) == Counters(1, 3, 3)


@pytest.mark.parametrize(("ledger", "told"), [
    ([], 0), (ONE, 0), (TWO, 1), ([*TWO, began(3, 1, 1)], 2), ([*ONE, alone(2, 3)], 1), ([*TWO, began(3, step_key="other")], 1),
])  # fmt: skip
def test_restarts_are_those_of_one_command_in_all_schedulings(ledger: list[Record], told: int) -> None:
    assert restarts(fold(ledger), "train") == told
