"""Finds a long phase: one rank worked, and the others waited for it until they gave up.

Validation, saving, preparing data on one rank: the others wait in a collective until its timeout, and everything ends
although nothing is broken. The rank's node is not to blame; the timeout is too short.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ftslurm.model.text import visible
from ftslurm.model.verdict import Confidence, ErrorClass, Lead, Piece, RankEnd, Retriable, Verdict

SIGNATURE = "long-phase"
# A hung rank shows no activity from about the begin of the wait on; a working rank shows some in the last quarter.
LAST_SHARE = 0.25
# What a failing rank prints within this is part of its error (classify.BURST_S).
BURST_S = 0.5
LINE_CHARS = 160

# How long ranks waited for a collective, as they print it, in milliseconds or seconds.
# Source: ProcessGroupNCCL.cpp (`Timeout(ms)=`, `ran for N milliseconds`), gloo's `Timed out waiting Nms`, HCCL's `timeout:[N s]`.
_WAIT_MS = re.compile(r"Timeout\(ms\)=(\d{1,12})|ran for (\d{1,12}) milliseconds|Timed out waiting (\d{1,12})ms")
_WAIT_S = re.compile(r"(?i)timeout[^\n\d]{0,20}\[?(\d{1,6}) ?s(?:ec)?\b")
# What a rank does, by words in its last lines.
_PHASES = tuple(
    (re.compile(rf"(?i)\b(?:{words})"), phase)
    for words, phase in (
        (r"sav(?:e|ing)|checkpoint|ckpt|serializ", "saving"),
        (r"validat|eval", "validation"),
        (r"tokeni[sz]|preprocess|shuffl|packing|map \(|map:", "tokenising and preparing of data"),
        (r"generat|rollout|sampl", "generation"),
        (r"compil|autotun|captur|warm", "compilation"),
        (r"download|load|read|copy", "loading"),
    )
)
_TORCH = "timeout= of init_process_group"
_TORCH_ELSEWHERE = (
    "Hugging Face calls it --ddp_timeout, Megatron-LM --distributed-timeout-minutes, Lightning DDPStrategy(timeout=...)"
)
# Pattern that waiting ranks print -> the setting that lets them wait longer. Source: PyTorch, CANN (HCCL) and MindSpore manuals.
_SETTINGS = {
    "hccl-EI0002": "HCCL_EXEC_TIMEOUT (seconds)", "acl-507046": "HCCL_EXEC_TIMEOUT (seconds)",
    "acl-107019": "HCCL_EXEC_TIMEOUT (seconds)", "hccl-EI0006": "HCCL_CONNECT_TIMEOUT (seconds)",
    "hccl-topo-timeout": "HCCL_CONNECT_TIMEOUT (seconds)", "ms-timeout-node": "MS_NODE_TIMEOUT (seconds)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LongPhase:
    """rank, node: who worked while the others waited. doing: in a word. sign: the last activity. setting: what to increase."""

    rank: int
    node: str
    doing: str
    sign: str
    setting: str


def at_work(
    ends: Sequence[RankEnd], waited: Collection[int], gave_up: float, lines: Iterable[str], pattern: str
) -> LongPhase | None:
    """The rank that the others waited for, if it worked until they gave up.

    waited: ranks that waited in vain. gave_up: when the first of them said so, Unix seconds; lines: in which words, known as
    `pattern`.
    """
    began = _began(ends, waited, gave_up, lines)
    late = gave_up - LAST_SHARE * (gave_up - began)
    for end in ends:
        if end.rank in waited or (end.status is not None and not end.status.ok and not end.stopped):
            continue
        said = [piece for piece in end.output if late <= piece.at <= gave_up and piece.text.strip()]
        if said:
            line = visible(said[-1].text.strip().splitlines()[-1].strip()[-LINE_CHARS:])
            ago = f"it printed `{line}` {gave_up - said[-1].at:.0f} s before"
            return LongPhase(end.rank, end.node, _doing(said), ago, _SETTINGS.get(pattern, _TORCH))
        if late <= end.alive:
            ago = f"{end.alive_by} until {max(0.0, gave_up - end.alive):.0f} s before"
            lately = [piece for piece in end.output if piece.at <= gave_up][-1:]
            return LongPhase(end.rank, end.node, _doing(lately), ago, _SETTINGS.get(pattern, _TORCH))
    return None


def _began(ends: Sequence[RankEnd], waited: Collection[int], gave_up: float, lines: Iterable[str]) -> float:
    """When the wait began: from its printed length, else when the waiting ranks last printed anything before."""
    for line in lines:
        if found := _WAIT_MS.search(line):
            return gave_up - int(next(filter(None, found.groups()))) / 1000
        if found := _WAIT_S.search(line):
            return gave_up - float(found[1])
    spoken = [piece.at for end in ends if end.rank in waited for piece in end.output if piece.at < gave_up - BURST_S]
    return max(spoken, default=gave_up)


def _doing(said: Sequence[Piece]) -> str:
    text = "\n".join(piece.text for piece in said[-4:])[-2000:]
    return next((phase for words, phase in _PHASES if words.search(text)), "work")


def long_phase(found: LongPhase, evidence: Sequence[str]) -> Verdict:
    """The verdict on a long phase: no node is to blame, and one more try is worth it, since storage may be faster then."""
    slow = f"the timeout is shorter than rank {found.rank}'s {found.doing}"
    what = f"{slow}: {found.sign} the others gave up; set {found.setting} higher"
    first = f"rank {found.rank} on {found.node} was at work: {found.sign} the others gave up"
    called = (f"{_TORCH}: {_TORCH_ELSEWHERE}",) if found.setting == _TORCH else ()
    return Verdict(
        ErrorClass.USER_CODE, Retriable.ONCE, Confidence.WEAK, SIGNATURE, what, (), (first, *called, *evidence)[:6],
        lead=Lead(found.rank, found.node, slow, f"{found.sign} the others gave up", advice=f"set {found.setting} higher"),
        because=(SIGNATURE,),
    )  # fmt: skip
