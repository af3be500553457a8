"""Log lines and exit statuses that tell what is behind a failure, as values; `PatternBook` looks them up.

Source: catalogs/log-patterns.yaml and exit-codes.yaml, which say where each entry comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import re2

from ftslurm.model.devices import Remedy
from ftslurm.model.exits import signal_name
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role
from ftslurm.policies.scanner import MAX_LINE_BYTES, Scanner, Wanted

# So many trials from the front of a text, and as many lines at its end (scanner.py): 1,000 tails of which every line matches take
# a second then, and a failure's first and last words are in it.
LIMIT = 100
KEYWORD = "keyword:"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line. name: its meaning, for people. where: who prints it: log, kernel, sched, tool, any.

    confirm: tries worth spending on a confirmation. needs: plain words that each line it matches holds, or empty.
    sources: words that the catalogue's table of sources explains.
    """

    id: str
    name: str
    error_class: ErrorClass
    retriable: Retriable
    blame: Blame
    role: Role
    where: str
    remedy: Remedy
    confirm: int
    pattern: str
    needs: str = ""
    sample: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()

    @property
    def heals(self) -> bool:
        """An error of a device that a restart in place may answer, after a reset if need be?"""
        return self.error_class is ErrorClass.HARDWARE and self.remedy in (Remedy.RESTART, Remedy.RESET)


class Found(NamedTuple):
    """A line that a pattern matches. offset: of the line in the text, bytes. line: without its end, 4 KB of it at most."""

    offset: int
    line: bytes
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class ExitMeaning:
    """What an exit status says. status: as a shell gives it, 128+n for signal n. listed: False where only a rule speaks."""

    status: int
    meaning: str
    error_class: ErrorClass
    retriable: Retriable
    blame: Blame
    remedy: Remedy
    note: str = ""
    sources: tuple[str, ...] = ()
    listed: bool = True


@dataclass(frozen=True, slots=True)
class ExitRule:
    """For the statuses from `low` to `high` that are not listed; its meaning may hold `{signal}`."""

    low: int
    high: int
    meaning: ExitMeaning


class PatternBook:
    """All patterns in order, the first that matches a line wins, and all exit statuses. Made by `catalogs.load_pattern_book`.

    sources: word -> what it is.
    """

    def __init__(
        self,
        patterns: Iterable[Pattern],
        exits: Mapping[int, ExitMeaning],
        rules: Iterable[ExitRule],
        sources: Mapping[str, str],
    ) -> None:
        self.patterns = tuple(patterns)
        self.exits = dict(exits)
        self.rules = tuple(rules)
        self.sources = dict(sources)

    def scan(self, text: bytes, limit: int = LIMIT) -> list[Found]:
        """The lines of `text` that tell of a failure, in order; what is CONTEXT is left out (see `hints`).

        From the front until `limit` trials are spent, then of the last `limit` lines. A line longer than 4 KB is looked at in
        pieces. Time, for 1,000 texts of 100 KB on one core (bench/patterns.py): ordinary logs, no newline at all, random bytes,
        NULs: 0.3 to 0.6 s; every line a match: 1 to 1.5 s; made of pieces of the patterns' own words, the worst that was found:
        2 s, and 3 s where other programs fill the cache, for then it is the cache that counts.
        """
        return [Found(hit.offset, hit.line, self._telling[hit.number]) for hit in self._scanner.scan(text, limit)]

    def hints(self, text: bytes, limit: int = LIMIT) -> list[Found]:
        """The lines that are no failure and may explain one, in the same way."""
        return [Found(hit.offset, hit.line, self._context[hit.number]) for hit in self._hint_scanner.scan(text, limit)]

    def line(self, text: bytes | str) -> Pattern | None:
        """The first pattern, of any role, that matches this one line; of its first 4 KB."""
        line = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        told, hint = self._scanner.first(line), self._hint_scanner.first(line)
        found = [self._telling[told]] if told is not None else []
        found += [self._context[hint]] if hint is not None else []
        return min(found, key=self.patterns.index, default=None)

    def exit(self, status: int) -> ExitMeaning:
        """What `status` says; -n and 256-n are the same. A status that is not listed goes by the first rule that holds it."""
        status &= 0xFF
        if status in self.exits:
            return self.exits[status]
        rule = next(rule for rule in self.rules if rule.low <= status <= rule.high)
        meaning = rule.meaning.meaning.replace("{signal}", signal_name(status - 128))
        return replace(rule.meaning, status=status, meaning=meaning)

    def with_keywords(self, words: Iterable[str]) -> PatternBook:
        """A user's own words for errors that are worth another try, as they stand, before all other patterns."""
        mine = [_keyword(word) for word in dict.fromkeys(words) if 0 < len(word) <= MAX_LINE_BYTES]
        return PatternBook((*mine, *self.patterns), self.exits, self.rules, self.sources) if mine else self

    def of_ranks(self) -> PatternBook:
        """Without lines that the kernel, Slurm and other tools print: of a rank's own output those count for nothing."""
        mine = [each for each in self.patterns if each.where in ("log", "any")]
        return PatternBook(mine, self.exits, self.rules, self.sources)

    @cached_property
    def _telling(self) -> tuple[Pattern, ...]:
        return tuple(pattern for pattern in self.patterns if pattern.role is not Role.CONTEXT)

    @cached_property
    def _context(self) -> tuple[Pattern, ...]:
        return tuple(pattern for pattern in self.patterns if pattern.role is Role.CONTEXT)

    @cached_property
    def _scanner(self) -> Scanner:
        return Scanner([Wanted(each.pattern, each.needs) for each in self._telling])

    @cached_property
    def _hint_scanner(self) -> Scanner:
        return Scanner([Wanted(each.pattern, each.needs) for each in self._context])


def _keyword(word: str) -> Pattern:
    word = word.encode(errors="replace").decode()  # an environment may hold what is no text
    return Pattern(
        id=f"{KEYWORD}{word}",
        name="a word that the job calls worth another try",
        error_class=ErrorClass.UNKNOWN,
        retriable=Retriable.YES,
        blame=Blame.NO,
        role=Role.ROOT,
        where="log",
        remedy=Remedy.RESTART,
        confirm=0,
        pattern=re2.escape(word),
        sample=word,
        sources=("job",),
    )
