"""What the ledger remembers: one frozen value a line. `at` is Unix seconds, UTC, in every record.

A job's past is the fold of these (history.py); nothing else about it is stored anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model.values import Value, field


class Record(Value):
    """What they have in common."""

    at: float


class RunBegan(Record):
    """An ftrun process came up."""

    run: str  # its id
    job: str
    cluster: str
    schedule: int  # requeues of the job before this scheduling
    step_key: str  # which ftrun of the script this is (a digest of its command)
    command: str
    nodes: str
    start_time: int = 0  # of the scheduling, by Slurm
    name: str = ""
    launcher: str = ""
    version: str = ""
    host: str = ""
    pid: int = 0
    budgets: Mapping[str, int] = field(default_factory=dict)  # name -> limit, of the policy in force
    number: int = 0  # of the job, as scontrol takes it
    cleanup_grace_s: float = -1.0  # for how long a clean-up before the next scheduling may hold it up, -1 without end
    batch_node: str = ""  # where ftrun and the script run
    pid_space: str = ""  # of `pid`, as the kernel names it: in a container the same number is another process
    size: int = 0  # nodes of the job as Slurm has scheduled it, those with which it is scheduled again; 0 if not told
    started: int = 0  # of process `pid`, in clock ticks since the boot, as its number may be another's later; 0 if not told
    submit_time: int = 0  # of the job, after a requeue the end of the clean-up, by slurmctld's clock; 0 if not told
    # where the ranks' errors go, a pattern of which `%t` (rank) and `%N` (node) are left; empty where it is no file
    log: str = ""
    labels: bool = False  # does srun write the rank before each line?
    # the policy in force, name -> value, of all that is not the default (model/settings/tree.py); empty in ledgers of before
    settings: Mapping[str, str] = field(default_factory=dict)


class SettingsFrom(Record):
    """Where the settings of ftrun `run` were set that RunBegan tells. places: name -> `policy.yaml, line 4`, `--ft-mode`."""

    run: str
    places: Mapping[str, str] = field(default_factory=dict)


class CallRead(Record):
    """How the call of ftrun `run` in its script was read. reading: of model/job.py. words: the same for people."""

    run: str
    reading: str
    words: str = ""


class AttemptBegan(Record):
    """The command is about to run on every slot."""

    run: str
    attempt: int  # over the whole life of the job, from 1
    schedule: int
    step_key: str
    starts: int
    nodes: str
    tasks: int
    step: str = ""
    # cpus, gpus: what the step has on the node of each slot, as Slurm writes such lists, `4(x3),2`; empty where nobody said it
    cpus: str = ""
    gpus: str = ""
    # when the step was asked for, Unix seconds; `at` where the step of the attempt before goes on; 0 if not told
    launched: float = 0.0


class SlotsChanged(Record):
    """Who fills the slots from the next attempt on."""

    run: str
    schedule: int
    nodes: tuple[str, ...]  # one a slot, in order
    filled: Mapping[str, str] = field(default_factory=dict)  # slot (as text) -> the node new there
    kept: tuple[int, ...] = ()  # of each slot, which one it was before; empty if all stay
    lent: Mapping[str, int] = field(default_factory=dict)  # node -> donor job
    ranks: tuple[int, ...] = ()  # those of the filled slots
    moved: tuple[int, ...] = ()  # of each rank, which one it was before; empty if all stay


class NodeLent(Record):
    """A donor job runs, and its node is ours. It is the job's to end."""

    run: str
    node: str
    job: int


class NodeRefused(Record):
    """A node that was to fill a slot and is not fit for it."""

    node: str
    why: str


class FaultSeen(Record):
    """A device fault on a node of the job, graded."""

    node: str
    device: str
    code: str
    name: str
    fault_class: str
    user_induced: bool = False


