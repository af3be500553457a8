"""All that can be decided. A decision is a value: it names what is to be done and carries no means of doing it.

`Remember` is written to the ledger; the loop writes all records of one answer, synced, before it carries out the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.model.devices import Fault
from ftslurm.model.job import Layout, Share
from ftslurm.model.nodes import Near
from ftslurm.model.record import Record
from ftslurm.model.values import Value, field
from ftslurm.model.verdict import RankEnd


class Decision(Value):
    """What the judge wants done."""


class Remember(Decision):
    """Write `record` down. vital: what follows may not be done if it cannot be written."""

    record: Record
    vital: bool = False


class LaunchStep(Decision):
    """Bring up one shim a task with the user's srun options. layout: where each runs, None as srun places them.

    overlap: beside steps that Slurm still lists, and which nothing is left of. shares: by slot, what the step had of its node
    when it first ran; empty where nobody knows.
    """

    layout: Layout | None = None
    overlap: bool = False
    shares: tuple[Share, ...] = ()


class WatchNodes(Decision):
    """Bring up one agent on each of `nodes` that has none. lent: node -> the donor job that it belongs to. prepare_in_s: when to
    load what a failure will need, in the time that there is while the ranks run."""

    nodes: tuple[str, ...]
    lent: Mapping[str, int] = field(default_factory=dict)
    prepare_in_s: float = 0.0


class StartRanks(Decision):
    """Run the command in the shims of the ranks in env. env: rank -> variables to set on top of the task's own. cycle: starts of
    the command before this one, which files of ranks have in their names."""

    attempt: int
    env: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    cycle: int = 0


class StopRanks(Decision):
    """End every process of the attempt: SIGTERM, after `grace_s` SIGKILL, and proof that none is left.

    asked: Slurm has sent the SIGTERM already; a second one may cut short the checkpoint that the first one asked for.
    ranks: only these, None for all. saves: a rank that is writing a checkpoint gets the SIGTERM once that is written.
    """

    attempt: int
    grace_s: float
    kill_wait_s: float
    asked: bool = False
    ranks: tuple[int, ...] | None = None
    saves: bool = False


class SignalRanks(Decision):
    """Pass a signal on to every rank, or to `ranks`. group: also to the processes of its process group, as torchrun does."""

    number: int
    ranks: tuple[int, ...] | None = None
    group: bool = False


class LookAtDevices(Decision):
    """Ask every agent for a fresh look, or that of `node` alone."""

    node: str = ""


class AskSlurm(Decision):
    """Ask Slurm for the state of the job and of its nodes; and whether it could ever start again `without` these nodes."""

    without: tuple[str, ...] = ()


class ListSteps(Decision):
    """Ask Slurm which steps of the job hold its nodes."""


class ProbeNodes(Decision):
    """Find out by another way than our own connections whether these nodes can still run anything."""

    nodes: tuple[str, ...]
    limit_s: float


class HealDevices(Decision):
    """Let the devices heal. devices: node -> (device, codes); only when no process of the job is left there."""

    devices: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]
    may_reset: bool
    wait_s: float
    reset_wait_s: float


class EndStep(Decision):
    """Let the shims go. Those whose command failed by itself end as it did, the others with `status`.

    Where a command is to blame that is 0, so that srun's messages and the accounting name it alone. forget: all end with
    `status`, as the step is to be started again.
    """

    status: int
    forget: bool = False


class KillStep(Decision):
    """End the step through the launcher: some shims cannot be reached."""


class AbandonStep(Decision):
    """End the launcher's own process: every shim that could be told to go has gone, and it would wait for a dead node.

    silently: Slurm hears nothing of it. It knows a step by its number alone, which another scheduling of the job has by now.
    """

    silently: bool = False


class CheckNode(Decision):
    """Look at a node before ranks go there: its devices and the health command. lender: the donor job, 0 for our own."""

    node: str
    lender: int
    limit_s: float


class BorrowNode(Decision):
    """Submit a donor job for one more node, none of `exclude`, and wait for it up to `wait_s`. slot: for which."""

    slot: int
    exclude: tuple[str, ...]
    wait_s: float
    near: Near = Near()


class EndLoans(Decision):
    """These donor jobs have done their work."""

    jobs: tuple[int, ...]


class DismissAgents(Decision):
    """The agents of these nodes have nothing to tell any more."""

    nodes: tuple[str, ...]


class ReleaseNodes(Decision):
    """Give nodes of the allocation back to Slurm."""

    nodes: tuple[str, ...]


class Start(Value):
    """When the job may start again, in seconds from the requeue. watch_s: 0, or for how long the other nodes may be watched
    first, since nothing is known of their clean-up. epilog: does a program clean up on each node?
    """

    in_s: float
    watch_s: float = 0.0
    epilog: bool = False


class Requeue(Decision):
    """Give the job back to Slurm, kept off `exclude`. decision: id of the record it carries out. clean_up: before that."""

    decision: str
    exclude: tuple[str, ...]
    start: Start
    allow_first: bool = False
    clean_up: CleanUp | None = None


class CleanUp(Value):
    """The job's own clean-up, on each of `nodes`. wait_s: for it to end, -1: as long as it may take at all."""

    argv: tuple[str, ...]
    nodes: tuple[str, ...]
    wait_s: float


