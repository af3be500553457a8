"""Nodes that are cut off and come back, and connections that break, on a real cluster and over a real network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.conftest import booted, new_stage
from tests.live.overlap import BEAT, MAKE_PIPE, RANK, beats, overlaps
from tests.live.stories import Plan, Story, admin, processes_with, story

pytestmark = pytest.mark.live

BEATS = MAKE_PIPE + RANK
LEASE_S, SILENCE_S = 20.0, 4.0
QUICK_LEASE = f"--ft-set lease.time={LEASE_S:g}s --ft-set nodes.silence={SILENCE_S:g}s --ft-set nodes.probe_timeout=2s"


@pytest.mark.slurms
@pytest.mark.timeout(400)
def test_a_frozen_node_is_left_and_nothing_of_it_runs_again_when_it_is_back(job_path: tuple[Path, ...]) -> None:
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
            own.answer(["scontrol", "update", f"NodeName={frozen}", "State=DOWN", "Reason=frozen"], user=admin())
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
        assert f"nothing was heard of {frozen}" in told.output()
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
    """Both ends of every connection to this story's ftrun get a reset; gives how many there were, 0 when it has ended."""
    ours = {f"pid={pid}," for pid, command in told.processes().items() if "/ftrun " in command}
    listening = subprocess.run(["ss", "-Htlnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    ports = {line.split()[3].rpartition(":")[2] for line in listening if any(pid in line for pid in ours)}
    if not ports:
        return 0
    (port,) = ports
    killed = subprocess.run(["ss", "-HKtn", "state", "established", "sport", "=", f":{port}"], capture_output=True, text=True, check=True)
    return len(killed.stdout.splitlines())


@pytest.mark.skipif(not can_break(), reason="only root may break connections, with ss of iproute2")
@pytest.mark.slurms
@story(nodes=2, tasks=2, rank='say began; await go; say ended')
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
    assert sorted((rank, words) for rank, *_, words in told.said()) == [(rank, words) for rank in range(4) for words in ("began", "ended")]


@story(nodes=2, ft=QUICK_LEASE, rank="say began; await go; say ended")
def test_silence_alone_is_no_proof_and_a_node_that_is_heard_again_has_lost_nothing(told: Story) -> None:
    """All that speaks for a node is stopped, and its slurmd answers."""
    told.wait_started()
    node = next(start.node for start in told.of_attempt(1).values() if start.node != batch_node(told))
    agent = "ftslurm.wrapper.agent"
    told.wait_for(lambda: any(agent in line for line in mine_on(told, node).values()), "the agent of it")
    stopped = mine_on(told, node)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(2 * SILENCE_S)  # what is waited for is that nothing comes of it
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    told.allow("go")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)] and not told.json("status", str(told.id))["excluded"]
    attempts = told.json("history", str(told.id))["attempts"]
    assert not [remedy for attempt in attempts for remedy in attempt["remedies"]]


def mine_on(told: Story, node: str) -> dict[int, str]:
    """Ranks, shims and agent on `node`, and no srun."""
    there = processes_with(f"SLURMD_NODENAME={node}")
    return {pid: line for pid, line in told.processes().items() if pid in there and "/ftrun " not in line and not line.startswith("srun ")}


@story(nodes=3, ft='--ft-set nodes.straggler_wait=4s --task-prolog="$STORY/prolog.sh"', files={"prolog": """#!/bin/sh
[ "$SLURMD_NODENAME$SLURM_RESTART_COUNT" != n2 ]
"""}, script='cp "$STORY/prolog" "$STORY/prolog.sh"; chmod +x "$STORY/prolog.sh"\n%RUN%\n')
def test_a_step_that_comes_up_in_part_is_given_up_and_the_reason_names_the_node(told: Story) -> None:
    """srun goes on with the tasks that run, and would until the time limit."""
    assert told.ended("COMPLETED", 90.0)["Restarts"] == "1"
    assert "no task of the step came up on n2 within 4 s of the others" in told.output()
    assert {start.attempt for start in told.starts()} == {"1"}, "nothing was started of the first one"


# --- a network that is cut, without Slurm


