"""The srun for one machine against the real one: the same command line gives the same output, files and exit status.

Real steps run in an allocation of n1 to n4 held for this module; the others play it. Output of several tasks comes in
any order from both, so lines are compared sorted. Not compared is what local_step's docstring lists as different, and:

- `%N` in file names, which on a cluster that shares one host is that host for srun;
- files that cannot be opened, after which srun 22.05 leaves a step behind that holds the allocation's CPUs;
- a task that ends while input waits for it, as it tears down srun's connection and so the step.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.launchers.test_local_step import CORRECTED, LAYOUTS

if TYPE_CHECKING:
    from conftest import Cluster

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
NODES = ("n1", "n2", "n3", "n4")
LOCAL = (sys.executable, "-m", "ftslurm.launchers.local_step")

# What srun says only about itself, the allocation it shares, or the ends of tasks, of which ftrun says more.
CHATTER = re.compile(
    r"srun: (Force Terminated|StepId|Job step aborted|Step created|Job \d+ step creation|error: IO: Hey, you told me node"
    r"|error: n\d: tasks? [\d,-]+: ).*"
)


@dataclass(frozen=True)
class Left:
    """What a step leaves: its status, its lines sorted, and its files likewise."""

    status: int
    out: tuple[str, ...]
    err: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Pair:
    """The real srun in allocation `job`, and the small one that plays it."""

    cluster: Cluster
    job: str

    def real(self, folder: str, options: str, argv: list[str], **how: Any) -> Left:
        return self._run(folder, ["srun", f"--jobid={self.job}", "--overlap", *shlex.split(options), *argv], **how)

    def local(self, folder: str, options: str, argv: list[str], step: int = 0, **how: Any) -> Left:
        env = {**how.pop("env", {}), "PYTHONPATH": str(ROOT), **self.played(step)}
        return self._run(folder, [*LOCAL, *shlex.split(options), "--", *argv], env=env, **how)

    def played(self, step: int) -> dict[str, str]:
        return {"FTSLURM_LOCAL_NODES": ",".join(NODES), "FTSLURM_LOCAL_JOB": self.job, "FTSLURM_LOCAL_STEP": str(step)}

    def next_step(self) -> int:
        """The number that the next real step will have."""
        return 1 + int(self.cluster.answer(["srun", f"--jobid={self.job}", "--overlap", "-n1", "printenv", "SLURM_STEP_ID"]))

    def _run(self, name: str, argv: list[str], **how: Any) -> Left:
        folder = self.cluster.home / name
        self.cluster.answer(["mkdir", "-p", str(folder / "sub")])
        done = self.cluster.run(argv, cwd=folder, **how)
        files = {str(path.relative_to(folder)): lines(path.read_text()) for path in folder.rglob("*") if path.is_file()}
        self.cluster.answer(["rm", "-r", str(folder)])
        return Left(done.returncode, lines(done.stdout), lines(alike(done.stderr)), files)


def lines(text: str) -> tuple[str, ...]:
    return tuple(sorted(text.splitlines()))


def alike(stderr: str) -> str:
    """Both sides' words under one name."""
    text = re.sub(r"^slurmstepd-(\w+): error: ", r"ftrun: error: \1: ", stderr, flags=re.MULTILINE)
    kept = [line for line in text.splitlines() if not CHATTER.match(line)]
    return "\n".join(re.sub(r"^srun: ", "ftrun: ", line) for line in kept)


@pytest.fixture(scope="module")
def pair(cluster: Cluster) -> Iterator[Pair]:
    told = cluster.run(["salloc", "-w", ",".join(NODES), "-N4", "--exclusive", "--no-shell", "--time=10"]).stderr
    granted = re.search(r"Granted job allocation (\d+)", told)
    assert granted, told
    try:
        yield Pair(cluster, granted[1])
    finally:
        cluster.cancel(int(granted[1]))
        cluster.wait_for_state(int(granted[1]), "CANCELLED", "COMPLETED")


