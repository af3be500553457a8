"""What nobody has listed is placed by how runtimes, launchers and libraries say such things, and no node pays for a guess."""

from __future__ import annotations

import pytest

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import ErrorClass, Piece, RankEnd, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose

BOOK = load_pattern_book(()).of_ranks()
JULIA_TASK = """ERROR: LoadError: TaskFailedException

    nested task error: IOError: connect: connection refused (ECONNREFUSED)
    Stacktrace:
     [1] worker_from_id(pg::Distributed.ProcessGroup, i::Int64)
"""
SHARDS = """Traceback (most recent call last):
  File "/home/user/load.py", line 25, in load
    dcp.load(state)
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1])
Traceback (most recent call last): (RANK 0)
  File "/home/user/load.py", line 64, in plan
    local_data = map_fun()
RuntimeError: Missing key in checkpoint state_dict: head.weight.
"""
READER = """Traceback (most recent call last):
  File "/home/user/{}", line 38, in read
    yield json.loads(line)
json.decoder.JSONDecodeError: Extra data: line 1 column 3 (char 2)
"""
JAVA = (
    "#\n# There is insufficient memory for the Java Runtime Environment to continue.\n# Possible reasons:\n#   no swap space\n#\n"
)


def verdict(text: str, status: int = 1, signal: int = 0) -> Verdict:
    """One rank of four on two nodes says it and fails; the others are stopped."""
    ends = []
    for rank in range(4):
        own = rank == 2
        output = (Piece(99.9, "err", text),) if own and text else ()
        ended = ExitStatus(0 if signal else status, signal) if own else ExitStatus(0, 15)
        ends.append(RankEnd(rank, f"n{rank // 2 + 1}", ended, 100.0, stopped=not own, output=output))
    return diagnose(ends, Facts(), BOOK)


@pytest.mark.parametrize(
    ("text", "error_class", "line"),
    [
        (JULIA_TASK, ErrorClass.NETWORK, "connection refused"),
        (
            "ERROR (unhandled task failure): Version read failed.\n in process_hdr(::TCPSocket) at ./multi.jl:1410\n",
            None,
            "Version read",
        ),
        (SHARDS, ErrorClass.USER_CODE, "RuntimeError: Missing key"),
        (READER.format("jsonl_reader.py"), ErrorClass.DATA, "JSONDecodeError"),
        (READER.format("settings.py"), ErrorClass.USER_CODE, "JSONDecodeError"),
        (JAVA, ErrorClass.OOM, "insufficient memory for the Java"),
        ("fi_cq_readerr: Resource temporarily unavailable(-11).\n", ErrorClass.NETWORK, "fi_cq_readerr"),
        ("nvshmem_init.cpp:275: init failed for transport: IBGDA\n", ErrorClass.NETWORK, "init failed"),
        ("At line 7 of file a.f90\nFortran runtime error: End of file\n", ErrorClass.DATA, "End of file"),
        (
            '[n1] *** MPI_ERRORS_ARE_FATAL (all will now abort,\n\n  --> Returned "Unreachable" (-12)\n',
            ErrorClass.NETWORK,
            "Returned",
        ),
        (
            "0: Fatal error in PMPI_Init: Other MPI error, error stack:\n0: MPID_Init(11)....:\n0: hook(10): OFI addrinfo() failed (x:No data)\n",
            ErrorClass.NETWORK,
            "OFI addrinfo() failed",
        ),
        (
            "2022-08-19 19:12:17.857636: E tensorflow/core/cache.cc:113] Computation requires more parameters (9) than supported.\n"
            "2022-08-19 19:12:17.857731: F tensorflow/core/group.cc:86] Check failed: programs.size() > 0\n",
            None,
            "requires more parameters",
        ),
        (
            "[proxy:0:2@n2] HYDU_create_process (launch.c:69): execvp error on file 0 (No such file or directory)\n",
            ErrorClass.USER_CODE,
            "execvp error",
        ),
    ],
)
def test_the_line_that_tells_is_found(text: str, error_class: ErrorClass | None, line: str) -> None:
    found = verdict(text)
    assert line in found.evidence[0]
    assert error_class is None or found.error_class is error_class


