"""The cluster that all jobs of a campaign share, and what is done to it as a whole: one at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.chaos.evidence import Blow
from tests.live.conftest import TOOL, Cluster, parse_fields
from tests.live.stories import Stage, admin

if TYPE_CHECKING:
    from tests.chaos.job import Job

ANSWER_S = 20.0
# slurm-cluster gives up after 60 s.
TOOL_S = 90.0
LOCK_S = 180.0


class World:
    """env: for every job. sick: nodes that are frozen, dead or drained at the moment."""

    def __init__(self, cluster: Cluster, stage: Stage, env: dict[str, str], quiet: bool = False) -> None:
        self.cluster = cluster
        self.stage = stage
        self.env = env
        self.sick: set[str] = set()
        self.jobs: list[Job] = []
        self._beside: dict[int, list[Blow]] = {}
        self._lock = threading.Lock()  # what changes the cluster as a whole
        self._notes = threading.Lock()
        self._quiet = quiet
        self._began = time.monotonic()

    def say(self, words: str) -> None:
        if not self._quiet:
            print(f"{time.monotonic() - self._began:7.1f}  {words}", file=sys.stderr, flush=True)

    # ---- who was struck

    def struck(self, by: Job, blow: Blow) -> None:
        """A fault of the cluster strikes every job."""
        if blow.kind.startswith("ctld"):
            with self._notes:
                for job in self.jobs:
                    if job is not by:
                        self._beside.setdefault(job.plan.number, []).append(replace(blow, beside=True, attempt=job.attempt()))

    def beside(self, job: Job) -> list[Blow]:
        with self._notes:
            return list(self._beside.get(job.plan.number, ()))

    # ---- the cluster

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes nodes or slurmctld meanwhile. Raises: TimeoutError."""
        if not self._lock.acquire(timeout=LOCK_S):
            raise TimeoutError("another fault of the cluster does not end")
        try:
            yield
        finally:
            self._lock.release()

    def tool(self, *argv: str) -> None:
        """slurm-cluster; within `alone`. Raises: AssertionError."""
        command, *rest = argv
        done = subprocess.run((sys.executable, str(TOOL), command, "--dir", self.cluster.folder, *rest), stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, timeout=TOOL_S, check=False)  # fmt: skip
        assert done.returncode == 0, f"slurm-cluster {' '.join(argv)}: {done.stderr}"

    def node(self, *argv: str) -> None:
        with self.alone():
            self.tool(*argv)

    def operator(self, *argv: str) -> str:
        """A command of an operator's; a refusal is no accident (the job may just have ended)."""
        try:
            return self.cluster.run(argv, user=admin(), timeout=ANSWER_S).stdout
        except subprocess.TimeoutExpired:
            return ""

    def ask_job(self, number: int) -> dict[str, str]:
        """Empty while slurmctld does not answer."""
        return parse_fields(self.operator("scontrol", "show", "job", str(number), "--oneliner"))

    def queued(self, number: int) -> bool:
        return bool(self.operator("squeue", "--noheader", f"--jobs={number}").strip())

    def has_donors(self, number: int) -> bool:
        """Does a job that lent it a node outlive it?"""
        return bool(self.operator("squeue", "--noheader", f"--name=ftslurm-donor-{number}").strip())

    def node_states(self) -> dict[str, str]:
        """node -> State, as `IDLE+DRAIN`."""
        lines = self.operator("scontrol", "show", "nodes", "--oneliner").splitlines()
        return {fields["NodeName"]: fields["State"] for line in lines if (fields := parse_fields(line)).get("NodeName")}


def developers_path() -> dict[str, str]:
    """A tree that is not installed is used by the jobs, too, where PYTHONPATH names it."""
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
