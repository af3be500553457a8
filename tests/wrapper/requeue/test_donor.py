"""A donor lends its node as long as the job is in the scheduling that borrowed it, and while nobody can tell."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ftslurm.errors import SlurmUnavailable
from ftslurm.slurm.client import JobState
from ftslurm.wrapper.requeue.donor import POLL_S, lend, needed
from tests.fakes.slurm import FakeSlurm


def running() -> tuple[FakeSlurm, int]:
    slurm = FakeSlurm(clean_up_s=3600.0)
    job = slurm.submit(1)
    assert slurm.job(job).state is JobState.RUNNING
    return slurm, job


def test_a_running_job_needs_its_node() -> None:
    slurm, job = running()
    assert needed(slurm, job, 0)


def test_while_slurm_says_nothing_it_is_needed() -> None:
    slurm, job = running()
    slurm.away = True
    with pytest.raises(SlurmUnavailable):
        slurm.job(job)
    assert needed(slurm, job, 0)


def test_a_job_of_a_later_scheduling_has_no_use_for_it() -> None:
    slurm, job = running()
    assert not needed(slurm, job, 1)


def test_a_job_that_cleans_up_or_is_over_or_unknown_needs_nothing() -> None:
    slurm, job = running()
    slurm.requeue_held(job)
    assert not needed(slurm, job, 0)
    slurm, job = running()
    slurm.cancel(job)
    assert not needed(slurm, job, 0)
    assert not needed(slurm, 66_000_000, 0)


def test_it_looks_again_and_again_until_then() -> None:
    slurm, job = running()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            slurm.away = True
        if len(slept) == 4:
            slurm.away = False
            slurm.cancel(job)

    lend(slurm, job, 0, sleep)
    assert slept == [POLL_S] * 4


@pytest.mark.parametrize("words", [["7"], ["7", "x", "5"]])
def test_a_donor_started_otherwise_ends_at_once(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ftslurm.wrapper.requeue import donor

    monkeypatch.setattr("sys.argv", ["donor", *words])
    with pytest.raises(ValueError):
        donor.main()
