"""Stories of when things happened: the times that a report takes apart stand in the ledger."""

from __future__ import annotations

import pytest

from ftslurm.ledger.journal import from_line
from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.exits import ExitStatus
from tests.stories.replay import START, Job, requeueing
from tests.stories.test_nodes import CAN, goes_silent

T0 = START.unix


def test_a_crash_is_older_than_its_report_and_the_stop_has_an_end() -> None:
    job = Job(per_node=1).begin(watched=False)
    job.silent = {do.StopRanks}
    job.jump(10.0)
    job.tell(ev.RankExited(1, 1, ExitStatus(3), job.now.unix - 0.5))
    job.jump(4.0)
    job.tell(ev.RankExited(0, 1, ExitStatus(0, 15), job.now.unix, stopped=True), ev.RankStopped(0, 1), ev.RankStopped(1, 1))
    (trouble,), (ended,) = job.recorded(rec.TroubleSeen), job.recorded(rec.AttemptEnded)
    assert (trouble.at - T0, trouble.since - T0, ended.stopped - T0) == (10.0, 9.5, 14.0)


def test_what_is_waited_for_after_the_stop_is_no_part_of_it() -> None:
    job = Job(per_node=1).begin(watched=False)
    job.silent = {do.AskSlurm}
    job.exits(1, 3)
    job.jump(5.0)
    job.tell(job.slurm)
    (ended,) = job.recorded(rec.AttemptEnded)
    assert (ended.stopped - T0, ended.at - T0) == (0.0, 5.0)


def test_a_silent_node_is_lost_since_it_was_last_heard_of() -> None:
    job = Job(can=CAN).begin()
    job.reachable = False
    goes_silent(job)
    (trouble,) = job.recorded(rec.TroubleSeen)
    assert trouble.at - trouble.since == 15.0


def test_a_hang_began_when_progress_ended() -> None:
    job = Job(requeueing(hang_restart__enabled=True)).begin()
    job.tell(*(ev.QuietSeen(node, 1800.0, "no IO") for node in job.nodes))
    (hang,), (trouble,) = job.recorded(rec.HangSeen), job.recorded(rec.TroubleSeen)
    assert hang.at - hang.since == 1800.0 and trouble.since == hang.since
    restarted = job.recorded(rec.AttemptBegan)[-1]
    assert restarted.launched == restarted.at, "the step goes on"


def test_a_step_is_asked_for_before_its_ranks_start() -> None:
    job = Job(per_node=1)
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun())
    job.jump(7.0)
    job.tell(*(ev.TaskArrived(task, len(job.tasks), "7.0") for task in job.tasks))
    (begun,) = job.recorded(rec.AttemptBegan)
    assert (begun.launched - T0, begun.at - T0) == (0.0, 7.0)


def test_an_attempt_tells_its_first_step_and_the_first_that_is_new() -> None:
    job = Job(requeueing(unconditional_requeue__enabled=True)).begin()
    for step in (10, 20, 30):
        job.tell(ev.Progressed("n1", step))
    job.exits(0, 1)
    again = job.again().begin()
    for step in (25, 30, 35, 40):
        again.tell(ev.Progressed("n2", step))
    told = [(one.attempt, one.step, one.further) for one in (*job.recorded(rec.StepReached), *again.recorded(rec.StepReached))]
    assert told == [(1, 10, True), (2, 25, False), (2, 35, True)]


@pytest.mark.parametrize(
    ("lived_s", "first", "asked"), [(100.0, 1, True), (100.0, 20, False), (20.0, 1, False)], ids=["anew", "goes on", "too early"]
)
def test_training_that_begins_at_its_first_step_again_is_asked_once_for_its_checkpoint(
    lived_s: float, first: int, asked: bool
) -> None:
    job = Job(requeueing(unconditional_requeue__enabled=True), tips=True).begin()
    job.tell(ev.Progressed("n1", 1))
    job.wait(lived_s)
    job.tell(ev.Progressed("n1", 25))
    job.exits(0, 1)
    again = job.again().begin()
    again.tell(ev.Progressed("n1", first), ev.Progressed("n1", 30))
    told = "the program began again at step 1, and the attempt before had come to step 25: does it load its checkpoint?"
    assert (told in again.said) is asked
    again.wait(100.0)
    again.exits(0, 1)
    third = again.again().begin()
    third.tell(ev.Progressed("n1", 1))
    assert ("the program began again" in third.said) is not asked, "once in a job"


def test_a_restart_from_a_checkpoint_at_the_very_end_redoes_nothing() -> None:
    job = Job(requeueing(unconditional_requeue__enabled=True)).begin()
    job.tell(ev.Progressed("n1", 10))
    job.exits(0, 1)
    again = job.again().begin()
    again.tell(ev.Progressed("n1", 11), ev.Progressed("n1", 12))
    assert [(one.step, one.further) for one in again.recorded(rec.StepReached)] == [(11, True)]


def test_ledgers_of_before_know_none_of_these_times() -> None:
    old = b'{"v":1,"kind":"AttemptEnded","at":5,"attempt":1,"exits":{},"step":0}'
    assert from_line(old) == rec.AttemptEnded(5.0, 1) and rec.AttemptEnded(5.0, 1).stopped == 0.0
    assert from_line(b'{"v":1,"kind":"TroubleSeen","at":5,"attempt":1,"cause":"crash","what":"x"}') == rec.TroubleSeen(
        5.0, 1, "crash", "x", 0.0, hung_up=False
    )
