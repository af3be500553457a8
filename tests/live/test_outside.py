"""Outside an allocation ftrun does what srun does: it asks for one, waits, runs in it, and gives it back.

Each is tried by srun and by ftrun. Nothing here runs in a batch job.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.live.conftest import as_user, job_user
from tests.live.stories import Plan, Stage, Story, terminal
from tests.live.test_drop_in import ARGUMENTS, OURS, SHOW, Case, left_in

pytestmark = [pytest.mark.live, pytest.mark.slurms, pytest.mark.timeout(300)]

LAUNCHERS = ("srun", "ftrun")

CASES = {
    "plain": Case("-n1 sh -c 'echo out; echo err >&2; exit 0'"),
    "nothing-said": Case("sh -c 'echo $SLURM_NTASKS $SLURM_NNODES $SLURM_JOB_NAME'"),
    "tasks": Case("-N2 -n4 --ntasks-per-node=2 -l sh -c 'echo $SLURM_LOCALID'"),
    "some-nodes": Case("-N2-3 sh -c 'echo $SLURM_NNODES'"),
    "named-nodes": Case("-w n2,n3 -x n1 sh -c 'echo $SLURMD_NODENAME'"),
    "of-the-job": Case(
        "-n1 -J named -t 3 --comment=x --exclusive sh -c 'scontrol show job $SLURM_JOB_ID | grep -oE \"JobName=.*|TimeLimit=[^ ]*|OverSubscribe=[^ ]*|Comment=.*\"'"
    ),
    "named-by-the-program": Case("-n1 sh -c 'scontrol show job $SLURM_JOB_ID | grep -o JobName=.*'"),
    "chdir": Case("-n1 -D / pwd"),
    "stdin-large": Case("-n1 wc -c", stdin="0123456789\n" * 30000),
    "torture": Case(f"-n1 sh -c {shlex.quote(SHOW)} sh {ARGUMENTS}"),
    "export-none": Case("-n1 --export=NONE /bin/sh -c 'echo ${SECRET-unset} ${SLURM_PROCID-unset}'", before="export SECRET=x"),
    "cpus": Case("-n1 -c2 sh -c 'echo $SLURM_CPUS_PER_TASK'"),
    "srun-s-variables": Case(
        "sh -c 'echo $SLURM_PROCID $SLURM_NNODES'; :", before="export SLURM_NTASKS=3 SLURM_NNODES=2 SLURM_LABELIO=1"
    ),
    "salloc-s-variables": Case("echo x", before="export SALLOC_PARTITION=no-such SALLOC_TIMELIMIT=nonsense"),
    "option-beats-variable": Case("-p main -n2 echo x", before="export SLURM_PARTITION=no-such SLURM_NTASKS=4"),
    "partition-of-a-variable": Case("echo x", before="export SLURM_PARTITION=no-such", status=1, exact=False),
    "no-such-partition": Case("-p no-such true", status=1, exact=False),
    "at-once-or-not": Case("--immediate=1 -N6 --exclude=n1 true", status=1, exact=False),
    "status": Case("-n2 sh -c 'exit $((SLURM_PROCID * 7))'", status=7, exact=False),
    "no-such-option": Case("--no-such-option true", status=None, exact=False),
    "descriptors": Case("-n1 sh -c 'ls /proc/self/fd | wc -l'"),
    "in-a-job-that-runs": Case("--jobid=\"$(cat ../../job)\" --overlap -n1 sh -c 'echo $SLURM_JOB_NAME $SLURM_JOB_NODELIST'"),
}


LANES = 3  # each case waits for Slurm far more than it computes


def lane(names: Sequence[str]) -> str:
    """These cases, one after the other, by both launchers."""
    lines = []
    for name in names:
        for launcher in LAUNCHERS:
            lines += [
                f'mkdir -p "$STORY/{name}/{launcher}"; cd "$STORY/{name}/{launcher}"',
                f'({CASES[name].before or ":"}\n timeout 120 {launcher} {CASES[name].args} <"$STORY/{name}.in" >stdout 2>stderr; echo $? >status)',
            ]
    return "\n".join(["(", *lines, ") &"])


@pytest.fixture(scope="module")
def compared(stage: Stage) -> dict[str, Path]:
    """Name of a case to the folder with what srun and ftrun left of it."""
    told = stage.prepare(Plan(env={"OURS": OURS}), "outside")
    for name, case in CASES.items():
        (told.folder / f"{name}.in").write_text(case.stdin)
    lines = ["sbatch --parsable -n1 -t60 -o /dev/null -J host --wrap 'sleep 3600' >job"]
    lines += ['until [ "$(squeue -h -o %T -j $(cat job))" = RUNNING ]; do sleep 0.1; done']
    lines += [lane(list(CASES)[start::LANES]) for start in range(LANES)]
    lines += ["wait", "scancel $(cat $STORY/job)"]
    done = stage.cluster.run(["bash", "-c", "\n".join(lines)], env=told.env, cwd=told.folder, timeout=280.0)
    assert done.returncode == 0, done.stderr
    return {name: told.folder / name for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_does_what_srun_does(compared: dict[str, Path], name: str) -> None:
    case, srun, ftrun = CASES[name], compared[name] / "srun", compared[name] / "ftrun"
    status = int((srun / "status").read_text())
    assert status == case.status or (case.status is None and status), (srun / "stderr").read_text()
    assert int((ftrun / "status").read_text()) == status, (ftrun / "stderr").read_text(errors="replace")
    assert told_at_once(left_in(ftrun, case)) == told_at_once(left_in(srun, case))


def told_at_once(left: dict[str, str]) -> dict[str, str]:
    """Without what is said of a job that has to wait: for nodes that the one before has just left, now and then."""
    waits = re.compile(r"^(?:srun|ftrun): job \d+ (?:queued and waiting for|has been allocated) resources\n", re.MULTILINE)
    return {name: waits.sub("", text) for name, text in left.items()}


def test_the_ranks_know_the_same_variables(stage: Stage) -> None:
    """But for those that salloc adds of itself, for ours, and for what srun in an allocation of salloc's does not tell, either."""
    told = stage.prepare(Plan(), "variables")
    seen = {
        launcher: set(
            stage.cluster.answer(
                [launcher, "-n1", "-N1", "sh", "-c", "env -0 | sed -z s/=.*// | tr \\\\0 \\\\n"], env=told.env, cwd=told.folder
            ).split()
        )
        for launcher in LAUNCHERS
    }
    assert seen["srun"] - seen["ftrun"] <= SRUN_ALONE
    assert {name for name in seen["ftrun"] - seen["srun"] if not re.fullmatch(OURS, name)} <= SALLOC_ADDS


