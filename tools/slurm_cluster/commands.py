"""What the tool does, a function a verb."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slurm_cluster import apart, nodes
from slurm_cluster.boot import boot, halt, script_runners, start_controller
from slurm_cluster.cluster import Cluster
from slurm_cluster.daemons import STOP_GRACE_S, stop
from slurm_cluster.flat import kill_leftovers
from slurm_cluster.folder import (
    check_folder,
    check_open,
    check_path,
    empty,
    existing,
    locked,
    make_folder,
    read_cluster,
    write_files,
)
from slurm_cluster.ports import check_ports, choose_port_base
from slurm_cluster.processes import wait_gone
from slurm_cluster.programs import (
    APART_PROGRAMS,
    APT_PACKAGES,
    DATABASE_APT_PACKAGES,
    DATABASE_PROGRAMS,
    missing_programs,
    missing_sentence,
    program,
)
from slurm_cluster.programs import install as install_packages
from slurm_cluster.spec import Spec, parse_version
from slurm_cluster.trouble import EX_FAILED, EX_UNAVAILABLE, EX_USAGE, Trouble, say
from slurm_cluster.users import site_user, user_name


def export_line(cluster: Cluster) -> str:
    return f"export SLURM_CONF={shlex.quote(str(cluster.conf))}"


def up(options: argparse.Namespace) -> int:
    check_path(options.dir)
    apart_too = () if options.flat or os.geteuid() != 0 else APART_PROGRAMS
    if missing := missing_programs((*apart_too, *(DATABASE_PROGRAMS if options.accounting else ()))):
        raise Trouble(missing_sentence(missing), EX_UNAVAILABLE)
    make_folder(options.dir)
    if apart_too:
        check_open(options.dir)
    with locked(options.dir):
        cluster = read_cluster(options.dir)
        if cluster and any(daemon.is_running() for daemon in cluster.daemons):
            return already_up(cluster)
        if cluster:  # its machine went down under it, or its daemons were killed
            clear_away(cluster)
        empty(options.dir)
        return boot_new(Cluster(options.dir, make_spec(options)), options.file)


def already_up(cluster: Cluster) -> int:
    if gone := [daemon.name for daemon in cluster.daemons if daemon.pid() is None]:
        raise Trouble(
            f"the cluster in {cluster.folder} is up without {', '.join(gone)};"
            " start these with node-up or ctld-start, or begin again with down"
        )
    say(f"the cluster in {cluster.folder} is already running, with {cluster.spec.nodes} nodes")
    print(export_line(cluster))
    return 0


# RealMemory of a node that is apart, for each CPU: twice what a task gets that does not ask.
MEMORY_EACH_CPU_MB = 2048


def clear_away(cluster: Cluster) -> None:
    if cluster.spec.apart:
        apart.remove(cluster)
    else:
        kill_leftovers(cluster, cluster.spec.node_names)


def make_spec(options: argparse.Namespace) -> Spec:
    # One more for slurmdbd.
    base = options.port_base if options.port_base is not None else choose_port_base(options.nodes + 2)
    answer = subprocess.run((program("slurmctld"), "-V"), stdout=subprocess.PIPE, text=True, check=True).stdout
    together = options.flat or os.geteuid() != 0
    if together and not options.flat:
        say("only root can make nodes that are apart; these share this machine, its network and memory (--flat)")
    for name in ("accounting", "configless", "host_names", "backup", "ipv6"):
        if together and getattr(options, name):
            raise Trouble(f"--{name.replace('_', '-')} needs root and nodes that are apart", EX_USAGE)
    spec = Spec(
        options.nodes,
        options.cpus,
        base,
        socket.gethostname().partition(".")[0],
        user_name(),
        parse_version(answer),
        tuple(options.conf),
    )
    if not together:
        spec = replace(
            spec, apart=True, user=site_user(), cgroup=apart.cgroup_version(), memory_mb=options.cpus * MEMORY_EACH_CPU_MB,
            gpus=options.gpus, accounting=options.accounting, shared=tuple(map(str, options.shared)),
            configless=options.configless, host_prefix=options.host_names, backup=options.backup, ipv6=options.ipv6,
        )  # fmt: skip
    if spec.apart and not spec.cgroup:
        say("no cgroups are mounted here that Slurm could use; jobs are not confined (proctrack/linuxproc)")
    check_ports(spec.ports)
    return spec


def boot_new(cluster: Cluster, files: Sequence[Path] = ()) -> int:
    """files: to be copied beside slurm.conf."""
    began = time.monotonic()
    write_files(cluster)
    for path in files:
        try:
            shutil.copyfile(path, cluster.folder / path.name)
        except OSError as error:
            raise Trouble(f"{path} cannot be copied: {error.strerror}", EX_USAGE) from error
    try:
        boot(cluster)
    except BaseException:  # also Ctrl-C: half a cluster is of no use, but its logs are
        halt(cluster)
        raise
    say(f"{cluster.spec.nodes} nodes are idle after {time.monotonic() - began:.1f} s; to use them, say")
    print(export_line(cluster))
    return 0


def down(options: argparse.Namespace) -> int:
    if not os.path.lexists(options.dir) or read_cluster(options.dir) is None:
        say(f"there is no cluster in {options.dir}")
        return 0
    check_folder(options.dir)
    with locked(options.dir):
        halt(existing(options.dir))
        empty(options.dir)
        options.dir.rmdir()
    return 0


def status(options: argparse.Namespace) -> int:
    """Exit status 0 only if every daemon runs and slurmctld answers."""
    cluster = existing(options.dir)
    # Without these two sinfo would try again for ten seconds.
    answering = cluster.munged.pid() and cluster.slurmctld.pid()
    states = cluster.node_states() if answering else {}
    spec = cluster.spec
    print(f"{cluster.folder}: {spec.nodes} nodes of {spec.cpus} CPUs, ports {spec.ports[0]}-{spec.ports[-1]}")
    for daemon in cluster.daemons:
        print(f"{daemon.name:<10} {daemon.pid() or 'not running':<12} {states.get(daemon.name, '')}".rstrip())
    return 0 if states and all(daemon.pid() for daemon in cluster.daemons) else EX_FAILED


def env(options: argparse.Namespace) -> int:
    print(export_line(existing(options.dir)))
    return 0


def shell(options: argparse.Namespace) -> int:
    cluster = existing(options.dir)
    command = options.command or [os.environ.get("SHELL", "/bin/sh")]
    try:
        os.execvpe(command[0], command, cluster.environ())
    except OSError as error:
        raise Trouble(f"cannot run {command[0]}: {error.strerror}; name a command that exists after --", 127) from error


def node_down(options: argparse.Namespace) -> int:
    with changing_node(options) as cluster:
        nodes.kill_slurmd(cluster, options.node)
    return 0


def node_crash(options: argparse.Namespace) -> int:
    with changing_node(options) as cluster:
        nodes.crash(cluster, options.node)
    return 0


def node_freeze(options: argparse.Namespace) -> int:
    """Nothing of the node runs any more, and nothing of it ends: to all others it is as if it were cut off."""
    with changing_node(options) as cluster:
        nodes.freeze(cluster, options.node)
    return 0


def node_thaw(options: argparse.Namespace) -> int:
    with changing_node(options) as cluster:
        nodes.thaw(cluster, options.node)
    return 0


def node_up(options: argparse.Namespace) -> int:
    with changing_node(options) as cluster:
        nodes.bring_up(cluster, options.node)
    return 0


def node_cut(options: argparse.Namespace) -> int:
    with changing_node(options, apart_only=True) as cluster:
        apart.set_cable(cluster, options.node, up=False)
    return 0


def node_mend(options: argparse.Namespace) -> int:
    with changing_node(options, apart_only=True) as cluster:
        apart.set_cable(cluster, options.node, up=True)
        apart.slow(cluster, options.node, "")
    return 0


def node_slow(options: argparse.Namespace) -> int:
    with changing_node(options, apart_only=True) as cluster:
        apart.slow(cluster, options.node, options.rate)
    return 0


def node_shell(options: argparse.Namespace) -> int:
    """A command in the node's namespaces, as root; as on a node that one has logged in to."""
    cluster = existing(options.dir)
    nodes.known_node(cluster, options.node)
    if not cluster.spec.apart:
        raise Trouble("the nodes of this cluster share one machine: `shell` is all of them", EX_USAGE)
    inside = ("--mount", "--pid", "--ipc", "--uts", "--net", "--root", "--wdns=/")
    command = ("nsenter", f"--target={apart.init_pid(cluster, options.node)}", *inside, "--", *(options.command or ["/bin/sh"]))
    os.execvpe(command[0], command, cluster.environ())


