"""A cluster whose slurm.conf names ftslurm's scripts, in a namespace of its own.

Its nodes are apart; slurmctld, which runs EpilogSlurmctld, has namespaces of its own as well, with what hooks remember of a
node (/var/lib) and whom sudo lets do what (/etc/sudoers.d).
"""

from __future__ import annotations

import json
import os
import pwd
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.live.conftest import (
    REPO,
    SHARED_DISK,
    TOOL,
    TOOL_TIMEOUT_S,
    Cluster,
    check_booted,
    copied_commands,
    job_user,
    remove,
    shared_options,
    user_folder,
)
from tests.live.stories import Stage

BOOT_WAIT_S = 30.0
HOOK_TIMEOUT_S = 300.0
IDLE_TIMEOUT_S = 240.0
# /var/lib: where hooks remember what they saw while their settings are broken. bash waits for every child that is handed to
# it; kill -9 of it ends the whole namespace.
# Before slurmctld comes up, which sees no mount of later.
INIT = (
    "mount -t tmpfs tmpfs /var/lib && mount -t tmpfs -o mode=0755 tmpfs /etc/sudoers.d && echo ready && while :; do sleep 1; done"
)


@dataclass(frozen=True)
class Space:
    """A namespace of processes and mounts. init: its first process, as seen from here."""

    init: int

    def argv(self, *command: str | Path) -> list[str]:
        # --root: this process may be in another release's (tools/slurm-root).
        return ["nsenter", f"--target={self.init}", "--mount", "--pid", "--root", "--wdns=/", "--", *map(str, command)]

    def run(self, *command: str | Path, timeout_s: float = TOOL_TIMEOUT_S, **how: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*command), stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=timeout_s, check=False, **how
        )  # type: ignore[call-overload]


@contextmanager
def own_space() -> Iterator[Space]:
    outer = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-c", INIT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert outer.stdout is not None
    try:
        ready, _, _ = select.select([outer.stdout], [], [], BOOT_WAIT_S)
        assert ready and outer.stdout.readline() == b"ready\n", "the namespace did not come up"
        yield Space(int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0]))
    finally:
        outer.kill()  # --kill-child: its init goes with it, and with that everything inside
        outer.wait()
        outer.stdout.close()


