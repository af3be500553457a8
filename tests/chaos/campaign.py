"""A campaign: lanes of jobs beside each other on one cluster, until enough faults were injected; then the verdict."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.checks import complaints, nodes_left
from tests.chaos.evidence import Evidence
from tests.chaos.job import Job
from tests.chaos.plan import JobPlan
from tests.chaos.world import World

IDLE_S = 60.0
POLL_S = 0.2


@dataclass
class Outcome:
    """jobs: evidence and what is wrong with it. cluster: what is wrong with the cluster afterwards."""

    seed: int
    jobs: list[tuple[Evidence, list[str]]] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    cluster: list[str] = field(default_factory=list)
    wanted: int = 0
    seconds: float = 0.0

    @property
    def injected(self) -> int:
        return sum(1 for evidence, _ in self.jobs for blow in evidence.blows if not blow.beside)

    @property
    def well(self) -> bool:
        return not self.cluster and not any(wrong for _, wrong in self.jobs) and self.injected >= self.wanted


class Campaign:
    """faults: how many at least. limit_s: after it nothing more is begun. keep: where the evidence of failing jobs goes."""

    def __init__(self, world: World, plans: Iterator[JobPlan], faults: int, seed: int, lanes: int, limit_s: float, keep: Path,
                 most_jobs: int = 10_000) -> None:  # fmt: skip
        self.world = world
        self.plans = itertools.islice(plans, most_jobs)
        self.outcome = Outcome(seed, wanted=faults)
        self.lanes = lanes
        self.keep = keep
        self.until = time.monotonic() + limit_s
        self._turn = threading.Lock()
        self._running: set[Job] = set()

    def run(self) -> Outcome:
        began = time.monotonic()
        threads = [threading.Thread(target=self._lane, name=f"lane {number}") for number in range(self.lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.outcome.cluster = self._nodes_left()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def stop(self) -> None:
        """No more faults; the jobs come to their end, and the verdict is that there were too few."""
        self.until = 0.0

    def _lane(self) -> None:
        while (job := self._next()) is not None:
            evidence = job.live(self._enough)
            wrong = complaints(evidence)
            self.world.say(
                f"job {job.plan.number}: {len(evidence.blows)} faults, {evidence.seconds:.0f} s, {'; '.join(wrong) or 'well'}"
            )
            if wrong:
                shutil.copytree(evidence.folder, self.keep / Path(evidence.folder).name, symlinks=True, dirs_exist_ok=True,
                                ignore=shutil.ignore_patterns("beat.*"))  # fmt: skip
            with self._turn:
                self._running.discard(job)
                self.outcome.jobs.append((evidence, wrong))
                self.outcome.missed += job.missed

    def _next(self) -> Job | None:
        with self._turn:
            if self._enough():
                return None
            plan = next(self.plans, None)
            if plan is None:
                return None
            job = Job(self.world, plan)
            self._running.add(job)
            self.world.jobs = list(self._running)
            return job

    def _enough(self) -> bool:
        struck = self.outcome.injected + sum(len(job.blows) for job in list(self._running))
        return struck >= self.outcome.wanted or time.monotonic() > self.until

    def _nodes_left(self) -> list[str]:
        deadline = time.monotonic() + IDLE_S
        while (wrong := nodes_left(self.world.node_states(), self.world.cluster.nodes)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return wrong
