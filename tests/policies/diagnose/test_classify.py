"""The verdict on failing runs: the corpus run by run, and the rules of the reading order one by one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from ftslurm.catalogs.codes import CodeBook
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_code_book, load_pattern_book
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, Piece, RankEnd, Retriable
from ftslurm.policies.diagnose import Facts, diagnose
from tests.corpus.load import CORPUS, load
from tests.corpus.score import differences, verdict_of

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
KEY = "KeyError: 'labels'\n"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:9\n"


@cache
def books() -> tuple[PatternBook, CodeBook]:
    return load_pattern_book(()).of_ranks(), load_code_book(())


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_run_of_the_corpus_is_understood(path: Path) -> None:
    case = load(path)
    assert differences(case, verdict_of(case, *books())) == {}


def end(
    rank: int, text: str = "", status: int = 0, signal: int = 15, at: float = 100.0, said_at: float = 99.9, **more: object
) -> RankEnd:
    """Two ranks a node; stopped unless it has a status of its own."""
    output = (Piece(said_at, "err", text),) if text else ()
    own = bool(status) or signal != 15
    fields = {"stopped": not own, **more}
    return RankEnd(rank, f"n{rank // 2 + 1}", ExitStatus(status, 0 if status else signal), at, output=output, **fields)  # type: ignore[arg-type]


def verdict(*ends: RankEnd, facts: Facts = Facts(), words: tuple[str, ...] = ()):  # type: ignore[no-untyped-def]
    return diagnose(ends, facts, books()[0].with_keywords(words))


def test_a_device_s_own_code_beats_whatever_the_ranks_say() -> None:
    sick = Fault("n2", "0.0", "80E18402", "isolated rows full", FaultClass.ISOLATE)
    v = verdict(end(0, KEY, 1), end(1), end(2), end(3), facts=Facts((sick,)))
    assert (v.error_class, v.confidence, v.signature) == (ErrorClass.HARDWARE, Confidence.FACT, "80E18402")
    assert [(s.node, s.blame) for s in v.suspects] == [("n2", Blame.YES)]


def test_a_root_beats_symptoms_that_came_earlier() -> None:
    v = verdict(end(0, CLOSED, 1, at=99.0, said_at=98.9), end(1, CLOSED, 1), end(2, ECC, 1, said_at=99.5), end(3))
    assert v.signature == "cuda-ecc-uncorrectable" and [s.node for s in v.suspects] == ["n2"]


def test_the_earlier_root_beats_the_later_one() -> None:
    v = verdict(end(0, KEY, 1, said_at=99.8), end(1), end(2, ECC, 1, said_at=99.0), end(3))
    assert v.signature == "cuda-ecc-uncorrectable"


def test_what_a_rank_says_after_it_was_told_to_stop_is_no_cause() -> None:
    v = verdict(end(0, "", 3, at=99.0), end(1, KEY, at=100.0, said_at=99.5), end(2), end(3))
    assert v.signature == "exit 3"


def test_an_error_that_its_rank_overcame_is_no_cause() -> None:
    steps = tuple(Piece(60.0 + step, "out", f"step {step} loss 2.0\n") for step in range(20))
    noisy = RankEnd(0, "n1", ExitStatus(0, 15), 100.0, stopped=True, output=(Piece(50.0, "err", ECC), *steps))
    assert verdict(noisy, end(1), end(2, KEY, 1), end(3)).signature == "py-key"


def test_but_not_the_last_error_of_a_rank_that_failed_however_much_is_printed_after_it() -> None:
    chatter = tuple(Piece(61.0 + 5 * line, "out", "wandb: waiting for the upload\n") for line in range(8))
    failed = RankEnd(2, "n2", ExitStatus(1), 101.0, output=(Piece(60.0, "err", ECC), *chatter))
    assert verdict(end(0), end(1), failed, end(3)).signature == "cuda-ecc-uncorrectable"


def test_a_hardware_error_on_every_node_is_the_program_s() -> None:
    v = verdict(*(end(rank, "RuntimeError: CUDA error: unspecified launch failure\n", 1) for rank in range(4)))
    assert v.program and v.error_class is ErrorClass.USER_CODE and not v.suspects


def test_the_silent_rank_is_the_suspect_and_never_more_than_that() -> None:
    waiting = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)\n"
    v = verdict(*(end(rank, waiting.format(rank), 0, 6) for rank in range(3)), end(3))
    assert [(s.node, s.rank, s.blame) for s in v.suspects] == [("n2", 3, Blame.SUSPECT)]


def test_the_kernel_s_own_kill_blames_nobody() -> None:
    v = verdict(end(0), end(1, "", 0, 9, oom=True), end(2, CLOSED, 1), end(3))
    assert (v.error_class, v.signature, v.suspects, v.confidence) == (ErrorClass.OOM, "oom-kill", (), Confidence.FACT)


def test_a_kill_that_was_not_for_memory_is_not_called_one() -> None:
    known, unknown = (verdict(end(0, "", 0, 9, oom=oom), end(1), end(2), end(3)) for oom in (False, None))
    assert (known.error_class, unknown.error_class) == (ErrorClass.UNKNOWN, ErrorClass.OOM)
    assert "nothing of it for memory" in known.lead.meaning
    killed = "RuntimeError: DataLoader worker (pid 88) is killed by signal: Killed.\n"
    known, unknown = (verdict(end(0, killed, 1, oom=oom), end(1), end(2), end(3)) for oom in (False, None))
    assert (known.error_class, known.retriable) == (
        ErrorClass.UNKNOWN,
        Retriable.YES,
    ) and "nothing of it for memory" in known.lead.advice
    assert (unknown.error_class, unknown.retriable) == (ErrorClass.OOM, Retriable.NO)


def test_nothing_known_is_unknown() -> None:
    v = verdict(end(0, "strange words\n", 1), end(1), end(2), end(3))
    assert (v.error_class, v.retriable, v.confidence) == (ErrorClass.UNKNOWN, Retriable.UNKNOWN, Confidence.NONE)


def test_a_word_of_one_s_own_makes_an_error_retriable_on_a_rank_that_failed() -> None:
    assert verdict(end(0, "my hiccup\n", 1), end(1), words=("hiccup",)).retriable is Retriable.YES
    assert verdict(end(0, KEY + "my hiccup\n", 1), end(1), words=("hiccup",)).retriable is Retriable.YES
    assert verdict(end(0, KEY, 1), end(1, "my hiccup\n"), words=("hiccup",)).retriable is Retriable.NO


def test_a_keyword_is_no_expression() -> None:
    assert verdict(end(0, "aab\n", 1), end(1), words=("a.b",)).retriable is Retriable.UNKNOWN


def test_lines_of_the_kernel_and_of_slurm_count_for_nothing_in_a_rank_s_output() -> None:
    v = verdict(end(0, "NVRM: Xid (PCI:0000:18:00): 79, pid=7\nslurmstepd: error: Node failure on n12\n", 1), end(1))
    assert v.error_class is ErrorClass.UNKNOWN


def test_no_rank_at_all_is_no_error() -> None:
    assert verdict().signature == "unknown"


# --- what stands beside a line


def test_an_exception_over_what_is_not_there_is_about_the_error_right_before_it() -> None:
    trace = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 9, in main\n    check()\n'
    busy = f"Failed to open accelerator 0: Device or resource busy by another process of pid 7\n{trace}RuntimeError: nothing to train on\n"
    v = verdict(end(0, busy, 1), end(1))
    assert v.retriable is Retriable.YES and "resource busy" in v.evidence[0] and "nothing to train on" in v.evidence[0]
    alone = verdict(end(0, f"{trace}RuntimeError: nothing to train on\n", 1), end(1))
    assert (alone.error_class, alone.retriable) == (ErrorClass.USER_CODE, Retriable.NO)


def test_what_is_quoted_right_before_an_exception_says_nothing_of_it() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/home/u/train.py", line 9, in main\n    check()\nRuntimeError: bad width\n'
    )
    v = verdict(end(0, f'sample text: "connection reset by peer, the device is busy, error"\n{trace}', 1), end(1))
    assert (v.error_class, v.retriable) == (ErrorClass.USER_CODE, Retriable.NO)


def test_a_device_assertion_is_shown_with_the_assertion() -> None:
    said = "Index.cu:99: gather: block: [5,0,0] Assertion `row < rows` failed.\nRuntimeError: CUDA error: device-side assert triggered\n"
    v = verdict(end(0, said, 1), end(1))
    assert "row < rows" in v.evidence[0]


@pytest.mark.parametrize(("text", "error_class", "said"), [
    ("pthread_create failed for thread 7 of 8: Resource temporarily unavailable\n", ErrorClass.OOM, "pthread_create"),
    ("ERROR ~ Error executing process > 'A:B'\n\nCommand error:\n  FATAL:   container creation failed: no mount\n",
     ErrorClass.USER_CODE, "container creation failed"),
    ("Caused by:\n  Failed to submit process to grid scheduler\n\nCommand output:\n"
     "  sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", ErrorClass.NETWORK, "Socket timed out"),
    ("Connection to n7 closed by remote host.\n", ErrorClass.NETWORK, "closed by remote host"),
    ("ompi_init() failed\n--> Returned \"Unreachable\" (-12) instead of \"Success\" (0)\n", ErrorClass.NETWORK, "Unreachable"),
])  # fmt: skip
def test_who_says_how_a_call_ended_gives_way_to_what_it_was_about(text: str, error_class: ErrorClass, said: str) -> None:
    v = verdict(end(0, text, status=1), end(1))
    assert v.error_class is error_class and said in v.evidence[0]


def test_a_file_that_most_ranks_want_to_make_is_there_again_next_time() -> None:
    line = "FileExistsError: [Errno 17] File exists: '/out/run'\n"
    most = verdict(*(end(rank, line, status=1) for rank in (1, 2, 3)), end(0))
    one = verdict(end(1, line, status=1), end(0), end(2), end(3))
    assert (most.retriable, one.retriable) == (Retriable.NO, Retriable.YES)


def test_of_ranks_that_ended_alike_the_one_that_spoke_tells() -> None:
    said = "E coordination_service.cc:954] UNAVAILABLE: Task /job:w/task:3 heartbeat timeout, it was preempted or crashed\n"
    v = verdict(end(0, said, 0, 6), end(1, "", 0, 6), end(2), end(3))
    assert "heartbeat timeout" in v.evidence[0] and not v.suspects


def test_a_call_that_opens_an_adapter_is_the_set_up_whatever_the_system_said_of_it() -> None:
    for words in (
        "ibv_open_device(mlx5_9) failed: Cannot allocate memory",
        "hfi_userinit: mmap failed: Resource temporarily unavailable",
    ):
        v = verdict(end(0, f"[1.2] UCX  ERROR {words}\n", 1), end(1, f"[1.2] UCX  ERROR {words}\n", 1))
        assert (v.error_class, v.retriable) == (ErrorClass.NETWORK, Retriable.NO)


def test_slurm_s_reason_for_an_end_tells_more_than_its_signal() -> None:
    said = "srun: Force Terminated job 7\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-01-02T03:04:05 DUE TO TIME LIMIT ***\n"
    v = verdict(*(end(rank, said, 0, 15, stopped=False) for rank in range(4)))
    assert v.retriable is Retriable.NO and "TIME LIMIT" in v.evidence[0]


def test_a_warning_is_taken_for_the_reason_where_nobody_says_anything_else() -> None:
    said = "lib/save.py:22: UserWarning: could not copy the weights. Error: CUDA out of memory. Tried to get 5 MiB\n"
    v = verdict(end(0, said, 1), end(1))
    assert (v.error_class, v.retriable) == (ErrorClass.OOM, Retriable.NO)


# --- other languages


@pytest.mark.parametrize(("text", "said", "place"), [
    ("Error: width 3 is not divisible by 7\n    at check (/home/u/app.js:3:9)\n    at /home/u/app.js:7:1\n", "width 3", ""),
])  # fmt: skip
def test_an_error_that_a_pattern_knows_keeps_its_type_and_place(text: str, said: str, place: str) -> None:
    v = verdict(end(0, text, 1), end(1))
    assert said in v.lead.said and v.lead.place == place


def test_a_line_that_begins_with_error_is_none_of_a_language_without_frames() -> None:
    assert verdict(end(0, "Error: the thing\nand more\n", 3), end(1)).signature == "exit 3"


@pytest.mark.parametrize(("printed", "error_class", "suspects"), [
    ("dlrover agent: the GPU driver reported an error\n", ErrorClass.HARDWARE, 1),
    ("done\n", ErrorClass.UNKNOWN, 0),
])  # fmt: skip
def test_a_tool_s_own_status_is_read_only_where_the_tool_speaks(printed: str, error_class: ErrorClass, suspects: int) -> None:
    ends = [RankEnd(0, "n1", ExitStatus(201), 5.0, output=(Piece(4.0, "out", printed),)), RankEnd(1, "n2", stopped=True)]
    found = diagnose(ends, Facts(), books()[0])
    assert (found.error_class, len(found.suspects)) == (error_class, suspects)


@pytest.mark.parametrize(("graded", "induced", "advice"), [
    (FaultClass.ISOLATE, False, "reboot n3; if the fault stays, replace device 0 of n3"),
    (FaultClass.SELF_HEALING, False,
     "if it comes back: reset device 0 of n3 while no job uses it, then reboot n3, then replace the device"),
    (FaultClass.ISOLATE, True, ""),
])  # fmt: skip
def test_a_device_that_failed_is_named_with_what_mends_it(graded: FaultClass, induced: bool, advice: str) -> None:
    found = verdict(end(0), end(1), facts=Facts((Fault("n3", "0", "XID 79", "GPU fell off the bus", graded, induced),)))
    assert found.lead is not None and found.lead.advice == advice


def test_a_node_that_is_bad_is_named_with_what_mends_it() -> None:
    found = verdict(end(0), end(1), facts=Facts((), {"n3": "the site's health command says: hot"}))
    assert found.lead is not None and found.lead.advice.startswith("reboot n3; ")
