"""All that can happen to a supervised job. Events are facts: they say what was seen, never what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from ftslurm.model.collectives import EntryTimes, RankView, WaitTimes
from ftslurm.model.devices import Fault, HealResult
from ftslurm.model.exits import ExitStatus
from ftslurm.model.job import Task
from ftslurm.model.nodes import Topology
from ftslurm.model.record import Requested
from ftslurm.model.values import Value, field
from ftslurm.model.verdict import Piece, Verdict


class Event(Value):
    """What the judge is told."""


class Now(Value):
    """The two clocks at one moment. mono: seconds, for durations on this node; unix: Unix seconds, for the record."""

    mono: float
    unix: float


class Begun(Event):
    """ftrun is up and has read the ledger."""


class TaskArrived(Event):
    """The shim of one task has introduced itself. expected: how many tasks the step has."""

    task: Task
    expected: int
    step: str


class RankClaimedTwice(Event):
    """The shims of two tasks of one step say that they are `rank`."""

    rank: int


class RankStarted(Event):
    """The user command runs as `rank`. attempt: which start this belongs to."""

    rank: int
    attempt: int
    pid: int


class RankExited(Event):
    """The user command of one rank has ended, seen by its parent. at: Unix seconds on its node.

    output: its last words, empty if it ended well. oom: the kernel has killed it, or a process of it, for want of memory; None:
    nobody knows.
    stopped: its shim had been told to stop it, so the status is no evidence.
    """

    rank: int
    attempt: int
    status: ExitStatus
    at: float
    output: tuple[Piece, ...] = ()
    oom: bool | None = None
    stopped: bool = False


class Save(Enum):
    """What became of the checkpoint that a rank was writing when it was told to stop, as far as its program tells."""

    NONE = ""  # it wrote none
    WHOLE = "whole"
    CUT = "cut"


class RankStopped(Event):
    """No process of this rank's attempt is left, or `left` (pids) could not be ended even by SIGKILL.

    free_port: a TCP port that was free on the node just now, for the next rendezvous.
    """

    rank: int
    attempt: int
    left: tuple[int, ...] = ()
    free_port: int = 0
    save: Save = Save.NONE


class RankUnstartable(Event):
    """The command of `rank` could not be executed at all. status: the errno, 2 for not found, 13 for not permitted."""

    rank: int
    attempt: int
    status: int
    why: str


class Hangup(Enum):
    """What the end of a connection says of the other side."""

    NONE = "none"  # nothing: the way to it may be cut
    RESET = "reset"  # its kernel has ended it, or a firewall between us
    CLOSED = "closed"  # its process has ended: while it lives it closes none without another


class ShimLost(Event):
    """The connection to a shim broke without a farewell, and it has not called again. Says nothing of the rank below it."""

    rank: int
    why: str
    hangup: Hangup = Hangup.CLOSED


class ShimLeft(Event):
    """A shim that was let go has closed its connection."""

    rank: int


class RankPaused(Event):
    """Slurm is about to stop the rank with its shim, as it does with all of a suspended job. The shim was promised that its
    lease does not run out before it is heard of again (`paused` false)."""

    rank: int
    paused: bool


class NodeSilent(Event):
    """No shim and no agent of `node` has been heard of for `silent_s`. No proof of anything: it may be cut off."""

    node: str
    silent_s: float


class NodeHeard(Event):
    """A node that was silent is heard of again."""

    node: str


class NodeProbed(Event):
    """What another way to the node has shown. alive None: nothing; False: it cannot run anything. what: the evidence."""

    node: str
    alive: bool | None
    what: str


class NodeChecked(Event):
    """What a look at a node has shown that ranks are to go to. good None: nothing can be said of it. there: kind -> how many
    devices, None where nobody has counted them."""

    node: str
    good: bool | None
    why: str = ""
    there: Mapping[str, int] | None = None


class NodeBorrowed(Event):
    """A donor job runs on `node`; none was to be had if that is empty. slot: as it was asked for. job: without a node, one that
    could not be ended. away: of a reason that the return of slurmctld may mend."""

    slot: int
    node: str
    job: int = 0
    why: str = ""
    away: bool = False


class DonorSubmitted(Event):
    """A donor job waits in the queue for the node that `slot` shall get; or it has it, and the node boots (told once more)."""

    slot: int
    job: int
    boots: str = ""  # the node


class LoansEnded(Event):
    """Donor jobs were told to end. left: those that Slurm has not taken that for; they hold their nodes still."""

    left: tuple[int, ...] = ()


class NodesReleased(Event):
    """Whether Slurm took nodes of the allocation back."""

    nodes: tuple[str, ...]
    ok: bool
    why: str = ""


class StepsListed(Event):
    """Steps of the job that hold nodes, as Slurm says; None where it does not answer."""

    steps: frozenset[str] | None


class StepEnded(Event):
    """The launcher's own process (srun) has ended; `status` is no evidence for any rank. cancelled: the steps that a person has
    cancelled, by srun's words, as far as we can read them."""

    status: ExitStatus
    cancelled: frozenset[str] = frozenset()


