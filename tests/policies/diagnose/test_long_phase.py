"""A rank that works while the others give up waiting for it is in a long phase; one that shows no life is a suspect."""

from __future__ import annotations

import pytest

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Blame, ErrorClass, Piece, RankEnd, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose

NCCL = (
    "[rank{0}]: [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, "
    "Timeout(ms)=600000) ran for 600014 milliseconds before timing out.\n"
)
HCCL = "EI0002: 2026-11-22 The wait execution of the Notify register times out. Reason: The Notify register has not received\n"
GAVE_UP = 1000.0


@pytest.fixture(scope="module")
def book() -> PatternBook:
    return load_pattern_book(()).of_ranks()


def run(book: PatternBook, *said: tuple[float, str], ranks: int = 4, words: str = NCCL, **alive: object) -> Verdict:
    """Rank 0 says so much; all others work until second 400, wait, and give up at second 1000."""
    first = RankEnd(
        0, "n1", ExitStatus(0, 15), GAVE_UP + 1, True, output=tuple(Piece(at, "out", text) for at, text in said), **alive
    )  # type: ignore[arg-type]
    others = [
        RankEnd(
            rank, f"n{rank // 2 + 1}", ExitStatus(0, 6), GAVE_UP + 0.1,
            output=(Piece(399.0, "out", "step 41 loss 2.1\n"), Piece(GAVE_UP + rank / 100, "err", words.format(rank))),
        )
        for rank in range(1, ranks)
    ]  # fmt: skip
    return diagnose((first, *others), Facts(), book)


@pytest.mark.parametrize("line", ["Evaluating: 71% 355/500 [09:12<03:45]", "part 12 of 40"])
def test_who_prints_until_the_others_give_up_is_in_a_long_phase(book: PatternBook, line: str) -> None:
    v = run(book, *((at, f"{line}\n") for at in range(410, 1000, 20)))
    assert (v.signature, v.error_class, v.retriable, v.suspects) == ("long-phase", ErrorClass.USER_CODE, Retriable.ONCE, ())
    assert f"the timeout is shorter than rank 0's work: it printed `{line}` 10 s before the others gave up" in v.what
    assert "init_process_group" in v.what


def test_the_setting_is_that_of_the_library_that_gave_up(book: PatternBook) -> None:
    v = run(book, (399.0, "step 41\n"), (900.0, "saving 3 of 9\n"), words=HCCL)
    assert v.signature == "long-phase" and "HCCL_EXEC_TIMEOUT" in v.what


def test_in_a_job_of_two_ranks_as_well(book: PatternBook) -> None:
    assert run(book, (900.0, "eval 3/9\n"), ranks=2).signature == "long-phase"


@pytest.mark.parametrize("last", [399.0, 402.0, 700.0, GAVE_UP + 0.5])
def test_who_said_nothing_in_the_last_quarter_of_the_wait_is_silent(book: PatternBook, last: float) -> None:
    """What a rank prints when it is told to stop is no sign of life before."""
    v = run(book, (399.0, "step 41\n"), (last, "saving\n"))
    assert v.signature == "nccl-watchdog" and [(s.rank, s.blame) for s in v.suspects] == [(0, Blame.SUSPECT)]


def test_io_or_a_beat_is_as_good_as_a_word(book: PatternBook) -> None:
    v = run(book, (401.0, "saving the checkpoint\n"), alive=995.0, alive_by="it did IO")
    assert v.signature == "long-phase" and "rank 0's work: after `saving the checkpoint` it did IO until 5 s before" in v.what
    assert run(book, (401.0, "saving\n"), alive=500.0, alive_by="it did IO").signature == "nccl-watchdog"


def test_without_the_length_of_the_wait_it_began_with_the_last_word_of_those_who_waited(book: PatternBook) -> None:
    bare = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n"
    assert run(book, (401.0, "step 41\n"), words=bare).signature == "nccl-watchdog"
    assert run(book, (900.0, "eval 3/9\n"), words=bare).signature == "long-phase"
