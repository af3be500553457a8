"""Real torch jobs on a real cluster whose ranks stop getting on: who hangs is named, and what follows is right."""

from __future__ import annotations

import pytest

from tests.live.stories import Story, story

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]  # importing torch takes its time

# DistributedDataParallel over gloo. What happens at step AT: `late` is one rank's sleep, `pause` a rank's work.
TRAIN = """
import datetime, os, time

for name, of in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID")):
    os.environ.setdefault(name, os.environ[of])
import torch
import torch.distributed as dist

torch.set_num_threads(1)
store = f"file://{os.environ['STORY']}/store.{os.environ['FTSLURM_ATTEMPT']}"
dist.init_process_group("gloo", store, datetime.timedelta(minutes=30), int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
begun = time.monotonic()
step = 0
happened = os.environ["MA_PROC_START_CNT"] != "1"
ends = torch.zeros(1)
while not ends:
    model(torch.randn(32, 64)).sum().backward()
    time.sleep(0.02)
    step += 1
    if not happened and time.monotonic() - begun > 15:
        happened = True
        what = os.environ["WHAT"]
        if what == "late" and dist.get_rank() == 1:
            time.sleep(1000)
        if what == "pause" and dist.get_rank() == 0:
            until = time.monotonic() + 20
            with open(f"{os.environ['STORY']}/checkpoint", "wb") as file:
                while time.monotonic() < until:
                    file.write(os.urandom(1 << 20))
                    file.seek(0)
                    time.sleep(0.1)  # as a disk would have it wait
        begun = time.monotonic()
    ends = torch.tensor([float(happened and time.monotonic() - begun > 5)])
    dist.all_reduce(ends)
dist.destroy_process_group()
"""
RUN = 'exec "$(dirname "$(command -v ftrun)")/python" -W ignore "$STORY/train.py"'
# A stall is told after 1 s, so the usual interval is known after 6 s of steps; a quiet one is a hang after 8 s.
QUICK = "--ft-set rungs.hang-restart.enabled=true --ft-set hang.c4d_timeout=1s --ft-set hang.stall=8s"


@story(nodes=2, rank=RUN, ft=QUICK, files={"train.py": TRAIN}, env={"WHAT": "late"})
def test_a_rank_that_all_wait_for_is_named_and_the_job_started_again_in_place(told: Story) -> None:
    assert told.ended("COMPLETED", timeout_s=240.0)["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    late = told.of_attempt(1)[1]
    hangs = told.json("history", str(told.id))["attempts"][0]["hangs"]
    assert "stall" in [hang["sign"] for hang in hangs]
    named = [hang for hang in hangs if hang["sign"] == "RankNonCommHang"]
    assert named and (named[-1]["ranks"], named[-1]["nodes"]) == ([1], [late.node]) and "all_reduce" in named[-1]["operation"]
    assert "RankNonCommHang: rank 1" in told.output()


@story(nodes=2, rank=RUN, ft=QUICK, files={"train.py": TRAIN}, env={"WHAT": "pause"})
def test_a_checkpoint_of_one_rank_is_no_hang(told: Story) -> None:
    """20 s, where a quiet stall would have been answered after 8."""
    assert told.ended("COMPLETED", timeout_s=240.0)["Restarts"] == "0"
    hangs = told.json("history", str(told.id))["attempts"][0]["hangs"]
    assert told.counters() == [(1, 1, 1)], hangs
    assert "stall" not in [hang["sign"] for hang in hangs]
