"""What Slurm is asked for the list of jobs, and what becomes of its answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from ftslurm.errors import CommandMissing
from ftslurm.model.folds.summary import JobSummary
from ftslurm.slurm.parse import parse_jobs
from ftslurm.system.commands import CommandResult
from ftslurm.system.processes import pid_space
from ftslurm.wrapper.jobs import not_begun, with_slurms_word

ENV = {"SLURM_CLUSTER_NAME": "c"}


def job(state: str = "requeued", over: bool = False, cluster: str = "c", number: int = 7, **other: Any) -> JobSummary:
    made = JobSummary(
        "7", cluster, False, "train", state, "", over, 1, 1, "n1", "", "", 1.0, 2.0, False, 0.0, number, "", "", 0, 0
    )
    return made._replace(**other)


class Slurm:
    """Answers every request with `says`."""

    def __init__(self, says: str = "", status: int | None = 0) -> None:
        self.says, self.status, self.asked = says, status, []  # type: ignore[var-annotated]

    def __call__(self, argv: Sequence[str], timeout_s: float, **_: Any) -> CommandResult:
        self.asked.append(argv[0])
        return CommandResult(tuple(argv), self.status, "ClusterName = c" if argv[0] == "scontrol" else self.says, "no")


@pytest.mark.parametrize("jobs", [[job("completed", True)], [job(local=True, host="elsewhere")], []])
def test_slurm_is_not_asked_of_what_the_ledgers_know(jobs: list[JobSummary]) -> None:
    slurm = Slurm()
    assert with_slurms_word(jobs, 1, {}, slurm) == (jobs, "") and not slurm.asked


def test_a_job_that_was_cancelled_while_it_waited() -> None:
    for env in (ENV, {}):
        (found,), why = with_slurms_word([job()], 1, env, Slurm("7|CANCELLED|Unknown|100|None\n"))
        assert (found.state, found.over, why) == ("cancelled", True, "")


def test_a_job_of_another_cluster_stays_as_its_ledger_has_it() -> None:
    jobs = [job(cluster="d"), job()]
    found, _ = with_slurms_word(jobs, 1, ENV, Slurm("7|RUNNING|5|100|None\n"))
    assert [one.state for one in found] == ["requeued", "starting"]


def test_a_slurm_that_does_not_answer_hides_nothing() -> None:
    found, why = with_slurms_word([job()], 1, ENV, Slurm(status=None))
    assert found == [job()] and "no answer" in why

    def missing(*_: Any, **__: Any) -> CommandResult:
        raise CommandMissing("`squeue` cannot be run", hint="")

    assert with_slurms_word([job()], 1, ENV, missing)[1]


def test_a_local_job_whose_ftrun_was_killed_does_not_run() -> None:
    here = {"local": True, "host": socket.gethostname(), "pid_space": pid_space()}
    alive, dead = job("running", **here, pid=os.getpid()), job("running", **here, pid=os.getpid(), started=1)
    found, _ = with_slurms_word([alive, dead], 1, {}, Slurm())
    assert [one.state for one in found] == ["running", "gone"]


def test_squeues_words() -> None:
    text = "7|PENDING|1100|0|JobHeldUser\n8|COMPLETING|1100|5|BeginTime\n9|COMPLETING|900|5|None\nodd\n10|RUNNING|900|5|a|b\n"
    found = parse_jobs(text, 1000.0)
    assert {number: (word.state, word.held) for number, word in found.items()} == {
        7: ("PENDING", True), 8: ("PENDING", False), 9: ("UNKNOWN", False), 10: ("RUNNING", False),
    }  # fmt: skip
    assert (found[8].start_time, found[8].reason, found[10].reason) == (1100, "BeginTime", "a|b")


@pytest.mark.parametrize(
    ("says", "state"),
    [("7|PENDING|Unknown|100|Resources\n", "PENDING"), ("7|RUNNING|5|100|None\n", "RUNNING"), ("7|CANCELLED|5|100|None\n", None),
     ("8|PENDING|Unknown|100|None\n", None), ("", None)],
)  # fmt: skip
def test_a_job_that_has_no_ledger_yet_is_to_come_while_slurm_has_it(says: str, state: str | None) -> None:
    found = not_begun("7", 1, ENV, Slurm(says))
    assert (found.state if found else None) == state
    assert not_begun("local.7", 1, ENV, Slurm(says)) is None and not_begun("7", 1, ENV, Slurm(status=None)) is None
