"""Which Slurm the tests run on, and what is only there on some."""

from __future__ import annotations

import os
import re
import shutil
import subprocess


def slurm_version() -> tuple[int, int]:
    """(26, 5) of `slurm-wlm 26.05.5`; (0, 0) where there is no Slurm. Of slurmctld: sbatch wants a slurm.conf first."""
    slurmctld = shutil.which("slurmctld", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if slurmctld is None:
        return 0, 0
    answer = subprocess.run([slurmctld, "-V"], stdout=subprocess.PIPE, text=True, timeout=30, check=True).stdout
    major, minor = re.findall(r"\d+", answer)[:2]
    return int(major), int(minor)
