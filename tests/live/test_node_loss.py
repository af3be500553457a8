"""Nodes that are cut off and come back, and connections that break, on a real cluster and over a real network."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.conftest import booted, new_stage
from tests.live.overlap import BEAT, MAKE_PIPE, RANK, beats, overlaps
from tests.live.stories import Plan, Story, admin, kill, on_network_of, processes_with, story

pytestmark = pytest.mark.live

BEATS = MAKE_PIPE + RANK
LEASE_S, SILENCE_S = 20.0, 4.0
QUICK_LEASE = f"--ft-set lease.time={LEASE_S:g}s --ft-set nodes.silence={SILENCE_S:g}s --ft-set nodes.probe_timeout=5s"


@pytest.mark.flat
@pytest.mark.slurms
@pytest.mark.timeout(400)
def test_a_frozen_node_is_left_and_nothing_of_it_runs_again_when_it_is_back(job_path: tuple[Path, ...]) -> None:
    """The walk of who is on call after a power cut: one command to the cause (`status`), one to the cure, which stands there."""
    plan = Plan(nodes=2, rank=BEATS, files={"beat.sh": BEAT}, ft=QUICK_LEASE)
    with booted(nodes=3) as own, new_stage(own, job_path) as stage:
        told = stage.tell(plan, "frozen")
        told.wait_started()
        frozen = next(start.node for start in told.of_attempt(1).values() if start.node != batch_node(told))
        told.wait_for(lambda: {beat.rank for beat in beats(told.folder)} == {0, 1}, "both ranks to write")
        own.tool("node-freeze", frozen)
        frozen_at = time.time()
        try:
            told.wait_for(lambda: told.job()["ExcNodeList"] == frozen, "the requeue without it", LEASE_S + 100.0)
            requeued_s = time.time() - frozen_at
            # Slurm keeps the job until the node has cleaned up or is down, which it finds out itself after SlurmdTimeout.
            cause = told.ftslurm("status", str(told.id))
            assert f"requeued without {frozen}" in cause and f"no message from {frozen}" in cause, cause
            (cure,) = re.findall(r"next +(scontrol update .*?)  \(an administrator\)", cause)
            own.answer(cure.split(), user=admin())
            told.wait_for(lambda: starts_now(told), "the job to run again", 90.0)
            told.wait_for(lambda: {beat.rank for beat in beats(told.folder) if beat.attempt == 2} == {0, 1}, "attempt 2 to write")
        finally:
            own.tool("node-thaw", frozen)
        told.wait_for(lambda: not old_ranks(told), "what was frozen to be gone", 60.0)
        told.allow("enough")
        told.ended("COMPLETED")
        seen = beats(told.folder)
        assert overlaps(seen) == []
        assert max(beat.time for beat in seen if (beat.node, beat.attempt) == (frozen, 1)) <= frozen_at, "not for a moment"
        assert requeued_s >= LEASE_S - SILENCE_S, "the lease was renewed a beat before at the most"
        assert f"no message from {frozen}" in told.output()
        assert frozen not in {start.node for start in told.of_attempt(2).values()}
        assert {start.rung for start in told.of_attempt(2).values()} == {"isolated-requeue"}


def starts_now(told: Story) -> bool:
    """The clean-up took longer than `requeue.start_in`, so Slurm adds 121 s, unless asked afterwards."""
    told.hurry()
    return len(told.of_attempt(2)) == 2


def old_ranks(told: Story) -> set[int]:
    return {pid for pid in processes_with("FTSLURM_ATTEMPT=1") if pid in told.processes()}


def batch_node(told: Story) -> str:
    return told.job()["BatchHost"]


def can_break() -> bool:
    return os.geteuid() == 0 and shutil.which("ss") is not None


def break_connections(told: Story) -> int:
    """Every connection to this story's ftrun gets a reset at both ends; gives how many there were, 0 when it has ended."""

    def ss(at: int, *argv: str) -> list[str]:
        done = subprocess.run(on_network_of(at, "ss", *argv), capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not Path(f"/proc/{at}/ns/net").exists(), done.stderr  # it may just have ended
        return done.stdout.splitlines()

    ours = [pid for pid, command in told.processes().items() if "/ftrun " in command]
    ports = {line.split()[3].rpartition(":")[2] for pid in ours for line in ss(pid, "-Htlnp") if f"pid={pid}," in line}
    if not ports:
        return 0
    (port,) = ports
    networks: dict[int, int] = {}
    for pid, command in told.processes().items():
        with suppress(OSError):  # it has just ended
            if "shim import" in command or pid in ours:
                networks[os.stat(f"/proc/{pid}/ns/net").st_ino] = pid
    theirs = sum(len(ss(pid, "-HKtn", "state", "established", "dport", "=", f":{port}")) for pid in networks.values())
    # Those of the other end may be closed by then, as the first end's are.
    return max(theirs, len(ss(ours[0], "-HKtn", "state", "established", "sport", "=", f":{port}")))


@pytest.mark.skipif(not can_break(), reason="only root may break connections, with ss of iproute2")
@pytest.mark.slurms
@story(nodes=2, tasks=2, rank="say began; await go; say ended")
def test_connections_that_break_while_ranks_run_are_nobodys_end(told: Story) -> None:
    told.wait_started()
    if break_connections(told) == 0:
        pytest.skip("this kernel breaks no connections (CONFIG_INET_DIAG_DESTROY)")
    for _ in range(3):
        told.wait_for(lambda: break_connections(told) >= 4, "the shims to call again")
    told.allow("go")
    break_connections(told)
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]
    assert sorted((rank, words) for rank, *_, words in told.said()) == [
        (rank, words) for rank in range(4) for words in ("began", "ended")
    ]


