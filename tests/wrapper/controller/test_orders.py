"""What each rank is told, as far as it depends on how many there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.wrapper.controller.orders import Orders, RankSetup


@pytest.mark.parametrize(("ranks", "kept"), [(1, 65536), (1024, 65536), (8192, 8192)])
def test_the_last_words_of_a_large_job_are_short(ranks: int, kept: int) -> None:
    """All come at once, and ftrun has leases to renew."""
    said: list[Any] = []
    shims = {rank: SimpleNamespace(send=said.append, place=(0, rank)) for rank in range(ranks)}
    orders = Orders(SimpleNamespace(callers=SimpleNamespace(shims=shims)), RankSetup(tail_bytes=65536))  # type: ignore[arg-type]
    orders.give(do.StartRanks(1, {rank: {} for rank in range(ranks)}, 0))
    assert len(said) == ranks and {message["tail"] for message in said} == {kept}
