"""Which nodes fit a job: what is counted, and what Slurm is asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.slurm.client import JobState, JobView, Needs, NodeState, NodeView, Resources
from ftslurm.slurm.fitting import FitAsked, asked_of, fit_answer, fit_argv, fitting, idle, satisfies
from ftslurm.slurm.parse import gres_counts, parse_job, parse_nodes, parse_reservation

# Of 22.05.
NODE = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=4  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=2.66 AvailableFeatures=fast,x "
    "ActiveFeatures=fast,x Gres=gpu:a100:8(S:0-1),nic NodeAddr=10.0.0.1 NodeHostName=n1 Version=22.05.8 RealMemory=8192 "
    "AllocMem=0 Sockets=1 Boards=1 State=IDLE ThreadsPerCore=1 Partitions=main,small  CapWatts=n/a"
)
RESERVATION = (
    "ReservationName=res1 StartTime=2026-11-28T00:53:18 EndTime=2026-11-28T01:53:18 Duration=01:00:00 Nodes=n[5-6] NodeCnt=2 "
    "CoreCnt=8 Features=(null) PartitionName=(null) Flags=SPEC_NODES TRES=cpu=8 Users=nobody State=ACTIVE"
)
JOB = JobView(1, JobState.RUNNING, batch=True, nodes=("n1", "n2"), node_count=2, partition="main")


def nodes(**features: str) -> tuple[NodeView, ...]:
    """name -> features."""
    has = {name: Resources(frozenset(words.split(",")), 4, 8192, {"npu": 2}) for name, words in features.items()}
    return tuple(NodeView(name, NodeState.GOOD, "IDLE", partitions=frozenset({"main"}), has=has[name]) for name in features)


def job(**needs: object) -> JobView:
    return replace(JOB, needs=Needs(**needs))  # type: ignore[arg-type]


def test_what_slurm_prints_of_a_node_is_what_it_has() -> None:
    (node,) = parse_nodes(NODE)
    gres = {"gpu": 8, "gpu:a100": 8, "nic": 1}
    assert node.has == Resources(frozenset({"fast", "x"}), 4, 8192, gres) and gres_counts("(null)") == {}
    assert parse_reservation(RESERVATION) == {"n5", "n6"} and parse_reservation("No reservations in the system") is None


@pytest.mark.parametrize(
    ("needs", "found"),
    [
        ({}, {"n1", "n2", "n3"}),
        ({"features": "fast"}, {"n1", "n2"}),
        ({"features": "fast&ib"}, {"n2"}),
        ({"features": "[fast|slow]"}, {"n1", "n2", "n3"}),
        ({"features": "[fast*1&slow*1]"}, {"n1", "n2", "n3"}),
        ({"gres": "npu:4"}, set()),
        ({"min_cpus": 8}, set()),
        ({"memory_mb": 9000}, set()),
    ],
)
def test_a_node_fits_that_has_what_the_job_asks_for(needs: dict[str, object], found: set[str]) -> None:
    there = nodes(n1="fast", n2="fast,ib", n3="slow")
    assert fitting(job(**needs), there) == found
    assert fitting(job(**needs), there, frozenset({"n1"})) == found & {"n1"}


def test_idle_is_what_runs_nothing_and_waits_for_nobody_else() -> None:
    words = {"n1": "IDLE", "n2": "MIXED", "n3": "IDLE+RESERVED", "n4": "IDLE+PLANNED", "n5": "IDLE+POWERED_DOWN"}
    there = [NodeView(name, NodeState.GOOD, state) for name, state in words.items()]
    assert idle(JOB, there) == {"n1"} and idle(job(reservation="res1"), there) == {"n1", "n3"}


def test_what_a_running_job_asked_for_stands_in_its_script() -> None:
    script = "#!/bin/bash\n#SBATCH -J x -N2-4\n#SBATCH --partition=small,main\ntrain -p other\n"
    assert asked_of(JOB, script, {}) == FitAsked("small,main", 2)
    assert asked_of(JOB, script, {"SBATCH_PARTITION": "main,huge"}) == FitAsked("main,huge", 2)


@pytest.mark.parametrize(
    "script",
    ["", "#!/bin/bash\n#SBATCH -p other,big -N 3-9\n", "#!/bin/bash\n#SBATCH -N1-4\n#SBATCH hetjob\n#SBATCH -N1\n"],
    ids=["none", "beaten by sbatch's command line", "heterogeneous"],
)
def test_a_script_that_does_not_agree_with_its_job_says_nothing(script: str) -> None:
    assert asked_of(JOB, script, {}) == FitAsked("main", 2)


def test_slurm_is_asked_with_the_jobs_own_request() -> None:
    asks = job(features="fast", gres="npu:2", min_cpus=4, memory_mb=100, reservation="res1")
    argv = fit_argv(asks, FitAsked("small,big", 2), {"account": "a"}, ["n1", "n2"])
    assert argv[:3] == ("sbatch", "--test-only", "--nodes=2") and set(argv[5:]) == {
        "--partition=small,big", "--constraint=fast", "--gres=npu:2", "--mincpus=4", "--mem=100M", "--reservation=res1",
        "--account=a", "--exclude=n[1-2]",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "text", "answer"),
    [
        (0, "sbatch: Job 7 to start at 2026-11-28T00:53:26 using 3 processors on nodes n[1-3] in partition main", True),
        (1, "allocation failure: Requested node configuration is not available", False),
        (1, "sbatch: error: Unable to contact slurm controller", None),
        (1, "sbatch: error: cli_filter plugin terminated with error", None),
        (None, "", None),
    ],
)
def test_only_a_word_on_the_request_is_an_answer(status: int | None, text: str, answer: bool | None) -> None:
    assert fit_answer(status, text) is answer


def test_a_constraint_of_several_signs_is_left_to_slurm() -> None:
    assert satisfies("a&b|c", frozenset({"c"})) and not satisfies("a&b|c", frozenset({"d"}))


def test_a_job_shows_its_reservation_and_memory() -> None:
    text = """JobId=7 JobName=x
   UserId=u(5) GroupId=g(5)
   Priority=1
   JobState=RUNNING Reason=None
   StartTime=1700000000 EndTime=1700000100
   NumNodes=2
   MinCPUsNode=4 MinMemoryCPU=1.50G MinTmpDiskNode=0
   Features=fast DelayBoot=00:00:00
   Reservation=res1
"""
    assert parse_job(text, 7).needs == Needs("fast", "", 4, 4 * 1536, "res1")


@pytest.mark.parametrize(
    ("script", "env", "nodes", "said"),
    [
        ("#!/bin/sh\n#SBATCH --segment=2\n", {}, 4, True),
        ("#!/bin/sh\n", {"SLURM_JOB_SEGMENT_SIZE": "2"}, 4, True),  # 26.05
        ("#!/bin/sh\n#SBATCH --segment=2\n", {}, 3, False),  # the job has lost a node: Slurm would refuse the request
        ("#!/bin/sh\n#SBATCH --segment=x\n", {}, 4, False),
    ],
)
def test_slurm_is_asked_with_the_jobs_segments(script: str, env: dict[str, str], nodes: int, said: bool) -> None:
    """Without them it says no where the block plugin has no block with as many nodes."""
    view = replace(JOB, node_count=nodes)
    assert ("--segment=2" in fit_argv(view, asked_of(view, script, env), {}, ())) is said
