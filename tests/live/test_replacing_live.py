"""Nodes that are replaced in a running job: by spares, by nodes of donor jobs, or by none, on a real cluster.

What the ranks run writes down who they are and where, and beats every few milliseconds, so that two attempts that ran side
by side would show (overlap.py).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import Cluster, booted, new_stage
from tests.live.overlap import BEAT, MAKE_PIPE, RANK, beats, overlaps
from tests.live.stories import Plan, Stage, Story, admin, kill, nodes_in

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

QUICK_LOSS = "--ft-set lease.time=20s --ft-set nodes.silence=5s --ft-set nodes.probe_timeout=5s"
# Slurm's and torch's words for the place of a rank, each attempt in a file of its own.
PLACE = (
    'env | grep -E "^(SLURM_(PROCID|NODEID|LOCALID|NTASKS|NNODES|JOB_NUM_NODES|JOB_NODELIST|NODELIST|STEP_NODELIST'
    '|JOB_ID|TASKS_PER_NODE|GTIDS)|SLURMD_NODENAME|RANK|WORLD_SIZE|NODE_RANK|LOCAL_RANK|MASTER_ADDR)=" '
    '>"$STORY/env.$SLURM_PROCID.$FTSLURM_ATTEMPT"; '
)
BEATS = PLACE + MAKE_PIPE + RANK


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """Nodes die here."""
    conf = ["GresTypes=npu", "NodeName=DEFAULT Gres=npu:2"]
    with booted(nodes=7, conf=conf, options=["--gpus=0"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place(own: Cluster, job_path: tuple[Path, ...]) -> Iterator[Stage]:
    with new_stage(own, job_path) as stage:
        yield stage


def plan(ft: str, nodes: int, tasks: int = 2, **how: object) -> Plan:
    """nodes: of the step."""
    return Plan(nodes=nodes, tasks=tasks, rank=BEATS, files={"beat.sh": BEAT}, ft=f"--ft-rendezvous torch {ft}", **how)  # type: ignore[arg-type]


def told_with_spares(place: Stage, spares: int, name: str, nodes: int = 3, ft: str = "", **how: object) -> Story:
    story = place.prepare(plan(f"--ft-spares {spares} {ft}", nodes, **how), name)
    argv = [
        "--nodes",
        str(nodes + spares),
        "--ntasks-per-node=2",
        "--time=5",
        "--open-mode=append",
        f"--output={story.folder}/output",
    ]
    story.id = place.cluster.submit(story.folder / "script.sh", *argv, *story.plan.sbatch, cwd=story.folder, env=story.env)
    return story


def environ(told: Story, rank: int, attempt: int) -> dict[str, str]:
    lines = (told.folder / f"env.{rank}.{attempt}").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def breaks(told: Story, node: str, code: str = "80E18402") -> None:
    """A critical fault on the stand-in device of `node`, as the device tool shows it."""
    told.cluster.answer(["npu-sim", "inject", "--node", node, "--device", "0.0", "--code", code], env=told.env)


def wait_beats(told: Story, attempt: int, ranks: int, timeout_s: float = 60.0) -> None:
    told.wait_for(
        lambda: len({beat.rank for beat in beats(told.folder) if beat.attempt == attempt}) == ranks,
        f"{ranks} ranks of attempt {attempt} to write",
        timeout_s,
    )


def counters(told: Story, attempt: int) -> dict[int, tuple[int, int, int]]:
    return {rank: start.counters for rank, start in told.of_attempt(attempt).items()}


def node_of(told: Story, attempt: int, rank: int) -> str:
    return told.of_attempt(attempt)[rank].node


def finish(told: Story, restarts: str = "0") -> dict[str, str]:
    told.allow("enough")
    job = told.ended("COMPLETED")
    told.wait_nothing_left()
    assert overlaps(beats(told.folder)) == []
    assert job["Restarts"] == restarts, told.describe() + told.ftslurm("history", str(told.id))
    return job


def decided(told: Story) -> list[str]:
    return [
        remedy["decided"]["rung"]
        for attempt in reversed(told.json("history", str(told.id))["attempts"])
        for remedy in attempt["remedies"]
    ]


@pytest.mark.slurms
def test_a_spare_takes_the_slot_of_a_node_with_a_broken_device(place: Stage) -> None:
    told = told_with_spares(place, 1, "spare")
    wait_beats(told, 1, 6)
    before = {rank: start.node for rank, start in told.of_attempt(1).items()}
    granted = sorted(nodes_in(told.cluster, told.job()["NodeList"]))
    assert sorted(set(before.values())) == granted[:3]
    assert environ(told, 0, 1)["SLURM_JOB_NUM_NODES"] == "3", "the program does not see the spare"
    bad, spare = before[2], granted[3]
    breaks(told, bad)
    wait_beats(told, 2, 6)
    assert {rank: start.node for rank, start in told.of_attempt(2).items()} == {**before, 2: spare, 3: spare}
    assert counters(told, 2) == {rank: (2, 1, 2) if rank in (2, 3) else (1, 2, 2) for rank in range(6)}
    for rank in range(6):
        env = environ(told, rank, 2)
        assert (env["SLURM_PROCID"], env["SLURM_NODEID"], env["SLURM_LOCALID"]) == (str(rank), str(rank // 2), str(rank % 2))
        assert (env["RANK"], env["NODE_RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == (
            str(rank),
            str(rank // 2),
            str(rank % 2),
            "6",
        )
        slots = told.cluster.answer(["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]]).split()
        assert slots == [before[0], spare, before[4]], "in the order of the slots"
        assert (env["SLURM_NTASKS"], env["SLURM_NNODES"], env["SLURM_TASKS_PER_NODE"]) == ("6", "3", "2(x3)")
    assert len({environ(told, rank, 2)["MASTER_ADDR"] for rank in range(6)}) == 1
    finish(told)
    assert decided(told) == ["node-replacement"]
    assert f"replaced {bad} by {spare} (a spare)" in told.output()
    breaks_no_more(told, bad)


def breaks_no_more(told: Story, node: str) -> None:
    told.cluster.answer(["npu-sim", "clear", "--node", node], env=told.env)


def slurm_notices(cluster: Cluster, dead: str) -> None:
    """As after SlurmdTimeout, which on a busy machine may be over before ftrun has given the node back."""
    cluster.answer(["scontrol", "update", f"NodeName={dead}", "State=DOWN", "Reason=dead"], user=admin())


@pytest.mark.parametrize("no_kill", [pytest.param(True, marks=pytest.mark.slurms), pytest.param(False, marks=pytest.mark.long)])
def test_a_node_that_dies_is_replaced_and_slurm_does_not_end_the_job_for_it(place: Stage, no_kill: bool) -> None:
    told = told_with_spares(place, 1, f"dies-{no_kill}", ft=QUICK_LOSS, sbatch=("--no-kill",) if no_kill else ())
    wait_beats(told, 1, 6)
    dead = node_of(told, 1, 2)
    cluster = told.cluster
    cluster.tool("node-crash", dead)
    try:
        wait_beats(told, 2, 6, 90.0)
        assert dead not in {start.node for start in told.of_attempt(2).values()}
        assert counters(told, 2)[2] == (2, 1, 2) and counters(told, 2)[0] == (1, 2, 2)
        told.wait_for(lambda: dead not in nodes_in(cluster, told.job()["NodeList"]), "the node to be given back")
        slurm_notices(cluster, dead)
        at = max(beat.time for beat in beats(told.folder))
        told.wait_for(lambda: max(beat.time for beat in beats(told.folder)) > at + 3.0, "it to go on after that")
        assert dead not in nodes_in(cluster, told.job()["NodeList"])
        finish(told)
        assert decided(told) == ["node-replacement"]
    finally:
        cluster.tool("node-up", dead)


def test_a_spare_that_dies_is_given_back_before_slurm_ends_the_job_with_it(job_path: tuple[Path, ...]) -> None:
    with booted(nodes=3) as own, new_stage(own, job_path) as stage:
        told = told_with_spares(stage, 1, "spare-dies", nodes=2, ft=QUICK_LOSS)
        wait_beats(told, 1, 4)
        (spare,) = set(own.nodes) - {start.node for start in told.starts()}
        own.tool("node-crash", spare)
        told.wait_for(lambda: spare not in nodes_in(own, told.job()["NodeList"]), "the spare to be given back", 60.0)
        slurm_notices(own, spare)
        at = max(beat.time for beat in beats(told.folder))
        told.wait_for(lambda: max(beat.time for beat in beats(told.folder)) > at + 3.0, "it to go on after that")
        job = told.job()
        assert (job["JobState"], job["Restarts"]) == ("RUNNING", "0") and set(told.attempts()) == {1}
        assert f"excluded {spare} (no rank runs there)" in told.output()
        own.cancel(told.id)


@pytest.mark.slurms
def test_without_a_spare_a_donor_job_lends_a_node_and_ends_with_ours(place: Stage) -> None:
    ft = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2"
    told = place.tell(plan(ft, 2, sbatch=("--gres=npu:2", "--mincpus=2")), "donor")
    wait_beats(told, 1, 4)
    before = {rank: start.node for rank, start in told.of_attempt(1).items()}
    breaks(told, before[2])
    wait_beats(told, 2, 4)
    after = {rank: start.node for rank, start in told.of_attempt(2).items()}
    assert (after[0], after[1], after[2]) == (before[0], before[1], after[3]) and after[2] not in before.values()
    assert counters(told, 2) == {0: (1, 2, 2), 1: (1, 2, 2), 2: (2, 1, 2), 3: (2, 1, 2)}
    donors = told.cluster.answer(["squeue", "-h", f"--name=ftslurm-donor-{told.id}", "-o", "%i %N %T"]).split()
    assert donors[1:] == [after[2], "RUNNING"]
    donor = told.job(donors[0])
    assert donor["TresPerNode"] in ("gres:npu:2", "gres/npu:2") and donor["MinCPUsNode"] == "2", donor
    for rank in (0, 1, 2, 3):
        env = environ(told, rank, 2)
        assert (env["SLURM_JOB_ID"], env["SLURM_PROCID"], env["SLURM_NTASKS"]) == (str(told.id), str(rank), "4")
        assert (env["SLURM_NODEID"], env["SLURM_LOCALID"]) == (str(rank // 2), str(rank % 2))
        assert told.cluster.answer(["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]]).split() == [before[0], after[2]]
        assert environ(told, 0, 2)["MASTER_ADDR"] == env["MASTER_ADDR"]
    finish(told)
    assert decided(told) == ["node-replacement"]
    told.wait_for(lambda: told.job(donors[0])["JobState"] == "CANCELLED", "the donor to end")


def test_a_lent_node_restarts_in_place_with_the_others_and_can_be_replaced_too(place: Stage) -> None:
    ft = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2 --ft-set rungs.in-place-restart.crash_restarts=1"
    told = place.tell(plan(ft, 2, 1), "donor-again")
    wait_beats(told, 1, 2)
    breaks(told, node_of(told, 1, 1))
    wait_beats(told, 2, 2)
    kill(told.pid(told.of_attempt(2)[0]))
    wait_beats(told, 3, 2)
    assert counters(told, 3) == {0: (1, 3, 3), 1: (2, 2, 3)}
    breaks(told, node_of(told, 3, 1))
    wait_beats(told, 4, 2)
    assert counters(told, 4) == {0: (1, 4, 4), 1: (3, 1, 4)}
    assert len({node_of(told, attempt, 1) for attempt in (1, 2, 4)}) == 3
    finish(told)
    assert decided(told) == ["node-replacement", "in-place-restart", "node-replacement"]
    listing = ["squeue", "-h", f"--name=ftslurm-donor-{told.id}"]
    told.wait_for(lambda: not told.cluster.answer(listing), "both donors to end")


@pytest.mark.parametrize("how", [pytest.param([], marks=pytest.mark.long), ["--signal=KILL"]])
def test_a_donor_that_somebody_cancels_is_replaced_by_another(place: Stage, how: list[str]) -> None:
    ft = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2"
    told = place.tell(plan(ft, 2, 1), f"donor-gone{len(how)}")
    wait_beats(told, 1, 2)
    breaks(told, node_of(told, 1, 1))
    wait_beats(told, 2, 2)
    listing = ["squeue", "-h", f"--name=ftslurm-donor-{told.id}", "-o", "%i"]
    donor = told.cluster.answer(listing).strip()
    told.cluster.answer(["scancel", *how, donor])
    wait_beats(told, 3, 2)
    assert len({node_of(told, attempt, 1) for attempt in (1, 2, 3)}) == 3
    assert counters(told, 3) == {0: (1, 3, 3), 1: (3, 1, 3)}
    excluded = told.json("status", str(told.id))["excluded"]
    finish(told)
    assert decided(told) == ["node-replacement", "node-replacement"]
    assert f"its donor job {donor} has ended" in told.output() and node_of(told, 2, 1) not in str(excluded)
    told.wait_for(lambda: not told.cluster.answer(listing), "the other donor to end")


def test_where_no_node_is_to_be_had_in_time_the_job_is_requeued_and_no_donor_waits(place: Stage) -> None:
    ft = (
        "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2 --ft-set nodes.replacement_wait=3s"
        " --ft-set nodes.donor_options=--begin=now+1hour"
    )
    told = place.tell(plan(ft, 2, 1), "no-node")
    wait_beats(told, 1, 2)
    bad = node_of(told, 1, 1)
    breaks(told, bad)
    wait_beats(told, 2, 2)
    assert told.counters() == [(1, 1, 1), (2, 1, 2)] and bad not in {start.node for start in told.of_attempt(2).values()}
    assert not told.cluster.answer(["squeue", "-h", f"--name=ftslurm-donor-{told.id}"])
    assert decided(told) == ["node-replacement", "isolated-requeue"]
    finish(told, restarts="1")


@pytest.mark.long
def test_a_spare_that_fails_the_health_command_is_passed_over(place: Stage) -> None:
    told = told_with_spares(place, 2, "unfit", nodes=2, ft='--ft-set "nodes.health_command=$STORY/fit"')
    granted = sorted(nodes_in(told.cluster, told.wait_for(lambda: told.job()["NodeList"].replace("(null)", ""), "its nodes")))
    fit = told.folder / "fit"
    fit.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != {granted[2]} ] || {{ echo the disk is full; exit 1; }}\n')
    fit.chmod(0o755)
    wait_beats(told, 1, 4)
    breaks(told, granted[1])
    wait_beats(told, 2, 4)
    assert [node_of(told, 2, rank) for rank in range(4)] == [granted[0]] * 2 + [granted[3]] * 2
    assert f"{granted[2]} cannot replace {granted[1]}: command: the disk is full" in told.output()
    finish(told)


def test_a_spare_whose_devices_are_broken_or_missing_is_passed_over(place: Stage) -> None:
    told = told_with_spares(place, 3, "broken-spares", nodes=2)
    granted = sorted(nodes_in(told.cluster, told.wait_for(lambda: told.job()["NodeList"].replace("(null)", ""), "its nodes")))
    wait_beats(told, 1, 4)
    breaks(told, granted[2])
    told.cluster.answer(["npu-sim", "lose-chip", "--node", granted[3], "--device", "0.0"], env=told.env)
    breaks(told, granted[1])
    wait_beats(told, 2, 4)
    assert [node_of(told, 2, rank) for rank in range(4)] == [granted[0]] * 2 + [granted[4]] * 2
    assert f"{granted[2]} cannot replace {granted[1]}: device: ascend 0.0 shows 80E18402" in told.output()
    assert f"{granted[3]} cannot replace {granted[1]}: device: 1 of 2 ascend devices are there" in told.output()
    finish(told)
    for node in granted[1:4]:
        breaks_no_more(told, node)


@pytest.mark.slurms
def test_with_fewer_nodes_where_the_job_says_that_they_are_enough(place: Stage) -> None:
    told = place.tell(plan("--ft-min-nodes 2 --ft-set nodes.donor=false", 3), "shrink")
    wait_beats(told, 1, 6)
    before = {rank: start.node for rank, start in told.of_attempt(1).items()}
    breaks(told, before[2])
    wait_beats(told, 2, 4)
    assert {rank: start.node for rank, start in told.of_attempt(2).items()} == {
        0: before[0],
        1: before[0],
        2: before[4],
        3: before[4],
    }
    assert set(counters(told, 2).values()) == {(1, 2, 2)}
    env = environ(told, 3, 2)
    assert (env["SLURM_NTASKS"], env["SLURM_NODEID"], env["WORLD_SIZE"], env["NODE_RANK"]) == ("4", "1", "4", "1")
    told.wait_for(lambda: before[2] not in nodes_in(told.cluster, told.job()["NodeList"]), "the bad node to be given back")
    finish(told)
    assert decided(told) == ["shrink"]


@pytest.mark.long
def test_with_fewer_nodes_of_which_not_all_have_as_many_ranks(place: Stage) -> None:
    ft = "--ft-min-nodes 2 --ft-set nodes.donor=false"
    told = place.tell(plan(ft, 3, script=f'\nftrun --ft-rendezvous torch {ft} -n5 sh "$STORY/rank.sh"\n'), "shrink-uneven")
    wait_beats(told, 1, 5)
    before = {rank: start.node for rank, start in told.of_attempt(1).items()}
    assert [before[rank] == before[0] for rank in range(5)] == [True, True, False, False, False] and before[4] != before[3]
    breaks(told, before[2])
    wait_beats(told, 2, 3)
    assert {rank: start.node for rank, start in told.of_attempt(2).items()} == {0: before[0], 1: before[0], 2: before[4]}
    for rank, node_rank, local_rank in ((0, 0, 0), (1, 0, 1), (2, 1, 0)):
        env = environ(told, rank, 2)
        assert (env["RANK"], env["WORLD_SIZE"], env["NODE_RANK"], env["LOCAL_RANK"]) == (
            str(rank),
            "3",
            str(node_rank),
            str(local_rank),
        )
        assert (env["SLURM_NTASKS"], env["SLURM_NNODES"], env["SLURM_TASKS_PER_NODE"]) == ("3", "2", "2,1")
        assert env["MASTER_ADDR"] == environ(told, 0, 2)["MASTER_ADDR"]
    finish(told)
    breaks_no_more(told, before[2])


# In srun's place: names its nodes the other way round once $STORY/astray is there.
ASTRAY = """#!/bin/bash
for word; do
    case $word in --nodelist=*,*) [ ! -e "$STORY/astray" ] || word=--nodelist=$(tr , "\\n" <<<"${word#*=}" | tac | paste -sd,) ;; esac
    words+=("$word")
