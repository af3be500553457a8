"""What Slurm, its administrators and the user do to a job by Slurm's own means: no rank is lost by it that need not be,
and it costs no budget, since no failure of the job is behind it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import booted, new_stage
from tests.live.overlap import BEAT, MAKE_PIPE, RANK, beats, overlaps
from tests.live.stories import Plan, Stage, Story, admin, story, terminal
from tests.machine import slowness

pytestmark = pytest.mark.live

# After a requeue that is not ours Slurm waits cred_expire and a second; by default that is 121 s.
CONF = [
    "AuthInfo=cred_expire=5", "KillWait=10", "ReturnToService=1", "PreemptType=preempt/partition_prio", "PreemptMode=SUSPEND,GANG",
    "PartitionName=requeued Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE OverSubscribe=FORCE:1",
    "PartitionName=warned Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=30 OverSubscribe=FORCE:1",
    "PartitionName=cancelled Nodes=ALL PriorityTier=1 PreemptMode=CANCEL OverSubscribe=FORCE:1",
    "PartitionName=suspended Nodes=ALL PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:1",
    "PartitionName=urgent Nodes=ALL PriorityTier=9 PreemptMode=OFF OverSubscribe=FORCE:1",
    "PartitionName=gang Nodes=ALL PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:2", "SchedulerTimeSlice=8",
]  # fmt: skip
LEASE_S = 12.0
SHORT_LEASE = (
    f"--ft-set lease.time={LEASE_S:g}s --ft-set nodes.silence=4s --ft-set nodes.probe_timeout=3s --ft-set lease.margin=3s"
)
AGAIN_TIMEOUT_S = 60.0
WAITS = '[ $MA_SCHEDULE_CNT = 1 ] || exit 0\nsay ready\nuntil [ -e "$STORY/end" ]; do sleep 0.3; done'
CHECKPOINT = """
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
trap 'say checkpoint; exit 0' TERM
say ready
until [ -e "$STORY/end" ]; do sleep 0.3; done
"""


@pytest.fixture(scope="module")
def own_stage(job_path: tuple[Path, ...]) -> Iterator[Stage]:
    """Four nodes of our own: what happens here to nodes and daemons is no other test's business."""
    # Exclusive jobs take all GPUs, and Slurm gives those of a suspended job to nobody.
    with booted(nodes=4, conf=CONF, options=["--gpus=0"]) as own, new_stage(own, job_path) as stage:
        yield stage


@pytest.fixture
def tell(own_stage: Stage, request: pytest.FixtureRequest) -> Callable[..., Story]:
    def tell(**plan: Any) -> Story:
        told = own_stage.tell(Plan(**plan), request.node.name)
        told.wait_started()
        return told

    return tell


def ready(told: Story) -> None:
    ranks = told.plan.nodes * told.plan.tasks
    told.wait_for(lambda: [words for *_, words in told.said()].count("ready") == ranks, "all ranks to be ready")


def scontrol(told: Story, *words: str) -> None:
    told.cluster.answer(["scontrol", *words], user=admin())


def set_node(told: Story, node: str, state: str) -> None:
    scontrol(told, "update", f"NodeName={node}", f"State={state}", "Reason=a test")


def back(told: Story, node: str) -> None:
    set_node(told, node, "RESUME")
    told.cluster.wait_for(lambda: told.cluster.node(node)["State"].startswith("IDLE"), AGAIN_TIMEOUT_S, f"{node} to be back")


def costs_nothing(told: Story) -> None:
    status = told.json("status", str(told.id))
    assert {name: left for name, (left, limit) in status["left"].items() if left != limit} == {}
    assert status["unconditional_in_a_row"] == 0


def node_of(told: Story, rank: int) -> str:
    return told.of_attempt(1)[rank].node


# ---- preemption


def urgent_job(told: Story, seconds: int = 1) -> int:
    """Takes the nodes of the story's job."""
    nodes = ",".join(sorted({start.node for start in told.of_attempt(1).values()}))
    count = len(nodes.split(","))
    return told.cluster.submit(
        f"#!/bin/bash\nsleep {seconds}\n",
        "--partition=urgent",
        f"--nodes={count}",
        "--exclusive",
        f"--nodelist={nodes}",
        "--output=/dev/null",
        "--time=1",
    )


