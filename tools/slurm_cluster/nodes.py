"""What can be done to a node."""

from __future__ import annotations

import re
import signal
import time

from slurm_cluster import apart, flat
from slurm_cluster.cluster import Cluster
from slurm_cluster.daemons import STOP_GRACE_S, logs_of, start, wait_for
from slurm_cluster.processes import send, wait_gone
from slurm_cluster.trouble import EX_USAGE, Trouble, say


def known_node(cluster: Cluster, node: str) -> str:
    if node not in cluster.spec.node_names:
        names = ", ".join(cluster.spec.node_names)
        raise Trouble(f"the cluster in {cluster.folder} has no node {node}; it has {names}", EX_USAGE)
    return node


def processes_of(cluster: Cluster, node: str) -> set[int]:
    """Its slurmd, steps and tasks; the first process of a node that is apart keeps its file systems and is none of them."""
    if not cluster.spec.apart:
        return flat.processes_of(cluster, node)
    return apart.processes_of(cluster, node) - {cluster.init(node).pid()}


def freeze(cluster: Cluster, node: str) -> None:
    frozen = set[int]()
    while new := processes_of(cluster, node) - frozen:
        send(new, signal.SIGSTOP)
        frozen |= new


def thaw(cluster: Cluster, node: str) -> None:
    send(processes_of(cluster, node), signal.SIGCONT)


def kill_slurmd(cluster: Cluster, node: str) -> None:
    pid = cluster.slurmd(node).pid()
    if pid is None:
        say(f"the slurmd of {node} is not running")
        return
    send([pid], signal.SIGKILL)
    if wait_gone([pid], STOP_GRACE_S):
        raise Trouble(f"the slurmd of {node}, process {pid}, outlives SIGKILL; look at it with ps")


def crash(cluster: Cluster, node: str) -> None:
    """All at once: what is killed piece by piece still tells slurmctld of the end of the rest."""
    if cluster.spec.apart:
        apart.switch_off(cluster, node)
        return
    freeze(cluster, node)
    kill_slurmd(cluster, node)
    flat.kill_leftovers(cluster, [node], frozen=True)


def bring_up(cluster: Cluster, node: str) -> None:
    """Switch the node on where it is off, start its slurmd, and wait until it has registered."""
    if cluster.spec.apart and not apart.is_on(cluster, node):
        apart.switch_on(cluster, [node])
    daemon = cluster.slurmd(node)
    if daemon.pid() is not None:
        say(f"the slurmd of {node} is already running")
        return
    began = int(time.time())  # Slurm tells whole seconds
    start([daemon], cluster)
    wait_for(lambda: lacks_registration(cluster, node, began), [daemon], logs_of(daemon, cluster.slurmctld))


def lacks_registration(cluster: Cluster, node: str, since: int) -> str:
    """Empty once the slurmd started at or after `since` has reported to slurmctld and the node counts as there.

    The slurmd's start and not the state decides: until SlurmdTimeout a node whose slurmd is dead still looks well.
    """
    answer = cluster.ask("scontrol", "show", "node", node, "--oneliner")
    fields = dict(re.findall(r"(State|SlurmdStartTime)=(\S+)", answer))
    try:
        started = time.mktime(time.strptime(fields.get("SlurmdStartTime", ""), "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # "None" before the first registration
        return f"{node} has not registered"
    if started < since:
        return f"{node} has not registered again"
    state = fields.get("State", "UNKNOWN")
    return f"{node} is {state}" if re.search(r"DOWN|UNKNOWN|NOT_RESPONDING|\*", state) else ""
