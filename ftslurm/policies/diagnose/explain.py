"""What is known of a text that somebody shows, without the ranks that printed it."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.policies.diagnose.text.findings import Finding, findings, unlisted
from ftslurm.policies.diagnose.text.traces import Raised, outline, plain

# The end of a text in which an exception is looked for that stands there without its trace.
LAST_LINES = 20
# The line above an exception: not directly above, where any line with a colon would count as an exception.
_ABOVE = b'Traceback (most recent call last):\n  File "-", line 1, in -\n-\n'


def explain(text: str, book: PatternBook) -> list[Finding]:
    """What is known of one line, or of the lines of a text, each kind once and in order."""
    text = text.strip("\n")
    return _of_line(text, book) if "\n" not in text else _of_lines(text, book)


def _of_line(line: str, book: PatternBook) -> list[Finding]:
    data = line.encode("utf-8", "surrogateescape")
    if (found := book.look(line)) is not None:
        return [Finding(0, data, found.pattern, word=found.word)]
    raised = _raised(line)
    return [Finding(0, data, unlisted(raised))] if raised else []


def _of_lines(text: str, book: PatternBook) -> list[Finding]:
    data = text.encode("utf-8", "surrogateescape")
    hints = [Finding(hit.offset, hit.line, hit.pattern) for hit in book.hints(data)]
    first: dict[str, Finding] = {}
    for hit in sorted([*findings(data, book), *hints], key=lambda hit: hit.offset):
        first.setdefault(hit.pattern.id, hit)
    ends = [line for each in text.splitlines()[-LAST_LINES:] if (line := each.strip()) and _raised(line)]
    return list(first.values()) or (_of_line(ends[-1], book) if ends else [])


def _raised(line: str) -> Raised | None:
    """The exception at the end of a trace, as a pasted line: ftrun, which sees the trace, knows it by its type."""
    found = outline(_ABOVE + plain(line)).raised
    return replace(found[-1], place="", own=False) if found else None
