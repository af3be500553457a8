"""What must happen before a requeue that was decided: the best form first, the simplest otherwise. Pure.

The best form: the job first gives back its dead nodes, whose clean-up it would wait for, and is then requeued by the recipe
(held, nodes excluded, start time set, released). But Slurm may refuse changes of the job, and a node that an exclusive job gives
back is idle for some time after each later job: docs/slurm-facts.md, "Changes to a requeued job" and "Nodes for a running job".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.model.nodes import fold_nodes
from ftslurm.model.values import Value
from ftslurm.slurm.client import JobState, JobView

# With a slurmdbd, 22.05 accepts changes some 5 s after a node was given back, and each refusal takes 5 s itself. Without one it
# accepts none while the job runs, so one question is enough.
DATABASE_S = 15.0

# The release that fixed Slurm's bug 16121.
KEEPS_GPUS = (23, 2, 2)

OWN_NODES = "the job is exclusive, and Slurm would still count a node that it gives back as allocated"
NO_CHANGES = "it has lost nodes, and Slurm accepts no change to it"
NO_CHANGES_AFTER = "it has given nodes back, and since then Slurm accepts no change to it"


class Parted(Value):
    """The attempt to give dead nodes back. done: the job has left them. what: that, or why not, in words; empty if there was
    nothing to do.
    """

    done: bool = False
    what: str = ""


class KnownOfJob(Value):
    """What is known about the job."""

    job: JobView  # its state
    may_go: bool  # it runs, and may be requeued
    config: Mapping[str, str]  # Slurm's
    dead: frozenset[str] = frozenset()  # known to be so
    batch_node: str = ""  # where its script runs, empty if unknown
    had: int = 0  # how many nodes it had in this scheduling, as far as is known
    gave_back: bool = False  # nodes may have left it since
    takes_changes: bool | None = None  # Slurm's answer since nodes last left the job, None: not asked
    parted: Parted | None = None  # None: not tried


class AskForChanges(Value):
    """Ask Slurm whether it accepts changes of the job; repeat for this many seconds if Slurm says that it soon will."""

    within_s: float


class PartFirst(Value):
    """The job gives these nodes back first, if Slurm itself sees that they do not respond."""

    nodes: tuple[str, ...]


class Plain(Value):
    """Requeue the job without any change: if it were held, nobody could release it."""

    why: str


class NothingToDo(Value):
    """Follow the recipe. said: what became of dead nodes, in words; empty: nothing to report."""

    said: str = ""


Course = AskForChanges | PartFirst | Plain | NothingToDo


def course(known: KnownOfJob) -> Course:
    """The next step: the caller carries it out, adds the answer to `known` and calls again, until the step is Plain or Held."""
    if not known.may_go:  # the recipe itself continues from any state of the job, or says why it cannot
        return NothingToDo()
    if known.parted is not None:
        if known.parted.done and known.takes_changes is None:
            return AskForChanges(_patience_s(known.config))
        return Plain(NO_CHANGES_AFTER) if known.parted.done and not known.takes_changes else NothingToDo(known.parted.what)
    if (known.gave_back or len(known.job.nodes) < known.had) and known.takes_changes is None:
        return AskForChanges(_patience_s(known.config))
    if known.takes_changes is False:
        return Plain(NO_CHANGES)
    gone = can_give_back(known.job, known.dead, known.batch_node)
    if not gone or not keeps_accounts(known.config):
        return NothingToDo()
    if why := stays(known.job, known.config):
        return NothingToDo(f"{fold_nodes(gone)} stays in the job until Slurm marks it down: {why}")
    return PartFirst(gone)


def can_give_back(job: JobView, dead: frozenset[str], batch_node: str) -> tuple[str, ...]:
    """The nodes of `dead` that the job can give back: not the first node, where Slurm starts the script."""
    gone = tuple(sorted(dead & {*job.nodes}))
    script = {batch_node, *job.nodes[:1]}
    return gone if job.state is JobState.RUNNING and not job.expedited and not script & {*gone} else ()


def stays(job: JobView, config: Mapping[str, str]) -> str:
    """Why a dead node stays in a job that is requeued, in words; empty: the job gives it back.

    A node that an exclusive job gives back is idle after every later job. With Slurm's bug 16121 a dead node that stays costs
    more: the job starts without its GPUs, and those of all its nodes count as allocated until slurmctld restarts.
    """
    return OWN_NODES if job.exclusive and not may_lose_gpus(config) else ""


def may_lose_gpus(config: Mapping[str, str]) -> bool:
    """Does this Slurm have bug 16121? An unreadable release counts as one with it: a job without its GPUs is the worse damage. An
    exclusive job has all GPUs of its nodes, so it is enough that the cluster counts GPUs.
    """
    release = re.match(r"(\d+)\.(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    mended = release is not None and tuple(int(part) for part in release.groups()) >= KEEPS_GPUS
    return not mended and "gpu" in config.get("GresTypes", "").split(",")


def keeps_accounts(config: Mapping[str, str]) -> bool:
    """Is there a slurmdbd? config: Slurm's."""
    return "slurmdbd" in config.get("AccountingStorageType", "")


def _patience_s(config: Mapping[str, str]) -> float:
    return DATABASE_S if keeps_accounts(config) else 0.0
