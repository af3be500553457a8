"""The configuration files of a cluster: text made of its Spec. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_cluster.spec import BACKUP, Spec

# Without --mem a task may use this much for each CPU, as on sites that count memory. A rank with torch needs 500 MB.
MEMORY_PER_CPU_MB = 1024


def base_settings(spec: Spec, folder: Path) -> dict[str, str]:
    """The slurm.conf that makes one machine a cluster (slurm.conf(5)); --conf changes or extends it."""
    return {
        "ClusterName": "local",
        "SlurmctldHost": f"{spec.host}({spec.controller_address})",
        "SlurmctldPort": str(spec.port_base),
        "SlurmUser": spec.user,
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={folder}/munge/munge.socket",
        "StateSaveLocation": f"{folder}/state",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
        "SlurmdPidFile": f"{folder}/run/%n.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "AccountingStorageType": "accounting_storage/none",
        "JobCompType": "jobcomp/none",
        "MpiDefault": "none",
        "MailProg": "/bin/true",
        "SelectType": "select/cons_tres",
        # Nodes may claim more CPUs than the machine has; without this they turn `inval` and srun waits for ever.
        "SlurmdParameters": "config_overrides",
        # Nobody is there to resume nodes by hand.
        "ReturnToService": "2",
        "JobRequeue": "1",
        "InactiveLimit": "0",
        "OverTimeLimit": "0",
        # slurmctld looks for work once a second then; by default a batch job may wait 3 s and a requeued one 60 s.
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1",
        # No NoInAddrAny and NoCtldInAddrAny: daemons would listen on what the host name resolves to (in a container not
        # 127.0.0.1, sometimes nothing) and be unreachable. So they listen everywhere, and the munge key guards them.
        **(apart_settings(spec, folder) if spec.apart else flat_settings(spec)),
        **(accounting_settings(spec, folder) if spec.accounting else {}),
        **({"SlurmctldParameters": "enable_configless"} if spec.configless else {}),
        **({"CommunicationParameters": "EnableIPv6,DisableIPv4"} if spec.ipv6 else {}),
    }


def flat_settings(spec: Spec) -> dict[str, str]:
    """No cgroups: they need root, and nothing here is confined."""
    return {
        "SlurmdUser": spec.user,
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/none",
        "SelectTypeParameters": "CR_Core",
    }


def apart_settings(spec: Spec, folder: Path) -> dict[str, str]:
    """As sites have it: processes in cgroups, memory counted and confined, a step for what comes from outside, an Epilog."""
    confined = {
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/cgroup",
        "JobAcctGatherType": "jobacct_gather/cgroup",
        "PrologFlags": "Contain",
    } if spec.cgroup else {
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
    }  # fmt: skip
    return {
        **confined,
        "SlurmdUser": "root",
        "SlurmdPort": str(spec.port_base + 1),
        "FirstJobId": str(spec.first_job),
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": str(MEMORY_PER_CPU_MB),
        "Epilog": f"{folder}/epilog",
        **({"GresTypes": "gpu"} if spec.gpus else {}),
    }


def accounting_settings(spec: Spec, folder: Path) -> dict[str, str]:
    """slurmdbd beside slurmctld; a job needs an account, and the limits of its association and QOS hold."""
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": str(spec.ports[-1] + 1),
        # slurm.conf's AuthInfo is not used for it.
        "AccountingStoragePass": f"{folder}/munge/munge.socket",
        "AccountingStorageEnforce": "associations,limits,qos",
    }


# Lists of options: --conf adds to ours, and comes first because Slurm takes the first of two.
LIST_KEYS = frozenset({"authinfo", "slurmdparameters", "schedulerparameters", "slurmctldparameters", "communicationparameters"})
# Keys that may stand in slurm.conf more than once.
REPEATABLE_KEYS = frozenset({"nodename", "nodeset", "partitionname", "downnodes", "include"})


def merged(settings: Mapping[str, str], extra: Iterable[str]) -> list[str]:
    """slurm.conf lines of `settings`, changed and extended by the `Key=Value` lines of `extra`; an empty value ends a line."""
    values = {key.lower(): (key, value) for key, value in settings.items()}
    repeated = []
    for line in extra:
        key, _, value = line.partition("=")
        lower = key.lower()
        if lower in REPEATABLE_KEYS:
            repeated.append(line)
        elif lower in LIST_KEYS and lower in values:
            values[lower] = (key, f"{value},{values[lower][1]}")
        else:
            values[lower] = (key, value)
    return [f"{key}={value}" for key, value in values.values() if value] + repeated


def render_slurm_conf(spec: Spec, folder: Path) -> str:
    """The whole slurm.conf; RealMemory is a claim (config_overrides), no memory is taken."""
    names = f"n[1-{spec.nodes}]"
    gres = f" Gres=gpu:{spec.gpus}" if spec.gpus else ""
    # A line for all may name ranges of addresses, but only with one range in each field, and none with colons.
    places = (
        [(node, place_of(spec, node)) for node in spec.node_names]
        if spec.apart
        else [(names, f"NodeAddr=127.0.0.1 NodeHostname={spec.host} Port=[{spec.ports[1]}-{spec.ports[-1]}]")]
    )
    nodes = [
        f"NodeName={name} {place} Sockets=1 CoresPerSocket={spec.cpus} ThreadsPerCore=1"
        f" RealMemory={spec.memory_mb}{gres} State=UNKNOWN"
        for name, place in places
    ]
    partition = f"PartitionName=main Default=YES Nodes={names} MaxTime=UNLIMITED State=UP"
    # The second one named is the backup of the first.
    backup = [f"SlurmctldHost={BACKUP}({spec.address(BACKUP)})"] if spec.backup else []
    return "\n".join([*merged(base_settings(spec, folder), spec.extra), *backup, *nodes, partition, ""])


def place_of(spec: Spec, node: str) -> str:
    return f"NodeHostname={spec.host_name(node)} NodeAddr={spec.address(node)}"


def render_gres_conf(spec: Spec, folder: Path) -> str:
    return f"Name=gpu File={folder}/dev/gpu[0-{spec.gpus - 1}]\n" if spec.gpus > 1 else f"Name=gpu File={folder}/dev/gpu0\n"


def render_cgroup_conf(spec: Spec) -> str:
    """Cores are not confined: nodes claim more of them than the machine has, and no cpuset takes those."""
    if not spec.cgroup:
        # From 24.11 on slurmd looks for cgroups although no plugin of ours asks for them, and fails without.
        return "CgroupPlugin=disabled\n" if spec.version >= (24, 11) else ""
    alone = "IgnoreSystemd=yes\n" if spec.cgroup == "v2" else ""
    return (
        f"CgroupPlugin=cgroup/{spec.cgroup}\nCgroupMountpoint=/sys/fs/cgroup\n{alone}"
        "ConstrainCores=no\nConstrainRAMSpace=yes\nConstrainDevices=yes\n"
    )


def render_hosts(spec: Spec) -> str:
    """/etc/hosts of every node."""
    nodes = (f"{spec.address(node)} {spec.host_name(node)}" for node in spec.machines)
    return "\n".join(["127.0.0.1 localhost", "::1 localhost", f"{spec.controller_address} {spec.host}", *nodes, ""])


def render_slurmdbd_conf(spec: Spec, folder: Path) -> str:
    """It reaches its database by a socket (MYSQL_UNIX_PORT), which tells the database who it is: there is no password."""
    return "\n".join([
        "AuthType=auth/munge", f"AuthInfo=socket={folder}/munge/munge.socket", "DbdHost=localhost", "DbdAddr=127.0.0.1",
        f"DbdPort={spec.ports[-1] + 1}", f"SlurmUser={spec.user}", f"LogFile={folder}/log/slurmdbd.log",
        f"PidFile={folder}/run/slurmdbd.pid", "StorageType=accounting_storage/mysql", "StorageHost=localhost",
        f"StorageUser={spec.user}", "StorageLoc=slurm_acct_db", ""])  # fmt: skip


# How long it takes stands in a file, so that `slurm-cluster epilog` can change it while the cluster runs.
EPILOG = """#!/bin/sh
exec sleep "$(cat {folder}/epilog-seconds)"
"""