@story(nodes=2, ft=QUICK_LEASE, rank="say began; await go; say ended")
def test_silence_alone_is_no_proof_and_a_node_that_is_heard_again_has_lost_nothing(told: Story) -> None:
    """All that speaks for a node is stopped, and its slurmd answers."""
    told.wait_started()
    node = next(start.node for start in told.of_attempt(1).values() if start.node != batch_node(told))
    agent = "ftslurm.wrapper.agent.agent"
    told.wait_for(lambda: any(agent in line for line in mine_on(told, node).values()), "the agent of it")
    stopped = mine_on(told, node)
    for pid in stopped:
        kill(pid, signal.SIGSTOP)
    try:
        time.sleep(2 * SILENCE_S)  # what is waited for is that nothing comes of it
    finally:
        for pid in stopped:
            kill(pid, signal.SIGCONT)
    told.allow("go")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)] and not told.json("status", str(told.id))["excluded"]
    attempts = told.json("history", str(told.id))["attempts"]
    assert not [remedy for attempt in attempts for remedy in attempt["remedies"]]


def mine_on(told: Story, node: str) -> dict[int, str]:
    """Ranks, shims and agent on `node`, and no srun."""
    there = processes_with(f"SLURMD_NODENAME={node}")
    return {
        pid: line
        for pid, line in told.processes().items()
        if pid in there and "/ftrun " not in line and not line.startswith("srun ")
    }


@story(
    nodes=3,
    ft='--ft-set nodes.straggler_wait=4s --task-prolog="$STORY/prolog.sh"',
    files={
        "prolog": """#!/bin/sh
[ "$SLURMD_NODENAME$SLURM_RESTART_COUNT" != n2 ] || exec sleep 30
"""
    },
    script='cp "$STORY/prolog" "$STORY/prolog.sh"; chmod +x "$STORY/prolog.sh"\n%RUN%\n',
)
def test_a_step_that_comes_up_in_part_is_given_up_and_the_reason_names_the_node(told: Story) -> None:
    """srun goes on with the tasks that run, and would until the time limit."""
    assert told.ended("COMPLETED", 90.0)["Restarts"] == "1"
    assert "no task of the step came up on n2 within 4 s of the others" in told.output()
    assert {start.attempt for start in told.starts()} == {"1"}, "nothing was started of the first one"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make nodes that are apart")
@pytest.mark.slurms
@pytest.mark.timeout(400)
def test_a_node_whose_cable_is_cut_ends_its_rank_by_itself_before_any_other_starts(job_path: tuple[Path, ...]) -> None:
    """It knows of nothing but its lease, and when it is back the job has long run elsewhere."""
    plan = Plan(nodes=2, rank=BEATS, files={"beat.sh": BEAT}, ft=QUICK_LEASE)
    with booted(nodes=3) as own, new_stage(own, job_path) as stage:
        told = stage.tell(plan, "cut")
        told.wait_for(lambda: {beat.rank for beat in beats(told.folder)} == {0, 1}, "both ranks to write", 60.0)
        cut = next(start for start in told.of_attempt(1).values() if start.node != batch_node(told))
        own.tool("node-cut", cut.node)
        cut_at = time.time()
        told.wait_for(lambda: told.job()["ExcNodeList"] == cut.node, "the requeue without it", LEASE_S + 100.0)
        assert not told.alive([cut]), "it ended behind the cut"
        own.answer(["scontrol", "update", f"NodeName={cut.node}", "State=DOWN", "Reason=cut off"], user=admin())
        told.wait_for(lambda: starts_now(told), "the job to run again", 90.0)
        own.tool("node-mend", cut.node)
        told.wait_for(
            lambda: {beat.rank for beat in beats(told.folder) if beat.attempt == 2} == {0, 1}, "attempt 2 to write", 60.0
        )
        told.wait_for(lambda: not old_ranks(told), "what was cut off to be gone", 60.0)
        told.allow("enough")
        told.ended("COMPLETED")
        seen = beats(told.folder)
        assert overlaps(seen) == []
        ended = max(beat.time for beat in seen if (beat.node, beat.attempt) == (cut.node, 1))
        assert ended - cut_at > LEASE_S - SILENCE_S - 3.0, "it lived on as long as it might"
        assert {start.rung for start in told.of_attempt(2).values()} == {"isolated-requeue"}


def test_the_checker_finds_an_overlap(tmp_path: Path) -> None:
    (tmp_path / "beats.0").write_text("1 0 n1 10.0\n2 0 n1 20.0\n2 0 n1 21")
    assert overlaps(beats(tmp_path)) == [] and len(beats(tmp_path)) == 2
    (tmp_path / "beats.1").write_text("1 1 n2 10.0\n1 1 n2 20.5\n")
    assert overlaps(beats(tmp_path)) == ["rank 1 of attempt 1 on n2 ran 0.500 s into attempt 2"]
