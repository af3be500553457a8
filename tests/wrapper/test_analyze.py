"""`ftslurm analyze` over files of all kinds: which rank they are of, how much of them is read, what comes out."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.cli.ftslurm import main
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.errors import UsageError
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Retriable
from ftslurm.policies.diagnose.joblog import NO_RANK
from ftslurm.report.card import MAX_LINES
from ftslurm.wrapper import logs as large_files
from ftslurm.wrapper.explain_code import analyze_logs
from ftslurm.wrapper.logs import LogUnreadable, read_logs
from tests.settings import settings_with

TRACE = 'Traceback (most recent call last):\n  File "/home/u/t.py", line 3, in <module>\n'
KEY = TRACE + "KeyError: 'lr'\n"
ECC = TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
SRUN = "srun: error: n2: task 3: Exited with exit code 1\nsrun: error: n1: tasks 0-1: Terminated\n"


@pytest.fixture(autouse=True)
def _book_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftslurm.wrapper.explain_code.load_pattern_book", _book)


@cache
def _book(catalogs: tuple[str, ...]) -> PatternBook:
    return load_pattern_book(catalogs)


def write(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [str(folder / name) for name in files]


def told(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["analyze", *argv])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_a_child_that_was_killed_is_not_said_to_have_wanted_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = "RuntimeError: DataLoader worker (pid 88) is killed by signal: Killed.\n"
    spawned = "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL\n"
    for words in (loader, spawned):
        (path,) = write(tmp_path, **{"train.out": TRACE + words})
        status, out, _ = told([path], capsys)
        assert "the program's fault, if memory ran out; the kernel log tells" in out and "mostly" not in out
        assert ("again  no, if memory ran out; else the failure may not recur" in out) == (words == loader) == (status == 1)


def test_a_card_with_who_what_where_and_the_line_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = write(tmp_path, **{"slurm-7.out": "step 1\n" + KEY + SRUN})
    status, out, _ = told([path], capsys)
    assert status == 1 and out.splitlines() == [
        f"{path}: rank 3 on n2 exited with status 1",
        "  what   KeyError: 'lr' (the program looked up something that is not there)",
        "  where  /home/u/t.py:3",
        "  why    the program's fault",
        "  again  no: it would fail the same way",
        f"  log    {path}:4",
        f"  next   less +4 {path}",
    ]


@pytest.mark.parametrize(("text", "argv", "status"), [
    (ECC, [], 0), (KEY, [], 1), ("step 1\n", [], 3), ("step 1\n", ["--status", "0"], 1), ("step 1\n", ["--status", "3"], 0),
    ("step 1\nError: cannot find the end of it\n", [], 3),
    ("srun: error: Node failure on n12\n", [], 0),
    ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n", [], 1),
    ("srun: error: n1: task 0: Out Of Memory\n", [], 1),
])  # fmt: skip
def test_the_status_says_whether_another_try_is_worth_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, argv: list[str], status: int
) -> None:
    (path,) = write(tmp_path, log=text)
    assert told([*argv, path], capsys)[0] == status
    ended, out, _ = told([*argv, "--json", path], capsys)
    assert ended == status and json.loads(out)["another_try"] is {0: True, 1: False, 3: None}[status]


@pytest.mark.parametrize(("names", "ranks"), [
    (["slurm-7.out"], [NO_RANK]),
    (["slurm-7_0.out", "slurm-7_1.out", "slurm-7_10.out"], [0, 1, 10]),
    (["rank3.log", "rank1.log"], [3, 1]),
    (["a.log", "b.log"], [0, 1]),
    (["r0-n1.log", "r1-n1.log"], [0, 1]),
    (["1.log", "x2y3.log"], [0, 1]),
])  # fmt: skip
def test_which_rank_a_file_is_of(tmp_path: Path, names: list[str], ranks: list[int]) -> None:
    assert [log.rank for log in read_logs(write(tmp_path, **dict.fromkeys(names, "x\n")))] == ranks


def test_the_folder_that_torchrun_writes_is_read_by_rank_and_only_its_latest_attempt(tmp_path: Path) -> None:
    old = {f"run/attempt_0/{rank}/stderr.log": ECC for rank in range(2)}
    new = {f"run/attempt_1/{rank}/stdout.log": "step 1\n" for rank in range(2)} | {"run/attempt_1/1/stderr.log": KEY}
    write(tmp_path, **old, **new)
    assert {(log.rank, log.stream) for log in read_logs([str(tmp_path)])} == {(0, "out"), (1, "out"), (1, "err")}
    found = analyze_logs([str(tmp_path)], Settings())
    assert found.verdict.signature == "py-key" and found.rank == 1 and found.line.endswith("attempt_1/1/stderr.log:3")


def test_the_same_on_every_rank_is_told_so(tmp_path: Path) -> None:
    found = analyze_logs(write(tmp_path, **{f"rank{rank}.log": KEY for rank in range(4)}), Settings())
    assert found.card.why == "the program's fault, on every rank" and found.verdict.program


def test_of_a_huge_log_the_head_and_the_tail_are_read_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files, "TOTAL_BYTES", 8192)
    monkeypatch.setattr(large_files, "LEAST_BYTES", 1024)
    text = "first\n" + "step\n" * 9000 + KEY
    (path,) = write(tmp_path, log=text)
    (log,) = read_logs([path])
    assert log.text.startswith("first\n") and log.text.endswith(KEY) and len(log.text) <= 8192
    assert log.size == len(text) and log.skipped == len(text) - 8192
    found = analyze_logs([path], Settings())
    assert found.verdict.signature == "py-key" and found.line == path and "were not read" in found.card.log
    early = analyze_logs(write(tmp_path, **{"early": KEY + "step\n" * 9000}), Settings())
    assert early.skipped and early.line.endswith("early:3")


def test_stdin_is_read_to_its_end_within_bounds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(large_files, "TOTAL_BYTES", 8192)
    monkeypatch.setattr(large_files, "LEAST_BYTES", 1024)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"first\n" + b"step\n" * 9000 + KEY.encode())))
    status, out, _ = told(["-"], capsys)
    assert status == 1 and out.startswith("stdin: ") and "were not read" in out and "less" not in out


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "none", Path("/dev/zero"), tmp_path / ("x" * 300), tmp_path / "fifo" / "below"):
        status, out, err = told([str(path)], capsys)
        assert status == 66 and not out and len(err.splitlines()) == 1 and str(path) in err
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogUnreadable):
        read_logs([str(tmp_path / "empty")])
    with pytest.raises(UsageError):
        read_logs(["x"] * 5000)
    assert told([], capsys)[0] == 64


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(256)) * 300 + b"\n\x1b]0;owned\x07RuntimeError: \x1b[31mboom \xe2\x80\xae\n" + b"\0" * 5000)
    _, out, _ = told([str(path)], capsys)
    assert len(out.splitlines()) <= MAX_LINES and all(line.isprintable() for line in out.splitlines())


def test_what_a_progress_bar_overwrites_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"10%\r20%\r100%\r\nx\ry: done\r\n" + KEY.encode())
    (log,) = read_logs([str(tmp_path / "log")])
    assert log.text == "100%\ny: done\n" + KEY


def test_a_site_s_keywords_count(tmp_path: Path) -> None:
    path = write(tmp_path, log=KEY)
    assert analyze_logs(path, settings_with(retry__keywords=("KeyError: 'lr'",))).verdict.retriable == Retriable.YES.value


# --- the examples of ModelArts' page on hangs: a log without an error

HOST = "modelarts-job-a7305e27-worker-"
CHANNELS = (
    f"{HOST}1:1136:1191 [2] NCCL INFO Channel 00 : 3[5f000] -> 10[5b000] [receive] via NET/IB/0/GDRDMA\n"
    f"{HOST}1:1140:1196 [6] NCCL INFO Channel 00 : 14[e1000] -> 15[e9000] via P2P/IPC\n"
    f"{HOST}2:1139:1198 [2] NCCL INFO Channel 00 : 18[5b000] -> 19[5f000] via P2P/IPC\n"
)
EPOCH = "[2022-04-26 13:57:20,757][INFO][train_epoch]:Rank:{} Epoch:[{}][20384/all] Data Time 0.000(0.000) Loss 0.3403(0.3792)\n"
WORKERS = (
    "/v/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max "
    "number of worker in current system is 2\n  warnings.warn(\nEpoch: [3][120/5004]\n"
)
LOADING = (
    "Epoch: [3][120/5004]\nThread 0x00007fc81d5fa6c0 (most recent call first):\n"
    '  File "/v/torch/utils/data/dataloader.py", line 1132 in _try_get_data\n  File "/job/train.py", line 11 in <module>\n'
)


@pytest.mark.parametrize(("text", "name", "advice"), [
    (CHANNELS, "gdr-mixed", "NCCL_NET_GDR_LEVEL=0"),
    (EPOCH.format(2, 48) + EPOCH.format(4, 49), "epochs", "split the data"),
    ("writer = Sumarywriter('./path)/to/log')\n", "remote-writer", "local folder"),
    ("mox.file.copy_parallel('obs://b/data', '/cache/data')\n", "copying", "set_auth(is_secure=False)"),
    ("(bn1): SyncBatchNorm(64, eps=1e-05, momentum=0.1)\nEpoch: [3][120/5004]\n", "sync-batch-norm", "1.10"),
    (WORKERS, "loader", "num_workers"),
    (LOADING, "loader", "num_workers"),
    ("0: loading tokenizer\n1: loading tokenizer\n", "before-first-collective", "master address"),
])  # fmt: skip
def test_a_log_without_an_error_tells_what_may_keep_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, name: str, advice: str
) -> None:
    (path,) = write(tmp_path, log=text)
    status, out, _ = told([path], capsys)
    assert status == 3 and "nothing in it tells of a failure" in out and "if the job hangs: " in out and advice in out
    found = analyze_logs([path], Settings())
    assert [hint.name for hint in found.hang] == [name] and "-1 on ?" not in out
    assert not analyze_logs([path], Settings(), 0).hang, "it has ended well"


def test_error_12_comes_with_all_three_variables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 32478, vendor err 129\n"
    _, out, _ = told(write(tmp_path, log=line), capsys)
    assert all(name in out for name in ("NCCL_IB_GID_INDEX=3", "NCCL_IB_TC=128", "NCCL_IB_TIMEOUT=22"))


def test_a_log_that_tells_of_a_failure_has_no_hint_of_a_hang(tmp_path: Path) -> None:
    assert not analyze_logs(write(tmp_path, log=CHANNELS + KEY), Settings()).hang
    assert not analyze_logs(write(tmp_path, log="step 1\n"), Settings()).hang


# --- folders, compressed logs, the journal

CANCELLED = "step 1\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-28T10:11:12 ***\n"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."


@pytest.mark.parametrize(("why", "title", "again"), [
    ("", "the job or its step was cancelled", "nothing failed: if it was a mistake, submit it again"),
    (" DUE TO TIME LIMIT", "the job reached its time limit", "not as it is: nothing failed, and the time does not suffice"),
    (" DUE TO PREEMPTION", "the job was preempted", "yes: nothing failed"),
])  # fmt: skip
def test_a_log_of_a_job_that_was_ended_says_so(tmp_path: Path, why: str, title: str, again: str) -> None:
    card = analyze_logs(write(tmp_path, **{"7.out": CANCELLED.replace(" ***\n", f"{why} ***\n")}), Settings()).card
    assert (card.title, card.again, card.why) == (f"{tmp_path}/7.out: {title}", again, "")


def test_of_a_folder_of_several_jobs_the_latest_is_read_with_both_streams_and_nothing_that_is_no_text(tmp_path: Path) -> None:
    write(tmp_path, **{"slurm-9.out": ECC, "slurm-10.out": "step 1\n", "slurm-10.err": KEY, "model.pt": "a\0b"})
    assert [(Path(each.path).name, each.rank, each.stream) for each in read_logs([str(tmp_path)])] == [
        ("slurm-10.err", NO_RANK, "err"), ("slurm-10.out", NO_RANK, "out"),
    ]  # fmt: skip
    write(tmp_path / "bad", **{"model.pt": "a\0b"})
    with pytest.raises(LogUnreadable, match="no file in it is text"):
        read_logs([str(tmp_path / "bad")])


def test_a_compressed_log_is_read_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "7.out.gz"
    path.write_bytes(gzip.compress(("step 1\n" + KEY).encode()))
    card = analyze_logs([str(path)], Settings()).card
    assert card.what == "KeyError: 'lr'" and card.next == f"zless +4 {path}"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(LogUnreadable, match="cannot be read"):
        read_logs([str(path)])


@pytest.mark.parametrize("text", [
    f"Nov 28 10:11:12 n1 kernel: {XID}\n",
    f"2026-11-28T10:11:12+0000 n1 kernel: {XID}\n",
    f"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1795869146000000\n_HOSTNAME=n1\nSYSLOG_IDENTIFIER=kernel\nMESSAGE={XID}\n\n",
    f"__CURSOR=s=1\n_HOSTNAME=n1\nSYSLOG_IDENTIFIER=kernel\nMESSAGE\n{chr(len(XID))}{chr(0) * 7}{XID}\n\n",
])  # fmt: skip
def test_the_kernel_is_heard_in_a_journal_and_not_in_the_output_of_a_program(tmp_path: Path, text: str) -> None:
    found = analyze_logs(write(tmp_path, journal=text), Settings())
    assert found.verdict.signature == "xid-line" and "Xid" in found.card.what
    assert found.line.endswith(":1") is not text.startswith("__CURSOR")
    assert analyze_logs(write(tmp_path, out=f"step 1\n{XID}\n"), Settings()).verdict.signature != "xid-line"
