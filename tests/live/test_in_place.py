"""Restarts in place, on a real cluster: same allocation, same nodes, and counters that tell the ranks of it."""

from __future__ import annotations

import sys

import pytest

from tests.live.stories import NOTED, Story, story

pytestmark = pytest.mark.live

# Rank 5 sits on the third of four nodes; its chip is at fault once, and the others do not know.
FAULT_ONCE = """
[ $MA_PROC_START_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 5 ] && fault 0.0 80C98008
exec sleep 100
"""
FAULT = "80C98008"  # multi-bit ECC of an AI Core: heals


@pytest.mark.flat
@pytest.mark.slurms
@story(nodes=4, tasks=2, rank=FAULT_ONCE, script=NOTED)
def test_a_fault_is_healed_in_place(told: Story) -> None:
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExitCode"], job["ExcNodeList"]) == ("0", "0:0", "(null)")
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    first, second = told.of_attempt(1), told.of_attempt(2)
    assert {rank: start.node for rank, start in second.items()} == {rank: start.node for rank, start in first.items()}
    assert len({start.node for start in first.values()}) == 4
    assert {start.step for start in told.starts()} == {f"{told.id}.0"}
    assert {(start.rung, start.cause) for start in first.values()} == {("", "")}
    assert {(start.rung, start.cause) for start in second.values()} == {("in-place-restart", "device")}
    assert told.batch() == [("before", 1, 1, 1), ("after", 1, 2, 2)]


@pytest.mark.long
@story(
    nodes=2,
    tasks=2,
    ft="--ft-set rungs.in-place-restart.reset=never --ft-set rungs.in-place-restart.self_heal_wait=40s",
    rank="""
[ $MA_PROC_START_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 0 ] && fault 0.0 80C98008 --heals-after 15 --reset refused
exec sleep 100
""",
)
def test_a_fault_that_heals_by_itself_needs_no_reset(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]


@pytest.mark.long
@story(
    nodes=2,
    tasks=2,
    rank="""
[ $MA_PROC_START_CNT = 1 ] || exit 0
case $SLURM_PROCID in 0) fault 0.0 80C98008;; 3) fault 1.0 80E18008;; esac
exec sleep 100
""",
)
def test_faults_on_two_nodes_are_one_restart(told: Story) -> None:
    """Both are seen before the ranks run again, or they cost an attempt each, which is as good."""
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert [counters[:1] + counters[1:2] for counters in told.counters()] in ([(1, 1), (1, 2)], [(1, 1), (1, 2), (1, 3)])


@pytest.mark.slurms
@story(
    nodes=2,
    tasks=2,
    ft="--ft-restart-via step",
    rank="""
[ $MA_PROC_START_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 1 ] && fault 0.0 80C98008
exec sleep 100
""",
)
def test_restart_via_step_starts_a_new_step(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    first, second = told.of_attempt(1), told.of_attempt(2)
    assert {rank: start.node for rank, start in second.items()} == {rank: start.node for rank, start in first.items()}
    assert {start.step for start in first.values()} == {f"{told.id}.0"}
    (second_step,) = {start.step for start in second.values()}
    assert second_step.startswith(f"{told.id}.") and second_step != f"{told.id}.0"


@pytest.mark.long
@story(
    tasks=3,
    ft="--ft-set rungs.in-place-restart.crash_restarts=2",
    rank="""
together
[ $SLURM_PROCID = 1 ] && [ $MA_PROC_START_CNT -lt 3 ] && exit 9
[ $MA_PROC_START_CNT = 3 ] || exec sleep 100
""",
)
def test_crashes_are_answered_in_place_where_the_policy_says_so(told: Story) -> None:
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (1, 3, 3)]


@pytest.mark.slurms
@story(
    nodes=2,
    tasks=1,
    script=NOTED,
    rank="""
case $MA_SCHEDULE_CNT.$MA_PROC_START_CNT in
1.1) [ $SLURM_PROCID = 1 ] && fault 0.0 80C98008; exec sleep 100;;
1.2) together; [ $SLURM_PROCID = 0 ] && exit 3; exec sleep 100;;
2.1) [ $SLURM_PROCID = 0 ] && fault 0.0 80C98008; exec sleep 100;;
esac
""",
)
def test_counters_over_restart_in_place_then_requeue_then_in_place_again(told: Story) -> None:
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)")
    assert told.counters() == [(1, 1, 1), (1, 2, 2), (2, 1, 3), (2, 2, 4)]
    assert [start.rung for start in told.starts() if start.rank == 0] == [
        "",
        "in-place-restart",
        "unconditional-requeue",
        "in-place-restart",
    ]
    # The first script was ended by the requeue or not before its last line: both is as it should be.
    assert [line for line in told.batch() if line[0] == "before"] == [("before", 1, 1, 1), ("before", 2, 1, 3)]
    assert told.batch()[-1] == ("after", 2, 2, 4)


