"""What Slurm tells its scripts about job and node, and what the site has told us. Every value is checked before it is used."""

from __future__ import annotations

import os
import sys
import syslog
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ftslurm.errors import FtslurmError, PolicyError, UsageError
from ftslurm.hooks.state_file import Memory, Remembered
from ftslurm.model.job import JobId
from ftslurm.model.settings.hook_settings import HookSettings, hook_settings
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.text import visible
from ftslurm.model.values import dataclass
from ftslurm.policies.node.health import PREFIX, one_line
from ftslurm.slurm.admin import SlurmAdmin, is_drained
from ftslurm.slurm.client import NodeView
from ftslurm.system.plugins import DEVICES, OURS, find


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
    settings = hook_settings(read_tree(str(path), "the settings of the hooks", only_roots=True), str(path))
    for kind in settings.devices.keys() - OURS[DEVICES].keys():
        if kind not in (known := find(DEVICES)):
            raise PolicyError(f"{path}: devices: no plugin reads `{kind}`{suggestion(kind, known)}", hint="see `ftslurm plugins`")
    return settings


# --- the edge of every script that Slurm runs: whatever goes wrong in it is its own trouble and never a node's or a job's

# To the installed script around us; every other status means to it that all is well (hooks/install/scripts.py).
BAD_NODE_STATUS = 10

Work = Callable[[HookSettings, Mapping[str, str]], tuple[bool, str]]


def run_hook(name: str, node: str, work: Work) -> None:
    """Ends the process. Its arguments: the site's file, the folder of the scripts.

    work: gives whether the node is fit for the job, and one sentence.
    """
    fit, sentence, settings = True, "", HookSettings()
    try:
        settings = read_settings(Path(sys.argv[1]))
        fit, sentence = work(settings, dict(os.environ))
    except Exception as error:  # it fails open
        print(visible(traceback.format_exc(), lines=True), file=sys.stderr)
        sentence = f"nothing was done: {error}"
    tell(f"{name}: {sentence}")
    if node and os.geteuid() == 0:
        Memory(settings.state, node).said(name, sentence)
    sys.exit(0 if fit else BAD_NODE_STATUS)


def tell(sentence: str) -> None:
    """To the system's log, and to whoever looks at what slurmd keeps."""
    sentence = one_line(sentence)
    syslog.openlog("ftslurm", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(sentence)
    print(f"ftslurm: {sentence}", file=sys.stderr)


# --- whose drain a node's drain is, as far as the scripts on that node have to know


def drain(admin: SlurmAdmin, node: str, reason: str) -> str:
    """What came of it, as a word or a few. Raises: as SlurmAdmin does."""
    stands = admin.drain_unless_drained(node, reason, PREFIX)
    return "drained" if stands is None else f"drained by somebody else already ({stands})"


def undrain(admin: SlurmAdmin, node: str) -> str:
    """What came of it. Raises: as SlurmAdmin does."""
    return "undrained" if admin.undrain_if_ours(node, PREFIX) else "left as it is: its drain is somebody else's by now"


def known_now(admin: SlurmAdmin, node: str, known: Remembered) -> Remembered:
    """Without what a person has taken back meanwhile. Slurm is asked only where something speaks against the node."""
    if not known.proof:
        return known
    try:
        return taken_back(known, admin.node(node))
    except FtslurmError:
        return known


def taken_back(known: Remembered, view: NodeView | None) -> Remembered:
    """A node that was drained for its kernel log and is not any more was taken back by a person, who knows better."""
    if view is not None and not is_drained(view):
        return replace(known, proof="", drained=False)
    return known
