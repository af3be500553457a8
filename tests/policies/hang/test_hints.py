"""The common cases of ModelArts, hang detection: each recognised where its evidence is there, and only there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.config.catalog_files import load_hang_hints
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Piece, RankEnd
from ftslurm.policies.hang import hints as rules
from ftslurm.policies.hang.hints import Hint

GDR = "n1:1136:1191 [2] NCCL INFO Channel 00 : 3[5f000] -> 10[5b000] [receive] via NET/IB/0/GDRDMA\n"
PLAIN = "n2:1139:1198 [2] NCCL INFO Channel 00 : 18[5b000] -> 19[5f000] [send] via NET/IB/0\n"
P2P = "n2:1139:1198 [2] NCCL INFO Channel 00 : 18[5b000] -> 19[5f000] via P2P/IPC\n"

KNOWN = load_hang_hints()


def hints(printed: Sequence[RankEnd], stacks: Mapping[str, str]) -> tuple[Hint, ...]:
    return rules.hints(printed, stacks, KNOWN)


def ends(*texts: str) -> tuple[RankEnd, ...]:
    return tuple(
        RankEnd(rank, f"n{rank + 1}", ExitStatus(0, 15), 1.0, stopped=True, output=(Piece(0.5, "out", text),))
        for rank, text in enumerate(texts)
    )


def names(*texts: str, **stacks: str) -> list[str]:
    return [hint.name for hint in hints(ends(*texts), stacks)]


def test_gpu_direct_on_some_nodes_only() -> None:
    (hint,) = hints(ends(GDR + "step 1\n", PLAIN), {})
    assert hint.name == "gdr-mixed" and "NCCL_NET_GDR_LEVEL=0" in hint.advice
    assert hint.evidence == ("with: n1", "without: n2")
    assert names(GDR, GDR) == [] and names(PLAIN, PLAIN) == []
    assert names(GDR, P2P) == ["gdr-mixed"], "as in ModelArts' own example"
    assert names(GDR, "step 1\n") == [], "nothing is known of the other node's channels"


def test_rdma_retries_used_up() -> None:
    line = "NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 32478, vendor err 129\n"
    (hint,) = hints(ends(line, "NCCL INFO fine\n"), {})
    assert hint.name == "ib-retries" and "NCCL_IB_TIMEOUT=22" in hint.advice and "rank 0 on n1" in hint.evidence[0]
    assert names("NCCL WARN NET/IB : Got completion with error 5\n") == []


def test_hccl_names_the_place_from_any_rank() -> None:
    line = (
        "[ERROR] HCCL(123,python): Cluster Exception Location[IP/ID]:[10.0.0.7/3], Arrival Time:[Mon], "
        "Discoverer:[10.0.0.1/0], ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. process has exited\n"
    )
    (hint,) = hints(ends("step 7\n", line), {})
    assert hint.name == "hccl-place" and "Heartbeat Lost Occurred at 10.0.0.7/3" in hint.what and "rank 1" in hint.evidence[0]
    assert names("Cluster Exception Location[IP/ID]:[10.0.0.7/3]\nExceptionType:[Stuck] step 7\n") == []


def test_ranks_in_different_epochs() -> None:
    sample = "[2022-04-26 13:57:20,757][INFO][train_epoch]:Rank:2 Epoch:[{}][20384/all] Data Time 0.000 Loss 0.3403\n"
    assert names(sample.format(47) + sample.format(48), sample.format(49)) == ["epochs"]
    assert names(sample.format(48), sample.format(48)) == []


def test_still_before_the_first_collective() -> None:
    assert names("loading tokenizer\n", "loading tokenizer\n") == ["before-first-collective"]
    assert names("loading tokenizer\n", "NCCL INFO Bootstrap\n") == [] and names("", "") == []


def test_stacks_tell_of_loaders_writers_copies_and_rendezvous() -> None:
    text = 'Thread 77 (idle): "MainThread"\n    {}\n    main (train.py:3)\n'
    assert names("step 1\n", n1=text.format("_try_get_data (torch/utils/data/dataloader.py:1132)")) == ["loader"]
    assert names("step 1\n", n1=text.format("_run (tensorboard/summary/writer/event_file_writer.py:244)")) == ["remote-writer"]
    assert names("step 1\n", n1=text.format("copy_parallel (moxing/framework/file/file_io.py:9)")) == ["copying"]
    assert names("step 1\n", n1=text.format("init_process_group (torch/distributed/distributed_c10d.py:1)")) == ["rendezvous"]
    assert names("step 1\n", n1=text.format("all_reduce (torch/distributed/distributed_c10d.py:1)")) == []


def test_what_a_trace_quotes_is_no_hint_and_no_escape_gets_through() -> None:
    quoted = (
        'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n'
        '    raise X("Got completion with error 12, epoch 7")\nX: no\n'
    )
    assert names(quoted, "epoch 8\n") == []
    (hint,) = hints(ends("\x1b[31mNCCL WARN Got completion with error 12\x1b]0;x\x07\n"), {})
    assert hint.evidence == ("rank 0 on n1: NCCL WARN Got completion with error 12?]0;x?",)


# --- the examples of ModelArts' page, as they stand there

NODE_A = """\
modelarts-job-a7305e27-d1cf-4c71-ae6e-a12da6761d5a-worker-1:1136:1191 [2] NCCL INFO Channel 00 : 3[5f000] -> 10[5b000] [receive] via NET/IB/0/GDRDMA
modelarts-job-a7305e27-d1cf-4c71-ae6e-a12da6761d5a-worker-1:1140:1196 [6] NCCL INFO Channel 00 : 14[e1000] -> 15[e9000] via P2P/IPC
modelarts-job-a7305e27-d1cf-4c71-ae6e-a12da6761d5a-worker-1:1137:1197 [3] NCCL INFO Channel 00 : 11[5f000] -> 16[2d000] [send] via NET/IB/0/GDRDMA
"""
NODE_B = """\
modelarts-job-a7305e27-d1cf-4c71-ae6e-a12da6761d5a-worker-2:1139:1198 [2] NCCL INFO Channel 00 : 18[5b000] -> 19[5f000] via P2P/IPC
modelarts-job-a7305e27-d1cf-4c71-ae6e-a12da6761d5a-worker-2:1144:1200 [7] NCCL INFO Channel 00 : 23[e9000] -> 20[b5000] via P2P/IPC
"""
LAST_EPOCH = """\
loss exit lane:0.12314446270465851
step loss is 0.29470521211624146
[2022-04-26 13:57:20,757][INFO][train_epoch]:Rank:2 Epoch:[48][20384/all] Data Time 0.000(0.000) Net Time 0.705(0.890) Loss 0.3403(0.3792)LR 0.00021887
[2022-04-26 13:57:20,757][INFO][train_epoch]:Rank:4 Epoch:[49][20384/all] Data Time 0.000(0.147) Net Time 0.705(0.709) Loss 0.3364(0.3414)LR 0.00021887
"""
TRACEBACK = """\
Thread 0x00007fc81d5fa6c0 (most recent call first):
  File "/usr/lib/python3.11/{idle}