@pytest.mark.parametrize(
    ("text", "error_class", "retriable"),
    [
        ("srun: error: Unable to allocate resources: Socket timed out on send/recv operation\n", ErrorClass.NETWORK, Retriable.YES),
        (
         "srun: error: Task launch for StepId=1.2 failed on node n9: Unable to satisfy cpu bind request\n", ErrorClass.USER_CODE, Retriable.NO),
        ("RuntimeError: Unexpected result inf (message='found Inf in local grad norm')\n", ErrorClass.DATA, Retriable.NO),
        ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***\n"
         "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\n", ErrorClass.UNKNOWN, Retriable.YES),
        ("OpenBLAS : Program will terminate because you tried to start too many threads.\n", ErrorClass.USER_CODE, Retriable.NO),
    ],
)  # fmt: skip
def test_what_slurm_and_libraries_say_of_the_start_is_read(text: str, error_class: ErrorClass, retriable: Retriable) -> None:
    found = verdict(text)
    assert (found.error_class, found.retriable) == (error_class, retriable) and not found.suspects


def test_a_step_that_srun_refused_has_no_killed_task() -> None:
    text = "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x3.\nsrun: error: n1: task 0: Killed\n"
    found = verdict(text)
    assert "CPU binding outside" in found.evidence[0] and not found.suspects


def test_a_sentence_over_two_lines_is_shown_from_its_beginning() -> None:
    found = verdict(
        "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated.\n", 2
    )
    assert "mpirun detected that one or more" in found.evidence[0]


def test_what_only_passes_on_gives_way_to_a_bystanders_line() -> None:
    text = 'Unhandled error (suppress it): ray::wake_up()\n  File "/app/server.py", line 71, in wake_up\n    ray.get(futures)\n'
    found = verdict(f"{text}ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n")
    assert "ActorDiedError" in found.evidence[0] and found.error_class is ErrorClass.UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\nValueError: no such model\n",
        "application called MPI_Abort(MPI_COMM_WORLD, -1) - process 2\n",
        "OSError: [Errno 116] Stale file handle: '/mnt/share/cache.arrow'\n",
    ],
)
def test_no_node_pays_for_it(text: str) -> None:
    assert not verdict(text, status=255).suspects


def test_a_launcher_that_fails_without_a_word_counts_against_its_node() -> None:
    assert [suspect.node for suspect in verdict("", status=255).suspects] == ["n2"]


def test_an_abort_that_a_shell_passed_on_has_the_programs_own_words() -> None:
    found = verdict("ERROR: no decomposition file for 32 blocks\n", status=134)
    assert (found.error_class, found.retriable) == (ErrorClass.USER_CODE, Retriable.NO)


def test_the_sentence_of_another_speaker_is_no_part_of_a_guess() -> None:
    text = "warning: this may be caused by a bad cable; please check the cable\nsampler: no rows left in shard 3, exiting\n"
    found = verdict(text, status=3)
    assert "no rows left" in found.evidence[0] and found.error_class is ErrorClass.USER_CODE


def test_an_answer_in_a_data_set_is_no_line_of_nccl() -> None:
    told = "answer: NCCL WARN NET/IB : Got completion with error 12 means the link is down\n"
    found = verdict(f'{told}Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nLookupError: no label\n')
    assert "LookupError" in found.evidence[0] and not found.suspects


def test_a_line_that_names_the_thing_leads_and_a_header_follows() -> None:
    text = (
        "n1:1:1 [0] bootstrap.cc:48 NCCL WARN Bootstrap : no socket interface found\n"
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, internal error\n"
    )
    assert verdict(text).lead.said.startswith("n1:1:1 [0] bootstrap.cc:48 NCCL WARN Bootstrap")


def test_where_a_program_stopped_gives_way_to_why() -> None:
    text = "grid: number of processes exceeds number of cells\n ENDRUN:\n ERROR in decompInitMod.F90 at line 175\n"
    assert "exceeds number of cells" in verdict(text, status=233).evidence[0]


def test_a_shut_down_by_another_rank_is_a_bystanders_word() -> None:
    found = verdict(
        "W op_kernel.cc:1318] Aborted: Horovod has been shut down. This was caused by an exception on one of the ranks\n"
    )
    assert (found.error_class, found.retriable) == (ErrorClass.UNKNOWN, Retriable.YES)


@pytest.mark.parametrize(
    ("line", "retriable"),
    [
        ("wandb.errors.CommError: failed to upsert bucket: returned error 503: unavailable", Retriable.YES),
        (
            "botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden",
            Retriable.NO,
        ),
        ("botocore.exceptions.ConnectTimeoutError: Connect timeout on endpoint URL", Retriable.YES),
        ("tensorflow.python.framework.errors_impl.CancelledError: RecvAsync is cancelled.", Retriable.YES),
    ],
)
def test_a_service_that_was_reached_and_says_no_will_say_so_again(line: str, retriable: Retriable) -> None:
    text = f'Traceback (most recent call last):\n  File "/home/u/train.py", line 3, in <module>\n    main()\n{line}\n'
    assert verdict(text).retriable is retriable