@pytest.mark.slurms
def test_a_preempted_job_runs_again_and_has_paid_nothing(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS, sbatch=("--partition=requeued", "--exclusive"))
    urgent = urgent_job(told)
    told.cluster.wait_for_state(urgent, "COMPLETED", timeout_s=AGAIN_TIMEOUT_S)
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)")
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    costs_nothing(told)


@pytest.mark.slurms
@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.long), 3])
def test_a_job_that_saves_and_exits_in_the_grace_of_a_preemption_runs_again(tell: Callable[..., Story], code: int) -> None:
    """GraceTime: SIGCONT and SIGTERM first, and only then PreemptTime tells what they mean; PreemptMode is the partition's."""
    rank = CHECKPOINT.replace("exit 0' TERM", f"exit {code}' TERM")
    told = tell(nodes=2, rank=rank, sbatch=("--partition=warned", "--exclusive"))
    ready(told)
    urgent = urgent_job(told)
    told.wait_for(lambda: {rank for rank, *_, words in told.said() if words == "checkpoint"} == {0, 1}, "both checkpoints")
    told.cluster.wait_for_state(urgent, "COMPLETED", timeout_s=AGAIN_TIMEOUT_S)
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    costs_nothing(told)


def test_a_job_that_preemption_cancels_is_over(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS, sbatch=("--partition=cancelled", "--exclusive"))
    urgent = urgent_job(told)
    assert told.ended("PREEMPTED")["Restarts"] == "0"
    told.cluster.wait_for_state(urgent, "COMPLETED", timeout_s=AGAIN_TIMEOUT_S)
    assert set(told.attempts()) == {1}
    told.wait_nothing_left()
    costs_nothing(told)


@pytest.mark.long
def test_a_job_that_preemption_suspends_goes_on_afterwards(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS, ft=SHORT_LEASE, sbatch=("--partition=suspended", "--exclusive"))
    ready(told)
    urgent = urgent_job(told, seconds=int(1.5 * LEASE_S))
    told.wait_for(lambda: told.job()["JobState"] == "SUSPENDED", "the suspension")
    told.cluster.wait_for_state(urgent, "COMPLETED", timeout_s=AGAIN_TIMEOUT_S)
    told.wait_for(lambda: told.job()["JobState"] == "RUNNING", "the job to go on", AGAIN_TIMEOUT_S)
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]
    costs_nothing(told)


# ---- suspension, by a worker of its own: it waits for leases to run out

of_suspension = pytest.mark.xdist_group("suspension")
LONGER_S = 1.5 * LEASE_S  # than any lease lasts


def suspended(told: Story, seconds: float) -> None:
    scontrol(told, "suspend", str(told.id))
    told.cluster.wait_for_state(told.id, "SUSPENDED")
    told.wait_for(lambda: states(told) <= STOPPED, "the ranks to be stopped")
    told.wait_for(lambda: suspended_s(told) >= seconds, "the time to pass", seconds + 20.0)


def suspended_s(told: Story) -> float:
    since = told.job()["SuspendTime"]
    return time.time() - time.mktime(time.strptime(since, "%Y-%m-%dT%H:%M:%S"))


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


# By a signal, or by the cgroup's freezer.
STOPPED = {"T", "D"}


def states(told: Story) -> set[str]:
    """Of all ranks; `gone` if one has ended."""
    pids = told.pids()
    return {state_of(pids.get((start.node, start.pid), 0)) for start in told.starts()}


@of_suspension
def test_a_suspension_longer_than_the_lease_is_survived(tell: Callable[..., Story]) -> None:
    told = tell(nodes=3, tasks=2, rank=WAITS, ft=SHORT_LEASE)
    ready(told)
    for _ in range(2):
        suspended(told, LONGER_S)
        assert states(told) <= STOPPED, told.describe()
        scontrol(told, "resume", str(told.id))
        told.cluster.wait_for_state(told.id, "RUNNING")
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]
    costs_nothing(told)


