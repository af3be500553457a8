"""Which part of a file an attempt printed."""

from __future__ import annotations

import pytest

from ftslurm.errors import UsageError
from ftslurm.model import record as rec
from ftslurm.report.logs import banners, of_rank, outputs_of, part_of

TEXT = (
    b"one\nhalf a lineftrun: attempt 3 on n1, after x\nthree\nftrun: attempt 4 on n2\nfour\nftrun: attempt 4 on n2\nfour again\n"
)


def part(attempt: int, text: bytes = TEXT) -> bytes | None:
    found = part_of(banners(text.splitlines(keepends=True)), attempt)
    return None if found is None else text[found[0] : found[1]]


def test_parts_lie_between_banners() -> None:
    assert part(1) == part(2) == b"one\nhalf a line"
    assert part(3) == b"ftrun: attempt 3 on n1, after x\nthree\n"
    assert part(4) == TEXT[TEXT.index(b"ftrun: attempt 4") :], "told twice, it is one attempt"
    assert part(5) is None
    assert part(9, b"no banner\n") == b"no banner\n"


def test_lines_of_a_rank() -> None:
    lines = [b" 3: a\n", b"13: b\n", b"srun: 3: no\n", b"3: c 3: d\n"]
    assert list(of_rank(lines, 3)) == [b"a\n", b"c 3: d\n"] and list(of_rank(lines, 13)) == [b"b\n"]


def test_what_a_ledger_knows() -> None:
    found = outputs_of([
        rec.OutputTo(1.0, "r1", ("/a",), (("task", "/%t"),)), rec.AttemptBegan(2.0, "r1", 1, 0, "k", 1, "n1", 2, "7.0"),
        rec.RankBegan(3.0, "r1", 2, 0, "k", 1, 2),
        rec.OutputTo(4.0, "r2", ("/a", "/b"), (), True), rec.AttemptBegan(5.0, "r2", 3, 1, "k", 1, "n1", 2, "7.1"),
    ])  # fmt: skip
    assert (found.files, found.ranks, found.label) == (("/a", "/b"), (), True)
    assert [each.schedule for each in found.attempts.values()] == [0, 0, 1] and found.attempts[2].step == "7.0"
    found.check(3)
    with pytest.raises(UsageError, match="no such attempt"):
        found.check(4)
