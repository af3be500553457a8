"""The scanner: many expressions over much text, and the same answer whichever way they are asked."""

from __future__ import annotations

import random

import pytest

from ftslurm.catalogs import scanner


def test_patterns_asked_together_on_long_lines_tell_what_each_tells_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("alpha ", "beta: ", "gamma.7 ", "delta\t", "failed ", "x" * 9)
    random_ = random.Random(20261123)
    text = b"\n".join("".join(random_.choices(words, k=400)).encode() for _ in range(60))
    wanted = [
        scanner.Wanted("alpha .*failed", "alpha"),
        scanner.Wanted("beta: gamma"),
        scanner.Wanted("gamma.\\d delta", "gamma"),
        scanner.Wanted("delta\tfailed"),
    ]

    def told() -> list[scanner.Match]:
        return scanner.Scanner(wanted).scan(text, 1000, lambda match: match if match.number % 2 else None)

    together = told()
    monkeypatch.setattr(scanner, "JOINED_BYTES", 1 << 30)
    assert together and together == told()
