"""On which ranks and nodes an error shows, and what that says: on every rank, on one node only, on no other node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.model.verdict import RankEnd


def widespread(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> bool:
    """Is it on at least half of the ranks (the others may have been stopped earlier), and not on one node only?"""
    nodes = {end.node for end in ends}
    wide = len(nodes) > 1 and len({end.node for end in same.values()}) > 1
    most = len(same) >= 2 and 2 * len(same) >= len(ends)
    return (most and wide) or (len(nodes) == 1 and 1 < len(same) == len(ends))


def one_node(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    """The node all of whose ranks (two at the least) are in `same`, while none of another node is; else empty."""
    nodes = {end.node for end in same.values()}
    mine = [end for end in ends if end.node in nodes]
    return next(iter(nodes)) if len(nodes) == 1 and 1 < len(mine) == len(same) < len(ends) else ""


def no_other_node(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    """The node of all ranks in `same`, while there are others; else empty."""
    nodes = {end.node for end in same.values()}
    return next(iter(nodes)) if len(nodes) == 1 and len({end.node for end in ends}) > 1 else ""


def places_of(ends: Mapping[int, RankEnd]) -> dict[int, str]:
    return {rank: end.node for rank, end in ends.items()}


def spread_of(same: Mapping[int, RankEnd], ends: Sequence[RankEnd]) -> str:
    if len(ends) < 2:
        return ""
    return "on every rank" if len(same) == len(ends) else f"on {len(same)} of {len(ends)} ranks"
