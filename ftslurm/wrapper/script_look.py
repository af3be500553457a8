"""Does the batch script, or something that it has called, live on its node? One task of a step of its own there.

Prints an answer as node_check.py does: `good` is whether it lives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ftslurm.system.processes import PROC
from ftslurm.wrapper.node_check import answer_text

# What Slurm gives the script and every step of its job alike; a machine may be several nodes, of several clusters.
SAME = ("SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURMD_NODENAME")
# And to the tasks of a step alone.
OF_A_STEP = "SLURM_STEP_ID"


def look(env: Mapping[str, str]) -> tuple[bool, str]:
    """env: of a task on that node. The script itself has what Slurm gave it, whatever it has unset since."""
    for pid, theirs in _environments():
        if _is_script(theirs, env):
            return True, f"process {pid} of the batch script runs"
    return False, "neither ftrun nor its script runs there any more"


def _is_script(theirs: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    if OF_A_STEP in theirs or theirs.get("SLURM_JOB_ID", "") != ours["SLURM_JOB_ID"]:
        return False
    return all(theirs[name] == ours[name] for name in SAME if name in theirs and name in ours)


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    """Of our own processes: nobody else's may be read. Source: proc(5), /proc/pid/environ."""
    for place in PROC.iterdir():
        with suppress(OSError):
            if place.name.isdecimal() and place.stat().st_uid == os.geteuid():
                words = (place / "environ").read_bytes().decode(errors="replace").split("\0")
                yield int(place.name), dict(word.split("=", 1) for word in words if "=" in word)


def main() -> None:
    print(answer_text(*look(os.environ), {}))
