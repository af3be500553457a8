"""ftrun's own node: a scheduling that nobody ended, and a controller that is cut off itself."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from tests.stories.replay import Job


def test_how_the_scheduling_before_ended_is_written_before_the_next_begins() -> None:
    job = Job()
    ended = (rec.TroubleSeen(1.0, 1, "node", "the batch node n1 died"), rec.AttemptEnded(1.0, 1, {"unknown": 4}))
    job.judge.facts = replace(job.facts, schedule=1, batch_node="n2", cut_short=ended)
    job.tell(ev.Begun())
    written = [decision.record for decision in job.did(do.Remember)]
    assert tuple(written[:2]) == ended
    assert isinstance(written[2], rec.RunBegan) and written[2].batch_node == "n2"
    assert job.did(do.LaunchStep), "it is no trouble of this scheduling"


def test_cut_off_it_says_so_and_leaves_the_rest_to_the_leases() -> None:
    job = Job().begin()
    job.tell(ev.CutOff())
    assert "no lease is renewed" in job.said and not job.did(do.StopRanks)
    job.tell(ev.InTouch())
    assert "leases are renewed" in job.said
