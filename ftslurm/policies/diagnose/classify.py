"""Why did an attempt fail? Facts first, then what the ranks printed, then how they ended.

The reading order (the rules that make one verdict of many findings):
 1. facts beat text: a device's own code, Slurm's word on a node, the kernel's out-of-memory kill (by_status.py);
 2. a root line beats a symptom, the earliest beats the later ones, over all ranks (by_root.py); an error that no pattern knows
    is a root, what is quoted, guessed or only a warning is none (text/findings.py), and a header defers to what names the thing;
    a line after which its rank went on well, or printed only after the ranks were told to stop, counts for nothing
    (which_count.py);
 3. the same root on (nearly) every rank is the program or its data, not a node (by_root.py);
 4. where only bystanders speak, the rank that says nothing, or is furthest behind, is the suspect (by_symptoms.py);
 5. then the exit statuses, a signal before a number (by_status.py); and if nothing of this tells, the verdict is UNKNOWN.
Source: the fault diagnosis of MindCluster, NVRx's attribution and AIMaster agree on these (cascades dominate the logs of
a failed collective).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ftslurm.model.verdict import AS_IT_SEES, Blame, Confidence, ErrorClass, RankEnd, Retriable, Role, Verdict
from ftslurm.policies.diagnose.by_root import by_root
from ftslurm.policies.diagnose.by_status import (
    as_its_child,
    by_facts,
    by_loss,
    by_status,
    ended_alike,
    out_of_memory,
    status_tells,
)
from ftslurm.policies.diagnose.by_symptoms import by_symptoms
from ftslurm.policies.diagnose.hits import EVIDENCE_LINES, HEADERS, Facts, Hit, beginning, failed, hits_of
from ftslurm.policies.diagnose.own_words import own_words
from ftslurm.policies.diagnose.text.findings import Book
from ftslurm.policies.diagnose.which_count import (
    after_the_fact,
    but_reports,
    told_before,
    unless_told_before,
    without_warnings,
)


def diagnose(ends: Sequence[RankEnd], facts: Facts, book: Book) -> Verdict:
    """The verdict on one attempt. ends: every rank of it."""
    hits = [hit for end in ends for hit in hits_of(end, book)]
    first = min((end.at for end in ends if failed(end)), default=float("inf"))
    live = [hit for hit in hits if not hit.overcome and not after_the_fact(hit, first)]
    live = list(without_warnings(live))
    return by_facts(live, facts) or _with_keywords(without_control(_by_words(ends, live, book), ends), live)


def _by_words(ends: Sequence[RankEnd], hits: Sequence[Hit], book: Book) -> Verdict:
    if oom := [end for end in ends if end.oom]:
        return out_of_memory(oom, hits)
    said = [hit for hit in hits if hit.pattern.role is Role.ROOT]
    if roots := unless_told_before(but_reports(said, hits), hits, ends):
        return by_root(ends, roots, hits)
    symptoms = [hit for hit in hits if hit.pattern.role is Role.SYMPTOM]
    if lost := [end for end in ends if end.lost]:
        return by_loss(lost, symptoms)
    if silent := _silent(ends, symptoms):
        return by_status(ends, silent, symptoms, book)
    return by_symptoms(ends, symptoms) if symptoms else _nothing(ends)


def _silent(ends: Sequence[RankEnd], symptoms: Sequence[Hit]) -> Sequence[RankEnd]:
    """The ranks that failed and of which no line is known, where their ends tell more than what bystanders say."""
    spoke = {hit.end.rank for hit in symptoms if hit.pattern.id not in HEADERS}
    headers: dict[int, set[str]] = defaultdict(set)
    for hit in symptoms:
        headers[hit.end.rank].add(beginning(hit))
    silent = [as_its_child(end) for end in ends if failed(end) and end.rank not in spoke]
    # What a rank said itself, before it passed on that another process failed, tells more, too.
    silent = [
        end for end in silent
        if end.rank not in headers or status_tells(end) or own_words(end, headers[end.rank], vaguely=False)
    ]  # fmt: skip
    if not symptoms or not ended_alike(silent, ends, spoke):
        return silent
    # What those who spoke ended with as well tells no more than their words: an abort by who saw the same. An exception is who
    # failed before them, and says of what.
    return told_before(silent, symptoms)


def _with_keywords(verdict: Verdict, hits: Sequence[Hit]) -> Verdict:
    """A keyword of the user's own, in the output of a rank that failed, makes the error retriable (AIMaster)."""
    for hit in hits:
        if hit.own and hit.pattern.id.startswith("keyword:"):
            evidence = (*verdict.evidence[: EVIDENCE_LINES - 1], f"matches retry.keywords: {hit}")
            return verdict.by("retry.keywords", retriable=Retriable.YES, evidence=evidence, called=True)
    return verdict


def _nothing(ends: Sequence[RankEnd]) -> Verdict:
    what = "no rank failed by itself, and no output is known"
    return Verdict(ErrorClass.UNKNOWN, Retriable.UNKNOWN, Confidence.NONE, "unknown", what)


def without_control(verdict: Verdict, ends: Sequence[RankEnd]) -> Verdict:
    """The verdict for ranks that all run on one node, or one rank of an async job: nothing to compare it with, so only the
    hardware's own report blames the node."""
    if len({end.node for end in ends}) > 1:
        return verdict
    own = verdict.error_class is ErrorClass.HARDWARE and verdict.signature not in AS_IT_SEES
    kept = tuple(suspect for suspect in verdict.suspects if own and suspect.blame is Blame.YES)
    return verdict if kept == verdict.suspects else verdict.by("nothing-to-compare", suspects=kept)