@dataclass(frozen=True)
class Hooked:
    """folder: root's, with scripts, settings, `kmsg.NODE`, `state.NODE` and the chips of the stand-in device tool."""

    cluster: Cluster
    stage: Stage
    space: Space
    folder: Path
    ledgers: Path

    def settings(self, **changes: object) -> None:
        """Lay down the hooks' settings; JSON is YAML."""
        values = {
            "kernel_log": f"{self.folder}/kmsg.{{node}}",
            "state": f"{self.folder}/state.{{node}}",
            "ledgers": [str(self.ledgers)],
            "environment": {
                "PATH": f"{self.folder}/fakes/bin:/usr/local/bin:/usr/bin:/bin",
                "FTSLURM_NPU_SIM": f"{self.folder}/npu",
            },
            # Far beyond what a node needs that is not shared by three others and a test run.
            "kill_grace": "1s",
            "kill_wait": "60s",
            "slurm_timeout": "60s",
            "limit": "150s",
            "device_timeout": "60s",
            "health_timeout": "100s",
            "start_in": "45s",
            **changes,
        }
        fresh = self.folder / "hooks.yaml.new"
        fresh.write_text(json.dumps(values))
        fresh.replace(self.folder / "hooks.yaml")

    def script(self, name: str, text: str) -> list[str]:
        """A program of the site's."""
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return [str(path)]

    def npu(self, node: str, *argv: str) -> None:
        done = subprocess.run(
            [self.folder / "fakes/bin/npu-sim", *argv, "--node", node],
            text=True,
            capture_output=True,
            check=False,
            env={**os.environ, "FTSLURM_NPU_SIM": f"{self.folder}/npu"},
        )
        assert done.returncode == 0, done.stderr

    def allow_by_sudo(self, rule: str) -> None:
        """Nobody outside the namespace sees it."""
        lay = 'umask 0227 && printf "%s\\n" "$1" >/etc/sudoers.d/ftslurm'
        done = self.space.run("sh", "-c", lay, "sh", rule)
        assert done.returncode == 0, done.stderr

    def kernel_says(self, node: str, sequence: int, text: str, priority: int = 2) -> None:
        with (self.folder / f"kmsg.{node}").open("a") as file:
            file.write(f"{priority},{sequence},1,-;{text}\n")

    def on(self, node: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """A command on that node, as root."""
        return self.space.run(
            sys.executable, TOOL, "node-shell", "--dir", self.cluster.folder, node, "--", *command, timeout_s=HOOK_TIMEOUT_S
        )

    def as_user(self, node: str, script: str) -> subprocess.CompletedProcess[str]:
        """What the job user does on the node outside of any job, as one who has logged in there: in no cgroup of Slurm's."""
        user = pwd.getpwnam(job_user())
        return self.on(node, "setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "sh", "-c", script)

    def shared_memory(self, node: str = "n1") -> set[str]:
        return set(self.on(node, "ls", "-A", "/dev/shm").stdout.split())

    def hook(self, name: str, node: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run an installed script by hand, as slurmd would; where no node is named, as slurmctld would."""
        variables = {"SLURM_CONF": str(self.cluster.conf), "SLURMD_NODENAME": node, "SLURM_CLUSTER_NAME": "local", **(env or {})}
        command = ("env", "-i", *(f"{name}={value}" for name, value in variables.items()), self.folder / "hooks" / name)
        return self.on(node, *command) if node else self.space.run(*command, timeout_s=HOOK_TIMEOUT_S)

    def said(self, hook: str, node: str) -> str:
        """What the hook's last run on that node came to."""
        try:
            return (self.folder / f"state.{node}" / f"{hook}.last").read_text()
        except FileNotFoundError:
            return ""

    def admin(self, *argv: str) -> str:
        return self.cluster.answer(argv, user="root")

    def resume(self) -> None:
        """All nodes as they were: no fault, no drain, nothing remembered."""
        for file in (self.folder / "npu").iterdir():
            file.unlink()
        for node in self.cluster.nodes:
            remove(self.folder / f"state.{node}")
            (self.folder / f"kmsg.{node}").write_text("")
            if "DRAIN" in self.cluster.node(node)["State"]:
                self.admin("scontrol", "update", f"NodeName={node}", "State=UNDRAIN")

        def idle() -> bool:  # only then Slurm takes the first node first
            return all(self.cluster.node(node)["State"].rstrip("*") == "IDLE" for node in self.cluster.nodes)

        self.cluster.wait_for(idle, IDLE_TIMEOUT_S, "all nodes to be idle")


@contextmanager
def hooked_cluster(nodes: int, conf: Sequence[str]) -> Iterator[Hooked]:
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    with user_folder(job_user()) as home, own_space() as space:
        folder = home.parent / "site"
        folder.mkdir(mode=0o755)
        (folder / "npu").mkdir()
        (folder / "npu").chmod(0o777)
        subprocess.run(["cp", "-r", REPO / "tests/fakes", folder / "fakes"], check=True)
        commands = copied_commands(folder, core_only=True)
        where = Path(tempfile.mkdtemp(prefix="ftslurm-cluster-", dir=SHARED_DISK))
        lines = installed_lines(commands, folder, where / "slurm.conf")
        cluster = Cluster(where / "slurm.conf", names, home)
        hooked = Hooked(cluster, Stage(cluster, home, (commands, folder / "fakes/bin")), space, folder, home / "state")
        hooked.settings()  # before the boot: slurmd runs the health check as it starts
        for node in names:
            (folder / f"kmsg.{node}").write_text("")
        try:
            flags = [f"--conf={line}" for line in (*lines, *conf)]
            check_booted(space.run(sys.executable, TOOL, "up", "--dir", where, "--nodes", str(nodes), *shared_options(), *flags))
            yield hooked
            hooked.stage.close()
        finally:
            space.run(sys.executable, TOOL, "down", "--dir", where)
            remove(where)


def installed_lines(commands: Path, folder: Path, conf: Path) -> list[str]:
    """Install the scripts as an administrator does; gives the lines that are meant for slurm.conf."""
    done = subprocess.run(
        [commands / "ftslurm", "install-hooks", folder / "hooks", "--config", folder / "hooks.yaml"],
        text=True,
        capture_output=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "SLURM_CONF": str(conf)},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    for script in (folder / "hooks").iterdir():
        script.write_text(re.sub(r"--kill-after=(\d) \d+", r"--kill-after=\1 240", script.read_text()))
    return [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
