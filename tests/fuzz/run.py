"""Looks for inputs that hurt a parser, for as long as it is told: `python -m tests.fuzz.run --seconds 600`.

The seed it prints finds the same inputs again, with the same number of seconds or more.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
import zlib
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from tests.fuzz.hold import Parser, bounded, hold
from tests.fuzz.parsers import PARSERS

ROUND = 100  # examples of one parser before it is the next one's turn
STUCK_S = 600.0
LINE = 500  # characters of a traceback's lines: inputs may be long


class Tally:
    """of: examples tried. answered: how many of them the parser took."""

    def __init__(self) -> None:
        self.of = self.answered = 0
        self.failed = False


def look(parser: Parser, number: int, tally: Tally) -> None:
    """One round. Raises: whatever the parser owes, with the smallest input that shows it."""

    @seed(number + zlib.crc32(parser.name.encode()))  # or parsers of like inputs would all be given the same ones
    @settings(
        max_examples=ROUND,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        verbosity=Verbosity.normal,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(parser.inputs)
    def takes(example: Any) -> None:
        tally.of += 1
        tally.answered += hold(parser, example)

    takes()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 1 if a parser was hurt."""
    options = _options().parse_args(argv)
    parsers = [parser for parser in PARSERS if options.only in parser.name]
    tallies = {parser.name: Tally() for parser in parsers}
    begun = time.monotonic()
    print(f"seed {options.seed}")
    number = options.seed * 1_000_003
    while True:
        for parser in parsers:
            if time.monotonic() - begun > options.seconds:
                _print(tallies)
                return int(any(tally.failed for tally in tallies.values()))
            if not tallies[parser.name].failed:
                _look_and_tell(parser, number, tallies[parser.name])
        number += 1


def _look_and_tell(parser: Parser, number: int, tally: Tally) -> None:
    try:
        with bounded(STUCK_S):
            look(parser, number, tally)
    except Exception:  # whatever it is: the others are looked at all the same
        tally.failed = True
        told = traceback.format_exc(limit=-6).splitlines()
        print(f"--- {parser.name}", *(line[:LINE] for line in told), sep="\n", flush=True)


def _print(tallies: dict[str, Tally]) -> None:
    for name, tally in tallies.items():
        print(f"{tally.of:9} examples, {tally.answered:9} taken  {name}{'  HURT' if tally.failed else ''}")
    print(f"{sum(tally.of for tally in tallies.values()):9} examples of {len(tallies)} parsers")


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--only", default="", metavar="WORDS", help="parsers whose name holds these words")
    return parser


if __name__ == "__main__":
    sys.exit(main())
