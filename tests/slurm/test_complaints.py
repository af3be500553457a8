"""What Slurm says when it fails, recorded word for word, and what we make of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import FtslurmError, SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.slurm.retries import NoAnswerYet, NoChangeNow, parse_error

AWAY = NoAnswerYet
NO = SlurmRefused


@pytest.mark.parametrize(
    ("stderr", "meaning"),
    [
        ("slurm_load_jobs error: Invalid job id specified\n", UnknownJob),
        ("Invalid job id specified for job 999\n", UnknownJob),
        ("777_9: Invalid job id specified\n", UnknownJob),
        ("Invalid job id specified for job 999\nslurm_suspend error: Invalid job id specified\n", UnknownJob),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", AWAY),
        ("scancel: error: Kill job error on job id 1: Unable to contact slurm controller (connect failure)\n", AWAY),
        ("Unexpected message received for job 1\n", AWAY),
        ("Unexpected message received for job 1\nslurm_suspend error: Unexpected message received\n", AWAY),
        ("slurm_load_jobs error: Socket timed out on send/recv operation\n", AWAY),
        ("slurm_load_jobs error: Connection refused\n", AWAY),
        ("Slurm backup controller in standby mode\n", AWAY),
        ("Job update not available right now, the DB index is being set, try again in a bit for job 7\n", NoChangeNow),
        (
            "scontrol: error: Munge encode failed: Failed to access socket: No such file or directory\n"
            "slurm_load_jobs error: Protocol authentication error\n",
            AWAY,
        ),
        ("scontrol: fatal: Unable to process configuration file\n", SlurmUnavailable),
        (
            "scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
            "scontrol: fatal: Could not establish a configuration source\n",
            SlurmUnavailable,
        ),
        ("scontrol: fatal: Could not establish a configuration source\n", AWAY),  # where slurmctld sends it
        ("Requested operation is presently disabled for job 9\n", NO),
        ("Only batch jobs are accepted or processed for job 10\n", NO),
        ("Job is no longer pending execution for job 11\n", NO),
        ("Job is pending execution for job 11\n", NO),
        ("Access/permission denied for job 8\n", NO),
        ("Invalid user id for job 8\n", NO),
        ("Invalid node name specified for job 8\n", NO),
        ("scancel: error: Kill job error on job id 3: Job/step already completing or completed\n", NO),
        ("words that no table knows\n", NO),
        ("", NO),
    ],
)
def test_reads(stderr: str, meaning: type[FtslurmError]) -> None:
    assert parse_error(stderr).error is meaning


def test_tells_slurms_own_words() -> None:
    assert parse_error("14_1,3: No error\n14_2: Job has already finished\n").words == "14_2: Job has already finished"
    assert parse_error("14_2: Job is pending execution\n14_1: No error\n").words == "14_2: Job is pending execution"
    assert parse_error(" \n").words == "no reason given"


def test_says_what_to_do() -> None:
    assert "--requeue" in parse_error("Requested operation is presently disabled for job 9").hint
    assert "munged" in parse_error("Protocol authentication error").hint


@given(st.text())
def test_takes_any_text(stderr: str) -> None:
    assert issubclass(parse_error(stderr).error, FtslurmError)
