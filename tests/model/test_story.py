"""The fold that cards and explanations render: what was known at each decision, and what became of it."""

from __future__ import annotations

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.folds.summary import Answer, LeftAlone, Story
from tests.stories.replay import Job, fault


def run(schedule: int) -> rec.RunBegan:
    return rec.RunBegan(10.0 * schedule, f"r{schedule}", "7", "c", schedule, "k", "train", "n1")


def test_an_answer_has_what_was_known_then_what_was_done_and_who_ran_again() -> None:
    job = Job().begin()
    job.shows(fault())
    (answer,) = Story(job.ledger).told
    assert isinstance(answer, Answer) and answer.known.trouble is not None and answer.known.attempt is not None
    assert answer.known.attempt.attempt == 1 and answer.again is not None and answer.again.attempt == 2
    assert [done.ok for done in answer.done] == [True] and any(isinstance(each, rec.FaultSeen) for each in answer.since)
    assert answer.before.last_decision is None and answer.past.last_decision == answer.decided


def test_a_hang_that_is_left_alone_is_told_until_it_is_answered_or_over() -> None:
    job = Job().begin()
    job.tell(*(ev.QuietSeen(node, 1800.0, "no IO for 1800 s") for node in job.nodes))
    (hang,) = Story(job.ledger).told
    assert isinstance(hang, LeftAlone) and hang.after_s is None
    over = rec.HangEnded(hang.seen.at + 5, hang.seen.attempt, hang.seen.sign, "a step")
    (hang,) = Story([*job.ledger, over]).told
    assert isinstance(hang, LeftAlone) and hang.after_s == 5
    assert not Story([*job.ledger, rec.TroubleSeen(hang.seen.at + 5, hang.seen.attempt, "hang", "it hangs")]).told


def test_a_scheduling_that_no_decision_led_to_is_slurms() -> None:
    requeue = rec.Decided(5.0, "d", 1, "unconditional-requeue", "crash", "rank 0")
    assert not Story([run(0)]).by_slurm and not Story([run(0), run(0)]).by_slurm
    assert Story([run(0), run(1)]).by_slurm == {"r1"}
    assert not Story([run(0), requeue, run(1)]).by_slurm
    assert Story([run(0), requeue, run(1), run(2)]).by_slurm == {"r2"}
    assert Story([run(0), rec.Decided(5.0, "d", 1, "fail", "crash", "rank 0"), run(1)]).by_slurm == {"r1"}
