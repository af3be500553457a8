"""What ftrun keeps of a job's records for the people whom it tells."""

from __future__ import annotations

import gc
import io

from ftslurm.model import decisions as do
from ftslurm.model import record as rec
from ftslurm.model.values import replace
from ftslurm.report.card import card_lines, last_card
from ftslurm.wrapper.controller.people import SPEAKER, People
from tests.report.test_card import TRACE
from tests.stories.test_blame import Campaign


def test_a_job_that_restarts_again_and_again_needs_no_more_memory_and_shows_the_same_cards() -> None:
    job, err = Campaign(), io.StringIO()
    job.fails(1, TRACE)
    ledger = list(job.job.ledger)
    people, restart = People(err=err, past=ledger[:1]), ledger[1:]
    for number in range(12):
        again = [replace(record, at=record.at + number) for record in restart]
        ledger += again if number else []
        for record in again:
            people.remember(do.Remember(record))
        people.show_card(do.ShowCard())
        card = last_card(ledger if number else [ledger[0], *again])
        assert card is not None
        assert err.getvalue().endswith("".join(f"{SPEAKER}{line}\n" for line in card_lines(card)))
    kept = [each for each in gc.get_referents(people._records) if isinstance(each, rec.Record)]
    assert len(kept) == len({type(each) for each in kept})
