"""Every rung where jobs are accounted for: slurmdbd, and associations, limits and QOS that hold."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.wrapper.requeue.dead_nodes import OWN_NODES
from tests.live.conftest import Cluster, booted, job_user, new_stage
from tests.live.overlap import BEAT, MAKE_PIPE, RANK, beats
from tests.live.stories import Plan, Story, admin, nodes_in
from tests.live.test_batch_node import SILENCE_S, connected, ours, records
from tests.live.test_drill import WORKER
from tests.live.test_hang_live import QUICKLY, SHORT, STANDS_STILL

MISSING = [name for name in ("mariadbd", "slurmdbd") if not shutil.which(name, path="/usr/sbin:/sbin:/usr/bin:/bin")]

pytestmark = [
    pytest.mark.live,
    pytest.mark.long,  # the rungs are tried without accounting by all other tests
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot slurmdbd with its database"),
    # Where they are required, booting says what is missing.
    pytest.mark.skipif(
        bool(MISSING) and os.environ.get("FTSLURM_REQUIRE_SLURM") != "1",
        reason=f"{', '.join(MISSING)}: not installed (tools/slurm-cluster install --accounting)",
    ),
]

DONOR = (
    "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=1 --ft-set nodes.replacement_wait=30s"
)
QUICK_LEASE = "--ft-set lease.time=16s --ft-set nodes.silence=4s --ft-set lease.margin=3s --ft-set nodes.probe_timeout=5s"
# So long that a wait would outlast the job.
LONG_WAIT = DONOR.replace("replacement_wait=30s", "replacement_wait=30m")
# A limit that forbids a second job or a third node: who has it (the user in an account, or the account), how sacctmgr takes it,
# and what ftrun says of the donor job.
ASSOCIATIONS = {
    "user-submits": ("user", "MaxSubmitJobs=1", "a donor job was refused: "),
    "user-runs": ("user", "MaxJobs=1", "could not start beside this job: AssocMaxJobsLimit"),
    "submits": ("account", "GrpSubmitJobs=1", "a donor job was refused: "),
    "runs": ("account", "GrpJobs=1", "could not start beside this job: AssocGrpJobsLimit"),
    "nodes": ("account", "GrpTRES=node=2", "could not start beside this job: AssocGrpNodeLimit"),
}
# The node's chip is at fault for good; nobody else notices.
BREAKS_ONCE = """
[ $MA_SCHEDULE_CNT.$MA_PROC_START_CNT = 1.1 ] || { await enough; exit 0; }
[ $SLURM_PROCID = 1 ] && fault 0.0 80E18402
exec sleep 200
"""
PLANS = {
    "heals": Plan(
        nodes=2, rank="[ $MA_PROC_START_CNT = 1 ] || exit 0\n[ $SLURM_PROCID = 1 ] && fault 0.0 80C98008\nexec sleep 200"
    ),
    "by-step": Plan(
        nodes=2,
        ft="--ft-set restart_via=step",
        rank="[ $MA_PROC_START_CNT = 1 ] || exit 0\ntogether\n[ $SLURM_PROCID = 1 ] && fault 0.0 80C98008\nexec sleep 200",
    ),
    "hangs": Plan(nodes=2, rank=STANDS_STILL, ft=QUICKLY, env=SHORT),
    "alone": Plan(nodes=2, tasks=2, rank=WORKER, ft="--ft-mode async"),
    "requeued": Plan(
        nodes=2, rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0\ntogether\n[ $SLURM_PROCID = 1 ] && exit 3\nexec sleep 200"
    ),
    "fails": Plan(
        env={"FTRUN_UNCONDITIONAL_REQUEUE_ENABLED": "false"},
        tasks=2,
        rank="together\n[ $SLURM_PROCID = 1 ] && exit 9\nexec sleep 200",
    ),
    "spare": Plan(nodes=2, sbatch=("--nodes=3",), ft="--ft-spares 1", rank=BREAKS_ONCE),
    "donor": Plan(nodes=2, sbatch=("--account=project", "--qos=lane"), ft=DONOR, rank=BREAKS_ONCE),
    "donor-forbidden": Plan(nodes=2, sbatch=("--account=project", "--qos=lonely"), ft=DONOR, rank=BREAKS_ONCE),
    "shrinks": Plan(nodes=3, ft="--ft-min-nodes 2 --ft-set nodes.donor=false", rank=BREAKS_ONCE),
    **{name: Plan(nodes=2, sbatch=(f"--account={name}",), ft=LONG_WAIT, rank=BREAKS_ONCE) for name in ASSOCIATIONS},
}


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """With an account beside everybody's, a QOS for its jobs, and one of which a user may have a single job."""
    with booted(nodes=6, options=["--accounting"]) as cluster:
        for words in (
            "add account project Description=project Organization=site",
            "add qos lane",
            "add qos lonely MaxSubmitJobsPerUser=1",
            f"add user {job_user()} Account=project",
            *(
                words
                for name, (whose, limit, _) in ASSOCIATIONS.items()
                for words in (
                    f"add account {name} Description=limited Organization=site {limit if whose == 'account' else ''}",
                    f"add user {job_user()} Account={name} {limit if whose == 'user' else ''}",
                )
            ),
            f"modify user {job_user()} set QOS=normal,lane,lonely",
        ):
            cluster.answer(["sacctmgr", "--immediate", *words.split()], user=admin())
        yield cluster


