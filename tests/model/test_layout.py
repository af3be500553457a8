"""Which node fills which slot, and what becomes of the ranks when that changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model.job import Layout

THREE = Layout(("n1", "n2", "n3"), (0, 0, 1, 1, 2, 2))


def test_a_rank_has_its_node_by_its_slot() -> None:
    assert [THREE.node_of(rank) for rank in range(6)] == ["n1", "n1", "n2", "n2", "n3", "n3"]
    assert [THREE.ranks_of(slot) for slot in range(3)] == [(0, 1), (2, 3), (4, 5)]
    assert Layout(("n1", "n2"), (0, 1, 0, 1)).ranks_of(1) == (1, 3), "cyclic"


def test_another_node_in_a_slot_moves_no_rank_and_knows_its_lender() -> None:
    lent = THREE.filled({1: "m9"}, {"m9": 77})
    assert lent == Layout(("n1", "m9", "n3"), THREE.slots, {"m9": 77})
    assert lent.filled({1: "n4"}, {}) == Layout(("n1", "n4", "n3"), THREE.slots), "who lent the one that left is forgotten"
    assert lent.filled({0: "m8"}, {"m8": 78}).lent == {"m9": 77, "m8": 78}
    assert not THREE.chosen and lent.chosen, "srun would number these nodes in an order of its own"


def test_with_fewer_slots_the_rest_moves_up_and_keeps_its_order() -> None:
    lent = THREE.filled({2: "m9"}, {"m9": 77})
    assert lent.without([0]) == Layout(("n2", "m9"), (0, 0, 1, 1), {"m9": 77})
    assert lent.without([2]) == Layout(("n1", "n2"), (0, 0, 1, 1))
    assert lent.without([2]).chosen, "these may stand in an order of their own still"
    assert Layout(("n1", "n2", "n3"), (0, 1, 2, 0, 1, 2)).without({1}) == Layout(("n1", "n3"), (0, 1, 0, 1))


def test_one_part_a_job_and_our_own_first() -> None:
    assert THREE.parts() == ((0, (0, 1, 2, 3, 4, 5)),)
    lent = THREE.filled({0: "m9", 2: "m8"}, {"m9": 88, "m8": 77})
    assert lent.parts() == ((0, (2, 3)), (77, (4, 5)), (88, (0, 1)))
    all_lent = Layout(("m9",), (0, 0), {"m9": 88})
    assert all_lent.parts() == ((88, (0, 1)),), "no srun without ranks"


@given(
    slots=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    lent=st.dictionaries(st.integers(0, 4), st.integers(1, 3)),
    gone=st.sets(st.integers(0, 4), max_size=4),
)
def test_every_rank_is_in_one_part_and_on_the_node_it_was_on(slots: list[int], lent: dict[int, int], gone: set[int]) -> None:
    layout = Layout(tuple(f"n{slot}" for slot in range(5)), tuple(slots), {f"n{slot}": job for slot, job in lent.items()})
    parts = layout.parts()
    assert sorted(rank for _, ranks in parts for rank in ranks) == list(range(len(slots)))
    assert all(layout.lent.get(layout.node_of(rank), 0) == job for job, ranks in parts for rank in ranks)
    smaller = layout.without(gone)
    stayed = [layout.node_of(rank) for rank in range(len(slots)) if slots[rank] not in gone]
    assert [smaller.node_of(rank) for rank in range(len(smaller.slots))] == stayed
