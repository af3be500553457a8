"""A dozen faults from a fixed seed over jobs on a cluster of their own; `make chaos` injects hundreds."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tests.chaos.campaign import Campaign
from tests.chaos.faults import drawn
from tests.chaos.plan import jobs
from tests.chaos.report import print_report
from tests.chaos.world import World, developers_path
from tests.live.conftest import booted, new_stage

pytestmark = pytest.mark.live

SEED, FAULTS, LIMIT_S = 11, 12, 240.0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_dozen_faults_leave_every_job_with_the_right_end(job_path: tuple[Path, ...], tmp_path: Path) -> None:
    with booted(nodes=6) as own, new_stage(own, job_path) as stage:
        world = World(own, stage, developers_path(), quiet=True)
        plans = jobs(SEED, drawn(), ("plain", "no-kill", "never-again"))
        outcome = Campaign(world, plans, FAULTS, SEED, 2, LIMIT_S, tmp_path, most_jobs=5).run()
    said = io.StringIO()
    print_report(outcome, str(tmp_path), Console(file=said, width=200))
    assert outcome.well, said.getvalue()
