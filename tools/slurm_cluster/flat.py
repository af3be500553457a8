"""Nodes that are processes of one host: what belongs to which, and how they are ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from slurm_cluster.cluster import Cluster
from slurm_cluster.daemons import STOP_GRACE_S
from slurm_cluster.processes import POLL_S, all_pids, is_alive, open_files, read_proc, send, wait_gone, with_descendants
from slurm_cluster.trouble import Trouble


def leftovers(cluster: Cluster, nodes: Sequence[str]) -> set[int]:
    """What the slurmds of `nodes` leave when they end: slurmstepds, their descendants, and tasks that got away.

    A slurmstepd, and a slurmd that was just forking one, has its node's log file open; a task has SLURMD_NODENAME and
    SLURM_CONF in its environment, even when submitted with --export=NONE (seen on 22.05).
    """
    logs = {str(cluster.node_log(node)) for node in nodes}
    marks = [{b"SLURM_CONF=" + os.fsencode(cluster.conf), b"SLURMD_NODENAME=" + node.encode()} for node in nodes]

    def belongs(pid: int) -> bool:
        if read_proc(pid, "comm").startswith(b"slurm"):
            return bool(logs & open_files(pid))
        environ = set(read_proc(pid, "environ").split(b"\0"))
        return any(mark <= environ for mark in marks)

    return with_descendants({pid for pid in all_pids() if belongs(pid)}) - {os.getpid()}


def processes_of(cluster: Cluster, node: str) -> set[int]:
    """Its slurmd, steps and tasks."""
    return with_descendants(set(cluster.slurmd(node).pids())) | leftovers(cluster, [node])


def kill_leftovers(cluster: Cluster, nodes: Sequence[str], frozen: bool = False) -> None:
    """SIGKILL until nobody is left: what was just being forked shows up in the next round.

    slurmstepds go first: one that lives to see its tasks die reports the job's end to slurmctld, as no dead node does.
    A frozen one sees nothing, and goes last: with its death the kernel lets the tasks that it leaves behind go on (SIGCONT to
    an orphaned process group), and one of them may see another one die. So parents go before their children, too.
    """
    deadline = time.monotonic() + STOP_GRACE_S
    while pids := {pid for pid in leftovers(cluster, nodes) if is_alive(pid)}:
        if time.monotonic() > deadline:
            raise Trouble(f"processes {sorted(pids)} of {cluster.folder} outlive SIGKILL; look at them with ps")
        steps = {pid for pid in pids if read_proc(pid, "comm").startswith((b"slurmd", b"slurmstepd"))}
        for group in (pids - steps, steps) if frozen else (steps, pids - steps):
            send(sorted(group), signal.SIGKILL)
            wait_gone(group, POLL_S * 4)