BEATS = """
import os, time
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
open(f"{os.environ['STORY']}/beating.{os.environ['SLURM_PROCID']}", "w").close()
while not os.path.exists(os.environ["STORY"] + "/end"):
    client.send_heartbeat()
    time.sleep(0.2)
client.shutdown_workload_monitoring()
"""
SLICE_S = 13.0


@of_suspension
def test_a_suspension_is_nobody_s_silence(tell: Callable[..., Story]) -> None:
    """As gang scheduling stops a job again and again (below), each time for longer than its limit between beats."""
    told = tell(
        nodes=2, rank='say ready\nexec /usr/bin/python3 "$STORY/beats.py"', files={"beats.py": BEATS},
        ft="--ft-initial-rank-heartbeat-timeout=60 --ft-param-rank_heartbeat_timeout=6",
    )  # fmt: skip
    ready(told)
    for _ in range(2):
        told.wait_for(lambda: len(list(told.folder.glob("beating.*"))) == 2, "the ranks to beat")
        suspended(told, SLICE_S)
        scontrol(told, "resume", str(told.id))
        told.cluster.wait_for_state(told.id, "RUNNING")
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]
    costs_nothing(told)


@pytest.mark.long
@of_suspension
def test_gang_scheduling_stops_a_job_in_turn_and_that_is_no_silence(own_stage: Stage) -> None:
    """Two jobs share two nodes in slices that are longer than the limit between their beats."""
    cpus = own_stage.cluster.node("n1")["CPUTot"]
    plan = Plan(
        nodes=2, rank='say ready\nexec /usr/bin/python3 "$STORY/beats.py"', files={"beats.py": BEATS},
        ft="--ft-initial-rank-heartbeat-timeout=60 --ft-param-rank_heartbeat_timeout=4",
        sbatch=("--partition=gang", "--nodelist=n1,n2", f"--cpus-per-task={cpus}", "--mem=400M", "--time=10"),
    )  # fmt: skip
    both = [own_stage.tell(plan, f"gang-{name}") for name in ("a", "b")]
    stops = dict.fromkeys((told.id for told in both), 0)
    before = ""
    deadline = time.monotonic() + 4 * AGAIN_TIMEOUT_S
    while min(stops.values()) < 2 or not all(len(list(told.folder.glob("beating.*"))) == 2 for told in both):
        assert time.monotonic() < deadline, stops
        turn = " ".join(told.job()["JobState"] for told in both)
        for told, state in zip(both, turn.split(), strict=True):
            stops[told.id] += state == "SUSPENDED" and turn != before
        before = turn
        time.sleep(0.3)
    for told in both:
        told.allow("end")
    for told in both:
        assert told.ended("COMPLETED")["Restarts"] == "0"
        assert told.counters() == [(1, 1, 1)]
        costs_nothing(told)


@pytest.mark.long
@of_suspension
def test_an_ftrun_outside_the_job_waits_for_its_suspended_ranks(own_stage: Stage) -> None:
    """In salloc Slurm stops the step, and ftrun goes on."""
    told = own_stage.prepare(Plan(nodes=2, rank=WAITS), "salloc")
    options = SHORT_LEASE.split()
    with terminal(told, told.salloc_argv("ftrun", *options, "sh", f"{told.folder}/rank.sh")) as shell:
        told.id = int(told.wait_started()[0].job)
        ready(told)
        suspended(told, LONGER_S)
        scontrol(told, "resume", str(told.id))
        told.cluster.wait_for_state(told.id, "RUNNING")
        told.wait_for(lambda: states(told) <= {"R", "S"}, "the ranks to run")
        told.allow("end")
        assert shell.wait() == 0, shell.seen
    assert told.counters() == [(1, 1, 1)]


@of_suspension
@pytest.mark.slurms
def test_a_suspended_job_can_be_requeued(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS, ft=SHORT_LEASE)
    ready(told)
    suspended(told, 2.0)
    scontrol(told, "requeue", str(told.id))
    told.wait_for(lambda: told.job()["Reason"] == "JobHeldAdmin", "Slurm to hold it, as it does with a suspended job")
    told.wait_nothing_left()
    scontrol(told, "release", str(told.id))
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    costs_nothing(told)


