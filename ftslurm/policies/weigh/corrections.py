"""Corrects verdicts: device codes that are no hardware fault, words that the program calls retriable, and devices that
only the program cannot see."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.folds.history import History
from ftslurm.model.verdict import AS_IT_SEES, Confidence, ErrorClass, RankEnd, Retriable, Verdict

# Several chips that raise the same code at the same moment received the same bad work. Source: MindCluster's
# ClusterD, which does not count such a code as a suspicion against hardware.
SAME_MOMENT_S = 30.0


def common_codes(faults: Iterable[Fault], history: History) -> frozenset[str]:
    """Codes that several chips raised within SAME_MOMENT_S: they are no suspicion against any of these. A code that takes its
    node out is more than a suspicion, on however many nodes.
    """
    found = set()
    for fault in faults:
        if fault.fault_class is FaultClass.ISOLATE:
            continue
        mine = max(history.faults.get(fault.key, (0.0,)))
        for (node, device, code), times in history.faults.items():
            another = (node, device) != (fault.node, fault.device)
            if code == fault.code and another and abs(max(times) - mine) <= SAME_MOMENT_S:
                found.add(code)
    return frozenset(found)


def without_common(faults: Iterable[Fault], common: frozenset[str]) -> tuple[Fault, ...]:
    """The faults, where those of a common code blame no node."""
    return tuple(replace(fault, shared=True) if fault.code in common else fault for fault in faults)


def with_own_words(verdict: Verdict, ends: Iterable[RankEnd], words: Iterable[str]) -> Verdict:
    """The verdict, retriable if a failed rank's last output holds words that the program called retriable (AIMaster)."""
    wanted = tuple(words)
    for end in ends if wanted else ():
        if end.status is None or end.status.ok or end.stopped:
            continue
        text = "".join(piece.text for piece in end.output)
        if found := next((word for word in wanted if word in text), ""):
            evidence = (*verdict.evidence[:5], f"matches the program's own retriable words: `{found}`")
            return verdict.by("own-words", retriable=Retriable.YES, evidence=evidence, called=True)
    return verdict


def without_own_view(verdict: Verdict, hidden: str, well: Collection[str]) -> Verdict:
    """A program that sees no device is wrong about the hardware where its own environment hides them, and on a node whose
    devices were found healthy since then.

    hidden: the variable that shows it none, `CUDA_VISIBLE_DEVICES`; empty: unknown. well: nodes with healthy devices.
    """
    if verdict.signature not in AS_IT_SEES or verdict.confidence is Confidence.FACT:
        return verdict
    accused = tuple(suspect for suspect in verdict.suspects if not hidden and suspect.node not in well)
    if accused or (not hidden and not verdict.suspects):
        return verdict.by("hidden-devices", suspects=accused)
    nodes = ", ".join(sorted({suspect.node for suspect in verdict.suspects}))
    why = f"{hidden} shows the program no device" if hidden else f"a check since then found the devices of {nodes} healthy"
    advice = f"unset {hidden}, or ask Slurm for devices (--gres)"
    advice = advice if hidden else "check --gres and CUDA_VISIBLE_DEVICES of the step"
    return verdict.by(
        "hidden-devices", error_class=ErrorClass.USER_CODE, retriable=Retriable.NO, suspects=(), confirm=max(1, verdict.confirm),
        heals=False,
        what=f"{why}: it is the program's environment ({verdict.what})", evidence=(*verdict.evidence[:5], why),
        lead=replace(verdict.lead, advice=advice),
    )  # fmt: skip