class TroubleSeen(Record):
    """The first sign that the attempt cannot go on; what follows is decided when all is known.

    since: when it began (the first rank ended, the node was last heard of, the ranks made no more progress), Unix seconds by
    the clock of whoever saw it; 0 if not told. drill: the faults behind it that were injected on purpose. hung_up: has a shim
    closed its connection, as its end does? None in ledgers of before. rank: that failed by itself, -1: none.
    """

    attempt: int
    cause: str
    what: str
    since: float = 0.0
    drill: tuple[str, ...] = ()
    hung_up: bool | None = None
    rank: int = -1

    @property
    def words(self) -> str:
        return f"{self.what} [drill: {', '.join(self.drill)}]" if self.drill else self.what


class StepReached(Record):
    """A training step that the program has told, twice an attempt at the most: the first one, and the first that is further than
    any attempt before has come. further: is it?
    """

    attempt: int
    step: int
    further: bool


class RankBegan(Record):
    """The command is about to run again as one rank, while the others go on. attempt, starts: as in AttemptBegan."""

    run: str
    attempt: int
    schedule: int
    step_key: str
    rank: int
    starts: int


class Diagnosed(Record):
    """What is behind the end of the attempt (verdict.Verdict says what the words mean)."""

    attempt: int
    signature: str
    error_class: str
    retriable: str
    confidence: str
    what: str
    evidence: tuple[str, ...] = ()
    blamed: Mapping[str, str] = field(default_factory=dict)  # blamed, suspects: node -> why
    suspects: Mapping[str, str] = field(default_factory=dict)
    ranks: tuple[int, ...] = ()  # that failed by themselves
    tasks: int = 0  # how many ranks the attempt had
    program: bool = False
    drill: bool = False  # it was injected on purpose
    # of a suspicion by words, rank (as text) -> node, for every rank that printed them
    shown: Mapping[str, str] = field(default_factory=dict)
    rank: int = -1  # rank, node, said, meaning, place, spread, advice: what it goes by (verdict.Lead); empty in ledgers of before
    node: str = ""
    said: str = ""
    meaning: str = ""
    place: str = ""
    spread: str = ""
    advice: str = ""
    end: str = ""  # how that rank ended by itself, in words; empty where it did not, and in ledgers of before
    because: tuple[str, ...] = ()  # ids of the pattern and of the rules that made it (Verdict.because)


class Reinstated(Record):
    """Nodes that words spoke against, and that are not to blame after all. signature: of the words. nodes: node -> why; those
    that the job has left for them it may use again.
    """

    attempt: int
    signature: str
    nodes: Mapping[str, str]


class ExperimentEnded(Record):
    """What came of running without `node` (Decided.without). well: it ran well elsewhere, else it failed there as well, and the
    node is not to blame. excluded: the job uses the node no more. signature: of the failure.
    """

    attempt: int
    node: str
    signature: str
    well: bool
    excluded: bool
    why: str


class HangSeen(Record):
    """The attempt stands still."""

    attempt: int
    sign: str  # io (no IO, no change of use), silence, exit, beat, stall
    what: str
    evidence: tuple[str, ...] = ()  # what speaks for it
    culprit: str = ""  # who hangs in one sentence, where that is known already
    ranks: tuple[int, ...] = ()  # ranks, nodes: likewise, empty if it is not
    nodes: tuple[str, ...] = ()
    hang_class: str = ""  # CulpritSeen's sign; level and the rest as there
    level: str = ""
    operation: str = ""
    cause: str = ""
    blamed: tuple[str, ...] = ()
    since: float = 0.0  # when progress ended, Unix seconds; 0 if not told
    left: str = ""  # why ftrun leaves it alone; empty if it answers it
    helps: str = ""  # as in CulpritSeen


class HangEnded(Record):
    """What was called a hang, and left alone, was none or is over. sign: as in HangSeen. what: by what that is seen."""

    attempt: int
    sign: str
    what: str = ""


class Paused(Record):
    """The job stood still for a while and went on by itself. busy: ranks that the others waited for did work."""

    attempt: int
    seconds: float
    busy: bool


