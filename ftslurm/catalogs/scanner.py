"""Finds, in a lot of text, the lines that some of many expressions match: in time linear to the text, whatever the text.

A log is hostile input: a program may print anything, and one look at the last 100 KB of 1,000 ranks must not hold ftrun up.
Python's `re` backtracks, so RE2 it is. But RE2 is fast only while its automaton is small. An expression with a `.*` stays half
matched to the end of the line, so that n of them make up to 2^n states; a text that visits ever new ones costs microseconds a
byte (measured: 0.3 MB/s, where all patterns stood in one expression). Hence three steps, each on less text than the one before:

1. One automaton of a few plain words for each pattern (what it `needs`, see log-patterns.yaml, else the pattern itself) finds the
   lines that may match. Its states are some thousands, whatever the text.
2. A second one, of the same words, tells for such a line which patterns to try.
3. Each of these, by itself, says whether it matches. Lines and trials are counted, and there is a limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import re2

from ftslurm.model.values import Value

# A longer line is looked at in pieces around what was found in it. What tells of failures is shorter; tensors printed on one line
# are not, and a program that prints no newline at all is no reason to spend more.
MAX_LINE_BYTES = 4096
# Once the limit is reached from the front, only the end of the text is of interest, at most so much of it.
LAST_BYTES = 16384
# What is searched at once: lines are cut only where they are longer than this.
_PIECE_BYTES = 16384
# A cap that an automaton may fill, no allocation. The shipped patterns fill 30 MB in all under the worst texts tried.
_AUTOMATON_BYTES = 64 << 20
# `.*`, `\S+`, `[^:]*`, `(...)*`, `.{0,80}`.
_WIDE = re.compile(r"(?:\.|\\[SDWC]|[])])(?:[*+]|\{\d*,\d*\}|\{\d{2,}\})")
_NAMED = re.compile(r"\(\?P?<[^>]*>")


class Wanted(Value):
    """An expression to look for, in RE2 syntax. needs: plain words that every line it matches holds; empty: it is plain.

    reads: asked about a line that the expression matches: does it say what is wanted? None: yes.
    """

    pattern: str
    needs: str = ""
    reads: Callable[[bytes], object] | None = None


class Match(NamedTuple):
    """A line, at most MAX_LINE_BYTES of it, and the number of the first of the wanted that matches it.

    start: where in the line it begins to match, bytes. reading: what one of the wanted that `reads` for itself has read.
    """

    offset: int
    line: bytes
    number: int
    start: int
    reading: Any = None


T = TypeVar("T")


class Scanner:
    """Looks for many expressions at once. Raises: re2.error for one that RE2 refuses."""

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._patterns = [each.pattern for each in wanted]
        self._reads = [each.reads for each in wanted]
        # Upper and lower case count alike in all of them, which halves the states.
        words = [f"(?mi:{_NAMED.sub('(?:', each.needs or each.pattern)})" for each in wanted]
        self._which = _set(words)
        self._any = _compiled("|".join(words)) if words else None
        self._searched: list[Any] = [None] * len(self._patterns)

    def first(self, line: bytes) -> Match | None:
        """The first of the wanted, in their order, that matches `line`."""
        line = line[:MAX_LINE_BYTES]
        return next((match for index in self._may_match(line) if (match := self._match(index, 0, line))), None)

    def scan(self, text: bytes, limit: int, read: Callable[[Match], T | None]) -> list[T]:
        """What `read` makes of lines that match, in order: as many from the front as `limit` trials reach, then of the last
        `limit` lines.

        A trial is one pattern tried on a line, and a quarter KB of a line beyond its first. Where `read` gives None, the next
        of the wanted is tried.
        """
        found, looked_to = self._look(text, 0, limit, read)
        if looked_to < len(text):
            # Lines that many patterns may match are no reason to miss the very last one.
            found += self._look(text, max(looked_to, _last_lines(text, limit)), 2 * limit, read)[0]
        return found

    def _look(self, text: bytes, begin: int, limit: int, read: Callable[[Match], T | None]) -> tuple[list[T], int]:
        """What matches from `begin` on, and how far the limit reached."""
        found: list[T] = []
        for offset, line, may in self._lines(text, begin):
            limit -= 1 + (len(line) >> 8)
            for index in may:
                match = self._match(index, offset, line)
                told = read(match) if match else None
                if told is not None:
                    found.append(told)
                    break
                limit -= 1
                if limit <= 0:
                    break
            if limit <= 0:
                return found, offset + len(line)
        return found, len(text)

    def _lines(self, text: bytes, begin: int) -> Iterator[tuple[int, bytes, Sequence[int]]]:
        """Lines that may match: offset, line, which of the wanted to try."""
        for start, stop in _pieces(text, begin):
            position = start
            while position < stop and (hit := self._any.search(text, position, stop) if self._any else None):
                line = max(text.rfind(b"\n", position, hit.start()) + 1, position, hit.start() - MAX_LINE_BYTES // 4)
                position = _line_end(text, line, hit.start(), stop)
                yield line, text[line:position], self._may_match(text[line:position])
                position += 1
                # Such lines come in runs, and to try the next one costs a third of a search.
                while position < stop:
                    end = _line_end(text, position, position, stop)
                    may = self._may_match(text[position:end])
                    if not may:
                        break
                    yield position, text[position:end], may
                    position = end + 1

    def _may_match(self, line: bytes) -> list[int]:
        return sorted(self._which.Match(line) or ())

    def _match(self, index: int, offset: int, line: bytes) -> Match | None:
        reads = self._reads[index]
        if reads is not None:
            reading = reads(line)
            return None if reading is None else Match(offset, line, index, 0, reading)
        if self._searched[index] is None:
            self._searched[index] = _compiled(self._patterns[index])
        hit = self._searched[index].search(line)
        return Match(offset, line, index, hit.start()) if hit else None


def mistake(pattern: str, sample: str) -> str:
    """What is wrong with an expression that should match `sample` and no empty line, or nothing."""
    try:
        expression = _compiled(pattern)
    except re2.error as error:
        reason = error.args[0]
        return f"is refused by RE2: {reason.decode('utf-8', 'replace') if isinstance(reason, bytes) else reason}"
    if expression.search(b"") is not None:
        return "matches the empty line, so it would match every line"
    return "" if expression.search(_bytes(sample)) is not None else "does not match its `sample`"


def is_wide(pattern: str) -> bool:
    """May the expression stay half matched over much of a line? Then it has to say what it needs."""
    return _WIDE.search(pattern) is not None


def asks(*patterns: str) -> Callable[[bytes], bool]:
    """Does a text hold what one of these matches? A set answers in a third of the time of a search, and tells no place."""
    held = _set(f"(?m:{pattern})" for pattern in patterns)
    return lambda text: held.Match(text) is not None


def which(patterns: Iterable[str]) -> Callable[[bytes], list[int]]:
    """Gives the numbers of those that a text holds, in their order; in one pass over it."""
    held = _set(f"(?m:{pattern})" for pattern in patterns)
    return lambda text: sorted(held.Match(text) or ())


def compiled(pattern: str) -> Any:
    """An expression with its groups; `^` and `$` are the text's."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(pattern.encode(), options)


