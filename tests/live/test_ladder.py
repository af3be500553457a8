"""The ladder, on a real cluster: each degradation, each budget, and the job that fails with its own exit status."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.stories import Plan, Stage, Story, admin, nodes_in, story

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.live

THRICE = """
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
together; [ $SLURM_PROCID = 1 ] && { fault 0.0 80C98008; say sick $SLURMD_NODENAME; }
exec sleep 100
"""


def sick_node(told: Story) -> str:
    (sick,) = {words.split()[1] for *_, words in told.said()}
    return sick


@story(nodes=2, rank=THRICE)
def test_the_third_same_code_isolates_the_node(told: Story) -> None:
    job = told.ended("COMPLETED")
    sick = sick_node(told)
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", sick)
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 1, 4)]
    assert sick not in {start.node for start in told.of_attempt(4).values()}
    assert {start.rung for start in told.of_attempt(4).values()} == {"isolated-requeue"}


@pytest.mark.flat
@story(
    nodes=3,
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 2 ] && { fault 1.0 80E18402; say sick $SLURMD_NODENAME; }
exec sleep 100
""",
)
def test_a_critical_code_isolates_at_once(told: Story) -> None:
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", sick_node(told))
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert sick_node(told) not in nodes_in(told.cluster, job["NodeList"])


@pytest.mark.long
@story(ft="--ft-max-restarts 1", rank="exit 5")
def test_max_restarts_spent_fails(told: Story) -> None:
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("1", "5:0")
    assert "the 1 requeue (max_restarts) is spent" in told.output()


@story(
    sbatch=("""--comment={"fault-tolerance/job-retry-num":"2","fault-tolerance/job-unconditional-retry":"true"}""",),
    rank="exit 6",
)
def test_annotations_in_the_comment_are_honoured(told: Story) -> None:
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("2", "6:0")


TOO_FEW = "the job needs 6 nodes and only 5 remain"


@story(
    nodes=6,
    ft="--ft-set devices.answer_wait=40s",
    rank="together; [ $SLURM_PROCID = 5 ] || exec sleep 100; fault 0.0 80E18402; exit 11",
)
def test_too_few_nodes_left_fails_with_that_sentence_and_does_not_wait_for_ever(told: Story) -> None:
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("0", "11:0")
    assert "Slurm could never start the job if n6 is excluded" in told.output()


@pytest.mark.long
@story(nodes=6, rank="[ $SLURM_PROCID = 5 ] && fault 0.0 80E18402; await end; exit 11")
def test_ranks_that_run_on_a_node_nothing_can_replace_are_left_to_run(told: Story) -> None:
    """The fault alone ends nothing; when the program fails later, the fault is as much in the way as at first."""
    told.wait_for(lambda: TOO_FEW in told.output(), "the sentence", 60.0)
    assert told.job()["JobState"] == "RUNNING"
    told.allow("end")
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("0", "11:0")


@story(
    tasks=2,
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
together
[ $SLURM_PROCID = 0 ] && { npu-sim tool hang; exit 3; }
exec sleep 100
""",
)
def test_a_device_tool_that_hangs_holds_up_no_decision(told: Story) -> None:
    """Unknown is neither good nor bad: the crash is answered as if there were no devices."""
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)")
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    told.wait_nothing_left()


@story(
    script="""
srun ./no-such-program 2>/dev/null
echo $? >"$STORY/srun-status"
exec ftrun ./no-such-program
"""
)
def test_a_command_that_cannot_run_anywhere_is_not_tried_again(told: Story) -> None:
    job = told.ended("FAILED")
    status = (told.folder / "srun-status").read_text().strip()
    assert (job["Restarts"], job["ExitCode"]) == ("0", f"{status}:0")
    assert "no-such-program" in told.output()


def test_a_node_that_slurm_calls_failing_is_left_out(
    boot_cluster: Callable[..., AbstractContextManager[Cluster]], job_path: tuple[Path, ...], job_home: Path
) -> None:
    """On a cluster of its own: the node's state is everybody's."""
    with boot_cluster(nodes=3) as own:
        stage = Stage(own, job_home, job_path)
        told = stage.tell(
            Plan(
                nodes=2,
                rank="""
            [ $MA_SCHEDULE_CNT = 1 ] || exit 0
            [ $SLURM_PROCID = 1 ] && { await failing; exit 8; }
            exec sleep 100
        """,
            ),
            "failing-node",
        )
        sick = told.wait_started()[1].node
        own.answer(["scontrol", "update", f"NodeName={sick}", "State=FAIL", "Reason=ECC"], user=admin())
        told.allow("failing")
        job = told.ended("COMPLETED")
        assert (job["Restarts"], job["ExcNodeList"]) == ("1", sick)
        assert told.counters() == [(1, 1, 1), (2, 1, 2)]
        assert {start.cause for start in told.of_attempt(2).values()} == {"node"}