@of_suspension
def test_a_suspended_job_can_be_cancelled(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS, ft=SHORT_LEASE)
    ready(told)
    suspended(told, 2.0)
    told.cluster.answer(["scancel", str(told.id)])
    assert told.ended("CANCELLED")["Restarts"] == "0"
    told.wait_nothing_left()


# What stands still with its shim runs, once somebody lets both go on, until the shim has stopped it again: milliseconds
# where nothing else runs.
HELD_WITHIN_S = 2.0


@pytest.mark.long
@of_suspension
def test_a_node_that_is_cut_off_while_the_job_is_suspended_is_not_waited_for_for_ever(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=MAKE_PIPE + RANK, files={"beat.sh": BEAT + "exit 0\n"}, ft=SHORT_LEASE)
    own = told.cluster
    (cut,) = {start.node for start in told.of_attempt(1).values()} - {told.job()["BatchHost"]}
    told.wait_for(lambda: {beat.rank for beat in beats(told.folder)} == {0, 1}, "both ranks to write")
    suspended(told, LONGER_S)
    own.tool("node-freeze", cut)
    try:
        scontrol(told, "resume", str(told.id))
        told.wait_for(lambda: told.job()["Restarts"] == "1", "the requeue", 90.0)
        set_node(told, cut, "DOWN")  # as Slurm itself does after SlurmdTimeout
        told.wait_for(lambda: runs_again(told), "attempt 2 to write", 90.0)
    finally:
        own.tool("node-thaw", cut)
    thawed_at = time.time()
    told.wait_for(lambda: not told.alive(told.of_attempt(1).values()), "what stood still to be gone", 60.0)
    told.allow("enough")
    assert told.ended("COMPLETED")["Restarts"] == "1"
    back(told, cut)
    assert {start.rung for start in told.of_attempt(2).values()} == {"isolated-requeue"}
    assert cut not in {start.node for start in told.of_attempt(2).values()}
    late = [beat.time for beat in beats(told.folder) if (beat.node, beat.attempt) == (cut, 1)]
    assert max(late) < thawed_at + HELD_WITHIN_S * slowness()


def runs_again(told: Story) -> bool:
    """The clean-up took longer than `requeue.start_in`, so Slurm adds its own delay, unless asked afterwards."""
    told.hurry()
    return {beat.rank for beat in beats(told.folder) if beat.attempt == 2} == {0, 1}


# ---- an operator gives the job back


@pytest.mark.slurms
def test_an_operator_s_requeue_costs_nothing(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, tasks=2, rank=WAITS)
    scontrol(told, "requeue", str(told.id))
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert {(start.rung, start.cause) for start in told.of_attempt(2).values()} == {("requeue-by-slurm", "outside")}
    costs_nothing(told)


@pytest.mark.slurms
def test_a_job_requeued_held_waits_for_its_release_and_has_paid_nothing(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS)
    scontrol(told, "requeuehold", str(told.id))
    told.wait_for(lambda: (job := told.job())["JobState"] == "PENDING" and job["Priority"] == "0", "the hold")
    told.wait_nothing_left()
    assert set(told.attempts()) == {1}
    scontrol(told, "release", str(told.id))
    assert told.ended("COMPLETED")["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    costs_nothing(told)


# ---- scancel, of less than the job


@pytest.mark.slurms
def test_scancel_of_the_batch_step_is_the_end_of_the_job(tell: Callable[..., Story]) -> None:
    """SIGKILL for the script and ftrun: the job fails, as it would under srun."""
    told = tell(nodes=2, rank=WAITS)
    told.cluster.answer(["scancel", "--batch", str(told.id)])
    assert told.ended("FAILED")["Restarts"] == "0"
    told.wait_nothing_left()
    assert set(told.attempts()) == {1}
    costs_nothing(told)


@pytest.mark.slurms
def test_scancel_of_the_step_ends_it_for_good_with_srun_s_status(tell: Callable[..., Story]) -> None:
    """Nothing but a line on the stderr of srun tells it from a step whose daemons died. The script goes on."""
    told = tell(nodes=2, rank=WAITS, script='%RUN%\necho "ended with $?"\n')
    told.cluster.answer(["scancel", f"{told.id}.0"])
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)] and "ended with 137" in told.output()
    assert told.json("status", str(told.id))["left"]["max_restarts"] == [8, 8]


