"""How a process ended, and the 128+n rule both ways."""

from __future__ import annotations

import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model.exits import ExitStatus, cancelled_steps, from_returncode, from_shell, of_step, signal_name, undelivered


@pytest.mark.parametrize(
    ("status", "ok", "shell", "words"),
    [
        (ExitStatus(0), True, 0, "exited with status 0"),
        (ExitStatus(1), False, 1, "exited with status 1"),
        (ExitStatus(255), False, 255, "exited with status 255"),
        (ExitStatus(0, 9), False, 137, "was killed by SIGKILL"),
        (ExitStatus(0, 64), False, 192, "was killed by signal 64"),
    ],
)
def test_a_status_says_what_it_is(status: ExitStatus, ok: bool, shell: int, words: str) -> None:
    assert (status.ok, status.shell, str(status)) == (ok, shell, words)


@given(st.integers(-64, 255))
def test_the_shell_s_number_leads_back_to_the_signal(returncode: int) -> None:
    status = from_returncode(returncode)
    assert from_shell(status.shell).shell == status.shell
    if returncode < 0:
        assert from_shell(status.shell) == status == ExitStatus(0, -returncode)


@pytest.mark.parametrize("status", [128, 193, 201, 255])
def test_statuses_that_no_signal_gives_are_the_program_s_own(status: int) -> None:
    assert from_shell(status) == ExitStatus(status)


def test_the_names_are_those_of_the_kernel() -> None:
    for number in signal.Signals:
        if number < signal.SIGRTMIN:
            assert signal_name(number) == {"SIGIOT": "SIGABRT", "SIGCLD": "SIGCHLD", "SIGPOLL": "SIGIO"}.get(
                number.name, number.name
            )


def test_a_real_process_agrees() -> None:
    done = subprocess.run(["sh", "-c", "kill -SEGV $$"], timeout=120)
    assert from_returncode(done.returncode) == ExitStatus(0, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ([], 0),
        ([ExitStatus(0), ExitStatus(3), ExitStatus(7)], 7),
        ([ExitStatus(200), ExitStatus(0, 15)], 143),
        ([ExitStatus(0, 15), ExitStatus(0, 9), ExitStatus(0)], 143),
        ([ExitStatus(255), ExitStatus(0, 1), ExitStatus(254)], 129),
    ],
)
def test_of_several_ends_a_signal_comes_first_and_then_the_highest_code_as_with_srun(ends: list[ExitStatus], status: int) -> None:
    assert of_step(ends).shell == status and of_step(reversed(ends)).shell == status


def test_srun_s_status_tells_of_messages_that_did_not_get_through() -> None:
    """5005 & 255, 1001 & 255; not what a task's own end may be, and no srun that was killed."""
    assert undelivered(ExitStatus(141)) and undelivered(ExitStatus(233))
    assert not any(undelivered(ExitStatus(code)) for code in (0, 1, 2, 7, 93, 126, 127, 130, 134, 137, 139, 143, 253, 255))
    assert not any(undelivered(ExitStatus(0, number)) for number in range(1, 65))


BY_A_PERSON = """slurmstepd-n1: error: *** STEP 31.0 ON n1 CANCELLED AT 2026-11-28T01:36:36 ***
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
srun: error: n2: task 1: Killed
"""
ON_26_05 = """srun: Job step aborted: Waiting up to 12 seconds for job step to finish.
[2026-11-28T06:18:50.508] error: *** STEP 31.0 ON n1 CANCELLED AT 2026-11-28T06:18:50 DUE to SIGNAL Killed ***
srun: error: n1: task 0: Killed
"""


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        (BY_A_PERSON, {"31.0"}),
        (BY_A_PERSON.replace("-n1: error", ": error"), {"31.0"}),
        (ON_26_05, {"31.0"}),
        (ON_26_05 + "[2026-11-28T06:18:51.008] error: Detected 1 oom_kill event in StepId=31.0.\n", set()),
        ("step 31.0 was CANCELLED AT noon, says the program\n", set()),
        (BY_A_PERSON.replace("36 ***", "36 DUE TO TIME LIMIT ***"), set()),
        (BY_A_PERSON.replace("36 ***", "36 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"), set()),
        ("srun: error: n1: task 0: Exited with exit code 1\nsrun: Terminating StepId=31.0\n" + BY_A_PERSON, set()),
        ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 3.\n" + BY_A_PERSON, set()),
        ("application called MPI_Abort(MPI_COMM_WORLD, 3) - process 1\n" + BY_A_PERSON, set()),
        (BY_A_PERSON + "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=31.0.\n", set()),
        ("srun: error: Task launch for StepId=31.0 failed on node n2: Socket timed out\n" + BY_A_PERSON, set()),
        ("", set()),
    ],
)
def test_srun_tells_what_a_person_has_cancelled(said: str, steps: set[str]) -> None:
    assert cancelled_steps(said) == steps
