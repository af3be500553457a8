"""Nodes that are apart: each in namespaces of its own, on a cable of its own to a bridge.

A node's first process (node_init.py) holds its namespaces: when it ends the kernel ends all in them and takes the cable away,
so nothing of a node outlives it. Only the bridge and the cgroups are the machine's; `remove` takes both away.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from slurm_cluster.cluster import Cluster
from slurm_cluster.daemons import BOOT_TIMEOUT_S, STOP_GRACE_S, logs_of, spawn, start
from slurm_cluster.processes import POLL_S, all_pids, read_link, send, wait_gone
from slurm_cluster.spec import JOBS_EACH, Spec
from slurm_cluster.trouble import BootFailed, Trouble

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("freezer", "cpuset", "cpuacct", "cpu,cpuacct", "memory", "devices")
# What SIGKILL ends is gone in a moment; ten seconds were not enough for a node with twenty jobs on a machine with a load of 30.
BURIED_S = 60.0


# ---- the network ----


def bridge(spec: Spec) -> str:
    return f"fts{spec.port_base}"


def cable(spec: Spec, node: str) -> str:
    """The end of a node's cable that is in the bridge."""
    return f"{bridge(spec)}{node}"


def ip(lines: Iterable[str], target: int | None = None) -> None:
    """Several calls of ip(8) at once, in the network of process `target`, or here. Raises: Trouble."""
    inside = ("nsenter", f"--target={target}", "--net") if target is not None else ()
    done = subprocess.run(
        (*inside, "ip", "-batch", "-"), input="\n".join(lines) + "\n", text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise Trouble(f"the nodes' network cannot be made: {done.stderr.strip()}; boot with --flat where ip(8) may not do this")


def lay_bridge(spec: Spec) -> None:
    """With a hardware address of its own: else it takes the lowest of its cables', and when the node of that one loses its power
    the others look for slurmctld under the old one for half a minute."""
    name = bridge(spec)
    own = ":".join(f"{byte:02x}" for byte in (2, *os.urandom(5)))  # 02: nobody's but the machine's own
    ip([f"link add {name} address {own} type bridge", _address_line(spec, spec.controller_address, name), f"link set {name} up"])


def hardware_address(spec: Spec, node: str) -> str:
    """Of its network card, which a node keeps: the others would look for one that is back under its old one for half a minute."""
    number = spec.port_base << 16 | spec.machines.index(node)
    return ":".join(f"{byte:02x}" for byte in (2, 0xF7, *number.to_bytes(4, "big")))


def _address_line(spec: Spec, address: str, device: str) -> str:
    # nodad: an IPv6 address cannot be used in the second in which others are asked whether they have it.
    return f"addr add {address}/{spec.prefix_length} dev {device}{' nodad' if spec.ipv6 else ''}"


def plug_in(cluster: Cluster, nodes: Sequence[str]) -> None:
    """A cable for each of the nodes, whose first processes run."""
    spec, inits = cluster.spec, {node: init_pid(cluster, node) for node in nodes}
    for node in nodes:  # what a boot that was killed has left: the ports are ours, and so is the name
        unplug(cluster, node)
    ip(
        [
            line
            for node in nodes
            for line in (
                f"link add {cable(spec, node)} type veth peer name eth0 "
                f"address {hardware_address(spec, node)} netns {inits[node]}",
                f"link set {cable(spec, node)} master {bridge(spec)} up",
            )
        ]
    )
    for node in nodes:
        ip(["link set lo up", _address_line(spec, spec.address(node), "eth0"), "link set eth0 up"], inits[node])


def has_cable(cluster: Cluster, node: str) -> bool:
    return Path("/sys/class/net", cable(cluster.spec, node)).exists()


def unplug(cluster: Cluster, node: str) -> None:
    """The kernel does it by itself when the node's network goes, but some time later; until then no other has its name."""
    if has_cable(cluster, node):
        subprocess.run(("ip", "link", "del", cable(cluster.spec, node)), stderr=subprocess.DEVNULL, check=False)


def set_cable(cluster: Cluster, node: str, up: bool) -> None:
    """Cut or mended at the bridge: the node itself sees its carrier go, as with a real cable."""
    ip([f"link set {cable(cluster.spec, node)} {'up' if up else 'down'}"])


def slow(cluster: Cluster, node: str, rate: str) -> None:
    """Both ways no faster than `rate` (tc(8): 10mbit); empty: as fast as it can."""
    ends = [((), cable(cluster.spec, node)), (("nsenter", f"--target={init_pid(cluster, node)}", "--net"), "eth0")]
    for inside, device in ends:
        subprocess.run((*inside, "tc", "qdisc", "del", "dev", device, "root"), stderr=subprocess.DEVNULL, check=False)
        if not rate:
            continue
        limit = ("tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms")
        done = subprocess.run((*inside, *limit), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Trouble(f"the cable of {node} cannot be slowed: {done.stderr.strip()}")


# ---- power ----


def init_pid(cluster: Cluster, node: str) -> int:
    pid = cluster.init(node).pid()
    if pid is None:
        raise Trouble(f"{node} is switched off; switch it on with node-up")
    return pid


def is_on(cluster: Cluster, node: str) -> bool:
    return cluster.init(node).pid() is not None


def switch_on(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Their namespaces, cables and munged; slurmd is started by itself. Raises: BootFailed, Trouble."""
    keep_cgroups(cluster.spec, nodes)
    ready = {node: cluster.folder / "run" / f"{node}.ready" for node in nodes}
    for path in ready.values():
        path.unlink(missing_ok=True)
    started = {node: spawn(cluster.init(node), cluster) for node in nodes}
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while lacking := [node for node in nodes if not ready[node].exists()]:
        if time.monotonic() > deadline or any(started[node].poll() is not None for node in lacking):
            raise BootFailed(f"{lacking[0]} has no namespaces of its own", logs_of(cluster.init(lacking[0])))
        time.sleep(POLL_S)
    try:
        plug_in(cluster, nodes)
        start([cluster.node_munged(node) for node in nodes], cluster)
    except (Trouble, BootFailed):  # a node that is on without them would be taken for one that has them
        send([init_pid(cluster, node) for node in nodes], signal.SIGKILL)
        raise


def switch_off(cluster: Cluster, node: str) -> None:
    """A power cut: nothing of the node says goodbye. The cable goes first, or the kernel would end its connections."""
    pid = cluster.init(node).pid()
    if pid is None:
        return
    if has_cable(cluster, node):
        set_cable(cluster, node, up=False)
    inside = processes_of(cluster, node)
    send([pid], signal.SIGKILL)
    thaw(cluster.spec, node)
    if alive := wait_gone(inside, BURIED_S):
        raise Trouble(f"processes {alive} of {node} outlive the node; look at them with ps")
    unplug(cluster, node)


def processes_of(cluster: Cluster, node: str) -> set[int]:
    """All that runs on the node, its first process too; nobody where it is off."""
    pid = cluster.init(node).pid()
    if pid is None:
        return set()
    space = read_link(Path(f"/proc/{pid}/ns/pid"))
    return {each for each in all_pids() if space and read_link(Path(f"/proc/{each}/ns/pid")) == space}


def remove(cluster: Cluster) -> None:
    """End all nodes, and take away what is the machine's; also what an interrupted boot has left."""
    for node in cluster.spec.machines:
        pid = cluster.init(node).pid()
        if pid is not None:
            inside = processes_of(cluster, node)
            send([pid], signal.SIGKILL)
            thaw(cluster.spec, node)
            wait_gone(inside, STOP_GRACE_S)
    if Path("/sys/class/net", bridge(cluster.spec)).exists():
        ip([f"link del {bridge(cluster.spec)}"])
    remove_cgroups(cluster.spec)


# ---- cgroups ----


def cgroup_version() -> str:
    """v2, v1, or empty where neither is mounted with what Slurm needs."""
    if (CGROUPS / "cgroup.controllers").exists():
        return "v2"
    return "v1" if all((CGROUPS / name).is_dir() for name in ("freezer", "cpuset", "memory", "devices")) else ""


def _own(spec: Spec, node: str) -> list[Path]:
    return [CGROUPS / name / f"slurm_{node}" for name in CONTROLLERS if (CGROUPS / name).is_dir()]


def keep_cgroups(spec: Spec, nodes: Sequence[str]) -> None:
    """slurmd of a node that has the same name in another cluster would take the node's cgroup away with its own end."""
    if spec.cgroup != "v1":
        return
    for node in nodes:
        for path in _own(spec, node):
            (path / f"kept-by-{spec.port_base}").mkdir(parents=True, exist_ok=True)


def _is_ours(spec: Spec, job: Path) -> bool:
    return int(job.name.removeprefix("job_")) in range(spec.first_job, spec.first_job + JOBS_EACH)


def thaw(spec: Spec, node: str) -> None:
    """SIGKILL ends nobody whom the freezer of a suspended job holds; whoever has it pending runs no more when it lets go."""
    if spec.cgroup != "v1":
        return
    jobs = (job for job in (CGROUPS / "freezer" / f"slurm_{node}").glob("uid_*/job_*") if _is_ours(spec, job))
    for state in (state for job in jobs for state in job.rglob("freezer.state")):
        with suppress(OSError):  # it has gone with its last process
            state.write_text("THAWED")


def remove_cgroups(spec: Spec) -> None:
    """Of this cluster's jobs, which nodes that were switched off have left; and of nodes that no other cluster has."""
    if spec.cgroup != "v1":
        return
    for node in spec.node_names:
        for path in _own(spec, node):
            jobs = [job for job in path.glob("uid_*/job_*") if _is_ours(spec, job)]
            for each in (*jobs, path / f"kept-by-{spec.port_base}"):
                _remove_tree(each)
            for each in (*path.glob("uid_*"), *path.glob("system"), path):
                _remove_empty(each)


def _remove_tree(path: Path) -> None:
    """The folders alone: the files in them are the kernel's."""
    if path.is_dir():
        for below in path.iterdir():
            if below.is_dir():
                _remove_tree(below)
        _remove_empty(path)


def _remove_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:  # in use, by another cluster's jobs, or gone
        pass
