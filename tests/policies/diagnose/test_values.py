"""Values in a line: who holds the memory, where the file should be."""

from __future__ import annotations

import pytest

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Blame, ErrorClass, Piece, RankEnd, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.diagnose.errors import told_error
from ftslurm.policies.diagnose.lines import child_status
from ftslurm.policies.diagnose.values import held_by_another, in_a_cache, of_the_node, path_in
from ftslurm.wrapper.explain_code import Explainer

BOOK = load_pattern_book(()).of_ranks()
NEW = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which {} is free. "
OLD = "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 39.59 GiB total capacity; {} already allocated; 8.94 MiB free; {} reserved in total by PyTorch)"


def verdict(texts: dict[int, str], status: int = 1, ranks: int = 4) -> Verdict:
    ends = []
    for rank in range(ranks):
        output = (Piece(99.0 + rank / 100, "err", texts[rank]),) if rank in texts else ()
        own = rank in texts
        ends.append(
            RankEnd(
                rank,
                f"n{rank // 2 + 1}",
                ExitStatus(status if own else 0, 0 if own else 15),
                100.0,
                stopped=not own,
                output=output,
            )
        )
    return diagnose(ends, Facts(), BOOK)


@pytest.mark.parametrize(
    ("line", "another"),
    [
        (NEW.format("1.20 GiB") + "Process 1234 has 60.10 GiB memory in use. Including non-PyTorch memory, this process has 17.00 GiB memory in use.", True),
        (NEW.format("1.20 GiB") + "Including non-PyTorch memory, this process has 77.15 GiB memory in use. Of the allocated", False),
        (NEW.format("1.20 GiB") + "Process 7 has 1.50 GiB memory in use. Including non-PyTorch memory, this process has 76.00 GiB memory in use.", False),
        (OLD.format("1.12 GiB", "1.14 GiB"), True),
        (OLD.format("37.12 GiB", "38.00 GiB"), False),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; 1.20 GiB already allocated; 300.00 MiB free; 1.50 GiB reserved in total by PyTorch)", True),
        ("RuntimeError: CUDA error: out of memory", False),
        ("CUDA out of memory. Tried to allocate 99999999.99 GiB", False),
    ],
)  # fmt: skip
def test_who_holds_the_memory(line: str, another: bool) -> None:
    assert held_by_another(line) is another
    v = verdict({1: line + "\n"})
    assert v.error_class is (ErrorClass.OOM if "CUDA" in line or "NPU" in line or another else v.error_class)
    assert [s.node for s in v.suspects] == (["n1"] if another else [])
    drivers = line == "RuntimeError: CUDA error: out of memory"
    assert v.retriable is (Retriable.YES if another else Retriable.ONCE if drivers else Retriable.NO)


def test_the_same_lack_of_memory_everywhere_is_the_program_s() -> None:
    v = verdict({rank: OLD.format("1.12 GiB", "1.14 GiB") + "\n" for rank in range(4)})
    assert v.program and not v.suspects


@pytest.mark.parametrize(
    ("line", "retriable"),
    [
        ("OSError: [Errno 12] Cannot allocate memory", Retriable.NO),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Retriable.NO),
    ],
)
def test_memory_that_every_rank_lacks_will_be_lacking_again(line: str, retriable: Retriable) -> None:
    assert verdict({rank: f"{line}\n" for rank in range(4)}).retriable is retriable


@pytest.mark.parametrize(
    ("line", "error_class", "retriable"),
    [
        ("tarfile.ReadError: unexpected end of data", ErrorClass.DATA, Retriable.NO),
        ("tarfile.ReadError: unexpected end of data @ <Pipe (('cat s3://b/k.tar',), {})>", ErrorClass.STORAGE, Retriable.YES),
        ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", ErrorClass.DATA, Retriable.NO),
    ],
)  # fmt: skip
def test_a_file_stays_broken_where_a_stream_only_broke_off(line: str, error_class: ErrorClass, retriable: Retriable) -> None:
    v = verdict({1: line + "\n"})
    assert (v.error_class, v.retriable, v.suspects) == (error_class, retriable, ())


@pytest.mark.parametrize(
    ("path", "cache", "node"),
    [
        ("/home/u/.triton/cache/ab/k.json.tmp.pid_1", True, False),
        ("/tmp/torchinductor_u/ab/x.py", True, True),
        ("/home/u/.cache/torch_extensions/py311/fused_adam/lock", True, False),
        ("/data/shard-7.bin", False, False),
        ("/dev/shm/ds", False, True),
    ],
)
def test_where_a_file_should_be(path: str, cache: bool, node: bool) -> None:
    line = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    assert (path_in(line), in_a_cache(line), of_the_node(line)) == (path, cache, node)
    assert verdict({1: line + "\n"}).signature == ("cache-race" if cache else "file-missing")