class Advised(Record):
    """A common reason for what was seen, recognised by its evidence. name: fixed. advice: what a person can do."""

    attempt: int
    name: str
    what: str
    advice: str
    evidence: tuple[str, ...] = ()


class CulpritSeen(Record):
    """Who hangs, in C4D's words: RankCommHang, RankNonCommHang, ..."""

    attempt: int
    sign: str
    level: str  # Error, Warn, Info
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    operation: str
    cause: str
    evidence: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()  # nodes
    since: float = 0.0  # when work ended, Unix seconds
    limit_s: float = 0.0  # from then until it counts as a hang; 0: the ranks work, or nobody hangs
    helps: str = ""  # what a person can type to let stopped ranks go on, while they live; in ledgers of before in the evidence


class ProgramSaid(Record):
    """By the program interface. what: as in events.ProgramSaid, and `interval`: a staged one was set for the first time."""

    attempt: int
    rank: int
    what: str
    text: str


class Drilled(Record):
    """A fault injected on purpose, by the user's order (`ftslurm drill`). target: `rank 3`, `node n2`."""

    attempt: int
    fault: str
    target: str
    how: str


class OutputTo(Record):
    """Where the output of this ftrun goes. files: those that it and the batch script print into. ranks: (how shared, pattern)
    of those that srun makes (launchers/rank_logs.py). label: lines begin with the rank. logs: files that the ranks
    get of their own at each attempt (launchers/rank_logs.py), as JSON.
    """

    run: str
    files: tuple[str, ...] = ()
    ranks: tuple[tuple[str, str], ...] = ()
    label: bool = False
    logs: str = ""


class Waiting(Record):
    """Nothing goes on before this has come or its time is up. what: in words; empty: it is waited for no more, and the ranks
    run on. until: Unix seconds, at the latest; 0: nobody knows. helps: what a person can type to end the wait.
    """

    attempt: int
    what: str
    until: float = 0.0
    helps: str = ""


class Signalled(Record):
    """A signal that was not ours. by: what it turned out to be (warning, cancelled, ...)."""

    signal: str
    meaning: str


class Decided(Record):
    """A remedy, before it is carried out."""

    id: str  # unique in the ledger
    attempt: int
    rung: str  # rung, cause: by name
    cause: str
    why: str  # one sentence
    passed: tuple[tuple[str, str], ...] = ()  # each rung before it and why not that one
    isolate: Mapping[str, str] = field(default_factory=dict)  # node -> reason, from now on kept out of the job
    exclude: tuple[str, ...] = ()  # all nodes to keep out at this requeue
    cost: str = ""  # the budget it is taken from, or empty
    status: int = 0  # exit status if the job ends here
    # of isolate, those that nothing but words speaks against, with the signature of those words
    words: Mapping[str, str] = field(default_factory=dict)
    dead: tuple[str, ...] = ()  # nodes that do not live now
    reason: str = ""  # of `why`, what the rung itself says; empty in ledgers of before
    settings: tuple[tuple[str, str, str], ...] = ()  # (rung, setting, value) that each rung that was asked looked at; likewise
    without: str = ""  # an experiment: the node without which the job runs next, to see whether it fails there as well
    limit: str = ""  # where the job fails at a limit that people may raise: the setting that is it
    often: Mapping[str, str] = field(default_factory=dict)  # of words, node -> how often held against it, if told


class CleanUpBegan(Record):
    """The job was requeued by decision `id`, and its nodes clean up. since: Unix seconds by slurmctld's clock.

    usual: no node was dead, for which Slurm waits much longer. Written again when whoever requeues it has watched the other
    nodes from its own, which could not be clean meanwhile; others_clean: they were all clean by then.
    """

    id: str
    since: float
    usual: bool = True
    watched_s: float = 0.0
    others_clean: bool = False


class CarriedOut(Record):
    """What became of decision `id`. ok None: begun, end unknown. let_in: nodes that a requeue was to exclude, and without which
    Slurm could never start the job."""

    id: str
    ok: bool
    what: str = ""
    let_in: tuple[str, ...] = ()


