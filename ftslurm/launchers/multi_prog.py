"""srun --multi-prog: a file that says which rank runs what. Source: srun(1), MULTIPLE PROGRAM CONFIGURATION."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from ftslurm.errors import UsageError


def parse(text: str, place: str, arguments: tuple[str, ...], tasks: int) -> Mapping[int, tuple[str, ...]]:
    """rank -> argv. `arguments` follow each program's own, as srun does. Raises: UsageError naming place and line."""
    found: dict[int, tuple[str, ...]] = {}
    rest: tuple[str, ...] | None = None
    for number, line in _lines(text):
        ranks, program = _split(line, f"{place}, line {number}")
        if ranks == "*":
            rest = program
            continue
        for index, rank in enumerate(_ranks(ranks, f"{place}, line {number}")):
            found.setdefault(rank, _fill(program, rank, index))
    if rest is not None:
        missing = [rank for rank in range(tasks) if rank not in found]
        found.update({rank: _fill(rest, rank, index) for index, rank in enumerate(missing)})
    if uncovered := [rank for rank in range(tasks) if rank not in found]:
        raise UsageError(f"{place}: no program for rank {uncovered[0]}", hint="add a line for it, or one for `*`")
    return {rank: (*argv, *arguments) for rank, argv in found.items() if rank < tasks}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    pending, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        whole, begun = (pending + line).strip(), start
        pending, start = "", 0
        if whole and not whole.startswith("#"):
            yield begun, whole


def _split(line: str, place: str) -> tuple[str, tuple[str, ...]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{place}: {error}", hint="quotes come in pairs") from None
    if len(words) < 2:
        raise UsageError(f"{place}: a line is `RANKS PROGRAM [ARGUMENTS]`", hint="see srun(1), --multi-prog")
    return words[0], tuple(words[1:])


def _ranks(text: str, place: str) -> Iterator[int]:
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise UsageError(f"{place}: `{text}` is no list of ranks", hint="write it as 0-3,7 or *")
        yield from range(int(low), int(high or low) + 1)


def _fill(program: tuple[str, ...], rank: int, index: int) -> tuple[str, ...]:
    """%t is the rank, %o its place in the line's own range."""
    return tuple(word.replace("%t", str(rank)).replace("%o", str(index)) for word in program)