@story(
    tasks=2,
    script="""
note before
ftrun sh "$STORY/rank.sh" load || exit
note after
ftrun sh "$STORY/rank.sh" train || exit
note after
""",
    rank="""
say $1
[ $1 = train ] && [ $MA_PROC_START_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 0 ] && fault 0.0 80C98008
exec sleep 100
""",
)
def test_a_second_ftrun_in_the_script_counts_its_own_starts(told: Story) -> None:
    told.ended("COMPLETED")
    assert told.counters() == [(1, 1, 1), (1, 1, 2), (1, 2, 3)]
    assert sorted((attempt, words) for _, attempt, _, words in told.said()) == [
        (1, "load"),
        (1, "load"),
        (2, "train"),
        (2, "train"),
        (3, "train"),
        (3, "train"),
    ]
    assert told.batch() == [("before", 1, 1, 1), ("after", 1, 1, 1), ("after", 1, 2, 3)]


@story(
    tasks=2,
    ft="--ft-rendezvous torch",
    rank="""
say $MASTER_ADDR $MASTER_PORT $RANK $WORLD_SIZE $LOCAL_RANK $NODE_RANK
[ $MA_PROC_START_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 0 ] && fault 0.0 80C98008
exec sleep 100
""",
)
def test_rendezvous_variables_change_their_port_with_each_start(told: Story) -> None:
    told.ended("COMPLETED")
    seen = {(attempt, rank): words.split() for rank, attempt, _, words in told.said()}
    assert [seen[1, rank][2:] for rank in (0, 1)] == [["0", "2", "0", "0"], ["1", "2", "1", "0"]]
    assert seen[1, 0][:2] == seen[1, 1][:2]
    assert seen[2, 0][:2] == seen[2, 1][:2]
    assert seen[1, 0][1] != seen[2, 0][1]


@story(
    tasks=1,
    rank="""
[ $MA_PROC_START_CNT = 1 ] || { say $(cat "$STORY/kept" /dev/shm/kept.$SLURM_JOB_ID /tmp/kept.$SLURM_JOB_ID) $(echo $SLURM_STEP_NODELIST $SLURM_CPU_BIND $SLURM_JOB_CPUS_PER_NODE $PWD); rm /dev/shm/kept.$SLURM_JOB_ID /tmp/kept.$SLURM_JOB_ID; exit 0; }
for kept in "$STORY/kept" /dev/shm/kept.$SLURM_JOB_ID /tmp/kept.$SLURM_JOB_ID; do echo data >"$kept"; done
say data data data $(echo $SLURM_STEP_NODELIST $SLURM_CPU_BIND $SLURM_JOB_CPUS_PER_NODE $PWD)
fault 0.0 80C98008
exec sleep 100
""",
)
def test_what_the_first_attempt_had_and_wrote_the_second_has(told: Story) -> None:
    told.ended("COMPLETED")
    first, second = (words for *_, words in told.said())
    assert first == second


# The age of each rank's process when its program begins: a warm one is older than its start. The spare of the first one
# imports meanwhile.
AGE = """
import os, sys, time
import numpy
ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
age_s = float(open("/proc/uptime").read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
rank, starts = os.environ["SLURM_PROCID"], os.environ["MA_PROC_START_CNT"]
with open(f"{sys.path[0]}/age.{starts}.{rank}", "w") as file:
    file.write(f"{age_s} {os.getppid()} {sys.argv} {numpy.ones(3).sum()}")
time.sleep({"0": 15, "1": 30}[rank] if starts == "1" else 0)
sys.exit(3 if (rank, starts) == ("0", "1") else 0)
"""


@pytest.mark.slurms
@story(
    nodes=2,
    tasks=1,
    files={"train.py": AGE},
    script="ftrun --ft-warm --ft-set warm.after=1s --ft-set rungs.in-place-restart.crash_restarts=1"
    f' {sys.executable} "$STORY/train.py" a "b c"',
)
def test_a_warm_restart_begins_its_program_in_a_process_that_waited(told: Story) -> None:
    """Under slurmstepd, in the cgroup of a step."""
    assert told.ended("COMPLETED")["Restarts"] == "0"
    for rank in (0, 1):
        cold, warm = ((told.folder / f"age.{starts}.{rank}").read_text().split(maxsplit=1) for starts in (1, 2))
        assert float(cold[0]) < 5 < float(warm[0])
        assert warm[1] == cold[1]
