"""Stories of users of other systems: their settings, and what their own system would do. Sources: AIMaster, fault tolerance monitoring;
ModelArts, fault recovery of training jobs."""

from __future__ import annotations

import json

import pytest

from ftslurm.config.settings_files import profile_layers
from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.model.folds.history import fold
from ftslurm.model.settings.dialects import from_aimaster as aimaster
from ftslurm.model.settings.dialects import from_annotations as annotations
from ftslurm.model.settings.tree import Settings, resolve
from ftslurm.report.view import status_of
from tests.stories.replay import Job, fault
from tests.stories.test_standstill import CUT, SOMEBODY_LATE, stalls
from tests.stories.test_verdicts import PROGRAM, told, verdict

EXIT_HANGS = "--enable-job-restart=True --enable-job-exit-hang-detection=True --job-exit-hang-interval=60"
ON_FAILURE = "--fault-tolerant-policy=OnFailure"
BROKEN = fault("n2", graded=FaultClass.ISOLATE)
NOT_RETRIABLE = verdict(program=True)


def by_flags(flags: str) -> Settings:
    return resolve([aimaster(flags, "--ft-aimaster")]).settings


def by_annotations(**named: str) -> Settings:
    text = json.dumps({f"fault-tolerance/{name.replace('_', '-')}": value for name, value in named.items()})
    return resolve([annotations(text, "job.json")]).settings


def hangs_at_exit(job: Job) -> None:
    """Half of the ranks end, and the rest does not."""
    job.exits(0)
    job.exits(1)
    job.wait(61)


# --- AIMaster: one maximum for every restart of the job


def test_an_exit_hang_restarts_the_job_where_restarts_are_on() -> None:
    job = Job(by_flags(EXIT_HANGS)).begin()
    hangs_at_exit(job)
    assert job.rungs == ["hang-restart"] and job.counters == (1, 2, 2) and job.status is None


def test_without_job_restart_nothing_is_restarted() -> None:
    off = "--enable-job-hang-detection=True --enable-job-exit-hang-detection=True --job-exit-hang-interval=60 --job-hang-interval=60"
    job = Job(by_flags(f"{off} {ON_FAILURE}")).begin()
    hangs_at_exit(job)
    assert job.recorded(rec.HangSeen) and not job.rungs, "it is reported"
    job.exits(2, 1)
    assert job.rungs == ["fail"] and job.status == 1
    job = Job(by_flags(off)).begin()
    job.tell(*(ev.RankSilent(rank, 60.0) for rank in range(4)))
    assert job.recorded(rec.HangSeen) and not job.rungs
    job = Job(by_flags(ON_FAILURE)).begin()
    job.shows(fault())
    assert "in-place-restart" not in job.rungs and "isolated-requeue" not in job.rungs


def test_a_maximum_of_one_is_one_restart_whatever_comes() -> None:
    one = by_flags(f"{EXIT_HANGS} {ON_FAILURE} --max-num-of-job-restart=1")
    crash, hang = (lambda job: job.exits(0, 1)), hangs_at_exit
    for first, second in ((crash, crash), (crash, hang), (hang, crash), (hang, hang)):
        job = Job(one).begin()
        first(job)
        assert len(job.rungs) == 1 and job.rungs[0] in ("in-place-restart", "hang-restart")
        second(job)
        assert job.rungs[1:] == ["fail"] and job.status == 1, f"{first} then {second}: {job.rungs}"
        assert "the job has used its 1 restart (max_job_restarts)" in job.said
        assert [each.limit for each in job.recorded(rec.Decided)] == ["", "max_job_restarts"]


def test_a_crash_restart_leaves_no_requeue_where_the_maximum_is_one() -> None:
    job = Job(by_flags(f"--enable-job-restart=True {ON_FAILURE} --max-num-of-job-restart=1")).begin()
    job.exits(0, 1)
    job.shows(BROKEN)
    job.exits(3, 1)
    assert job.rungs == ["in-place-restart", "fail"] and not job.did(do.Requeue)
    assert "the job has used its 1 restart (max_job_restarts)" in job.said
    view = status_of(job.ledger)
    assert view is not None and view.left["max_job_restarts"] == (0, 1)


