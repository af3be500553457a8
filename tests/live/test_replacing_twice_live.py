"""What comes after a node was replaced: a requeue of a job that gave a dead node back, and further ftruns of its script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.conftest import Cluster, booted, new_stage
from tests.live.overlap import beats, overlaps
from tests.live.stories import Stage, Story, kill, nodes_in
from tests.live.test_replacing_live import (
    QUICK_LOSS,
    breaks,
    counters,
    decided,
    environ,
    finish,
    node_of,
    plan,
    slurm_notices,
    told_with_spares,
    wait_beats,
)

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """Nodes die here."""
    with booted(nodes=7) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place(own: Cluster, job_path: tuple[Path, ...]) -> Iterator[Stage]:
    with new_stage(own, job_path) as stage:
        yield stage


@pytest.mark.long
def test_a_job_that_gave_a_node_back_is_requeued_as_large_as_it_was(place: Stage) -> None:
    told = told_with_spares(
        place, 1, "dies-then-requeued", nodes=2, ft=QUICK_LOSS + " --ft-set nodes.donor=false --ft-set slurm.timeout=10s"
    )
    wait_beats(told, 1, 4)
    dead = node_of(told, 1, 2)
    told.cluster.tool("node-crash", dead)
    try:
        wait_beats(told, 2, 4, 90.0)
        told.wait_for(lambda: dead not in nodes_in(told.cluster, told.job()["NodeList"]), "the dead node to be given back")
        slurm_notices(told.cluster, dead)
        bad = node_of(told, 2, 0)
        breaks(told, bad)
        # Where there is no slurmdbd the job waits for Slurm's own delay of two minutes, unless asked afterwards.
        told.wait_for(lambda: told.hurry() or len(told.of_attempt(3)) == 4, "the job to run again", 220.0)
        wait_beats(told, 3, 4)
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
        slurm_notices(told.cluster, dead)
        finish(told)
        second = sorted(line.split() for line in (told.folder / "second").read_text().splitlines())
        expected = [[str(rank), "4", "2", node_of(told, 2, rank), "2" if rank in (2, 3) else "1", "1"] for rank in range(4)]
        assert second == expected, told.output()
    finally:
        told.cluster.tool("node-up", dead)


def test_a_node_that_slurm_took_before_ftrun_began_is_replaced(place: Stage) -> None:
    ft = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=1"
    script = f'\nuntil [ -e "$STORY/begin" ]; do sleep 0.2; done\nftrun --ft-rendezvous torch {ft} sh "$STORY/rank.sh"\n'
    told = place.tell(plan(ft, 3, 1, script=script, sbatch=("--no-kill",)), "lost-before")
    granted = sorted(nodes_in(told.cluster, told.wait_for(lambda: told.job()["NodeList"].replace("(null)", ""), "its nodes")))
    dead = next(node for node in granted if node != told.job()["BatchHost"])
    told.cluster.tool("node-crash", dead)
    try:
        slurm_notices(told.cluster, dead)
        told.wait_for(lambda: dead not in nodes_in(told.cluster, told.job()["NodeList"]), "Slurm to take it")
        (told.folder / "begin").touch()
        wait_beats(told, 1, 3, 90.0)
        slot = granted.index(dead)
        assert [node_of(told, 1, rank) == node for rank, node in enumerate(granted)] == [rank != slot for rank in range(3)]
        assert counters(told, 1) == {rank: (2, 1, 1) if rank == slot else (1, 1, 1) for rank in range(3)}
        assert f"replaced {dead} by {node_of(told, 1, slot)}" in told.output()
        told.cluster.cancel(told.id)  # these ranks end in a later attempt only
        told.wait_nothing_left(60.0)
    finally:
        told.cluster.tool("node-up", dead)


def test_the_batch_node_itself_is_left_and_ftrun_goes_on_there(place: Stage) -> None:
    told = told_with_spares(place, 1, "batch-node", nodes=2)
    wait_beats(told, 1, 4)
    bad = told.job()["BatchHost"]
    assert node_of(told, 1, 0) == bad
    breaks(told, bad)
    wait_beats(told, 2, 4)
    assert node_of(told, 2, 0) == node_of(told, 2, 1) != bad and node_of(told, 2, 2) == node_of(told, 1, 2)
    assert counters(told, 2) == {0: (2, 1, 2), 1: (2, 1, 2), 2: (1, 2, 2), 3: (1, 2, 2)}
    assert environ(told, 3, 2)["MASTER_ADDR"] == environ(told, 0, 2)["MASTER_ADDR"]
    assert bad in nodes_in(told.cluster, told.job()["NodeList"]), "it holds the script"
    finish(told)


def test_a_lent_slot_0_is_of_our_job_and_leads_the_rendezvous(place: Stage) -> None:
    ft = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=1"
    told = place.tell(plan(ft, 2), "lent-first")
    wait_beats(told, 1, 4)
    breaks(told, node_of(told, 1, 0))
    wait_beats(told, 2, 4)
    seen = [environ(told, rank, 2) for rank in range(4)]
    assert {env["SLURM_JOB_ID"] for env in seen} == {str(told.id)} and len({env["MASTER_ADDR"] for env in seen}) == 1
    assert [env["SLURM_PROCID"] for env in seen] == ["0", "1", "2", "3"] and counters(told, 2)[0] == (2, 1, 2)
    finish(told)


@pytest.mark.parametrize("ft", ["--ft-set restart_via=step", pytest.param("--ft-set mode=async", marks=pytest.mark.long)])
def test_restarts_in_place_and_replacements_mix(place: Stage, ft: str) -> None:
    more = "--ft-set rungs.in-place-restart.crash_restarts=2 --ft-set nodes.donor=false"
    told = told_with_spares(place, 1, f"mix-{ft[-4:]}", nodes=2, ft=f"{ft} {more}")
    alone = "async" in ft
    wait_beats(told, 1, 4)
    kill(told.pid(told.of_attempt(1)[3]))
    wait_beats(told, 2, 1 if alone else 4)
    assert counters(told, 2) == ({3: (1, 2, 2)} if alone else dict.fromkeys(range(4), (1, 2, 2)))
    breaks(told, node_of(told, 1, 0))
    wait_beats(told, 3, 4)
    stayed = (1, 2, 3) if alone else (1, 3, 3)
    assert counters(told, 3) == {0: (2, 1, 3), 1: (2, 1, 3), 2: stayed, 3: (1, 3, 3)}
    told.allow("enough")
    told.ended("COMPLETED")
    told.wait_nothing_left()
    # The others go on while one rank of an async job starts again.
    assert overlaps([replace(beat, attempt=1) if alone and beat.attempt == 2 else beat for beat in beats(told.folder)]) == []


def test_a_task_of_an_array_replaces_its_node_and_gives_back_no_other_tasks(place: Stage) -> None:
    ft = f"{QUICK_LOSS} --ft-set nodes.donor=false --ft-set rungs.node-replacement.budget=1 --ft-spares 1"
    rank = "export STORY=$STORY/$SLURM_ARRAY_TASK_ID; mkdir -p $STORY; "
    script = rank + f'\nftrun --ft-rendezvous torch {ft} sh "$STORY/../rank.sh"\n'
    told = place.prepare(plan(ft, 1, 1, script=script), "array")
    argv = [
        "--nodes=2",
        "--ntasks-per-node=1",
        "--array=3-4",
        "--exclusive",
        "--no-kill",
        "--time=5",
        f"--output={told.folder}/output.%a",
    ]
    for task in ("3", "4"):
        folder = told.folder / task
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "beat.sh").write_text((told.folder / "beat.sh").read_text())
    told.id = place.cluster.submit(told.folder / "script.sh", *argv, cwd=told.folder, env=told.env)
    tasks = {task: Story(told.cluster, told.folder / task, told.env, told.plan) for task in ("3", "4")}
    for task in tasks.values():
        task.id = told.id
        wait_beats(task, 1, 1)
    breaks(tasks["4"], node_of(tasks["4"], 1, 0))
    wait_beats(tasks["4"], 2, 1)
    assert counters(tasks["4"], 2) == {0: (2, 1, 2)} and not tasks["3"].of_attempt(2)
    assert environ(tasks["4"], 0, 2)["SLURM_NNODES"] == "1"
    told.cluster.cancel(told.id)
    told.wait_nothing_left()


@pytest.mark.long
def test_a_drill_of_a_lost_node_is_answered_by_a_spare_and_holds_nothing_against_the_node(place: Stage) -> None:
    told = told_with_spares(place, 1, "drill", nodes=2, ft="--ft-set nodes.donor=false")
    wait_beats(told, 1, 4)
    node = node_of(told, 1, 2)
    assert told.ftslurm("drill", "lost-node", str(told.id), "--node", node)
    wait_beats(told, 2, 4, 90.0)
    assert node not in {start.node for start in told.of_attempt(2).values()} and counters(told, 2)[2] == (2, 1, 2)
    assert not told.ftslurm("nodes") and node in nodes_in(told.cluster, told.job()["NodeList"])
    finish(told)
