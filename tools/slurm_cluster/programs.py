"""Slurm's programs on this machine, and how to get them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from slurm_cluster.trouble import EX_UNAVAILABLE, Trouble, say

APT_PACKAGES = "slurm-wlm slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins iproute2 util-linux"
# mariadb-install-db calls my_print_defaults, which Debian has among the clients.
DATABASE_APT_PACKAGES = "slurmdbd mariadb-server-core mariadb-client-core"
APT_INSTALL = f"apt-get install --no-install-recommends {APT_PACKAGES}"
PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "sbatch", "srun")
# Nodes that are apart, as root.
APART_PROGRAMS = ("ip", "nsenter", "unshare")
DATABASE_PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults", "slurmdbd", "sacctmgr")


def program(name: str) -> str:
    """The path of a Slurm program; Debian keeps daemons in sbin, which ordinary users have not in their PATH."""
    found = shutil.which(name, path=os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin")
    if found is None:
        raise Trouble(missing_sentence([name]), EX_UNAVAILABLE)
    return found


def missing_programs(others: Sequence[str] = ()) -> list[str]:
    """Those of PROGRAMS, and of `others`, that this machine lacks."""
    missing = []
    for name in (*PROGRAMS, *others):
        try:
            program(name)
        except Trouble:
            missing.append(name)
    return missing


def missing_sentence(missing: Sequence[str]) -> str:
    database = f" {DATABASE_APT_PACKAGES}" if set(missing) & set(DATABASE_PROGRAMS) else ""
    what = "Slurm" if set(missing) & set(PROGRAMS) else "slurmdbd with its database" if database else "what nodes apart need"
    return (
        f"{what} is not installed here ({', '.join(missing)} not found); as root, `slurm-cluster install` does it,"
        f" or on Debian and Ubuntu: apt-get update && {APT_INSTALL}{database}"
    )


def install(packages: str, programs: Sequence[str]) -> None:
    """Debian's packages. On a systemd machine they enable services of their own, which are left as they are. Raises: Trouble."""
    missing = missing_programs(programs)
    if not missing:
        say("Slurm is already installed")
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Trouble(missing_sentence(missing), EX_UNAVAILABLE)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update", f"apt-get install --no-install-recommends {packages} --yes"):
        if subprocess.run(shlex.split(command), env=environ, check=False).returncode != 0:
            raise Trouble(f"`{command}` failed; its own words are above", EX_UNAVAILABLE)
