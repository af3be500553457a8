"""The verdict where only bystanders speak: the rank that says nothing, or is furthest behind, is the suspect."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Lead, RankEnd, Retriable, Suspect, Verdict
from ftslurm.policies.diagnose.hits import BURST_S, EVIDENCE_LINES, Hit, failed, one_a_rank, ranks_of
from ftslurm.policies.diagnose.long_phase import LongPhase, at_work, long_phase
from ftslurm.policies.diagnose.own_words import GENERAL, with_own_words, words_of
from ftslurm.policies.diagnose.ranks import no_other_node, places_of
from ftslurm.policies.diagnose.text.wording import kind_of_words
from ftslurm.policies.diagnose.which_count import without_headers

# Symptoms that every rank of a group prints after waiting in vain; the rank that prints none is the one they waited for.
_WAITED = frozenset({
    "hccl-EI0002", "hccl-EI0006", "hccl-topo-timeout", "nccl-watchdog", "torch-dist-timeout", "torch-socket-timeout",
    "acl-507046", "acl-107019", "gloo-peer", "ms-timeout-node",
})  # fmt: skip
_WATCHDOG = "nccl-watchdog"
_SEQUENCE = re.compile(r"last (?:enqueued|completed) (?:NCCL )?work:? ?(\d{1,12})|SeqNum=(\d{1,12})")
_COLLECTIVE = re.compile(r"SeqNum=(\d{1,12}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}))?")
_OF_A_PEER = re.compile(r"(?i)\b(?:peer|remote|recv|send|closed)\b|\b(?:connect|time|socket|proxy)|\bretcode\b")


def complained_first(first: Hit, hits: Sequence[Hit]) -> list[Hit]:
    """Of ranks that report network errors: those that blamed their own node before any rank blamed a peer."""
    if first.pattern.error_class is not ErrorClass.NETWORK and first.pattern.id not in _WAITED:
        return []
    before = [hit for hit in hits if hit.pattern.id in GENERAL and hit.at < first.at - BURST_S]
    return sorted((hit for hit in before if not _OF_A_PEER.search(hit.line)), key=lambda hit: hit.at)


def of_one_node(hits: Sequence[Hit]) -> tuple[Suspect, ...]:
    """The suspect, if all hits are on one node: what other nodes print about it is an echo."""
    nodes = {hit.end.node for hit in hits}
    return (Suspect(nodes.pop(), hits[0].end.rank, Blame.SUSPECT, str(hits[0])),) if len(nodes) == 1 else ()


def by_symptoms(ends: Sequence[RankEnd], symptoms: Sequence[Hit]) -> Verdict:
    every, symptoms = symptoms, without_headers(symptoms)
    first = min(symptoms, key=lambda hit: (not hit.own, hit.pattern.defers, hit.at))
    if verdict := _out_of_step(ends, [hit for hit in symptoms if hit.pattern.id == _WATCHDOG]):
        return verdict
    waited = [hit for hit in symptoms if hit.pattern.id in _WAITED]
    suspects = _silent(ends, waited) or _behind(ends, waited)
    rules = ["waited-for"] if suspects else []
    complained = [] if suspects else complained_first(first, every)
    suspects = suspects or (of_one_node(complained) if complained else ())
    if waited and (phase := _long_phase(ends, waited)):
        return long_phase(phase, [str(hit) for hit in one_a_rank(symptoms)])
    others = [str(hit) for hit in one_a_rank(symptoms) if hit is not first]
    evidence = [suspect.why if complained else f"{suspect.why}; {first}" for suspect in suspects]
    evidence += [with_own_words(first, symptoms), *others]
    error_class = first.pattern.error_class
    retriable = first.pattern.retriable
    kind = kind_of_words(first.line.split(" ... ")[-1])
    if kind and kind.error_class is ErrorClass.NETWORK and error_class in (ErrorClass.UNKNOWN, ErrorClass.NETWORK):
        # No rank failed for another reason, so this is what they all report.
        error_class = kind.error_class
        rules.append("words-of-symptom")
        if kind.retriable is Retriable.NO and not no_other_node(ranks_of(hit for hit in symptoms if hit.own), ends):
            retriable = Retriable.NO  # a set-up that stays as it is, and other nodes may have another
    return Verdict(
        error_class, retriable, Confidence.WEAK, first.pattern.id,
        f"{first.pattern.name} ({first}); a consequence; its cause was not seen", suspects, tuple(evidence[:EVIDENCE_LINES]),
        shown={} if suspects or waited else places_of(ranks_of(hit for hit in symptoms if hit.pattern is first.pattern)),
        lead=Lead(
            first.end.rank, first.end.node, words_of(first, symptoms), first.pattern.name, first.place,
            "a consequence; its cause was not seen", first.pattern.note,
        ),
        because=(first.pattern.id, *first.pattern.because, *rules),
    )  # fmt: skip


def _out_of_step(ends: Sequence[RankEnd], timeouts: Sequence[Hit]) -> Verdict | None:
    """Ranks that waited for each other in different collectives: the program made them diverge, and will again.

    At one number another operation or size tells it. At other numbers that alone may still be a collective that one rank has
    ended and another has not, so there the operation or size has to differ as well, or the numbers by more than one.
    """
    told: dict[int, tuple[int, tuple[str, str]]] = {}
    lines: dict[int, Hit] = {}
    for hit in timeouts:
        if found := _COLLECTIVE.search(hit.line):
            told.setdefault(hit.end.rank, (int(found.group(1)), (found.group(2), found.group(3) or "")))
            lines.setdefault(hit.end.rank, hit)
    numbers, calls = {number for number, _ in told.values()}, {call for _, call in told.values()}
    # If one of many is behind, it may be the one that hangs.
    if len(calls) < 2 and not (len(told) == 2 and max(numbers, default=0) - min(numbers, default=0) > 1):
        return None
    in_step = [lines[rank] for rank in sorted(lines, key=lambda rank: told[rank][0])]  # who is behind first
    evidence = [str(hit) for hit in in_step]
    return Verdict(
        ErrorClass.USER_CODE, Retriable.NO, Confidence.WEAK, "out-of-step",
        f"the ranks waited for each other in different collectives ({evidence[0]})", (), tuple(evidence[:EVIDENCE_LINES]),
        confirm=1, shown=places_of({rank: hit.end for rank, hit in lines.items()}),
        lead=_lead(in_step[0], "the ranks waited for each other in different collectives"), because=("out-of-step",),
    )  # fmt: skip


def _long_phase(ends: Sequence[RankEnd], waited: Sequence[Hit]) -> LongPhase | None:
    first = min(waited, key=lambda hit: hit.at)
    return at_work(ends, ranks_of(waited), first.at, [hit.line for hit in waited], first.pattern.id)


def _silent(ends: Sequence[RankEnd], waited: Sequence[Hit]) -> tuple[Suspect, ...]:
    """Most ranks printed that they waited in vain: the few others are those that they waited for."""
    told = ranks_of(waited)
    silent = [end for end in ends if end.rank not in told and not failed(end) and (end.stopped or end.lost)]
    if not silent or len(told) < 2 or 2 * len(silent) >= len(told) + len(silent):
        return ()
    nodes = {end.node: end for end in reversed(silent)}
    why = f"is silent, while {len(told)} of {len(ends)} ranks waited for it"
    return tuple(Suspect(node, end.rank, Blame.SUSPECT, f"rank {end.rank} on {node} {why}") for node, end in nodes.items())


def _behind(ends: Sequence[RankEnd], waited: Sequence[Hit]) -> tuple[Suspect, ...]:
    """All ranks waited: the one whose last collective is furthest behind, if there is exactly one."""
    reached: dict[int, int] = {}
    for hit in waited:
        if numbers := [int(a or b) for a, b in _SEQUENCE.findall(hit.line)]:
            reached[hit.end.rank] = min(numbers)
    lowest = min(reached.values(), default=0)
    behind = [rank for rank, number in reached.items() if number == lowest]
    if len(behind) != 1 or len(reached) < 3:
        return ()
    end = next(end for end in ends if end.rank == behind[0])
    why = f"rank {end.rank} on {end.node} is furthest behind, at collective {lowest}"
    return (Suspect(end.node, end.rank, Blame.SUSPECT, why),)


def _lead(hit: Hit, meaning: str) -> Lead:
    return Lead(hit.end.rank, hit.end.node, hit.line, meaning, hit.place)
