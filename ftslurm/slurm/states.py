"""Slurm's words for the states of jobs and nodes, judged. Pure.

Sources: job_state_string() and node_state_string_complete() in Slurm's src/common/slurm_protocol_defs.c,
compared over 22.05, 24.11 and 26.05; scontrol(1), squeue(1) and sinfo(1) for what the words mean.
"""

from __future__ import annotations

from ftslurm.slurm.client import JobState, JobView, NodeState

# Slurm shows a flag instead of the base state where one is set. These flags tell which base they stand on.
_JOB_WORDS = {
    "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING,  # granted; its nodes boot or PrologSlurmctld runs
    "POWER_UP_NODE": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "PENDING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,  # 25.11+
    "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED,  # SIGSTOP, keeps its CPUs
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,  # another cluster of the federation has it
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "TIMEOUT": JobState.TIMEOUT,
    "NODE_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
}
CONFIGURING_WORDS = frozenset({"CONFIGURING", "POWER_UP_NODE"})
COMPLETING_WORDS = frozenset({"COMPLETING", "STAGE_OUT"})
_HOLDING_WORDS = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
# COMPLETING hides how a job ended; these reasons tell all the same.
_ENDED_BY = {"NonZeroExitCode": JobState.FAILED, "TimeLimit": JobState.TIMEOUT}

_BAD_NODE = frozenset(
    {"DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "INVALID_REG", "INVAL", "FUTURE", "DYNAMIC_FUTURE", "REBOOT_ISSUED"}
)
# They take no new work; what runs there goes on.
_DRAINING_NODE = frozenset(
    {"DRAIN", "DRAINED", "DRAINING", "FAILING", "MAINT", "MAINTENANCE", "REBOOT_REQUESTED", "POWER_DOWN", "POWER_DRAIN"}
)
_GOOD_NODE = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED", "PLANNED", "BLOCKED", "CLOUD", "DYNAMIC_NORM"})
# POWERED_DOWN, POWERING_DOWN and POWERING_UP are on no list: nothing runs there now, yet Slurm wakes such a
# node when it grants it. Whole cloud clusters live like that, so it is no proof against a node either.


def job_state(word: str, reason: str = "", waits: bool = False) -> JobState:
    """The base state behind the one `word` that Slurm shows; UNKNOWN for a word that is new to us.

    waits: what `waits_still` found out. A completing job that does not wait is over; how it ended Slurm
    does not show until it is clean, so that is UNKNOWN too, but for the reasons that say it.
    """
    if word in COMPLETING_WORDS:
        return JobState.PENDING if waits else _ENDED_BY.get(reason, JobState.UNKNOWN)
    return _JOB_WORDS.get(word, JobState.UNKNOWN)


def waits_still(has_run: bool, start: int, end: int) -> bool:
    """Is a completing job one that was requeued (its base state is PENDING), not one that has ended?

    has_run: Slurm's RunTime is not zero. start, end: Unix seconds, 0 for Unknown. Slurm gives a job that waits a run
    time of 0 and an end in the future or none; one that ended within its first second has end == start.
    Source: slurm_sprint_job_info(); seen with and without a time limit.
    """
    return not has_run and (end == 0 or end > start)


def is_held(word: str, state: JobState, priority: int) -> bool:
    """Slurm marks a hold by priority 0. Source: scontrol(1), hold."""
    return state is JobState.PENDING and (priority == 0 or word in _HOLDING_WORDS)


def is_to_be_held(state: JobState, priority: int) -> bool:
    """`scontrol hold` of a job that runs: it waits for a release once it is requeued (seen on 22.05)."""
    return state in (JobState.RUNNING, JobState.SUSPENDED) and priority == 0


def is_over(view: JobView) -> bool:
    """Has the job ended? An unknown state is no proof of that."""
    if view.state is JobState.UNKNOWN:
        return view.completing
    return view.state not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)


def node_state(words: str) -> NodeState:
    """What words like `MIXED+DRAIN+NOT_RESPONDING` mean, as scontrol says them (sinfo has letters for some: `mixed*`).

    The worst known word wins; one that is new to us is never GOOD.
    """
    said = {word for word in words.split("+") if word}
    if said & _BAD_NODE:
        return NodeState.BAD
    if said & _DRAINING_NODE:
        return NodeState.DRAINING
    return NodeState.GOOD if said and said <= _GOOD_NODE else NodeState.UNKNOWN
