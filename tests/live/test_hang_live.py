"""Jobs that stand still, on a real cluster: noticed without a change of their code, and started again in place."""

from __future__ import annotations

import re
import sys

import pytest

from tests.hang.torch_here import need_torch
from tests.live.stories import BY_DEFAULT, END_TIMEOUT_S, Story, story

pytestmark = pytest.mark.live

QUICKLY = "--ft-set rungs.hang-restart.enabled=true --ft-set hang.sample_time=2s"
SHORT = {"MA_HANG_DETECT_TIME": "0.1"}  # minutes; a rank that has to wait for a core is no hang
STANDS_STILL = '[ "$MA_PROC_START_CNT" = 1 ] || exit 0; exec sleep 100'


@story(nodes=2, tasks=2, rank=STANDS_STILL, ft=QUICKLY, env=SHORT)
def test_a_job_that_stands_still_is_started_again_in_place(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert {start.rung for start in told.of_attempt(2).values()} == {"hang-restart"}
    assert {start.cause for start in told.of_attempt(2).values()} == {"hang"}
    hang, *_ = told.json("history", str(told.id))["attempts"][0]["hangs"]
    assert hang["sign"] == "io" and len(hang["evidence"]) == 2


@story(
    nodes=2,
    rank="""
[ "$MA_PROC_START_CNT" = 1 ] || exit 0
[ $SLURM_PROCID = 0 ] && for i in $(seq 60); do head -c 100000 /dev/zero; sleep 0.2; done >/dev/null
[ $SLURM_PROCID = 0 ] && exit 0
exec sleep 10
""",
    ft=QUICKLY,
    env=SHORT,
)
def test_io_of_one_rank_on_one_node_is_life_of_the_job(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]


@story(rank="exec sleep 100", ft=QUICKLY, env=SHORT)
def test_the_fourth_hang_in_a_row_fails_the_job(told: Story) -> None:
    told.ended("FAILED")
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (1, 3, 3), (1, 4, 4)]
    assert "3 hang restarts in a row" in told.output()


@story(rank="[ $MA_SCHEDULE_CNT = 1 ] && exec sleep 40; exit 1", ft="--ft-set hang.sample_time=2s", env=SHORT)
def test_where_it_is_switched_off_a_hang_is_shown_and_left_alone(told: Story) -> None:
    told.wait_for(lambda: "seems to hang" in told.output(), "the hang to be said")
    assert told.json("history", str(told.id))["attempts"][0]["hangs"]
    assert told.json("status", str(told.id))["card"]["title"] in told.output(), "the same words in both"
    assert told.ended("COMPLETED")["Restarts"] == "0"


@story(
    tasks=2,
    rank='[ "$MA_PROC_START_CNT" = 1 ] || exit 0; [ $SLURM_PROCID = 0 ] && exit 0; exec sleep 100',
    ft="--ft-set rungs.hang-restart.enabled=true --ft-set hang.exit_detection=true --ft-set hang.exit_interval=6s",
)
def test_a_rank_that_does_not_end_after_the_others_is_a_hang(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]