PLACE = ["sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID $SLURM_NODEID $SLURM_GTIDS $SLURM_NTASKS "
         "$SLURM_NNODES $SLURM_TASKS_PER_NODE $SLURM_STEP_NUM_TASKS $SLURM_STEP_TASKS_PER_NODE $SLURM_STEP_NUM_NODES "
         "$SLURM_STEP_NODELIST $SLURM_NODELIST [$SLURM_NTASKS_PER_NODE] [$SLURM_CPUS_PER_TASK]"]  # fmt: skip


@pytest.mark.parametrize("options", [line for line, _ in LAYOUTS if "-p gpu" not in line] + [case[0] for case in CORRECTED])
def test_tasks_have_the_same_places(pair: Pair, options: str) -> None:
    assert pair.local("step", options, PLACE) == pair.real("step", options, PLACE)


BOTH = "echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2"

# options, script, stdin
CASES: dict[str, tuple[str, str, str]] = {
    "plain": ("-n3", BOTH, ""),
    "cpus": ("-N2 -n2 -c2", "echo $SLURM_CPUS_PER_TASK", ""),
    "label": ("-l -N2 -n3", BOTH, ""),
    "label-of-two-digits": ("-l -N2 -n12", BOTH, ""),
    "label-of-half-lines": ("-l -N2 -n2", "printf part; sleep 0.3; printf 'ial\\n\\nno newline'", ""),
    "label-one-file": ("-l -n12 -N2 -o log", BOTH, ""),
    "label-by-task": ("-l -n3 -N2 -o log.%t -e err.%t", BOTH, ""),
    "label-none": ("-l -n2 -o none", BOTH, ""),
    "label-one-task": ("-l -n3 -o 1", BOTH, ""),
    "one-file": ("-n3 -o log", BOTH, ""),
    "error-file": ("-n3 -e log", BOTH, ""),
    "one-file-twice": ("-n2 -o log -e log", BOTH, ""),
    "by-task-and-node": ("-n3 -N2 -o out.%t -e err.%n", BOTH, ""),
    "all-patterns": ("-n3 -N2 -o f.%t.%3t.%n.%2n.%j.%J.%s.%u.%x.%%.%A.%a.%5j.%5J.%4s.%12t", BOTH, ""),
    "percent": ("-n2 -o f.%%j.%%%%.%q", BOTH, ""),
    "percent-by-task": ("-n2 -o f.%%t.%t", BOTH, ""),
    "backslash": ("-n2 -o 'f.\\%t'", BOTH, ""),
    "one-task": ("-n3 -o 1", BOTH, ""),
    "one-task-each": ("-n3 -o 1 -e 0", BOTH, ""),
    "no-such-task": ("-n3 -o 7", BOTH, ""),
    "output-none": ("-n2 -o none", BOTH, ""),
    "error-none": ("-n2 -e none -o all", BOTH, ""),
    "chdir": ("-n2 -D sub -o here", "pwd | sed 's|.*/||'", ""),
    "chdir-by-task": ("-n2 -D sub -o there.%t", "pwd | sed 's|.*/||'", ""),
    "quiet": ("-Q -n1 -N2", "exit 3", ""),
    "stdin": ("-n3 -N2", "cat; echo end $SLURM_PROCID", "a\nb\n"),
    "stdin-one": ("-n3 -N2 -i 1", "cat; echo end $SLURM_PROCID", "a\nb\n"),
    "stdin-none": ("-n3 -N2 -i none", "cat; echo end $SLURM_PROCID", "a\nb\n"),
    "stdin-much": ("-n3 -N2", "md5sum", "".join(f"{number}\n" for number in range(200_000))),
    "stdin-of-a-single-task": ("-n1", "cat", "no newline"),
    "exit-7": ("-n4 -N2", "exit 7", ""),
    "exit-each": ("-n4 -N1", "exit $SLURM_PROCID", ""),
    "exit-some": ("-n4 -N1", "exit $((SLURM_PROCID / 2 * 3))", ""),
    "exit-0-and-9": ("-n2 -N2", "exit $((SLURM_PROCID * 9))", ""),
    "killed": ("-n4 -N2", "kill -KILL $$", ""),
    "killed-and-exited": ("-n2 -N2", "[ $SLURM_PROCID = 0 ] && kill -KILL $$; exit 200", ""),
    "killed-in-two-ways": ("-n2 -N2", "[ $SLURM_PROCID = 0 ] && kill -KILL $$; kill -TERM $$", ""),
    "crashed": ("-n2 -N1", "ulimit -c 0; [ $SLURM_PROCID = 0 ] && kill -SEGV $$; kill -ABRT $$", ""),
    "signals-as-found": ("-n1", "grep -E 'Sig(Ign|Blk)' /proc/self/status", ""),
    "descriptors": ("-n2", "ls /proc/self/fd | wc -l", ""),
    "session": ("-n1", "[ $(cut -d' ' -f5 /proc/$$/stat) = $$ ] && echo leads its group", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_leaves_the_same(pair: Pair, name: str) -> None:
    options, script, stdin = CASES[name]
    argv = ["sh", "-c", script]
    step = pair.next_step() if "%s" in options else 0
    real = pair.real("step", options, argv, stdin=stdin)
    assert pair.local("step", options, argv, step, stdin=stdin) == real


@pytest.mark.parametrize("program", ["/no/such/program", "/etc/passwd"])
def test_what_cannot_be_run_ends_alike(pair: Pair, program: str) -> None:
    assert pair.local("step", "-n2 -N2", [program]) == pair.real("step", "-n2 -N2", [program])


EXPORTED = {"AA": "env", "BB": "b"}


@pytest.mark.parametrize(
    "export",
    ["ALL", "NONE", "none", "AA", "AA,CC=3", "AA=opt", "ALL,AA=opt,CC=3", "AA=opt,ALL", "CC=3,NONE,AA", "ALL,NONE",
     "'CC=3,4',ALL", "CC='3,4',ALL", "AA=,,BB", ",AA", "NIL"],
)  # fmt: skip
def test_export_lets_the_same_through(pair: Pair, export: str) -> None:
    argv = ["/bin/sh", "-c", 'echo "[$AA] [$BB] [$CC] [$HOME] [$SLURM_NTASKS]"']
    options = shlex.join(["-n1", f"--export={export}"])
    assert pair.local("step", options, argv, env=EXPORTED) == pair.real("step", options, argv, env=EXPORTED)


def test_the_environment_gives_options_alike(pair: Pair) -> None:
    env = {"SLURM_NTASKS": "3", "SLURM_LABELIO": "1", "SLURM_DISTRIBUTION": "cyclic", "SLURM_STDERRMODE": "log"}
    argv = ["sh", "-c", f"echo $SLURM_NODEID; {BOTH}"]
    assert pair.local("step", "-N2", argv, env=env) == pair.real("step", "-N2", argv, env=env)


@pytest.mark.parametrize("name", ["USR1", "USR2"])  # the two that srun does nothing with but pass them on
def test_signals_reach_tasks_alike(pair: Pair, name: str) -> None:
    argv = ["sh", "-c", f"trap 'exit 9' {name}; echo ready; while :; do sleep 0.05; done"]
    local = signalled(pair, [*LOCAL, "-n2", "--", *argv], name)
    assert local == signalled(pair, ["srun", f"--jobid={pair.job}", "--overlap", "-n2", *argv], name)
    assert local == 9


def signalled(pair: Pair, argv: list[str], name: str) -> int:
    """The status of a step that gets a signal once all tasks are ready."""
    from tests.live.conftest import as_user, job_user

    env = {**pair.cluster.environ(job_user()), "PYTHONPATH": str(ROOT), **pair.played(0)}
    process = subprocess.Popen(argv, env=env, cwd=pair.cluster.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, **as_user(job_user()))  # fmt: skip
    try:
        assert process.stdout
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        time.sleep(0.2)  # srun loses a signal that meets it between the start of the tasks and the news of it
        process.send_signal(signal.Signals[f"SIG{name}"])
        process.communicate(timeout=20.0)
    finally:
        process.kill()
        process.wait()
    return process.returncode