@pytest.fixture(scope="module")
def stories(own: Cluster, job_path: tuple[Path, ...]) -> Iterator[dict[str, Story]]:
    """All but the last test's: side by side."""
    with new_stage(own, job_path) as stage:
        told = {name: stage.tell(plan, name) for name, plan in PLANS.items()}
        yield told


def ended(told: Story, state: str = "COMPLETED") -> dict[str, str]:
    told.allow("enough")
    return told.ended(state)


def rungs(told: Story) -> list[str]:
    return [
        remedy["decided"]["rung"]
        for attempt in reversed(told.json("history", str(told.id))["attempts"])
        for remedy in attempt["remedies"]
    ]


def accounted(told: Story, *fields: str) -> list[list[str]]:
    """What sacct has of each scheduling of the job."""
    argv = [
        "sacct",
        "--duplicates",
        "--noheader",
        "--parsable2",
        "--allocations",
        f"--jobs={told.id}",
        f"--format={','.join(fields)}",
    ]

    def lines() -> list[list[str]]:
        return [line.split("|") for line in told.cluster.answer(argv).splitlines()]

    told.wait_for(lambda: lines() and not [line for line in lines() if "RUNNING" in line], "slurmdbd to know of its end")
    return lines()


def test_nobody_submits_without_an_account(own: Cluster) -> None:
    refused = own.run(["sbatch", "--wrap=true"], user="games", cwd=Path("/"))
    assert refused.returncode != 0 and "Invalid account" in refused.stderr


def test_in_place(stories: dict[str, Story]) -> None:
    told = stories["heals"]
    assert ended(told)["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert accounted(told, "State", "Account") == [["COMPLETED", "users"]]


def test_by_a_step_of_its_own(stories: dict[str, Story]) -> None:
    told = stories["by-step"]
    assert ended(told)["Restarts"] == "0"
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]
    assert len({start.step for start in told.starts()}) == 2
    assert accounted(told, "State") == [["COMPLETED"]]


def test_a_hang(stories: dict[str, Story]) -> None:
    told = stories["hangs"]
    assert ended(told)["Restarts"] == "0"
    assert {start.rung for start in told.of_attempt(2).values()} == {"hang-restart"}


