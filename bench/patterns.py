"""How fast output is searched for the patterns: 1,000 texts of 100 KB, ordinary and hostile. `bench/patterns.py [TEXT ...]`

Each text is searched on one core by a book of its own, so that what it costs to fill an automaton is in the figure.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.verdict import Role

TEXTS, TEXT_BYTES, DIFFERENT = 1000, 100_000, 200
SEED = 20261121
BOOK = load_pattern_book()
SAMPLES = [pattern.sample for pattern in BOOK.patterns if pattern.role is not Role.CONTEXT]
# Words of the expressions themselves, what an adversary would write.
_WORD = re.compile(r"[A-Za-z][A-Za-z: ]{2,}")
WORDS = [word for p in BOOK.patterns for word in _WORD.findall(re.sub(r"\\.", "|", p.needs or p.pattern))]
NEEDED = [word for p in BOOK.patterns if p.needs for word in _WORD.findall(re.sub(r"\\.", "|", p.needs))[:1]]
ORDINARY = (
    "[2026-08-01 12:00:{:02d},123] [INFO] iteration {:8d}/ 500000 | consumed samples: {:12d} | elapsed time per iteration "
    "(ms): 312.4 | learning rate: 1.2E-04 | global batch size: 256 | lm loss: 2.31{:04d}E+00 | loss scale: 65536.0 | "
    "grad norm: 0.124\n"
)
Random = random.Random


def filled(piece: Callable[[], str]) -> bytes:
    parts: list[str] = []
    size = 0
    while size < TEXT_BYTES:
        parts.append(piece())
        size += len(parts[-1])
    return "".join(parts).encode("utf-8", "surrogateescape")[:TEXT_BYTES]


def ordinary(r: Random) -> bytes:
    return filled(lambda: ORDINARY.format(r.randrange(60), r.randrange(500000), r.randrange(10**9), r.randrange(10000)))


def every_line(r: Random) -> bytes:
    return filled(lambda: r.choice(SAMPLES) + "\n")


def one_error(r: Random) -> bytes:
    return b"RuntimeError: NCCL WARN socketStartConnect: Connect to 10.0.0.7<4242> failed : Connection refused\n" * 1020


def shortest(r: Random) -> bytes:
    return b"ERR!\n" * (TEXT_BYTES // 5)


def shortest_unbroken(r: Random) -> bytes:
    return b"ERR!" * (TEXT_BYTES // 4)


def long_lines(r: Random) -> bytes:
    return filled(lambda: "".join(r.choices("0123456789., []", k=9999)) + "\n")


def no_newline(r: Random) -> bytes:
    return bytes(r.choices(range(32, 127), k=TEXT_BYTES))


def binary(r: Random) -> bytes:
    return r.randbytes(TEXT_BYTES)


def nulls(r: Random) -> bytes:
    return bytes(TEXT_BYTES)


def newlines(r: Random) -> bytes:
    return b"\n" * TEXT_BYTES


def sparse(r: Random) -> bytes:
    return filled(lambda: "x" * 900 + r.choice(SAMPLES) + "\n")


def all_that_is_needed(r: Random) -> bytes:
    """Lines that every second step has to look at, and few match."""
    return filled(lambda: " ".join(NEEDED) + "\n")


def fragments(r: Random) -> bytes:
    def piece() -> str:
        sample = r.choice(SAMPLES)
        begin = r.randrange(len(sample))
        return sample[begin : begin + r.randrange(2, 20)]

    return filled(piece)


def fragments_in_lines(r: Random) -> bytes:
    return fragments(r).replace(b" ", b"\n")


def near(r: Random, between: tuple[str, ...] = ("", "", "", "", " ", "\n", "0", "=")) -> bytes:
    """Beginnings of the patterns' words, which keep an automaton moving and seldom complete one."""

    def piece() -> str:
        word = r.choice(WORDS)
        part = word[: r.randrange(1, len(word))]
        return (part.upper() if r.random() < 0.3 else part) + r.choice(between)

    return filled(piece)


def near_unbroken(r: Random) -> bytes:
    return near(r, ("", "", "", " ", ":"))


KINDS: dict[str, Callable[[Random], bytes]] = {
    "ordinary": ordinary,
    "every-line-matches": every_line,
    "one-error-again-and-again": one_error,
    "shortest-match": shortest,
    "shortest-match-unbroken": shortest_unbroken,
    "sparse-matches": sparse,
    "long-lines": long_lines,
    "no-newline": no_newline,
    "random-bytes": binary,
    "nulls": nulls,
    "newlines": newlines,
    "all-needed-words": all_that_is_needed,
    "fragments": fragments,
    "fragments-in-lines": fragments_in_lines,
    "near-misses": near,
    "near-misses-unbroken": near_unbroken,
}


def measure(kind: str) -> str:
    r = Random(SEED)
    texts = [KINDS[kind](r) for _ in range(DIFFERENT)]
    book = PatternBook(BOOK.patterns, BOOK.exits, BOOK.rules, BOOK.sources)
    began, lines = time.process_time(), 0
    for number in range(TEXTS):
        lines += len(book.scan(texts[number % DIFFERENT]))
    took = time.process_time() - began
    size = TEXTS * len(texts[0])
    return f"{kind:<28} {took:6.2f} s for {size / 1e6:.0f} MB  {size / took / 1e6:7.0f} MB/s  {lines / TEXTS:5.0f} lines a text"


if __name__ == "__main__":
    for name in sys.argv[1:] or KINDS:
        print(measure(name), flush=True)
