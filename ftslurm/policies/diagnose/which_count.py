"""Which of the lines count? Not what is only a warning, a header, an echo of another rank's failure, or came after it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from operator import attrgetter

from ftslurm.model.verdict import ErrorClass, RankEnd, Retriable, Role
from ftslurm.policies.diagnose.hits import (
    CRASHES,
    HEADERS,
    SLURMS_WORD_ON_MEMORY,
    Hit,
    failed,
    of_another_voice,
)
from ftslurm.policies.diagnose.own_words import LAST_WORDS_S, own_words
from ftslurm.policies.diagnose.text.launchers import only_reports, waited_in_vain
from ftslurm.policies.diagnose.text.wording import kind_of_words, of_an_adapter

# What two ranks did is told to be one after the other if so far apart.
JITTER_S = 0.1
# In one moment, the order tells nothing: each rank has a clock and pipes of its own.
SAME_MOMENT_S = 1.0
# So many ranks are asked what they say; a thousand would say the same.
LISTENED_TO = 32
# What ends a rank by itself, so that the network errors of others come of it.
_ENDS_A_RANK = frozenset({ErrorClass.OOM, ErrorClass.HARDWARE})

_at = attrgetter("at")


def after_the_fact(hit: Hit, first: float) -> bool:
    """Did a rank that was told to stop print it after another rank had failed? Then it is a reaction, whatever it says.

    first: when the first rank failed. Slurm's word on a kill for memory is none, in whosever output it stands.
    """
    if hit.own or hit.pattern.role is not Role.ROOT or not hit.end.stopped or hit.pattern.id == SLURMS_WORD_ON_MEMORY:
        return False
    return hit.at > first


def without_warnings(hits: Sequence[Hit]) -> Sequence[Hit]:
    """The hits without warnings. A warning is a cause only if no rank reports an error, or only bystanders do.

    Then a warning of a failed rank may be the cause: PyTorch's store only warns that a name or a port is not available, and
    reports as an error that no rank could connect.
    """
    errors = [hit for hit in hits if not hit.mild]
    if any(hit.pattern.role is Role.ROOT and not hit.pattern.defers for hit in errors):
        return errors
    if not errors:
        return hits
    return [hit for hit in hits if not hit.mild or (hit.own and not hit.settled and hit.pattern.role is Role.ROOT)]


def without_headers(hits: Sequence[Hit]) -> list[Hit]:
    """The hits without headers, on each rank that also printed the error itself."""
    named = {hit.end.rank for hit in hits if not hit.pattern.defers}
    return [hit for hit in hits if not hit.pattern.defers or hit.end.rank not in named]


def without_echoes(roots: Sequence[Hit]) -> Sequence[Hit]:
    """One trouble that several ranks meet in the same moment is told by whoever names it, not by who only says that it failed,
    nor by who has lost a peer by it, or crashed over it.
    """
    losses = {id(hit) for hit in roots if not hit.pattern.defers and _is_loss(hit)}
    named = sorted((hit for hit in roots if not hit.pattern.defers and id(hit) not in losses), key=_at)
    times = [hit.at for hit in named]

    def about(hit: Hit, before_s: float, after_s: float) -> Iterator[Hit]:
        """Those who name a trouble from so long before the hit until so long after it."""
        begin = bisect_left(times, hit.at - before_s)
        return takewhile(lambda each: each.at <= hit.at + after_s, islice(named, begin, None))

    def echoes(hit: Hit) -> bool:
        if hit.pattern.id in CRASHES:
            others = (each for each in about(hit, SAME_MOMENT_S, SAME_MOMENT_S) if of_another_voice(each, hit))
            return any(each.pattern.id not in CRASHES for each in others)
        alike = (each.pattern.error_class is hit.pattern.error_class for each in about(hit, LAST_WORDS_S, LAST_WORDS_S))
        return hit.pattern.defers and any(alike)

    return [hit for hit in roots if not echoes(hit)]


def but_reports(roots: Sequence[Hit], hits: Sequence[Hit]) -> Sequence[Hit]:
    """The roots; none if each only reports that something else failed, and its rank says what: then it is a bystander's line."""
    if not roots or not all(map(_only_reports, roots)):
        return roots
    told = {
        hit.end.rank
        for hit in hits
        if hit.pattern.role is Role.SYMPTOM and not hit.pattern.defers and hit.pattern.id not in HEADERS
    }
    return [] if all(hit.end.rank in told for hit in roots) else roots


def _only_reports(hit: Hit) -> bool:
    by_words = only_reports(hit.line.encode(errors="replace"))
    return by_words or (hit.pattern.defers and not hit.pattern.pattern)


def unless_told_before(roots: Sequence[Hit], hits: Sequence[Hit], ends: Sequence[RankEnd]) -> Sequence[Hit]:
    """The roots; none if each is of a kind that another's failure brings about, and another rank failed before and says of what.

    Of what that rank says no line is known, or it would be a root.
    """
    if not roots or not all(map(_is_brought_about, roots)):
        return roots
    spoke = {hit.end.rank for hit in hits}
    return [] if told_before([end for end in ends if failed(end) and end.rank not in spoke], roots) else roots


def told_before(silent: Sequence[RankEnd], hits: Sequence[Hit]) -> list[RankEnd]:
    """Of ranks of which no line is known: those that failed before any hit, and say of what, if that was no connection.

    A crash, or that a rank waited in vain, tells less than words of the same moment.
    """
    first = min(hit.at for hit in hits)
    crashes = all(hit.pattern.id in CRASHES for hit in hits)
    until = first + SAME_MOMENT_S if crashes or all(map(_waited, hits)) else first - JITTER_S
    before = [end for end in silent if end.output and _last_said(end) < until]
    return [end for end in before[:LISTENED_TO] if _says_otherwise(end)]


def _is_brought_about(hit: Hit) -> bool:
    return hit.pattern.error_class not in _ENDS_A_RANK


def _is_loss(hit: Hit) -> bool:
    """Of a connection that another's end may have closed; what stays so at the next try is a set-up, and not that."""
    return _waited(hit) or (hit.pattern.error_class is ErrorClass.NETWORK and hit.pattern.retriable is not Retriable.NO)


def _waited(hit: Hit) -> bool:
    line = hit.line.encode(errors="replace")
    return waited_in_vain(line) and not of_an_adapter(line)


def _last_said(end: RankEnd) -> float:
    return max((piece.at for piece in end.output), default=end.at)


def _says_otherwise(end: RankEnd) -> bool:
    """Does it say what failed, and was that no connection, and nothing that it had from another?"""
    words = own_words(end, (), vaguely=False)
    kind = kind_of_words(words)
    if not words or (kind and kind.error_class is ErrorClass.NETWORK):
        return False
    return not waited_in_vain(words.encode(errors="replace"))
