"""A node is to blame: which other nodes fit, or are near. What only Slurm knows of that, on a real cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.conftest import Cluster, booted, job_user, new_stage
from tests.live.releases import slurm_version
from tests.live.stories import Plan, Stage, Story, admin

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

# A critical fault on the first node of the first scheduling: without it, if that can be.
BROKEN = """
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 0 ] || exec sleep 30
fault 0.0 80E18402
exit 9
"""
NO_SWAP = "--ft-set rungs.node-replacement.enabled=false"


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """n1 and n2 are fast, and the partition small; n3 to n6 are the partition big; n5 and n6 are reserved."""
    with booted(nodes=6, conf=["NodeName=DEFAULT Feature=slow"], options=["--cpus=2", "--gpus=0"]) as cluster:
        for words in (
            "update NodeName=n[1-2] AvailableFeatures=fast ActiveFeatures=fast",
            "create PartitionName=small Nodes=n[1-2] MaxTime=60",
            "create PartitionName=big Nodes=n[3-6] MaxTime=60",
            f"create reservation ReservationName=ours Nodes=n[5-6] Users={job_user()} StartTime=now Duration=60",
        ):
            cluster.answer(["scontrol", *words.split()], user=admin())
        yield cluster


@pytest.fixture(scope="module")
def place(own: Cluster, job_path: tuple[str, ...]) -> Iterator[Stage]:
    with new_stage(own, job_path) as stage:  # type: ignore[arg-type]
        yield stage


PLAN = Plan(nodes=2, rank=BROKEN, ft=NO_SWAP)


def told(place: Stage, name: str, *directives: str, plan: Plan = PLAN) -> Story:
    """A job of which the script alone says what it wants."""
    head, _, rest = plan.script_text().partition("\n")
    script = "\n".join([head, *(f"#SBATCH {directive}" for directive in directives), rest])
    story = place.prepare(replace(plan, files={"script.sh": script}), name)
    options = ["--ntasks-per-node=1", "--time=5", "--open-mode=append", f"--output={story.folder}/output"]
    story.id = place.cluster.submit(story.folder / "script.sh", *options, cwd=story.folder, env=story.env)
    return story


@pytest.mark.parametrize("option", ["--constraint=fast", pytest.param("--reservation=ours", marks=pytest.mark.long)])
def test_a_job_without_other_nodes_that_fit_fails_and_does_not_wait_for_ever(place: Stage, option: str) -> None:
    story = told(place, option[2:].replace("=", "-"), "--nodes=2", option)
    job = story.ended("FAILED")
    assert job["Restarts"] == "0"
    bad = next(start.node for start in story.starts() if start.rank == 0)
    assert f"if {bad} is excluded" in story.output()


def test_another_partition_of_the_list_is_enough(place: Stage) -> None:
    story = told(place, "two", "-N2 -p small,big")
    job = story.ended("COMPLETED")
    assert (job["Restarts"], job["Partition"]) == ("1", "big")


def test_fewer_nodes_of_the_range_are_enough(place: Stage) -> None:
    story = told(place, "range", "--nodes=1-2", "--partition=big")  # n5 and n6 are not for it
    job = story.ended("COMPLETED")
    assert (job["Restarts"], job["NodeList"], job["ExcNodeList"]) == ("1", "n4", "n3")


SWITCHES = """SwitchName=s1 Nodes=n[1-2,5]
SwitchName=s2 Nodes=n[3-4]
SwitchName=top Switches=s[1-2]
"""
BLOCKS = """BlockName=b1 Nodes=n[1-2,5-6]
BlockName=b2 Nodes=n[3-4,7-8]
BlockSizes=4,8
"""
# The first rank's node breaks in the first attempt, once it may.
BREAKS = """
[ $FTSLURM_ATTEMPT = 1 ] || exit 0
[ $SLURM_PROCID = 0 ] || exec sleep 60
until [ -e "$STORY/go" ]; do sleep 0.3; done
fault 0.0 80E18402
exit 9
"""
SWAPPED = Plan(nodes=2, rank=BREAKS, ft="--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=1")


@contextmanager
def placed(plugin: str, topology: str, nodes: int, job_path: tuple[str, ...], folder: Path) -> Iterator[Stage]:
    (folder / "topology.conf").write_text(topology)
    options = ["--cpus=2", "--gpus=0", f"--file={folder}/topology.conf"]
    with booted(nodes, [f"TopologyPlugin=topology/{plugin}"], options) as cluster, new_stage(cluster, job_path) as stage:  # type: ignore[arg-type]
        yield stage


def busy(stage: Stage, nodes: str) -> int:
    job = stage.cluster.submit("#!/bin/sh\nsleep 600\n", f"--nodelist={nodes}", "--exclusive", "--output=/dev/null", cwd="/")
    stage.cluster.wait_for(lambda: stage.cluster.job(job)["JobState"] == "RUNNING", 30.0, f"{nodes} to be busy")
    return job


def break_once_free(stage: Stage, story: Story, blocker: int) -> None:
    story.wait_for(lambda: len(story.starts()) == 2, "the ranks to start")
    stage.cluster.answer(["scancel", str(blocker)])
    stage.cluster.wait_for(lambda: stage.cluster.node("n4")["State"] == "IDLE", 30.0, "n4 to be idle")
    (story.folder / "go").touch()


def last_nodes(story: Story) -> list[str]:
    return sorted({start.rank: start.node for start in story.starts()}.values())


@pytest.mark.parametrize(
    ("spares", "before"), [pytest.param(2, "n4", id="spare", marks=pytest.mark.long), pytest.param(0, "n[3-5]", id="donor")]
)
def test_a_node_below_the_same_switch_takes_the_place(
    job_path: tuple[str, ...], tmp_path: Path, spares: int, before: str
) -> None:
    """n3 would be the next one by name."""
    with placed("tree", SWITCHES, 5, job_path, tmp_path) as stage:
        blocker = busy(stage, before)
        story = told(stage, "near", f"--nodes={2 + spares}", plan=replace(SWAPPED, ft=f"{SWAPPED.ft} --ft-spares {spares}"))
        break_once_free(stage, story, blocker)
        assert story.ended("COMPLETED")["Restarts"] == "0"
        assert last_nodes(story) == ["n2", "n5"], story.output()


@pytest.mark.slurms
@pytest.mark.skipif(slurm_version() < (23, 11), reason="blocks are there from Slurm 23.11 on")
def test_a_node_is_borrowed_from_the_same_block(job_path: tuple[str, ...], tmp_path: Path) -> None:
    with placed("block", BLOCKS, 8, job_path, tmp_path) as stage:
        blocker = busy(stage, "n[3-8]")
        story = told(stage, "block", "--nodes=2 --segment=2", plan=SWAPPED)
        break_once_free(stage, story, blocker)
        assert story.ended("COMPLETED")["Restarts"] == "0"
        assert last_nodes(story) == ["n2", "n5"], story.output()


@pytest.mark.slurms
@pytest.mark.skipif(slurm_version() < (23, 11), reason="blocks are there from Slurm 23.11 on")
def test_no_node_of_another_block_is_taken(job_path: tuple[str, ...], tmp_path: Path) -> None:
    with placed("block", BLOCKS, 8, job_path, tmp_path) as stage:
        busy(stage, "n[5-6]")
        blocker = busy(stage, "n[3-4,7-8]")
        story = told(stage, "other-block", "--nodes=2 --segment=2", plan=SWAPPED)
        break_once_free(stage, story, blocker)
        assert story.ended("COMPLETED")["Restarts"] == "1"
        assert re.search(r"Slurm would not place n[3478] beside n2", story.output()), story.output()
