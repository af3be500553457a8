"""Slurm's own calls of the installed scripts, on a cluster of their own (hooked.py).

Each test begins with healthy nodes and nothing remembered.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_cluster.users import site_user

from tests.live.conftest import as_user, job_user
from tests.live.hooked import Hooked, hooked_cluster
from tests.live.stories import Plan, Story
from tests.live.test_requeue import DEADLY_SCONTROL
from tests.machine import slowness

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="Prolog and Epilog are root's, and so is the namespace they are kept in"),
]

WAIT_S = 240.0
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def site() -> Iterator[Hooked]:
    # One of slurm's own is test_a_slurmctld_that_is_not_root_s….
    with hooked_cluster(len(NODES), ["HealthCheckInterval=3600", "SlurmUser=root"]) as hooked:
        yield hooked


@pytest.fixture
def hooked(site: Hooked) -> Hooked:
    site.settings()
    site.resume()
    return site


def run(hooked: Hooked, script: str, *options: str) -> int:
    return hooked.cluster.submit(f"#!/bin/bash\n{script}\n", "--time=5", f"--output={hooked.cluster.home}/%j.out", *options)


def ended(hooked: Hooked, job: int, state: str = "COMPLETED") -> dict[str, str]:
    return hooked.cluster.wait_for_state(job, state, timeout_s=WAIT_S)


def output(hooked: Hooked, job: int) -> str:
    return (hooked.cluster.home / f"{job}.out").read_text()


def drained(hooked: Hooked, node: str) -> str:
    """The reason once the node is drained."""

    def reason() -> str:
        seen = hooked.cluster.node(node)
        return seen.get("Reason", "") if "DRAIN" in seen["State"] else ""

    return hooked.cluster.wait_for(reason, WAIT_S, f"{node} to be drained").partition(" [")[0]


def states(hooked: Hooked) -> set[str]:
    return {hooked.cluster.node(node)["State"] for node in NODES}


# ---- Prolog


def test_a_bad_node_is_drained_with_the_reason_and_the_job_runs_elsewhere_soon(hooked: Hooked) -> None:
    check = hooked.script("check", 'case $SLURMD_NODENAME in n1) echo looking; echo "scratch is not mounted"; exit 1;; esac')
    hooked.settings(health_command=check)
    job = run(hooked, "echo on $SLURMD_NODENAME", "--requeue")
    done = ended(hooked, job)
    assert done["Restarts"] == "1" and done["NodeList"] in ("n2", "n3")
    assert drained(hooked, "n1") == f"ftslurm: command: scratch is not mounted, met by job {job}"
    waited_s = unix(done["EligibleTime"]) - unix(done["SubmitTime"])
    assert waited_s < 40 * slowness(), (
        "from the end of the clean-up, which is seen; a guess is 45 s (start_in), Slurm's own delay 121 s"
    )


def unix(stamp: str) -> float:
    return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))


def test_a_chip_with_a_fault_that_stays_and_one_that_a_reset_mends(hooked: Hooked) -> None:
    hooked.npu("n1", "inject", "--device", "0.0", "--code", "80E18402")
    hooked.npu("n2", "inject", "--device", "0.0", "--code", "80C98008")
    job = run(hooked, "echo on $SLURMD_NODENAME", "--requeue", "--exclude=n3")
    assert ended(hooked, job)["NodeList"] == "n2"  # what heals is left to the restart in place
    assert "80E18402" in drained(hooked, "n1")


def test_a_hanging_health_command_is_cut_off_with_all_it_started_and_the_node_stays(hooked: Hooked) -> None:
    pid_file, limit = hooked.folder / "hanging.pid", "4s"  # to the check's first line it may take a busy machine longer than 1 s
    hooked.settings(health_command=hooked.script("check", f"sleep 1000 & echo $! >{pid_file}; wait"), health_timeout=limit)
    job = run(hooked, "echo ran", "--nodelist=n1")
    assert ended(hooked, job)["Restarts"] == "0"
    assert output(hooked, job) == "ran\n"
    assert "cut off after 4 s" in hooked.said("prolog", "n1")
    assert hooked.on("n1", "kill", "-0", pid_file.read_text().strip()).returncode != 0
    assert "DRAIN" not in hooked.cluster.node("n1")["State"]


BROKEN = {
    "settings that are wrong": lambda hooked: (hooked.folder / "hooks.yaml").write_text('{"helth_command": "/bin/false"}'),
    "settings that others may write": lambda hooked: (hooked.folder / "hooks.yaml").chmod(0o666),
    "a health command that is not there": lambda hooked: hooked.settings(health_command=["/nonexistent/check"]),
    "a state folder that is a file": lambda hooked: hooked.settings(state=hooked.script("file", "")[0]),
    "no kernel log": lambda hooked: hooked.settings(kernel_log="/nonexistent/kmsg"),
    "a device tool that hangs": lambda hooked: (hooked.npu("n1", "tool", "hang"), hooked.settings(device_timeout="1s")),
}
OFTEN = ("settings that are wrong", "settings that others may write", "no kernel log")


@pytest.mark.parametrize("fault", [pytest.param(fault, marks=() if fault in OFTEN else pytest.mark.long) for fault in BROKEN])
def test_a_broken_hook_leaves_node_and_job_alone(hooked: Hooked, fault: str) -> None:
    BROKEN[fault](hooked)
    try:
        job = run(hooked, "echo ran", "--nodelist=n1")
        assert ended(hooked, job)["Restarts"] == "0"
        assert output(hooked, job) == "ran\n"
        hooked.hook("health_check", "n1")
        assert not any("DRAIN" in state for state in states(hooked))
    finally:
        hooked.settings()


def test_a_python_that_is_gone_leaves_node_and_job_alone(hooked: Hooked) -> None:
    python = next(hooked.folder.glob("venv/bin/python"))
    python.rename(python.with_name("gone"))
    try:
        job = run(hooked, "env | grep MA_ | sort", "--nodelist=n1")
        ended(hooked, job)
        assert output(hooked, job) == "MA_PROC_START_CNT=1\nMA_SCHEDULE_CNT=1\n"
    finally:
        python.with_name("gone").rename(python)
    assert not any("DRAIN" in state for state in states(hooked))


# ---- Epilog


# What the user has started there by another way (ssh, say) is in none of the job's cgroups; the job waits until it runs.
LEAVES = """
until [ -s {home}/escaped ]; do sleep 0.1; done
echo big >/dev/shm/left-by-job; mkdir /dev/shm/folder; echo x >/dev/shm/folder/x; ln -s {home}/precious /dev/shm/link
"""


def escape(hooked: Hooked, job: int, before: str = "") -> None:
    """The job user's process on n1 that is not the job's."""
    hooked.cluster.wait_for_state(job, "RUNNING", timeout_s=WAIT_S)
    script = f"{before}echo $$ >{hooked.cluster.home}/escaped; exec sleep 1000"
    started = hooked.as_user("n1", f"setsid sh -c '{script}' </dev/null >/dev/null 2>&1 &")
    assert started.returncode == 0, started.stderr


@pytest.mark.slurms
def test_what_a_job_leaves_is_gone_after_its_epilog_and_another_user_s_is_not_touched(hooked: Hooked) -> None:
    home = hooked.cluster.home
    for name in ("escaped", "precious"):
        (home / name).unlink(missing_ok=True)
    (home / "precious").write_text("kept")
    others = hooked.on(
        "n1",
        "setpriv",
        "--reuid=games",
        "--regid=games",
        "--clear-groups",
        "sh",
        "-c",
        "echo theirs >/dev/shm/of-games; setsid sleep 1001 >/dev/null 2>&1 </dev/null & echo $!",
    )
    assert others.returncode == 0, others.stderr
    job = run(hooked, LEAVES.format(home=home), "--nodelist=n1")
    escape(hooked, job)
    ended(hooked, job)
    hooked.cluster.wait_for(lambda: "are gone" in hooked.said("epilog", "n1"), WAIT_S, "the Epilog to have cleaned")
    assert hooked.on("n1", "kill", "-0", others.stdout.strip()).returncode == 0
    hooked.on("n1", "kill", others.stdout.strip())
    assert hooked.shared_memory() == {"of-games"}
    hooked.on("n1", "rm", "/dev/shm/of-games")
    assert (home / "precious").read_text() == "kept"
    assert not alive(hooked, home / "escaped")
    (evidence,) = (hooked.folder / "state.n1/evidence").iterdir()
    assert "sleep 1000" in evidence.read_text() and "left-by-job" in evidence.read_text()


def alive(hooked: Hooked, pid_file: Path) -> bool:
    """The process of a pid file of n1's; zombies do not count."""
    status = hooked.on("n1", "grep", "State:", f"/proc/{pid_file.read_text().strip()}/status")
    return status.returncode == 0 and "Z" not in status.stdout


