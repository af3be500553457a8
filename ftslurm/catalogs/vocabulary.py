"""What devices and the libraries around them call their errors: by number, by name and by text, in the frames that print them.

One error has many faces: `cudaErrorLaunchFailure`, `CUDA_ERROR_LAUNCH_FAILED`, `CUDA error 719`, `Cuda failure 'unspecified
launch failure'` are the same. `Vocabulary.read` finds what a line says in any of them. The words are data
(catalogs/device-errors.yaml); the frames are here, as they are few and frameworks make up new ones only slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import re2

from ftslurm.catalogs.scanner import which
from ftslurm.model.values import Value

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

    by_text: in lower case. lengths: theirs, the longest first.
    """

    framed: Any
    telling: Any | None
    by_text: Mapping[str, ErrorWord]
    lengths: tuple[int, ...]

    def ending(self, line: bytes, end: int) -> str:
        """The longest text that ends at `end`, where a pattern has found one.

        To ask the pattern for a group instead costs many times its search: RE2 knows where a group is only if it leaves its
        automaton and goes over all of the match again.
        """
        before = line[max(0, end - self.lengths[0]) : end].decode("latin-1").lower()
        return next(text for length in self.lengths if (text := before[-length:]) in self.by_text)


_NAMES = {
    "cuda": r"\bcudaError[A-Z]\w+|\bCUDA_ERROR_[A-Z_]+",
    "hip": r"\bhipError[A-Z]\w+|\bHSA_STATUS_ERROR_[A-Z_]+",
    "acl": r"\bACL(?:NN)?_(?:ERR|ERROR|CLEAR|STRESS)_[A-Z_]+",
    "hccl": r"\bHCCL_E_[A-Z_]+",
    "nccl": r"\bnccl[A-Z]\w+",
    "ucx": r"\bUCS_ERR_[A-Z_]+",
    "errno": r"\bE[A-Z0-9]{2,14}\b",
}
_CUDA_FRAME = (
    r"(?i:\b(?:cuda|hip|rocm)[ _-]?(?:driver|runtime|api|kernel)?[ _-]?(?:api|call)?[ _-]?(?:error|failure|failed|errno|err)\b)"
    r"|\bTriton Error \[(?:CUDA|HIP)\]|\bfrom (?:cuda|hip)Get\w+\(\)"
    r"|\b(?:cuda|hip|cu)[A-Z]\w+\(?[^\n]*?\)? (?:returned|failed)"
)
# (families, expression with one group: the number).
_NUMBERS = (
    (("cuda", "hip"), rf"(?:{_CUDA_FRAME})[ :=#(\[]{{0,4}}(?:code[ :=]{{0,2}})?(\d{{1,4}})\b"),
    (("cuda", "hip"), r"\bfrom (?:cuda|hip)Get[^\n]*\bError (\d{1,4}): "),
    (("acl",), r"(?i:\b(?:error ?code|err_?code|errno|error|ret ?code|return ?code|result|rt_?ret|ret|status|acl ?error)\b)"
               r"(?: is)?[^\w\n]{0,4}(?:is[ :]{1,3})?([1235]\d{5})\b"),
    (("hccl",), r"(?:HCCL|hccl|Hccl)[^\n]*\b(?i:error code is|hcclRet ->|ret(?:code)?) ?[:=(\[]? ?(\d{1,2})\b"),
    (("nccl",), r"\bNCCL (?:[Ee]rror|failure) (\d)\b"),
    (("errno",), r"(?:\[Errno |\(errno:? |\berrno[ =:]{1,3}|\(os error |\bError\()(\d{1,3})\b"),
)  # fmt: skip
# What must stand before a short text.
_TEXT_FRAMES = {
    "cuda": _CUDA_FRAME,
    "hip": _CUDA_FRAME.replace("cuda|hip", "hip").replace("CUDA|HIP", "HIP"),
    "acl": r"reason|retCode|error from device|retcode: \d+|\bACL\b|\bacl[A-Z]\w+",
    "nccl": r"\b(?:NCCL|RCCL)\b|nccl[A-Z]\w+|failure at",
    "ucx": r"\bUCX\b|\buc[pt]_\w+",
    "errno": r"(?i:error|failed|fail|cannot|can't|could not|unable|errno|fatal)|\w: ",
}
# For the scanner: plain words, one of which every line holds that `read` may understand.
_HINTS = {
    "cuda": (
        r"cudaError|CUDA_ERROR_|cuda error|cuda failure|cuda failed|cuda driver error|cuda runtime error|cuda api error"
        r"|cuda runtime api|cuda err|from cudaGet|hipError|HSA_STATUS_ERROR|hip error|hip failure|hip runtime error|from hipGet"
        r"|rocm error|Triton Error|\) returned|\) failed"
    ),
    "acl": (
        r"(?:code|errno|ret|result|status|error)(?: is)?[ :=(\[]{1,4}(?:is[ :]{1,3})?[1235]\d{5}\b"
        r"|reason=\[|retCode=|retcode: |ACL_ERROR_|ACLNN_"
    ),
    "hccl": r"HCCL_E_|hcclRet|HCCL function error",
    "nccl": r"nccl(?:Unhandled|System|Internal|Invalid|Remote)|NCCL error|NCCL failure|failure at",
    "ucx": r"UCS_ERR_",
    "errno": r"\[Errno |\(errno|errno[ =:]|os error|Error\(\d",
}