def install(options: argparse.Namespace) -> int:
    if options.accounting:
        install_packages(f"{APT_PACKAGES} {DATABASE_APT_PACKAGES}", (*APART_PROGRAMS, *DATABASE_PROGRAMS))
    else:
        install_packages(APT_PACKAGES, APART_PROGRAMS)
    return 0


def epilog(options: argparse.Namespace) -> int:
    with changing(options) as cluster:
        if not cluster.spec.apart:
            raise Trouble("this cluster has no Epilog of ours; boot it without --flat", EX_USAGE)
        (cluster.folder / "epilog-seconds").write_text(f"{options.seconds:g}\n")
    return 0


def ctld_stop(options: argparse.Namespace) -> int:
    with changing(options) as cluster:
        stop([cluster.slurmctld])
        wait_gone(script_runners(cluster), STOP_GRACE_S)
    return 0


def ctld_start(options: argparse.Namespace) -> int:
    with changing(options) as cluster:
        if cluster.slurmctld.pid() is not None:
            say("slurmctld is already running")
            return 0
        start_controller(cluster)
    return 0


@contextmanager
def changing(options: argparse.Namespace) -> Iterator[Cluster]:
    cluster = existing(options.dir)
    check_folder(options.dir)
    with locked(options.dir):
        yield cluster


@contextmanager
def changing_node(options: argparse.Namespace, apart_only: bool = False) -> Iterator[Cluster]:
    """The cluster, if it has that node, and a cable for it where one is needed."""
    with changing(options) as cluster:
        nodes.known_node(cluster, options.node)
        if apart_only and not cluster.spec.apart:
            raise Trouble("the nodes of this cluster share one network; boot it without --flat", EX_USAGE)
        yield cluster
