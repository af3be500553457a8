"""What a program says at its end: its own error, what a launcher or a shell tells of it, warnings, headers, ranks out of step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import ErrorClass, Piece, RankEnd, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.diagnose.errors import told_error
from ftslurm.policies.diagnose.hits import end_words
from ftslurm.policies.diagnose.lines import child_line, is_evidence, root_cause, signal_line

BOOK = load_pattern_book(()).of_ranks()
TABLE = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================
train.py FAILED
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : {} (pid: 2021)
  error_file: <N/A>
"""
WATCHDOG = "[Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={}, OpType={}, NumelIn={}, NumelOut=1, Timeout(ms)=600000)\n"
OUT_OF_STEP = "out-of-step"


def verdict(texts: dict[int, str], status: int = 1, signal: int = 0, ranks: int = 4) -> Verdict:
    """Two ranks a node; who has no text was stopped."""
    ends = []
    for rank in range(ranks):
        output = (Piece(99.9, "err", texts[rank]),) if texts.get(rank) else ()
        ended = ExitStatus(0 if signal else status, signal) if rank in texts else ExitStatus(0, 15)
        ends.append(RankEnd(rank, f"n{rank // 2 + 1}", ended, 100.0, stopped=rank not in texts, output=output))
    return diagnose(ends, Facts(), BOOK)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("reading\nError: recipe 7 does not exist\ncleaning up: cannot close\n", "Error: recipe 7 does not exist"),
        ("Error: bad recipe\nmake: *** [simulate] Error 2\n", "Error: bad recipe"),
        ("could not load the plug-in\n" + "step\n" * 20 + "Fatal: out of ink\n", "Fatal: out of ink"),
        ("WARNING: cannot find ink\nFatal: out of ink\n", "Fatal: out of ink"),
        ('x = "error"\nFatal: out of ink\n', "Fatal: out of ink"),
        ("Error in mix(a) :\n  no ink\nExecution halted\n", "Error in mix(a) : no ink"),
        ("step 1\n", ""),
        # Only guessed, in a sentence of several lines.
        ("This typically means that either no part is\ninstalled, or that some are\nunable to be found.\n[n1] ucx is unavailable\n", "[n1] ucx is unavailable"),
        # Says that something failed, and the next line what.
        ("solver: child 7 failed with error code: 1\ncannot open mesh.bin\n", "cannot open mesh.bin"),
        ("Fatal Error at solver.cu:450.\nno suitable device\n", "no suitable device"),
        # Another's log, passed on by a launcher.
        ("slurmstepd: error: pyxis:     [ERROR] URL http://r returned 400\nsrun: error: n1: task 0: Exited with exit code 1\n",
         "slurmstepd: error: pyxis:     [ERROR] URL http://r returned 400"),
        ("srun: fatal: no configuration, cannot go on\nsrun: error: n1: task 0: Exited with exit code 1\n",
         "srun: fatal: no configuration, cannot go on"),
    ],
)  # fmt: skip
def test_the_first_of_the_last_errors_is_the_reason_and_the_rest_its_echo(text: str, told: str) -> None:
    assert told_error(text) == told


def test_of_a_stack_of_errors_the_deepest_is_shown_with_the_header() -> None:
    stack = (
        "Abort(1): Fatal error in PMPI_Iprobe: Other MPI error, error stack:\nPMPI_Iprobe(126)....: MPI_Iprobe(src=3) failed\n"
    )
    told = told_error(stack + "MPIDI_poll(42).....:\nMPIDI_cq_error(107): poll failed (PTLTE_NOT_FOUND)\ngoodbye\n")
    assert told.startswith("Abort(1): Fatal error") and told.endswith("poll failed (PTLTE_NOT_FOUND)")


def test_a_warning_is_taken_where_a_header_points_away_and_nothing_else_is_said() -> None:
    text = "[W socket.cpp:1] cannot resolve host head-0\n"
    assert (told_error(text), told_error(text, mild=True)) == ("", text.strip())


def test_a_warning_of_the_start_is_none_of_the_last_words() -> None:
    early, late = Piece(10.0, "err", "Warning: cannot load plug-in\n"), Piece(99.0, "out", "step 40\n")
    end = RankEnd(0, "n1", ExitStatus(3, 0), 100.0, output=(early, late))
    assert end_words(end) == "; its last line: step 40"
    assert end_words(replace(end, output=(early,))) == "; its last line: Warning: cannot load plug-in"
    assert end_words(replace(end, at=11.0, output=(early,))) == "; it printed: Warning: cannot load plug-in"


