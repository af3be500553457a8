"""Of several lines that sound like an error, the one that names it: whose it is, how long its sentence is, and what only announces it."""

from __future__ import annotations

import pytest

from ftslurm.model.verdict import ErrorClass, Retriable
from ftslurm.policies.diagnose.errors import told_error
from tests.policies.diagnose.test_classify import end, verdict


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (  # a log within the log: its errors tell more than who shows it
            "Failed to submit batch jobs.\n\nLast 50 lines of the relevant log file (jobs.out):\n\n"
            "sbatch: error: bank_limit plugin: The requested time can not exceed the available balance.\n",
            "can not exceed the available balance",
        ),
        (  # wrapped text
            "A daemon has unexpectedly failed after it was launched and before\nit could communicate back. See the network.\n",
            "and before it could communicate back.",
        ),
        ("[n1:7] Fatal: UD endpoint 0x7f to n2: unhandled timeout error\n[n1:7] Signal: Aborted (6)\n", "unhandled timeout error"),
        ("[mpiexec@n1] check: unable to run bstrap_proxy on n1 (pid 7, exit code 256)\n", "unable to run bstrap_proxy"),
        ("The shape does not match any permitted one.\n======\n\n", "does not match any"),
        ("srun: error: If munged is up, restart with more threads\nsrun: error: Munge encode failed: no socket\n", "encode failed"),
    ],
)  # fmt: skip
def test_the_line_that_names_it(text: str, told: str) -> None:
    assert told in told_error(text)


def test_a_ruler_is_nobody_s_last_words() -> None:
    v = verdict(end(0, "strange words\n-----------\n", 7), end(1), end(2), end(3))
    assert "strange words" in v.evidence[0] and "---" not in v.evidence[0]


def test_an_exception_that_announces_another_gives_way_to_it() -> None:
    inner = "RuntimeError: the tensor is of the wrong rank\n"
    outer = "Exception: \n\n-- Process 0 terminated with the following error:\n"
    frames = 'Traceback (most recent call last):\n  File "run.py", line 3, in <module>\n    go()\n'
    v = verdict(end(0, frames + inner + frames + outer, 1), end(1))
    assert "wrong rank" in v.evidence[0]


def test_whoever_names_the_trouble_speaks_for_those_who_only_failed() -> None:
    vague = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598\n"
    full = "OSError: [Errno 28] No space left on device\n"
    v = verdict(end(0, vague, 1, said_at=99.0), end(1, full, 1), end(2, vague, 1), end(3))
    assert (v.error_class, v.retriable) == (ErrorClass.STORAGE, Retriable.NO) and "No space left" in v.evidence[0]


def test_slurm_s_own_script_is_the_node_s_affair() -> None:
    v = verdict(
        end(0, "slurmstepd: error: execve(): /var/spool/slurmd/job5/slurm_script: No such file or directory\n", 2), end(1)
    )
    assert v.error_class is ErrorClass.STORAGE and v.retriable is Retriable.YES


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("------ Processor 3 Exiting: Called CmiAbort ------\nReason: Unknown-msg-type.\n\n[3] Stack Traceback:\n", "Unknown-msg-type"),
        ("ERROR: port down\nThis error may indicate connectivity problems;\nsee the manual.\n", "port down"),
        ("CUDA error !!!!! !!!!!\nat CUDA call error code: # 2402\n", "2402"),
    ],
)  # fmt: skip
def test_the_line_that_names_it_among_frames_and_explanations(text: str, told: str) -> None:
    assert told in told_error(text)


def test_what_a_rank_said_before_its_launcher_s_report_is_shown() -> None:
    v = verdict(
        end(
            0, "dump.4 was written by format 4, this program reads 6\nAbort(11) on node 4: application called MPI_Abort(11)\n", 11
        ),
        end(1),
    )
    assert "this program reads 6" in v.evidence[0]


def test_what_a_header_announces_is_no_stumble_of_the_clean_up() -> None:
    text = (
        "torch.multiprocessing.spawn.ProcessRaisedException:\n\n-- Process 0 terminated with the following error:\n"
        'Traceback (most recent call last):\n  File "/home/u/data.py", line 94, in __getitem__\n    return self.pairs[index]\n'
        "AttributeError: 'Loader' object has no attribute 'pairs'\n"
    )
    v = verdict(end(0, text, 1), end(1), end(2), end(3))
    assert "'pairs'" in v.evidence[0]
