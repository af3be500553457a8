"""A requeued job starts behind its clean-up, whatever that takes, and does not fall into the 121 s that Slurm adds else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.ledger.shared_file import known_clean_ups
from ftslurm.model.folds.history import History
from tests.live.conftest import booted, new_stage
from tests.live.stories import Plan, Stage, Story

pytestmark = [pytest.mark.live, pytest.mark.long]

EPILOG_S = 8.0
SLURMS_OWN_S = 121.0
# As ftrun is without our tests' settings, and with a memory of its own, so that the first requeue knows nothing.
ENV = {"FTRUN_REQUEUE_START_IN": "auto", "FTSLURM_STATE_DIR": "%STORY%/state"}
# One rank alone fails: of two at once, ftrun would take the program for the cause, and end the job at the second time.
TWICE = "[ $MA_SCHEDULE_CNT -lt 3 ] || exit 0; together; [ $SLURM_PROCID != 0 ] || exit 3; sleep 60"


@pytest.fixture(scope="module")
def slow_stage(job_path: tuple[Path, ...]) -> Iterator[Stage]:
    """Four nodes with an Epilog that takes its time, and slurmctld's own scheduling intervals made short."""
    with booted(nodes=4) as own, new_stage(own, job_path) as stage:
        own.tool("epilog", f"{EPILOG_S:g}")
        yield stage


def waits_s(told: Story) -> list[float]:
    """From the last rank's start in one scheduling, which fails at once, to the first one's in the next."""
    times: dict[str, list[float]] = {}
    for start in told.starts():
        times.setdefault(start.schedule, []).append(start.time)
    return [min(times[str(number + 1)]) - max(times[str(number)]) for number in range(1, len(times))]


@pytest.mark.timeout(420)
def test_no_requeue_falls_into_slurm_s_own_delay_and_the_second_knows_how_long_the_first_took(
    slow_stage: Stage, tmp_path: Path
) -> None:
    jobs = [slow_stage.tell(Plan(nodes=nodes, rank=TWICE, env=ENV), f"{nodes}-nodes") for nodes in (1, 3)]
    for told in jobs:
        assert told.ended("COMPLETED", 300.0)["Restarts"] == "2"
    for told in jobs:
        first_s, second_s = waits_s(told)
        assert EPILOG_S < first_s < SLURMS_OWN_S - 10 and EPILOG_S < second_s < SLURMS_OWN_S - 10
        state = shutil.copytree(told.folder / "state", tmp_path / told.folder.name)  # the job user's, which root would refuse
        known = [took.seconds for took in known_clean_ups(state, "local", History())]
        assert len(known) == 2 and all(EPILOG_S <= seconds < first_s + 5 for seconds in known)
        assert second_s < 3 * max(known)
