"""What a step asks of a slurmctld with 1,000 configured nodes, three of them real: calls by `sdiag`, under srun and under ftrun.

bench/rpcs.py 40 [200]     for how many seconds the ranks run; and how many jobs at once, one rank each

The counts are those of jobs' own user, `nobody`, who does nothing else; the test is root's. Calls of slurmd and slurmstepd are
other users'. With jobs at once: calls until each job runs, and then calls, slurmctld's CPU time and what `squeue` takes.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from in_place import FTRUN
from measure import cluster, run, shared_folder

FAR = (
    "NodeName=x[0001-1000] NodeAddr=127.0.[1-4].[1-250] CPUs=8 RealMemory=1000 State=DOWN",
    "PartitionName=far Nodes=x[0001-1000]",
)
USER = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
# A rank of the jobs that run at once: a command line that nobody else has.
SLEEP, TIME_OF_A_JOB = "/bin/sleep", "1003.5"
WAVE = 20
WATCHED_S = 60.0
ONCE = "[ $SLURM_PROCID = 1 ] && [ $FTSLURM_ATTEMPT = 1 ] && exit 3; sleep 2"


def calls(env: Mapping[str, str]) -> int:
    """Of the user since the last reset."""
    by_user = run(["sdiag"], env).partition("by user")[2]
    found = re.search(r"nobody\s*\(\s*\d+\)\s*count:(\d+)", by_user)
    return int(found[1]) if found else 0


def submitted(env: Mapping[str, str], folder: Path, command: str, *options: str) -> None:
    """Submit a job and forget its submission's calls once its script runs; the script says so, and waits until told."""
    for mark in ("up", "go", "over"):
        (folder / mark).unlink(missing_ok=True)
    script = f"#!/bin/bash\ntouch up\nuntil [ -e go ]; do sleep 0.1; done\n{command}\ntouch over\n"
    (folder / "job.sh").write_text(script)
    run([*USER, "sbatch", f"--output={folder}/job.out", *options, f"--chdir={folder}", f"{folder}/job.sh"], env, folder)
    awaited(folder / "up")
    run(["sdiag", "--reset"], env)
    (folder / "go").touch()


def awaited(mark: Path, limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not mark.exists():
        assert time.monotonic() < deadline, f"no {mark}"
        time.sleep(0.1)


def one(env: Mapping[str, str], folder: Path, command: str) -> tuple[int, int]:
    """Calls of one step: until its ranks run, and until it has ended."""
    (folder / "runs").unlink(missing_ok=True)
    submitted(env, folder, command.replace("BEGIN", f"touch {folder}/runs"), "-N3", "-n3")
    awaited(folder / "runs")
    time.sleep(2.5)  # agents begin a second later
    first = calls(env)
    awaited(folder / "over")
    return first, calls(env)


def side_by_side(env: Mapping[str, str], folder: Path, jobs: int) -> None:
    """So many jobs of one task that run at once, submitted WAVE by WAVE: none, under srun and under ftrun."""
    print(f"none: {_looked_at(env)}", flush=True)
    for command in ("srun", FTRUN):
        (folder / "job.sh").write_text(f"#!/bin/bash\n{command} {SLEEP} {TIME_OF_A_JOB}\n")
        run(["sdiag", "--reset"], env)
        for begun in range(0, jobs, WAVE):
            argv = [*USER, "sbatch", f"--array=1-{min(WAVE, jobs - begun)}", "-n1", "--mem=200M", "--no-requeue"]
            run([*argv, "--output=/dev/null", f"--chdir={folder}", f"{folder}/job.sh"], env, folder)
            _await_ranks(min(begun + WAVE, jobs))
        time.sleep(20.0)  # each has begun all that it begins
        each = calls(env) / jobs
        print(f"{jobs} under {Path(command).name}: {each:.2f} calls of the user to start a job; {_looked_at(env)}", flush=True)
        run(["scancel", "--user=nobody"], env)
        while run(["squeue", "--noheader"], env).strip():
            time.sleep(0.5)


def _await_ranks(count: int) -> None:
    """slurmctld is not asked, for its calls are counted."""
    deadline = time.monotonic() + 300
    while sum(process.info["cmdline"] == [SLEEP, TIME_OF_A_JOB] for process in psutil.process_iter(["cmdline"])) < count:
        assert time.monotonic() < deadline, f"{count} ranks do not run"
        time.sleep(0.5)


def _looked_at(env: Mapping[str, str]) -> str:
    """What slurmctld does for WATCHED_S, then how long squeue takes."""
    pid_file = Path(env["SLURM_CONF"]).parent / "run" / "slurmctld.pid"
    slurmctld = psutil.Process(int(pid_file.read_text()))
    run(["sdiag", "--reset"], env)
    before = slurmctld.cpu_times()
    machine = psutil.cpu_percent(WATCHED_S)
    after = slurmctld.cpu_times()
    asked = calls(env)
    took = sorted(1000 * _timed(["squeue"], env) for _ in range(30))
    cpu_s = after.user + after.system - before.user - before.system
    answered = re.search(r"REQUEST_JOB_INFO +\(.*ave_time:(\d+)", run(["sdiag"], env))
    squeue = f"squeue {statistics.median(took):.1f} ms, p90 {took[26]:.1f}, slurmctld's part {answered and answered[1]} us"
    busy = f"{asked} calls of the user and {cpu_s:.2f} CPU s of slurmctld in {WATCHED_S:g} s"
    return f"{busy}; {squeue}; CPUs of the machine {machine:.0f} % busy"


def _timed(argv: Sequence[str], env: Mapping[str, str]) -> float:
    began = time.monotonic()
    run(argv, env)
    return time.monotonic() - began


def main(seconds: float, jobs: int) -> None:
    with cluster(3, *FAR, cpus=max(8, -(-jobs // 3))) as booted, shared_folder() as place:
        folder = Path(place)
        subprocess.run(["chown", "nobody", place], check=True)
        env = {**booted, "HOME": place, "FTSLURM_STATE_DIR": f"{place}/state"}
        for what, words in (("no failure", f"sleep {seconds:g}"), ("a crash answered in place", ONCE)):
            for command in ("srun", FTRUN):
                if command == "srun" and words == ONCE:
                    continue
                first, all_ = one(env, folder, f"{command} bash -c 'BEGIN; {words}'")
                later = f"{all_ - first} more to its end"
                print(f"{Path(command).name}, {what}: {first} calls until its ranks run, {later}", flush=True)
        if jobs:
            side_by_side(env, folder, jobs)


if __name__ == "__main__":
    main(float(sys.argv[1]) if sys.argv[1:] else 40.0, int(sys.argv[2]) if sys.argv[2:] else 0)
