"""Of several lines that sound like an error, the one that names it: whose it is, how long its sentence is, and what only announces it."""

from __future__ import annotations

import pytest

from ftslurm.model.verdict import ErrorClass, Retriable
from ftslurm.policies.diagnose.text.errors import told_error
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
        ("*** The call() function was called after its end.\n*** This is disallowed.\n*** Your job will now abort.\n", "after its end"),
        ("[n1:7] Fatal: UD endpoint 0x7f to n2: unhandled timeout error\n[n1:7] Signal: Aborted (6)\n", "unhandled timeout error"),
        ("[mpiexec@n1] check: unable to run bstrap_proxy on n1 (pid 7, exit code 256)\n", "unable to run bstrap_proxy"),
        ("The shape does not match any permitted one.\n======\n\n", "does not match any"),
        ("srun: error: If munged is up, restart with more threads\nsrun: error: Munge encode failed: no socket\n", "encode failed"),
    ],
)  # fmt: skip
def test_the_line_that_names_it(text: str, told: str) -> None:
    assert told in told_error(text, reports=False)


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


def test_what_a_reader_of_files_did_not_expect_is_the_file_s_doing() -> None:
    frames = (
        'Traceback (most recent call last):\n  File "resume.py", line 9, in <module>\n    torch.load(path)\n'
        '  File "/opt/lib/python3.11/site-packages/torch/serialization.py", line 709, in _legacy_load\n    read(f)\n'
    )
    v = verdict(end(0, frames + "RuntimeError: storage has wrong size: expected 42 got 65536\n", 1), end(1))
    assert v.error_class is ErrorClass.DATA
    elsewhere = frames.replace("torch/serialization.py", "torch/nn/modules/module.py")
    v = verdict(end(0, elsewhere + "RuntimeError: weight has wrong size: expected 42 got 65536\n", 1), end(1))
    assert v.error_class is ErrorClass.USER_CODE


def test_slurm_s_own_script_is_the_node_s_affair() -> None:
    v = verdict(
        end(0, "slurmstepd: error: execve(): /var/spool/slurmd/job5/slurm_script: No such file or directory\n", 2), end(1)
    )
    assert v.error_class is ErrorClass.STORAGE and v.retriable is Retriable.YES


def test_a_call_between_slurm_s_programs_is_the_network_s_whatever_it_means_of_a_file_system() -> None:
    v = verdict(end(0, "srun: error: slurm_receive_msg: Transport endpoint is not connected\n", 1), end(1))
    assert (v.error_class, v.retriable) == (ErrorClass.NETWORK, Retriable.YES)


def test_who_waits_in_vain_for_more_than_there_is_will_wait_again() -> None:
    frames = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    start()\n'
    said = "TimeoutError: Placement group creation timed out. Make sure your cluster has enough resources\n"
    assert verdict(end(0, frames + said, 1), end(1)).retriable is Retriable.NO
    assert verdict(end(0, frames + "TimeoutError: the store gave no answer\n", 1), end(1)).retriable is Retriable.YES


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (  # a frame with a title
            "---------- FATAL CALLED ----------\nFATAL CALLED FROM FILE:  <stdin>  LINE:  12\np_top_requested < possible from data\n"
            "-----------------------------------\n",
            "p_top_requested < possible from data",
        ),
        ("------ Processor 3 Exiting: Called CmiAbort ------\nReason: Unknown-msg-type.\n\n[3] Stack Traceback:\n", "Unknown-msg-type"),
        ("bad input line\n(core/Action.cpp:375) void PLMD::Action::error(const std::string&) const\nERROR: no word SCALE=1\n", "no word SCALE"),
        ("ERROR: port down\nThis error may indicate connectivity problems;\nsee the manual.\n", "port down"),
        ("CUDA error !!!!! !!!!!\nat CUDA call error code: # 2402\n", "2402"),
        (  # a message of two lines within a stack of errors
            "HDF5-DIAG: Error detected in HDF5 (1.10.8) MPI-process 0:\n  #000: H5F.c line 350 in H5Fcreate(): unable to create file\n"
            "    major: File accessibility\n  #001: H5Fint.c line 1656 in H5F_open(): unable to open file: time = Tue\n, name = 'a.h5'\n"
            "    major: File accessibility\n  #002: H5FDmpio.c line 1002 in H5FD__mpio_open(): MPI_ERR_READ_ONLY: file is read only\n",
            "file is read only",
        ),
        (  # it went on after the first
            "ERROR 04-27 [camem.py:69] Failed to import the kernels\nINFO 04-27 [a.py:1] loading\nINFO 04-27 [a.py:2] loaded\n"
            "ERROR 04-27 [b.py:1] Failed: device id error\n",
            "device id error",
        ),
    ],
)  # fmt: skip
def test_the_line_that_names_it_among_frames_and_explanations(text: str, told: str) -> None:
    assert told in told_error(text, reports=False)


