"""A failure trace: the job, the cluster it runs in, and what goes wrong at what time. Values only; parsing is in `reading`.

Times in seconds; `at` counts from the first start of the job. Nodes are counted from 1: those of the job first, then the others.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Any

from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.values import dataclass
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable


class Kind(str, Enum):
    """What goes wrong."""

    DEVICE = "device"  # a fault code on a device of a node
    CRASH = "crash"  # a rank exits with an error
    HANG = "hang"  # the ranks make no more progress
    NODE_DEATH = "node-death"  # a node loses its power or its kernel
    PREEMPTION = "preemption"  # Slurm takes the nodes away, with a warning or without, and requeues the job
    REQUEUE = "requeue"  # a person or a site's tool gives the job back to Slurm


def setting(default: Any, what: str, source: str = "") -> Any:
    """A field of JobPlan. what: the help. source: where the default comes from; empty: it is a plain assumption."""
    return field(default=default, metadata={"what": what, "source": source})


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The job, its cluster and how long things take there."""

    nodes: int = setting(1, "nodes that ranks run on; nodes.spares of a policy come on top")
    tasks_per_node: int = setting(1, "tasks on each node")
    other_nodes: int = setting(0, "further nodes of the cluster, free to become spares, loans or replacements")
    until_s: float = setting(0.0, "how long the trace is; 0: one day after its last fault")
    work_s: float = setting(0.0, "training time after which the job is complete; 0: it trains until the end of the trace")
    step_s: float = setting(10.0, "one training step")
    checkpoint_s: float = setting(1800.0, "training time between two checkpoints; a restart begins at the last one")
    save_s: float = setting(0.0, "how long a checkpoint stops the training")
    saves_on_signal: bool = setting(False, "does the program save when it is warned by SIGTERM?")
    program_start_s: float = setting(60.0, "from the start of the ranks to their first step")
    launch_s: float = setting(0.39, "from the request for the step to its tasks", "`ftrun true`, 4 nodes")
    stop_s: float = setting(0.036, "from the order to stop to the proof that no process is left", "restart in place")
    diagnosis_s: float = setting(0.39, "the verdict on a failure", "verdict on 1,000 ranks")
    requeue_s: float = setting(6.0, "from ftrun's requeue to the next start of the script", "requeue, quiet machine")
    plain_requeue_s: float = setting(122.0, "from a requeue without ftrun to the next start", "plain `scontrol requeue`")
    borrow_s: float = setting(1.3, "until a donor job lends a free node", "its chip breaks, and no spare is there")
    node_known_s: float = setting(1.1, "from silence to the proof that a node is dead", "a node of four loses its power")
    slurmd_timeout_s: float = setting(300.0, "until Slurm itself marks a dead node down", "SlurmdTimeout")
    slurm_s: float = setting(0.05, "an answer of slurmctld")
    device_look_s: float = setting(10.0, "from one look of an agent at its devices to the next")
    heal_s: float = setting(5.0, "until a device that heals has healed")
    device_crash_s: float = setting(60.0, "until the ranks of a node with a device fault exit, if nobody has stopped them")
    repair_s: float = setting(86400.0, "until a dead node, or one with a fault that does not heal, is repaired")
    person_s: float = setting(28800.0, "until a person requeues a job that hangs and that nothing restarts")
    probe: bool = setting(True, "do the ranks show their collectives (Python with torch, JAX or mpi4py; hang.watch)?")

    @property
    def cluster(self) -> int:
        return self.nodes + self.other_nodes


@dataclass(frozen=True, slots=True)
class Real:
    """What the ledger of a real job tells of a fault besides.

    after_s: the ranks had run for so long when it came; where they do not run at its time, it comes so long after their next
    start. outage: faults of the same one come together, those of another one after a start of the ranks. graded: a device's
    fault, for codes that no catalogue knows. noticed_s: until an agent saw that. suspect: the verdict suspects the node, but does
    not blame it.
    """

    after_s: float
    outage: int = 0
    graded: DeviceFault | None = None
    noticed_s: float = 0.0
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    at: float
    kind: Kind
    node: int = 0  # from 1, 0: where `rank` runs then
    rank: int = 0
    line: int = 0  # in its file, 0: in none; of a real job, its place in the trace, from 1
    # code, device, vendor, heals, for_s: of a device fault (heals None: as its class says); for_s also of a dead node, 0:
    # repair_s
    code: str = ""
    device: str = "0"
    vendor: str = ""
    heals: bool | None = None
    for_s: float = 0.0
    status: int = 1  # status, signal, error_class, retriable, confidence, signature, blames, program: of a crash and its verdict
    signal: int = 0
    error_class: ErrorClass = ErrorClass.UNKNOWN
    retriable: Retriable = Retriable.UNKNOWN
    confidence: Confidence = Confidence.WEAK
    signature: str = ""
    blames: bool = False
    program: bool = False
    network: bool = False  # the hang is inside a collective, and the connections of the node are stuck
    hangs_up: bool = False  # a node whose connections close when it dies, as they do where its kernel lives on
    # warning_s, wait_s: of a preemption, and wait_s of a requeue: how long the job waits in the queue besides
    warning_s: float = 0.0
    wait_s: float = 0.0
    real: Real | None = None  # of a fault that a real job had


@dataclass(frozen=True, slots=True)
class Trace:
    """faults: in the order of time. place: its name, for people. names: of the nodes, where they have some; the others are
    numbered. counts_end: is the time after a failure lost, until the end of the trace? requeue_seen: was `requeue_s` measured,
    with all that a start of this job had to wait for? ftrun_apart: does ftrun run on none of the nodes, as with the local
    launcher? alike: further nodes of the job that are not played, since nothing happens to them (alike.py)."""

    plan: JobPlan
    faults: tuple[Fault, ...] = ()
    place: str = ""
    names: tuple[str, ...] = ()
    counts_end: bool = True
    requeue_seen: bool = False
    ftrun_apart: bool = False
    alike: int = 0

    @property
    def until(self) -> float:
        return self.plan.until_s or max((fault.at for fault in self.faults), default=0.0) + 86400.0
