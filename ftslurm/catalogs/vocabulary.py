"""What devices and the libraries around them call their errors: by number, by name and by text, in the frames that print them.

One error has many faces: `cudaErrorLaunchFailure`, `CUDA_ERROR_LAUNCH_FAILED`, `CUDA error 719`, `Cuda failure 'unspecified
launch failure'` are the same. `Vocabulary.read` finds what a line says in any of them. Words and frames are data
(catalogs/device-errors.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import re2

from ftslurm.catalogs.scanner import compiled, which
from ftslurm.model.values import Value, field

# A text of so many words says by itself what it is; shorter ones (`out of memory`) need a frame.
TELLING_WORDS = 4
# Families that the operating system or a library over it prints, for any reason: read after all patterns.
SYSTEM = frozenset({"errno"})
# What `_holds` says of a line that holds any name; texts follow.
_NAME = 0


class ErrorWord(Value):
    """One error. means: a meaning, the id of a pattern."""

    names: tuple[str, ...]
    means: str
    number: int | None = None
    texts: tuple[str, ...] = ()
    family: str = ""

    def __str__(self) -> str:
        number = "" if self.number is None else f" {self.number}"
        return f"{self.family}{number}: {', '.join(self.names)}"


class _Reading(NamedTuple):
    """A word that stands in a line. start: of what says so, bytes."""

    word: ErrorWord
    start: int


class _Texts(NamedTuple):
    """The texts of a family. framed, telling: patterns that end with one of them, in a frame and, of those that need none, alone.

    by_text: in lower case.
    """

    framed: Any
    telling: Any | None
    by_text: Mapping[str, ErrorWord]


class Family(Value):
    """How its errors are printed, in RE2 syntax. names: what looks like a name. frame: what must stand before a short text.
    hints: for the scanner, plain words, one of which every line holds that `read` may understand."""

    names: str
    frame: str = ""
    hints: str = ""


class Numbers(Value):
    """How numbers are printed. families: whose they may be. pattern: with one group, the number."""

    families: tuple[str, ...]
    pattern: str


class Frames(Value):
    families: Mapping[str, Family] = field(default_factory=dict)
    numbers: tuple[Numbers, ...] = ()


class Vocabulary:
    """words: in order, the first that fits a text wins."""

    def __init__(self, words: Iterable[ErrorWord], frames: Frames, only_numbers: bool | None = None) -> None:
        """only_numbers: read what numbers alone say, nothing else; False: all but that; None: everything."""
        self.words = tuple(words)
        self.frames, self._only_numbers = frames, only_numbers
        self.families = tuple(dict.fromkeys(word.family for word in self.words))
        self._by_name = {name: word for word in self.words for name in word.names}
        self._by_number = {(word.family, word.number): word for word in self.words if word.number is not None}

    def part(self, system: bool, numbers: bool | None = None) -> Vocabulary:
        """Of the operating system, or of devices and their libraries. numbers: see `only_numbers`."""
        return Vocabulary((word for word in self.words if (word.family in SYSTEM) is system), self.frames, numbers)

    def read(self, line: bytes) -> _Reading | None:
        """What the line says, by name, by text, or by a number alone, which has meant different things over the years."""
        if self._only_numbers:
            return self._numbered(line)
        held = self._holds(line)
        found = (self._named(line) if _NAME in held else None) or self._in_words(line, held)
        return found or (self._numbered(line) if self._only_numbers is None else None)

    @cached_property
    def hints(self) -> str:
        """Plain words for the scanner, in RE2 syntax: what a line holds that `read` understands."""
        told = [hints for family in self.families if (hints := self.frames.families[family].hints)]
        if self._only_numbers:
            return "(?i)" + "|".join(dict.fromkeys(told))
        told += [re2.escape(text) for text in self._texts(telling=True)]
        if "errno" in self.families:
            told += [rf"\b{name}\b" for word in self.words for name in word.names if word.family == "errno"]
        return "(?i)" + "|".join(dict.fromkeys(told))

    def _texts(self, telling: bool) -> list[str]:
        return [
            text
            for word in self.words
            for text in word.texts
            if (len(text.split()) >= TELLING_WORDS or word.family in SYSTEM) is telling
        ]

    def _named(self, line: bytes) -> _Reading | None:
        for hit in self._name_pattern.finditer(line):
            if word := self._by_name.get(hit.group().decode("latin-1")):
                return _Reading(word, hit.start())
        return None

    def _in_words(self, line: bytes, held: Iterable[int]) -> _Reading | None:
        for texts in (self._texts_of[number] for number in held if number != _NAME):
            for pattern in (texts.framed, texts.telling):
                hit = pattern.search(line) if pattern is not None else None
                if hit is not None:
                    word = texts.by_text[hit.group(1).decode("latin-1").lower()]
                    # A device's frame belongs to what is said; the system's is any word of failure before it.
                    return _Reading(word, hit.start(1) if word.family in SYSTEM else hit.start())
        return None

    def _numbered(self, line: bytes) -> _Reading | None:
        for place in self._whose_numbers(line):
            families, pattern = self._number_patterns[place]
            hit = pattern.search(line)
            # A line that speaks of HIP means HIP's errors; the numbers are mostly the same.
            ordered: Sequence[str] = families if b"hip" not in line.lower() else families[::-1]
            for family in ordered:
                if word := self._by_number.get((family, int(hit.group(1)))):
                    return _Reading(word, hit.start())
        return None

    @cached_property
    def _name_pattern(self) -> Any:
        return compiled("|".join(self.frames.families[family].names for family in self.families))

    @cached_property
    def _holds(self) -> Callable[[bytes], list[int]]:
        """Asked first, one pass over the line, whatever stands there that only looks like a name or a frame: is a name in it
        (_NAME), and a text of which of `_texts_of`?"""
        names = "|".join(map(re2.escape, self._by_name))
        return which([names, *(f"(?i:{'|'.join(map(re2.escape, texts.by_text))})" for texts in self._texts_of.values())])

    @cached_property
    def _number_patterns(self) -> list[tuple[tuple[str, ...], Any]]:
        return [(each.families, compiled(each.pattern)) for each in self._numbers]

    @cached_property
    def _whose_numbers(self) -> Callable[[bytes], list[int]]:
        return which(each.pattern for each in self._numbers)

    @cached_property
    def _numbers(self) -> Sequence[Numbers]:
        return [each for each in self.frames.numbers if set(each.families) & set(self.families)]

    @cached_property
    def _texts_of(self) -> Mapping[int, _Texts]:
        """Family by family, numbered from _NAME + 1 on."""
        found: list[_Texts] = []
        for family in sorted(self.families, key=("hip", *self.families).index):
            by_text: dict[str, ErrorWord] = {}
            for word in self.words:
                for text in word.texts if word.family == family else ():
                    by_text.setdefault(text.lower(), word)
            if not by_text:
                continue
            # The longest first: `unspecified launch failure in prior launch`.
            every = "|".join(re2.escape(text) for text in sorted(by_text, key=len, reverse=True))
            long = [text for text in by_text if len(text.split()) >= TELLING_WORDS]
            telling = "|".join(re2.escape(text) for text in sorted(long, key=len, reverse=True))
            between = r"""[^\n]*?(?:[:'"(\[\]=,]|\b\d{1,6}|returned|failed)[ '"]{0,3}"""
            if family in ("cuda", "hip"):  # `CUDA Error invalid resource handle`
                between = rf"(?:{between}|\s{{1,3}})"
            framed = compiled(f"(?:{self.frames.families[family].frame}){between}((?i:{every}))")
            bare = compiled(f"((?i:{telling}))") if telling and family not in ("hip", "ucx", "acl") else None
            found.append(_Texts(framed, bare, by_text))
        return dict(enumerate(found, start=_NAME + 1))
