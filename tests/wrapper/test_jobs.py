"""What Slurm is asked for the list of jobs, and what becomes of its answer."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ftslurm.errors import CommandMissing
from ftslurm.ledger.journal import Journal
from ftslurm.model import record as rec
from ftslurm.model.folds.summary import JobSummary
from ftslurm.slurm.parse import parse_jobs
from ftslurm.system.commands import CommandResult
from ftslurm.system.processes import pid_space
from ftslurm.wrapper.jobs import job_now, not_begun, with_slurms_word

ENV = {"SLURM_CLUSTER_NAME": "c"}
LONG_AGO = 1e9


def job(state: str = "requeued", over: bool = False, cluster: str = "c", number: int = 7, **other: Any) -> JobSummary:
    made = JobSummary(
        "7", cluster, False, "train", state, "", over, 1, 1, "n1", "", "", 1.0, 2.0, False, 0.0, number, "", "", 0, 0
    )
    return made._replace(**other)


class Slurm:
    """Answers squeue's requests with `says`, and sacct's with `ended`; None: there is no slurmdbd."""

    def __init__(self, says: str = "", status: int | None = 0, ended: str | None = None) -> None:
        self.says, self.status, self.ended, self.asked = says, status, ended, []  # type: ignore[var-annotated]

    def __call__(self, argv: Sequence[str], timeout_s: float, **_: Any) -> CommandResult:
        self.asked.append(argv[0])
        if argv[0] == "sacct":
            return CommandResult(tuple(argv), 1 if self.ended is None else 0, self.ended or "", "accounting storage is disabled")
        return CommandResult(tuple(argv), self.status, "ClusterName = c" if argv[0] == "scontrol" else self.says, "no")


@pytest.mark.parametrize("jobs", [[job("completed", True)], [job(local=True, host="elsewhere")], []])
def test_slurm_is_not_asked_of_what_the_ledgers_know(jobs: list[JobSummary]) -> None:
    slurm = Slurm()
    assert with_slurms_word(jobs, 1, {}, slurm) == (jobs, "") and not slurm.asked


def test_a_job_that_was_cancelled_while_it_waited() -> None:
    for env in (ENV, {}):
        (found,), why = with_slurms_word([job()], 1, env, Slurm("7|CANCELLED|Unknown|100|Unknown|None\n"))
        assert (found.state, found.over, why) == ("cancelled", True, "")


def test_a_job_of_another_cluster_stays_as_its_ledger_has_it() -> None:
    jobs = [job(cluster="d"), job()]
    found, _ = with_slurms_word(jobs, 1, ENV, Slurm("7|RUNNING|5|100|Unknown|None\n"))
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
    text = "7|PENDING|1100|0|Unknown|JobHeldUser\n8|COMPLETING|1100|5|Unknown|BeginTime\n"
    text += "9|COMPLETING|900|5|Unknown|None\nodd\n10|RUNNING|900|5|Unknown|a|b\n"
    found = parse_jobs(text, 1000.0)
    assert {number: (word.state, word.held) for number, word in found.items()} == {
        7: ("PENDING", True), 8: ("PENDING", False), 9: ("COMPLETING", False), 10: ("RUNNING", False),
    }  # fmt: skip
    assert (found[8].start_time, found[8].reason, found[10].reason) == (1100, "BeginTime", "a|b")


@pytest.mark.parametrize(
    ("says", "state"),
    [("7|PENDING|Unknown|100|Unknown|Resources\n", "PENDING"), ("7|RUNNING|5|100|Unknown|None\n", "RUNNING"),
     ("7|CANCELLED|5|100|Unknown|None\n", None),
     ("8|PENDING|Unknown|100|Unknown|None\n", None), ("", None)],
)  # fmt: skip
def test_a_job_that_has_no_ledger_yet_is_to_come_while_slurm_has_it(says: str, state: str | None) -> None:
    found = not_begun("7", 1, ENV, Slurm(says))
    assert (found.state if found else None) == state
    assert not_begun("local.7", 1, ENV, Slurm(says)) is None and not_begun("7", 1, ENV, Slurm(status=None)) is None


@pytest.mark.parametrize(
    ("ended", "state"),
    [("7|CANCELLED by 1000|2026-11-29T02:17:30\n", "cancelled"), ("7|TIMEOUT\n", "timeout"), ("7|NODE_FAIL\n", "failed"),
     ("7|RUNNING\n", "gone"), ("8|COMPLETED\n", "gone"), ("", "gone"), (None, "gone")],
)  # fmt: skip
def test_slurmdbd_knows_how_a_job_ended_that_slurmctld_has_forgotten(ended: str | None, state: str) -> None:
    slurm = Slurm("9|RUNNING|5|100|Unknown|None\n", ended=ended)
    (found, other), why = with_slurms_word([job("running"), job("running", number=9)], 1, ENV, slurm)
    assert (found.state, found.over, other.state, why) == (state, True, "running", "")
    assert slurm.asked == ["squeue", "sacct"]


@pytest.fixture
def ledger(tmp_path: Path) -> Journal:
    (tmp_path / "jobs").mkdir(mode=0o700)
    found = Journal(tmp_path / "jobs" / "c.7.jsonl")
    run = rec.RunBegan(LONG_AGO, "r", "7", "c", 0, "k", "train", "n1", number=7)
    found.append([run, rec.AttemptBegan(LONG_AGO + 1, "r", 1, 0, "train", 1, "n1", 1, "7.0")])
    return found


def now(ledger: Journal, slurm: Slurm, folder: Path | None = None) -> str:
    env = {**ENV, "FTSLURM_STATE_DIR": str(folder or ledger.path.parent.parent)}
    found = job_now(ledger, ledger.read(), env, slurm)
    assert found is not None
    return found.words


def test_slurms_word_on_the_end_is_kept(ledger: Journal) -> None:
    assert now(ledger, Slurm("7|RUNNING|5|100|Unknown|None\n")) == "running"
    end = LONG_AGO + 16
    assert now(ledger, Slurm(f"7|CANCELLED|5|100|{end:.0f}|None\n")) == "cancelled"
    assert now(ledger, Slurm()) == "cancelled", "slurmctld has forgotten the job"
    ended = ledger.read().records[-1]
    assert ended == rec.JobEnded(end, "cancelled"), "and when"
    ledger.append([rec.RunBegan(LONG_AGO + 90, "r2", "7", "c", 1, "k", "train", "n1", number=7)])
    assert now(ledger, Slurm("7|RUNNING|5|100|Unknown|None\n")) == "starting", "somebody requeued it all the same"


def test_what_nobody_knows_is_not_kept_nor_what_is_not_ours(ledger: Journal, tmp_path: Path) -> None:
    before = ledger.read()
    assert now(ledger, Slurm()) == "gone: Slurm no longer knows the job; it was running then"
    assert now(ledger, Slurm("7|TIMEOUT|5|100|Unknown|None\n"), tmp_path / "another").startswith("timeout")
    assert ledger.read() == before
    ledger.append([rec.Paused(time.time(), 1, 1.0, False)])
    assert now(ledger, Slurm("7|TIMEOUT|5|100|Unknown|None\n")).startswith("timeout")
    assert not isinstance(ledger.read().records[-1], rec.JobEnded), "its ftrun may still write"
