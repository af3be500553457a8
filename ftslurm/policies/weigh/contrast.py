"""Is the node or the program to blame? By contrast: does the same error come again with the node, or without it?

What words accuse a node of is compared with what the job has seen before. An error that comes with the same rank to another
node, or at the same training step, or though the accused node has been left, is the program's or its data's; the nodes
that were accused of it are not to blame, and those that were left for it may be used again.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model.folds.history import History
from ftslurm.model.folds.slots import Sighting
from ftslurm.model.nodes import fold
from ftslurm.model.values import dataclass
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable, Verdict
from ftslurm.policies.weigh.spread import SETUP

# Errors of these classes get one more try before the program is blamed.
_WORTH_MORE = frozenset({ErrorClass.HARDWARE, ErrorClass.NETWORK})
# Classes that blame no machine stay as they are.
_KEPT = frozenset({ErrorClass.DATA, ErrorClass.OOM, ErrorClass.STORAGE})
EVIDENCE_LINES = 6
SAME = "the same error"
# What is to blame instead, for classes where it need not be the program.
_INSTEAD = {
    ErrorClass.NETWORK: "it is not the node, but the program or what it connects to",
    ErrorClass.STORAGE: "it is not the node, but the storage or the program",
    ErrorClass.DATA: "it is not the node, but the data or the program",
}


@dataclass(frozen=True, slots=True)
class Contrast:
    """follows: what the error follows from node to node. why: one sentence. cleared: nodes that were blamed wrongly."""

    follows: str
    why: str
    cleared: tuple[str, ...]


def contrast(
    signature: str, shown: Mapping[int, str], history: History, since: float, step: int = 0,
    error_class: ErrorClass = ErrorClass.USER_CODE,
) -> Contrast | None:  # fmt: skip
    """What the error follows, if not the node. shown: rank -> node, in this attempt. history: of earlier attempts only.

    since: earlier sightings do not count, Unix seconds. step: to which the training had come, 0 if not told.
    """
    before = [seen for seen in history.verdicts.sightings if seen.signature == signature and seen.at >= since]
    if not before or not shown:
        return None
    for follows, nodes in (_rank(before, shown), _step(before, shown, step), _without(signature, shown, history)):
        if follows:
            accused = {seen.node for seen in before} | {
                n for n, sign in history.exclusions.left_on_words.items() if sign == signature
            }
            why = f"{SAME} ({signature}) {nodes}: {_INSTEAD.get(error_class, 'it is the program')}"
            return Contrast(follows, why, tuple(sorted(accused)))
    return None


def _rank(before: list[Sighting], shown: Mapping[int, str]) -> tuple[str, str]:
    for rank, node in sorted(shown.items()):
        if others := {seen.node for seen in before if seen.rank == rank} - {node}:
            return f"rank {rank}", f"on rank {rank} on {_and({*others}, node)}"
    return "", ""


def _step(before: list[Sighting], shown: Mapping[int, str], step: int) -> tuple[str, str]:
    here = set(shown.values())
    others = {seen.node for seen in before if step and seen.step == step} - here
    return (f"step {step}", f"at step {step} on {_and(others, min(here))}") if others else ("", "")


def _without(signature: str, shown: Mapping[int, str], history: History) -> tuple[str, str]:
    """The error came again without the suspected node, and no progress was made in between: that node is not to blame."""
    here = set(shown.values())
    left = {
        node
        for node, sign in history.exclusions.left_on_words.items()
        if sign == signature
        and node in history.exclusions.isolated
        and history.exclusions.isolated[node][1] >= history.progress.made_at
    }
    if not left or left & here:
        return "", ""
    return "no node", f"on {fold(here)} as well, without {fold(left)}"


def _and(before: set[str], now: str) -> str:
    return f"{fold(before)} and {now}"


def with_contrast(verdict: Verdict, found: Contrast) -> Verdict:
    """The verdict on an error of the program. One more attempt confirms it; two where the hardware seemed to be at fault."""
    confirm = 2 if verdict.error_class in _WORTH_MORE else max(1, verdict.confirm)
    error_class = verdict.error_class if verdict.error_class in _KEPT else ErrorClass.USER_CODE
    retriable = Retriable.YES if verdict.called else Retriable.NO
    evidence = [piece for piece in verdict.evidence if not piece.endswith(SETUP)]
    return verdict.by(
        "contrast", error_class=error_class, retriable=retriable, confidence=Confidence.STRONG,
        what=f"{found.why} ({verdict.what})", suspects=(), evidence=(found.why, *evidence)[:EVIDENCE_LINES],
        confirm=confirm, heals=False, follows=found.follows,
    )  # fmt: skip


def shown_by(verdict: Verdict) -> dict[int, str]:
    """rank -> node, for ranks whose output makes their nodes suspects; empty for a fact, or an error of the program."""
    if verdict.confidence is Confidence.FACT or verdict.program:
        return {}
    accused = {suspect.node for suspect in verdict.suspects}
    ranks = {rank: node for rank, node in verdict.shown.items() if node in accused}
    return ranks or {suspect.rank: suspect.node for suspect in verdict.suspects if suspect.rank >= 0}
