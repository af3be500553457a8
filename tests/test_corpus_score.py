"""The score of the runs from public threads: what counts against a verdict, and what of the unseen half is shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.config.catalog_files import load_code_book, load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Piece, RankEnd, Retriable, Suspect, Verdict
from tests.corpus.load import Case, Expected
from tests.corpus.score import falsely_held, misses, score_public, score_unmet, without_its_pattern

NONE: frozenset[str] = frozenset()
EXPECTED = Expected(ErrorClass.OOM, Retriable.NO, NONE, NONE, False, "", NONE)
# By their hashes one-run is in the seen half, another-run in the unseen one.
SEEN_CASE = Case("one-run", "public", (), (), {}, EXPECTED, ("Out of memory: Killed", "CUDA out of memory. Tried"))
UNSEEN_CASE = replace(SEEN_CASE, name="another-run")
RIGHT = Verdict(
    ErrorClass.OOM, Retriable.NO, Confidence.STRONG, "", "", evidence=("rank 3: CUDA  out of memory. Tried to allocate",)
)
WRONG = Verdict(
    ErrorClass.HARDWARE, Retriable.YES, Confidence.STRONG, "", "",
    suspects=(Suspect("n1", 0, Blame.YES, ""), Suspect("n2", 2, Blame.SUSPECT, "")), evidence=("rank 0: NCCL error", "CUDA out of memory. Tried"),
)  # fmt: skip


def test_nothing_counts_against_a_right_verdict() -> None:
    assert misses(SEEN_CASE, RIGHT) == {} and falsely_held(SEEN_CASE, RIGHT) == {}


def test_a_wrong_verdict_is_counted_field_by_field() -> None:
    assert set(misses(SEEN_CASE, WRONG)) == {"class", "retriable", "another try", "decisive line"}
    assert falsely_held(SEEN_CASE, WRONG) == {"convicted": {"n1"}, "suspected": {"n1", "n2"}}


def test_yes_instead_of_once_is_another_try_all_the_same() -> None:
    once = replace(SEEN_CASE, expect=replace(EXPECTED, retriable=Retriable.ONCE))
    assert set(misses(once, replace(RIGHT, retriable=Retriable.YES))) == {"retriable"}


@pytest.mark.parametrize(("opened", "held"), [("isolate", {"suspected"}), ("suspects", {"convicted"})])
def test_an_open_field_does_not_count(opened: str, held: set[str]) -> None:
    case = replace(SEEN_CASE, expect=replace(EXPECTED, open=frozenset({opened, "class", "retriable"})))
    assert set(falsely_held(case, WRONG)) == held and set(misses(case, WRONG)) == {"decisive line"}


def test_the_unseen_half_shows_its_numbers_and_no_run() -> None:
    lines = score_public([SEEN_CASE, UNSEEN_CASE], lambda case: WRONG, ["seen", "unseen"], reveal=False)
    assert any("one-run" in line for line in lines) and not any("another-run" in line for line in lines)
    assert [line for line in lines if line.startswith(("seen", "unseen"))] == [
        f"{half:10}   1 runs: class 0/1 = 0.000, retriable 0/1 = 0.000, another try 0/1 = 0.000, decisive line 0/1 = 0.000"
        for half in ("seen", "unseen")
    ]


def test_the_unseen_half_is_shown_to_who_asks() -> None:
    lines = score_public([SEEN_CASE, UNSEEN_CASE], lambda case: WRONG, ["unseen"], reveal=True)
    assert any("another-run" in line for line in lines) and not any("one-run" in line for line in lines)


def test_a_run_in_which_no_line_decides_does_not_count_for_the_line() -> None:
    wordless = replace(SEEN_CASE, decisive=())
    [line, _] = score_public([wordless], lambda case: RIGHT, ["seen"], reveal=False)
    assert "class 1/1 = 1.000" in line and "decisive line none" in line


def test_without_the_pattern_that_knows_a_run_the_rules_alone_judge_it_and_the_unseen_half_is_left_out() -> None:
    text = "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
    end = RankEnd(0, "n1", ExitStatus(1, 0), 100.0, output=(Piece(99.0, "err", text),))
    patterns, codes = load_pattern_book(()).of_ranks(), load_code_book(())
    run = replace(SEEN_CASE, ends=(end,), decisive=("running low on memory",))
    judged = without_its_pattern(run, patterns, codes)
    assert judged is not None and judged.signature != "ray-oom" and judged.error_class is ErrorClass.OOM
    lines = score_unmet([run, replace(run, name="another-run"), replace(run, ends=())], patterns, codes)
    assert lines[-2].startswith("unmet        1 runs: class 1/1")
