"""What follows from the end of an ftrun is read from its outcome, and from the sentence only in ledgers of before."""

from __future__ import annotations

import pytest

from ftslurm.model.outcome import ENDING_STATES, Outcome, outcome_of
from ftslurm.model.record import Finished


@pytest.mark.parametrize(("what", "outcome"), [
    ("requeued", Outcome.REQUEUED), ("all ranks have ended", Outcome.ENDED),
    ("stopped on request 3 of ann", Outcome.STOPPED), ("interrupted by Ctrl-C while devices healed", Outcome.INTERRUPTED),
    *((outcome.words, outcome) for outcome in ENDING_STATES.values()),
])  # fmt: skip
def test_a_ledger_of_before_tells_it_by_its_sentence(what: str, outcome: Outcome) -> None:
    assert outcome_of(Finished(1.0, "r", 0, what)) is outcome


def test_what_is_recorded_counts_more_than_the_sentence() -> None:
    assert outcome_of(Finished(1.0, "r", 0, "given back to Slurm", outcome="requeued")) is Outcome.REQUEUED
    assert outcome_of(Finished(1.0, "r", 0, "requeued", outcome="a word of later")) is Outcome.REQUEUED


def test_a_job_that_slurm_ends_ends_by_no_failure_of_its_own() -> None:
    assert all(outcome.by_others or outcome is Outcome.NODE_FAILED for outcome in ENDING_STATES.values())
    assert {outcome for outcome in Outcome if outcome.goes_on} == {
        Outcome.REQUEUED, Outcome.PREEMPTED, Outcome.REQUEUED_BY_OTHERS, Outcome.NODE_FAILED, Outcome.BEING_ENDED,
    }  # fmt: skip
