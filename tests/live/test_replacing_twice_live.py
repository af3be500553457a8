"""What comes after a node was replaced: a requeue of a job that gave a dead node back, and further ftruns of its script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import Cluster, booted, new_stage
from tests.live.stories import Stage, nodes_in
from tests.live.test_replacing_live import (
    QUICK_LOSS,
    breaks,
    counters,
    decided,
    finish,
    node_of,
    plan,
    told_with_spares,
    wait_beats,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """Nodes die here, and Slurm notices within seconds."""
    with booted(nodes=7, conf=["SlurmdTimeout=10"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place(own: Cluster, job_path: tuple[Path, ...]) -> Iterator[Stage]:
    with new_stage(own, job_path) as stage:
        yield stage


def test_a_job_that_gave_a_node_back_is_requeued_as_large_as_it_was(place: Stage) -> None:
    told = told_with_spares(place, 1, "dies-then-requeued", nodes=2, ft=QUICK_LOSS + " --ft-set nodes.donor=false")
    wait_beats(told, 1, 4)
    dead = node_of(told, 1, 2)
    told.cluster.tool("node-crash", dead)
    try:
        wait_beats(told, 2, 4, 90.0)
        told.wait_for(lambda: dead not in nodes_in(told.cluster, told.job()["NodeList"]), "the dead node to be given back")
        bad = node_of(told, 2, 0)
        breaks(told, bad)
        wait_beats(told, 3, 4, 150.0)
        assert not {dead, bad} & {start.node for start in told.of_attempt(3).values()}
        assert counters(told, 3) == {0: (2, 1, 3), 1: (2, 1, 3), 2: (3, 1, 3), 3: (3, 1, 3)}
        assert decided(told) == ["isolated-requeue", "node-replacement"], told.output()
        finish(told, restarts="1")
    finally:
        told.cluster.tool("node-up", dead)


def test_the_next_ftrun_of_a_script_that_lost_a_node_is_as_large(place: Stage) -> None:
    script = '\nftrun --ft-spares 1 %s sh "$STORY/rank.sh" || exit 9\nftrun --ft-spares 1 sh "$STORY/again.sh"\n'
    told = place.prepare(plan("", 2, 2, script=script % QUICK_LOSS), "two-runs-dies")
    line = 'echo "$SLURM_PROCID $SLURM_NTASKS $SLURM_NNODES $SLURMD_NODENAME $MA_SCHEDULE_CNT $MA_PROC_START_CNT" >>"$STORY/second"\n'
    (told.folder / "again.sh").write_text(line)
    argv = ["--nodes=3", "--ntasks-per-node=2", "--time=5", "--no-kill", f"--output={told.folder}/output"]
    told.id = place.cluster.submit(told.folder / "script.sh", *argv, cwd=told.folder, env=told.env)
    wait_beats(told, 1, 4)
    dead = node_of(told, 1, 0)
    batch = told.job()["BatchHost"]
    dead = node_of(told, 1, 2) if dead == batch else dead
    told.cluster.tool("node-crash", dead)
    try:
        wait_beats(told, 2, 4, 90.0)
        finish(told)
        second = sorted(line.split() for line in (told.folder / "second").read_text().splitlines())
        expected = [
            [str(rank), "4", "2", node_of(told, 2, rank), "2" if rank in (2, 3) else "1", "1"] for rank in range(4)
        ]
        assert second == expected, told.output()
    finally:
        told.cluster.tool("node-up", dead)
