"""What Slurm, the site, the job's owner and earlier scripts tell the hooks. Every value is checked before it is used."""

from __future__ import annotations

import json
import math
import os
import sys
import syslog
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ftslurm.errors import FtslurmError, PolicyError, StateError, UsageError, WireError
from ftslurm.hooks.scripts import BAD_NODE_STATUS, LIMITS_S
from ftslurm.model.exits import Process
from ftslurm.model.job import JobId
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.settings.hook_settings import HookSettings, hook_settings
from ftslurm.model.settings.kinds import suggestion
from ftslurm.model.text import visible
from ftslurm.model.values import Value, replace
from ftslurm.policies.node import PREFIX, one_line
from ftslurm.slurm.cli_client import SlurmAdmin, is_drained
from ftslurm.slurm.client import NodeView
from ftslurm.slurm.env import number_in
from ftslurm.system.files import Locked, is_there, locked, private_folder, replace_file
from ftslurm.system.owner import PATH, owner_of, run_as
from ftslurm.system.plugins import DEVICES, OURS, find

# --- what root's scripts on a node remember from one run to the next: one small JSON file and a folder of evidence

# Users whose last Epilogs did not come to their end here; of more the oldest are forgotten.
MAX_UNFINISHED = 20
MAX_EVIDENCE_FILES, MAX_EVIDENCE_BYTES = 500, 1 << 16
LOCK_WAIT_S = 5.0
T = TypeVar("T")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOUNDS = Bounds(1 << 16, signed=True)


class Unfinished(Value):
    """The Epilog of this job found something left by the user, and has not come to know that it is gone."""

    user_id: int
    job: str


