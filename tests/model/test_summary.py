"""A job in one line: what its ledger says, and what only Slurm knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.model import record as rec
from ftslurm.model.decisions import Requeue
from ftslurm.model.folds.summary import JobSummary, SlurmWord, by_slurm, summarise
from ftslurm.report.view import status_of
from tests.stories.replay import Job, fault, requeueing


def summary(job: Job) -> JobSummary:
    found = summarise(job.ledger)
    assert found is not None
    return found


def requeued() -> Job:
    job = Job().begin()
    job.exits(0, 1)
    return job


def test_nothing_has_no_summary() -> None:
    assert summarise([]) is None


def test_a_job_that_slurm_is_ending_is_not_said_to_be_requeued() -> None:
    """After scancel, where a script has become ftrun: Slurm shows COMPLETING at first (seen on 22.05)."""
    job = Job().begin()
    ended = rec.Finished(1e9, "r", 143, "Slurm is ending the job", outcome="being ended")
    found = summarise([*job.ledger, ended])
    assert found is not None and (found.state, found.what, found.over) == ("completing", "", False)
    assert by_slurm(found, {found.number: SlurmWord("CANCELLED")}).state == "cancelled"
    assert by_slurm(found, {found.number: SlurmWord("RUNNING")}).state == "starting", "it was requeued, and runs again"
    assert by_slurm(found, {}).what.endswith("it was completing then")


def test_it_agrees_with_the_detailed_view() -> None:
    job = requeued().again().begin()
    job.shows(fault())
    short, long = summary(job), status_of(job.ledger)
    assert long is not None
    for name in ("job", "cluster", "command", "attempt", "schedule_count", "nodes", "rung", "cause", "at", "requeue_open"):
        assert getattr(short, name) == getattr(long.summary, name), name
    assert (short.state, short.over, short.attempt) == ("running", False, 3)


def test_ends() -> None:
    well, failed = Job().begin(), Job(requeueing(unconditional_requeue__enabled=False)).begin()
    well.all_exit(0)
    failed.exits(2, 9)
    assert summary(well)[4:7] == ("completed", "", True)
    assert summary(failed).state == "failed" and summary(failed).what.startswith("status 9: rank 2 on n2 exited")


@pytest.mark.parametrize(("what", "state", "over"), [
    ("the job was cancelled", "cancelled", True), ("the time limit was reached", "timeout", True),
    ("somebody else requeued the job", "requeued", False), ("the job was preempted", "requeued", False),
])  # fmt: skip
def test_last_words_that_are_slurms(what: str, state: str, over: bool) -> None:
    job = Job().begin()
    job.ledger.append(rec.Finished(2e9, "r", 143, what))
    assert (summary(job).state, summary(job).over) == (state, over)


@pytest.mark.parametrize(("word", "state", "over"), [
    (SlurmWord("PENDING", "BeginTime", 5), "pending", False), (SlurmWord("PENDING", "JobHeldUser", held=True), "held", False),
    (SlurmWord("RUNNING"), "starting", False), (SlurmWord("CANCELLED"), "cancelled", True), (None, "gone", True),
    (SlurmWord("COMPLETED"), "completed", True), (SlurmWord("NODE_FAIL"), "failed", True), (SlurmWord("UNKNOWN"), "requeued", False),
    (SlurmWord("SUSPENDED"), "suspended", False),
])  # fmt: skip
def test_a_requeued_job_is_what_slurm_calls_it(word: SlurmWord | None, state: str, over: bool) -> None:
    before = summary(requeued())._replace(number=7)
    assert before.state == "requeued"
    found = by_slurm(before, {} if word is None else {7: word})
    assert (found.state, found.over) == (state, over)


def test_what_a_ledger_has_seen_to_its_end_is_not_slurms_to_say() -> None:
    job = Job().begin()
    job.all_exit(0)
    assert by_slurm(summary(job), {}) == summary(job)


def test_a_requeue_that_stands_open_is_told_how_to_finish() -> None:
    job = Job().begin()
    job.silent = {Requeue}
    job.exits(0, 1)
    found = by_slurm(summary(job)._replace(number=7), {7: SlurmWord("PENDING", "JobHeldUser", held=True)})
    assert (found.state, found.what) == ("held", "a requeue was not finished: ftslurm requeue --finish 7")


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        ("JobHeldUser", "JobHeldUser: scontrol release 7"),
        ("launch failed requeued held", "launch failed requeued held: scontrol release 7"),
        ("JobHeldAdmin", "JobHeldAdmin: an operator has to release it"),
    ],
)
def test_a_hold_comes_with_the_next_command(reason: str, what: str) -> None:
    found = by_slurm(summary(requeued())._replace(number=7), {7: SlurmWord("PENDING", reason, held=True)})
    assert (found.state, found.what) == ("held", what)


def test_while_the_requeue_is_under_way_the_job_runs_and_does_not_start() -> None:
    job = Job().begin()
    job.silent = {Requeue}
    job.exits(0, 1)
    before = summary(job)._replace(number=7)
    assert by_slurm(before, {7: SlurmWord("RUNNING")}) == before


def test_a_requeue_tells_what_the_job_waits_for() -> None:
    job = requeued()
    done = next(number for number, record in enumerate(job.ledger) if isinstance(record, rec.CarriedOut))
    job.ledger[done] = replace(job.ledger[done], what="requeued without n4; it can start when Slurm marks n4 down")
    found = summary(job)
    assert found.state == "requeued" and found.what.startswith("rank 0 on n1 exited with status 1; ")
    assert found.what.endswith("; requeued without n4; it can start when Slurm marks n4 down")


def test_a_job_that_is_being_cleaned_up_does_not_run() -> None:
    running = summary(Job().begin())
    assert by_slurm(running, {running.number: SlurmWord("COMPLETING")}).state == "completing"
    waits = summary(requeued())
    assert by_slurm(waits, {waits.number: SlurmWord("COMPLETING")}) == waits, "of the scheduling before"
