"""Ranks of which the user has said that they are independent (srun --kill-on-bad-exit=0): a sweep of which a member may fail."""

from __future__ import annotations

from ftslurm.launchers.srun import are_independent
from ftslurm.model import decisions as do
from tests.settings import settings_with
from tests.stories.replay import Job, fault

ONCE = settings_with(mode="independent", in_place_restart__crash_restarts=1)


def test_a_member_that_fails_for_good_ends_no_other_and_the_status_is_srun_s() -> None:
    job = Job(ONCE).begin()
    job.exits(1, 7)
    assert "attempt 2 on n1, rank 1 alone" in job.said, "it is tried again alone, once"
    job.exits(1, 7)
    assert job.status is None and len(job.did(do.StartRanks)) == 2, "the others run on"
    assert "the other ranks run on" in job.said
    for rank in (0, 2, 3):
        job.exits(rank, 0)
    assert job.status == 7 and not job.did(do.Requeue)


def test_a_member_that_gets_on_at_the_second_try_leaves_no_failure() -> None:
    job = Job(ONCE).begin()
    job.exits(1, 7)
    for rank in range(4):
        job.exits(rank, 0)
    assert job.status == 0


def test_without_restarts_after_a_crash_it_is_plain_srun() -> None:
    job = Job(settings_with(mode="independent", in_place_restart__crash_restarts=0)).begin()
    for rank in (0, 2, 3):
        job.exits(rank, 0)
    job.exits(1, 9)
    assert job.status == 9 and len(job.did(do.StartRanks)) == 1


def test_a_broken_device_is_answered_when_the_others_have_ended() -> None:
    job = Job(ONCE).begin()
    job.exits(0, 1)
    job.exits(1, 7)
    assert job.status is None
    job.shows(fault())
    assert job.did(do.StartRanks)


def test_what_the_user_says_to_srun() -> None:
    assert are_independent(("--kill-on-bad-exit=0",), {}) and are_independent((), {"SLURM_KILL_BAD_EXIT": "0"})
    assert not are_independent((), {}) and not are_independent(("--kill-on-bad-exit=1",), {"SLURM_KILL_BAD_EXIT": "0"})
    assert not are_independent(("--kill-on-bad-exit",), {})
    assert not are_independent(("-K",), {"SLURM_KILL_BAD_EXIT": "0"})  # an option without its value counts, too
