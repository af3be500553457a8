"""What is known of the attempt under way: which ranks ended, were stopped, or were lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ftslurm.model.collectives import RankView
from ftslurm.model.devices import Fault
from ftslurm.model.events import Hangup, RankExited, RankStopped, RankUnstartable, Save
from ftslurm.model.exits import ExitStatus, of_step
from ftslurm.model.job import Task
from ftslurm.model.record import Drill
from ftslurm.model.text import fold_numbers
from ftslurm.model.values import Value, field
from ftslurm.model.verdict import Piece, RankEnd, Verdict

_STALLS = frozenset({"hang", "slow-rank"})  # drills


class StepEnd(Value, frozen=False):
    """How far the step of the attempt has come to its end."""

    gone: bool = False  # the launcher's process has ended, or we have given it up
    ended: bool = False  # the launcher itself says that nothing of the step is left
    abandoned: bool = False  # we have ended it ourselves
    unended: str = ""  # why the old step may still be there, and no other may start
    cancelled: int = 0  # with which srun ended where a person has cancelled the step; 0: nobody has

    def give_up(self) -> None:
        self.gone = True

    def cannot_end(self, why: str) -> None:
        self.gone, self.unended = True, why

    def end(self) -> None:
        """The launcher has; by our own will it proves nothing."""
        self.gone, self.ended = True, not self.abandoned

    def none(self, none: bool = True) -> None:
        """There is no step, nor was there one."""
        self.gone = self.ended = none


class ShimEnds(Value, frozen=False):
    """Ranks whose shim has hung up."""

    closed: set[int] = field(default_factory=set)
    reset: set[int] = field(default_factory=set)  # of those, by a reset
    departed: set[int] = field(default_factory=set)  # after it was let go


class NodeProofs(Value, frozen=False):
    """What is known against nodes of the attempt; each: node -> why."""

    gone: dict[str, str] = field(default_factory=dict)  # lost, with a second proof
    doubted: set[str] = field(default_factory=set)  # to be asked a second time for that
    left_before: frozenset[str] = frozenset()  # of those gone, nodes that the job had left already, and yet was given again
    called_back: set[str] = field(default_factory=set)  # on loan, whose ranks were told by Slurm to end
    returned: dict[str, str] = field(default_factory=dict)  # of those, that we have no more
    drilled_away: dict[str, str] = field(default_factory=dict)  # taken for lost in a drill
    asked_out: dict[str, str] = field(default_factory=dict)  # that the owner of the job wants to leave now

    def lose(self, node: str, why: str) -> None:
        self.gone[node] = why

    def lose_before(self, nodes: Mapping[str, str], left: Collection[str]) -> None:
        """The job has them no more. left: nodes that it had left."""
        self.gone = dict(nodes)
        self.left_before = frozenset(self.gone.keys() & {*left})

    def find(self, node: str) -> None:
        """It is heard of again."""
        self.gone.pop(node, None)


class DeviceTrouble(Value, frozen=False):
    """What the devices showed, and what became of healing them."""

    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)  # when the trouble began
    unhealed: dict[str, str] = field(default_factory=dict)  # node -> why its devices did not heal
    to_heal: dict[str, frozenset[str]] = field(default_factory=dict)  # node -> devices whose healing is under way
    looked: set[str] = field(default_factory=set)  # nodes whose devices were looked at after the trouble began
    seen: set[str] = field(default_factory=set)  # of those that have some, which answered

    def look(self, nodes: Iterable[str], seen: bool = False) -> None:
        """They have been looked at, or are not waited for any more."""
        nodes = tuple(nodes)
        self.looked.update(nodes)
        if seen:
            self.seen.update(nodes)

    def heal(self, devices: Mapping[str, frozenset[str]]) -> None:
        self.to_heal = dict(devices)

    def forget(self, node: str) -> None:
        """Its faults have healed."""
        self.faults = {key: fault for key, fault in self.faults.items() if key[0] != node}


class HangEvidence(Value, frozen=False):
    """What is known of a hang of the attempt."""

    at: float = 0.0  # Unix seconds, 0: it never hung; what was printed later may be of our own doing
    standing: str = ""  # how the hang was noticed that is left alone
    blamed: dict[str, str] = field(default_factory=dict)  # node -> why it is held against it
    proven: bool = False  # a rank is named from within that does nothing: reason enough for a restart that nobody asked for
    advised: bool = False  # hints were asked for
    words: dict[int, tuple[Piece, ...]] = field(default_factory=dict)  # rank -> what it had printed by then
    evidence: dict[str, str] = field(default_factory=dict)  # node -> what its agent found while the ranks hung, for people
    views: dict[str, tuple[RankView, ...]] = field(default_factory=dict)  # likewise, of each rank


class ProgramWords(Value, frozen=False):
    """What the program has said, by the program interface."""

    step: int = 0  # of the training, as far as it tells
    beats: int = 0  # how often it has beaten, in this attempt
    saved: int = 0  # and saved
    saving_s: float = 0.0  # how long that took at most
    said: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)  # rank, what, words
    stages: dict[int, float] = field(default_factory=dict)  # rank -> the hang interval that it has set, seconds

    def count(self, beats: int, saved: int, saving_s: float) -> None:
        self.beats, self.saved = max(self.beats, beats), max(self.saved, saved)
        self.saving_s = max(self.saving_s, saving_s)


class SearchEnd(Value, frozen=False):
    """How the search for another node has ended."""

    unreplaced: str = ""  # why no other node is to be had for a bad one
    unfilled: str = ""  # likewise, unless Slurm was away meanwhile

    def fail(self, why: str) -> None:
        self.unreplaced = why

    def settle(self, again: bool) -> None:
        """again: slurmctld was away meanwhile, and other nodes may be had after all."""
        if self.unfilled and not again:
            self.unreplaced = self.unfilled
        self.unfilled = ""


class Closing(Value, frozen=False):
    """The end of the attempt."""

    culprit: bool = False  # a rank had failed before the others were stopped
    killed: bool = False  # one ended by a signal that may have been Slurm's
    stopped_at: float = 0.0  # when no process of it was left any more, Unix seconds
    written: bool = False  # it stands in the ledger
    progress_asked: bool = False  # was progress.file asked for what it holds?
    saves: dict[int, Save] = field(default_factory=dict)  # rank -> what became of the checkpoint that it was writing

    def saves_told(self) -> dict[str, str]:
        """What became of checkpoints -> the ranks that were writing them."""
        told = sorted({save.value for save in self.saves.values()})
        return {word: fold_numbers(rank for rank, save in self.saves.items() if save.value == word) for word in told}


class Attempt(Value, frozen=False):
    """Reports of another attempt are refused: the methods answer False."""

    number: int = 0  # over the life of the job
    ranks: frozenset[int] = frozenset()
    started: frozenset[int] = frozenset()  # ranks whose command was told to run
    numbers: dict[int, int] = field(default_factory=dict)  # rank -> its own start, if it was started again alone
    port: int = 0  # that we chose for its rendezvous, 0: none
    exits: dict[int, ExitStatus] = field(default_factory=dict)
    ends: dict[int, RankExited] = field(default_factory=dict)  # rank -> its end with its last words, as far as it is known
    late: set[int] = field(default_factory=set)  # ranks that ended only after they were told to
    unstartable: dict[int, str] = field(default_factory=dict)  # rank -> why its command could not be started
    stopped: set[int] = field(default_factory=set)  # ranks of which nothing runs any more, but for `left`
    left: dict[int, tuple[int, ...]] = field(default_factory=dict)  # rank -> processes that outlived SIGKILL
    lost: dict[int, str] = field(default_factory=dict)  # rank -> why its shim cannot be reached any more
    alive: dict[int, tuple[float, str]] = field(default_factory=dict)  # rank -> its last sign of life but output, and what it was
    drills: list[Drill] = field(default_factory=list)  # what was injected on purpose, and has not been ended
    verdict: Verdict | None = None  # what is behind its end, once that is known
    not_in_place: str = ""  # a further reason why the ranks cannot be started again here
    step_end: StepEnd = field(default_factory=StepEnd)
    shims: ShimEnds = field(default_factory=ShimEnds)
    nodes: NodeProofs = field(default_factory=NodeProofs)
    devices: DeviceTrouble = field(default_factory=DeviceTrouble)
    hang: HangEvidence = field(default_factory=HangEvidence)
    program: ProgramWords = field(default_factory=ProgramWords)
    search: SearchEnd = field(default_factory=SearchEnd)
    closing: Closing = field(default_factory=Closing)
    _all_stopped: bool = False  # once it is proven

    def ended_on_loan(self, tasks: Mapping[int, Task], lent: Mapping[str, int]) -> None:
        """A rank on loan that was told to end and did: its donor may show as running until its grace is over (preemption), and
        yet its node is ours no more. lent: node -> donor job."""
        for rank in self.exits.keys() | self.lost.keys():
            node = tasks[rank].node if rank in tasks else ""
            if node in self.nodes.called_back and node in lent and rank not in self.late:
                why = f"its donor job {lent[node]} was told to end"
                self.nodes.returned.setdefault(node, why)

    def drill(self, order: Drill) -> None:
        """A fault is injected, or a hang or slowness ends."""
        if order.fault == "end":
            self.drills = [each for each in self.drills if each.rank != order.rank or each.fault not in _STALLS]
        else:
            self.drills.append(order)

    def drilled(self, hung: bool, faulty: Collection[str], tasks: Mapping[int, Task]) -> tuple[str, ...]:
        """The drills behind the end of the attempt, in words: others run beside it. faulty: nodes whose devices show faults."""
        failed = {rank for rank, status in self.exits.items() if rank not in self.late and not status.ok} | self.lost.keys()
        nodes = {tasks[rank].node for rank in failed if rank in tasks}
        hit = [
            each for each in self.drills
            if each.rank in failed or (hung and each.fault in _STALLS)
            or each.node in (faulty if each.fault == "device-fault" else nodes)
        ]  # fmt: skip
        return tuple(f"{each.fault} on {each.target}" for each in hit)

    def none_begun(self) -> None:
        """Nothing has been started, so nothing has to be stopped."""
        self.stopped = set(self.ranks)

    def cannot_stay(self, why: str) -> None:
        """It cannot be started again here."""
        self.not_in_place = why

    @property
    def all_ended(self) -> bool:
        return self.exits.keys() == self.ranks

    @property
    def all_stopped(self) -> bool:
        """Proven by every shim, or the shim is gone and somebody else has to prove it."""
        # It is asked after each of a thousand reports; until a rank is started again alone, none comes back.
        if not self._all_stopped and len(self.stopped) + len(self.lost) >= len(self.ranks):
            self._all_stopped = self.stopped | self.lost.keys() >= self.ranks
        return self._all_stopped

    @property
    def nothing_started(self) -> bool:
        return bool(self.ranks) and self.unstartable.keys() == self.ranks

    @property
    def own_status(self) -> int:
        """What srun ends with where ranks fail as these did by themselves, as a shell has it; 0 if none did."""
        return of_step(status for rank, status in self.exits.items() if rank not in self.late).shell

    @property
    def out_of_memory(self) -> bool:
        """Did the kernel end a rank that failed by itself, or a process of it, for want of memory?"""
        return any(end.oom and not end.status.ok for rank, end in self.ends.items() if rank not in self.late)

    def belongs(self, rank: int, number: int) -> bool:
        """Is it this attempt's, or that of the rank started again alone?"""
        return number == self.number or number == self.numbers.get(rank)

    def latest(self, ranks: Iterable[int]) -> int:
        """Of the starts that `ranks` belong to: what is told of them counts if it is told of this one."""
        return max((self.numbers.get(rank, self.number) for rank in ranks), default=self.number)

    def again(self, rank: int, number: int) -> None:
        """`rank` is started again alone."""
        self.numbers[rank] = number
        self.drills = [each for each in self.drills if each.rank != rank]
        self.exits.pop(rank, None)
        self.ends.pop(rank, None)
        self.unstartable.pop(rank, None)
        self.closing.saves.pop(rank, None)
        self.hang.words.pop(rank, None)
        self.program.stages.pop(rank, None)
        self.stopped.discard(rank)
        self._all_stopped = False

    @property
    def shut_down(self) -> str:
        """Why the program wants the job ended, if it does."""
        return next((f"rank {rank}: {' '.join(words)}" for rank, what, words in self.program.said if what == "shutdown"), "")

    def leave(self, tasks: Mapping[int, Task]) -> dict[str, str]:
        """node -> why: those that the program wants to be left out."""
        return {
            tasks[rank].node: f"rank {rank} asked to leave it out: {' '.join(words)}"
            for rank, what, words in self.program.said
            if what == "exclude" and rank in tasks
        }

    def own_words(self) -> tuple[str, ...]:
        """That the program calls retriable."""
        return tuple(word for _, what, words in self.program.said if what == "retriable" for word in words if word)

    def exited(self, event: RankExited) -> bool:
        if not self.belongs(event.rank, event.attempt):
            return False
        self.exits[event.rank] = event.status
        self.ends[event.rank] = event
        if event.stopped:
            self.late.add(event.rank)
        return True

    def could_not_start(self, event: RankUnstartable) -> bool:
        if not self.belongs(event.rank, event.attempt):
            return False
        self.exits[event.rank] = ExitStatus(event.status)
        self.unstartable[event.rank] = event.why
        return True

    def rank_ends(self, tasks: Mapping[int, Task], only: int | None = None) -> tuple[RankEnd, ...]:
        """Every rank's end (or that of `only`) for the classification."""
        return tuple(self._rank_end(tasks[rank]) for rank in sorted(self.ranks) if only is None or rank == only)

    def _rank_end(self, task: Task) -> RankEnd:
        rank, lost = task.rank, task.rank in self.lost
        end = self.ends.get(rank)
        if end is None:
            words = self.hang.words.get(rank, ())
            return RankEnd(rank, task.node, self.exits.get(rank), lost=lost, stopped=not lost, output=words)
        alive, alive_by = self.alive.get(rank, (0.0, ""))
        return RankEnd(rank, task.node, end.status, end.at, rank in self.late, False, end.oom, end.output, alive, alive_by)

    def stop(self, event: RankStopped) -> bool:
        if not self.belongs(event.rank, event.attempt):
            return False
        if event.rank in self.lost and event.attempt != self.numbers.get(event.rank, self.number):
            return False  # of its start before; its shim is gone, so no word of this one will come
        self.stopped.add(event.rank)
        if event.left:
            self.left[event.rank] = event.left
        if event.save is not Save.NONE:
            self.closing.saves[event.rank] = event.save
        return True

    def lose(self, rank: int, why: str) -> None:
        """The shim of `rank` cannot be reached any more, whatever it said before."""
        self.lost.setdefault(rank, why)

    def close(self, rank: int, why: str, hangup: Hangup = Hangup.CLOSED) -> None:
        """Its shim has hung up, which is half a proof that it has ended; else it may only be cut off."""
        self.lose(rank, why)
        if hangup is not Hangup.NONE:
            self.shims.closed.add(rank)
        if hangup is Hangup.RESET:
            self.shims.reset.add(rank)

    def lose_step(self, why: str) -> None:
        """Every shim has gone with the step; Slurm has ended what was below them."""
        self.step_end.gone = self.step_end.ended = True
        for rank in self.ranks:
            self.lose(rank, why)

    def healed(self, node: str, failed: str) -> bool:
        """Healing on `node` is over, well if `failed` is empty. False if none was under way there."""
        if node not in self.devices.to_heal:
            return False
        del self.devices.to_heal[node]
        if failed:
            self.devices.unhealed[node] = failed
        return True

    def stuck_nodes(self, tasks: Mapping[int, Task]) -> dict[str, str]:
        """Nodes with processes that outlived SIGKILL (uninterruptible sleep): nothing may start there again."""
        return {
            tasks[rank].node: f"processes {', '.join(map(str, pids))} of rank {rank} outlived SIGKILL"
            for rank, pids in self.left.items()
            if rank in tasks  # one that has not come up again may still tell of the step before
        }

    def summary(self) -> dict[str, int]:
        """How many ranks ended how."""
        counts = Counter(str(status) for status in self.exits.values())
        if unknown := len(self.ranks - self.exits.keys()):
            counts["unknown"] = unknown
        return dict(counts)
