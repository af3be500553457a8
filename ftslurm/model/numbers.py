"""Numbers out of text that anybody may have written, and several of them as text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

# Nine digits hold every count, rank and signal there is; int() refuses very long ones, with a ValueError of its own.
DIGITS_MAX = 9


def whole(text: str) -> int | None:
    """`text` as a whole number of plain digits (no sign, no other script's, not too long); None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def fold_numbers(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 -> `0-2,5`; in the order of size."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def unfold_numbers(text: str) -> tuple[int, ...]:
    """`0-2,5` -> 0, 1, 2, 5: what `fold_numbers` has made."""
    pairs = (part.partition("-") for part in text.split(","))
    return tuple(number for first, _, last in pairs for number in range(int(first), int(last or first) + 1))