def test_of_errors_in_one_form_the_first_counts() -> None:
    form = 'ERROR: CUDA RT call "{}" in line {} failed with {}.\n'
    text = form.format("cudaMalloc(&a)", 378, "out of memory (2)") + form.format(
        "cudaSync()", 385, "an illegal memory access was encountered (700)"
    )
    v = verdict(end(0, text, 1), end(1), end(2), end(3))
    assert v.error_class is ErrorClass.OOM and "out of memory" in v.evidence[0]


def test_what_a_rank_said_before_its_launcher_s_report_is_shown() -> None:
    v = verdict(
        end(
            0, "dump.4 was written by format 4, this program reads 6\nAbort(11) on node 4: application called MPI_Abort(11)\n", 11
        ),
        end(1),
    )
    assert "this program reads 6" in v.evidence[0]


TRACE = "Traceback (most recent call last):\n  File \"/home/u/{}.py\", line 3, in <module>\n    import {}\nModuleNotFoundError: No module named '{}'\n"


def test_an_exception_that_was_logged_and_gone_on_from_gives_way_to_the_last() -> None:
    logged = "WARNING:features:fast_kit not found, using the portable backend\n" + TRACE.format("a", "fast_kit", "fast_kit")
    v = verdict(end(0, logged + TRACE.format("b", "graph", "graph"), 1), end(1), end(2), end(3))
    assert "'graph'" in v.evidence[0]
    alone = verdict(
        end(0, "WARNING:features:attempt 3 failed\n" + TRACE.format("b", "graph", "graph"), 1), end(1), end(2), end(3)
    )
    assert "'graph'" in alone.evidence[0], "what was raised last nobody has caught"


def test_what_a_header_announces_is_no_stumble_of_the_clean_up() -> None:
    text = (
        "torch.multiprocessing.spawn.ProcessRaisedException:\n\n-- Process 0 terminated with the following error:\n"
        'Traceback (most recent call last):\n  File "/home/u/data.py", line 94, in __getitem__\n    return self.pairs[index]\n'
        "AttributeError: 'Loader' object has no attribute 'pairs'\n"
    )
    v = verdict(end(0, text, 1), end(1), end(2), end(3))
    assert "'pairs'" in v.evidence[0]


def test_of_a_chain_the_link_that_tells_what_it_is_about_counts() -> None:
    chain = (
        'Traceback (most recent call last):\n  File "/home/u/prep.py", line 9, in <module>\n    df = read(f)\nValueError: Trailing data at position 32\n'
        "\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        '  File "/home/u/prep.py", line 12, in <module>\n    raise e\n'
        "pyarrow.lib.ArrowInvalid: JSON parse error: Invalid encoding in string. in row 140\n"
    )
    v = verdict(end(0, chain, 1), end(1), end(2), end(3))
    assert v.error_class is ErrorClass.DATA and "ArrowInvalid" in v.evidence[0]


def test_a_rank_that_logs_on_has_overcome_an_error_though_all_came_at_once() -> None:
    text = (
        "ERROR 04-27 [camem.py:69] Failed to import: libkernels.so: cannot open shared object file: No such file or directory\n"
        "INFO 04-27 [a.py:1] loading the model\nINFO 04-27 [a.py:2] loaded\n{}"
    )
    later = "Traceback (most recent call last):\n  File \"/home/u/t.py\", line 1, in <module>\n    f()\nKeyError: 'text'\n"
    v = verdict(end(0, text.format(later), 1), end(1), end(2), end(3))
    assert "KeyError" in v.evidence[0]
    v = verdict(end(0, text.format("INFO 04-27 [a.py:3] good bye\n"), 1), end(1), end(2), end(3))
    assert "libkernels.so" in v.evidence[0], "what it logs on its way out overcomes nothing"