def test_shared_memory_that_is_gone_on_one_node_is_that_node_s() -> None:
    line = "FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/ds'\n"
    assert [(s.node, s.blame) for s in verdict({0: line}).suspects] == [("n1", Blame.SUSPECT)]
    assert verdict({0: line, 2: line}).suspects == ()
    assert verdict({0: line.replace("/dev/shm", "/data")}).suspects == ()


def test_what_no_pattern_knows_is_shown_by_its_error() -> None:
    assert told_error("step 1\nFatal: the recipe is not a recipe\nbye\n") == "Fatal: the recipe is not a recipe"
    assert told_error("step 1\n") == ""
    v = verdict({1: 'x = "error"\nFatal: the recipe is not a recipe\nbye\n'})
    assert v.evidence[0].endswith("exited with status 1; it printed: Fatal: the recipe is not a recipe")


def test_a_header_shows_the_detail_below_it() -> None:
    text = "ncclSystemError: System call failed\nLast error:\nthe words of a plugin\n"
    assert verdict({1: text}).evidence[0] == "rank 1 on n1: ncclSystemError: System call failed ... the words of a plugin"
    assert verdict({1: text.replace("the words of a plugin", "Cuda failure 1 'invalid argument'")}).signature == "cuda-call"


def test_a_worker_s_own_error_is_behind_the_loader_s() -> None:
    trace = 'Traceback (most recent call last):\n  File "/home/u/{}.py", line 3, in f\n    go()\n'
    text = (
        trace.format("train")
        + "TypeError: Caught TypeError in DataLoader worker process 0.\nOriginal "
        + trace.format("data")
        + "MyError: x\n"
    )
    v = verdict({1: text})
    assert (v.signature, v.error_class, v.retriable) == ("MyError at data.py:3", ErrorClass.USER_CODE, Retriable.NO)


def test_an_unlisted_error_beats_a_bystander_s_line_in_verdict_and_explanation() -> None:
    closed = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:9\n"
    own = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 3, in f\n    go()\nRuntimeError: boom\n'
    v = verdict({0: closed, 1: own, 2: closed})
    assert (
        v.signature == "RuntimeError at train.py:3"
        and "RuntimeError: boom (at /home/u/train.py:3)" in v.what
        and "gloo" not in v.what
    )
    assert not v.program and verdict(dict.fromkeys(range(4), own)).program
    (told,) = Explainer(Settings()).text(own.encode())
    assert (told.code, told.part, told.why) == (v.signature, "/home/u/train.py:3", "class user-code; worth another try: no")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 28255)\n", ExitStatus(0, 9)),
        ("Failures:\n  exitcode  : -15 (pid: 1)\nRoot Cause (first observed failure):\n  exitcode  : 3 (pid: 2)\n", ExitStatus(3)),
        ("Root Cause (first observed failure):\n  exitcode  : 1 (pid: 2)\n", None),
        ("failed (exitcode: -11) local_rank: 0 (pid: 7) of binary: python\n", ExitStatus(0, 11)),
        ("Command '['python']' died with <Signals.SIGKILL: 9>.\n", ExitStatus(0, 9)),
        ("process 1 terminated with signal SIGSEGV\n", ExitStatus(0, 11)),
        ("process 1 terminated with signal SIGWHAT\n", None),
        ("[launch.py:351:main] exits with return code = -9\n", ExitStatus(0, 9)),
        ("worker 3 exit code: -9\n", ExitStatus(0, 9)),
        ("DataLoader worker exited with -6\n", ExitStatus(0, 6)),
        ("returned non-zero exit status 137.\n", ExitStatus(0, 9)),
        ("returned non-zero exit status 200.\n", ExitStatus(200)),
        ("mpirun noticed that process rank 3 exited on signal 6 (Aborted)\n", ExitStatus(0, 6)),
        ("run.sh: line 5: 12345 Killed                  python train.py\n", ExitStatus(0, 9)),
        ("step 3\n", None),
    ],
)  # fmt: skip
def test_what_a_parent_says_of_its_child(text: str, status: ExitStatus | None) -> None:
    assert child_status(text) == status


def test_a_child_s_end_is_that_of_its_parent_which_failed_by_a_general_error() -> None:
    assert verdict({1: "worker 3 exit code: -9\n"}).signature == "SIGKILL"
    assert verdict({1: "worker 3 exit code: -9\n"}, status=7).signature != "SIGKILL"
    assert verdict({1: "worker 3 went on\n"}).signature != "SIGKILL"
