"""Starting and stopping daemons."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_cluster.cluster import Cluster, Daemon
from slurm_cluster.processes import POLL_S, send, wait_gone
from slurm_cluster.trouble import BootFailed, Trouble

# Far more than the second or two it takes on two cores; a machine that needs longer has something to tell in its logs.
BOOT_TIMEOUT_S = 180.0  # 3 s where nothing else runs; a minute has been seen where twenty clusters' daemons did
# slurmctld writes its state within about one second of SIGTERM; whoever has not ended after this is killed.
STOP_GRACE_S = 10.0


def start(daemons: Sequence[Daemon], cluster: Cluster) -> None:
    """Start all at once; each goes into the background by itself, and its first process tells whether it could.

    Those that stay in the foreground are left there.
    """
    spawned = [(daemon, spawn(daemon, cluster)) for daemon in daemons]
    starters = [(daemon, process) for daemon, process in spawned if not daemon.stays]
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    for daemon, process in starters:
        try:
            status = process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            raise BootFailed(f"{daemon.name} did not go into the background in time", logs_of(daemon)) from None
        if status != 0:
            raise BootFailed(f"{daemon.name} ended at once with status {status}", logs_of(daemon))


def spawn(daemon: Daemon, cluster: Cluster) -> subprocess.Popen[bytes]:
    # A file and no pipe: the daemon keeps it, and a pipe's reader would wait for the daemon's end.
    with open(start_log(daemon), "wb") as output:
        return subprocess.Popen(
            daemon.start or daemon.argv,
            env={**cluster.environ(), **daemon.env},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def start_log(daemon: Daemon) -> Path:
    """What the daemon says before it opens its log."""
    return daemon.log_file.with_suffix(".start")


def logs_of(*daemons: Daemon) -> list[Path]:
    return [path for daemon in daemons for path in (start_log(daemon), daemon.log_file)]


def wait_for(lacking: Callable[[], str], daemons: Sequence[Daemon], logs: Sequence[Path]) -> None:
    """Wait until `lacking` has nothing to say.

    Raises: BootFailed if one of `daemons` ends meanwhile, and with the last word of `lacking` after BOOT_TIMEOUT_S.
    """
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while word := lacking():
        for daemon in daemons:
            if not daemon.is_running():
                raise BootFailed(f"{daemon.name} ended soon after its start", logs_of(daemon))
        if time.monotonic() > deadline:
            raise BootFailed(f"after {BOOT_TIMEOUT_S:g} s {word}", logs)
        time.sleep(POLL_S)


def stop(daemons: Sequence[Daemon]) -> None:
    """SIGTERM, and SIGKILL to who has not ended after STOP_GRACE_S."""
    pids = [pid for daemon in daemons for pid in daemon.pids()]
    send(pids, signal.SIGTERM)
    stubborn = wait_gone(pids, STOP_GRACE_S)
    send(stubborn, signal.SIGKILL)
    if alive := wait_gone(stubborn, STOP_GRACE_S):
        raise Trouble(f"processes {alive} outlive SIGKILL; look at them with ps")