@contextmanager
def second_network(name: str) -> Iterator[str]:
    """A network namespace with one cable to ours; gives our address on it. It lasts as long as the test."""
    number = os.getpid() % 200
    ours, theirs = f"10.213.{number}.1", f"10.213.{number}.2"
    try:
        for line in (
            f"ip netns add {name}",
            f"ip link add {name} type veth peer name eth0 netns {name}",
            f"ip address add {ours}/30 dev {name}",
            f"ip link set {name} up",
            f"ip -n {name} address add {theirs}/30 dev eth0",
            f"ip -n {name} link set eth0 up",
        ):
            subprocess.run(line.split(), check=True, capture_output=True)
        yield ours
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)


def can_cut() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        return False
    probe = f"ftp{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "delete", probe], check=False, capture_output=True)
    return made


@pytest.mark.skipif(not can_cut(), reason="network namespaces are root's, with ip of iproute2")
@pytest.mark.timeout(300)
def test_a_node_whose_network_is_cut_ends_its_rank_by_itself_before_any_other_starts(tmp_path: Path) -> None:
    name, lease_s = f"ftn{os.getpid()}", 6.0
    with second_network(name) as address:
        wrapper = tmp_path / "python"
        wrapper.write_text(
            f'#!/bin/sh\n[ "$SLURMD_NODENAME" = local2 ] && exec nsenter --net=/run/netns/{name} {sys.executable} "$@"\nexec {sys.executable} "$@"\n'
        )
        wrapper.chmod(0o755)
        (tmp_path / "beat.sh").write_text(BEAT)
        (tmp_path / "rank.sh").write_text(BEATS)
        sets = {"address": address, "python": str(wrapper), "lease.time": f"{lease_s:g}s", "nodes.silence": "2s", "stop.grace": "2s",
                "nodes.probe_timeout": "1s", "lease.margin": "2s"}  # fmt: skip
        argv = [str(Path(sys.executable).parent / "ftrun"), "--ft-launcher", "local", "-N2", "--ntasks-per-node=1"]
        argv += [word for key, value in sets.items() for word in ("--ft-set", f"{key}={value}")]
        env = {**os.environ, "STORY": str(tmp_path), "FTSLURM_STATE_DIR": str(tmp_path / "state")}
        with (tmp_path / "output").open("w") as output:
            ftrun = subprocess.Popen([*argv, "sh", str(tmp_path / "rank.sh")], env=env, stdout=output, stderr=output)
        try:
            await_beats(tmp_path, 1)
            subprocess.run(["ip", "link", "set", name, "down"], check=True)
            cut_at = time.time()
            until(lambda: time.time() - last_beat(tmp_path, rank=1) > 1.0 and time.time() - cut_at > lease_s, "rank 1 to end")
            subprocess.run(["ip", "link", "set", name, "up"], check=True)
            await_beats(tmp_path, 2)
            (tmp_path / "enough").touch()
            assert ftrun.wait(60) == 0, (tmp_path / "output").read_text()
        finally:
            if ftrun.poll() is None:
                ftrun.send_signal(signal.SIGINT)
                ftrun.wait(60)
        seen = beats(tmp_path)
        assert overlaps(seen) == []
        ended = max(beat.time for beat in seen if (beat.rank, beat.attempt) == (1, 1))
        assert lease_s - 2.0 - 1.0 < ended - cut_at, "it lived on as long as it might"
        until(lambda: not processes_with(f"STORY={tmp_path}"), "all processes to be gone")


def last_beat(folder: Path, rank: int) -> float:
    return max(beat.time for beat in beats(folder) if beat.rank == rank)


def await_beats(folder: Path, attempt: int) -> None:
    until(lambda: {beat.rank for beat in beats(folder) if beat.attempt == attempt} == {0, 1}, f"attempt {attempt} to write", folder)


def until(ready: object, what: str, folder: Path | None = None) -> None:
    deadline = time.monotonic() + 90.0
    while not ready():  # type: ignore[operator]
        said = (folder / "output").read_text() if folder is not None else ""
        assert time.monotonic() < deadline, f"waited for {what}\n{said}"
        time.sleep(0.05)


def test_the_checker_finds_an_overlap(tmp_path: Path) -> None:
    (tmp_path / "beats.0").write_text("1 0 n1 10.0\n2 0 n1 20.0\n2 0 n1 21")
    assert overlaps(beats(tmp_path)) == [] and len(beats(tmp_path)) == 2
    (tmp_path / "beats.1").write_text("1 1 n2 10.0\n1 1 n2 20.5\n")
    assert overlaps(beats(tmp_path)) == ["rank 1 of attempt 1 on n2 ran 0.500 s into attempt 2"]
