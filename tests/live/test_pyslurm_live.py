"""ftrun over the real pyslurm: whole requeues, from the first fault to the last rank."""

from __future__ import annotations

import pytest

from tests.live.releases import needs_pyslurm
from tests.live.stories import Story, nodes_in, story

pytestmark = [pytest.mark.live, pytest.mark.slurms, needs_pyslurm]

# Else a pyslurm that does not work would go unseen: ftrun asks scontrol then.
PYSLURM = {"FTRUN_SLURM_CLIENT": "pyslurm"}


@story(
    nodes=4,
    tasks=2,
    env=PYSLURM,
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 5 ] && { fault 0.0 80C98008 --reset refused; say sick $SLURMD_NODENAME; }
exec sleep 100
""",
)
def test_healing_refused_requeues_without_that_node(told: Story) -> None:
    job = told.ended("COMPLETED")
    (sick,) = {words.split()[1] for *_, words in told.said()}
    assert (job["Restarts"], job["ExcNodeList"], job["ExitCode"]) == ("1", sick, "0:0")
    assert sick not in nodes_in(told.cluster, job["NodeList"])
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert told.batch()[-2:] == [("before", 2, 1, 2), ("after", 2, 1, 2)]


@story(sbatch=("--array=3-4",), env=PYSLURM, rank="[ $SLURM_ARRAY_TASK_ID.$MA_SCHEDULE_CNT = 3.1 ] && exit 6; exit 0")
def test_a_task_of_an_array_is_requeued_alone(told: Story) -> None:
    assert [told.ended("COMPLETED", number=f"{told.id}_{task}")["Restarts"] for task in (3, 4)] == ["1", "0"]
