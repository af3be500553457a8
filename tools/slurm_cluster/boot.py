"""A whole cluster: up and down."""

from __future__ import annotations

from slurm_cluster import accounting, apart
from slurm_cluster.cluster import Cluster
from slurm_cluster.daemons import STOP_GRACE_S, logs_of, start, stop, wait_for
from slurm_cluster.flat import kill_leftovers
from slurm_cluster.processes import all_pids, open_files, read_proc, wait_gone
from slurm_cluster.users import submitters


def start_controller(cluster: Cluster) -> None:
    def lacking() -> str:
        return "" if " UP" in cluster.ask("scontrol", "ping") else "slurmctld does not answer"

    start([cluster.slurmctld], cluster)
    wait_for(lacking, [cluster.slurmctld], logs_of(cluster.slurmctld))


def start_backup(cluster: Cluster) -> None:
    """After the first one, which lays down the state that both share."""
    start([cluster.backup], cluster)
    wait_for(
        lambda: "" if cluster.ask("scontrol", "ping").count(" UP") == 2 else "the backup slurmctld does not answer",
        [cluster.backup],
        logs_of(cluster.backup),
    )


def start_nodes(cluster: Cluster) -> None:
    """Start every slurmd and wait until slurmctld has them all idle."""

    def lacking() -> str:
        states = cluster.node_states()
        return ", ".join(
            f"{node} is {states.get(node, 'unknown')}" for node in cluster.spec.node_names if states.get(node) != "idle"
        )

    start(cluster.slurmds, cluster)
    wait_for(lacking, cluster.slurmds, logs_of(cluster.slurmctld, *cluster.slurmds))


def boot(cluster: Cluster) -> None:
    # In this order: a slurmd that finds no slurmctld waits a second before it tries again.
    start([cluster.munged], cluster)
    if cluster.spec.apart:
        apart.lay_bridge(cluster.spec)
        apart.switch_on(cluster, cluster.spec.machines)
    if cluster.spec.accounting:
        accounting.start_database(cluster)
        accounting.add_users(cluster, submitters(cluster.spec))
    start_controller(cluster)
    if cluster.spec.backup:
        start_backup(cluster)
    start_nodes(cluster)


def halt(cluster: Cluster) -> None:
    """End all that belongs to the cluster; slurmctld and slurmds before the steps, so that nothing is started anew."""
    if cluster.spec.apart:
        apart.remove(cluster)
        stop([cluster.slurmctld])
    else:
        stop([cluster.slurmctld, *cluster.slurmds])
        kill_leftovers(cluster, cluster.spec.node_names)
    wait_gone(script_runners(cluster), STOP_GRACE_S)
    stop(cluster.database[::-1])
    stop([cluster.munged])


def script_runners(cluster: Cluster) -> list[int]:
    """slurmscriptd, slurmctld's helper: it ends by itself a moment after slurmctld."""
    log = str(cluster.slurmctld.log_file)
    return [pid for pid in all_pids() if read_proc(pid, "comm").startswith(b"slurm") and log in open_files(pid)]
