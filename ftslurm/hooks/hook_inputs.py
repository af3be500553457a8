"""What Slurm tells its scripts about job and node, and what the site has told us. Every value is checked before it is used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ftslurm.errors import UsageError
from ftslurm.model.job import JobId
from ftslurm.model.settings.hook_settings import HookSettings, hook_settings
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Of the job that a script runs for. node: empty in EpilogSlurmctld. nodes: of the job, as Slurm writes them.

    restarts: requeues so far; one that is under way already counts where it was asked for by somebody.
    """

    job: JobId
    user_id: int
    cluster: str
    node: str
    nodes: str = ""
    restarts: int = 0


def job_facts(env: Mapping[str, str]) -> JobFacts:
    """Raises: UsageError for what Slurm would never set. Source: slurm.conf(5), Prolog and Epilog Scripts."""
    number, user_id = _number(env, "SLURM_JOB_ID"), _number(env, "SLURM_JOB_UID")
    if not number or user_id is None:
        raise UsageError("SLURM_JOB_ID or SLURM_JOB_UID is not set", hint="Slurm runs this, by its line in slurm.conf")
    job = JobId(number, _number(env, "SLURM_ARRAY_JOB_ID"), _number(env, "SLURM_ARRAY_TASK_ID"))
    cluster, node = env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURMD_NODENAME", "")
    restarts = _number(env, "SLURM_JOB_RESTART_COUNT") or 0
    return JobFacts(job, user_id, cluster, node, env.get("SLURM_JOB_NODELIST", ""), restarts)


def node_name(env: Mapping[str, str]) -> str:
    """The node a health check runs on: slurmd's own word, else the short name of the host.

    Raises: UsageError.
    """
    name = env.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    if not name or "/" in name:
        raise UsageError("the name of this node is not known", hint="set SLURMD_NODENAME")
    return name


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12):
        raise UsageError(f"{name}={text[:40]} is not a number", hint="it is Slurm's to set")
    return int(text)


def read_settings(path: Path) -> HookSettings:
    """The site's file, or the defaults where there is none. Root obeys it, so nobody else may be able to write it.

    Raises: PolicyError.
    """
    from ftslurm.config.settings_files import read_tree

    if not path.exists():
        return HookSettings()
    return hook_settings(read_tree(str(path), "the settings of the hooks", only_roots=True), str(path))
