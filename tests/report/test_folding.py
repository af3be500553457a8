"""A history tells what repeats once, and everything with -v."""

from __future__ import annotations

import io

from rich.console import Console

from ftslurm.report.text import print_history
from ftslurm.report.view import Again, AttemptView, attempts, folded, status_of
from tests.stories.replay import Job, requeueing


def crashes(times: int) -> Job:
    """The same crash again and again."""
    job = Job(requeueing(max_restarts=20, unconditional_requeue__in_a_row=20)).begin()
    for _ in range(times):
        job.exits(1, 9)
        job = job.again().begin()
    job.all_exit(0)
    return job


def text(job: Job, verbose: bool = False) -> str:
    out, view = io.StringIO(), status_of(job.ledger)
    assert view is not None
    print_history(Console(file=out, width=200), view, attempts(job.ledger), 0.0, job.ledger if verbose else ())
    return out.getvalue()


def test_attempts_that_go_the_same_way_are_one_line() -> None:
    shown = folded(attempts(crashes(4).ledger))
    assert [item.number if isinstance(item, AttemptView) else (item.first, item.last, item.count) for item in shown] == [
        1, (2, 4, 3), 5,
    ]  # fmt: skip


def test_a_life_that_nobody_saw_end_has_no_length() -> None:
    told = attempts(crashes(4).ledger)
    for attempt in told[1:4]:
        attempt.ended = None
    (again,) = (item for item in folded(told) if isinstance(item, Again))
    assert (again.shortest_s, again.longest_s) == (0.0, 0.0)


def test_the_last_attempt_stands_for_itself() -> None:
    job = crashes(3)
    told = attempts(job.ledger)
    assert folded(told)[-1] is told[-1]


def test_with_v_all_of_it_is_told() -> None:
    told, whole = text(crashes(4)), text(crashes(4), verbose=True)
    assert "attempts 2 to 4  the same again, 3 times" in told and "attempt 3 " not in told
    assert "attempt 3 " in whole and "the same again" not in whole


def test_nothing_that_differs_is_folded() -> None:
    job = Job(requeueing(max_restarts=20)).begin()
    job.exits(0, 1)
    job = job.again().begin()
    job.exits(1, 2)
    job = job.again().begin()
    job.all_exit(0)
    assert [type(item) for item in folded(attempts(job.ledger))] == [AttemptView] * 3