@pytest.mark.long
@pytest.mark.slurms
def test_where_nobody_can_read_srun_s_words_such_a_step_looks_like_a_lost_one(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS, script="{ %RUN%; } 2>&1 | cat\n")
    told.cluster.answer(["scancel", f"{told.id}.0"])
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)")
    # A shim may see that its rank was killed before it is killed itself.
    assert {start.cause for start in told.of_attempt(2).values()} <= {"lost", "crash"}


def test_usr1_reaches_every_rank_once_and_ends_nothing(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank="trap 'say usr1' USR1\n" + WAITS)
    ready(told)
    told.cluster.answer(["scancel", "--signal=USR1", str(told.id)])
    told.wait_for(lambda: [words for *_, words in told.said()].count("usr1") == 2, "SIGUSR1 in both ranks")
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert [words for *_, words in told.said()].count("usr1") == 2
    costs_nothing(told)


# ---- nodes


def test_draining_a_node_of_the_job_ends_nothing(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=WAITS)
    drained = node_of(told, 1)
    set_node(told, drained, "DRAIN")
    try:
        told.cluster.wait_for(lambda: "DRAIN" in told.cluster.node(drained)["State"], 10.0, "the drain")
        told.allow("end")
        assert told.ended("COMPLETED")["Restarts"] == "0"
        assert told.counters() == [(1, 1, 1)]
        costs_nothing(told)
    finally:
        back(told, drained)


