"""What a rank itself says of its end, and of what led to a line that it printed: its words, where no pattern knows them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from ftslurm.model.text import visible
from ftslurm.model.verdict import RankEnd, Role
from ftslurm.policies.diagnose.hits import BURST_S, CLEANER, HEADERS, Hit, beginning
from ftslurm.policies.diagnose.text.errors import complaint, error_before, last_line, told_error, unlabelled_line
from ftslurm.policies.diagnose.text.launchers import (
    LAST_CHARS,
    child_line,
    signal_line,
    tells_reason,
)
from ftslurm.policies.diagnose.text.traces import outline, plain

# What a device error brings down fails within seconds.
LAST_WORDS_S = 5.0
# Tracebacks are long, and what was said before them may be the cause.
FURTHEST_CHARS = 4 * LAST_CHARS
# As a shell passes on a signal: 128 and its number.
SHELLS_OWN = range(128, 160)
# Patterns that tell who complains, but not about what.
GENERAL = frozenset({"nccl-warn"})
# A shell's word for a crash, which does not tell the cause.
_BARE_CRASH = re.compile(r"^\W*(?:(?:Segmentation fault|Bus error|Illegal instruction|Aborted)(?: \(core dumped\))?)\W*$")


def own_words(end: RankEnd, but: Collection[str], vaguely: bool = True) -> str:
    """The line that the program may have printed as the reason. but: beginnings of lines to pass over.

    vaguely: even if that only says that something failed.
    """
    return visible(next((line for text in _said(end) if (line := told_error(text, but, reports=False, vaguely=vaguely))), ""))


def complaint_of(end: RankEnd) -> str:
    return visible(next((line for text in _said(end) if (line := complaint(text))), ""))


def last_words(end: RankEnd) -> str:
    """For people: the last line about the rank's end, by the rank or by its launcher."""
    number = end.status.signal or max(0, end.status.code - SHELLS_OWN.start) if end.status else 0
    for said in _said(end):
        shown = signal_line(said, number)
        found = shown or (child_line(said) if number else "")
        if found := found or told_error(said, reports=False):
            return visible(f"; it printed: {found}")
    spoke = {piece.stream: piece.at for piece in end.output}
    for stream in sorted(spoke, key=lambda stream: (spoke[stream] < max(spoke.values()) - LAST_WORDS_S, stream)):
        said = _said_on(end, stream)
        # A warning of long before is none of its last words.
        if end.at <= spoke[stream] + LAST_WORDS_S and (mild := told_error(said, reports=False, mild=True)):
            return visible(f"; it printed: {mild}")
        if last := last_line(said):
            return visible(f"; its last line: {last}")
    return ""


def slurms_reason(end: RankEnd, number: int) -> str:
    """The line in which Slurm says why it ended the rank with that signal; empty if it does not."""
    number = number or (max(0, end.status.code - SHELLS_OWN.start) if end.status else 0)
    return next((line for said in _said(end) if tells_reason(line := signal_line(said, number), number)), "")


def _said(end: RankEnd) -> Iterator[str]:
    """The end of each of its streams."""
    return (text for stream in ("err", "out") if (text := _said_on(end, stream)))


def _said_on(end: RankEnd, stream: str) -> str:
    """The end of what it printed there, without quoted text and without errors that nobody cares for."""
    seen = outline(plain("".join(piece.text for piece in end.output if piece.stream == stream)[-FURTHEST_CHARS:]))
    said = seen.said
    for raised in reversed(seen.raised):
        if raised.ignored or CLEANER in raised.deepest:
            until = said.find(b"\n", raised.offset)
            said = said[: raised.offset] + said[until:] if until >= 0 else said[: raised.offset]
    return said.decode(errors="replace")


def with_own_words(hit: Hit, hits: Sequence[Hit]) -> str:
    """The hit with what else its rank printed, which may be a cause that no pattern knows."""
    own = said_beside(hit, hits)
    if not own and (before := led_to(hit, hits)):
        return f"{hit}; just before: {before}"
    if not own and (after := _came_of(hit, hits)):
        return f"{hit}; which led to: {after}"
    return f"{hit}; it printed: {own}" if own else str(hit)


def led_to(hit: Hit, hits: Sequence[Hit]) -> str:
    """An error that no pattern knows, and that the rank printed in the moments before the hit."""
    if hit.pattern.role is not Role.ROOT:
        return ""
    said = [piece for piece in hit.end.output if hit.at - BURST_S <= piece.at <= hit.at]
    text = outline(plain("".join(piece.text for piece in said)[-2 * LAST_CHARS :])).said.decode(errors="replace")
    return visible(error_before(text, beginning(hit)))


def _came_of(hit: Hit, hits: Sequence[Hit]) -> str:
    """The last exception of the chain that this one began, by the runtime's word; its rank told it last of all."""
    mine = [each for each in hits if each.end.rank == hit.end.rank and hit.at <= each.at <= hit.at + LAST_WORDS_S]
    behind = mine[mine.index(hit) + 1 :] if hit in mine and hit.pattern.role is Role.ROOT else []
    last = next((each for each in reversed(behind) if each.pattern.role is Role.ROOT), None)
    if last is None or not last.led_to or last.pattern.defers:
        return ""
    said = last.line.partition(": ")[2] or last.line
    return "" if said in hit.line or hit.line in last.line else last.line  # it may only say the same again


def words_of(hit: Hit, hits: Sequence[Hit]) -> str:
    """As `with_own_words`, without rank and place."""
    own = said_beside(hit, hits)
    if not own:
        return hit.line
    # A header says less than what it was said with; a line that names the thing says more.
    header = hit.pattern.defers or hit.pattern.id in HEADERS or _BARE_CRASH.search(unlabelled_line(hit.line)) is not None
    return f"{own}; {hit.line}" if header else f"{hit.line}; {own}"


def said_beside(hit: Hit, hits: Sequence[Hit]) -> str:
    crash = _BARE_CRASH.search(unlabelled_line(hit.line)) is not None
    if " ... " in hit.line or (not crash and not hit.pattern.defers and hit.pattern.role is Role.ROOT):
        return ""  # its detail is there already, or it needs none
    but = [beginning(each) for each in _known(hit, hits) if each is hit or not each.pattern.defers]
    return own_words(hit.end, but)


def _known(hit: Hit, hits: Sequence[Hit]) -> list[Hit]:
    """Hits of the same rank from patterns that know more than who complains."""
    return [each for each in hits if each.end.rank == hit.end.rank and (each is hit or each.pattern.id not in GENERAL)]
