"""A few cases of the campaign (campaign.py), on jobs of two and three ranks; the slow ones are in the campaign alone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hang.campaign import perform
from tests.hang.cases import Plan, make
from tests.hang.matrix import Told, rates, summary
from tests.hang.torch_here import need_torch

PLANS = {
    "collectives": Plan("plain", "L2", 3, tuple(make(act, 1, 3) for act in ("evaluate", "deadlock", "stop inside"))),
    "ddp": Plan("ddp", "L1", 2, tuple(make(act, 1, 2) for act in ("hiccup", "stop outside"))),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: the socket of torch's server lies in it, and such a path has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="hang-", dir="/tmp"))
    yield path / "job"
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.long  # one of real torch that every make test has: tests/live/test_standstill_live.py
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANS)
def test_who_hangs(folder: Path, name: str) -> None:
    need_torch()
    for result in perform(PLANS[name], folder):
        assert result.ok, f"{result.case}: {result.verdict.finding}\n{result.verdict.text}"


def test_the_matrix() -> None:
    told = [
        Told("sleep", "RankNonCommHang", "RankNonCommHang", True, "right"),
        Told("sleep", "RankNonCommHang", "RankNonCommHang", False, "of another rank"),
        Told("cut", "RankCommHang", "", False, "missed"),
        Told("evaluate", "", "", True, "healthy"),
        Told("compile", "", "RankCommHang", False, "said of a healthy one"),
    ]
    assert rates(told) == (1, 3, 3) and rates(told, "RankCommHang") == (0, 1, 1)
    head, *rows, empty, kind, everything, healthy, _, _, _ = summary(told, ["RankCommHang"]).splitlines()
    assert head.split() == ["(nothing)", "RankCommHang", "RankNonCommHang", "RankNonCommHang,", "wrong", "rank"] and not empty
    assert [row.split() for row in rows] == [
        ["(healthy)", "1", "1", ".", "."], ["RankCommHang", "1", ".", ".", "."], ["RankNonCommHang", ".", ".", "1", "1"],
    ]  # fmt: skip
    assert kind == "RankCommHang     precision 0.000, recall 0.000   (0 right of 1 said and 1 done)"
    assert everything == "all              precision 0.333, recall 0.333   (1 right of 3 said and 3 done)"
    assert healthy == "healthy          1 of 2 left alone"
