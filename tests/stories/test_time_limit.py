"""The end that Slurm brings: the job's time limit, and a preemption with a grace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.settings.tree import Settings
from ftslurm.simulation.world import SIGTERM
from tests.settings import settings_with
from tests.stories.replay import HOUR_S, RUNNING, SIGUSR1, START, Job

REQUEUED = 75
RESUMES = settings_with(time_limit__resume_s=120.0)


def ending_in(seconds: float, settings: Settings = RESUMES) -> Job:
    """A job that runs, and whose limit is `seconds` after its start."""
    job = Job(settings)
    job.slurm = replace(job.slurm, end_time=int(START.unix + seconds))
    return job.begin()


def left_s(job: Job) -> float:
    return float(job.slurm.end_time - job.now.unix)


def test_ranks_are_warned_in_time_and_the_job_is_requeued_at_no_cost() -> None:
    job = ending_in(HOUR_S)
    job.wait(HOUR_S - 125)
    assert not job.did(do.SignalRanks)
    job.wait(6)
    assert job.did(do.SignalRanks) == [do.SignalRanks(SIGTERM)]
    job.wait(60)
    assert not job.did(do.StopRanks), "they write their checkpoint"
    job.all_exit(0)
    (decided,) = job.recorded(rec.Decided)
    assert (job.status, decided.rung, decided.cost) == (REQUEUED, "requeue-on-warning", "")
    assert decided.settings == (("requeue-on-warning", "time_limit.resume", "120s"),)
    assert "the time limit ends the job in" in job.said


def test_ranks_that_take_too_long_are_killed_before_the_limit() -> None:
    job = ending_in(HOUR_S)
    job.wait(HOUR_S - 10)
    (stop,) = job.did(do.StopRanks)
    assert stop.grace_s == 0.0 and job.status == REQUEUED


def test_a_limit_that_was_moved_counts() -> None:
    longer = ending_in(HOUR_S)
    longer.wait(HOUR_S / 2)
    longer.slurm = replace(longer.slurm, end_time=longer.slurm.end_time + int(HOUR_S))
    longer.wait(HOUR_S)
    assert not longer.did(do.SignalRanks)
    shorter = ending_in(10 * HOUR_S)
    shorter.wait(HOUR_S)
    shorter.slurm = replace(shorter.slurm, end_time=int(shorter.now.unix) + 300)
    shorter.wait(181)
    assert shorter.did(do.SignalRanks) and left_s(shorter) > 100


def test_slurm_is_asked_seldom() -> None:
    job = ending_in(24 * HOUR_S, settings_with(time_limit__resume_s=1200.0))
    job.wait(10 * HOUR_S)
    assert len(job.did(do.AskSlurm)) <= 10 * 12 + 2


def test_a_slurmctld_that_is_away_leaves_the_end_that_it_told() -> None:
    job = ending_in(HOUR_S)
    job.wait(HOUR_S / 2)
    known, job.slurm = job.slurm, ev.SlurmAnswered(error="slurmctld does not answer", away=True)
    job.wait(HOUR_S / 2 - 50)
    assert job.did(do.SignalRanks)
    job.slurm = known
    job.all_exit(0)
    job.wait(30)
    assert job.status == REQUEUED


def test_by_default_a_checkpoint_is_given_the_time_that_it_was_seen_to_take() -> None:
    job = ending_in(10 * HOUR_S, settings_with(time_limit__resume_s=0.0))
    job.tell(ev.Progressed("n1", 100, saved=3, saving_s=300.0))
    job.wait(10 * HOUR_S - 700)
    assert not job.did(do.SignalRanks)
    job.wait(100)
    assert job.did(do.SignalRanks)
    plain = ending_in(10 * HOUR_S, settings_with(time_limit__resume_s=0.0))
    plain.wait(10 * HOUR_S - 130)
    assert not plain.did(do.SignalRanks)
    plain.wait(15)
    assert plain.did(do.SignalRanks)


def test_it_is_bounded_by_a_count() -> None:
    settings = settings_with(RESUMES, time_limit__resumes=2, max_restarts=0)
    job = ending_in(HOUR_S, settings)
    for _ in range(2):
        job.wait(HOUR_S - 100)
        job.all_exit(0)
        assert job.status == REQUEUED
        job = job.again()
        job.slurm = replace(job.slurm, end_time=int(job.now.unix + HOUR_S))
        job.begin()
    job.wait(HOUR_S - 100)
    job.all_exit(0)
    assert job.status == 0 and job.rungs == [] and "time_limit.resumes 2" in job.said


@pytest.mark.parametrize("settings", [RESUMES, settings_with(RESUMES, warning__signals=("USR1",))])
def test_a_warning_of_slurms_own_before_it_is_the_warning(settings: Settings) -> None:
    job = ending_in(HOUR_S, settings)
    job.wait(HOUR_S - 300)
    number = SIGUSR1 if "USR1" in settings.warning.signals else SIGTERM
    job.tell(ev.SignalSeen(number, 0))
    job.wait(1)
    assert not job.did(do.SignalRanks)
    job.all_exit(0)
    assert job.status == REQUEUED


def test_a_job_that_ranks_requeue_themselves_is_left_to_them() -> None:
    job = ending_in(HOUR_S)
    job.wait(HOUR_S - 110)
    job.slurm = replace(job.slurm, state="PENDING")
    job.all_exit(0)
    job.wait(30)
    assert job.did(do.Requeue) == [] and job.rungs == []


def test_without_the_option_the_end_names_it() -> None:
    job = ending_in(HOUR_S, Settings())
    job.wait(HOUR_S)
    assert not job.did(do.SignalRanks) and not job.did(do.AskSlurm)
    job.slurm = replace(RUNNING, state="TIMEOUT")
    job.tell(*(ev.SignalSeen(SIGTERM, task.rank) for task in job.tasks))
    job.wait(30)
    assert job.status == 143 and "to go on by itself: ftrun --ft-resume-at-limit" in job.said


def test_people_are_told_a_minute_before_and_slurm_is_asked_once() -> None:
    job = Job()
    job.judge.run.facts = job.facts = replace(job.facts, ends_at=int(START.unix + HOUR_S))
    job.slurm = replace(job.slurm, end_time=job.facts.ends_at)
    job.begin()
    job.wait(HOUR_S - 65)
    assert job.said == "" and not job.did(do.AskSlurm)
    job.wait(10)
    assert job.said.endswith("60 s; to go on by itself: ftrun --ft-resume-at-limit") and len(job.did(do.AskSlurm)) == 1


# --- preemption


def preempted(how: ev.Preempted, settings: Settings | None = None, **more: bool) -> Job:
    job = Job(settings or Settings(max_restarts=0)).begin()
    job.slurm = replace(RUNNING, preempted=how, end_time=int(job.now.unix) + 600, **more)
    job.tell(*(ev.SignalSeen(SIGTERM, task.rank) for task in job.tasks))
    return job


@pytest.mark.parametrize("code", [0, 3])
def test_what_saves_and_exits_in_the_grace_of_a_preemption_runs_again_at_no_cost(code: int) -> None:
    job = preempted(ev.Preempted.REQUEUED)
    job.wait(300)
    assert not job.did(do.StopRanks), "the site gives the grace"
    job.all_exit(code)
    (decided,) = job.recorded(rec.Decided)
    assert (job.status, decided.rung, decided.cost) == (REQUEUED, "requeue-on-warning", "")
    assert "the job is being preempted" in decided.why


@pytest.mark.parametrize(
    ("job", "again"),
    [
        (lambda: preempted(ev.Preempted.UNKNOWN), True),
        (lambda: preempted(ev.Preempted.UNKNOWN, requeueable=False), False),
        (lambda: preempted(ev.Preempted.ENDED), False),
        (lambda: preempted(ev.Preempted.REQUEUED, settings_with(preemption__requeue=False)), False),
        (lambda: preempted(ev.Preempted.ENDED, settings_with(warning__requeue=True)), True),
    ],
)
def test_but_not_where_slurm_would_end_it_and_nobody_asked(job: object, again: bool) -> None:
    told = job()  # type: ignore[operator]
    told.wait(5)
    told.all_exit(0)
    assert (told.status == REQUEUED) == again


def test_a_held_job_is_not_said_to_start_soon() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, to_be_held=True)
    job.exits(0, 1)
    assert "requeueing the job: it starts again when it is released" in job.said and "scontrol release 7" in job.said


def test_a_heterogeneous_job_is_said_to_wait_for_the_backfill() -> None:
    job = Job()
    job.judge.run.facts = replace(job.facts, env=replace(job.facts.env, user=frozenset({"SLURM_HET_SIZE"})))
    job.begin()
    job.exits(0, 1)
    assert "with the next run of Slurm's backfill" in job.said