Current thread 0x00007fc840372040 (most recent call first):
  File "{file}", line 10 in {function}
  File "/job/train.py", line 11 in <module>
"""
POOL = 'queue.py", line 171 in get\n  File "/v/lib/moxing/framework/file/file_io.py", line 9 in _worker'


def test_each_example_of_the_page_gets_its_hint() -> None:
    assert names(NODE_A, NODE_B) == ["gdr-mixed"]
    assert names("NCCL WARN Got completion with error 12, opcode 1, len 32478, vendor err 129\n", "step 3\n") == ["ib-retries"]
    assert names(LAST_EPOCH) == ["epochs"], "ranks of one launcher, below one task"
    assert names("writer = Sumarywriter('./path)/to/log')\n", "step 3\n") == ["remote-writer"]
    assert names("epoch 3\n", "epoch 3\nValueError: bad sample 7\n") == ["error-and-running"]
    assert names("epoch 3\n", "epoch 3\n[2022-04-26][ERROR] cannot read sample 7\n") == ["error-and-running"]
    assert names("mox.file.copy_parallel('obs://b/data', '/cache/data')\n", "") == ["copying"]


def test_a_path_with_tensorboard_in_it_is_no_hint() -> None:
    assert names("step 1: logging to /data/tensorboard/run1\n", "step 1\n") == []
    trace = (
        'Traceback (most recent call last):\n  File "/v/torch/utils/tensorboard/writer.py", line 9, in flush\nOSError: stale\n'
    )
    assert "remote-writer" in names("step 1\n", trace)


def test_an_error_that_every_rank_printed_is_not_one_that_the_others_wait_for() -> None:
    assert names(*["epoch 3\nValueError: bad\n"] * 2) == []


def test_what_a_rank_copied_long_ago_is_not_what_it_is_at() -> None:
    assert names("mox.file.copy_parallel(a, b)\n" + "step 7 loss 0.3\n" * 200, "step 7\n") == []


def test_threads_are_told_apart_without_py_spy_too() -> None:
    """As faulthandler tells them: torch's worker server is asked where py-spy is missing."""
    for file, function, name in (
        ("/v/torch/utils/data/dataloader.py", "_try_get_data", "loader"),
        ("/v/tensorboard/summary/writer/event_file_writer.py", "add_event", "remote-writer"),
        ("/v/torch/utils/tensorboard/writer.py", "flush", "remote-writer"),
        ("/v/moxing/framework/file/file_io.py", "copy_parallel", "copying"),
        ("/usr/lib/python3.11/shutil.py", "copyfileobj", "copying"),
        ("/v/torch/nn/modules/_functions.py", "forward", "sync-batch-norm"),
        ("/v/torch/distributed/distributed_c10d.py", "init_process_group", "rendezvous"),
    ):
        stack = TRACEBACK.format(idle=POOL, file=file, function=function)
        assert names("step 1\n", n1=stack) == [name]


def test_a_thread_that_waits_for_work_holds_nobody_up() -> None:
    busy = {"file": "/job/train.py", "function": "main"}
    assert names("step 1\n", n1=TRACEBACK.format(idle=POOL, **busy)) == []
    writer = 'queue.py", line 171 in get\n  File "/v/tensorboard/summary/writer/event_file_writer.py", line 244 in run'
    assert names("step 1\n", n1=TRACEBACK.format(idle=writer, **busy)) == []
    pin = 'x.py", line 1 in poll\n  File "/v/torch/utils/data/_utils/pin_memory.py", line 28 in do_one_step'
    assert names("step 1\n", n1=TRACEBACK.format(idle=pin, **busy)) == []
