"""A node is to blame, and the job has no more nodes that fit than it needs: what only Slurm knows of that, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.live.conftest import Cluster, booted, job_user, new_stage
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


def told(place: Stage, name: str, *directives: str) -> Story:
    """A job of which the script alone says what it wants."""
    head, _, rest = PLAN.script_text().partition("\n")
    script = "\n".join([head, *(f"#SBATCH {directive}" for directive in directives), rest])
    story = place.prepare(replace(PLAN, files={"script.sh": script}), name)
    options = ["--ntasks-per-node=1", "--time=5", "--open-mode=append", f"--output={story.folder}/output"]
    story.id = place.cluster.submit(story.folder / "script.sh", *options, cwd=story.folder, env=story.env)
    return story


@pytest.mark.parametrize("option", ["--constraint=fast", "--reservation=ours"])
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