def test_what_an_epilog_that_was_cut_off_left_goes_with_the_next_prolog(hooked: Hooked) -> None:
    home = hooked.cluster.home
    (home / "escaped").unlink(missing_ok=True)
    hooked.settings(kill_grace="200s")
    job = run(hooked, LEAVES.format(home=home), "--nodelist=n1")
    escape(hooked, job, before='trap "" TERM; ')
    remembered = hooked.folder / "state.n1/node.json"
    hooked.cluster.wait_for(
        lambda: remembered.exists() and f'"job": "{job}"' in remembered.read_text(), WAIT_S, "the Epilog to begin"
    )
    epilog = hooked.on("n1", "pgrep", "-f", "ftslurm.hooks.epilog /").stdout.split()
    assert epilog and hooked.on("n1", "kill", "-9", *epilog).returncode == 0
    ended(hooked, job)
    assert alive(hooked, home / "escaped")
    hooked.settings()
    assert hooked.hook("prolog", "n1", {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "65534"}).returncode == 0
    assert not alive(hooked, home / "escaped") and not hooked.shared_memory()
    assert f'"job": "{job}"' not in remembered.read_text()


def test_nothing_is_touched_while_the_user_has_another_job_on_the_node(hooked: Hooked) -> None:
    home = hooked.cluster.home
    (home / "escaped").unlink(missing_ok=True)
    other = run(hooked, "exec sleep 200", "--nodelist=n1")
    hooked.cluster.wait_for_state(other, "RUNNING", timeout_s=WAIT_S)
    job = run(hooked, LEAVES.format(home=home), "--nodelist=n1")
    escape(hooked, job)
    ended(hooked, job)
    hooked.cluster.wait_for(lambda: f"job {job} on" in hooked.said("epilog", "n1"), WAIT_S, "the Epilog to be over")
    assert f"job {other} of the same user is here" in hooked.said("epilog", "n1")
    assert alive(hooked, home / "escaped") and "left-by-job" in hooked.shared_memory()
    hooked.cluster.cancel(other)
    hooked.cluster.wait_for(lambda: not hooked.shared_memory(), WAIT_S, "the last job's Epilog to clean")
    assert not alive(hooked, home / "escaped")


