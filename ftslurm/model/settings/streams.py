"""Which streams of a rank are meant, in torchrun's words: 0 none, 1 stdout, 2 stderr, 3 both; for all ranks (`3`), or by local
rank (`0:3,1:2`, the others 0). Source: torch.distributed.elastic.multiprocessing.Std."""

from __future__ import annotations

from typing import Any

STDOUT, STDERR = 1, 2
_VALUES = ("0", "1", "2", "3")


def streams(value: Any) -> str:
    """As it was written, without blanks; raises ValueError for what is neither of the two."""
    text = str(value).replace(" ", "") or "0"
    pairs = [pair.partition(":") for pair in text.split(",")]
    by_rank = all(rank.isascii() and rank.isdecimal() and which in _VALUES for rank, _, which in pairs)
    if text not in _VALUES and not by_rank:
        raise ValueError(f"`{value}` is neither 0 to 3 nor LOCAL_RANK:N,... (1: stdout, 2: stderr, 3: both)")
    return text


def streams_of(text: str, local_rank: int) -> int:
    """STDOUT | STDERR. text: as `streams` gives it."""
    if ":" not in text:
        return int(text)
    return {int(rank): int(which) for rank, _, which in (pair.partition(":") for pair in text.split(","))}.get(local_rank, 0)


def local_ranks(value: Any) -> tuple[int, ...]:
    """`0,1`, or a list of numbers; empty for all. Raises ValueError."""
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    words = [str(item).strip() for item in items if str(item).strip()]
    if not all(word.isascii() and word.isdecimal() and len(word) < 6 for word in words):
        raise ValueError(f"`{value}` is not a list of local ranks, such as 0,1")
    return tuple(sorted({int(word) for word in words}))
