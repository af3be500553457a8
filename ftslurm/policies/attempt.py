"""What is known of the attempt under way: which ranks ended, were stopped, or were lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ftslurm.model.collectives import RankView
from ftslurm.model.devices import Fault
from ftslurm.model.events import Hangup, RankExited, RankStopped, RankUnstartable
from ftslurm.model.exits import ExitStatus
from ftslurm.model.job import Task
from ftslurm.model.verdict import Piece, RankEnd, Verdict


@dataclass(slots=True)
class Attempt:
    """number: over the life of the job; reports of another attempt are refused (the methods answer False).

    ends: rank -> its end with its last words, as far as it is known. late: ranks that ended only after they were told to.
    numbers: rank -> its own start, if it was started again alone.
    faults: what the devices showed when the trouble began; a fault that clears meanwhile is still the reason.
    unhealed: node -> why its devices did not heal. to_heal: node -> devices whose healing is under way. looked: nodes
    whose devices were looked at after the trouble began; seen: those of them that have some, which answered.
    step_gone: the launcher's process has ended. culprit: a
    rank had failed before the others were stopped. killed: one ended by a signal that may have been Slurm's. not_in_place: a
    further reason why the ranks cannot be started again here. written: the end of the attempt stands in the ledger. stopped_at:
    when no process of it was left any more, Unix seconds.
    verdict: once it is known. advised: hints were given. progress_asked: progress.file was read.
    words: rank -> what it had printed when it hung. hung_at: Unix seconds, 0: it never did; what was printed later may be of
    our own doing. standing: how the hang was noticed that is left alone.
    evidence, views: node -> what its agent found while the ranks hung.
    hung: node -> why a hang is held against it. stages: rank -> the hang interval that its program has set. step: of the
    training, as far as its program tells; beats, saved: how often it has beaten, and saved, in this attempt. port: that we chose
    for its rendezvous, 0: none.
    said: (rank, what, words) of its program, by the program interface.
    drills: what was injected on purpose, in words; drilled_away: node -> why it is taken for lost.
    started: ranks whose command was told to run. closed: those whose shim has hung up; reset: by a reset; departed:
    after it was let go.
    step_ended: the launcher itself says that nothing of the step is left (step_gone: or we have given it up, abandoned: ended it
    ourselves). unended: why the old step may still be there, and no other may start. gone: node -> why it is lost, with a
    second proof. doubted: nodes that have to be asked a second time for that. unreplaced: why no other node is to be had for a
    bad one; unfilled: likewise, unless Slurm was away meanwhile. called_back: nodes on loan whose ranks were told by Slurm to
    end. returned: those of them that we have no more, and why. left_before: of those gone, nodes that the job had left
    already, and yet was given again. asked_out: node -> why, of those that the owner of the job
    wants to leave now. alive: rank -> its last sign of life but output, Unix seconds, and what it was.
    """

    number: int = 0
    ranks: frozenset[int] = frozenset()
    exits: dict[int, ExitStatus] = field(default_factory=dict)
    ends: dict[int, RankExited] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    numbers: dict[int, int] = field(default_factory=dict)
    verdict: Verdict | None = None
    advised: bool = False
    progress_asked: bool = False
    words: dict[int, tuple[Piece, ...]] = field(default_factory=dict)
    hung_at: float = 0.0
    standing: str = ""
    views: dict[str, tuple[RankView, ...]] = field(default_factory=dict)
    hung: dict[str, str] = field(default_factory=dict)
    stages: dict[int, float] = field(default_factory=dict)
    step: int = 0
    beats: int = 0
    saved: int = 0
    port: int = 0
    evidence: dict[str, str] = field(default_factory=dict)
    said: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    drills: list[str] = field(default_factory=list)
    drilled_away: dict[str, str] = field(default_factory=dict)
    unstartable: dict[int, str] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    left: dict[int, tuple[int, ...]] = field(default_factory=dict)
    unhealed: dict[str, str] = field(default_factory=dict)
    to_heal: dict[str, frozenset[str]] = field(default_factory=dict)
    looked: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)
    started: frozenset[int] = frozenset()
    closed: set[int] = field(default_factory=set)
    reset: set[int] = field(default_factory=set)
    gone: dict[str, str] = field(default_factory=dict)
    doubted: set[str] = field(default_factory=set)
    step_gone: bool = False
    step_ended: bool = False
    departed: set[int] = field(default_factory=set)
    abandoned: bool = False
    unreplaced: str = ""
    unfilled: str = ""
    called_back: set[str] = field(default_factory=set)
    returned: dict[str, str] = field(default_factory=dict)
    left_before: frozenset[str] = frozenset()
    asked_out: dict[str, str] = field(default_factory=dict)
    alive: dict[int, tuple[float, str]] = field(default_factory=dict)
    unended: str = ""
    killed: bool = False
    culprit: bool = False
    not_in_place: str = ""
    written: bool = False
    stopped_at: float = 0.0

    @property
    def all_ended(self) -> bool:
        return self.exits.keys() == self.ranks

    @property
    def all_stopped(self) -> bool:
        """Proven by every shim, or the shim is gone and somebody else has to prove it."""
        return self.stopped | self.lost.keys() >= self.ranks

    @property
    def nothing_started(self) -> bool:
        return bool(self.ranks) and self.unstartable.keys() == self.ranks

    @property
    def first(self) -> int:
        """The rank that failed first by itself, else the lowest."""
        own = [(end.at, rank) for rank, end in self.ends.items() if rank not in self.late and not end.status.ok]
        return min(own)[1] if own else min(self.ranks, default=0)

    def belongs(self, rank: int, number: int) -> bool:
        """Is it this attempt's, or that of the rank started again alone?"""
        return number == self.number or number == self.numbers.get(rank)

    def latest(self, ranks: Iterable[int]) -> int:
        """Of the starts that `ranks` belong to: what is told of them counts if it is told of this one."""
        return max((self.numbers.get(rank, self.number) for rank in ranks), default=self.number)

    def again(self, rank: int, number: int) -> None:
        """`rank` is started again alone."""
        self.numbers[rank] = number
        self.exits.pop(rank, None)
        self.ends.pop(rank, None)
        self.unstartable.pop(rank, None)
        self.words.pop(rank, None)
        self.stages.pop(rank, None)
        self.stopped.discard(rank)

    @property
    def shut_down(self) -> str:
        """Why the program wants the job ended, if it does."""
        return next((f"rank {rank}: {' '.join(words)}" for rank, what, words in self.said if what == "shutdown"), "")

    def leave(self, tasks: Mapping[int, Task]) -> dict[str, str]:
        """node -> why: those that the program wants to be left out."""
        return {
            tasks[rank].node: f"rank {rank} asked to leave it out: {' '.join(words)}"
            for rank, what, words in self.said
            if what == "exclude" and rank in tasks
        }

    def own_words(self) -> tuple[str, ...]:
        """That the program calls retriable."""
        return tuple(word for _, what, words in self.said if what == "retriable" for word in words if word)

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
            words = self.words.get(rank, ())
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
        return True

    def lose(self, rank: int, why: str) -> None:
        """The shim of `rank` cannot be reached any more, whatever it said before."""
        self.lost.setdefault(rank, why)

    def close(self, rank: int, why: str, hangup: Hangup = Hangup.CLOSED) -> None:
        """Its shim has hung up, which is half a proof that it has ended; else it may only be cut off."""
        self.lose(rank, why)
        if hangup is not Hangup.NONE:
            self.closed.add(rank)
        if hangup is Hangup.RESET:
            self.reset.add(rank)

    def lose_rest(self, why: str) -> None:
        """All that have not said that they are stopped."""
        for rank in self.ranks - self.stopped:
            self.lose(rank, why)

    def lose_step(self, why: str) -> None:
        """Every shim has gone with the step; Slurm has ended what was below them."""
        self.step_gone = self.step_ended = True
        for rank in self.ranks:
            self.lose(rank, why)

    def healed(self, node: str, failed: str) -> bool:
        """Healing on `node` is over, well if `failed` is empty. False if none was under way there."""
        if node not in self.to_heal:
            return False
        del self.to_heal[node]
        if failed:
            self.unhealed[node] = failed
        return True

    def forget_faults(self, node: str) -> None:
        """They have healed."""
        self.faults = {key: fault for key, fault in self.faults.items() if key[0] != node}

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
