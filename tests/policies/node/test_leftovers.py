"""What of a job's leftovers may be touched."""

from __future__ import annotations

import pytest

from ftslurm.model.exits import Process
from ftslurm.policies.node import ROOT, LeftoversOf, NodeJob, is_logged_in, leftover_processes, others, others_of_user

ME, YOU, SLURM = 1000, 1001, 64030


@pytest.mark.parametrize(
    ("jobs", "hinder"),
    [
        ([], 0),
        ([NodeJob(5, ME, "COMPLETING")], 0),
        ([NodeJob(5, ME, "STAGE_OUT")], 0),
        ([NodeJob(5, ME, "RUNNING")], 1),  # requeued, and here again
        ([NodeJob(5, ME, "SIGNALING")], 1),
        ([NodeJob(5, ME, "RESIZING")], 1),
        ([NodeJob(5, ME, "A_NEW_WORD")], 1),
        ([NodeJob(5, ME, "COMPLETING"), NodeJob(6, ME, "RUNNING")], 1),
        ([NodeJob(6, ME, "COMPLETING")], 1),  # its Epilog will do it
        ([NodeJob(6, YOU, "RUNNING")], 0),
    ],
)
def test_jobs_for_whose_sake_nothing_is_touched(jobs: list[NodeJob], hinder: int) -> None:
    assert len(others_of_user(jobs, 5, ME)) == hinder


def test_another_user_s_job_keeps_chips_from_being_reset() -> None:
    assert others([NodeJob(5, ME, "COMPLETING"), NodeJob(6, YOU, "RUNNING")], 5)


def test_processes_of_the_user_but_not_those_that_another_looks_after() -> None:
    table = [
        Process(1, 0, 0, "init", 0.0),
        Process(10, 1, 0, "slurmstepd", 0.0),
        Process(11, 10, ME, "bash", 0.0),
        Process(12, 11, ME, "python", 0.0),
        Process(20, 1, ME, "escaped", 0.0),
        Process(21, 20, ME, "child", 0.0),
        Process(22, 1, ME, "dead", 0.0, state="zombie"),
        Process(30, 1, YOU, "theirs", 0.0),
        Process(40, 1, ME, "slurmstepd", 0.0),
        Process(41, 40, ME, "hides", 0.0),  # a user's own program of that name
        Process(45, 1, 0, "sshd", 0.0),
        Process(46, 45, ME, "bash", 0.0),
        Process(47, 1, 0, "slurmctld", 0.0),
        Process(48, 47, 0, "python", 0.0),
        Process(49, 48, ME, "as_owner", 0.0),
        Process(60, 1, SLURM, "slurmctld", 0.0),
        Process(61, 60, SLURM, "python", 0.0),
        Process(62, 61, ME, "as_owner", 0.0),
        Process(70, 1, YOU, "setuid", 0.0),
        Process(71, 70, ME, "below-another-user", 0.0),  # a setuid program of each: neither looks after the other
        Process(50, 51, ME, "a", 0.0),
        Process(51, 50, ME, "b", 0.0),  # no tree: read while pids were given out anew
    ]
    left = leftover_processes({process.pid: process for process in table}, LeftoversOf(ME, ROOT | {SLURM}))
    assert [process.pid for process in left] == [20, 21, 40, 41, 71, 50, 51]


def test_who_is_logged_in_loses_no_session_and_no_shared_memory() -> None:
    shell = Process(20, 1, ME, "bash", 0.0, login=True)
    assert leftover_processes({20: shell}, LeftoversOf(ME)) == ()
    assert is_logged_in({20: shell}, ME) and not is_logged_in({20: shell}, YOU)
