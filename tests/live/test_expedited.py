"""Expedited jobs (`sbatch --requeue=expedite`, Slurm 25.11 and later) run again as soon as their nodes are clean.

The shared cluster allows them (conftest.py). Source: slurm.conf(5), enable_expedited_requeue.
"""

from __future__ import annotations

import pytest

from tests.live.releases import slurm_version
from tests.live.stories import Story, nodes_in, story

if slurm_version() < (25, 11):
    pytest.skip("expedited requeues came with Slurm 25.11; test_other_slurms.py runs this on 26.05", allow_module_level=True)

pytestmark = [pytest.mark.live, pytest.mark.slurms]

EXPEDITE = ("--requeue=expedite",)
# A requeue that sets a start time waits for it: that it did not is seen by a wait that nobody would take for haste.
LATE = "--ft-set requeue.start_in=100s"
BEFORE_THAT_S = 60.0

SICK = """
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 1 ] && { fault 0.0 80E18402; say sick $SLURMD_NODENAME; }
exec sleep 100
"""


def ran_again_at_once_without_the_sick_node(told: Story) -> None:
    job = told.ended("COMPLETED")
    (sick,) = {words.split()[1] for *_, words in told.said()}
    assert (job["Restarts"], job["ExcNodeList"], job["ExpeditedRequeue"]) == ("1", sick, "Yes")
    assert sick not in nodes_in(told.cluster, job["NodeList"])
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    first, second = (max(start.time for start in told.of_attempt(attempt).values()) for attempt in (1, 2))
    assert second - first < BEFORE_THAT_S


@story(nodes=2, sbatch=EXPEDITE, ft=LATE, rank=SICK)
def test_an_isolated_requeue_waits_for_nothing_but_the_clean_up(told: Story) -> None:
    ran_again_at_once_without_the_sick_node(told)


@story(sbatch=EXPEDITE, ft="--ft-set retry.policy=Never", rank="exit 7")
def test_one_that_fails_for_good_is_held_by_slurm_and_not_run_again(told: Story) -> None:
    """Slurm holds an expedited job whose script failed, where others end FAILED; its owner cancels or releases it."""
    told.wait_for(lambda: told.job()["JobState"] == "REQUEUE_HOLD", "the job to be held", 60.0)
    assert told.counters() == [(1, 1, 1)]
