"""`ftslurm logs` finds what a job printed: in its files, in what was kept of them, by rank and attempt."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftslurm.errors import UsageError
from ftslurm.ledger.output import keep_files
from ftslurm.report.logs import Begun, Outputs
from ftslurm.wrapper.controller.output_files import own_files
from ftslurm.wrapper.logs import follow, rank_sources, read, sources


def outputs(*files: Path, ranks: tuple[tuple[str, str], ...] = (), label: bool = False) -> Outputs:
    return Outputs(tuple(map(str, files)), ranks, label, {1: Begun(0, "7.0"), 2: Begun(0, "7.0"), 3: Begun(1, "7.1")})


def text(found: Outputs, ledger: Path, attempt: int | None = None, rank: int | None = None) -> bytes:
    return b"".join(piece for source in sources(found, ledger, attempt) for piece in read(source, attempt, rank))


FIRST = b"0: one\nftrun: attempt 2 on n1\n1: two\n"
SECOND = b"ftrun: attempt 3 on n1\n1: three\n"


@pytest.fixture
def job(tmp_path: Path) -> tuple[Outputs, Path, Path]:
    """Requeued once; the second scheduling began the file anew."""
    ledger, log = tmp_path / "jobs" / "c.7.jsonl", tmp_path / "slurm-7.out"
    ledger.parent.mkdir()
    log.write_bytes(FIRST)
    keep_files(ledger, 0, [str(log)], 1 << 20)
    log.write_bytes(SECOND)
    return outputs(log, label=True), ledger, log


def test_all_of_it_or_an_attempt_or_a_rank(job: tuple[Outputs, Path, Path]) -> None:
    found, ledger, log = job
    assert text(found, ledger) == FIRST + SECOND
    assert [text(found, ledger, attempt) for attempt in (1, 2, 3)] == [b"0: one\n", b"ftrun: attempt 2 on n1\n1: two\n", SECOND]
    assert text(found, ledger, rank=1) == b"two\nthree\n"
    log.write_bytes(FIRST + SECOND)  # --open-mode=append
    assert text(found, ledger) == FIRST + SECOND and text(found, ledger, 3) == SECOND


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    ledger, log = tmp_path / "c.7.jsonl", tmp_path / "log"
    log.write_bytes(b"a" * 1000 + b"b" * 9000)
    keep_files(ledger, 0, [str(log)], 800)
    log.write_bytes(b"")
    assert text(outputs(log), ledger) == b"a" * 100 + b"\nftslurm: 9200 bytes were not kept (logs.keep_bytes)\n" + b"b" * 700


def test_a_rank_s_own_file(tmp_path: Path) -> None:
    for name in ("7_00.n[1].0", "7_01.n[1].0", "7_01.n2.1", "7_11.n2.0"):
        (tmp_path / name).write_text(name)
    found = outputs(ranks=(("task", f"{tmp_path}/7_%2t.%N.%s"),))
    assert [source.path.name for source in rank_sources(found, 1, None)] == ["7_01.n[1].0", "7_01.n2.1"]
    assert [source.path.name for source in rank_sources(found, 1, 3)] == ["7_01.n2.1"]
    assert rank_sources(found, 5, None) == []
    with pytest.raises(UsageError, match="a file of its own"):
        sources(found, tmp_path / "c.7.jsonl", None)


def test_where_nothing_is_known_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="terminal or a pipe"):
        sources(outputs(), tmp_path / "c.7.jsonl", None)
    (missing,) = sources(outputs(tmp_path / "none"), tmp_path / "c.7.jsonl", None)
    os.mkfifo(tmp_path / "fifo")
    (fifo,) = sources(outputs(tmp_path / "fifo"), tmp_path / "c.7.jsonl", None)
    for source in (missing, fifo):
        with pytest.raises(UsageError, match="cannot be read here"):
            list(read(source, None))
    assert list(follow([fifo.path], lambda: True)) == []


def test_to_follow_a_file_over_a_requeue(tmp_path: Path) -> None:
    log, steps = tmp_path / "log", iter([b"", b"more", b"anew"])
    log.write_bytes(b"first ")

    def wait(_: float) -> None:
        step = next(steps, None)
        if step == b"more":
            log.write_bytes(b"first more ")
        elif step == b"anew":
            log.unlink()
            log.write_bytes(b"anew")

    pieces = follow([log, tmp_path / "none"], lambda: next(steps, None) is None and log.read_bytes() == b"anew", None, wait)
    assert b"".join(pieces) == b"first more anew"


def test_plain_files_behind_stdout_and_stderr(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out, (tmp_path / "gone").open("wb") as gone:
        (tmp_path / "gone").unlink()
        done = subprocess.Popen(["sleep", "30"], stdout=out, stderr=gone)
    try:
        env = {"SLURM_TASK_PID": str(done.pid), "ENVIRONMENT": "BATCH"}
        code = f"import sys; sys.path[:0] = {sys.path!r}; from ftslurm.wrapper.controller.output_files import own_files; print(own_files({env!r}))"
        with (tmp_path / "err").open("wb") as err:
            found = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=err, text=True, check=True).stdout
        assert found.strip() == str((str(tmp_path / "err"), str(tmp_path / "out")))
        assert own_files({**env, "SLURM_TASK_PID": str(os.getpid() << 20)}) == own_files({})
    finally:
        done.kill()
        done.wait()
