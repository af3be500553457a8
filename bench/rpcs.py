"""What a step asks of a slurmctld with 1,000 configured nodes, three of them real: calls by `sdiag`, under srun and under ftrun.

bench/rpcs.py 40 [24]      for how many seconds the ranks run; and how many jobs at once, one node each

The counts are those of jobs' own user, `nobody`, who does nothing else; the test is root's. Calls of slurmd and slurmstepd are
other users'. With jobs at once, what `squeue` takes is measured before and while they run.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from in_place import FTRUN
from measure import cluster, run, shared_folder

FAR = (
    "NodeName=x[0001-1000] NodeAddr=127.0.[1-4].[1-250] CPUs=8 RealMemory=1000 State=DOWN",
    "PartitionName=far Nodes=x[0001-1000]",
)
USER = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups")
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


def squeue_s(env: Mapping[str, str]) -> float:
    def timed() -> float:
        began = time.monotonic()
        run(["squeue"], env)
        return time.monotonic() - began

    return statistics.median(timed() for _ in range(20))


def side_by_side(env: Mapping[str, str], folder: Path, jobs: int) -> None:
    """So many jobs of one task that run at once, under srun and under ftrun."""
    for command in ("srun", FTRUN):
        (folder / "job.sh").write_text(f"#!/bin/bash\n{command} sleep 1000\n")
        idle_s = squeue_s(env)
        argv = [*USER, "sbatch", "--parsable", f"--array=1-{jobs}", "-n1", "--mem=200M", "--no-requeue", "--output=/dev/null"]
        array = run([*argv, f"--chdir={folder}", f"{folder}/job.sh"], env, folder).strip()
        deadline = time.monotonic() + 120
        while run(["squeue", "-h", "-s", "-j", array], env).count(".0") < jobs:
            assert time.monotonic() < deadline
            time.sleep(1.0)
        time.sleep(20.0)  # each has begun all that it begins
        run(["sdiag", "--reset"], env)
        busy_s = squeue_s(env)
        time.sleep(10.0)
        took = f"squeue {1000 * idle_s:.1f} ms before, {1000 * busy_s:.1f} ms while all run"
        print(f"{jobs} jobs under {Path(command).name}: {took}; {calls(env)} calls of the user in 10 s", flush=True)
        run(["scancel", array], env)
        while run(["squeue", "-h", "-j", array], env).strip():
            time.sleep(0.5)


def main(seconds: float, jobs: int) -> None:
    with cluster(3, *FAR) as booted, shared_folder() as place:
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
