"""Where did an error show, and how early: on most ranks at once, or on one node before any rank had begun?

The same root on most ranks or nodes before any progress is the program's or its environment's: one more try, then no. On
one node only, before any other rank printed anything, it is that node's set-up: other nodes are worth a try.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ftslurm.model.decisions import Diagnose
from ftslurm.model.record import Diagnosed
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, RankEnd, Retriable, Suspect, Verdict
from ftslurm.policies.weigh.corrections import with_own_words

# An attempt that has lived for so long has begun its work, whether its program tells steps or not (hang.start).
BEGUN_S = 600.0
SETUP = "its set-up may be wrong"


def with_spread(verdict: Verdict, ends: Sequence[RankEnd], progressed: bool) -> Verdict:
    """progressed: has the job ever made progress? Then an error of all ranks may come from outside, and pass."""
    if progressed or verdict.called or not _counts(verdict, ends):
        return verdict
    if on_most(verdict.shown, ends):
        return _on_most(verdict)
    if node := _set_up(verdict, ends):
        return _setup(verdict, node)
    return verdict


def on_the_whole(verdict: Verdict, asked: Diagnose) -> Verdict:
    """The verdict, corrected by the program's own retriable words and by where the error showed."""
    progressed = asked.rank is not None or asked.progressed
    return with_spread(with_own_words(verdict, asked.ends, asked.own_words), asked.ends, progressed)


def _counts(verdict: Verdict, ends: Sequence[RankEnd]) -> bool:
    """Roots; of what only bystanders say, what all say that failed, so that nobody is left whom they can be bystanders of.

    An exit status alone is no word: ranks that end alike for reasons of which nothing is known need not have the same reason.
    """
    if verdict.confidence is Confidence.WEAK:
        if verdict.error_class is ErrorClass.UNKNOWN:
            return False
        own = {end.rank for end in ends if end.status is not None and not end.status.ok and not end.stopped}
        return on_most(verdict.shown, ends) and own <= verdict.shown.keys() and not verdict.suspects
    return verdict.confidence is Confidence.STRONG


def still_on_most(verdict: Verdict, before: Diagnosed | None) -> Verdict:
    """What was on most ranks in the attempt before, and has come again without progress between, is the same, though most ranks
    were stopped this time before they came to it."""
    again = before is not None and before.program and before.signature == verdict.signature
    if not again or verdict.program or verdict.called or verdict.confidence is Confidence.FACT:
        return verdict
    return verdict.by("again-on-most", retriable=Retriable.NO, suspects=(), program=True, heals=False)


def on_most(shown: Mapping[int, str], ends: Sequence[RankEnd]) -> bool:
    """Did at least half of the ranks, on several nodes, show it, or ranks on most nodes?"""
    nodes, all_nodes = set(shown.values()), {end.node for end in ends}
    if len(nodes) < 2:
        return len(all_nodes) == 1 and 1 < len(shown) == len(ends)
    return 2 * len(shown) >= len(ends) or 2 * len(nodes) > len(all_nodes)


def _on_most(verdict: Verdict) -> Verdict:
    """The verdict for an error on most ranks: no more tries if it is on every rank at once, else one more."""
    if verdict.retriable is Retriable.NO:
        return verdict.by("on-most-ranks", suspects=())
    # Because they all agree.
    sure = verdict.by("on-most-ranks", confidence=Confidence.STRONG, suspects=(), program=True, heals=False)
    return replace(sure, retriable=Retriable.ONCE, confirm=max(1, verdict.confirm))


def _set_up(verdict: Verdict, ends: Sequence[RankEnd]) -> str:
    """The node all of whose ranks failed so, while no other rank had printed anything yet; else empty."""
    nodes = set(verdict.shown.values())
    mine = {end.rank for end in ends if end.node in nodes}
    others = [end for end in ends if end.rank not in mine]
    if len(nodes) != 1 or mine != verdict.shown.keys() or not others or _printed(others):
        return ""
    return nodes.pop()


def _printed(ends: Sequence[RankEnd]) -> bool:
    return any(piece.text.strip() for end in ends for piece in end.output)


def _setup(verdict: Verdict, node: str) -> Verdict:
    rank = min(verdict.shown)
    why = f"only {node} failed, before any other rank had printed anything: {SETUP}"
    suspects = verdict.suspects or (Suspect(node, rank, Blame.SUSPECT, why),)
    retriable = Retriable.ONCE if verdict.retriable is Retriable.NO else verdict.retriable
    return verdict.by("set-up-of-node", suspects=suspects, retriable=retriable, setup=True, evidence=(*verdict.evidence, why)[:6])
