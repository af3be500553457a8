"""The judge's phases, and the facts that it gets at the start."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ftslurm.model.folds.history import CleanUpTook
from ftslurm.model.job import Call
from ftslurm.model.record import OutputTo, Record
from ftslurm.model.rungs import Capability
from ftslurm.model.values import Value, field


class Phase(Enum):
    NEW = "new"
    LAUNCHING = "launching"  # the step starts, shims connect
    RUNNING = "running"
    SETTLING = "settling"  # trouble: ranks are being stopped and facts collected, then the ladder is asked
    HEALING = "healing"
    REPLACING = "replacing"  # no step; other nodes for slots are searched and checked
    ENDING = "ending"  # the step is ending; what follows is a value of `then`
    REQUEUEING = "requeueing"
    FINISHED = "finished"


class OwnProcess(Value):
    """This ftrun, as its ledger names it, and how it was called."""

    version: str = ""
    host: str = ""
    pid: int = 0
    pid_space: str = ""  # PID namespace of its container, if it runs in one
    started: int = 0  # start time in kernel ticks since boot
    call: Call = Call()  # how the script that called it takes a failure
    wait_s: float = 0.0  # from the end of the first rank until the others are ended (srun --wait), 0: never


class EarlierRuns(Value):
    """What earlier ftruns of this job have left."""

    unproven: Mapping[str, str] = field(default_factory=dict)  # node -> why ranks of one may still run there
    # Those nodes whose ranks have ended once Slurm lists no step of theirs: the only doubt is that their ftrun was killed.
    killed: frozenset[str] = frozenset()
    cut_short: tuple[Record, ...] = ()  # how the previous scheduling ended, if its ftrun could not record it
    # Earlier steps of this scheduling, also those that Slurm has forgotten; their leases may outlive their ftrun.
    steps_over: frozenset[str] = frozenset()
    loans_left: tuple[int, ...] = ()  # donor jobs that nobody has ended
    # Does Slurm list only steps of `steps_over`, in a job that has lost a node? That node cannot confirm the end of its
    # processes.
    beside: bool = False


class WhyNot(Value):
    """Why the launcher lacks an ability; each is empty if it has it."""

    donor: str = ""  # why no node can be borrowed
    swap: str = ""  # why no node can be replaced; then `can` lacks `replace`
    again: str = ""  # why this ftrun cannot start its ranks again
    requeue: str = ""  # why the job cannot be requeued, as far as was known when ftrun began
    split: str = ""  # why nodes with different numbers of CPUs cannot have an srun each, where memory per CPU requires that


class Environments(Value):
    slurm: Mapping[str, str] = field(default_factory=dict)  # the batch script's variables about the job (SLURM_*)
    user: frozenset[str] = frozenset()  # names of the variables that the user has set
    sdk: Mapping[str, str] = field(default_factory=dict)  # what the program interface in the ranks needs
    meet_at: Mapping[str, str] = field(default_factory=dict)  # of the user's, those that may name a node of the rendezvous
    none: frozenset[str] = frozenset()  # ftrun's variables that would show a program no device, where Slurm assigns none either


class OutputPlace(Value):
    files: OutputTo | None = None  # where the output goes, None if unknown
    log: str = ""  # where the ranks' errors go, as in RunBegan
    labels: bool = False  # are its lines labelled by rank?


class RunFacts(Value):
    """The facts that do not change during one ftrun."""

    run: str
    job: str
    cluster: str
    schedule: int
    step_key: str
    command: str
    nodes: tuple[str, ...]
    start_time: int = 0
    name: str = ""
    launcher: str = "srun"
    number: int = 0  # of the job, as scontrol takes it
    # The abilities of the launcher: `ask` (state of job and nodes), `requeue`, `probe` (a node, by another way than our
    # connections), `replace`, `steps` (list the job's steps).
    can: frozenset[Capability] = frozenset()
    why_not: WhyNot = WhyNot()
    remembered: Mapping[str, str] = field(default_factory=dict)  # node -> why earlier jobs of this user excluded it
    width: int = 0  # nodes of the step; 0: srun decides
    batch_node: str = ""  # where ftrun runs
    # The nodes that Slurm gave the job, in its order; some may have been lost or given back before this ftrun began. Empty if
    # unknown.
    granted: tuple[str, ...] = ()
    submit_time: int = 0  # of the job or its last requeue, by slurmctld's clock, Unix seconds
    ends_at: int = 0  # by the time limit of the batch job as it was when ftrun began, by slurmctld's clock, Unix seconds
    # Clean-up times of this cluster's nodes after earlier requeues of this user's jobs, the latest last.
    clean_ups: tuple[CleanUpTook, ...] = ()
    process: OwnProcess = OwnProcess()
    earlier: EarlierRuns = field(default_factory=EarlierRuns)
    env: Environments = field(default_factory=Environments)
    output: OutputPlace = OutputPlace()
    places: Mapping[str, str] = field(default_factory=dict)  # setting -> where it was set, of those that are not the default

    @property
    def missing(self) -> tuple[str, ...]:
        """Nodes that the job no longer has."""
        return tuple(node for node in self.granted if node not in set(self.nodes))
