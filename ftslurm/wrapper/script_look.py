"""Does the batch script, or something that it has called, live on its node? One task of a step of its own there.

Prints an answer as node_check.py does: `good` is whether it lives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ftslurm.system.processes import PROC
from ftslurm.wrapper.node_check import answer_text
from ftslurm.wrapper.shim.processes import environ_of

# What Slurm gives the script and every step of its job alike; a machine may be several nodes, of several clusters.
SAME = ("SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURMD_NODENAME")


def look(script: int, env: Mapping[str, str]) -> tuple[bool | None, str]:
    """script: its pid. env: of a task on that node."""
    if not script:
        return None, "nobody knows which process is the script"
    for pid, theirs in _environments():
        if pid != os.getpid() and _is_of(script, theirs, env):
            return True, f"process {pid} of the batch script runs"
    return False, "neither ftrun nor its script runs there any more"


def _is_of(script: int, theirs: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    """Each task of a step has its own SLURM_TASK_PID, and hands it on, as the script does (sbatch(1), srun(1)). The number of a
    step would not tell: a job that was submitted from within a step has that in the environment of its script."""
    if (theirs.get("SLURM_TASK_PID"), theirs.get("SLURM_JOB_ID", "")) != (str(script), ours["SLURM_JOB_ID"]):
        return False
    return all(theirs[name] == ours[name] for name in SAME if name in theirs and name in ours)


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Of our own processes: nobody else's may be read. Source: proc(5), /proc/pid/environ."""
    for place in PROC.iterdir():
        with suppress(OSError):
            if place.name.isdecimal() and place.stat().st_uid == os.geteuid():
                words = [word.decode(errors="replace") for word in environ_of(int(place.name))]
                yield int(place.name), dict(word.split("=", 1) for word in words if "=" in word)


def main() -> None:
    """Argument: pid of the script."""
    print(answer_text(*look(int(sys.argv[1]), os.environ), {}))
