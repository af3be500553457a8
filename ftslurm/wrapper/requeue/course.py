"""What stands between a requeue that was decided and its plainest form. Pure.

The best form: the job leaves its dead nodes first, whose clean-up it would wait for, and is then requeued by the recipe (held,
nodes excluded, start set, released). But Slurm may take no change of the job, and a node that an exclusive job gives back
stands idle for some time after each later job: docs/slurm-facts.md, "Changes to a requeued job" and "Nodes for a running job".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ftslurm.model.nodes import fold
from ftslurm.model.values import dataclass
from ftslurm.slurm.client import JobState, JobView

# Where there is a slurmdbd, 22.05 takes changes some 5 s after a node was given back, and each no takes 5 s itself. Without one
# it takes none for as long as the job runs, so one question is enough.
DATABASE_S = 15.0

# Slurm's bug 16121 was mended by this release.
KEEPS_GPUS = (23, 2, 2)

OWN_NODES = "the job has its nodes for itself, and Slurm would go on counting a node that such a job gives back as taken"
NO_CHANGES = "it has lost nodes, and Slurm takes no change of it"
NO_CHANGES_AFTER = "it has given nodes back, and Slurm takes no change of it since"


@dataclass(frozen=True, slots=True)
class Parted:
    """done: the job has left its dead nodes. what: that, or why not, in words; empty where there was nothing to do."""

    done: bool = False
    what: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """job: as it stands. may_go: it runs, and may be requeued. dead: known to be so. batch_node: where its script runs, empty if
    nobody knows. had: how many nodes it had in this scheduling, as far as is known. gave_back: nodes may have left it since.
    config: Slurm's. takes_changes: what Slurm answered since nodes last left the job, None: not asked. parted: None: not tried.
    """

    job: JobView
    may_go: bool
    config: Mapping[str, str]
    dead: frozenset[str] = frozenset()
    batch_node: str = ""
    had: int = 0
    gave_back: bool = False
    takes_changes: bool | None = None
    parted: Parted | None = None


@dataclass(frozen=True, slots=True)
class AskForChanges:
    """Ask Slurm whether it takes changes of the job, and again for so many seconds where it says that it soon will."""

    within_s: float


@dataclass(frozen=True, slots=True)
class PartFirst:
    """These nodes are to leave the job, if Slurm sees by itself that they do not respond."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plain:
    """Requeue it without any change: a job that was held could not be released."""

    why: str


@dataclass(frozen=True, slots=True)
class Held:
    """The recipe. said: what became of dead nodes, in words; empty: nothing to tell."""

    said: str = ""


Course = AskForChanges | PartFirst | Plain | Held


def course(known: Known) -> Course:
    """What to do next: whoever asks or tries adds the answer to what is known and calls again, until it is Plain or Held."""
    if not known.may_go:  # the recipe itself goes on from wherever the job stands, or says why it cannot
        return Held()
    if known.parted is not None:
        if known.parted.done and known.takes_changes is None:
            return AskForChanges(_patience_s(known.config))
        return Plain(NO_CHANGES_AFTER) if known.parted.done and not known.takes_changes else Held(known.parted.what)
    if (known.gave_back or len(known.job.nodes) < known.had) and known.takes_changes is None:
        return AskForChanges(_patience_s(known.config))
    if known.takes_changes is False:
        return Plain(NO_CHANGES)
    gone = leaves(known.job, known.dead, known.batch_node)
    if not gone or not keeps_accounts(known.config):
        return Held()
    if why := stays(known.job, known.config):
        return Held(f"{fold(gone)} stays in the job until Slurm takes it for down: {why}")
    return PartFirst(gone)


def leaves(job: JobView, dead: frozenset[str], batch_node: str) -> tuple[str, ...]:
    """Those of `dead` that the job can give back. Slurm starts the script on the first node."""
    gone = tuple(sorted(dead & {*job.nodes}))
    script = {batch_node, *job.nodes[:1]}
    return gone if job.state is JobState.RUNNING and not job.expedited and not script & {*gone} else ()


def stays(job: JobView, config: Mapping[str, str]) -> str:
    """Why a dead node stays in a job that is requeued, in words; empty: it leaves.

    One that an exclusive job gives back stands idle after every job from then on. Where Slurm's bug 16121 is, a dead node that
    stays costs more: the job starts without its GPUs, and those of all its nodes count as taken until slurmctld restarts.
    """
    return OWN_NODES if job.exclusive and not may_lose_gpus(config) else ""


def may_lose_gpus(config: Mapping[str, str]) -> bool:
    """Is Slurm's bug 16121 there? A release that nobody can read counts as one with it: a job without its GPUs is the worse harm.
    An exclusive job has all GPUs of its nodes, so it is enough that the cluster counts some."""
    release = re.match(r"(\d+)\.(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    mended = release is not None and tuple(int(part) for part in release.groups()) >= KEEPS_GPUS
    return not mended and "gpu" in config.get("GresTypes", "").split(",")


def keeps_accounts(config: Mapping[str, str]) -> bool:
    """Is there a slurmdbd? config: Slurm's."""
    return "slurmdbd" in config.get("AccountingStorageType", "")


def _patience_s(config: Mapping[str, str]) -> float:
    return DATABASE_S if keeps_accounts(config) else 0.0