def test_the_epilog_run_again_for_a_job_that_runs_again_touches_nothing(hooked: Hooked) -> None:
    home = hooked.cluster.home
    (home / "escaped").unlink(missing_ok=True)
    job = run(hooked, LEAVES.format(home=home) + "exec sleep 200", "--nodelist=n1")
    escape(hooked, job)
    hooked.cluster.wait_for(lambda: "link" in hooked.shared_memory(), WAIT_S, "the job to be there")
    user = as_user(job_user())["user"]
    again = hooked.hook("epilog", "n1", {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(user)})
    assert again.returncode == 0
    assert f"job {job} of the same user is here" in hooked.said("epilog", "n1")
    assert alive(hooked, home / "escaped") and "left-by-job" in hooked.shared_memory()
    assert hooked.cluster.job(job)["JobState"] == "RUNNING"
    hooked.cluster.cancel(job)
    hooked.cluster.wait_for(lambda: not hooked.shared_memory(), WAIT_S, "the Epilog to clean")


def test_a_chip_is_reset_once_nobody_uses_the_node(hooked: Hooked) -> None:
    hooked.settings(reset_wait="20s")
    hooked.npu("n1", "inject", "--device", "0.0", "--code", "80C98008")
    job = run(hooked, "true", "--nodelist=n1")
    ended(hooked, job)
    hooked.cluster.wait_for(lambda: f"job {job} on" in hooked.said("epilog", "n1"), WAIT_S, "the Epilog to be over")
    assert "80C98008: healed by an in-band reset" in hooked.said("epilog", "n1")
    assert "80C98008" in (hooked.folder / f"state.n1/evidence/{job}.n1.txt").read_text()


