"""What Slurm says of jobs, nodes and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ftslurm.model.values import Value, field

# Not a key of Slurm's: when slurmctld gave the answer, by its own clock, in Unix seconds.
AS_OF = "AS_OF"


class JobState(Enum):
    """Slurm's base states of a job, as far as a supervisor distinguishes them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"  # also BOOT_FAIL, DEADLINE, OUT_OF_MEMORY: over, and not well
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    UNKNOWN = "UNKNOWN"  # a word this version does not know; or, with JobView.completing, over in a way not yet told


class NodeState(Enum):
    """Can the node run our tasks? DRAINING still can, for those already there."""

    GOOD = "good"
    DRAINING = "draining"
    BAD = "bad"  # DOWN, FAIL, NOT_RESPONDING
    UNKNOWN = "unknown"  # also powered down to save power: Slurm wakes it when it grants it


class Needs(Value):
    """What a job asks for on each node. Empty and 0: nothing, or not told."""

    features: str = ""  # its --constraint
    gres: str = ""  # as --gres takes it
    min_cpus: int = 0  # its --mincpus
    memory_mb: int = 0
    reservation: str = ""


class Resources(Value):
    """What a node has. None and 0: not told."""

    features: frozenset[str] | None = None
    cpus: int = 0
    memory_mb: int = 0
    gres: Mapping[str, int] | None = None  # name, and name and type joined by `:` -> number


class JobView(Value):
    """One look at a job. Times in Unix seconds, 0 where Slurm says Unknown."""

    number: int
    state: JobState
    reason: str = ""  # Slurm's word or words, joined by `_`
    completing: bool = False  # the nodes still clean up after the last scheduling
    configuring: bool = False  # granted, yet its nodes still boot, or their Prolog runs: no step starts there by now
    held: bool = False  # waits for a `release`
    to_be_held: bool = False  # runs, and somebody has held it for when it waits again
    batch: bool = False
    requeue: bool = False
    restarts: int = 0
    start_time: int = 0  # of this scheduling; while the job waits, the earliest it can be
    end_time: int = 0  # 0 while the job waits
    submit_time: int = 0  # after a requeue the moment at which its clean-up ended
    nodes: tuple[str, ...] = ()  # nodes, cleaning, excluded, required: expanded. nodes is empty while the job waits.
    cleaning: tuple[str, ...] = ()  # of one that waits, the nodes that still clean up
    excluded: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()  # asked for by name (--nodelist)
    node_count: int = 0  # what the job asks for
    partition: str = ""
    name: str = ""
    user_id: int = -1
    comment: str = ""
    # submitted with `--requeue=expedite` (25.11 and later), so that a requeue waits for the clean-up and no longer
    expedited: bool = False
    needs: Needs = field(default_factory=Needs)
    array_job: int | None = None
    array_task: int | None = None  # None for tasks that wait under the array's number
    exclusive: bool = True  # no other job may use its nodes; also where nobody says
    qos: str = ""
    preempt_time: int = 0  # since when it is being preempted, 0: it is not


class NodeView(Value):
    """One look at a node."""

    name: str
    state: NodeState
    words: str = ""  # the state as Slurm spelled it, for people
    reason: str = ""
    partitions: frozenset[str] = frozenset()
    address: str = ""
    port: int = 0  # of its slurmd, 0: the cluster's
    reason_by: str = ""  # who gave the reason, empty if not told
    reason_at: int = 0  # when, Unix seconds, 0 if not told
    has: Resources = field(default_factory=Resources)


class PartitionView(Value):
    """One look at a partition. exclusive: each job there has its nodes for itself (OverSubscribe). nodes: how many."""

    name: str
    exclusive: bool
    nodes: int
