"""Is it the node or the program? A crash that no fact explains is compared with the same crash before.

One node explains them all if a rank failed on it each time that an attempt ran there, and no attempt ran without it: that it came
again there is one observation, however often. An attempt without the node tells: the same again is the program's, and what runs
well elsewhere excludes the node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ftslurm.model.folds.streaks import Crash, Crashes
from ftslurm.model.nodes import fold
from ftslurm.model.values import dataclass
from ftslurm.model.verdict import UNKNOWN, Confidence, Retriable, Verdict


@dataclass(frozen=True, slots=True)
class Series:
    """The same crash, the present one included. suspect: the node that may explain it, and that no experiment has left; times:
    how often the job failed there. elsewhere: why no node explains it, empty if one may.
    """

    suspect: str = ""
    times: int = 0
    elsewhere: str = ""
    in_place: int = 0  # crashes, whatever they were, that were answered in place since the job last made progress


# One crash here and one there may be two accidents; under the default there are two here before one elsewhere.
CRASHES_LEAST = 3


def series_of(verdict: Verdict | None, step: Collection[str], command: str, before: Crashes) -> Series:
    """step: nodes of the attempt that has just failed. command: its step key."""
    in_place = before.in_place.get(command, 0)
    if not _may_be_a_node(verdict, step):
        return Series(in_place=in_place)
    assert verdict is not None
    now = Crash(command, verdict.signature, verdict.lead.node, frozenset(step))
    same = [crash for crash in before.seen if (crash.command, crash.signature) == (now.command, now.signature)]
    times = Counter(crash.node for crash in (*same, now))
    everywhere = frozenset.intersection(*(crash.nodes for crash in (*same, now)))
    suspects = [node for node in times if node in everywhere]
    if not suspects:
        proven = len(same) + 1 >= CRASHES_LEAST and verdict.retriable is not Retriable.YES
        return Series(elsewhere=f"{verdict.signature} on {fold(times)} alike" if proven else "", in_place=in_place)
    open_ = [node for node in suspects if node not in before.left]
    suspect = max(open_, key=lambda node: (times[node], node == now.node), default="")
    return Series(suspect, times[suspect], in_place=in_place)


def _may_be_a_node(verdict: Verdict | None, step: Collection[str]) -> bool:
    """Not where the cause is a fact, or unknown to all, nor where ranks on several nodes have shown it at once."""
    if verdict is None or verdict.confidence is Confidence.FACT or verdict.signature == UNKNOWN:
        return False
    return verdict.lead.node in step and (len(step) == 1 or not verdict.program)