# Seen on 22.05; the distribution is the one that srun would choose.
SRUN_ALONE = {"SLURM_JOB_GROUP"}  # seen on 24.11
SALLOC_ADDS = {"SLURM_DISTRIBUTION", "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0", "SLURM_NODE_ALIASES"}


class Waiting:
    """A launcher under way, by the job user."""

    def __init__(self, told: Story, *argv: str) -> None:
        self.told = told
        self.name = f"w{time.monotonic_ns()}"
        first, *rest = argv
        self.process = subprocess.Popen(
            [first, "-J", self.name, *rest],
            env={**told.cluster.environ(job_user()), **told.env},
            cwd=told.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **as_user(job_user()),
        )

    def job(self, state: str) -> str:
        def number() -> str:
            return self.told.cluster.run(["squeue", "-h", "-o", "%A", "-n", self.name, "-t", state]).stdout.strip()

        return self.told.wait_for(number, f"its job to be {state}")

    def gone(self) -> bool:
        return not self.told.cluster.run(["squeue", "-h", "-n", self.name]).stdout.strip()

    def ended(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=30)
        self.told.wait_for(self.gone, "its job to be gone")
        self.told.wait_nothing_left()
        return self.process.returncode, out + err


def interrupt_twice(process: subprocess.Popen[str]) -> None:
    """Until srun has seen two within the second that it allows, which on a busy machine takes more of them."""
    for _ in range(60 if process.args[0] == "srun" else 2):
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)  # srun takes two for one that come nearer to each other


# What is done to it while it waits for nodes, or while it runs.
STRIKES: dict[str, Callable[[Waiting, str], object]] = {
    "interrupted": lambda waiting, job: interrupt_twice(waiting.process),
    "terminated": lambda waiting, job: waiting.process.terminate(),
    "cancelled": lambda waiting, job: waiting.told.cluster.cancel(int(job)),
}


@pytest.mark.parametrize("strike", STRIKES)
def test_while_it_waits_for_nodes(stage: Stage, strike: str) -> None:
    ends = {}
    for launcher in LAUNCHERS:
        waiting = Waiting(stage.prepare(Plan(), f"waits-{launcher}"), launcher, "-N1", "--begin=now+1hour", "sleep", "60")
        STRIKES[strike](waiting, waiting.job("PENDING"))
        ends[launcher] = waiting.ended()
        assert "queued and waiting for resources" in ends[launcher][1]
    assert ends["ftrun"][0] == ends["srun"][0], ends


