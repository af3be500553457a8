"""Shaken runs: what keeps its truth, what does not count, and that the unseen half is left out."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ftslurm.config.catalog_files import load_code_book, load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import ErrorClass, Piece, RankEnd, Retriable, Role
from tests.corpus import shake
from tests.corpus.load import Case, Expected
from tests.corpus.score import score_shaken

NONE: frozenset[str] = frozenset()
EXPECTED = Expected(ErrorClass.OOM, Retriable.NO, NONE, NONE, False, "", NONE)
ROOT, ECHO = "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n", "[rank1] NCCL WARN Connection closed by remote peer\n"
FIRST = RankEnd(0, "n1", ExitStatus(1, 0), 100.0, output=(Piece(99.0, "err", ROOT), Piece(98.0, "out", "step 1\n")))
SECOND = RankEnd(1, "n2", ExitStatus(1, 0), 101.0, output=(Piece(100.5, "err", ECHO),))
RUN = Case("one-run", "public", (FIRST, SECOND), (), {}, EXPECTED, ("CUDA out of memory. Tried",))
BOOK = load_pattern_book(()).of_ranks()


@pytest.mark.parametrize("name", shake.TELLINGS)
def test_a_run_told_otherwise_still_says_the_decisive_words(name: str) -> None:
    told = shake.TELLINGS[name](RUN, Random(1))
    assert told is None or any("CUDA out of memory. Tried" in piece.text for end in told.ends for piece in end.output)


def test_what_changes_nothing_does_not_count() -> None:
    alone = replace(RUN, ends=(replace(FIRST, output=FIRST.output[:1]),))
    tellings = (
        shake.renumbered,
        shake.jittered,
        shake.as_one_stream,
        shake.in_one_log,
        shake.with_more_bystanders,
        shake.stripped,
    )
    assert [tell(alone, Random(1)) for tell in tellings] == [None] * len(tellings)


def test_one_log_holds_all_lines_in_the_order_of_time() -> None:
    told = shake.in_one_labelled_log(RUN, Random(1))
    assert told is not None and [piece.text[:8] for piece in told.ends[0].output] == ["[rank0]:", "[rank0]:", "[rank1]:"]
    assert len(told.ends) == 1 and told.ends[0].rank == 0


def test_marks_that_few_runs_bear_out_fall_and_headers_keep_theirs() -> None:
    known = {pattern.id for pattern in shake.known(RUN, BOOK)}
    rare, plain = shake.untuned(RUN, BOOK, {}), shake.untuned(RUN, BOOK, dict.fromkeys(known, shake.PLAIN_RUNS))
    assert plain is None and rare is not None
    assert all(pattern.role is Role.ROOT and not pattern.defers for pattern in shake.known(RUN, rare))


def test_no_pattern_knows_the_decisive_line_any_more() -> None:
    book = shake.without_decisive(RUN, BOOK)
    assert book is not None and book.scan(ROOT.encode()) == [] and book.scan(ECHO.encode())


def test_every_line_that_sounds_like_an_error_is_known() -> None:
    strange = replace(FIRST, output=(Piece(99.0, "err", "frobnicator: cannot frob 7\nall is well\n"),))
    book = shake.all_known(replace(RUN, ends=(strange,)), BOOK)
    assert book is not None and book.scan(b"frobnicator: cannot frob 7") and not book.scan(b"all is well")


def test_the_unseen_half_is_left_out() -> None:
    lines = score_shaken([RUN, replace(RUN, name="another-run")], BOOK, load_code_book(()), ("renumbered",))
    assert not any("another-run" in line for line in lines)
    assert next(line for line in lines if line.startswith("renumbered")).split()[1:3] == ["1", "runs:"]
