"""Does the batch script, or a process that it started, live on its node? Runs as one task in a step of its own there.

Prints an answer as node_check.py does: `good` is whether it lives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ftslurm.system.processes import PROC
from ftslurm.wrapper.node_check import CheckAnswer
from ftslurm.wrapper.shim.processes import environ_of

# Variables that Slurm sets alike for the script and every step of its job; a machine may be several nodes, of several clusters.
SAME = ("SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURMD_NODENAME")


def _look(script: int, env: Mapping[str, str]) -> tuple[bool | None, str]:
    """Does the script live, and why? script: its pid. env: of a task on that node."""
    if not script:
        return None, "nobody knows which process is the script"
    for pid, theirs in environments():
        if pid != os.getpid() and _is_of(script, theirs, env):
            return True, f"process {pid} of the batch script runs"
    return False, "neither ftrun nor its script runs there any more"


def _is_of(script: int, theirs: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    """Is it a process of the script? Each task of a step has its own SLURM_TASK_PID and passes it on, as the script does
    (sbatch(1), srun(1)). The step number does not tell: a job that was submitted from within a step has it in its script's
    environment.
    """
    if (theirs.get("SLURM_TASK_PID"), theirs.get("SLURM_JOB_ID", "")) != (str(script), ours["SLURM_JOB_ID"]):
        return False
    return all(theirs[name] == ours[name] for name in SAME if name in theirs and name in ours)


def environments() -> Iterator[tuple[int, dict[str, str]]]:
    """The environments of our own processes; others' are unreadable. Source: proc(5), /proc/pid/environ."""
    for place in PROC.iterdir():
        with suppress(OSError):
            if place.name.isdecimal() and place.stat().st_uid == os.geteuid():
                words = [word.decode(errors="replace") for word in environ_of(int(place.name))]
                yield int(place.name), dict(word.split("=", 1) for word in words if "=" in word)


def main() -> None:
    """Runs on the node. Argument: pid of the script."""
    print(CheckAnswer(*_look(int(sys.argv[1]), os.environ), {}).text())
