"""Text of others, made safe for people: the one function at every door (terminal, syslog, drain reason, report, mail).

A ledger, a policy, a setting, the environment, what a rank prints, what Slurm or NCCL answers: any of them may hold words
that somebody else has chosen, and a terminal obeys what it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby

try:
    from _blake2 import blake2s  # hashlib loads OpenSSL: 2 ms of each start
except ImportError:
    from hashlib import blake2s


class _Shown(dict[int, str]):
    """What is shown for a character, by its number. str.translate asks once for each of ASCII, whatever the length of a text."""

    def __init__(self, newline: str, tab: str) -> None:
        super().__init__({number: self[number] for number in range(128)} | {10: newline, 9: tab})

    def __missing__(self, number: int) -> str:
        return char if (char := chr(number)).isprintable() else "?"


_LINE, _LINES = _Shown(" ", " "), _Shown("\n", "\t")


def visible(text: object, lines: bool = False) -> str:
    """As print() would show `text`, with `?` for whatever is not printable: escapes, control characters, marks that turn the
    direction of writing, bytes that are no text.

    lines: text of several lines keeps its newlines and tabs; else it becomes one line, so that nothing in it can be taken for
    a line of ours.
    """
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    shown = shown.replace("\r\n", "\n").encode(errors="replace").decode()
    return shown.translate(_LINES if lines else _LINE)


def fingerprint(text: str, size_bytes: int = 6) -> str:
    """The same for the same text, in hexadecimal digits."""
    return blake2s(text.encode(errors="surrogateescape"), digest_size=size_bytes).hexdigest()


def counted(number: int, noun: str, many: str = "") -> str:
    """`1 restart`, `3 restarts`. many: the plural of a noun that takes no plain s."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def cut(text: str, most: int) -> str:
    """At most so many characters, the end left out."""
    return text if len(text) <= most else text[: max(0, most - 3)].rstrip() + "..."


def cut_front(text: str, most: int) -> str:
    """At most so many characters, the beginning left out: of a path the end tells more."""
    return text if len(text) <= most else "..." + text[len(text) - max(0, most - 3) :]


def how_often(times: int) -> str:
    return {1: "once", 2: "twice"}.get(times) or counted(times, "time")


# --- numbers out of text that anybody may have written, and several of them as text

# Nine digits hold every count, rank and signal there is; int() refuses very long ones, with a ValueError of its own.
DIGITS_MAX = 9


def in_time(seconds: float) -> str:
    """The duration in words: `90 s`, `45 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def whole(text: str) -> int | None:
    """`text` as a whole number of plain digits (no sign, no other script's, not too long); None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def megabytes(text: str) -> int:
    """`2G`, `1500` or `1.50T`, as Slurm takes and prints it, in MB, rounded up; 0 for what is no size."""
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)([KMGTP]?)B?", text.strip().upper(), re.ASCII)
    return -int(-float(found[1]) * 1024.0 ** ("KMGTP".index(found[2] or "M") - 1) // 1) if found else 0


def fold_numbers(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 -> `0-2,5`; in the order of size."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


# --- names of files by srun(1) "FILENAME PATTERN"

FILE_FIELD = r"%(?:(%)|(\d*)([aAjJsutnNx]))"
MAX_WIDTH = 10  # of zero padding
ANY = "*"  # in the place of what is not known


def expand_pattern(pattern: str, values: Mapping[str, str], partly: bool = False) -> str:
    """values: by letter. Numbers are padded with zeros to the width given, in `%J` the job's. partly: what has no value stays."""

    def value_of(found: re.Match[str]) -> str:
        if partly and (found[1] or found[3] not in values):
            return found[0]
        if found[1]:
            return "%"
        first, dot, rest = values[found[3]].partition(".") if found[3] == "J" else (values[found[3]], "", "")
        width = 0 if found[3] in "uNx" or first == ANY else min(int(found[2][-9:] or 0), MAX_WIDTH)
        return first.zfill(width) + dot + rest

    return re.sub(FILE_FIELD, value_of, pattern)


def file_of_rank(pattern: str, rank: int, node: str) -> str:
    """The file of one rank; `*` for what is not known (rank below 0, no node)."""
    known = {"t": str(rank) if rank >= 0 else ANY, "N": node or ANY}
    return expand_pattern(pattern, {**dict.fromkeys("aAjJsunx", ANY), **known})
