"""Alive is not silent: a rank that the others waited for, and that worked until they gave up, is in a long phase.

Validation, saving, preparing data on one rank: the others wait in a collective until its timeout, and everything ends
though nothing is broken. Such a rank's node is no suspect; the timeout is too short.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ftslurm.model.text import visible
from ftslurm.model.verdict import Confidence, ErrorClass, Lead, Piece, RankEnd, Retriable, Verdict

SIGNATURE = "long-phase"
# A rank that hangs has shown no life since the wait began, or little later; one at work has in its last quarter.
LAST_SHARE = 0.25
# What a failing rank prints within this is part of its error (classify.BURST_S).
BURST_S = 0.5
LINE_CHARS = 160

# How long a collective was waited for, as those who waited print it, in milliseconds or seconds.
# Source: ProcessGroupNCCL.cpp (`Timeout(ms)=`, `ran for N milliseconds`), gloo's `Timed out waiting Nms`, HCCL's `timeout:[N s]`.
_WAIT_MS = re.compile(r"Timeout\(ms\)=(\d{1,12})|ran for (\d{1,12}) milliseconds|Timed out waiting (\d{1,12})ms")
_WAIT_S = re.compile(r"(?i)timeout[^\n\d]{0,20}\[?(\d{1,6}) ?s(?:ec)?\b")
# What a rank says it does, in the words of its last lines.
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
# Pattern of those who waited -> the setting that lets them wait longer. Source: PyTorch, CANN (HCCL) and MindSpore manuals.
_SETTINGS = {
    "hccl-EI0002": "HCCL_EXEC_TIMEOUT (seconds)", "acl-507046": "HCCL_EXEC_TIMEOUT (seconds)",
    "acl-107019": "HCCL_EXEC_TIMEOUT (seconds)", "hccl-EI0006": "HCCL_CONNECT_TIMEOUT (seconds)",
    "hccl-topo-timeout": "HCCL_CONNECT_TIMEOUT (seconds)", "ms-timeout-node": "MS_NODE_TIMEOUT (seconds)",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LongPhase:
    """rank, node: at work while the others waited. doing: in a word. sign: of life, the last. setting: that mends it."""

    rank: int
    node: str
    doing: str
    sign: str
    setting: str


def at_work(
    ends: Sequence[RankEnd], waited: Collection[int], gave_up: float, lines: Iterable[str], pattern: str
) -> LongPhase | None:
    """The rank that was waited for, if it worked until the others gave up.

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
    """When the wait began: by its own length, else when those who waited last printed anything before."""
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
    """Nobody's node is to blame; storage may be faster the next time, so it is worth one more try."""
    slow = f"the timeout is shorter than rank {found.rank}'s {found.doing}"
    what = f"{slow}: {found.sign} the others gave up; set {found.setting} higher"
    first = f"rank {found.rank} on {found.node} was at work: {found.sign} the others gave up"
    called = (f"{_TORCH}: {_TORCH_ELSEWHERE}",) if found.setting == _TORCH else ()
    return Verdict(
        ErrorClass.USER_CODE, Retriable.ONCE, Confidence.WEAK, SIGNATURE, what, (), (first, *called, *evidence)[:6],
        lead=Lead(found.rank, found.node, slow, f"{found.sign} the others gave up", advice=f"set {found.setting} higher"),
    )  # fmt: skip
