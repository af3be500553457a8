"""Which nodes to blame: by facts and by what happened there before, never on a symptom or for the program's own error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.history import History
from ftslurm.model.settings import Settings
from ftslurm.model.verdict import Blame, ErrorClass, RankEnd, Retriable, Verdict

# Several chips that raise the same code in the same moment have been given the same bad work. Source: MindCluster's
# ClusterD, which does not count such a code as a suspicion against hardware.
SAME_MOMENT_S = 30.0
# A suspicion that comes back on the same node within the window of the 24-hour rule is one too many.
SUSPECT_LIMIT = 2
# What a node can be behind, so that the memory of its past counts.
_NODES_OWN = frozenset({ErrorClass.HARDWARE, ErrorClass.NETWORK, ErrorClass.UNKNOWN})


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
            return replace(verdict, retriable=Retriable.YES, evidence=(*verdict.evidence[:5], f"called retriable: `{found}`"))
    return verdict


def blamed_by(
    verdict: Verdict, history: History, settings: Settings, now: float, remembered: Mapping[str, str], first_node: str
) -> dict[str, str]:
    """node -> why, from the verdict. history: with this verdict in it. now: Unix seconds.

    remembered: node -> why earlier jobs left it. first_node: where the first rank failed.
    """
    blamed = {suspect.node: suspect.why for suspect in verdict.suspects if suspect.blame is Blame.YES}
    limit = settings.same_code_limit if verdict.heals else SUSPECT_LIMIT
    for suspect in verdict.suspects:
        times = history.suspected(suspect.node, now - settings.same_code_window_s)
        if suspect.node not in blamed and times >= limit:
            blamed[suspect.node] = f"{suspect.why}; held against it {times} times in {settings.same_code_window_s / 3600:g} h"
    if verdict.error_class in _NODES_OWN and not verdict.program:
        for node in dict.fromkeys([*(suspect.node for suspect in verdict.suspects), first_node]):
            if node in remembered and node not in blamed:
                blamed[node] = f"{verdict.what}; {remembered[node]}"
    return blamed
