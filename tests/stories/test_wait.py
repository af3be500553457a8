"""srun --wait=N: N s after the end of the first rank the others are ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.launchers.srun import wait_s
from ftslurm.model import decisions as do
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.phases import OwnProcess
from tests.settings import settings_with
from tests.stories.replay import Job


def waiting(settings: Settings, seconds: float = 60.0) -> Job:
    job = Job(settings)
    job.judge.run.facts = replace(job.facts, process=OwnProcess(wait_s=seconds))
    return job.begin()


def test_the_others_end_with_srun_s_status_and_nothing_is_tried_again() -> None:
    job = waiting(Settings())
    job.exits(1, 0)
    job.wait(59.0)
    assert not job.did(do.EndStep)
    job.exits(2, 0)
    job.wait(2.0)
    assert job.did(do.EndStep) and job.status == 137
    assert "ranks 0,3 still ran 60 s after the first had ended (--wait)" in job.said
    assert not job.did(do.Requeue) and len(job.did(do.StartRanks)) == 1


def test_who_ends_in_time_ends_well() -> None:
    job = waiting(Settings())
    for rank in range(4):
        job.exits(rank, 0)
        job.wait(10.0)
    assert job.status == 0


def test_a_restart_begins_to_count_anew() -> None:
    job = waiting(settings_with(in_place_restart__crash_restarts=1))
    job.exits(1, 0)
    job.wait(30.0)
    job.exits(2, 1)
    job.wait(40.0)
    assert len(job.did(do.StartRanks)) == 2 and not job.did(do.EndStep)


def test_an_independent_rank_that_has_failed_for_good_is_the_first_end_too() -> None:
    job = waiting(settings_with(mode="independent", in_place_restart__crash_restarts=0))
    job.exits(1, 7)
    job.wait(61.0)
    assert job.status == 137


@pytest.mark.parametrize(("options", "env", "seconds"), [
    ("", {}, 0.0), ("-W60", {}, 60.0), ("--wait 5", {"SLURM_WAIT": "60"}, 5.0), ("", {"SLURM_WAIT": "60"}, 60.0),
    ("--wait=0", {"SLURM_WAIT": "60"}, 0.0), ("--wait=x", {}, 0.0),
])  # fmt: skip
def test_how_long(options: str, env: dict[str, str], seconds: float) -> None:
    assert wait_s(options.split(), env) == seconds
