"""Codes that are nobody's fault though a device shows them, and words that the program itself calls retriable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.history import History
from ftslurm.model.verdict import RankEnd, Retriable, Verdict

# Several chips that raise the same code in the same moment have been given the same bad work. Source: MindCluster's
# ClusterD, which does not count such a code as a suspicion against hardware.
SAME_MOMENT_S = 30.0


def common_codes(faults: Iterable[Fault], history: History) -> frozenset[str]:
    """Codes that are on several chips within SAME_MOMENT_S of each other: not the hardware's doing.

    A code that takes the node out counts only if several nodes show it: one node may well lose all its chips at once.
    """
    found = set()
    for fault in faults:
        mine = max(history.faults.get(fault.key, (0.0,)))
        for (node, device, code), times in history.faults.items():
            another = (node, device) != (fault.node, fault.device)
            if fault.fault_class is FaultClass.ISOLATE:
                another = node != fault.node
            if code == fault.code and another and abs(max(times) - mine) <= SAME_MOMENT_S:
                found.add(code)
    return frozenset(found)


def without_common(faults: Iterable[Fault], common: frozenset[str]) -> tuple[Fault, ...]:
    """Faults of a common code blame nobody, as those that the program induces."""
    return tuple(replace(fault, user_induced=True) if fault.code in common else fault for fault in faults)


def with_own_words(verdict: Verdict, ends: Iterable[RankEnd], words: Iterable[str]) -> Verdict:
    """Words that the program has called retriable while it ran, in the last output of a rank that failed (AIMaster)."""
    wanted = tuple(words)
    for end in ends if wanted else ():
        if end.status is None or end.status.ok or end.stopped:
            continue
        text = "".join(piece.text for piece in end.output)
        if found := next((word for word in wanted if word in text), ""):
            evidence = (*verdict.evidence[:5], f"called retriable: `{found}`")
            return replace(verdict, retriable=Retriable.YES, evidence=evidence, called=True)
    return verdict
