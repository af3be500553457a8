"""The words for where a job runs, how its ranks are laid out, and who called it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from functools import lru_cache

from ftslurm.model.values import Value, field, replace


class Layout(Value):
    """nodes: one a slot, in the order of the slots. slots: of each rank, by rank; empty as long as srun has not said it.

    lent: node -> the donor job that it belongs to; all others are of the job's own allocation. chosen: the nodes may stand in
    another order than srun's own.
    """

    nodes: tuple[str, ...]
    slots: tuple[int, ...] = ()
    lent: Mapping[str, int] = field(default_factory=dict)
    chosen: bool = field(default=False, compare=False)

    def node_of(self, rank: int) -> str:
        return self.nodes[self.slots[rank]]

    def ranks_of(self, slot: int) -> tuple[int, ...]:
        return tuple(rank for rank, mine in enumerate(self.slots) if mine == slot)

    def filled(self, news: Mapping[int, str], lent: Mapping[str, int]) -> Layout:
        """With other nodes in the slots of `news`. lent: as above, of the new ones; those that went out go back."""
        nodes = tuple(news.get(slot, node) for slot, node in enumerate(self.nodes))
        lenders = {**self.lent, **lent}
        return replace(self, nodes=nodes, lent={node: lenders[node] for node in nodes if node in lenders}, chosen=True)

    def without(self, slots: Collection[int]) -> Layout:
        """Fewer slots and ranks; what is left moves up, in order."""
        kept = [slot for slot in range(len(self.nodes)) if slot not in slots]
        place = {slot: number for number, slot in enumerate(kept)}
        nodes = tuple(self.nodes[slot] for slot in kept)
        lent = {node: job for node, job in self.lent.items() if node in nodes}
        return Layout(nodes, tuple(place[slot] for slot in self.slots if slot in place), lent, self.chosen)

    def parts(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(job, its ranks in order): one srun each, since a step does not span two jobs. Job 0 is our own, and comes first."""
        jobs = [0, *sorted(set(self.lent.values()))]
        ranks = {job: tuple(r for r in range(len(self.slots)) if self.lent.get(self.node_of(r), 0) == job) for job in jobs}
        return tuple((job, mine) for job, mine in ranks.items() if mine)


# --- what a step has of its nodes, as its own tasks are told and as the ledger keeps it


class Share(Value):
    """Of one node: CPUs (SLURM_CPUS_ON_NODE) and GPUs (SLURM_GPUS_ON_NODE); 0 where nobody has said it."""

    cpus: int = 0
    gpus: int = 0


def fold_counts(numbers: Sequence[int]) -> str:
    """`2,2,2,1` as Slurm writes it: `2(x3),1`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][0] == number:
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in found)


_MOST = 1 << 20  # numbers in one text: more nodes than any cluster has


def unfold_counts(text: str) -> tuple[int, ...]:
    """The inverse; empty for what is no such text."""
    found: list[int] = []
    for word in text.split(","):
        run = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,7})\))?", word, re.ASCII)
        if run is None or len(found) + int(run[2] or 1) > _MOST:
            return ()
        found += [int(run[1])] * int(run[2] or 1)
    return tuple(found)


def fold_shares(shares: Sequence[Share]) -> tuple[str, str]:
    """CPUs and GPUs, each empty where no node has any."""
    cpus, gpus = [share.cpus for share in shares], [share.gpus for share in shares]
    return fold_counts(cpus) if any(cpus) else "", fold_counts(gpus) if any(gpus) else ""


@lru_cache(maxsize=8)  # a history has those of each attempt, mostly the same
def unfold_shares(cpus: str, gpus: str) -> tuple[Share, ...]:
    """The inverse; empty where the two do not speak of as many nodes."""
    c, g = unfold_counts(cpus), unfold_counts(gpus)
    if c and g and len(c) != len(g):
        return ()
    count = max(len(c), len(g))
    return tuple(Share(*each) for each in zip(c or (0,) * count, g or (0,) * count, strict=True))


class JobId(Value):
    """A Slurm job, or one task of a job array. `number` is what scontrol takes; locally it counts from 1."""

    number: int
    array_job: int | None = None
    array_task: int | None = None

    def __str__(self) -> str:
        if self.array_task is None:
            return str(self.number)
        return f"{self.array_job}_{self.array_task}"


class Allocation(Value):
    """The nodes granted, as the environment of the batch script tells."""

    job: JobId
    cluster: str
    nodes: tuple[str, ...]  # in Slurm's order, one a slot
    restarts: int = 0  # requeues so far, of any cause (SLURM_RESTART_COUNT)
    start_time: int = 0  # Unix seconds of this scheduling, submit_time: of the job or its last requeue; 0 if not told
    end_time: int = 0
    batch: bool = False
    name: str = ""
    # the nodes when it began, in Slurm's order; some may have been lost or given back since. Empty if not told.
    granted: tuple[str, ...] = ()
    submit_time: int = 0

    @property
    def size(self) -> int:
        """Nodes, with those that are missing by now."""
        return len({*self.granted, *self.nodes})


class Task(Value):
    """One task of the step, as its shim introduced it.

    slot: index of its node in the step. address: how other nodes reach its node. pid: of the shim.
    free_port: a TCP port that was free there a moment ago. share: what its step has of the node.
    """

    rank: int
    node: str
    slot: int
    local_rank: int
    address: str = ""
    pid: int = 0
    free_port: int = 0
    share: Share = field(default_factory=Share)

    def with_port(self, free_port: int) -> Task:
        return replace(self, free_port=free_port)


class Reading(str, Enum):
    """What a failure of the step is to the caller."""

    FAILURE = "failure"  # nothing goes on because of it: the remedies are wanted
    ANSWER = "answer"  # a script looks at the status and goes on: it wants to know
    DOUBT = "doubt"  # nobody can tell


_WORDS = {Reading.FAILURE: "a failure", Reading.ANSWER: "an answer to the script", Reading.DOUBT: "perhaps an answer"}


class Call(Value):
    """How the call of ftrun was read. why: the place and the reason, for people. last: nothing follows it in its
    script. ends: the script ends with its status."""

    reading: Reading = Reading.FAILURE
    why: str = ""
    last: bool = False
    ends: bool = False

    @property
    def words(self) -> str:
        """For people."""
        return f"a failed step is {_WORDS[self.reading]}{f' ({self.why})' if self.why else ''}"
