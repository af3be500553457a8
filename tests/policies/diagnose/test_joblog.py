"""A job's log, read as the last words of ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.diagnose.joblog import NO_NODE, NO_RANK, JobLog, LogPart, read_log
from tests.corpus.load import Case, load_all
from tests.corpus.score import verdict_of

TRACE = "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\nKeyError: 'lr'\n"


def read(text: str, status: int | None = None) -> JobLog:
    return read_log([LogPart(NO_RANK, "out", text)], status)


def words(log: JobLog, rank: int) -> str:
    (end,) = (end for end in log.ends if end.rank == rank)
    return "".join(piece.text for piece in end.output)


@cache
def book() -> PatternBook:
    return load_pattern_book(()).of_job_logs()


def test_one_file_without_labels_is_nobody_s_in_particular() -> None:
    log = read("step 1\n" + TRACE)
    assert [(end.rank, end.node, end.status) for end in log.ends] == [(NO_RANK, NO_NODE, ExitStatus(1))]
    assert log.assumed and words(log, NO_RANK).strip().endswith("KeyError: 'lr'")


def test_srun_says_who_failed_and_how() -> None:
    log = read(TRACE + "srun: error: n2: task 3: Exited with exit code 7\nsrun: error: n1: tasks 0-1: Terminated\n")
    assert (log.first, log.status, log.assumed) == (3, ExitStatus(7), False)
    assert log.told == {3: "n2", 0: "n1", 1: "n1"} and "srun" not in words(log, NO_RANK)
    (end,) = log.ends
    assert end.status == ExitStatus(7)


@pytest.mark.parametrize(("line", "status", "oom"), [
    ("srun: error: n1: task 0: Segmentation fault (core dumped)", ExitStatus(0, 11), None),
    ("srun: error: n1: task 0: Out Of Memory", ExitStatus(0, 9), True),
    ("srun: error: n1: task 0: Killed", ExitStatus(0, 9), None),
    ("srun: error: n1: tasks [0,2-3]: Aborted", ExitStatus(0, 6), None),
    ("ftrun: error: local1: task 0: Exited with exit code 2", ExitStatus(2), None),
])  # fmt: skip
def test_how_srun_puts_it(line: str, status: ExitStatus, oom: bool | None) -> None:
    log = read(f"step 1\n{line}\n")
    assert (log.first, log.status, log.ends[0].oom) == (0, status, oom)


def test_labels_tell_the_ranks_apart_and_slurm_s_own_lines_have_none() -> None:
    text = "".join(f" {rank}: step {step}\n" for step in range(9) for rank in range(3))
    text += "".join(f" 1: {line}\n" for line in TRACE.splitlines())
    log = read(text + "srun: error: n2: task 1: Exited with exit code 1\nsrun: error: n1: tasks 0,2: Killed\n")
    assert {end.rank: (end.node, end.stopped) for end in log.ends if end.rank != NO_RANK} == {
        0: ("n1", True), 1: ("n2", False), 2: ("n1", True),
    }  # fmt: skip
    assert words(log, 1).endswith(TRACE) and "KeyError" not in words(log, 0)


def test_of_an_ordinary_program_numbers_with_a_colon_are_no_labels() -> None:
    assert 12 not in {end.rank for end in read("12: a list of things\nloss 2\nloss 1\n" + TRACE).ends}


def test_a_node_that_slurm_calls_failed_is_a_fact() -> None:
    log = read("step 1\nsrun: error: Node failure on n12\nsrun: error: n12: task 5: Killed\n")
    assert log.bad_nodes.keys() == {"n12"}
    assert read("what is a Node failure on n12 to us?\n").bad_nodes == {}


def test_the_words_of_slurm_count_where_slurm_says_them() -> None:
    preempted = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***\n"
    assert diagnose(read(preempted).ends, Facts(), book()).signature == "slurm-preempt"
    quoted = diagnose(read("epoch 1: DUE TO PREEMPTION we stop\n").ends, Facts(), book())
    assert quoted.signature != "slurm-preempt"


def test_that_srun_ended_the_others_is_no_reason() -> None:
    ended = "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
    log = read(f"srun: error: n2: task 3: Segmentation fault\n{ended}")
    assert diagnose(log.ends, Facts(), book()).signature == "SIGSEGV"
    assert diagnose(read(ended).ends, Facts(), book()).signature == "slurm-cancel"


def test_what_ftrun_says_of_failures_is_no_word_of_the_program() -> None:
    log = read("ftrun: job 1 failed: rank 1\nftrun:   what   CUDA error: uncorrectable ECC error encountered\nstep 1\n")
    assert "ECC" not in words(log, NO_RANK) and "step 1" in words(log, NO_RANK)


def test_an_error_that_was_overcome_is_none_by_the_stamps_of_the_lines() -> None:
    lines = ["2026-01-01 00:00:00 RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"]
    lines += [f"2026-01-01 00:0{minute}:00 step {minute}" for minute in range(1, 9)]
    log = read("\n".join([*lines, "2026-01-01 00:09:00 KeyError: 'lr'"]))
    assert log.lasted_s == 540.0 and diagnose(log.ends, Facts(), book()).signature == "py-key"


def test_files_by_rank() -> None:
    log = read_log([LogPart(0, "out", "step\n"), LogPart(1, "err", TRACE), LogPart(1, "out", "step\n")])
    assert [end.rank for end in log.ends] == [0, 1] and {piece.stream for piece in log.ends[1].output} == {"out", "err"}


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=300) | st.lists(st.sampled_from([
    "3: x", "srun: error: n1: task 0-99999999999: Killed", "srun: error: n1: tasks 5-1,,-: Killed", "2026-99-99 00:00:00",
    "srun: error: \x00: task 1: Exited with exit code 999", "*** JOB 5 ON n1 CANCELLED AT x ***", "\ud800", "\x1b[2J",
]), max_size=12).map("\n".join))  # fmt: skip
def test_whatever_a_log_says_it_is_read(text: str) -> None:
    log = read(text)
    diagnose(log.ends, Facts(bad_nodes=log.bad_nodes), book())
    assert all(end.status is not None for end in log.ends)


# --- the corpus, as a log


def as_log(case: Case) -> str:
    """As srun -l would have written it, with what it says of tasks at the end."""
    pieces = sorted((piece.at, end.rank, line) for end in case.ends for piece in end.output for line in piece.text.splitlines())
    return "".join(f"{rank}: {line}\n" for _, rank, line in pieces) + "".join(_tasks(case))


def _tasks(case: Case) -> Iterator[str]:
    names = {9: "Killed", 11: "Segmentation fault", 6: "Aborted", 7: "Bus error", 15: "Terminated", 4: "Illegal instruction"}
    for end in sorted(case.ends, key=lambda end: (end.stopped, end.at)):
        if end.oom:
            yield f"srun: error: {end.node}: task {end.rank}: Out Of Memory\n"
        elif end.status is not None and not end.status.ok:
            word = names.get(end.status.signal) if end.status.signal else f"Exited with exit code {end.status.code}"
            yield f"srun: error: {end.node}: task {end.rank}: {word}\n" if word else ""


def test_a_log_with_labels_gives_the_verdict_that_ftrun_gives() -> None:
    """Where its facts are words; the times of lines, which a log does not tell, make the few differences."""
    from ftslurm.config.catalog_files import load_code_book

    ours, codes = load_pattern_book(()).of_ranks(), load_code_book(())
    cases = [case for case in load_all() if not (case.faults or case.bad_nodes or any(end.lost for end in case.ends))]
    same = []
    for case in cases:
        log = read(as_log(case))
        by_log, by_ftrun = diagnose(log.ends, Facts(), book()), verdict_of(case, ours, codes)
        agrees = (by_log.error_class, by_log.retriable) == (by_ftrun.error_class, by_ftrun.retriable)
        same.append((case.name, agrees, re.sub(r"\s+", " ", by_log.what)))
    wrong = [(name, what) for name, agrees, what in same if not agrees]
    assert len(wrong) <= 0.1 * len(same), wrong
