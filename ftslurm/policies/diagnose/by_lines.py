"""The verdict by what the ranks printed: by a root, or where only bystanders speak."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ftslurm.catalogs.kinds import Kind, Kinds
from ftslurm.model.text import visible
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Lead, RankEnd, Retriable, Suspect, Verdict
from ftslurm.policies.diagnose import hits as seen
from ftslurm.policies.diagnose.hits import EVIDENCE_LINES, Hit
from ftslurm.policies.diagnose.values import of_the_node

# --- The verdict by a root: a line that tells what failed, the earliest of all ranks

# What is missing or closed on one node only, while the ranks of others got further: that node's mount or installation.
NODES_SETUP = frozenset({
    "file-missing", "py-import", "user-so-missing", "user-perm-exec", "user-glibc", "user-cann-env", "fs-permission",
    "container-mount", "container-command", "image-missing", "slurm-execve", "python-no-module", "python-no-file", "versions",
    "cuda-driver-old", "exit 126", "exit 127",
})  # fmt: skip
# Patterns on files. In a folder that is local to each node, such an error is about the node.
_FILES = frozenset({"file-missing", "fs-permission", "enospc", "shm-small", "device-file"})
# Patterns on a shared file: if only one of several ranks meets the error, the others have not read that file yet.
_SHARED_FILES = frozenset({"stale-nfs", "io-error"})
_FILE_RACE = "file-race"
# On more than one node, or on the only one, the program causes these itself.
ASKED_FOR = frozenset({
    "container-start", "segv", "sigbus", "SIGSEGV", "SIGBUS", "illegal-memory", "misaligned-address", "rocm-memory-fault",
})  # fmt: skip
_BY_PROGRAM: dict[str, Any] = {"error_class": ErrorClass.USER_CODE, "retriable": Retriable.NO}
# Classes that a program can cause on every rank by itself.
_PROGRAMS = frozenset({ErrorClass.USER_CODE, ErrorClass.DATA, ErrorClass.OOM, ErrorClass.STORAGE, ErrorClass.UNKNOWN})


def by_root(ends: Sequence[RankEnd], roots: Sequence[Hit], hits: Sequence[Hit], kinds: Kinds) -> Verdict:
    roots = seen.without_echoes(seen.without_headers(roots))
    first = min(roots, key=lambda hit: hit.at)
    same = seen.ranks_of(hit for hit in roots if hit.pattern.id == first.pattern.id)
    everywhere = seen.widespread(same, ends)
    p, single = first.pattern, len({end.node for end in ends}) == 1
    meant = p
    if everywhere and p.error_class is ErrorClass.HARDWARE:
        # Not every node breaks in the same moment, and a restart finds the same nodes with the same program.
        meant = p.by("hardware-everywhere", confirm=max(1, p.confirm), **_BY_PROGRAM)
    elif p.id in ASKED_FOR and (everywhere or single):
        meant = p.by("asked-for", **_BY_PROGRAM)
    elif everywhere and (p.error_class is ErrorClass.USER_CODE or (p.error_class is ErrorClass.OOM and p.blame is Blame.NO)):
        meant = p.by("everywhere", retriable=Retriable.NO)
    if p.id == _FILE_RACE and 2 * len(same) > len(ends) > 1:
        meant = meant.by("no-race", retriable=Retriable.NO)  # whoever comes second finds the file, each time
    if (kind := _by_words_beside(first, hits, kinds)) is not None:
        meant = meant.by("words-beside", error_class=kind.error_class, retriable=kind.retriable)
    suspects = () if everywhere else _suspects((hit for hit in roots if hit.pattern.id == p.id), roots)
    rules = []
    if suspects and p.id in _SHARED_FILES and not of_the_node(first.line) and not seen.one_node(same, ends):
        suspects, rules = (), ["shared-file"]
    alone = "" if suspects or p.id not in NODES_SETUP else seen.one_node(same, ends)
    if not (alone or suspects) and p.id in _FILES and of_the_node(first.line, device=p.id != "enospc"):
        alone = seen.no_other_node(same, ends)
    if alone:
        suspects = (Suspect(alone, first.end.rank, Blame.SUSPECT, f"{first}; on that node only"),)
        rules.append("one-node-only")
    others = Counter(hit.pattern.id for hit in hits if hit.pattern.id != p.id)
    where = seen.spread_of(same, ends)
    lead = Lead(
        first.end.rank, first.end.node, seen.words_of_rank(first, hits), p.name if p.pattern else "", first.place, where,
        p.note if p.pattern else "",
    )  # fmt: skip
    evidence = [seen.with_own_words(first, hits)]
    evidence += [str(hit) for hit in seen.one_a_rank(roots) if hit.end.rank != first.end.rank and hit.pattern.id == p.id]
    if others:
        beside = ", ".join(f"{name} x{times}" for name, times in others.most_common(4))
        evidence.append(f"also seen, and taken as consequences: {beside}")
    return Verdict(
        meant.error_class, Retriable.ONCE if alone else meant.retriable, Confidence.STRONG, p.id,
        f"{p.name}{f', {where}' if where else ''} ({first})", suspects, tuple(evidence[:EVIDENCE_LINES]),
        everywhere and meant.error_class in _PROGRAMS, meant.confirm, not everywhere and p.heals,
        seen.places_of(same), lead=lead, because=(p.id, *meant.because, *rules),
    )  # fmt: skip


def _by_words_beside(root: Hit, hits: Sequence[Hit], kinds: Kinds) -> Kind | None:
    """What a root that is only a reaction is about: the detail below a header, or the error just before an exception
    whose words tell nothing."""
    if root.pattern.defers and root.pattern.error_class is ErrorClass.UNKNOWN:
        return kinds.of_words(seen.said_beside(root, hits))
    if not root.pattern.pattern and root.pattern.error_class is ErrorClass.USER_CODE and not kinds.of_words(root.line):
        return kinds.of_words(seen.led_to(root, hits))
    return None


def _suspects(hits: Iterable[Hit], roots: Sequence[Hit]) -> tuple[Suspect, ...]:
    """roots: all of them. An error that a rank survived, before it failed from another one, does not convict its node."""
    last: dict[int, dict[str, float]] = defaultdict(dict)
    for root in roots:
        last[root.end.rank][root.pattern.id] = max(root.at, last[root.end.rank].get(root.pattern.id, 0.0))
    found: dict[str, Suspect] = {}
    for hit in hits:
        if hit.pattern.blame is Blame.NO or hit.end.node in found:
            continue
        later = any(at > hit.at + seen.LAST_WORDS_S for id, at in last[hit.end.rank].items() if id != hit.pattern.id)
        blame = Blame.SUSPECT if later else hit.pattern.blame
        found.setdefault(hit.end.node, Suspect(hit.end.node, hit.end.rank, blame, str(hit)))
    return tuple(found.values())


# --- The verdict where only bystanders speak: the rank that says nothing, or is furthest behind, is the suspect.
#
# Unless it worked: in a long phase (validation, saving, preparing of data on one rank) the others wait in a collective until its
# timeout, and everything ends although nothing is broken. The rank's node is not to blame; the timeout is too short

_WATCHDOG = "nccl-watchdog"
_SEQUENCE = re.compile(r"last (?:enqueued|completed) (?:NCCL )?work:? ?(\d{1,12})|SeqNum=(\d{1,12})")
_COLLECTIVE = re.compile(r"SeqNum=(\d{1,12}), OpType=(\w{1,40})(?:, NumelIn=(\d{1,18}))?")


def by_symptoms(ends: Sequence[RankEnd], symptoms: Sequence[Hit], kinds: Kinds) -> Verdict:
    symptoms = seen.without_headers(symptoms)
    first = min(symptoms, key=lambda hit: (not hit.own, hit.pattern.defers, hit.at))
    if verdict := _out_of_step(ends, [hit for hit in symptoms if hit.pattern.id == _WATCHDOG]):
        return verdict
    waited = [hit for hit in symptoms if hit.pattern.waited]
    suspects = _silent(ends, waited) or _behind(ends, waited)
    rules = ["waited-for"] if suspects else []
    if waited and (verdict := _long_phase(ends, waited, [str(hit) for hit in seen.one_a_rank(symptoms)])):
        return verdict
    others = [str(hit) for hit in seen.one_a_rank(symptoms) if hit is not first]
    evidence = [f"{suspect.why}; {first}" for suspect in suspects]
    evidence += [seen.with_own_words(first, symptoms), *others]
    error_class = first.pattern.error_class
    retriable = first.pattern.retriable
    kind = kinds.of_words(first.line.split(" ... ")[-1])
    if kind and kind.error_class is ErrorClass.NETWORK and error_class in (ErrorClass.UNKNOWN, ErrorClass.NETWORK):
        # No rank failed for another reason, so this is what they all report.
        error_class = kind.error_class
        rules.append("words-of-symptom")
    return Verdict(
        error_class, retriable, Confidence.WEAK, first.pattern.id,
        f"{first.pattern.name} ({first}); a consequence; its cause was not seen", suspects, tuple(evidence[:EVIDENCE_LINES]),
        shown={} if suspects or waited else seen.places_of(seen.ranks_of(h for h in symptoms if h.pattern is first.pattern)),
        lead=Lead(
            first.end.rank, first.end.node, seen.words_of_rank(first, symptoms), first.pattern.name, first.place,
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
        confirm=1, shown=seen.places_of({rank: hit.end for rank, hit in lines.items()}),
        lead=_lead(in_step[0], "the ranks waited for each other in different collectives"), because=("out-of-step",),
    )  # fmt: skip


def _silent(ends: Sequence[RankEnd], waited: Sequence[Hit]) -> tuple[Suspect, ...]:
    """Most ranks printed that they waited in vain: the few others are those that they waited for."""
    told = seen.ranks_of(waited)
    silent = [end for end in ends if end.rank not in told and not seen.failed(end) and (end.stopped or end.lost)]
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


_LONG_PHASE = "long-phase"
# A hung rank shows no activity from about the begin of the wait on; a working rank shows some in the last quarter.
LAST_SHARE = 0.25
LINE_CHARS = 160

# How long ranks waited for a collective, as they print it, in milliseconds or seconds.
# Source: ProcessGroupNCCL.cpp (`Timeout(ms)=`, `ran for N milliseconds`), gloo's `Timed out waiting Nms`, HCCL's `timeout:[N s]`.
_WAIT_MS = re.compile(r"Timeout\(ms\)=(\d{1,12})|ran for (\d{1,12}) milliseconds|Timed out waiting (\d{1,12})ms")
_WAIT_S = re.compile(r"(?i)timeout[^\n\d]{0,20}\[?(\d{1,6}) ?s(?:ec)?\b")


def _long_phase(ends: Sequence[RankEnd], waited: Sequence[Hit], evidence: Sequence[str]) -> Verdict | None:
    """The verdict if the rank that the others waited for worked until they gave up. waited: lines of those who did."""
    first, told = min(waited, key=lambda hit: hit.at), seen.ranks_of(waited)
    gave_up = first.at
    late = gave_up - LAST_SHARE * (gave_up - _began(ends, told, gave_up, [hit.line for hit in waited]))
    for end in ends:
        if end.rank in told or seen.failed(end):
            continue
        said = [piece for piece in end.output if piece.at <= gave_up and piece.text.strip()]
        line = visible(said[-1].text.strip().splitlines()[-1].strip()[-LINE_CHARS:]) if said else ""
        if said and said[-1].at >= late:
            return _at_work(end, f"it printed `{line}` {gave_up - said[-1].at:.0f} s before", first, evidence)
        if late <= end.alive:
            sign = f"{f'after `{line}` ' if line else ''}{end.alive_by} until {max(0.0, gave_up - end.alive):.0f} s before"
            return _at_work(end, sign, first, evidence)
    return None


def _began(ends: Sequence[RankEnd], waited: Collection[int], gave_up: float, lines: Iterable[str]) -> float:
    """When the wait began: from its printed length, else when the waiting ranks last printed anything before."""
    for line in lines:
        if found := _WAIT_MS.search(line):
            return gave_up - int(next(filter(None, found.groups()))) / 1000
        if found := _WAIT_S.search(line):
            return gave_up - float(found[1])
    spoken = [piece.at for end in ends if end.rank in waited for piece in end.output if piece.at < gave_up - seen.BURST_S]
    return max(spoken, default=gave_up)


def _at_work(end: RankEnd, sign: str, first: Hit, evidence: Sequence[str]) -> Verdict:
    """No node is to blame, and one more try is worth it, since storage may be faster then.

    sign: the last activity of `end`.
    """
    slow = f"the timeout is shorter than rank {end.rank}'s work"
    gave_up = f"{sign} the others gave up"
    setting, *elsewhere = first.pattern.waited  # what to increase, and what programs call that
    called = [f"{setting}: {words}" for words in elsewhere]
    return Verdict(
        ErrorClass.USER_CODE, Retriable.ONCE, Confidence.WEAK, _LONG_PHASE, f"{slow}: {gave_up}; set {setting} higher", (),
        (f"rank {end.rank} on {end.node} was at work: {gave_up}", *called, *evidence)[:EVIDENCE_LINES],
        lead=Lead(end.rank, end.node, slow, gave_up, advice=f"set {setting} higher"), because=(_LONG_PHASE,),
    )  # fmt: skip
