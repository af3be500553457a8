"""What people mean when they ask for a code: words in, a list of things to look up out. Pure, and forgiving."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ftslurm.catalogs.codes import is_code
from ftslurm.catalogs.codes import normalise as ascend_code
from ftslurm.model.exits import signal_name
from ftslurm.model.values import dataclass

_SIGNALS = {signal_name(number): number for number in range(1, 32)}
_EXIT = re.compile(r"(?:EXIT(?:ED)?|STATUS|RC)[ _]*(?:CODE|STATUS)?[ :=]*(-?[0-9]{1,3})")
_SIGNAL = re.compile(r"SIGNAL[ :=]*([0-9]{1,2})")
_XID = re.compile(r"(S?XID|RECOVERY)[ :=]*([0-9]{1,9})")
_SUB_CODE = re.compile(r"XID[ :=]*[0-9]{1,9} +\S+ +0X[0-9A-F]{1,8}")
_ACL = re.compile(r"[0-9]{6}")
# A word and its number given as two.
_PAIRED = frozenset({"EXIT", "EXITED", "STATUS", "RC", "SIGNAL", "XID", "SXID", "RECOVERY"})

# In a line of output, a code that says more than the line: kernel log of NVIDIA's drivers, log of Ascend's.
_IN_LINE = (
    ("nvidia", re.compile(r"NVRM: (Xid) \([^)]*\).*?: (\d{1,9}),")),
    ("nvidia", re.compile(r"(SXid) \([^)]*\): (\d{1,9}),")),
    ("ascend", re.compile(r"(?i:event[_ ]id|error[_ ]code)\s*[:=]\s*\[?(0x)([489ABab][0-9A-Fa-f]{7})\b")),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """kind: ascend, nvidia, amd, exit, pattern or line. words: the code, status, id or line to look up."""

    kind: str
    words: str


def asked(words: Sequence[str], names: Callable[[str], Sequence[Asked]]) -> list[Asked]:
    """The codes that `words` consist of; where they are none, one line of output.

    names: what a word names in the catalogues (conditions, ids of patterns); nothing for most.
    """
    found: list[Asked] = []
    rest = list(words)
    while rest:
        taken = _taken(rest, names)
        if taken is None:
            return [Asked("line", " ".join(words))]
        count, what = taken
        found += what
        rest = rest[count:]
    return found


def _taken(words: Sequence[str], names: Callable[[str], Sequence[Asked]]) -> tuple[int, Sequence[Asked]] | None:
    """How many of the words make one code, and what it may be."""
    if len(words) >= 4 and _SUB_CODE.fullmatch(" ".join(words[:4]).upper()):
        return 4, [Asked("nvidia", " ".join(words[:4]))]
    if len(words) >= 3 and words[0].upper() == "EXIT" and (what := _code(" ".join(words[:3]), names)):
        return 3, what
    if len(words) >= 2 and words[0].upper() in _PAIRED and (what := _code(" ".join(words[:2]), names)):
        return 2, what
    what = _code(words[0], names)
    return (1, what) if what else None


def _code(text: str, names: Callable[[str], Sequence[Asked]]) -> Sequence[Asked]:
    word = " ".join(text.upper().split())
    if found := names(text.strip()):
        return found
    if _XID.fullmatch(word) or _SUB_CODE.fullmatch(word):
        return [Asked("nvidia", word)]
    if status := _EXIT.fullmatch(word):
        return [Asked("exit", status.group(1))]
    if number := _SIGNAL.fullmatch(word):
        return [Asked("exit", str(128 + int(number.group(1))))]
    if word in _SIGNALS or f"SIG{word}" in _SIGNALS:
        return [Asked("exit", str(128 + _SIGNALS.get(word, _SIGNALS.get(f"SIG{word}", 0))))]
    if word.isascii() and word.isdigit() and len(word) <= 3:
        return [Asked("exit", word), Asked("nvidia", f"XID {word}")]
    if _ACL.fullmatch(word):
        return [Asked("line", f"error code is {word}")]
    return [Asked("ascend", word)] if _looks_like_ascend(word) else []


def _looks_like_ascend(word: str) -> bool:
    # `DEAD` or `face` is a word first of all: eight or more digits, or a 0x before them.
    code = ascend_code(word)
    return is_code(code) and (word.startswith(("0X", "[")) or (len(word) >= 8 and any(char.isdigit() for char in word)))


def codes_in(line: str) -> list[Asked]:
    """The codes that a line of a kernel log or of a driver's log names."""
    found = []
    for kind, expression in _IN_LINE:
        if match := expression.search(line):
            found.append(Asked(kind, f"{match.group(1)} {match.group(2)}" if kind == "nvidia" else match.group(2).upper()))
    return found