def test_a_fault_on_a_draining_node_is_healed_there_and_the_next_scheduling_avoids_it(tell: Callable[..., Story]) -> None:
    told = tell(
        nodes=2,
        rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
if [ $MA_PROC_START_CNT = 1 ]; then await drained; [ $SLURM_PROCID = 1 ] && fault 0.0 80C98008; exec sleep 100; fi
together; [ $SLURM_PROCID = 1 ] && exit 3
exec sleep 100
""",
    )
    drained = node_of(told, 1)
    set_node(told, drained, "DRAIN")
    try:
        told.allow("drained")
        job = told.ended("COMPLETED")
        assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)"), "no node is blamed for being drained"
        assert told.counters() == [(1, 1, 1), (1, 2, 2), (2, 1, 3)]
        assert {start.node for start in told.of_attempt(2).values()} == {start.node for start in told.of_attempt(1).values()}
        assert drained not in {start.node for start in told.of_attempt(3).values()}
        assert told.json("status", str(told.id))["left"]["max_restarts"] == [7, 8], "for the crash alone"
    finally:
        back(told, drained)


@pytest.mark.slurms
def test_a_node_set_down_by_an_admin_is_slurm_s_own_requeue(tell: Callable[..., Story]) -> None:
    """Without --no-kill Slurm ends the job on all nodes at once and requeues it."""
    told = tell(nodes=2, tasks=2, rank=MAKE_PIPE + RANK, files={"beat.sh": BEAT + "exit 0\n"}, ft=SHORT_LEASE)
    down = node_of(told, 3)
    told.wait_for(lambda: {beat.rank for beat in beats(told.folder)} == {0, 1, 2, 3}, "all ranks to write")
    set_node(told, down, "DOWN")
    try:
        told.wait_for(lambda: {beat.rank for beat in beats(told.folder) if beat.attempt == 2} == {0, 1, 2, 3}, "attempt 2", 90.0)
        told.allow("enough")
        assert told.ended("COMPLETED")["Restarts"] == "1"
    finally:
        back(told, down)
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert down not in {start.node for start in told.of_attempt(2).values()}
    assert overlaps(beats(told.folder)) == []
    costs_nothing(told)


@pytest.mark.slurms
def test_a_node_set_down_with_no_kill_is_left_out(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank="[ $MA_SCHEDULE_CNT = 1 ] || exit 0\nexec sleep 100", sbatch=("--no-kill",), ft=SHORT_LEASE)
    batch = told.job()["BatchHost"]
    (down,) = {start.node for start in told.of_attempt(1).values()} - {batch}
    set_node(told, down, "DOWN")
    try:
        assert told.ended("COMPLETED")["Restarts"] == "1"
    finally:
        back(told, down)
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert down not in {start.node for start in told.of_attempt(2).values()}


# ---- daemons


@pytest.mark.slurms
def test_reconfigure_and_new_daemons_disturb_no_rank(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, tasks=2, rank=WAITS, ft=SHORT_LEASE)
    ready(told)
    scontrol(told, "reconfigure")
    told.cluster.tool("ctld-stop")
    told.cluster.tool("ctld-start")
    for node in sorted({start.node for start in told.starts()}):
        told.cluster.tool("node-down", node)  # slurmd alone: its steps live on
        told.cluster.tool("node-up", node)
    assert states(told) <= {"R", "S"}, told.describe()
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1)]
    costs_nothing(told)


@pytest.mark.long
def test_a_fault_after_slurmd_came_back_is_healed_in_place(tell: Callable[..., Story]) -> None:
    told = tell(
        nodes=2,
        rank="""
[ $MA_PROC_START_CNT = 1 ] || exit 0
await restarted
[ $SLURM_PROCID = 1 ] && fault 0.0 80C98008
exec sleep 100
""",
    )
    node = node_of(told, 1)
    told.cluster.tool("node-down", node)
    told.cluster.tool("node-up", node)
    told.allow("restarted")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    costs_nothing(told)


# ---- time


def test_a_longer_time_limit_is_believed(tell: Callable[..., Story]) -> None:
    """A warning of a limit that is then moved: the ranks got the signal, and whether they end is theirs."""
    told = tell(nodes=2, rank="trap 'say term' TERM\n" + WAITS, sbatch=("--time=1",))
    ready(told)
    scontrol(told, "update", f"JobId={told.id}", "TimeLimit=30")
    told.cluster.answer(["scancel", "--signal=TERM", str(told.id)])
    told.wait_for(lambda: [words for *_, words in told.said()].count("term") == 2, "SIGTERM in both ranks")
    told.allow("end")
    assert told.ended("COMPLETED")["Restarts"] == "0"
    costs_nothing(told)


@story(early=True, nodes=2, rank=WAITS)
def test_a_shorter_time_limit_ends_the_job_and_costs_nothing(told: Story) -> None:
    told.wait_started()
    told.cluster.answer(["scontrol", "update", f"JobId={told.id}", "TimeLimit=1"])
    job = told.ended("TIMEOUT", timeout_s=130.0)
    assert job["Restarts"] == "0"
    told.wait_nothing_left()
    assert set(told.attempts()) == {1}
    costs_nothing(told)


# ---- one process is stopped, and not the job


def shims_on(told: Story, node: str) -> list[int]:
    """The parents of the ranks' commands."""
    return [
        int(Path(f"/proc/{told.pid(start)}/stat").read_text().rpartition(")")[2].split()[1])
        for start in told.of_attempt(1).values()
        if start.node == node
    ]


def test_a_shim_that_is_stopped_alone_still_ends_with_its_lease(tell: Callable[..., Story]) -> None:
    told = tell(nodes=2, rank=MAKE_PIPE + RANK, files={"beat.sh": BEAT + "exit 0\n"}, ft=SHORT_LEASE)
    told.wait_for(lambda: {beat.rank for beat in beats(told.folder)} == {0, 1}, "both ranks to write")
    (shim,) = shims_on(told, node_of(told, 1))
    os.kill(shim, signal.SIGSTOP)
    told.wait_for(lambda: {beat.rank for beat in beats(told.folder) if beat.attempt == 2} == {0, 1}, "attempt 2", 90.0)
    told.allow("enough")
    told.ended("COMPLETED")
    assert overlaps(beats(told.folder)) == []