@pytest.mark.parametrize(
    ("text", "error_class", "retriable"),
    [
        ("error: lost communication with the solver on n7\n", ErrorClass.NETWORK, Retriable.YES),
        ("FATAL: restart.nc is truncated\n", ErrorClass.DATA, Retriable.NO),
        ("FATAL: recipe 7 is missing\n", ErrorClass.USER_CODE, Retriable.NO),
    ],
)
def test_a_program_s_own_words_place_its_failure_and_blame_nobody(
    text: str, error_class: ErrorClass, retriable: Retriable
) -> None:
    for status in (1, 2, 255, 77):
        v = verdict({1: text}, status)
        assert (v.error_class, v.retriable, v.suspects) == (error_class, retriable, ())


def test_a_status_of_sysexits_speaks_where_nothing_is_said() -> None:
    assert verdict({1: ""}, 75).retriable is Retriable.YES
    assert verdict({1: ""}, 65).error_class is ErrorClass.DATA


def test_the_type_of_an_abort_tells_more_than_the_abort() -> None:
    v = verdict({1: "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"}, signal=6)
    assert (v.error_class, v.retriable, v.suspects) == (ErrorClass.OOM, Retriable.NO, ())


def test_a_shell_s_word_for_a_crash_is_shown_with_what_led_to_it() -> None:
    v = verdict({1: "ERROR: pthread_create(listener) failed\nSegmentation fault\n"}, signal=11)
    assert "pthread_create(listener) failed" in v.evidence[0]


def test_what_only_reports_another_s_end_is_not_said_by_the_program() -> None:
    assert told_error("srun: error: n1: task 0: Exited with exit code 1\n") == ""
    assert told_error("Error: a\n", but=["Error: a"]) == ""


@pytest.mark.parametrize(("status", "signal"), [(1, 0), (7, 0), (231, 0), (0, 6)])
def test_a_program_that_says_an_error_and_ends_itself_meets_it_again(status: int, signal: int) -> None:
    v = verdict({1: "Fatal: the recipe does not fit the oven\n"}, status, signal)
    assert (v.error_class, v.retriable, v.suspects, v.confirm) == (ErrorClass.USER_CODE, Retriable.NO, (), 1)
    assert v.evidence[0].endswith("; it printed: Fatal: the recipe does not fit the oven")


@pytest.mark.parametrize(("status", "signal"), [(1, 0), (0, 11), (0, 9)])
def test_without_a_word_or_by_another_s_signal_it_stays_unknown_what_it_was(status: int, signal: int) -> None:
    assert verdict({1: ""}, status, signal).error_class is not ErrorClass.USER_CODE
    assert verdict({1: "Fatal: no\n"}, 0, 9).error_class is ErrorClass.OOM


def test_a_status_with_a_meaning_keeps_it() -> None:
    assert verdict({1: "Fatal: no\n"}, 124).retriable is Retriable.YES


def test_who_has_said_an_error_before_it_passed_on_another_s_end_is_heard() -> None:
    assert (
        verdict({1: "Error: no ink\napplication called MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n"}).error_class
        is ErrorClass.USER_CODE
    )
    v = verdict({1: "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n"})
    assert v.error_class is ErrorClass.UNKNOWN


def test_torchrun_s_table_shows_its_root_cause() -> None:
    v = verdict({1: TABLE.format(1)})
    assert v.error_class is ErrorClass.UNKNOWN and "exitcode  : 1 (pid: 2021)" in v.evidence[0]
    assert root_cause(TABLE.format(-9).encode()) == b"exitcode  : -9 (pid: 2021)" and root_cause(b"exitcode  : 1") == b""
    assert child_line("a\nsubprocess died with <Signals.SIGKILL: 9>.\nb") == "subprocess died with <Signals.SIGKILL: 9>."


def test_a_signal_is_shown_by_the_line_that_names_it() -> None:
    line = "run.sh: line 8: 29423 Illegal instruction     mix --fast"
    assert signal_line(f"x\n{line}\n", 4) == line and signal_line(line, 11) == "" and signal_line(line, 0) == ""
    assert line in verdict({1: line + "\n"}, 132).evidence[0]


