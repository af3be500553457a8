"""What a step has of its nodes, as text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model import record as rec
from ftslurm.model.folds.history import fold
from ftslurm.model.job import Share, fold_counts, fold_shares, unfold_counts, unfold_shares

COUNTS = st.lists(st.integers(0, 512), max_size=20)


def test_counts_are_written_as_slurm_writes_them() -> None:
    assert fold_counts([4, 4, 4, 2]) == "4(x3),2"
    assert unfold_counts("4(x3),2") == (4, 4, 4, 2)


@given(COUNTS)
def test_counts_come_back(counts: list[int]) -> None:
    assert unfold_counts(fold_counts(counts)) == tuple(counts)


@pytest.mark.parametrize("text", ["", "x", "4(x)", "4,", "-1", "4(x9999999)", "٤"])
def test_what_is_no_such_text_says_nothing(text: str) -> None:
    assert unfold_counts(text) == ()


@given(st.lists(st.builds(Share, st.integers(0, 9), st.integers(0, 9)), max_size=9))
def test_shares_come_back_unless_there_are_none(shares: list[Share]) -> None:
    known = any(share != Share() for share in shares)
    assert unfold_shares(*fold_shares(shares)) == (tuple(shares) if known else ())


def test_shares_that_do_not_fit_say_nothing() -> None:
    assert unfold_shares("4(x3)", "1(x2)") == ()


def began(number: int, cpus: str, gpus: str = "") -> rec.AttemptBegan:
    return rec.AttemptBegan(float(number), "r", number, 0, "k", number, "n[1-3]", 3, f"7.{number}", cpus, gpus)


def test_the_history_knows_what_each_slot_had_also_after_some_were_given_up() -> None:
    past = [began(1, "4,2,8", "1(x3)")]
    assert fold(past).slots.shares[0, "k"] == (Share(4, 1), Share(2, 1), Share(8, 1))
    smaller = rec.SlotsChanged(2.0, "r", 0, ("n1", "n3"), kept=(0, 2))
    assert fold([*past, smaller]).slots.shares[0, "k"] == (Share(4, 1), Share(8, 1))
