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
class RunFacts:
    """What is fixed for one ftrun.

    width: nodes of the step; 0: not ours to know. no_donor: why no node can be borrowed. no_swap: why none can be
    replaced by any other (then `can` has no `replace`). no_split: why nodes that have different numbers of CPUs cannot have an
    srun each, where memory by CPU asks for that. batch_node: where ftrun runs.
    slurm_env: what the batch script's environment says of the job (SLURM_*). granted: the nodes that Slurm gave the job, in
    its order, some of which may have been lost or given back before this ftrun began; empty if not told.
    unproven: node -> why ranks of an earlier ftrun may still run there. killed: those of them where they have ended when
    Slurm lists no step of theirs, since all that is known against them is that their ftrun was killed. cut_short: how the
    scheduling before ended, where its ftrun did not live to write it. steps_over: of earlier ftruns in this scheduling,
    whatever Slurm thinks of them (their leases, though, may outlive their ftrun). loans_left: donor jobs that nobody has ended.
    beside: does Slurm list steps, and none but those of steps_over, in a job that has lost a node? The node cannot say that
    nothing is left there.
    submit_time: of the job or its last requeue, by slurmctld's clock. clean_ups: what nodes of this cluster needed after
    earlier requeues, this user's jobs', the latest last. output: where it goes, None where nobody knows.
    log, labels: where the ranks' errors go, as in RunBegan. hidden: the variable of ftrun's environment that shows programs no
    device, where Slurm gives them none either.
    number: of the job, as scontrol takes it. remembered: node -> why earlier jobs of this user left it. sdk_env: what the
    program interface in the ranks has to know.
    user_env: names of the variables the user has set. can: what the launcher is able to do: `ask` (the state of job
    and nodes), `requeue`, `probe` (a node by another way than our connections), `replace`, `steps` (list those of the job).
    """

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
    version: str = ""
    host: str = ""
    pid: int = 0
    pid_space: str = ""
    started: int = 0
    number: int = 0
    user_env: frozenset[str] = frozenset()
    can: frozenset[Capability] = frozenset()
    remembered: Mapping[str, str] = field(default_factory=dict)
    sdk_env: Mapping[str, str] = field(default_factory=dict)
    unproven: Mapping[str, str] = field(default_factory=dict)
    killed: frozenset[str] = frozenset()
    steps_over: frozenset[str] = frozenset()
    loans_left: tuple[int, ...] = ()
    width: int = 0
    no_donor: str = ""
    no_swap: str = ""
    no_split: str = ""
    batch_node: str = ""
    slurm_env: Mapping[str, str] = field(default_factory=dict)
    cut_short: tuple[Record, ...] = ()
    granted: tuple[str, ...] = ()
    beside: bool = False
    submit_time: int = 0
    clean_ups: tuple[CleanUpTook, ...] = ()
    log: str = ""
    labels: bool = False
    output: OutputTo | None = None
    hidden: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Nodes that the job has no more."""
        return tuple(node for node in self.granted if node not in set(self.nodes))