@pytest.mark.parametrize("strike", ["interrupted", "cancelled"])
def test_while_it_runs(stage: Stage, strike: str) -> None:
    """One Ctrl-C ends ftrun where srun asks for two."""
    ends = {}
    for launcher in LAUNCHERS:
        told = stage.prepare(Plan(rank="exec sleep 60"), f"runs-{launcher}")
        waiting = Waiting(told, launcher, "-N1", "sh", f"{told.folder}/rank.sh")
        job = waiting.job("RUNNING")
        told.wait_for(lambda told=told: (told.folder / "rank.0").exists(), "its rank")
        STRIKES[strike](waiting, job)
        ends[launcher] = waiting.ended()
    assert ends["ftrun"][0] == ends["srun"][0] or strike == "interrupted", ends
    assert ends["ftrun"][0] != 0


def test_ctrl_c_on_a_terminal_ends_it(stage: Stage) -> None:
    told = stage.prepare(Plan(rank="echo here; exec sleep 60"), "terminal")
    with terminal(told, ["ftrun", "-N1", "sh", f"{told.folder}/rank.sh"]) as window:
        window.read_until("here")
        window.write("\x03")
        assert window.wait() == 130, window.seen
    told.wait_nothing_left()


def test_pty_gives_a_shell(stage: Stage) -> None:
    told = stage.prepare(Plan(), "pty")
    with terminal(told, ["ftrun", "-N1", "--pty", "sh", "-i"]) as shell:
        shell.write("tty; echo sum=$((6 * 7))\n")
        assert "/dev/pts/" in shell.read_until("sum=42")
        shell.write("exit 5\n")
        assert shell.wait() == 5, shell.seen
    told.wait_nothing_left()


def test_a_fault_is_healed_in_place_and_spares_are_asked_for(stage: Stage) -> None:
    told = stage.prepare(
        Plan(
            nodes=2,
            rank="""
        [ $MA_PROC_START_CNT = 1 ] || { scontrol show job $SLURM_JOB_ID | grep -o 'NumNodes=[0-9]*'; exit 0; }
        [ $SLURM_PROCID = 1 ] && fault 0.0 80C98008
        exec sleep 100
    """,
        ),
        "fault",
    )
    done = stage.cluster.run(
        ["ftrun", "--ft-spares", "1", "-N2", "-n2", "sh", f"{told.folder}/rank.sh"], env=told.env, cwd=told.folder, timeout=60.0
    )
    assert (done.returncode, done.stdout) == (0, "NumNodes=3\nNumNodes=3\n"), done.stderr
    assert told.counters() == [(1, 1, 1), (1, 2, 2)]


def test_the_local_launcher_is_asked_for_or_said(stage: Stage) -> None:
    told = stage.prepare(Plan(), "local")
    asked = stage.cluster.run(["ftrun", "--ft-launcher", "local", "-N2", "echo", "x"], env=told.env, cwd=told.folder)
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "x\nx\n", "")
    said = stage.cluster.run(["ftrun", "-N2", "echo", "x"], env={**told.env, "SLURM_CONF": "/dev/null"}, cwd=told.folder)
    assert (said.returncode, said.stdout, len(said.stderr.splitlines())) == (0, "x\nx\n", 1), said.stderr
    assert said.stderr.startswith("ftrun: Slurm has no configuration"), said.stderr


def test_a_slurmctld_that_is_away_is_still_a_slurm(stage: Stage) -> None:
    """Four processes on the login node are not what was asked for, and srun would not start them either."""
    conf = stage.cluster.conf.read_text()
    told = stage.prepare(Plan(), "away")
    away = told.folder / "slurm.conf"
    away.write_text(re.sub(r"(?m)^SlurmctldPort=.*$", "SlurmctldPort=1", conf) + "\nMessageTimeout=2\n")
    ends = [
        stage.cluster.run(
            [launcher, "--immediate=1", "-N2", "echo", "x"],
            env={**told.env, "SLURM_CONF": str(away)},
            cwd=told.folder,
            timeout=100.0,
        )
        for launcher in LAUNCHERS
    ]
    assert [(done.returncode, done.stdout) for done in ends] == [(1, "")] * 2, [done.stderr for done in ends]
