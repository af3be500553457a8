"""Log lines and exit statuses that tell what is behind a failure, as values; `PatternBook` looks them up.

Source: catalogs/log-patterns.yaml and exit-codes.yaml, which say where each entry comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import re2

from ftslurm.catalogs.codes import CodeAsked
from ftslurm.catalogs.kinds import Kinds
from ftslurm.catalogs.scanner import MAX_LINE_BYTES, Match, Scanner, Wanted
from ftslurm.catalogs.vocabulary import ErrorWord, Frames, Vocabulary
from ftslurm.model.devices import Remedy
from ftslurm.model.exits import signal_name
from ftslurm.model.values import Value, replace
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role

# So many trials from the front of a text, and as many lines at its end (scanner.py): 1,000 tails of which every line matches take
# a second then, and a failure's first and last words are in it.
LIMIT = 100
KEYWORD = "keyword:"
# Sources that stand before all that ships.
OWN = frozenset({"job", "site"})
# How lines begin that Slurm's commands and daemons print, and the kernel's, as the journal has them (with either time) or dmesg.
SLURM = re.compile(rb"^\s*(?:srun|slurmstepd(?:-\S{1,80})?|slurmd(?:\[\S{1,80}\])?|salloc|sbatch): |^\*\*\* (?:JOB|STEP) ")
_KERNEL = re.compile(rb"^(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\S{15,30}) \S{1,255} kernel: |^\[ *\d{1,9}\.\d{6}\] ")


class Pattern(Value):
    """One kind of line."""

    id: str
    name: str  # its meaning, for people
    error_class: ErrorClass
    retriable: Retriable
    blame: Blame
    role: Role = Role.ROOT
    where: str = "log"  # who prints it: log, kernel, sched, tool, any
    remedy: Remedy = Remedy.RESTART
    confirm: int = 0  # tries worth spending on a confirmation
    pattern: str = ""
    needs: str = ""  # plain words that each line it matches holds, or empty
    sample: str = ""
    note: str = ""
    sources: tuple[str, ...] = ()  # words that the catalogue's table of sources explains
    defers: bool = False  # to any other root of the same rank, for it is a header
    codes: str = ""  # kind of device of which the line names a fault code: the pattern's groups make it
    kernel: str = ""  # how the line begins where no user can have written it; only then it is proof against a node
    hidden_by: tuple[str, ...] = ()  # the program only says what it sees, and these variables hide devices from it
    waited: tuple[str, ...] = ()  # the rank waited in vain for another: what lets it wait longer, and as what programs know that
    because: tuple[str, ...] = ()  # rules that have changed it for the line at hand

    def by(self, rule: str, **changes: Any) -> Pattern:
        """The pattern as a rule has changed it."""
        return replace(self, because=(*self.because, rule), **changes)

    def code_in(self, line: bytes) -> CodeAsked | None:
        """The fault code that the line names, if it is one that does."""
        found = re2.search(self.pattern.encode(), line) if self.codes else None
        return CodeAsked(self.codes, b" ".join(found.groups()).decode()) if found else None

    @property
    def heals(self) -> bool:
        """An error of a device that a restart in place may answer, after a reset if need be?"""
        return self.error_class is ErrorClass.HARDWARE and self.remedy in (Remedy.RESTART, Remedy.RESET)


class Found(NamedTuple):
    """A line that a pattern matches. offset: of the line in the text, bytes. line: without its end, 4 KB of it at most.

    start: where in the line the words begin that say so, bytes. word: the error of a device's vocabulary that it names.
    """

    offset: int
    line: bytes
    pattern: Pattern
    start: int = 0
    word: ErrorWord | None = None


class ExitMeaning(Value):
    """What an exit status says."""

    status: int  # as a shell gives it, 128+n for signal n
    meaning: str
    error_class: ErrorClass
    retriable: Retriable
    blame: Blame
    remedy: Remedy
    note: str = ""
    sources: tuple[str, ...] = ()
    listed: bool = True  # False where only a rule speaks
    tools: tuple[str, ...] = ()  # the output of the tool whose own status it is holds one of these words; empty: any program's


class ExitRule(Value):
    """For the statuses from `low` to `high` that are not listed; its meaning may hold `{signal}`."""

    low: int
    high: int
    meaning: ExitMeaning


class PatternBook:
    """All patterns in order, the first that matches a line wins, and all exit statuses. Made by `catalogs.load_pattern_book`.

    A site's own and a job's keywords stand before the vocabulary of devices, that before the other patterns, and what any program
    may say of the operating system (errno) comes last. sources: word -> what it is. meanings: of the vocabulary's words that are
    no pattern's, by id. kinds: of errors that no pattern knows. begins: `where` of a pattern -> how its lines begin.
    """

    def __init__(
        self,
        patterns: Iterable[Pattern],
        exits: Mapping[int, ExitMeaning],
        rules: Iterable[ExitRule],
        sources: Mapping[str, str],
        vocabulary: Vocabulary | None = None,
        meanings: Mapping[str, Pattern] = MappingProxyType({}),
        kinds: Kinds | None = None,
        begins: Mapping[str, re.Pattern[bytes]] = MappingProxyType({}),
    ) -> None:
        self.patterns = tuple(patterns)
        self.exits = dict(exits)
        self.rules = tuple(rules)
        self.sources = dict(sources)
        self.vocabulary = vocabulary or Vocabulary((), Frames())
        self.meanings = dict(meanings)
        self.kinds = kinds or Kinds()
        self._begins = begins
        self._by_id = {**self.meanings, **{each.id: each for each in reversed(self.patterns)}}

    def scan(self, text: bytes, limit: int = LIMIT, counts: Callable[[Found], bool] | None = None) -> list[Found]:
        """The lines of `text` that tell of a failure, in order; what is CONTEXT is left out (see `hints`).

        counts: may leave a line to the next pattern that matches it.

        From the front until `limit` trials are spent, then of the last `limit` lines. A line longer than 4 KB is looked at in
        pieces. Time, for 200 texts of 100 KB on one core (bench/patterns.py, at a load of 9): ordinary logs 0.05 s; random bytes
        0.2 s; every line a match 1.1 s; made of beginnings of the patterns' own words, the worst that was found: 2.8 s.
        """

        def read(match: Match) -> Found | None:
            found = self._found(match)
            whose = self._begins.get(found.pattern.where)
            if whose is not None and whose.match(found.line) is None:
                return None
            return found if counts is None or counts(found) else None

        return self._scanner.scan(text, limit, read)

    def hints(self, text: bytes, limit: int = LIMIT) -> list[Found]:
        """The lines that are no failure and may explain one, in the same way."""
        return self._hint_scanner.scan(text, limit, lambda hit: Found(hit.offset, hit.line, self._context[hit.number]))

    def line(self, text: bytes | str) -> Pattern | None:
        """The first pattern, of any role, that matches this one line; of its first 4 KB."""
        found = self.look(text)
        return found.pattern if found else None

    def look(self, text: bytes | str) -> Found | None:
        """The same, with where the line says it."""
        line = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        line = line[:MAX_LINE_BYTES]
        told, hint = self._scanner.first(line), self._hint_scanner.first(line)
        found = [self._found(told)] if told is not None else []
        found += [Found(0, line, self._context[hint.number])] if hint is not None else []
        # Words of devices that stand between the patterns have no place among them: they win, as they are not CONTEXT.
        return min(found, key=lambda each: self._places.get(each.pattern.id, 0), default=None)

    def named(self, id: str) -> Pattern | None:
        """The pattern or the meaning of that name."""
        return self._by_id.get(id)

    def means(self, word: ErrorWord) -> Pattern:
        return self._by_id[word.means]

    def codes_in(self, line: str) -> list[CodeAsked]:
        """The fault codes that a line of a log names."""
        text = line.encode("utf-8", "surrogateescape")
        return [code for each in self.patterns if (code := each.code_in(text))]

    @cached_property
    def of_drivers(self) -> tuple[Any, ...]:
        """Expressions for the beginnings of the kernel's lines that speak against a node, as vendors' drivers write them."""
        return tuple(re2.compile(each.kernel.encode()) for each in self.patterns if each.kernel)

    def exit(self, status: int, output: str | None = None) -> ExitMeaning:
        """What `status` says; -n and 256-n are the same. A status that is not listed goes by the first rule that holds it.

        output: what the program printed: a tool's own status counts only where the tool speaks. None: of any tool.
        """
        status &= 0xFF
        listed = self.exits.get(status)
        if listed and (output is None or not listed.tools or any(word in output.lower() for word in listed.tools)):
            return listed
        rule = next(rule for rule in self.rules if rule.low <= status <= rule.high)
        meaning = rule.meaning.meaning.replace("{signal}", signal_name(status - 128))
        return replace(rule.meaning, status=status, meaning=meaning)

    def with_keywords(self, words: Iterable[str]) -> PatternBook:
        """A user's own words for errors that are worth another try, as they stand, before all other patterns."""
        mine = [_keyword(word) for word in dict.fromkeys(words) if 0 < len(word) <= MAX_LINE_BYTES]
        return self._with((*mine, *self.patterns)) if mine else self

    def of_ranks(self) -> PatternBook:
        """Without lines that the kernel, Slurm and other tools print: of a rank's own output those count for nothing."""
        mine = [each for each in self.patterns if each.where in ("log", "any")]
        return self._with(mine)

    def of_job_logs(self) -> PatternBook:
        """With what Slurm's own commands print into a job's log, and the kernel into the journal, where they speak."""
        mine = [each for each in self.patterns if each.where in ("log", "any", "sched", "kernel")]
        return self._with(mine, {"sched": SLURM, "kernel": _KERNEL})

    def _with(self, patterns: Iterable[Pattern], begins: Mapping[str, re.Pattern[bytes]] | None = None) -> PatternBook:
        begins = self._begins if begins is None else begins
        return PatternBook(patterns, self.exits, self.rules, self.sources, self.vocabulary, self.meanings, self.kinds, begins)

    def _found(self, match: Match) -> Found:
        offset, line, number, start, reading = match
        what = self._telling[number]
        if isinstance(what, Vocabulary):
            return Found(offset, line, self.means(reading.word), reading.start, reading.word)
        return Found(offset, line, what, start)

    @cached_property
    def _telling(self) -> tuple[Pattern | Vocabulary, ...]:
        told = [pattern for pattern in self.patterns if pattern.role is not Role.CONTEXT]
        first = [pattern for pattern in told if OWN.intersection(pattern.sources)]
        rest = [pattern for pattern in told if not OWN.intersection(pattern.sources)]
        # A site may have removed what a word means: then the word says nothing any more.
        known = Vocabulary((word for word in self.vocabulary.words if word.means in self._by_id), self.vocabulary.frames)
        if not known.words:
            return (*first, *rest)
        # A text says more than a number beside it, which may be a header's: patterns stand between the two.
        devices, numbers = known.part(system=False, numbers=False), known.part(system=False, numbers=True)
        return (*first, devices, *rest, numbers, known.part(system=True))

    @cached_property
    def _context(self) -> tuple[Pattern, ...]:
        return tuple(pattern for pattern in self.patterns if pattern.role is Role.CONTEXT)

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {pattern.id: place for place, pattern in enumerate(self.patterns)}

    @cached_property
    def _scanner(self) -> Scanner:
        return Scanner([_wanted(each) for each in self._telling])

    @cached_property
    def _hint_scanner(self) -> Scanner:
        return Scanner([_wanted(each) for each in self._context])


def _wanted(each: Pattern | Vocabulary) -> Wanted:
    if isinstance(each, Vocabulary):
        return Wanted(each.hints, "", each.read)
    return Wanted(each.pattern, each.needs)


def _keyword(word: str) -> Pattern:
    word = word.encode(errors="replace").decode()  # an environment may hold what is no text
    return Pattern(
        id=f"{KEYWORD}{word}",
        name="a word that the job calls worth another try",
        error_class=ErrorClass.UNKNOWN,
        retriable=Retriable.YES,
        blame=Blame.NO,
        pattern=re2.escape(word),
        sample=word,
        sources=("job",),
    )
