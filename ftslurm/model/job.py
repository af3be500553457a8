"""The words for where a job runs, and who called it."""

from __future__ import annotations

from dataclasses import field, replace
from enum import Enum

from ftslurm.model.layout import Share
from ftslurm.model.values import dataclass


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """A Slurm job, or one task of a job array. `number` is what scontrol takes; locally it counts from 1."""

    number: int
    array_job: int | None = None
    array_task: int | None = None

    def __str__(self) -> str:
        if self.array_task is None:
            return str(self.number)
        return f"{self.array_job}_{self.array_task}"


@dataclass(frozen=True, slots=True)
class Allocation:
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


@dataclass(frozen=True, slots=True)
class Task:
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


_WORDS = {
    Reading.FAILURE: "a failure",
    Reading.ANSWER: "an answer to the script",
    Reading.DOUBT: "perhaps an answer",
}


@dataclass(frozen=True, slots=True)
class Call:
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
