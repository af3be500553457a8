"""A cluster in its folder, and the daemons that follow from both."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_cluster.processes import all_pids, argv_of, read_proc
from slurm_cluster.programs import program
from slurm_cluster.spec import BACKUP, Spec

ASK_TIMEOUT_S = 10.0
NODE_INIT = Path(__file__).with_name("node_init.py")
# The kernel ends all that is in them when their first process ends, and that one when unshare ends. What the machine mounts
# later where mounts are shared (mount_namespaces(7)), nodes see too.
OWN_NAMESPACES = (
    "unshare", "--mount", "--propagation=slave", "--pid", "--ipc", "--uts", "--net", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip

# The next word is the file to be seen as /etc/hosts.
OWN_HOSTS = ("unshare", "--mount", "--propagation=slave", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"')


@dataclass(frozen=True)
class Daemon:
    """One daemon of one cluster: how it is started, and with that how it is known again.

    start: what is run where that is more than argv. env: what it needs in its environment. stays: it does not go into the
    background by itself. marks: of a script, the words by which it is known whichever Python runs it, from whichever checkout.
    """

    name: str
    argv: tuple[str, ...]
    pid_file: Path
    log_file: Path
    start: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    stays: bool = False
    marks: tuple[str, ...] = ()

    def pid(self) -> int | None:
        """Its pid while it runs. The pid file alone is no proof: pids are reused, so the command line must agree.

        In a namespace of its own it writes down the number that it has there.
        """
        try:
            pid = int(self.pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return self._seen()
        return pid if self.is_at(pid) else self._seen()

    def _seen(self) -> int | None:
        return min(self.pids(), default=None) if self.start or self.stays else None

    def pids(self) -> list[int]:
        """All its processes, also in the moment before the pid file is written.

        Looked for three times: going into the background a daemon forks and its first pid ends, so one look can fall
        between the two.
        """
        for _ in range(3):
            if found := [pid for pid in all_pids() if self.is_at(pid)]:
                return found
        return []

    def is_running(self) -> bool:
        return self.pid() is not None or bool(self.pids())

    def is_at(self, pid: int) -> bool:
        """Whether `pid` runs this program with these arguments, which name the cluster's folder."""
        argv = argv_of(pid)
        if self.marks:
            script = len(argv) > 2 and argv[0].rpartition("/")[2].startswith("python") and argv[2].endswith(f"/{NODE_INIT.name}")
            return script and set(self.marks) <= set(argv)
        if Path(argv[0]).name != Path(self.argv[0]).name or argv[1:] != self.argv[1:]:
            return False
        # Of one without arguments the environment names the folder.
        return {os.fsencode(f"{key}={value}") for key, value in self.env.items()} <= set(read_proc(pid, "environ").split(b"\0"))


