"""A rank's state over the wire: what was sent comes out, rank 0 and plain `no` as well."""

from __future__ import annotations

from ftslurm.model.collectives import GroupView, ProcessState, RankView
from ftslurm.model.plain import from_plain, to_plain


def test_nothing_is_lost_on_the_way() -> None:
    view = RankView(
        0, "n1", ProcessState.SLEEPING, main_fresh=False, gil_held=False, cpu_percent=0.0, children=0,
        groups=(GroupView("0#1", (0, 1), 0, 0, None, ""),), probed=True,
    )  # fmt: skip
    assert from_plain(RankView, to_plain(view)) == view
    assert from_plain(RankView, to_plain(RankView(1, "n1", ProcessState.UNKNOWN))) == RankView(1, "n1", ProcessState.UNKNOWN)