@pytest.mark.slurms
@pytest.mark.parametrize(("grace", "waits"), [("1", False), ("-1", True)])
def test_the_clean_up_is_waited_for_as_the_job_asked(hooked: Hooked, grace: str, waits: bool) -> None:
    """MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS reaches the Epilog by the ledger."""
    done = hooked.folder / "cleaned"
    done.unlink(missing_ok=True)
    go = hooked.folder / "go"
    go.unlink(missing_ok=True)
    hooked.settings(
        cleanup_grace_of_job=True,
        cleanup=[hooked.script("clean", f"until [ -e {go} ]; do sleep 0.1; done; echo $SLURM_JOB_ID >{done}")],
    )
    told = story(hooked, Plan(env={"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": grace}, sbatch=("--nodelist=n1",))).submit()
    if waits:
        told.wait_for(lambda: told.job()["JobState"] == "COMPLETING", "the Epilog to begin", WAIT_S)
        assert told.job()["JobState"] == "COMPLETING"
    else:
        ended(hooked, told.id)
        assert "in the background after 1 s" in hooked.said("epilog", "n1")
    assert not done.exists()
    go.touch()
    ended(hooked, told.id)
    told.wait_for(done.exists, "the clean-up to end", WAIT_S)
    assert done.read_text() == f"{told.id}\n"


def test_a_requeue_does_not_wait_for_a_clean_up_that_outlasts_what_the_job_gives_it(hooked: Hooked) -> None:
    """It starts behind the grace of 10 s, so Slurm adds nothing; the clean-up of the first scheduling goes on beside the second."""
    done, go = hooked.folder / "cleaned", hooked.folder / "go"
    for file in (done, go):
        file.unlink(missing_ok=True)
    hooked.settings(
        cleanup_grace_of_job=True,
        cleanup=[hooked.script("clean", f"until [ -e {go} ]; do sleep 0.1; done; echo $SLURM_JOB_ID >>{done}")],
    )
    told = story(
        hooked,
        Plan(
            rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; together; exit 3",
            sbatch=("--nodelist=n1",),
            env={"MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS": "10", "FTRUN_REQUEUE_START_IN": "auto"},
        ),
    ).submit()
    job = ended(hooked, told.id)
    assert job["Restarts"] == "1" and told.counters() == [(1, 1, 1), (2, 1, 2)], told.describe()
    first, second = told.starts()
    assert 10.0 < second.time - first.time < 100.0  # Slurm's own delay is 121 s
    assert "in the background after 10 s" in hooked.said("epilog", "n1") and not done.exists()
    go.touch()
    told.wait_for(lambda: done.exists() and done.read_text() == f"{told.id}\n" * 2, "both clean-ups to end", WAIT_S)


# ---- TaskProlog


def story(hooked: Hooked, plan: Plan) -> Story:
    """A job under ftrun whose ledger lies where the hooks look for it."""
    return hooked.stage.prepare(
        replace(plan, env={"FTSLURM_STATE_DIR": str(hooked.ledgers), "FTRUN_REQUEUE_START_IN": "20s", **plan.env}), "story"
    )


COUNTERS = "MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "FTSLURM_ATTEMPT", "FTSLURM_RESTART_RUNG", "FTSLURM_EXCLUDED_NODES"
PRINT = "echo $MA_SCHEDULE_CNT $MA_PROC_START_CNT $FTSLURM_ATTEMPT,$FTSLURM_RESTART_RUNG,$FTSLURM_EXCLUDED_NODES"


@pytest.mark.long
def test_counters_in_the_batch_script_and_under_plain_srun_after_a_requeue(hooked: Hooked) -> None:
    told = story(
        hooked,
        Plan(
            nodes=2,
            rank="""
[ $MA_SCHEDULE_CNT = 2 ] && exit 0
together
[ $SLURM_PROCID = 0 ] && exit 3
exec sleep 100
""",
            script=f"""
echo batch $({PRINT}) >>"$STORY/counters"
srun sh -c '[ $SLURM_PROCID = 1 ] && echo srun $({PRINT}) >>"$STORY/counters"; :'
%RUN%
""",
            sbatch=("--nodelist=n[1-2]", "--export=ALL,MA_SCHEDULE_CNT=77"),
        ),
    ).submit()
    assert ended(hooked, told.id)["Restarts"] == "1", told.describe()
    assert (told.folder / "counters").read_text().splitlines() == [
        "batch 1 1 1,,", "srun 1 1 1,,",
        "batch 2 1 2,unconditional-requeue,", "srun 2 1 2,unconditional-requeue,",
    ]  # fmt: skip
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]


STRANGE = ["mkfifo $ledger", "mkdir $ledger", "ln -s /dev/zero $ledger", "echo { >$ledger", "touch $ledger; chmod 0 $ledger"]


