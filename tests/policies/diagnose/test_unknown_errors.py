"""Errors of many kinds of programs, judged by the rules with no text of an error in the catalogue, and with all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Confidence, ErrorClass, Piece, RankEnd, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from tests.corpus.score import error_texts, without

BOOK = load_pattern_book(()).of_ranks()
BARE = without(BOOK, error_texts(BOOK))
CASES = yaml.safe_load((Path(__file__).parent / "unknown-errors.yaml").read_text())


def verdict(text: str, status: int = 1, bare: bool = True) -> Verdict:
    """On one of four ranks, two a node."""
    ends = [
        RankEnd(
            rank, f"n{rank // 2 + 1}", ExitStatus(status, 0) if rank == 1 else ExitStatus(0, 15), 100.0, stopped=rank != 1,
            output=(Piece(99.5, "err", text),) if rank == 1 else (),
        )
        for rank in range(4)
    ]  # fmt: skip
    return diagnose(ends, Facts(), BARE if bare else BOOK)


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "whole"])
@pytest.mark.parametrize("case", CASES, ids=[case["line"] for case in CASES])
def test_an_unknown_error_is_placed_by_its_words_and_blames_nobody(case: dict[str, Any], bare: bool) -> None:
    v = verdict(case["text"], case.get("status", 1), bare)
    assert v.error_class is ErrorClass(case["class"])
    assert (v.retriable is not Retriable.NO) is case["again"]
    assert " ".join(case["line"].split()) in " ".join(v.evidence[0].split())
    assert not v.suspects


def test_a_cause_below_an_exception_tells_more_than_the_exception() -> None:
    text = (
        'Exception in thread "main" org.a.JobFailed: job 7 aborted\n\tat org.a.B.c(B.java:3)\n'
        "Caused by: java.io.IOException: No space left on device\n\tat java.io.F.write(F.java:2)\n\t... 3 more\n"
    )
    assert verdict(text).error_class is ErrorClass.STORAGE
    assert verdict(text[: text.index("Caused by")]).error_class is ErrorClass.USER_CODE


@pytest.mark.parametrize(
    "header", ["ERROR", "---- FATAL CALLED ----", "---- FATAL CALLED ----\nFATAL CALLED FROM FILE: <stdin> LINE: 12"]
)
def test_below_a_header_stands_the_message_whatever_its_words(header: str) -> None:
    assert "top of the model is above the data" in verdict(f"{header}\ntop of the model is above the data\n").evidence[0]


def test_a_complaint_counts_only_if_nothing_else_does() -> None:
    assert "negative volume" in verdict("element 3312 has negative volume\nbye\n").evidence[0]
    assert "cannot open mesh" in verdict("cannot open mesh\nelement 3312 has negative volume\n").evidence[0]


@pytest.mark.parametrize("text", ["epoch 3 done\nsaving\n", "please check that the input is not empty and must be sorted\n"])
def test_ordinary_lines_and_advice_are_no_complaint(text: str) -> None:
    assert verdict(text).confidence is Confidence.NONE


def test_slurms_word_on_memory_tells_more_than_the_shells_word_on_the_signal() -> None:
    told = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of the tasks have been OOM Killed.\n"
    v = verdict(f"{told}/var/spool/slurmd/job1/slurm_script: line 3: 123 Killed  ./a.out\n", 137)
    assert (v.error_class, v.retriable) == (ErrorClass.OOM, Retriable.NO) and "oom-kill" in v.evidence[0]


def test_the_cause_stands_last_where_errors_are_wrapped() -> None:
    layers = ": ".join(f"error in layer {number} of the image" for number in range(20))
    assert verdict(f"FATAL: {layers}: no space left on device\n", 255).error_class is ErrorClass.STORAGE
