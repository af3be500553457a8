"""The list of all jobs: which, in what order, and as text."""

from __future__ import annotations

import pytest

from ftslurm.errors import UsageError
from ftslurm.model.folds.summary import STATES, JobSummary
from ftslurm.report.jobs import JobsWanted, job_lines, parse_moment, shown_jobs, states_named
from ftslurm.report.words import age

DAY_S = 86400.0
NOW = 100 * DAY_S


def job(number: str, state: str = "running", days: float = 0.0, attempt: int = 1, **other: object) -> JobSummary:
    over = state in ("completed", "failed", "cancelled", "timeout", "gone")
    at = NOW - days * DAY_S
    made = JobSummary(number, "c", False, "train", state, "", over, attempt, 1, "n1", "", "", at, at, False, 0.0, 1, "", "", 0, 0)
    return made._replace(**other)


JOBS = [job("9", "completed", 1), job("10", "failed", 30), job("11", days=40), job("12_10", "held", 2, 3), job("12_9", days=0.5)]


def names(wanted: JobsWanted) -> list[str]:
    return [one.job for one in shown_jobs(JOBS, wanted)[0]]


def test_jobs_that_are_over_are_left_out_by_their_age_and_others_never() -> None:
    shown, older = shown_jobs(JOBS, JobsWanted(since=NOW - 7 * DAY_S))
    assert ({one.job for one in shown}, older) == ({"9", "11", "12_9", "12_10"}, 1)
    assert len(names(JobsWanted())) == 5


def test_of_a_state() -> None:
    assert names(JobsWanted(states_named("failed,Held"))) == ["12_10", "10"]
    with pytest.raises(UsageError, match="such state"):
        states_named("faild")


@pytest.mark.parametrize(("sort", "expected"), [
    ("last", ["12_9", "12_10", "11", "9", "10"]), ("job", ["9", "10", "11", "12_9", "12_10"]),
    ("attempts", ["12_10", "12_9", "9", "10", "11"]), ("state", ["12_9", "11", "12_10", "9", "10"]),
])  # fmt: skip
def test_sorted(sort: str, expected: list[str]) -> None:
    assert names(JobsWanted(sort=sort)) == expected


def test_one_line_a_job_that_fits_the_terminal_and_is_whole_in_a_pipe() -> None:
    long = job("123", "failed", what="status 1: " + "x" * 200 + "\x1b[2J\ny", nodes="n[1,3,5,7,9,11,13,15,17,19,21]")
    piped, narrow = job_lines([*JOBS, long], NOW), job_lines([*JOBS, long], NOW, width=80)
    assert len(piped) == len(narrow) == 7
    assert all(len(line) <= 80 for line in narrow) and "x" * 200 in piped[-1] and long.nodes in piped[-1]
    assert "\x1b" not in piped[-1] and "\n" not in piped[-1]
    assert narrow[1].split()[:4] == ["9", "completed", "1", "n1"]


def test_the_cluster_is_named_where_there_are_several() -> None:
    assert job_lines([job("1"), job("1", cluster="d")], NOW)[2].startswith("d.1 ")


def test_ages() -> None:
    assert [age(s) for s in (0, 99, 100, 5999, 6000, 172799, 200000)] == ["0 s", "99 s", "2 min", "100 min", "2 h", "48 h", "2 d"]


def test_every_state_that_a_summary_can_have_is_known() -> None:
    assert len(set(STATES)) == len(STATES)


def test_by_name_node_and_time() -> None:
    first = job("1", days=3, name="llama-7b", nodes="n[1-2]")
    second = job("2", days=1, name="eval", nodes="n3", ever="n[2-3]")
    damaged = job("3", days=1, name="eval", nodes="n[1-")
    jobs = [first, second, damaged]

    def found(**wanted: object) -> list[str]:
        return sorted(one.job for one in shown_jobs(jobs, JobsWanted(**wanted))[0])  # type: ignore[arg-type]

    assert found(names=("llama*",)) == ["1"]
    assert found(names=("llama", "ev?l")) == ["2", "3"]
    assert found(nodes=frozenset({"n2"})) == ["1", "2"]
    assert found(until=NOW - 2 * DAY_S) == ["1"]
    assert shown_jobs(jobs, JobsWanted(sort="name"))[0][-1] is first
    assert shown_jobs(jobs, JobsWanted(sort="name", backwards=True))[0][0] is first


def test_names_of_jobs_are_a_column_where_they_are_asked_for() -> None:
    jobs = [job("1", name="llama-7b")]
    assert "llama-7b" in job_lines(jobs, NOW, names=True)[1] and job_lines(jobs, NOW, names=True)[0].split()[1] == "NAME"
    assert "llama-7b" not in job_lines(jobs, NOW)[1]


def test_a_moment_is_a_span_or_a_date() -> None:
    assert parse_moment("7d", NOW) == NOW - 7 * DAY_S
    noon = parse_moment("2026-11-20T12:00", NOW)
    assert noon - parse_moment("2026-11-20", NOW) == DAY_S / 2
    assert 0 <= parse_moment("00:00", NOW) - (NOW - DAY_S) <= DAY_S
    for wrong in ("soon", "7", "2026-13-01", "25:00", ""):
        with pytest.raises(UsageError, match="not a time"):
            parse_moment(wrong, NOW)
