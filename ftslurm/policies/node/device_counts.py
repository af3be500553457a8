"""Has a node as many devices as the one whose place it is to take? Nothing is held against it where nobody knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ftslurm.policies.node.health import Finding, NodeHealth, NodeVerdict, judge, missing_kinds

Counts = Mapping[str, int]  # kind -> how many


def wanted(there: Mapping[str, Counts], node: str) -> Counts:
    """there: node of the step -> what its agent has seen. As many as `node` had, else as most of the others have."""
    if node in there:
        return there[node]
    counted = Counter(tuple(sorted(counts.items())) for counts in there.values())
    return dict(counted.most_common(1)[0][0]) if counted else {}


def short_of(expected: Counts, seen: Counts) -> NodeVerdict:
    """Good where nothing is missing; a kind that nothing there can read may be well all the same."""
    too_few = (
        Finding("device", NodeHealth.BAD, f"{seen[kind]} of {count} {kind} devices are there")
        for kind, count in sorted(expected.items())
        if seen.get(kind, count) < count
    )
    return judge([*too_few, *missing_kinds(expected, seen)])
