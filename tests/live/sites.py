"""A job that goes through the ladder, for clusters that are set up as a site may have it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.conftest import SHARED_DISK, TOOL, new_stage, remove
from tests.live.stories import UNDER_WAY, Plan, Stage, Story

if TYPE_CHECKING:
    from tests.live.conftest import Cluster

    Boot = Callable[..., AbstractContextManager[Cluster]]

# In place, on a node that a donor lends, and after a requeue: each attempt ends in the fault that asks for the next rung.
ALL_RUNGS = """
case $FTSLURM_ATTEMPT in
1) together; [ $SLURM_PROCID != 0 ] || fault 0.0 80C98008; exec sleep 300 ;;
2) together; [ $SLURM_PROCID != 1 ] || fault 0.0 80E18402; exec sleep 300 ;;
3) together; exit 7 ;;
esac
together
"""
REPLACE = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=2"
RUNGS = ["in-place-restart", "node-replacement", "unconditional-requeue"]


def all_rungs(**plan: object) -> Plan:
    ft = f"{REPLACE} {plan.pop('ft', '')}"
    # auto: as users have it.
    env = {"FTRUN_REQUEUE_START_IN": "auto", **plan.pop("env", {})}  # type: ignore[dict-item]
    return Plan(**{"nodes": 2, "rank": ALL_RUNGS, "ft": ft, "env": env, **plan})  # type: ignore[arg-type]


@contextmanager
def site(
    boot_cluster: Boot, job_path: tuple[Path, ...], *conf: str, options: Sequence[str] = (), nodes: int = 4
) -> Iterator[Stage]:
    """A cluster with further lines of slurm.conf and options of `slurm-cluster up`."""
    if os.geteuid() != 0:
        pytest.skip("only root can make nodes that are apart")
    with (
        boot_cluster(nodes=nodes, conf=conf, options=["--cpus=2", "--gpus=0", *options]) as own,
        new_stage(own, job_path) as stage,
    ):
        yield stage


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Root's own, on a disk that all nodes see."""
    folder = Path(tempfile.mkdtemp(prefix="ftslurm-", dir=SHARED_DISK))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        remove(folder)


def on(stage: Stage, node: str, *argv: str) -> str:
    """What root's command prints on a node."""
    command = [sys.executable, str(TOOL), "node-shell", "--dir", str(stage.cluster.folder), node, "--", *argv]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=30.0, check=False)
    assert done.returncode == 0, f"{argv} on {node}: status {done.returncode}\n{done.stderr}"
    return done.stdout


def rungs(told: Story) -> list[str]:
    """By which each attempt but the first began, as rank 0 was told."""
    starts = sorted((start for start in told.starts() if start.rank == 0), key=lambda start: int(start.attempt))
    return [start.rung for start in starts[1:]]


END_S = 170.0  # of a job that goes through them all: on a busy machine


def ended_well(told: Story) -> dict[str, str]:
    """The job's fields once it is COMPLETED. How soon a requeue starts is another test's: here nobody waits for Slurm's delay."""

    def over() -> bool:
        told.hurry()
        return told.job()["JobState"] not in UNDER_WAY

    told.wait_for(over, "its end", END_S)
    return told.ended("COMPLETED")


def went_through_all_rungs(told: Story) -> None:
    """Wait for the end of a job of `all_rungs`, and look at its course."""
    job = ended_well(told)
    assert rungs(told) == RUNGS, told.describe()
    assert job["Restarts"] == "1"
    nodes = [{start.node for start in told.of_attempt(attempt).values()} for attempt in (1, 2, 3, 4)]
    assert [len(each) for each in nodes] == [2, 2, 2, 2], told.describe()
    (bad,) = nodes[1] - nodes[2]
    assert nodes[0] == nodes[1] and bad not in nodes[3], told.describe()
    told.wait_nothing_left()
