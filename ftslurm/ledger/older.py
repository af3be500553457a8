"""Records of older ledgers: what later releases write as a field, and those had in words alone, is found as the line is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ftslurm.model.record import Decided, Record, TroubleSeen
from ftslurm.model.values import replace


def completed(record: Record) -> Record:
    """The record as a later release would have written it."""
    complete = _KINDS.get(type(record))
    return complete(record) if complete is not None else record


_RANK = re.compile(r"rank (\d{1,9}) on ")


def _trouble_seen(seen: TroubleSeen) -> TroubleSeen:
    if seen.rank < 0 and (told := _RANK.match(seen.what)):
        seen = replace(seen, rank=int(told[1]))
    if seen.hung_up is not None:
        return seen
    what, drilled, drill = seen.what.partition(" [drill: ")
    return replace(seen, what=what, drill=(drill.removesuffix("]"),) if drilled else (), hung_up="hung up" in what)


def _decided(decided: Decided) -> Decided:
    told = ((node, why.partition("; held against it ")[2]) for node, why in decided.isolate.items())
    often = {node: times for node, times in told if times}
    return replace(decided, often=often) if often else decided


_KINDS: Mapping[type, Callable[[Any], Record]] = {TroubleSeen: _trouble_seen, Decided: _decided}