class HookMemory(Value):
    """boot: of the kernel whose log was read up to line `read_to`. proof: what it said against the node.

    drained: by us, or nobody remembers: Slurm is asked then. stuck: processes that outlived SIGKILL. unfinished: the last
    is the latest.
    """

    boot: str = ""
    read_to: int = -1
    proof: str = ""
    drained: bool = True
    stuck: tuple[Process, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()


def merged(now: HookMemory, before: HookMemory, after: HookMemory) -> HookMemory:
    """`now` with what one script has changed from `before` to `after`. Pure.

    Where something speaks against the node still, Slurm is asked whether it is drained.
    """
    if now.boot != after.boot:
        return after
    stuck = _joined(now.stuck, before.stuck, after.stuck)
    unfinished = _joined(now.unfinished, before.unfinished, after.unfinished)[-MAX_UNFINISHED:]
    proof = after.proof if after.proof != before.proof else now.proof
    drained = after.drained if after.drained != before.drained else now.drained
    return HookMemory(now.boot, max(now.read_to, after.read_to), proof, drained or bool(proof or stuck), stuck, unfinished)


def _joined(now: tuple[T, ...], before: tuple[T, ...], after: tuple[T, ...]) -> tuple[T, ...]:
    gone = set(before) - set(after)
    come = [one for one in after if one not in before]
    return tuple(dict.fromkeys([*(one for one in now if one not in gone), *come]))


class Memory:
    """root: the site's state folder."""

    def __init__(self, root: str, node: str) -> None:
        self.root = Path(root.replace("{node}", node))

    def read(self) -> HookMemory:
        """What cannot be read is forgotten; nothing of an earlier boot counts."""
        now = BOOT_ID.read_text().strip()
        try:
            found = from_plain(HookMemory, json.loads((self.root / "node.json").read_bytes()), _BOUNDS)
        except (OSError, ValueError, WireError):
            return HookMemory(now)
        return found if found.boot == now else HookMemory(now)

    def change(self, before: HookMemory, after: HookMemory) -> None:
        """Write what differs between the two, and keep what others have written since `before` was read.

        Raises: StateError, OSError.
        """
        try:
            with locked(private_folder(self.root) / "node.lock", LOCK_WAIT_S):
                replace_file(self.root / "node.json", json.dumps(to_plain(merged(self.read(), before, after))).encode())
        except Locked:
            raise StateError(f"{self.root}/node.lock is held by another", hint="is a script of Slurm's stuck here?") from None

    def alter(self, change: Callable[[HookMemory], HookMemory]) -> None:
        """Write what `change` makes of it, if that can be done."""
        with suppress(FtslurmError, OSError):
            known = self.read()
            if (after := change(known)) != known:
                self.change(known, after)

    def said(self, hook: str, sentence: str) -> None:
        """For people: what the last run of this hook came to. Never raises."""
        with suppress(Exception):
            replace_file(private_folder(self.root) / f"{hook}.last", f"{sentence}\n".encode())

    def keep_evidence(self, name: str, text: str) -> None:
        """What a job left behind, for people; of too many files the oldest go. Raises: StateError, OSError."""
        folder = private_folder(private_folder(self.root) / "evidence")
        old = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in old[: max(len(old) - MAX_EVIDENCE_FILES + 1, 0)]:
            path.unlink(missing_ok=True)
        with (folder / name).open("a") as file:
            if file.tell() < MAX_EVIDENCE_BYTES:
                file.write(text[:MAX_EVIDENCE_BYTES])


# --- what root or SlurmUser wants of a job's ledger: asked of a program that runs as the job's owner (hooks/as_owner.py)

# For the nodes to be clean, which sets the start (as_owner.py).
WATCH_LIMIT_S = 600.0
# Before the installed script cuts us off, 20 s for what we ask ourselves, and to say what came of it.
FINISH_LIMIT_S = LIMITS_S["epilog_slurmctld"] - 20.0


def ask_owner(verb: str, facts: JobFacts, timeout_s: float) -> str:
    """The one line that the program printed; empty if it had nothing to say. Raises: UnknownJob, CommandMissing."""
    program = str(Path(sys.argv[2]) / "as_owner")
    argv = [program, verb, str(facts.job.number), str(facts.job), facts.cluster]
    done = run_as(owner_of(facts.user_id), argv, timeout_s, {"PATH": PATH, "LANG": "C.UTF-8"})
    return one_line(done.stdout if done.status is not None else f"{done.stdout} cut off after {timeout_s:g} s")


def cleanup_grace(settings: HookSettings, facts: JobFacts) -> float:
    """Seconds that the job wants a clean-up to be waited for; -1, without end, if nothing is known.

    The ledger is the user's: a clean-up that has not ended when the next job begins is the site's to allow.
    """
    if not settings.cleanup_grace_of_job or facts.user_id < settings.first_user_id:
        return -1.0
    try:
        grace_s = float(ask_owner("grace", facts, settings.slurm_timeout_s))
    except (FtslurmError, ValueError):
        return -1.0
    return grace_s if math.isfinite(grace_s) and grace_s >= 0 else -1.0


class JobFacts(Value):
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
    number, user_id = number_in(env, "SLURM_JOB_ID"), number_in(env, "SLURM_JOB_UID")
    if not number or user_id is None:
        raise UsageError("SLURM_JOB_ID or SLURM_JOB_UID is not set", hint="Slurm runs this, by its line in slurm.conf")
    job = JobId(number, number_in(env, "SLURM_ARRAY_JOB_ID"), number_in(env, "SLURM_ARRAY_TASK_ID"))
    cluster, node = env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURMD_NODENAME", "")
    restarts = number_in(env, "SLURM_JOB_RESTART_COUNT") or 0
    return JobFacts(job, user_id, cluster, node, env.get("SLURM_JOB_NODELIST", ""), restarts)


def node_name(env: Mapping[str, str]) -> str:
    """The node a health check runs on: slurmd's own word, else the short name of the host.

    Raises: UsageError.
    """
    name = env.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    if not name or "/" in name:
        raise UsageError("the name of this node is not known", hint="set SLURMD_NODENAME")
    return name


def read_settings(path: Path) -> HookSettings:
    """The site's file, or the defaults where there is none. Root obeys it, so nobody else may be able to write it.

    Raises: PolicyError.
    """
    from ftslurm.config.settings_files import read_tree

    if not is_there(path):
        return HookSettings()
    settings = hook_settings(read_tree(str(path), "the settings of the hooks", only_roots=True), str(path))
    for kind in settings.devices.keys() - OURS[DEVICES].keys():
        if kind not in (known := find(DEVICES)):
            raise PolicyError(f"{path}: devices: no plugin reads `{kind}`{suggestion(kind, known)}", hint="see `ftslurm plugins`")
    return settings


# --- the edge of every script that Slurm runs: an error of the script never counts against a node or a job

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
    """Write the sentence to the system's log, and to stderr, which slurmd may keep."""
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


def known_now(admin: SlurmAdmin, node: str, known: HookMemory) -> HookMemory:
    """Without what a person has taken back meanwhile. Slurm is asked only where something speaks against the node."""
    if not known.proof:
        return known
    try:
        return taken_back(known, admin.node(node))
    except FtslurmError:
        return known


def taken_back(known: HookMemory, view: NodeView | None) -> HookMemory:
    """A node that was drained for its kernel log and is not any more was taken back by a person, who knows better."""
    if view is not None and not is_drained(view):
        return replace(known, proof="", drained=False)
    return known