def test_what_one_node_s_processor_does_not_know_another_s_may() -> None:
    v = verdict({2: "Illegal instruction\n"}, 132)
    assert v.retriable is Retriable.ONCE and [s.node for s in v.suspects] == ["n2"]
    assert verdict({rank: "Illegal instruction\n" for rank in range(4)}, 132).retriable is Retriable.NO


@pytest.mark.parametrize("text", ["", "Fatal Python error: Segmentation fault\n"])
def test_a_crash_without_a_control_group_is_the_program_s(text: str) -> None:
    for told, ranks in (({1: text}, 2), ({rank: text for rank in range(4)}, 4)):
        v = verdict(told, 0, 11, ranks)
        assert (v.error_class, v.retriable, v.confirm) == (ErrorClass.USER_CODE, Retriable.NO, 1)
    assert verdict({1: text}, 0, 11).retriable is not Retriable.NO


@pytest.mark.parametrize(
    ("numbers", "sizes", "apart"),
    [((7, 7), (4, 1), True), ((8, 7), (4, 1), True), ((9, 7), (4, 4), True), ((8, 7), (4, 4), False), ((7, 7), (4, 4), False)],
)
def test_ranks_that_wait_in_different_collectives_were_led_apart_by_the_program(
    numbers: tuple[int, int], sizes: tuple[int, int], apart: bool
) -> None:
    texts = {rank: WATCHDOG.format(rank, numbers[rank], "ALLREDUCE", sizes[rank]) for rank in range(2)}
    v = verdict(texts, 0, 6, 2)
    assert (v.signature == OUT_OF_STEP) is apart
    if apart:
        assert (v.error_class, v.retriable, v.suspects) == (ErrorClass.USER_CODE, Retriable.NO, ())


def test_one_of_many_that_is_behind_stays_the_suspect() -> None:
    texts = {rank: WATCHDOG.format(rank, 5 if rank == 2 else 9, "ALLREDUCE", 4) for rank in range(4)}
    assert [s.node for s in verdict(texts, 0, 6).suspects] == ["n2"]


def test_a_warning_of_the_failed_rank_is_the_cause_where_only_bystanders_speak() -> None:
    cause = "[W socket.cpp:697] [c10d] TCP client failed to connect/validate to host x-0:29400 - Name or service not known\n"
    symptom = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"
    assert verdict({1: cause + symptom}).signature == "dns"
    assert verdict({1: cause + symptom + "KeyError: 'x'\n"}).signature == "py-key"
    overcome = cause.replace("not known", "not known, retrying")
    assert verdict({1: overcome + symptom}).signature == "rdzv-closed"


def test_an_exception_without_a_message_defers_to_the_lines_below_it_and_shows_the_first() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/u/t.py", line 3, in f\n    check()\nRuntimeError:\n\n   The oven is cold.\n'
    )
    assert verdict({1: trace}).evidence[0] == "rank 1 on n1: RuntimeError: The oven is cold. (at /u/t.py:3)"
    known = trace.replace("RuntimeError", "AssertionError").replace("oven is cold", "NVIDIA driver on your system is too old")
    assert verdict({1: known}).signature == "cuda-build"


def test_an_exception_that_points_elsewhere_defers_to_what_is_said_there() -> None:
    away = 'Traceback (most recent call last):\n  File "/u/t.py", line 3, in f\n    check()\nRuntimeError: A worker failed. {}\n'
    later = "\nOSError: [Errno 28] No space left on device: '/scratch/x'\n"
    assert verdict({1: away.format("See the stack trace for the root cause.") + later}).signature == "enospc"
    assert verdict({1: away.format("The oven is cold.") + later}).signature == "RuntimeError at t.py:3"
    alone = verdict({1: "Error: no ink\n" + away.format("Check the logs for the actual error.")})
    assert alone.signature == "RuntimeError at t.py:3" and alone.evidence[0].endswith("it printed: Error: no ink")


def test_a_long_line_is_shown_where_it_says_it() -> None:
    first = verdict(
        {1: "2026-11-22: F " + "x" * 900 + ": CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered\n"}
    ).evidence[0]
    assert "CUDA_ERROR_ECC_UNCORRECTABLE" in first and len(first) < 400


