"""The requests that ftslurm makes to Slurm, independent of how they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Protocol

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


class SlurmClient(Protocol):
    """The requests ftslurm makes. All are allowed to the owner of the job.

    Every method raises SlurmUnavailable when slurmctld gives no answer within the client's time limit, or one that
    cannot be read; SlurmRefused with Slurm's own words when it says no; UnknownJob for a job it does not know;
    CommandMissing where a program is not installed. Every request may be made twice, and a change to a task of a job
    array changes that task alone; a number that stands for tasks in waiting is refused.
    """

    def job(self, number: int) -> JobView:
        """The job as it stands."""

    def nodes(self) -> tuple[NodeView, ...]:
        """Every node of the cluster that the caller may see: none where PrivateData=nodes hides them from users."""

    def requeue_held(self, number: int) -> None:
        """Back to PENDING, held; a job that is pending already is just held.

        Sends SIGTERM to everything the job runs. Brings back a job that is over, a cancelled one too, for as long as
        Slurm remembers it (MinJobAge): who does not want that looks first. Source: scontrol(1) requeuehold.
        """

    def requeue(self, number: int) -> None:
        """Back to PENDING, not held, so that it may start before it can be changed. Else as `requeue_held`."""

    def exclude(self, number: int, nodes: Iterable[str]) -> None:
        """Keep a pending job off `nodes`; replaces the list it had, an empty one clears it."""

    def require(self, number: int, nodes: Iterable[str]) -> None:
        """The nodes that a pending job asks for by name, beside others; replaces the list, an empty one clears it.

        With one that is excluded too, Slurm would let the job wait for ever (BadConstraints).
        Source: docs/slurm-facts.md, "Changes to a requeued job".
        """

    def start_at(self, number: int, unix_s: int | None) -> None:
        """Earliest start of a pending job, Unix seconds; None means now.

        While a requeued job still cleans up, a time before the end of the clean-up becomes 121 s after it, and so
        does none at all; a later one stays. After the clean-up, None starts the job at once.
        Source: docs/slurm-facts.md, "The 121 seconds".
        """

    def release(self, number: int) -> None:
        """Let a held job be scheduled; one that is not held stays as it is."""

    def allow_requeue(self, number: int) -> None:
        """Set Requeue=1 on a job that was submitted with --no-requeue."""

    def takes_changes(self, number: int, within_s: float) -> bool:
        """Does Slurm take changes of this job, of one that may be requeued (the change asked for is `allow_requeue`)? It is asked
        once, and again for `within_s` while it says that it will soon. slurmctld may take 5 s for each no.

        22.05 takes none of a job that has given back or lost a node: some seconds long where there is a slurmdbd, else for as
        long as the job runs. Source: docs/slurm-facts.md, "Changes to a requeued job".
        """

    def signal_steps(self, number: int, name: str) -> None:
        """Signal `name` (CONT) to every task of every step. slurmctld calls each node of the job for it: one that does not answer
        is NOT_RESPONDING from then on, MessageTimeout (10 s) later."""

    def keep_nodes(self, number: int, nodes: Iterable[str]) -> None:
        """The running job goes on with `nodes` of its own and gives the others back; what runs there is no longer waited for.

        Its size stays what it was for the next scheduling: a requeue brings it back whole. Source: scontrol(1), NodeList; seen on
        22.05, 24.11 and 26.05. A site may forbid it (SchedulerParameters=disable_job_shrink).
        """

    def cancel(self, number: int) -> None:
        """End the job. One that is over or that Slurm has forgotten is no error."""

    def config(self) -> dict[str, str]:
        """`scontrol show config` as key -> value (KillWait, ProctrackType, RequeueExit, SLURM_VERSION, ...), and AS_OF."""
