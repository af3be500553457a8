"""srun --multi-prog: a file that says which rank runs what. Pure.

Source: srun(1), MULTIPLE PROGRAM CONFIGURATION, and what multi_prog_get_argv in slurmstepd makes of it: the first line
that names the rank counts; only whole-line comments; words are split at blanks, and single quotes and backslashes alone
protect; %t is the rank, %o its place in the line's own list, any other %-pair is removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ftslurm.errors import UsageError

# int() refuses very long numbers, and slurmstepd has no other digits.
_RANKS = re.compile("([0-9]{1,18})(?:-([0-9]{1,18}))?")


def parse(text: str, place: str, arguments: tuple[str, ...], tasks: int) -> Mapping[int, tuple[str, ...]]:
    """rank -> argv. `arguments` follow each program's own, as srun does. Raises: UsageError naming place and line."""
    found: dict[int, tuple[str, ...]] = {}
    for number, line in _lines(text):
        where = f"{place}, line {number}"
        ranks, *rest = line.split(None, 1)
        if not rest:
            raise UsageError(f"{where}: a line is `RANKS PROGRAM [ARGUMENTS]`", hint="see srun(1), --multi-prog")
        for offset, rank in _ranks(ranks, tasks, where):
            if rank < tasks and rank not in found:
                found[rank] = (*_words(rest[0], rank, offset, where), *arguments)
    if uncovered := [rank for rank in range(tasks) if rank not in found]:
        raise UsageError(f"{place}: no program for rank {uncovered[0]}", hint="add a line for it, or one for `*`")
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered from 1; a backslash at the end joins the next line."""
    pending, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        begun = begun or number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        whole, start = (pending + line).strip(), begun
        pending, begun = "", 0
        if whole and not whole.startswith("#"):
            yield start, whole


def _ranks(text: str, tasks: int, where: str) -> Iterator[tuple[int, int]]:
    """(offset, rank) in the order of the list."""
    if text == "*":
        yield from ((rank, rank) for rank in range(tasks))
        return
    offset = 0
    for part in text.split(","):
        bounds = _RANKS.fullmatch(part)
        if not bounds:
            raise UsageError(f"{where}: `{text}` is not a valid list of ranks", hint="write it as 0-3,7 or *")
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        for rank in range(low, min(high, tasks) + 1):
            yield offset + rank - low, rank
        offset += 1 + high - low


def _words(program: str, rank: int, offset: int, where: str) -> tuple[str, ...]:
    words: list[str] = []
    word: str | None = None
    chars = iter(program.strip())
    for char in chars:
        if char.isspace():
            words += [] if word is None else [word]
            word = None
            continue
        word = word or ""
        if char == "'":
            word += _quoted(chars, where)
        elif char == "\\":
            word += next(chars, "")
        elif char == "%":
            word += {"t": str(rank), "o": str(offset)}.get(next(chars, ""), "")
        else:
            word += char
    return (*words, *(() if word is None else (word,)))


def _quoted(chars: Iterator[str], where: str) -> str:
    found = ""
    for char in chars:
        if char == "'":
            return found
        found += char
    raise UsageError(f"{where}: a single quote is not closed", hint="quotes come in pairs")