class PartEnded(Event):
    """Of a step with a launcher's process for each of several jobs, one has ended, and these ranks of it are not here."""

    ranks: tuple[int, ...]


class TasksEnded(Event):
    """srun says of tasks on these nodes that they have ended. why: what it or pyxis said before, empty if nothing."""

    nodes: tuple[str, ...]
    why: str


class AgentArrived(Event):
    """The agent of a node is up. kinds: the device kinds it can read, empty for none."""

    node: str
    kinds: tuple[str, ...]


class AgentLost(Event):
    node: str
    why: str


class DevicesSeen(Event):
    """One look at the devices of a node. asked: answers a question of ours. error: why there is no answer. there: kind -> how
    many it has, as far as is known."""

    node: str
    faults: tuple[Fault, ...]
    asked: bool = False
    error: str = ""
    there: Mapping[str, int] = field(default_factory=dict)


class HealingDone(Event):
    """The agent of `node` has tried to heal; one result a device."""

    node: str
    results: tuple[HealResult, ...]


class SignalSeen(Event):
    """A signal that we did not send. rank: the task whose shim saw it, None when ftrun itself got it. again: the ranks that heard
    it as a warning have ended, and the next ones are to hear it."""

    number: int
    rank: int | None = None
    again: bool = False


class Preempted(Enum):
    """What Slurm does to a job at the end of the grace of a preemption that it has announced."""

    REQUEUED = "requeued"
    ENDED = "ended"
    UNKNOWN = "unknown"


class SlurmAnswered(Event):
    """What Slurm said of our job and its nodes. preempted: None where no preemption is announced; then end_time is the end of its
    grace.
    """

    state: str = ""  # base state of the job
    batch: bool = False  # batch, requeueable, end_time (Unix seconds): of the job
    requeueable: bool = False
    end_time: int = 0
    bad_nodes: tuple[tuple[str, str], ...] = ()  # (name, Slurm's words) of the job's nodes that are down or failing
    usable: frozenset[str] | None = None  # all nodes that fit the job, down ones too, by what it asks for; None if not known
    idle: frozenset[str] = frozenset()  # of those, nodes outside of the job that run nothing now
    node_count: int = 0  # what it asks for
    least: int = 0  # the fewest nodes with which Slurm starts it again, 0: node_count
    without: frozenset[str] | None = None  # what Slurm was asked to do without, None: it was not asked whether the job fits then
    fits: bool | None = None  # could the job ever start without those? None: nobody knows, so the nodes are counted
    error: str = ""  # it did not say anything
    epilog: bool = False  # the site has one, so that a clean-up takes longer
    away: bool = False  # of an error that the return of slurmctld may mend
    late_s: float = 0.0  # how long the answer took
    up_since: int = 0  # of slurmctld, Unix seconds, 0 if not known
    loans_over: frozenset[int] = frozenset()  # donor jobs of ours that have ended, or are about to
    excluded: frozenset[str] = frozenset()  # nodes that the job is kept off now
    slurmd_timeout_s: float = 0.0  # for so long Slurm waits for a node that says nothing; 0 if not told
    preempted: Preempted | None = None
    to_be_held: bool = False  # somebody has held the job for when it waits again
    topology: Topology = Topology()


class RequeueEnded(Event):
    """What became of a requeue. why: if it is not ok, the reason. away: which the return of slurmctld may mend. recorded: who
    has requeued the job has written that into the ledger.
    """

    ok: bool
    why: str = ""
    away: bool = False
    recorded: bool = False


class CutOff(Event):
    """ftrun is in touch neither with most nodes nor with slurmctld: it may be the one who is cut off, and renews no lease."""


class InTouch(Event):
    """It is again."""


class LedgerFailed(Event):
    """A record could not be written. why: sentence for people."""

    why: str


class ControlAsked(Event):
    """The owner of the job has written a request into the ledger (`ftslurm control`), and this ftrun has not seen it yet."""

    request: Requested


class IterationRead(Event):
    """What progress.file holds; None: it is not there, or holds no number. attempt: after which that was asked, 0: before all."""

    attempt: int
    iteration: int | None


class CheckpointMade(Event):
    """A file that a checkpoint makes or changes is there, and is written no more. pattern: that it was looked for by."""

    pattern: str
    path: str


