"""The default answer to a crash that no fact explains, on a real cluster that has idle nodes: here again, elsewhere, a judgement.

What only a cluster shows: that Slurm starts the experiment on another node at once, and keeps it off the first one.
"""

from __future__ import annotations

import pytest

from tests.live.stories import BY_DEFAULT, END_TIMEOUT_S, Story, story

pytestmark = pytest.mark.live

# Fails on the node on which that rank began, whatever it prints.
FAILS_THERE = """
together
[ $SLURM_PROCID = 0 ] || exec sleep 2
[ -e "$STORY/bad" ] || echo "$SLURMD_NODENAME" >"$STORY/bad"
[ "$SLURMD_NODENAME" = "$(cat "$STORY/bad")" ] || exit 0
"""


@pytest.mark.slurms
@story(rank="exit 41", env=BY_DEFAULT)
def test_a_program_that_fails_here_again_and_elsewhere_fails_with_its_own_status(told: Story) -> None:
    job = told.ended("FAILED", 2 * END_TIMEOUT_S)
    assert (job["Restarts"], job["ExitCode"]) == ("1", "41:0")
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (2, 1, 3)]
    first, again, elsewhere = [start.node for start in told.starts()]
    assert first == again != elsewhere
    assert told.output().count("the fault is in the program, not in a node") == 1


@pytest.mark.slurms
@story(script="exec %RUN%", rank=FAILS_THERE + "exit 1", env=BY_DEFAULT)
def test_a_node_on_which_it_failed_twice_and_without_which_it_runs_well_is_excluded(told: Story) -> None:
    excluded_one(told)


@story(nodes=2, rank=FAILS_THERE + "cat /scratch/that/is/not/mounted", env=BY_DEFAULT, ft="--ft-restart-via step")
def test_so_is_one_of_two_whatever_it_prints_and_however_it_is_restarted(told: Story) -> None:
    excluded_one(told)


def excluded_one(told: Story) -> None:
    job = told.ended("COMPLETED", 2 * END_TIMEOUT_S)
    bad = (told.folder / "bad").read_text().strip()
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", bad), told.describe()
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (2, 1, 3)]
    assert f"{bad} is excluded from this job: failed there twice (exit 1), ran elsewhere" in told.output()
    assert bad not in {start.node for start in told.of_attempt(3).values()}
    assert f"an experiment without {bad}, where it failed twice" in told.ftslurm("explain", str(told.id))


SAVE = """
import os, sys, time
from ftslurm.sdk import client
story, seconds = os.environ["STORY"], float(sys.argv[1])
with client.section("checkpointing"):
    open(f"{story}/saving.{seconds:g}", "w").close()
    time.sleep(seconds)
    open(f"{story}/saved.{seconds:g}", "w").close()
time.sleep(600)
"""


@story(
    nodes=2,
    tasks=2,
    ft="--ft-set stop.grace=8s",
    env=BY_DEFAULT,
    files={"save.py": SAVE},
    rank="""
[ $MA_PROC_START_CNT = 1 ] || exit 0
python=$(head -n1 "$(command -v ftslurm)" | cut -c3-)
case $SLURM_PROCID in
    0) exec "$python" "$STORY/save.py" 3;;
    2) exec "$python" "$STORY/save.py" 300;;
    3) await saving.3; await saving.300; exit 1;;
esac
exec sleep 600
""",
)
def test_a_checkpoint_is_written_to_its_end_before_the_others_are_stopped(told: Story) -> None:
    """Of two that save while another rank fails, one on each node: one has the time for it."""
    job = told.ended("COMPLETED")
    assert job["Restarts"] == "0" and [counters[1] for counters in told.counters()] == [1, 2]
    assert (told.folder / "saved.3").exists() and not (told.folder / "saved.300").exists()
    whole, cut = (f"rank {rank} was saving when it was to stop: the checkpoint was {how}" for rank, how in
                  ((0, "written whole"), (2, "cut off")))  # fmt: skip
    for command in (("history",), ("explain", "--decision", "1")):
        words = " ".join(told.ftslurm(*command[:1], str(told.id), *command[1:]).split())
        assert whole in words and cut in words, words
    assert "the checkpoint was written whole" in " ".join(told.output().split()), "the card"
