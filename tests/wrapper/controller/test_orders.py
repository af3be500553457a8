"""What shims are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.wrapper.controller.orders import ORDERS, RankSetup


def told(order: do.Decision, ranks: int, setup: RankSetup) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    shims = {rank: SimpleNamespace(send=said.append, place=(0, rank)) for rank in range(ranks)}
    ORDERS[type(order)](SimpleNamespace(shims=shims), setup, order)  # type: ignore[arg-type]
    return said


def test_orders_are_plain() -> None:
    setup = RankSetup(programs=lambda tasks: {1: ("x", "y")})
    assert told(do.StartRanks(2, {1: {"A": "1"}}, 0), 2, setup) == [{
        "t": "start", "attempt": 2, "env": {"A": "1"}, "argv": ("x", "y"), "tail": 0, "silence_s": 0.0, "inject": "",
        "logs": None, "alone": True, "warm": {},
    }]  # fmt: skip
    assert told(do.StartRanks(1, {0: {}}, 0), 1, setup)[0]["argv"] is None
    assert told(do.StopRanks(2, 20.0, 30.0, asked=True), 1, setup) == [
        {"t": "stop", "attempt": 2, "grace_s": 20.0, "kill_wait_s": 30.0, "asked": True, "saves": False}
    ]


@pytest.mark.parametrize(("ranks", "kept"), [(1, 65536), (1024, 65536), (8192, 8192)])
def test_the_last_words_of_a_large_job_are_short(ranks: int, kept: int) -> None:
    """All come at once, and ftrun has leases to renew."""
    said = told(do.StartRanks(1, {rank: {} for rank in range(ranks)}, 0), ranks, RankSetup(tail_bytes=65536))
    assert len(said) == ranks and {message["tail"] for message in said} == {kept}