def test_a_rank_alone(stories: dict[str, Story]) -> None:
    told = stories["alone"]
    told.wait_for(lambda: len(told.starts()) == 5, "rank 2 to start again")
    assert (told.starts()[-1].rank, told.starts()[-1].counters) == (2, (1, 2, 2))
    told.allow("done")
    assert ended(told)["Restarts"] == "0" and len(told.starts()) == 5


def test_requeue(stories: dict[str, Story]) -> None:
    told = stories["requeued"]
    assert ended(told)["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert sorted(state for (state,) in accounted(told, "State")) == ["COMPLETED", "REQUEUED"]


def test_fail(stories: dict[str, Story]) -> None:
    told = stories["fails"]
    assert ended(told, "FAILED")["Restarts"] == "0"
    assert accounted(told, "State", "ExitCode") == [["FAILED", "9:0"]]


def test_a_spare(stories: dict[str, Story]) -> None:
    told = stories["spare"]
    told.wait_started(attempt=2, timeout_s=90.0)
    assert ended(told)["Restarts"] == "0"
    assert rungs(told) == ["node-replacement"]


def test_a_donor_is_of_the_same_account_and_qos(stories: dict[str, Story]) -> None:
    told = stories["donor"]
    told.wait_started(attempt=2, timeout_s=90.0)
    (donor,) = told.cluster.answer(["squeue", "--noheader", f"--name=ftslurm-donor-{told.id}", "--format=%a %q"]).splitlines()
    assert donor == "project lane"
    assert ended(told)["Restarts"] == "0"
    assert rungs(told) == ["node-replacement"]


def test_a_donor_that_the_qos_forbids_is_the_next_rung(stories: dict[str, Story]) -> None:
    told = stories["donor-forbidden"]
    assert ended(told)["Restarts"] == "1"
    assert rungs(told)[-1] == "isolated-requeue"
    assert not told.cluster.answer(["squeue", "--noheader", f"--name=ftslurm-donor-{told.id}"])


@pytest.mark.parametrize("name", ASSOCIATIONS)
def test_a_donor_that_an_association_s_limit_forbids_is_told_and_the_next_rung_is_taken_at_once(
    stories: dict[str, Story], name: str
) -> None:
    told = stories[name]
    assert ended(told)["Restarts"] == "1"
    assert rungs(told)[-1] == "isolated-requeue"
    assert ASSOCIATIONS[name][2] in told.output() + told.ftslurm("history", str(told.id)), told.describe()
    assert not told.cluster.answer(["squeue", "--noheader", f"--name=ftslurm-donor-{told.id}"])


def test_shrink(stories: dict[str, Story]) -> None:
    told = stories["shrinks"]
    told.wait_for(lambda: len(told.of_attempt(2)) == 2, "the two that are left to go on", 90.0)
    assert ended(told)["Restarts"] == "0"
    assert rungs(told) == ["shrink"]


# For ftrun a cluster without GPUs: it asks by this one.
NO_GPUS = """#!/bin/sh
case "$*" in *"show config"*) /usr/bin/scontrol "$@" | grep -v ^GresTypes; exit;; esac
exec /usr/bin/scontrol "$@"
"""
# sbatch, and what the script does first.
DIES = {
    "shared": (("--gpus-per-node=2",), ""),
    "exclusive-no-gpus": (
        ("--exclusive",),
        'mkdir "$STORY/bin"; install -m 755 "$STORY/scontrol" "$STORY/bin"; PATH=$STORY/bin:$PATH\n',
    ),
}


def test_a_job_leaves_its_dead_node_to_slurm_and_comes_back_whole_with_its_gpus(
    own: Cluster, stories: dict[str, Story], job_path: tuple[Path, ...]
) -> None:
    """Slurm itself would have waited for the node for SlurmdTimeout, 300 s, and 22.05 would have lost the GPUs.

    An exclusive job that has no GPUs to lose keeps its dead node, which Slurm would miscount.
    """
    rank = '[ $MA_SCHEDULE_CNT = 1 ] || { echo "$CUDA_VISIBLE_DEVICES" >"$STORY/gpus.$SLURM_PROCID"; exit 0; }\n'
    with new_stage(own, job_path) as stage:
        told = {
            name: stage.tell(
                Plan(
                    nodes=2,
                    rank=f'{rank}>"$STORY/runs.$SLURM_PROCID"; exec sleep 300',
                    ft=f"{QUICK_LEASE} --ft-set requeue.start_in=12s",
                    sbatch=("--no-kill", *options),
                    script=f"{first}%RUN%",
                    files={"scontrol": NO_GPUS},
                ),
                f"dead-node-{name}",
            )
            for name, (options, first) in DIES.items()
        }
        dead: dict[str, str] = {}
        try:
            for name, each in told.items():
                each.wait_for(lambda at=each.folder: len(list(at.glob("runs.*"))) == 2, "both ranks to run", 60.0)
                each.wait_for(lambda of=each: sum(map(connected, ours(of, "wrapper.agent"))) == 2, "the agents to call", 60.0)
                (dead[name],) = {*nodes_in(own, each.job()["NodeList"])} - {each.job()["BatchHost"]}
                own.tool("node-crash", dead[name])
            for name, each in told.items():
                each.wait_for(lambda of=each: of.job()["Restarts"] == "1", "the requeue", 120.0)
                each.wait_for(lambda of=each: records(of, "CarriedOut"), "the requeue to be carried out", 60.0)
                (done,) = [record["what"] for record in records(each, "CarriedOut")]
                if name == "exclusive-no-gpus":
                    assert f"{dead[name]} stays in the job until Slurm marks it down: {OWN_NODES}" in done
                    assert dead[name] in nodes_in(own, each.job()["NodeList"]), "and nothing else: it waits for it"
                    own.answer(["scontrol", "update", f"NodeName={dead[name]}", "State=DOWN", "Reason=dead"], user=admin())
                    each.wait_for(lambda of=each: goes_on(of), "the job to run again", 60.0)
                else:
                    assert f"{dead[name]} given back to Slurm" in done
                    each.wait_for(lambda at=each.folder: len(list(at.glob("gpus.*"))) == 2, "both ranks to run again", 120.0)
                    assert {path.read_text().strip() for path in each.folder.glob("gpus.*")} == {"0,1"}
                assert ended(each)["ExcNodeList"] == dead[name]
        finally:
            for node in dead.values():
                own.tool("node-up", node)


def test_a_batch_node_that_dies(own: Cluster, stories: dict[str, Story], job_path: tuple[Path, ...]) -> None:
    """Last: the others are over, and nobody else is on the node."""
    plan = Plan(nodes=2, rank=MAKE_PIPE + RANK, files={"beat.sh": BEAT}, ft=QUICK_LEASE, sbatch=("--no-kill", "--exclusive"))
    with new_stage(own, job_path) as stage:
        told = stage.tell(plan, "batch-node")
        told.wait_for(lambda: {beat.rank for beat in beats(told.folder)} == {0, 1}, "both ranks to write", 60.0)
        told.wait_for(lambda: sum(map(connected, ours(told, "wrapper.agent"))) == 2, "the agents to call", 60.0)
        time.sleep(SILENCE_S)  # there is no sign of it that ftrun has answered
        dead = told.job()["BatchHost"]
        own.tool("node-crash", dead)
        told.wait_for(lambda: told.job()["ExcNodeList"] == dead, "the requeue without it", 120.0)
        own.answer(["scontrol", "update", f"NodeName={dead}", "State=DOWN", "Reason=dead"], user=admin())
        told.wait_for(lambda: goes_on(told), "the job to run again", 120.0)
        assert ended(told)["Restarts"] == "1"
        assert rungs(told)[-1] == "isolated-requeue"


def goes_on(told: Story) -> bool:
    told.hurry()
    return len(told.of_attempt(2)) == 2