def test_the_count_survives_a_requeue() -> None:
    two = by_flags(f"--enable-job-restart=True {ON_FAILURE} --max-num-of-job-restart=2")
    job = Job(two).begin()
    job.exits(0, 1)
    job.shows(BROKEN)
    assert job.rungs == ["in-place-restart", "isolated-requeue"] and "max_job_restarts 0 of 2 left" in job.said
    job = job.again(nodes=("n1", "n3")).begin()
    job.exits(0, 1)
    assert job.rungs == ["fail"] and fold(job.ledger).budgets.job_restarts == 2


def test_an_instance_of_an_async_job_that_is_started_again_is_no_restart_of_the_job() -> None:
    job = Job(by_flags(f"--job-execution-mode=Async --max-num-of-job-restart=1 {ON_FAILURE}")).begin()
    for _ in range(3):
        job.exits(1, 1)
    assert fold(job.ledger).budgets.job_restarts == 0 and job.status is None


# --- AIMaster: C4D's levels


C4D = "--enable-job-restart=True --enable-job-hang-detection=True --job-hang-interval={} --enable-c4d-hang-detection=True"


def test_a_warn_of_c4d_does_nothing_before_the_job_s_hang_interval() -> None:
    job = Job(by_flags(C4D.format(600))).begin()
    job.views = SOMEBODY_LATE
    stalls(job)
    job.wait(500)
    assert any(found.level == "Warn" for found in job.recorded(rec.CulpritSeen)) and not job.rungs
    job.wait(600)
    assert job.rungs == ["hang-restart"], "the job has paused for longer than its interval"


def test_an_error_of_c4d_leaves_the_node_and_restarts_the_job() -> None:
    job = Job(by_flags(C4D.format(1800))).begin()
    job.views = CUT
    stalls(job)
    job.wait(400)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_c4d_without_hang_detection_has_no_effect() -> None:
    job = Job(by_flags("--enable-job-restart=True --enable-c4d-hang-detection=True")).begin()
    assert {watch.stall_s for watch in job.did(do.WatchRanks)} == {0.0}, "no agent looks at the collectives"
    assert not job.did(do.CompareRanks)


# --- ModelArts: unconditional means any failure


@pytest.mark.parametrize("settings", [
    by_annotations(job_retry_num="8", job_unconditional_retry="true"), resolve(profile_layers("modelarts", "test")).settings,
], ids=["annotations", "profile"])  # fmt: skip
@pytest.mark.parametrize("error", [PROGRAM, verdict(signature="ValueError at train.py:3")], ids=["ImportError", "ValueError"])
def test_any_failure_is_rebuilt_and_the_fourth_fails(settings: Settings, error: object) -> None:
    job = Job(settings, diagnose=told(error))  # type: ignore[arg-type]
    for _ in range(3):
        job.begin(watched=False).all_exit(1)
        assert job.rungs == ["unconditional-requeue"] and not job.excluded
        job = job.again()
    job.begin(watched=False).all_exit(1)
    assert job.rungs == ["fail"] and job.status == 1 and "3 unconditional requeues in a row" in job.said


def test_so_is_a_command_that_no_node_can_execute() -> None:
    job = Job(by_annotations(job_retry_num="8", job_unconditional_retry="true")).begin(watched=False)
    job.tell(*(ev.RankUnstartable(rank, 1, 2, "not found") for rank in range(4)))
    assert job.rungs == ["unconditional-requeue"]


def test_without_that_annotation_a_failure_of_the_program_ends_the_job() -> None:
    settings = by_annotations(job_retry_num="8")
    assert settings.retry.policy == Settings().retry.policy
    job = Job(settings, diagnose=told(NOT_RETRIABLE)).begin(watched=False)
    job.all_exit(1)
    assert job.rungs == ["fail"]
