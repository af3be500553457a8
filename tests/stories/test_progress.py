"""A file tells how far the training has come, and attempts that get no further are counted (ft_launcher's progress tracker)."""

from __future__ import annotations

import pytest

from ftslurm.errors import REQUEUED_STATUS
from ftslurm.model import decisions as do
from ftslurm.model import record as rec
from ftslurm.model.settings.kinds import Layer
from ftslurm.model.settings.tree import Settings, resolve
from tests.stories.replay import Job, requeueing

IN_PLACE = requeueing(
    progress__file="/ckpt/latest",
    progress__attempts=2,
    in_place_restart__crash_restarts=50,
    no_restart_status=93,
    retry__policy="OnFailure",
)


def attempts(job: Job, *iterations: int | None) -> Job:
    """Each attempt fails with status 7 when the file holds that."""
    for iteration in iterations:
        job.iteration = iteration
        job.exits(0, 7)
        job.wait(60)
    return job


def begun(settings: Settings = IN_PLACE, at: int | None = None) -> Job:
    job = Job(settings)
    job.iteration = at
    return job.begin(watched=False)


@pytest.mark.parametrize(("at", "iterations", "in_vain"), [
    (None, (5, 6, 7), [0, 0, 0]), (5, (5,), [1]), (5, (6, 6, 7), [0, 1, 0]), (5, (4,), [1]), (5, (5, None), [1]), (None, (None, 0, 3), [0]),
])  # fmt: skip
def test_what_counts_as_progress(at: int | None, iterations: tuple[int | None, ...], in_vain: list[int]) -> None:
    """What cannot be read changes nothing, and as long as there has never been a checkpoint nothing is counted."""
    job = attempts(begun(at=at), *iterations)
    assert [seen.in_vain for seen in job.recorded(rec.IterationSeen) if seen.attempt] == in_vain
    assert job.status is None or not job.rungs


def test_as_many_in_a_row_end_the_job_with_a_status_of_its_own() -> None:
    job = attempts(begun(at=5), 6, 6, 6)
    assert job.rungs == ["in-place-restart", "in-place-restart", "fail"] and job.status == 93
    assert "2 attempts in a row without progress: /ckpt/latest says 6" in job.said


def test_the_count_survives_a_requeue() -> None:
    job = attempts(begun(requeueing(progress__file="/ckpt/latest", progress__attempts=2), at=5), 5)
    assert job.status == REQUEUED_STATUS
    again = job.again()
    again.iteration = 5
    again = attempts(again.begin(watched=False), 5)
    assert again.rungs == ["fail"] and again.status == 7, "without a status of its own that of the program"


def test_a_file_system_that_hangs_holds_nobody_up() -> None:
    job = begun(at=5)
    job.silent = {do.ReadIteration}
    attempts(job, 5)
    assert job.rungs == ["in-place-restart"]


def test_the_keys_of_ft_launcher_set_it_and_a_setting_beats_them() -> None:
    config = {"checkpoint_iteration_file": "/a", "min_progress_iterations": 4, "max_no_progress_cycles": -1}
    found = resolve(
        [Layer({"fault_tolerance": config, "progress.iterations": 9}, {"fault_tolerance": "x", "progress.iterations": "y"})]
    )
    st = found.settings
    assert (st.progress.file, st.progress.iterations, st.progress.attempts) == ("/a", 9, 0) and found.places[
        "progress.file"
    ] == "x"
