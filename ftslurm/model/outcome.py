"""How an ftrun ended, as its last record says it: what follows from that, nobody reads from the record's sentence."""

from __future__ import annotations

from enum import Enum

from ftslurm.model.record import Finished

# How the sentence begins where the owner of the job has asked for the end (`ftslurm control JOB stop`), or pressed Ctrl-C.
STOPPED, INTERRUPTED = "stopped on request", "interrupted"


class Outcome(str, Enum):
    """ENDED: by the program or the ladder, as the exit status says."""

    ENDED = "ended"
    REQUEUED = "requeued"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    REQUEUED_BY_OTHERS = "requeued by others"
    NODE_FAILED = "node failed"
    ENDED_BY_SLURM = "ended by Slurm"
    BEING_ENDED = "being ended"

    @property
    def words(self) -> str:
        """How ftrun puts it in its last record, where nothing else is to be said."""
        return _WORDS[self]

    @property
    def goes_on(self) -> bool:
        """May the job itself go on?"""
        return self in _GO_ON

    @property
    def by_others(self) -> bool:
        """By a person's or Slurm's will, and for no failure."""
        return self in _BY_OTHERS

    @property
    def by_people(self) -> bool:
        return self in (Outcome.CANCELLED, Outcome.INTERRUPTED, Outcome.TIMEOUT)


_BY_OTHERS = frozenset(Outcome) - {
    Outcome.ENDED, Outcome.REQUEUED, Outcome.STOPPED, Outcome.INTERRUPTED, Outcome.NODE_FAILED,
}  # fmt: skip
_GO_ON = frozenset({
    Outcome.REQUEUED, Outcome.PREEMPTED, Outcome.REQUEUED_BY_OTHERS, Outcome.NODE_FAILED, Outcome.BEING_ENDED,
})  # fmt: skip
# Slurm's states of a job that is ending by somebody's will but ours.
ENDING_STATES = {
    "CANCELLED": Outcome.CANCELLED, "TIMEOUT": Outcome.TIMEOUT, "PREEMPTED": Outcome.PREEMPTED,
    "PENDING": Outcome.REQUEUED_BY_OTHERS, "NODE_FAIL": Outcome.NODE_FAILED, "FAILED": Outcome.ENDED_BY_SLURM,
    "COMPLETED": Outcome.ENDED_BY_SLURM, "COMPLETING": Outcome.BEING_ENDED,
}  # fmt: skip
_WORDS = {
    Outcome.REQUEUED: "requeued",
    Outcome.CANCELLED: "the job was cancelled",
    Outcome.TIMEOUT: "the time limit was reached",
    Outcome.PREEMPTED: "the job was preempted",
    Outcome.REQUEUED_BY_OTHERS: "somebody else requeued the job",
    Outcome.NODE_FAILED: "Slurm ended the job because a node failed",
    Outcome.ENDED_BY_SLURM: "Slurm ended the job",
    Outcome.BEING_ENDED: "Slurm is ending the job",
}
_OF_WORDS = {words: outcome for outcome, words in _WORDS.items()}


def outcome_of(finished: Finished) -> Outcome:
    try:
        return Outcome(finished.outcome)
    except ValueError:  # of an ftrun that did not write it, or of a later one
        return _outcome_in(finished.what)


def _outcome_in(what: str) -> Outcome:
    if what.startswith(STOPPED):
        return Outcome.STOPPED
    return Outcome.INTERRUPTED if what.startswith(INTERRUPTED) else _OF_WORDS.get(what, Outcome.ENDED)