@story(
    tasks=2,
    rank='echo begins; [ "$MA_PROC_START_CNT" = 1 ] || exit 0; while :; do head -c 100000 /dev/zero >/dev/null; sleep 0.2; done',
    ft="--ft-set rungs.hang-restart.enabled=true --ft-set hang.log_silence=true --ft-set hang.interval=6s",
)
def test_silence_of_all_ranks_is_a_hang_where_it_is_asked_for(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert told.json("history", str(told.id))["attempts"][0]["hangs"][0]["sign"] == "silence"


@story(
    tasks=2,
    rank="for i in $(seq 24); do [ $SLURM_PROCID = 1 ] && echo step $i; sleep 0.5; done",
    ft="--ft-set rungs.hang-restart.enabled=true --ft-set hang.log_silence=true --ft-set hang.interval=6s",
)
def test_one_rank_that_speaks_is_enough(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]


NVRX = """
import os, time
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
for step in range(20):
    client.send_heartbeat()
    time.sleep(0.1)
    if os.environ["MA_PROC_START_CNT"] == "1" and os.environ["SLURM_PROCID"] == "1" and step == 5:
        time.sleep(100)
client.shutdown_workload_monitoring()
"""


@story(
    nodes=2,
    rank='exec /usr/bin/python3 "$STORY/train.py"',
    files={"train.py": NVRX},
    ft="--ft-set rungs.hang-restart.enabled=true --ft-param-rank_heartbeat_timeout=5 --ft-initial-rank-heartbeat-timeout=30",
)
def test_a_program_for_nvrx_runs_unchanged_and_its_missing_heartbeat_is_a_hang(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    hang, *_ = told.json("history", str(told.id))["attempts"][0]["hangs"]
    assert hang["sign"] == "beat" and "rank 1" in hang["what"]


@story(
    rank='exec /usr/bin/python3 "$STORY/train.py"',
    files={
        "train.py": NVRX.replace("100)", "4)"),
        "ft.yaml": """
fault_tolerance:
  initial_rank_heartbeat_timeout: 30
  rank_heartbeat_timeout: 60
""",
    },
    ft='--fault-tol-cfg-path "$STORY/ft.yaml" --ft-restart-policy any-failed',
)
def test_ft_launcher_s_file_is_understood(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]


TRAIN = """
import os, signal, threading, time

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
rank, first = int(os.environ["RANK"]), os.environ["MA_PROC_START_CNT"] == "1"


def end() -> None:
    signal.sigwait({signal.SIGTERM})
    with open(os.environ["STORY"] + f"/asked.{rank}", "w"):
        os._exit(0)


threading.Thread(target=end, daemon=True).start()
while not os.path.exists(os.environ["STORY"] + "/watched"):
    time.sleep(0.1)
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(80):
    if first and rank == 1 and step == 60:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(64))
    time.sleep(0.05)
"""


@story(
    nodes=2,
    rank=f'exec {sys.executable} "$STORY/train.py"',
    files={"train.py": TRAIN},
    ft="--ft-rendezvous torch --ft-set hang.stall=40s --ft-set hang.c4d_timeout=4s",
    env=BY_DEFAULT,
    early=True,
    sbatch=("--time=30",),
)
def test_unasked_a_hang_that_is_certain_is_shown_at_once_and_answered_at_its_limit(told: Story) -> None:
    need_torch()
    stuck = "stuck? rank 1 on n2 (stopped by a signal outside communication)"
    told.allow("watched")
    told.wait_started()
    told.wait_for(lambda: (told.json("status", str(told.id))["stuck"] or {}).get("what") == stuck, "the rank to be named")
    assert stuck in told.ftslurm("status", str(told.id)) and " s of 40 s" in told.ftslurm("status", str(told.id))
    assert stuck in told.ftslurm("status")
    told.wait_for(lambda: stuck in told.job()["Comment"], "squeue to show it")
    row = " stuck? "
    told.wait_for(lambda: row in told.ftslurm("watch", str(told.id), "--once"), "its row to show it")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert {start.rung for start in told.of_attempt(2).values()} == {"hang-restart"}
    assert (told.folder / "asked.0").exists(), "SIGTERM and the grace come first"
    (kept,) = told.folder.glob("state/jobs/*.evidence/attempt-1.n1.txt")
    assert "rank 0:" in kept.read_text() and "train.py" in kept.read_text()
    hang = told.json("history", str(told.id))["attempts"][0]["hangs"][-1]
    assert (hang["ranks"], hang["nodes"], hang.get("hang_class", hang["sign"])) == ([1], ["n2"], "RankNonCommHang")


@story(rank='[ "$MA_PROC_START_CNT" = 1 ] || exit 0; exec sleep 100', ft="--ft-set hang.sample_time=2s", env=SHORT)
def test_the_command_that_the_card_of_an_unanswered_hang_names_restarts_the_ranks_in_place(told: Story) -> None:
    """A user's walk: one command to the cause (`status`), one to the cure, which stands there."""
    told.wait_for(lambda: "seems to hang" in told.output(), "the card", END_TIMEOUT_S)
    cause = told.ftslurm("status", str(told.id))
    assert "hanging" in cause and "no rank is named from within" in cause
    (cure,) = re.findall(r"`ftslurm (control \d+ restart)`", cause)
    told.ftslurm(*cure.split())
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