@dataclass(frozen=True)
class Cluster:
    """The folder, what was booted in it, and the daemons that follow from both."""

    folder: Path
    spec: Spec

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def munged(self) -> Daemon:
        """The machine's own: of slurmctld, of commands, and of nodes that are not apart."""
        return self._munged("munged")

    def node_munged(self, machine: str) -> Daemon:
        """Of a node that is apart. With one for all, every credential that a second node decodes is a replayed one, and over two
        of those at once a slurmd before 23.11 aborts."""
        return self._munged(f"munged-{machine}", self.inside(machine))

    def _munged(self, name: str, inside: tuple[str, ...] = ()) -> Daemon:
        folder = self.folder
        # --force turns complaints about folders above ours into warnings (a group-writable home, a closed
        # XDG_RUNTIME_DIR); our own folder is checked by check_folder.
        argv = (
            program("munged"),
            "--force",
            f"--key-file={folder}/munge/munge.key",
            f"--socket={folder}/munge/munge.socket",
            f"--seed-file={folder}/munge/munged.seed",
            f"--pid-file={folder}/run/{name}.pid",
            f"--log-file={folder}/log/{name}.log",
        )
        return Daemon(name, argv, folder / f"run/{name}.pid", folder / f"log/{name}.log", (*inside, *argv) if inside else ())

    @property
    def slurmctld(self) -> Daemon:
        """From 24.11 on it asks for the name of whoever connects to it, and answers nobody meanwhile: for 5 s each time where the
        machine's name server keeps silent about our nodes. So it has their /etc/hosts."""
        argv = (program("slurmctld"), "-f", str(self.conf))
        start = (*OWN_HOSTS, f"{self.folder}/hosts", *argv) if self.spec.apart else ()
        return Daemon("slurmctld", argv, self.folder / "run/slurmctld.pid", self.folder / "log/slurmctld.log", start)

    @property
    def mariadbd(self) -> Daemon:
        """No port and no password: whoever may open the socket is known by it."""
        folder = self.folder / "db"
        argv = (
            program("mariadbd"),
            "--no-defaults",
            f"--datadir={folder}/data",
            f"--socket={folder}/socket",
            "--skip-networking",
            f"--user={self.spec.user}",
            f"--init-file={folder}/init.sql",
            f"--pid-file={self.folder}/run/mariadbd.pid",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
            f"--log-error={self.folder}/log/mariadbd.log",
            "--plugin-load-add=auth_socket",
        )
        return Daemon("mariadbd", argv, self.folder / "run/mariadbd.pid", self.folder / "log/mariadbd.log", stays=True)

    @property
    def slurmdbd(self) -> Daemon:
        """SLURM_CONF tells it where slurmdbd.conf lies: beside."""
        return Daemon(
            "slurmdbd",
            (program("slurmdbd"),),
            self.folder / "run/slurmdbd.pid",
            self.folder / "log/slurmdbd.log",
            env={"MYSQL_UNIX_PORT": f"{self.folder}/db/socket"},
        )

    def init(self, node: str) -> Daemon:
        """The first process of a node that is apart."""
        own_run = ("--own-run",) if self.spec.configless else ()
        argv = (
            sys.executable,
            "-I",
            str(NODE_INIT),
            *own_run,
            str(self.folder),
            node,
            self.spec.host_name(node),
            *self.spec.shared,
        )
        return Daemon(
            f"{node}'s init",
            argv,
            self.folder / f"run/{node}.init",
            self.folder / f"log/{node}.init.log",
            start=(*OWN_NAMESPACES, *argv),
            stays=True,
            marks=(str(self.folder), node),
        )

    def slurmd(self, node: str) -> Daemon:
        where = ("-f", str(self.conf))
        if self.spec.configless:
            address = f"[{self.spec.controller_address}]" if self.spec.ipv6 else self.spec.controller_address
            where = ("--conf-server", f"{address}:{self.spec.port_base}")
        argv = (program("slurmd"), *where, "-N", node)
        start: tuple[str, ...] = ()
        if self.spec.apart:
            # Where it shall ask for its slurm.conf nothing may tell it of one.
            start = (*self.inside(node), *(("env", "--unset=SLURM_CONF") if self.spec.configless else ()), *argv)
        return Daemon(node, argv, self.folder / f"run/{node}.pid", self.node_log(node), start)

    def inside(self, machine: str) -> tuple[str, ...]:
        """What runs the words behind it in the namespaces of a node, or of the backup's machine."""
        # --root: we may be in another release's root (tools/slurm-root).
        namespaces = ("--mount", "--pid", "--ipc", "--uts", "--net", "--root", "--wdns=/")
        return ("nsenter", f"--target={self.init(machine).pid()}", *namespaces, "--")

    @property
    def backup(self) -> Daemon:
        """The second slurmctld. It would lock the first one's pid file, so it has a folder of its own in that place."""
        argv = (program("slurmctld"), "-f", str(self.conf), "-v")  # -v tells it from the first one
        run = f"{self.folder}/run"
        start = (*self.inside(BACKUP), "sh", "-c", f'mount --bind "{run}-{BACKUP}" "{run}" && exec "$@"', "sh", *argv)
        return Daemon("backup slurmctld", argv, self.folder / f"run-{BACKUP}/slurmctld.pid", self.slurmctld.log_file, start)

    def node_log(self, node: str) -> Path:
        return self.folder / f"log/{node}.log"

    @property
    def slurmds(self) -> tuple[Daemon, ...]:
        return tuple(self.slurmd(node) for node in self.spec.node_names)

    @property
    def database(self) -> tuple[Daemon, ...]:
        return (self.mariadbd, self.slurmdbd) if self.spec.accounting else ()

    @property
    def controllers(self) -> tuple[Daemon, ...]:
        return (self.slurmctld, self.backup) if self.spec.backup else (self.slurmctld,)

    @property
    def daemons(self) -> tuple[Daemon, ...]:
        return (self.munged, *self.database, *self.controllers, *self.slurmds)

    def ask(self, *argv: str) -> str:
        """What a Slurm client command answers; empty while slurmctld does not."""
        try:
            done = subprocess.run(
                (program(argv[0]), *argv[1:]),
                env=self.environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=ASK_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout

    def environ(self) -> dict[str, str]:
        """Our environment with this cluster's SLURM_CONF, and without the job we may be running in."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        return {**clean, "SLURM_CONF": str(self.conf)}

    def node_states(self) -> dict[str, str]:
        """Node name to its short state, like `idle` or `down*`; empty while slurmctld does not answer."""
        pairs = (line.split() for line in self.ask("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
