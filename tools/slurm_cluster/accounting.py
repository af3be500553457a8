"""A real slurmdbd on a real MariaDB, with an account for those who submit jobs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slurm_cluster.cluster import Cluster
from slurm_cluster.conf import render_slurmdbd_conf
from slurm_cluster.daemons import logs_of, start, wait_for
from slurm_cluster.programs import program
from slurm_cluster.trouble import BootFailed, Trouble

ACCOUNT = "users"


def write_files(cluster: Cluster) -> None:
    """The database's folder, and slurmdbd.conf, which belongs to SlurmUser and is closed to all others (slurmdbd.conf(5))."""
    folder, user = cluster.folder, cluster.spec.user
    (folder / "db").mkdir(mode=0o750)
    (folder / "db/data").mkdir(mode=0o700)
    who = f"'{user}'@'localhost'"
    init = [f"CREATE USER IF NOT EXISTS {who} IDENTIFIED VIA unix_socket;", f"GRANT ALL ON *.* TO {who};"]
    (folder / "db/init.sql").write_text("\n".join([*init, ""]))
    conf = folder / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(render_slurmdbd_conf(cluster.spec, folder))
    for path in (folder / "db", folder / "db/data", folder / "db/init.sql", conf):
        shutil.chown(path, user)


def start_database(cluster: Cluster) -> None:
    made = subprocess.run(
        (
            program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={cluster.folder}/db/data",
            "--skip-test-db",
            "--skip-name-resolve",
            f"--user={cluster.spec.user}",
            "--auth-root-authentication-method=normal",
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        raise Trouble(f"mariadb-install-db failed: {(made.stderr or made.stdout).strip()[-300:]}")
    start([cluster.mariadbd], cluster)
    wait_for(
        lambda: "" if Path(cluster.folder, "db/socket").exists() else "mariadbd has no socket",
        [cluster.mariadbd],
        logs_of(cluster.mariadbd),
    )
    start([cluster.slurmdbd], cluster)
    wait_for(
        lambda: "" if _sacctmgr(cluster, "show", "cluster").returncode == 0 else "slurmdbd does not answer",
        [cluster.slurmdbd],
        logs_of(cluster.slurmdbd),
    )


def add_users(cluster: Cluster, users: Sequence[str]) -> None:
    """Before the first sbatch: slurmctld lets nobody submit whom no account knows."""
    for words in (
        ("add", "cluster", "local"),
        ("add", "account", ACCOUNT, "Description=users", "Organization=site"),
        *(("add", "user", user, f"Account={ACCOUNT}") for user in users),
    ):
        done = _sacctmgr(cluster, *words)
        # It ends with 1 where there was nothing to add.
        if done.returncode != 0 and "Nothing new added" not in done.stdout + done.stderr:
            said = (done.stdout + done.stderr).strip()
            raise BootFailed(f"sacctmgr {' '.join(words)} failed: {said}", logs_of(cluster.slurmdbd))


def _sacctmgr(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (program("sacctmgr"), "--immediate", *words),
        env=cluster.environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
