"""Classifies an unknown error by its words: what it complains about, and so whether another try may help.

Whoever writes an error names what was in the way: a connection, memory, a file, a licence. That is enough to place an error of a
program that was never seen before, and too little to blame a node for it. The words are data (catalogs/words.yaml).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any

from ftslurm.catalogs.scanner import asks, compiled
from ftslurm.model.values import Value
from ftslurm.model.verdict import ErrorClass, Retriable

# A message names its subject in its first words.
LOOKED_CHARS = 1000


class Kind(Value):
    """What an error is about. retriable: has the same start a fair chance? words: expressions by which it is known, in any case
    of letters. id: its name, if it is asked for by itself."""

    error_class: ErrorClass
    retriable: Retriable
    words: tuple[str, ...] = ()
    id: str = ""

    @property
    def pattern(self) -> str:
        return "|".join(self.words)


def _compiled(pattern: str) -> Any:
    return compiled(f"(?i){pattern}")


# What follows says what others have met, and not what has happened here.
_GUESSED = re.compile(
    r"(?i)\b(?:potential|possible|common|likely|typical|usual) (?:root )?(?:causes?|reasons?)\b"
    r"|\b(?:error|failure|problem|reason|cause)s? such as\b|\(?\b(?:e\.g\.|for example|assuming)\s"
)
# `ERROR_DEVICE_LOST` and `DeviceLost` are words, too.
_IN_NAMES = re.compile(r"([a-z])([A-Z])")
# Types of errors that say that the program itself is wrong, whatever words stand behind them.
_PROGRAM = _compiled(
    r"(?:^|\.)(?:Attribute|Import|Index|Key|ModuleNotFound|Name|NotImplemented|Syntax|Type|UnboundLocal|Indentation|ZeroDivision"
    r"|Recursion)Error$|^(?:panic|shell)$"
)
# These are raised over a wrong argument as well: of their words only those on a thing count.
_ARGUMENT = _compiled(r"(?:^|\.)(?:Value|Assertion|Validation\w*|Argument|Config\w*)Error$")
_THINGS = frozenset({ErrorClass.OOM, ErrorClass.STORAGE, ErrorClass.DATA})


class Kinds:
    """All rows in order. They are compiled when they are first asked for: most looks at a node's log need none."""

    def __init__(self, rows: Iterable[Kind] = ()) -> None:
        self.rows = tuple(rows)
        # What fails on one rank mostly fails on all of them, in the same words.
        self._of = lru_cache(maxsize=256)(self._first)

    def of_words(self, words: str) -> Kind | None:
        """What an error with these words is about; None if they do not tell."""
        looked = words[:LOOKED_CHARS]
        guessed = _GUESSED.search(looked)
        return self._of(looked[: guessed.start()] if guessed else looked)

    def of_error(self, type_name: str, message: str) -> Kind | None:
        """The same of an exception, whose type may say already that it is the program's own."""
        if _PROGRAM.search(type_name.encode()):
            return None
        kind = self.of_words(message)
        if kind and _ARGUMENT.search(type_name.encode()) and kind.error_class not in _THINGS:
            return None
        return kind

    def is_of_an_adapter(self, line: bytes) -> bool:
        """Is it about a network adapter that its own node cannot open? What the system says of the call (no memory, no such
        device) tells less."""
        return self._asks_of_an_adapter(line[:LOOKED_CHARS])

    def _first(self, looked: str) -> Kind | None:
        spelled = _IN_NAMES.sub(r"\1 \2", looked).replace("_", " ")
        # As bytes: of a str RE2's wrapper makes bytes anew for each of the rows.
        ways = [way.encode() for way in dict.fromkeys((looked, spelled))]
        return next((row for pattern, row in self._compiled if any(pattern.search(way) for way in ways)), None)

    @cached_property
    def _compiled(self) -> tuple[tuple[Any, Kind], ...]:
        return tuple((_compiled(row.pattern), row) for row in self.rows)

    @cached_property
    def _asks_of_an_adapter(self) -> Callable[[bytes], bool]:
        return asks(*(f"(?i){row.pattern}" for row in self.rows if row.id == "adapter"))
