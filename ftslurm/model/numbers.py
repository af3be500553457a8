"""Numbers out of text that anybody may have written."""

from __future__ import annotations

# Nine digits hold every count, rank and signal there is; int() refuses very long ones, with a ValueError of its own.
DIGITS_MAX = 9


def whole(text: str) -> int | None:
    """`text` as a whole number of plain digits (no sign, no other script's, not too long); None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None