def test_a_header_among_symptoms_defers_too() -> None:
    text = "[ERROR] (PID:7) ERR01100 OPS call acl api failed.\nGet_Socket(EI0006): Getting socket times out.\n"
    assert verdict({1: text}).signature == "hccl-EI0006"


def test_a_symptom_shows_what_its_rank_said_besides() -> None:
    v = verdict({1: "Error: the list of hosts is empty\nNCCL WARN something\n"})
    assert "NCCL WARN something" in v.evidence[0] and v.evidence[0].endswith("it printed: Error: the list of hosts is empty")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"*** Error in `/u/bin/mix': corrupted double-linked list", True),
        (b"the words `corrupted double-linked list", False),
        (b"bash: cannot create temp file for here-document: corrupted double-linked list", True),
        (b"document: corrupted double-linked list", False),
        (b"    #3 H5FD.c line 939 in H5FD_lock(): corrupted double-linked list", True),
        (b"# corrupted double-linked list", False),
    ],
)
def test_quoted_or_said(line: bytes, said: bool) -> None:
    assert is_evidence(line, 0, line, line.index(b"corrupted")) is said


def test_what_stands_below_a_trace_s_heading_is_no_guess_any_more() -> None:
    text = "EL0001: Device not found.\n   Possible Cause: it is abnormal.\n   TraceBack (most recent call last):\n   Device[1] lost heartbeat.\n"
    assert verdict({1: text}).signature == "acl-507010"
    assert verdict({1: text.replace("TraceBack (most recent call last)", "Another")}).signature == "npu-args"


@pytest.mark.parametrize(
    ("line", "signature", "error_class", "retriable"),
    [
        ("MPIDI_reduce(1151): message sizes do not match across processes", "mpi-misuse", ErrorClass.USER_CODE, Retriable.NO),
        ("NCCL WARN Call to ibv_modify_qp failed with error No such device", "rdma-refused", ErrorClass.NETWORK, Retriable.NO),
        ("numpy: Unable to allocate 3.0 GiB for an array", "alloc-refused", ErrorClass.OOM, Retriable.NO),
        ("OSError: [Errno 12] Cannot allocate memory", "cannot-alloc", ErrorClass.OOM, Retriable.YES),
        ("error: memory limit exceeded", "memory-limit", ErrorClass.OOM, Retriable.NO),
        ("unable to lock file, errno = 38, error message = 'Function not implemented'", "no-locks", ErrorClass.STORAGE, Retriable.NO),
        ("unable to lock file, errno = 11, error message = 'Resource temporarily unavailable'", "db-locked", ErrorClass.STORAGE, Retriable.YES),
        ("bash: line 0: cd: /data/train: No such file or directory", "shell-no-file", ErrorClass.USER_CODE, Retriable.NO),
        ("t.c:9: main: Assertion `a != 0' failed.", "user-device-assert", ErrorClass.USER_CODE, Retriable.NO),
        ("ToolError: Failed to communicate with the daemon", "comm-failed", ErrorClass.NETWORK, Retriable.YES),
        ("This is not a valid parquet file", "data-not-of-its-kind", ErrorClass.DATA, Retriable.NO),
    ],
)  # fmt: skip
def test_of_two_kinds_with_like_words_one_passes_and_one_does_not(
    line: str, signature: str, error_class: ErrorClass, retriable: Retriable
) -> None:
    v = verdict({1: line + "\n"})
    assert (v.signature, v.error_class, v.retriable) == (signature, error_class, retriable)


def test_a_container_that_starts_nowhere_is_what_the_program_asks_for() -> None:
    line = "slurmstepd: error: pyxis: couldn't start container\n"
    v = verdict({rank: line for rank in range(4)})
    assert (v.error_class, v.retriable, v.suspects) == (ErrorClass.USER_CODE, Retriable.NO, ())
    v = verdict({2: line, 3: line})
    assert v.retriable is Retriable.YES and [s.node for s in v.suspects] == ["n2"]


def test_a_memory_fault_of_a_device_in_a_job_of_one_node_is_the_program_s_and_confirmed() -> None:
    fault = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    alone, among = verdict({1: fault}, ranks=2), verdict({1: fault})
    assert (alone.retriable, alone.suspects) == (Retriable.NO, ()) and alone.confirm > 0
    assert among.retriable is Retriable.YES