class AttemptEnded(Record):
    """exits: how many ranks ended how, e.g. {"exited with status 0": 7}. step: the training step that its program said it
    had come to; 0: it told none. beats: how often it said that it lives. saved: how often it ended a section in which it saves.
    stopped: when no process of it was left any more, Unix seconds; 0 if not told. saves: events.Save -> the ranks (`0-2,5`) that
    were writing a checkpoint when they were told to stop, of which that became.
    """

    attempt: int
    exits: Mapping[str, int] = field(default_factory=dict)
    step: int = 0
    beats: int = 0
    saved: int = 0
    stopped: float = 0.0
    saves: Mapping[str, str] = field(default_factory=dict)


class Finished(Record):
    """ftrun is done. status: its exit status. what: one sentence, the last word on the job or this scheduling.

    unproven: silent nodes on which ranks of it may still run until their leases end.
    """

    run: str
    status: int
    what: str
    unproven: tuple[str, ...] = ()
    outcome: str = ""  # outcome.Outcome; empty in ledgers of before


class JobEnded(Record):
    """How Slurm says that the job ended, where no ftrun lived to record it: kept by whoever asked before Slurm forgot. at: its
    end, or of the record before it where Slurm does not say. state, what: as in JobSummary.
    """

    state: str
    what: str = ""


class Drill(Value):
    """A fault that is injected on purpose."""

    fault: str  # device-fault, rank-crash, hang, slow-rank, lost-node, or end (of a hang or slowness)
    rank: int = -1  # rank, node: what is hit, -1 and empty where it is the other
    node: str = ""
    device: str = ""  # device, code, kind, severity, heals: of a device fault
    code: str = ""
    kind: str = ""
    severity: str = "unknown"
    heals: bool = True
    status: int = 0  # status, signal: of a crash
    signal: int = 0
    share: float = 0.0  # of the time that a slow rank still gets

    @property
    def target(self) -> str:
        return f"node {self.node}" if self.node else f"rank {self.rank}"


class Requested(Record):
    """The owner of the job has asked for something (`ftslurm control`, `ftslurm drill`)."""

    number: int  # of the request, from 1
    by: str  # by, host: who, and where
    verb: str  # as in control.py
    host: str = ""
    nodes: tuple[str, ...] = ()  # nodes, rung: what it is about
    rung: str = ""
    checkpoints: int = 0  # it waits for so many, 0: for none; only those count that come after `after`
    after: float = 0.0  # after, until: Unix seconds
    until: float = 0.0  # at the latest then, 0: never
    files: str = ""  # a pattern of files that a checkpoint makes or changes, empty: as the settings say
    later: bool = False  # nothing is stopped for it
    target: int = 0  # the request that it undoes
    schedule: int = 0  # requeues of the job before
    drill: Drill | None = None


class RequestAnswered(Record):
    """ftrun `run` takes request `number`, or refuses it. text: what follows, or why not. attempt, node: of that ftrun."""

    run: str
    number: int
    ok: bool
    text: str
    attempt: int = 0
    node: str = ""


class RequestDone(Record):
    """What was asked for is carried out (the decision that follows says how), or cannot be after all (ok false)."""

    run: str
    number: int
    ok: bool
    text: str
    attempt: int = 0


class CheckpointSeen(Record):
    """The program has written a checkpoint that request `request` waits for. sign: `program` says so, or a `file` shows it.

    where: the file, or the rank. left: how many more it waits for.
    """

    attempt: int
    request: int
    sign: str
    where: str
    left: int = 0


class IterationSeen(Record):
    """What progress.file held after the attempt (0: before the first of this command), and how many attempts in a row by then had
    failed without the progress that is wanted."""

    attempt: int
    iteration: int
    in_vain: int = 0


KINDS: Mapping[str, type] = {
    name: kind for name, kind in vars().items() if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
}