class WatchRanks(Decision):
    """Let agents watch for life below their shims, and read their ranks' pages.

    ranks: node -> (rank, pid of its shim, number of its start). quiet_s: tell after so long without IO, 0: do not look.
    stall_s: the same without any collective. steps: node -> the step there, as its shims name it. limits: keys of ft_launcher's
    configuration that the program has calculated anew since the job began.
    """

    ranks: Mapping[str, tuple[tuple[int, int, int], ...]]
    quiet_s: float
    steps: Mapping[str, str] = field(default_factory=dict)
    stall_s: float = 0.0
    limits: Mapping[str, Any] = field(default_factory=dict)


class SampleUse(Decision):
    """Let every agent sample the use of devices, or of CPUs where there are none, for `window_s`."""

    window_s: float


class TakeEvidence(Decision):
    """Let every agent find out what its ranks are doing; `limit_s` is all the time there is."""

    limit_s: float


class AskWords(Decision):
    """Let every shim tell what its rank has printed last; the rank runs on."""


class CompareRanks(Decision):
    """Let every agent tell how long its ranks waited for each other lately."""


class SetIntervals(Decision):
    """From now on shims tell of silence, and agents of no IO, after as many seconds; 0: not at all."""

    silence_s: float
    quiet_s: float


class KeepEvidence(Decision):
    """Keep what an agent found with the ledger."""

    attempt: int
    node: str
    text: str


class TellOthers(Decision):
    """Let later jobs of this user know that the job leaves these nodes for a fault. nodes: node -> why. reinstated: nodes that
    it uses again, so that what it has said of them counts no more. failed: node -> why, where it only failed,
    and ran well elsewhere.
    """

    nodes: Mapping[str, str]
    reinstated: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


class DrillRanks(Decision):
    """Inject a fault on purpose. what: `crash` (with status or signal), `hang`, `slow` (with share), `lost`, `end`."""

    ranks: tuple[int, ...]
    what: str
    status: int = 0
    signal: int = 0
    share: float = 0.0


class DrillDevice(Decision):
    """Let the agent of `node` report `code` on `device` on purpose. heals: it is gone once the devices are healed."""

    node: str
    device: str
    code: str
    severity: str
    kind: str
    heals: bool = True


class ReadIteration(Decision):
    """Read progress.file; the answer is IterationRead. attempt: that has just ended, 0: none has begun."""

    attempt: int
    path: str


class WatchCheckpoints(Decision):
    """Look for files that match these patterns and are new or changed from now on, and tell of each once it has been the same for
    `settle_s`. patterns: none to look no more."""

    patterns: tuple[str, ...]
    settle_s: float


class Say(Decision):
    """One line for the user, on stderr. quiet: only with --ft-verbose."""

    text: str
    quiet: bool = False


class ShowCard(Decision):
    """What has just been written down of a failure and its answer, for the user, as a card. quiet: as in Say."""

    quiet: bool = False


class KeepOutput(Decision):
    """Keep the output of this scheduling: Slurm may begin the script's file anew in the next one."""


class ShowPhase(Decision):
    """Set the job's comment in Slurm to the phase of the job. what: `waiting for ...`; empty: the attempt runs. attempt: 0: the
    job has ended, empty the comment. until: Unix seconds, at the latest; 0: unknown.
    """

    attempt: int
    what: str
    until: float = 0.0


class Diagnose(Decision):
    """Find out what is behind the end of the attempt; the answer is Diagnosed. It takes a second or more where ranks print much.

    rank: of an async job, the one that has ended while all others run; None for all. bad: node -> why it is taken for broken.
    own_words: that the program has called retriable. progressed: has the job ever got anywhere?
    """

    attempt: int
    ends: tuple[RankEnd, ...]
    faults: tuple[Fault, ...] = ()
    bad: Mapping[str, str] = field(default_factory=dict)
    own_words: tuple[str, ...] = ()
    progressed: bool = False
    rank: int | None = None


class Advise(Decision):
    """Find common reasons for a hang; the answer is Advised. evidence: node -> what was found there while the ranks hung."""

    attempt: int
    ends: tuple[RankEnd, ...]
    evidence: Mapping[str, str] = field(default_factory=dict)


class Finish(Decision):
    """ftrun ends with `status`."""

    status: int