class QuietSeen(Event):
    """No process of the job on `node` has done IO for `quiet_s` seconds; 0: one has again. what: the evidence, in words.

    attempt: here and below, the start of the ranks that an agent tells of; on a node, the latest. 0: of none that is known.
    """

    node: str
    quiet_s: float
    what: str = ""
    attempt: int = 0


class UseSampled(Event):
    """Has the use of the node's devices (or CPUs) changed in the sampled time? unchanged None: it could not be told."""

    node: str
    unchanged: bool | None
    what: str = ""
    attempt: int = 0


class RankSilent(Event):
    """The rank has printed nothing for `silent_s` seconds; 0: it has again."""

    rank: int
    silent_s: float


class RankWords(Event):
    """What a rank that runs has printed last, as it was asked for."""

    rank: int
    attempt: int
    output: tuple[Piece, ...] = ()


class BeatOverdue(Event):
    """A rank that reports its life has not done so in time. why: one sentence; empty: it does again."""

    rank: int
    why: str
    attempt: int = 0


class ProgramSaid(Event):
    """The program of a rank wants something: `message` for people, `retriable` words, `shutdown`, `exclude`; a `setting` of
    AIMaster's; `limits`: the timeouts that it has calculated hold from now on; `checkpoint`: one is complete. `probe`: why
    there is none in it, which its agent tells. place: where it ends in the rank's notes, as its agent and its shim may both
    tell it; 0: nowhere.
    """

    rank: int
    what: str
    words: tuple[str, ...]
    attempt: int = 0
    place: int = 0


class StallSeen(Event):
    """How the ranks of `node` get on with their collectives, as their probes tell; said again when it changes."""

    node: str
    probed: int  # how many ranks have a probe and a process group
    stalled_s: float = 0.0  # since none of them has got on, 0: they do
    paused_s: float = 0.0  # with stalled_s 0, how long the stall was that has just ended
    begun: bool = True  # has any got on since its start?
    usual_s: float | None = None  # the median time between two signs of it, None while there were too few
    # the hang interval that a program has set for where it is now, -1: it has switched detection off, None: it has not
    stage_s: float | None = None
    reports: bool = False  # a program tells its life itself, and is judged by that
    left: int = 0  # of these, how many have given up all their groups
    # for how long ranks wait where groups are made, or in a store, since the last of them came; 0: none does, or not for long
    meets_s: float = 0.0
    attempt: int = 0


class RanksCompared(Event):
    """How long the ranks of `node` waited for each other lately, or when they entered their collectives."""

    node: str
    waits: tuple[WaitTimes, ...] = ()
    enters: tuple[EntryTimes, ...] = ()
    attempt: int = 0


class StageSet(Event):
    """The program of a rank has set the hang interval for where it is now: seconds, -1: off, None: none any more."""

    rank: int
    seconds: float | None
    attempt: int = 0


class Progressed(Event):
    """The programs on `node` have come to this training step; 0: they tell none. beats: of the rank that has beaten most. saved:
    how often it has ended a section in which it saves; saving_s: the longest of those, seconds."""

    node: str
    step: int
    attempt: int = 0
    beats: int = 0
    saved: int = 0
    saving_s: float = 0.0


class RanksAlive(Event):
    """signs: rank of `node` -> seconds since its last sign of life but output, and what that was."""

    node: str
    signs: Mapping[int, tuple[float, str]]
    attempt: int = 0


class EvidenceTaken(Event):
    """What the agent of `node` has found out about its ranks before they are stopped. text: for people; views: each rank."""

    node: str
    text: str
    views: tuple[RankView, ...] = ()
    attempt: int = 0


class Diagnosed(Event):
    """What is behind the end of the attempt; rank: of that one alone. What follows from it goes into the ledger."""

    attempt: int
    verdict: Verdict
    rank: int | None = None


class Advised(Event):
    """Common reasons for the hang of the attempt, each by name: what it is, what to do, what speaks for it."""

    attempt: int
    hints: tuple[tuple[str, str, str, tuple[str, ...]], ...] = ()


class StoodStill(Event):
    """ftrun itself was stopped, or without CPU, for about so long: nobody was late in that time."""

    seconds: float


class TimePassed(Event):
    """The time the judge asked to be woken at has come."""


# What agents tell of ranks. Their connections are not those of the shims, so it may arrive when other ranks run already.
AgentTold = (
    QuietSeen | UseSampled | BeatOverdue | ProgramSaid | StallSeen | RanksCompared | StageSet | Progressed | RanksAlive
    | EvidenceTaken
)  # fmt: skip
