"""The verdict by a root: a line that tells what failed, the earliest of all ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Lead, RankEnd, Retriable, Suspect, Verdict
from ftslurm.policies.diagnose.hits import (
    EVIDENCE_LINES,
    Hit,
    no_other_node,
    one_a_rank,
    one_node,
    places_of,
    ranks_of,
    spread_of,
    widespread,
)
from ftslurm.policies.diagnose.own_words import LAST_WORDS_S, led_to, said_beside, with_own_words, words_of
from ftslurm.policies.diagnose.text.values import of_the_node
from ftslurm.policies.diagnose.text.wording import Kind, kind_of_words
from ftslurm.policies.diagnose.which_count import without_echoes, without_headers

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
# Exceptions about something missing because it could not be created.
_REACTIONS = frozenset({"py-name", "py-type"})
_BY_PROGRAM: dict[str, Any] = {"error_class": ErrorClass.USER_CODE, "retriable": Retriable.NO}
# Classes that a program can cause on every rank by itself.
_PROGRAMS = frozenset({ErrorClass.USER_CODE, ErrorClass.DATA, ErrorClass.OOM, ErrorClass.STORAGE, ErrorClass.UNKNOWN})


def by_root(ends: Sequence[RankEnd], roots: Sequence[Hit], hits: Sequence[Hit]) -> Verdict:
    roots = without_echoes(without_headers(roots))
    first = min(roots, key=lambda hit: hit.at)
    same = ranks_of(hit for hit in roots if hit.pattern.id == first.pattern.id)
    everywhere = widespread(same, ends)
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
    if (kind := _by_words_beside(first, hits)) is not None:
        meant = meant.by("words-beside", error_class=kind.error_class, retriable=kind.retriable)
    suspects = () if everywhere else _suspects((hit for hit in roots if hit.pattern.id == p.id), roots)
    rules = []
    if suspects and p.id in _SHARED_FILES and not of_the_node(first.line) and not one_node(same, ends):
        suspects, rules = (), ["shared-file"]
    alone = "" if suspects or p.id not in NODES_SETUP else one_node(same, ends)
    if not (alone or suspects) and p.id in _FILES and of_the_node(first.line, device=p.id != "enospc"):
        alone = no_other_node(same, ends)
    if alone:
        suspects = (Suspect(alone, first.end.rank, Blame.SUSPECT, f"{first}; on that node only"),)
        rules.append("one-node-only")
    others = Counter(hit.pattern.id for hit in hits if hit.pattern.id != p.id)
    where = spread_of(same, ends)
    lead = Lead(
        first.end.rank, first.end.node, words_of(first, hits), p.name if p.pattern else "", first.place, where,
        p.note if p.pattern else "",
    )  # fmt: skip
    evidence = [with_own_words(first, hits)]
    evidence += [str(hit) for hit in one_a_rank(roots) if hit.end.rank != first.end.rank and hit.pattern.id == p.id]
    if others:
        beside = ", ".join(f"{name} x{times}" for name, times in others.most_common(4))
        evidence.append(f"also seen, and taken as consequences: {beside}")
    return Verdict(
        meant.error_class, Retriable.ONCE if alone else meant.retriable, Confidence.STRONG, p.id,
        f"{p.name}{f', {where}' if where else ''} ({first})", suspects, tuple(evidence[:EVIDENCE_LINES]),
        everywhere and meant.error_class in _PROGRAMS, meant.confirm, not everywhere and p.heals,
        places_of(same), lead=lead, because=(p.id, *meant.because, *rules),
    )  # fmt: skip


def _by_words_beside(root: Hit, hits: Sequence[Hit]) -> Kind | None:
    """What a root that is only a reaction is about: the detail below a header, or the error just before an exception
    whose words tell nothing."""
    if root.pattern.defers and root.pattern.error_class is ErrorClass.UNKNOWN:
        return kind_of_words(said_beside(root, hits))
    if root.pattern.defers and not root.pattern.pattern and (kind := kind_of_words(said_beside(root, hits))):
        return kind
    reaction = not root.pattern.pattern or root.pattern.id in _REACTIONS
    if reaction and root.pattern.error_class is ErrorClass.USER_CODE and not kind_of_words(root.line):
        return kind_of_words(led_to(root, hits))
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
        later = any(at > hit.at + LAST_WORDS_S for id, at in last[hit.end.rank].items() if id != hit.pattern.id)
        blame = Blame.SUSPECT if later else hit.pattern.blame
        found.setdefault(hit.end.node, Suspect(hit.end.node, hit.end.rank, blame, str(hit)))
    return tuple(found.values())