def test_a_strange_ledger_fails_no_task(hooked: Hooked) -> None:
    text = "ledger=$FTSLURM_STATE_DIR/jobs/cluster-local.$SLURM_JOB_ID.jsonl; mkdir -p $FTSLURM_STATE_DIR/jobs\n"
    for number, trap in enumerate(STRANGE):
        text += f"{trap}; srun sh -c 'echo {number} $MA_SCHEDULE_CNT' || exit 1; rm -rf $ledger\n"
    job = run(hooked, text, f"--export=ALL,FTSLURM_STATE_DIR={hooked.cluster.home}/strange")
    assert ended(hooked, job)["ExitCode"] == "0:0"
    assert output(hooked, job).splitlines() == [f"{number} 1" for number in range(len(STRANGE))]


# ---- EpilogSlurmctld


HALF = Plan(
    nodes=2,
    files={"bin-scontrol": DEADLY_SCONTROL},
    script="""
mkdir -p "$STORY/bin" && cp "$STORY/bin-scontrol" "$STORY/bin/scontrol" && chmod +x "$STORY/bin/scontrol"
PATH=$STORY/bin:$PATH sh -c 'echo $$ >"$STORY/ftrun.pid"; exec ftrun sh "$STORY/rank.sh"'
""",
    rank="""
[ $MA_SCHEDULE_CNT = 1 ] || exit 0
[ $SLURM_PROCID = 1 ] && { fault 0.0 80E18402; say sick $SLURMD_NODENAME; }
exec sleep 100
""",
)


HALF_START_IN = "15s"  # where the clean-up takes longer, Slurm adds two minutes, and the tests last as long


@pytest.mark.long
def test_a_requeue_cut_in_half_is_finished_and_the_job_runs_again_without_the_bad_node(hooked: Hooked) -> None:
    """ftrun and its keeper are killed between the requeue and the exclusion; nobody but Slurm does anything after that."""
    hooked.settings(start_in=HALF_START_IN)
    told = story(hooked, HALF).submit()
    job = told.ended("COMPLETED", WAIT_S)
    (sick,) = {words.split()[1] for *_, words in told.said()}
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", sick)
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    assert told.json("status", str(told.id))["requeue_open"] is False


WHOLE = replace(
    HALF,
    script=f"""
echo batch $({PRINT}) >>"$STORY/counters"
srun -N1 -n1 sh -c 'echo srun $({PRINT}) >>"$STORY/counters"'
{HALF.script}""",
    rank="""
[ $MA_SCHEDULE_CNT = 2 ] || exit 0
[ $SLURM_PROCID = 1 ] && { await go; fault 0.0 80E18402; say sick $SLURMD_NODENAME; }
exec sleep 200
""",
)


@pytest.mark.slurms
def test_one_job_with_all_its_hooks_turned_away_then_cut_off_in_its_requeue(hooked: Hooked) -> None:
    """What the tests around this one look at more closely, without waiting for a start time."""
    check = hooked.script("check", "case $SLURMD_NODENAME in n1) echo hot; exit 1;; esac")
    hooked.settings(health_command=check, start_in="90s")
    told = story(hooked, WHOLE).submit()
    assert {start.node for start in told.wait_started(1, WAIT_S).values()} == {"n2", "n3"}
    assert drained(hooked, "n1") == f"ftslurm: command: hot, met by job {told.id}"
    turned = told.job()
    assert (turned["Restarts"], turned["ExcNodeList"]) == ("1", "(null)")
    hooked.settings(start_in="90s")
    hooked.admin("scontrol", "update", "NodeName=n1", "State=UNDRAIN")
    told.allow("go")
    excluded = start_now(hooked, told.id, "2")["ExcNodeList"]
    assert ended(hooked, told.id)["Restarts"] == "2"
    assert [words for *_, words in told.said()] == [f"sick {excluded}"]
    assert told.counters() == [(2, 1, 1), (3, 1, 2)]
    assert (told.folder / "counters").read_text().splitlines() == [
        "batch 2 1 1,,", "srun 2 1 1,,",
        f"batch 3 1 2,isolated-requeue,{excluded}", f"srun 3 1 2,isolated-requeue,{excluded}",
    ]  # fmt: skip


def start_now(hooked: Hooked, job: int, restarts: str) -> dict[str, str]:
    """Once EpilogSlurmctld has said when: the job as it then waits. A busy machine might take longer, and Slurm add its 121 s."""

    def waits() -> dict[str, str]:
        fields = hooked.cluster.job(job)
        done = (fields["JobState"], fields["Restarts"]) == ("PENDING", restarts) and fields["Priority"] != "0"
        return fields if done else {}

    fields = hooked.cluster.wait_for(waits, WAIT_S, f"job {job} to be clean and released")
    assert unix(fields["EligibleTime"]) - time.time() < 100.0, fields
    hooked.admin("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")
    return fields


