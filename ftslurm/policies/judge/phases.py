"""The judge's own words: its phases, and what it is told at the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from ftslurm.model.folds.history import CleanUpTook
from ftslurm.model.folds.summary import ENDING_STATES
from ftslurm.model.record import OutputTo, Record
from ftslurm.model.rungs import Capability
from ftslurm.model.values import dataclass

__all__ = ["ENDING_STATES", "Phase", "RunFacts"]


class Phase(Enum):
    NEW = "new"
    LAUNCHING = "launching"  # the step comes up, shims arrive
    RUNNING = "running"
    SETTLING = "settling"  # trouble: ranks are being stopped and facts collected, then the ladder is asked
    HEALING = "healing"
    REPLACING = "replacing"  # no step; nodes for slots are being had and looked at
    ENDING = "ending"  # the step is let go; what follows is a value of `then`
    REQUEUEING = "requeueing"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """This ftrun, as its ledger names it."""

    version: str = ""
    host: str = ""
    pid: int = 0
    pid_space: str = ""  # of the container that it runs in, if in one
    started: int = 0  # in ticks of the kernel since boot


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """What ftruns of this job before this one have left."""

    unproven: Mapping[str, str] = field(default_factory=dict)  # node -> why ranks of one may still run there
    # Those of them where they have ended when Slurm lists no step of theirs, since all that is known against them is that their
    # ftrun was killed.
    killed: frozenset[str] = frozenset()
    cut_short: tuple[Record, ...] = ()  # how the scheduling before ended, where its ftrun did not live to write it
    # Of this scheduling, whatever Slurm thinks of them; their leases, though, may outlive their ftrun.
    steps_over: frozenset[str] = frozenset()
    loans_left: tuple[int, ...] = ()  # donor jobs that nobody has ended
    # Does Slurm list steps, and none but those of `steps_over`, in a job that has lost a node? The node cannot say that
    # nothing is left there.
    beside: bool = False


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why the launcher cannot do what others can; each empty where it can."""

    donor: str = ""  # why no node can be borrowed
    swap: str = ""  # why none can be replaced by any other; then `can` has no `replace`
    split: str = ""  # why nodes with different numbers of CPUs cannot have an srun each, where memory by CPU asks for that


@dataclass(frozen=True, slots=True)
class Environments:
    slurm: Mapping[str, str] = field(default_factory=dict)  # what the batch script's says of the job (SLURM_*)
    user: frozenset[str] = frozenset()  # names of the variables that the user has set
    sdk: Mapping[str, str] = field(default_factory=dict)  # what the program interface in the ranks has to know
    hidden: str = ""  # the variable of ftrun's that shows programs no device, where Slurm gives them none either


@dataclass(frozen=True, slots=True)
class OutputPlace:
    files: OutputTo | None = None  # where it goes, None where nobody knows
    log: str = ""  # where the ranks' errors go, as in RunBegan
    labels: bool = False  # are its lines labelled by rank?


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is fixed for one ftrun."""

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
    # What the launcher is able to do: `ask` (the state of job and nodes), `requeue`, `probe` (a node by another way than our
    # connections), `replace`, `steps` (list those of the job).
    can: frozenset[Capability] = frozenset()
    why_not: WhyNot = WhyNot()
    remembered: Mapping[str, str] = field(default_factory=dict)  # node -> why earlier jobs of this user left it
    width: int = 0  # nodes of the step; 0: not ours to know
    batch_node: str = ""  # where ftrun runs
    # The nodes that Slurm gave the job, in its order, some of which may have been lost or given back before this ftrun began;
    # empty if not told.
    granted: tuple[str, ...] = ()
    submit_time: int = 0  # of the job or its last requeue, by slurmctld's clock
    # What nodes of this cluster needed after earlier requeues, this user's jobs', the latest last.
    clean_ups: tuple[CleanUpTook, ...] = ()
    process: OwnProcess = OwnProcess()
    earlier: EarlierRuns = field(default_factory=EarlierRuns)
    env: Environments = field(default_factory=Environments)
    output: OutputPlace = OutputPlace()

    @property
    def missing(self) -> tuple[str, ...]:
        """Nodes that the job has no more."""
        return tuple(node for node in self.granted if node not in set(self.nodes))
