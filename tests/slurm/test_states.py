"""Slurm's state words, judged."""

from __future__ import annotations

import pytest

from ftslurm.slurm.client import JobState, JobView, NodeState
from ftslurm.slurm.states import is_held, is_over, job_state, node_state, waits_still


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("IDLE", NodeState.GOOD),
        ("MIXED+PLANNED", NodeState.GOOD),
        ("ALLOCATED+COMPLETING+RESERVED", NodeState.GOOD),
        ("IDLE+CLOUD", NodeState.GOOD),
        ("IDLE+DRAIN", NodeState.DRAINING),
        ("MIXED+DRAIN", NodeState.DRAINING),
        ("IDLE+MAINTENANCE", NodeState.DRAINING),
        ("ALLOCATED+REBOOT_REQUESTED", NodeState.DRAINING),
        ("DOWN", NodeState.BAD),
        ("DOWN+NOT_RESPONDING", NodeState.BAD),
        ("IDLE+NOT_RESPONDING", NodeState.BAD),
        ("MIXED+DRAIN+NOT_RESPONDING", NodeState.BAD),
        ("DOWN+CLOUD+POWERED_DOWN", NodeState.BAD),
        ("IDLE+CLOUD+POWERED_DOWN", NodeState.UNKNOWN),
        ("IDLE+CLOUD+POWERING_UP", NodeState.UNKNOWN),
        ("UNKNOWN", NodeState.UNKNOWN),
        ("IDLE+SPARKLING", NodeState.UNKNOWN),
        ("IDLE+?", NodeState.UNKNOWN),
        ("", NodeState.UNKNOWN),
        ("+", NodeState.UNKNOWN),
    ],
)
def test_judges_nodes(words: str, state: NodeState) -> None:
    assert node_state(words) is state


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("CONFIGURING", JobState.RUNNING),
        ("REQUEUED", JobState.PENDING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("SPECIAL_EXIT", JobState.PENDING),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("PREEMPTED", JobState.PREEMPTED),
        ("SPARKLING", JobState.UNKNOWN),
        ("COMPLETING", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_judges_jobs(word: str, state: JobState) -> None:
    assert job_state(word) is state


def test_reasons_tell_how_a_completing_job_ended() -> None:
    assert job_state("COMPLETING", "NonZeroExitCode") is JobState.FAILED
    assert job_state("COMPLETING", "TimeLimit") is JobState.TIMEOUT
    assert job_state("COMPLETING", "NonZeroExitCode", waits=True) is JobState.PENDING


@pytest.mark.parametrize(
    ("has_run", "start", "end", "waits"),
    [
        (False, 100, 0, True),  # requeued, no time limit
        (False, 100, 700, True),  # requeued, an end guessed from the time limit
        (False, 100, 100, False),  # ended within its first second
        (True, 100, 101, False),
        (True, 100, 0, False),
    ],
)
def test_tells_requeued_from_ended(has_run: bool, start: int, end: int, waits: bool) -> None:
    assert waits_still(has_run, start, end) is waits


def test_knows_a_hold() -> None:
    assert is_held("PENDING", JobState.PENDING, 0)
    assert is_held("SPECIAL_EXIT", JobState.PENDING, 7)
    assert not is_held("PENDING", JobState.PENDING, 7)
    assert not is_held("RUNNING", JobState.RUNNING, 0)


@pytest.mark.parametrize(
    ("state", "completing", "over"),
    [
        (JobState.CANCELLED, True, True),
        (JobState.UNKNOWN, True, True),
        (JobState.UNKNOWN, False, False),
        (JobState.PENDING, True, False),
        (JobState.RUNNING, False, False),
        (JobState.COMPLETED, False, True),
    ],
)
def test_knows_the_end(state: JobState, completing: bool, over: bool) -> None:
    assert is_over(JobView(1, state, completing=completing)) is over