def test_a_job_on_its_way_starts_when_its_nodes_are_clean_whatever_start_was_guessed(hooked: Hooked) -> None:
    told = story(
        hooked, Plan(nodes=2, rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; together; exit 3", env={"FTRUN_REQUEUE_START_IN": "900s"})
    ).submit()
    assert told.ended("COMPLETED", WAIT_S)["Restarts"] == "1"
    first, second = (min(start.time for start in told.starts() if start.schedule == schedule) for schedule in "12")
    assert second - first < 120.0


@pytest.mark.xdist_group("hooks-by-sudo")  # its cluster is its own
def test_a_slurmctld_that_is_not_root_s_finishes_it_by_sudo() -> None:
    """By the one rule that install-hooks prints; without it the hook says what is missing."""
    with hooked_cluster(len(NODES), []) as own:
        user = site_user()
        folder = own.folder
        command = [
            next(folder.glob("venv/bin/ftslurm")),
            "install-hooks",
            "--dry-run",
            folder / "hooks",
            "--config",
            folder / "hooks.yaml",
        ]
        (rule,) = re.findall(rf"^#   ({user} ALL=.*)$", own.admin(*map(str, command)), re.MULTILINE)
        env = {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": str(own.cluster.home.stat().st_uid), "SLURM_JOB_RESTART_COUNT": "1"}
        refused = own.space.run(
            "runuser",
            "-u",
            user,
            "--",
            folder / "hooks/epilog_slurmctld",
            env={**env, "PATH": "/usr/bin:/bin:/usr/sbin", "SLURM_CONF": str(own.cluster.conf), "SLURM_CLUSTER_NAME": "local"},
        )
        assert "password is required" in refused.stderr, refused
        own.allow_by_sudo(rule)
        own.settings(start_in=HALF_START_IN)
        told = story(own, HALF).submit()
        job = told.ended("COMPLETED", WAIT_S)
        (sick,) = {words.split()[1] for *_, words in told.said()}
        assert (job["Restarts"], job["ExcNodeList"]) == ("1", sick) and told.counters() == [(1, 1, 1), (2, 1, 2)]
        assert own.space.run("ps", "-o", "user=", "-C", "slurmctld").stdout.split()[0] == user


def test_a_held_job_of_a_user_is_left_held(hooked: Hooked) -> None:
    """No requeue is open in its ledger: the hold is the user's own will."""
    told = story(hooked, Plan(rank="[ $MA_SCHEDULE_CNT = 2 ] && exit 0; exec sleep 200")).submit()
    told.wait_started(1, WAIT_S)
    hooked.cluster.answer(["scontrol", "requeuehold", str(told.id)])
    hooked.cluster.wait_for_state(told.id, "PENDING", timeout_s=WAIT_S)
    assert hooked.cluster.job(told.id)["Priority"] == "0"
    hooked.cluster.cancel(told.id)


def ledger_of(job: int, number: int, **changes: object) -> str:
    """As ftrun leaves it when it is killed in the middle of a requeue."""
    began = {
        "v": 1,
        "kind": "RunBegan",
        "at": time.time(),
        "run": "r",
        "job": str(number),
        "cluster": "local",
        "schedule": 0,
        "step_key": "k",
        "command": "x",
        "nodes": "n1",
        "name": "sbatch",
        "launcher": "srun",
        "number": number,
    }
    decided = {
        "v": 1,
        "kind": "Decided",
        "at": time.time(),
        "id": "r.1",
        "attempt": 1,
        "rung": "isolated-requeue",
        "cause": "device",
        "why": "w",
        "isolate": {"n1": "w"},
        "exclude": ["n1"],
    }
    return "".join(json.dumps({**line, **{k: v for k, v in changes.items() if k in line}}) + "\n" for line in (began, decided))


def lay(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


# A few of those that tests/ledger/test_untrusted.py lays for the function that reads them all.
HOSTILE = {
    "a link": lambda path, text, victim: (lay(path.with_name("real"), text), path.symlink_to("real")),
    "a FIFO": lambda path, text, victim: os.mkfifo(path, 0o600),
    "of another owner": lambda path, text, victim: lay(path, text),
    "of another job": lambda path, text, victim: lay(path, text),
    "without permission": lambda path, text, victim: (lay(path, text), path.chmod(0)),
    "of rubbish": lambda path, text, victim: path.write_bytes(os.urandom(100_000)),
}


@pytest.mark.parametrize("trap", HOSTILE)
def test_a_hostile_ledger_changes_nothing(hooked: Hooked, trap: str) -> None:
    """Of two held jobs of one user the one's ledger is a trap; neither is released, and EpilogSlurmctld ends in time."""
    victim, job = (run(hooked, "true", "--hold") for _ in range(2))
    user = as_user(job_user())["user"]
    folder = hooked.ledgers / "jobs"
    for place in (hooked.ledgers, folder):
        place.mkdir(mode=0o700, exist_ok=True)
        os.chown(place, user, -1)
    path = folder / f"cluster-local.{job}.jsonl"
    HOSTILE[trap](path, ledger_of(job, victim if trap == "of another job" else job), victim)
    if trap != "of another owner":
        for place in (folder, *folder.iterdir()):
            os.chown(place, user, -1, follow_symlinks=False)
    before = {number: steady(hooked, number) for number in (victim, job)}
    done = hooked.hook(
        "epilog_slurmctld",
        "",
        {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(user), "SLURM_JOB_RESTART_COUNT": "1", "SLURM_JOB_NODELIST": "n1"},
    )
    assert done.returncode == 0
    assert {number: steady(hooked, number) for number in (victim, job)} == before
    for number in before:
        hooked.cluster.cancel(number)
    for one in (path, path.with_name("real")):
        one.unlink(missing_ok=True)


def steady(hooked: Hooked, job: int) -> dict[str, str]:
    """What of a job nobody but a requeue's finisher would change."""
    fields = hooked.cluster.job(job)
    return {name: fields[name] for name in ("JobState", "Priority", "ExcNodeList", "Requeue", "Restarts", "Reason")}


@pytest.mark.slurms
def test_that_same_ledger_without_a_trap_is_acted_upon(hooked: Hooked) -> None:
    """Or the test above would prove nothing."""
    job = run(hooked, "true", "--hold")
    user = as_user(job_user())["user"]
    folder = hooked.ledgers / "jobs"
    for place in (hooked.ledgers, folder):
        place.mkdir(mode=0o700, exist_ok=True)
        os.chown(place, user, -1)
    path = folder / f"cluster-local.{job}.jsonl"
    lay(path, ledger_of(job, job))
    os.chown(path, user, -1)
    done = hooked.hook(
        "epilog_slurmctld",
        "",
        {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": str(user), "SLURM_JOB_RESTART_COUNT": "1", "SLURM_JOB_NODELIST": "n1"},
    )
    assert "requeued without n1" in done.stderr, done.stderr
    assert ended(hooked, job)["ExcNodeList"] == "n1"


# ---- HealthCheckProgram


def test_the_health_check_drains_and_undrains_by_its_own_proof(hooked: Hooked) -> None:
    flag = hooked.folder / "sick"
    flag.touch()
    hooked.settings(health_command=hooked.script("check", f"[ -e {flag} ] || exit 0; echo 'fan 3 stands'; exit 1"))
    assert hooked.hook("health_check", "n1").returncode == 0
    assert drained(hooked, "n1") == "ftslurm: command: fan 3 stands"
    hooked.hook("health_check", "n1")
    assert drained(hooked, "n1") == "ftslurm: command: fan 3 stands"
    seen = hooked.cluster.answer([f"{hooked.folder}/venv/bin/ftslurm", "nodes", "--all-users"])
    assert "n1 on local: idle+drain\n" in seen and "reason      ftslurm: command: fan 3 stands (root, " in seen
    assert "comes back  as soon as the health check (every 3600 s) finds it well\n" in seen
    assert "advice      mend what the site's health command complains about" in seen
    flag.unlink()
    hooked.hook("health_check", "n1")
    assert "DRAIN" not in hooked.cluster.node("n1")["State"]


def test_an_administrator_s_drain_is_not_touched(hooked: Hooked) -> None:
    hooked.admin("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=new fan")
    for well in (True, False, True):
        hooked.settings(health_command=hooked.script("check", "true" if well else "echo bad; exit 1"))
        hooked.hook("health_check", "n1")
        assert drained(hooked, "n1") == "new fan"
        assert hooked.hook("prolog", "n1", {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "65534"}).returncode == (0 if well else 1)
        assert drained(hooked, "n1") == "new fan"


def test_what_is_not_known_neither_drains_nor_undrains(hooked: Hooked) -> None:
    hooked.settings(health_command=hooked.script("check", "exit 1"))
    hooked.hook("health_check", "n1")
    drained(hooked, "n1")
    hooked.settings(health_command=hooked.script("check", "sleep 1000"), health_timeout="1s")
    for node in ("n1", "n2"):
        hooked.hook("health_check", node)
    assert "DRAIN" in hooked.cluster.node("n1")["State"] and "DRAIN" not in hooked.cluster.node("n2")["State"]


def test_the_kernel_log_convicts_until_a_person_takes_the_node_back(hooked: Hooked) -> None:
    hooked.kernel_says("n1", 1, "EXT4-fs error (device loop0): ext4_find_entry: a user's own image")
    hooked.kernel_says("n1", 2, "traps: python[7] general protection fault ip:1 sp:2 error:0 in libtorch.so")
    hooked.kernel_says("n1", 3, "EXT4-fs error (device sda1): what a program wrote into the log", priority=14)
    hooked.kernel_says("n1", 4, "NVRM: Xid (PCI:0000:18:00): 31, pid=7, name=python")
    hooked.hook("health_check", "n1")
    assert "DRAIN" not in hooked.cluster.node("n1")["State"]
    hooked.kernel_says("n1", 5, "NVRM: Xid (PCI:0000:18:00): 79, pid=7, GPU has fallen off the bus.")
    hooked.hook("health_check", "n1")
    assert drained(hooked, "n1").startswith("ftslurm: kernel log: XID 79")
    hooked.hook("health_check", "n1")  # no new line, and still it was said in this boot
    assert "XID 79" in drained(hooked, "n1")
    hooked.admin("scontrol", "update", "NodeName=n1", "State=UNDRAIN")
    hooked.hook("health_check", "n1")
    assert "DRAIN" not in hooked.cluster.node("n1")["State"]
    hooked.kernel_says("n1", 6, "EXT4-fs error (device sda1): ext4_find_entry")
    assert hooked.hook("prolog", "n1", {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "65534"}).returncode == 1
    assert "a local file system is damaged" in drained(hooked, "n1")


@pytest.mark.slurms
def test_slurm_itself_runs_the_health_check(hooked: Hooked) -> None:
    """slurmd does, whenever slurmctld tells it to; here when it is told anew what its interval is."""
    hooked.settings(health_command=hooked.script("check", "case $SLURMD_NODENAME in n2) echo hot; exit 1;; esac"))
    conf = hooked.cluster.conf
    conf.write_text(conf.read_text().replace("HealthCheckInterval=3600", "HealthCheckInterval=2"))
    try:
        hooked.admin("scontrol", "reconfigure")
        assert drained(hooked, "n2") == "ftslurm: command: hot"
        hooked.settings(health_command=hooked.script("check", "true"))
        hooked.cluster.wait_for(lambda: "DRAIN" not in hooked.cluster.node("n2")["State"], WAIT_S, "n2 to be undrained")
    finally:
        conf.write_text(conf.read_text().replace("HealthCheckInterval=2", "HealthCheckInterval=3600"))
        hooked.admin("scontrol", "reconfigure")


# ---- the installation


@pytest.mark.slurms
def test_what_stands_in_slurm_conf_already_is_told(hooked: Hooked) -> None:
    command = [next(hooked.folder.glob("venv/bin/ftslurm")), "install-hooks", "--dry-run"]
    same = hooked.admin(*map(str, command), str(hooked.folder / "hooks"), "--config", str(hooked.folder / "hooks.yaml"))
    assert len(re.findall("^# already there: ", same, re.MULTILINE)) == 5
    assert "nohold" not in same
    other = hooked.admin(*map(str, command), "/opt/hooks")
    assert f"TaskProlog={hooked.folder}/hooks/task_prolog is there, and Slurm takes one" in other


def test_scripts_that_others_could_change_are_not_installed(hooked: Hooked) -> None:
    loose = hooked.folder / "loose"
    loose.mkdir(exist_ok=True)
    loose.chmod(0o777)
    command = [str(next(hooked.folder.glob("venv/bin/ftslurm"))), "install-hooks", str(loose / "hooks")]
    done = hooked.cluster.run(command, user="root")
    assert done.returncode == 73 and f"{loose} can be changed by users other than root" in done.stderr
    assert "only root can install" in hooked.cluster.run([command[0], "install-hooks", "/tmp/nothing"]).stderr