done
PATH=${PATH#"$STORY/bin:"} exec srun "${words[@]}"
"""


def test_no_rank_starts_where_it_was_not_meant_to(place: Stage) -> None:
    script = '\nexport PATH="$STORY/bin:$PATH"\nftrun --ft-spares 1 --ft-set max_restarts=1 sh "$STORY/rank.sh"\n'
    told = place.prepare(plan("", 2, script=script), "astray")
    (told.folder / "bin").mkdir()
    (told.folder / "bin/srun").write_text(ASTRAY)
    (told.folder / "bin/srun").chmod(0o755)
    (told.folder / "bin").chmod(0o755)
    argv = ["--nodes=3", "--ntasks-per-node=2", "--time=5", "--no-requeue", f"--output={told.folder}/output"]
    told.id = place.cluster.submit(told.folder / "script.sh", *argv, cwd=told.folder, env=told.env)
    wait_beats(told, 1, 4)
    meant, spare = (
        node_of(told, 1, 0),
        (set(nodes_in(told.cluster, told.job()["NodeList"])) - {node_of(told, 1, 0), node_of(told, 1, 2)}).pop(),
    )
    (told.folder / "astray").touch()
    breaks(told, node_of(told, 1, 2))
    told.ended("FAILED")
    assert f"rank 0 was placed on {spare} instead of {meant}" in told.output()
    assert not told.of_attempt(2)
    told.wait_nothing_left()
    breaks_no_more(told, node_of(told, 1, 2))


def test_the_next_ftrun_of_the_script_keeps_off_the_node_that_was_left(place: Stage) -> None:
    script = '\nftrun --ft-spares 1 sh "$STORY/rank.sh" || exit 9\nftrun --ft-spares 1 sh "$STORY/again.sh"\n'
    told = place.prepare(plan("", 2, 1, script=script), "two-runs")
    (told.folder / "again.sh").write_text(
        'echo "$SLURM_PROCID $SLURMD_NODENAME $MA_SCHEDULE_CNT $MA_PROC_START_CNT" >>"$STORY/second"\n'
    )
    argv = ["--nodes=3", "--ntasks-per-node=1", "--time=5", f"--output={told.folder}/output"]
    told.id = place.cluster.submit(told.folder / "script.sh", *argv, cwd=told.folder, env=told.env)
    wait_beats(told, 1, 2)
    bad = node_of(told, 1, 1)
    breaks(told, bad)
    wait_beats(told, 2, 2)
    finish(told)
    second = sorted(line.split() for line in (told.folder / "second").read_text().splitlines())
    assert [(rank, node, *counts) for rank, node, *counts in second] == [
        ("0", node_of(told, 2, 0), "1", "1"), ("1", node_of(told, 2, 1), "2", "1"),
    ]  # fmt: skip


def test_a_cancelled_job_takes_its_donor_along(place: Stage) -> None:
    ft = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2"
    told = place.tell(plan(ft, 2, 1), "cancelled")
    wait_beats(told, 1, 2)
    breaks(told, node_of(told, 1, 1))
    wait_beats(told, 2, 2)
    told.cluster.cancel(told.id)
    told.ended("CANCELLED")
    listing = ["squeue", "-h", f"--name=ftslurm-donor-{told.id}"]
    told.wait_for(lambda: not told.cluster.answer(listing), "the donor to end")
    told.wait_nothing_left()


def test_a_donor_whose_ftrun_was_killed_ends_by_itself(place: Stage) -> None:
    ft = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2"
    told = place.tell(plan(ft, 2, 1), "killed")
    wait_beats(told, 1, 2)
    breaks(told, node_of(told, 1, 1))
    wait_beats(told, 2, 2)
    ftrun = next(pid for pid, command in told.processes().items() if "/ftrun " in command)
    subprocess.run(["kill", "-9", str(ftrun)], check=True)
    told.ended("FAILED")
    listing = ["squeue", "-h", f"--name=ftslurm-donor-{told.id}"]
    told.wait_for(lambda: not told.cluster.answer(listing), "the donor to end", 60.0)
    told.wait_nothing_left(60.0)


@pytest.mark.slurms
def test_ftrun_called_again_after_a_kill_starts_nothing_beside_what_still_runs(place: Stage) -> None:
    """Slurm itself makes no step wait that runs on chosen nodes of the allocation (--overlap)."""
    told = told_with_spares(place, 1, "killed-again", ft=QUICK_LOSS, script="\nuntil %RUN%; do :; done\n")
    wait_beats(told, 1, 6)
    bad = node_of(told, 1, 2)
    breaks(told, bad)
    wait_beats(told, 2, 6)
    ftrun = next(pid for pid, command in told.processes().items() if "/ftrun " in command)
    subprocess.run(["kill", "-9", str(ftrun)], check=True)
    wait_beats(told, 3, 6, 90.0)
    assert bad not in {start.node for start in told.of_attempt(3).values()}
    finish(told)
    breaks_no_more(told, bad)


@pytest.mark.long
def test_a_donor_that_an_ftrun_waited_for_when_it_was_killed_is_ended_by_the_next(place: Stage) -> None:
    ft = (
        "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2"
        " --ft-set nodes.donor_options=--begin=now+1hour"
    )
    script = f'\nftrun {ft} sh "$STORY/rank.sh"\nftrun {ft} -N1 -n1 sh -c ": >$STORY/second; sleep 600"\n'
    told = place.tell(plan(ft, 2, 1, script=script), "killed-waiting")
    wait_beats(told, 1, 2)
    breaks(told, node_of(told, 1, 1))
    listing = ["squeue", "-h", f"--name=ftslurm-donor-{told.id}", "-o", "%i %T"]
    told.wait_for(lambda: told.cluster.answer(listing).endswith("PENDING"), "the donor to wait")
    ftrun = next(pid for pid, command in told.processes().items() if "/ftrun " in command)
    subprocess.run(["kill", "-9", str(ftrun)], check=True)
    told.wait_for(lambda: not told.cluster.answer(listing), "the donor to end", 30.0)
    assert told.job()["JobState"] == "RUNNING", told.describe()
    told.cluster.cancel(told.id)
    told.wait_nothing_left(60.0)


@pytest.mark.parametrize(("words", "said"), [
    ("--ft-spares 2 -N2 true", "2 spare nodes and 2 for the step, but the allocation has 3"),
    ("--ft-spares 3 true", "3 spare nodes and at least 1 for the step"),
    ("--ft-spares x true", "`x` is not a whole number"),
    ("--ft-spares 1 -n1 true : -n1 true", "a heterogeneous step"),
])  # fmt: skip
def test_what_cannot_be_is_said_in_one_sentence(place: Stage, words: str, said: str) -> None:
    told = place.prepare(plan("", 3, 1), "bad")
    done = told.cluster.run(told.salloc_argv("ftrun", *words.split()), env=told.env, cwd=told.folder, timeout=60.0)
    assert said in done.stderr and done.returncode in (64, 65), done.stderr


def test_a_dry_run_shows_the_step_without_the_spares(place: Stage) -> None:
    told = place.prepare(plan("", 3, 1), "dry")
    done = told.salloc("ftrun", "--ft-dry-run", "--ft-spares", "1", "true")
    assert "--nodes=2" in done.stdout and "--ntasks=2" in done.stdout, done.stdout


def test_the_ledger_says_it_all(place: Stage) -> None:
    told = told_with_spares(place, 1, "ledger", nodes=2)
    wait_beats(told, 1, 4)
    began = time.time()
    breaks(told, node_of(told, 1, 2))
    wait_beats(told, 2, 4)
    finish(told)
    (journal,) = (told.folder / "state/jobs").glob("*.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    kinds = [record["kind"] for record in records if record["at"] >= began]
    assert kinds.index("Decided") < kinds.index("CarriedOut") <= kinds.index("SlotsChanged") < kinds.index("AttemptBegan")