class Vocabulary:
    """words: in order, the first that fits a text wins."""

    def __init__(self, words: Iterable[ErrorWord], only_numbers: bool | None = None) -> None:
        """only_numbers: read what numbers alone say, nothing else; False: all but that; None: everything."""
        self.words = tuple(words)
        self._only_numbers = only_numbers
        self.families = tuple(dict.fromkeys(word.family for word in self.words))
        self._by_name = {name: word for word in self.words for name in word.names}
        self._by_number = {(word.family, word.number): word for word in self.words if word.number is not None}
        self._last: tuple[bytes, _Reading | None] = (b"", None)

    def part(self, system: bool, numbers: bool | None = None) -> Vocabulary:
        """Of the operating system, or of devices and their libraries. numbers: see `only_numbers`."""
        return Vocabulary((word for word in self.words if (word.family in SYSTEM) is system), numbers)

    def read(self, line: bytes) -> _Reading | None:
        """What the line says, by name, by text, or by a number alone, which has meant different things over the years."""
        last, reading = self._last
        if line is not last:  # whoever has asked whether it says anything asks again what it is
            reading = self._read(line)
            self._last = line, reading
        return reading

    def _read(self, line: bytes) -> _Reading | None:
        if self._only_numbers:
            return self._numbered(line)
        held = self._holds(line)
        found = (self._named(line) if _NAME in held else None) or self._in_words(line, held)
        return found or (self._numbered(line) if self._only_numbers is None else None)

    def code(self, words: str) -> ErrorWord | None:
        """What people ask for: a name, or a number that is one in one family only (`507015`)."""
        if found := self._by_name.get(words):
            return found
        same = [word for word in self.words if words.isdigit() and len(words) == 6 and word.number == int(words)]
        return same[0] if len(same) == 1 else None

    @cached_property
    def hints(self) -> str:
        """Plain words for the scanner, in RE2 syntax: what a line holds that `read` understands."""
        told = [_HINTS[family] for family in self.families if family in _HINTS]
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
                    text = texts.ending(line, hit.end())
                    word = texts.by_text[text]
                    # A device's frame belongs to what is said; the system's is any word of failure before it.
                    return _Reading(word, hit.end() - len(text) if word.family in SYSTEM else hit.start())
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
        return _compiled("|".join(_NAMES[family] for family in self.families))

    @cached_property
    def _holds(self) -> Callable[[bytes], list[int]]:
        """Asked first, one pass over the line, whatever stands there that only looks like a name or a frame: is a name in it
        (_NAME), and a text of which of `_texts_of`?"""
        names = "|".join(map(re2.escape, self._by_name))
        return which([names, *(f"(?i:{'|'.join(map(re2.escape, texts.by_text))})" for texts in self._texts_of.values())])

    @cached_property
    def _number_patterns(self) -> list[tuple[tuple[str, ...], Any]]:
        return [(families, _compiled(pattern)) for families, pattern in _NUMBERS if set(families) & set(self.families)]

    @cached_property
    def _whose_numbers(self) -> Callable[[bytes], list[int]]:
        return which(pattern for families, pattern in _NUMBERS if set(families) & set(self.families))

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
            framed = _compiled(f"(?:{_TEXT_FRAMES[family]}){between}(?i:{every})")
            bare = _compiled(f"(?i:{telling})") if telling and family not in ("hip", "ucx", "acl") else None
            found.append(_Texts(framed, bare, by_text, tuple(sorted({len(text) for text in by_text}, reverse=True))))
        return dict(enumerate(found, start=_NAME + 1))


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return re2.compile(pattern.encode(), options)
