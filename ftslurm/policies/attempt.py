"""What is known of the attempt under way: which ranks ended, were stopped, or were lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ftslurm.model.devices import Fault
from ftslurm.model.events import RankExited, RankStopped, RankUnstartable
from ftslurm.model.exits import ExitStatus
from ftslurm.model.job import Task


@dataclass(slots=True)
class Attempt:
    """number: over the life of the job; reports of another attempt are refused (the methods answer False).

    faults: what the devices showed when the trouble began; a fault that clears meanwhile is still the reason.
    unhealed: node -> why its devices did not heal. to_heal: node -> devices whose healing is under way. looked: nodes
    whose devices were looked at after the trouble began. step_gone: the launcher's process has ended. culprit: a
    rank had failed before the others were stopped. killed: one ended by a signal that may have been Slurm's. not_in_place: a
    further reason why the ranks cannot be started again here. written: the end of the attempt stands in the ledger.
    """

    number: int = 0
    ranks: frozenset[int] = frozenset()
    exits: dict[int, ExitStatus] = field(default_factory=dict)
    unstartable: dict[int, str] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    left: dict[int, tuple[int, ...]] = field(default_factory=dict)
    unhealed: dict[str, str] = field(default_factory=dict)
    to_heal: dict[str, frozenset[str]] = field(default_factory=dict)
    looked: set[str] = field(default_factory=set)
    faults: dict[tuple[str, str, str], Fault] = field(default_factory=dict)
    step_gone: bool = False
    killed: bool = False
    culprit: bool = False
    not_in_place: str = ""
    written: bool = False

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

    def exited(self, event: RankExited) -> bool:
        if event.attempt != self.number:
            return False
        self.exits[event.rank] = event.status
        return True

    def could_not_start(self, event: RankUnstartable) -> bool:
        if event.attempt != self.number:
            return False
        self.exits[event.rank] = ExitStatus(event.status)
        self.unstartable[event.rank] = event.why
        return True

    def stop(self, event: RankStopped) -> bool:
        if event.attempt != self.number:
            return False
        self.stopped.add(event.rank)
        if event.left:
            self.left[event.rank] = event.left
        return True

    def lose(self, rank: int, why: str) -> None:
        """The shim of `rank` cannot be reached any more, whatever it said before."""
        self.lost.setdefault(rank, why)

    def lose_rest(self, why: str) -> None:
        """All that have not said that they are stopped."""
        for rank in self.ranks - self.stopped:
            self.lose(rank, why)

    def lose_step(self, why: str) -> None:
        """Every shim has gone with the step; Slurm has ended what was below them."""
        self.step_gone = True
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

    def stuck_nodes(self, tasks: Mapping[int, Task]) -> dict[str, str]:
        """Nodes with processes that outlived SIGKILL (uninterruptible sleep): nothing may start there again."""
        return {
            tasks[rank].node: f"processes {', '.join(map(str, pids))} of rank {rank} outlived SIGKILL"
            for rank, pids in self.left.items()
        }

    def summary(self) -> dict[str, int]:
        """How many ranks ended how."""
        counts = Counter(str(status) for status in self.exits.values())
        if unknown := len(self.ranks - self.exits.keys()):
            counts["unknown"] = unknown
        return dict(counts)