def _compiled(pattern: str) -> Any:
    # `^` and `$` are a line's.
    return re2.compile(_bytes(f"(?m:{pattern})"), _options())


def _set(patterns: Iterable[str]) -> Any:
    made = re2.Set.SearchSet(_options())
    for pattern in patterns:
        made.Add(_bytes(pattern))
    made.Compile()
    return made


def _options() -> re2.Options:
    """Bytes as Latin-1: any byte is a character and no text is invalid. No match spans lines."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = _AUTOMATON_BYTES
    options.log_errors = False
    options.never_nl = True
    options.never_capture = True
    return options


def _bytes(pattern: str) -> bytes:
    # A character outside ASCII is matched as the bytes that it has in UTF-8, the encoding of logs.
    return pattern.encode("utf-8", "surrogateescape")


def _pieces(text: bytes, begin: int) -> Iterator[tuple[int, int]]:
    """Begin and end of parts of the text that end with a line where they can."""
    while begin < len(text):
        stop = begin + _PIECE_BYTES
        if stop < len(text):
            stop = (text.rfind(b"\n", begin, stop) + 1) or stop
        yield begin, min(stop, len(text))
        begin = stop


def _line_end(text: bytes, line: int, position: int, stop: int) -> int:
    """Where the line that begins at `line` ends, looked for from `position`: at most MAX_LINE_BYTES on."""
    end = text.find(b"\n", position, stop)
    return min(stop if end < 0 else end, line + MAX_LINE_BYTES)


def _last_lines(text: bytes, count: int) -> int:
    """Where the last `count` lines begin, LAST_BYTES before the end at most; there it may be within a line."""
    earliest = max(len(text) - LAST_BYTES, 0)
    begin = len(text.rstrip(b"\n"))
    for _ in range(count):
        begin = text.rfind(b"\n", earliest, begin)
        if begin < 0:
            return earliest
    return begin + 1
