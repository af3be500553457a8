"""A step whose failure is an answer to its script: words are returned as srun would, facts have their remedies."""

from __future__ import annotations

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.job import Call, Reading
from ftslurm.model.settings.tree import Settings
from tests.settings import settings_with
from tests.stories.replay import Job, fault

ANSWER = Call(Reading.ANSWER, "line 2, `if ftrun x; then a; fi`: it is the condition of `if`")
DOUBT = Call(Reading.DOUBT, "python3 called ftrun, and may look at the status")
REQUEUED = 75


def test_an_answer_is_returned_and_nothing_is_started_again() -> None:
    job = Job(call=ANSWER).begin()
    job.all_exit(3)
    assert (job.status, job.rungs) == (3, [])
    assert "the status 3 is returned" in job.said and "it is the condition of `if`" in job.said
    assert not job.did(do.ShowCard) and not job.did(do.Diagnose)


def test_in_a_loop_it_is_said_once() -> None:
    first = Job(call=ANSWER).begin()
    first.all_exit(1)
    second = Job(call=ANSWER, past=first.ledger).begin()
    second.all_exit(1)
    assert (second.status, second.said) == (1, "")


def test_a_fault_of_a_device_has_its_remedy_all_the_same() -> None:
    job = Job(call=ANSWER).begin()
    job.devices = {"n2": (fault("n2"),)}
    job.all_exit(1)
    assert job.rungs == ["in-place-restart"]


def test_a_node_that_slurm_calls_down_has_its_remedy_all_the_same() -> None:
    job = Job(call=ANSWER).begin()
    job.slurm = ev.SlurmAnswered("RUNNING", batch=True, requeueable=True, node_count=2, bad_nodes=(("n2", "DOWN"),))
    job.all_exit(1)
    assert job.rungs == ["isolated-requeue"]


def test_the_setting_takes_it_for_a_failure() -> None:
    job = Job(settings_with(answers=False, in_place_restart__crash_restarts=0), call=ANSWER).begin()
    job.all_exit(1)
    assert (job.status, job.rungs) == (REQUEUED, ["unconditional-requeue"])


def test_in_doubt_a_step_that_was_over_at_once_is_an_answer() -> None:
    job = Job(call=DOUBT).begin()
    job.all_exit(1)
    assert (job.status, job.rungs) == (1, [])
    assert "it was over within 10 s" in job.said


def test_in_doubt_a_step_that_worked_has_cheap_remedies_and_no_requeue() -> None:
    job = Job(settings_with(in_place_restart__crash_restarts=1), call=DOUBT).begin()
    job.wait(60)
    job.all_exit(1)
    assert job.rungs == ["in-place-restart"]
    job.wait(60)
    job.all_exit(1)
    assert (job.status, job.rungs) == (1, ["in-place-restart", "fail"])
    decided = [record for record in job.ledger if isinstance(record, rec.Decided)][-1]
    assert "python3 called ftrun" in dict(decided.passed)["unconditional-requeue"]


def test_in_doubt_the_last_of_a_script_is_no_question() -> None:
    job = Job(settings_with(in_place_restart__crash_restarts=1), call=Call(Reading.DOUBT, "line 3", last=True)).begin()
    job.all_exit(1)
    assert job.rungs == ["in-place-restart"]


def test_plain_is_supervised_without_a_remedy() -> None:
    job = Job(Settings(plain=True)).begin()
    job.devices = {"n2": (fault("n2"),)}
    job.all_exit(4)
    assert (job.status, job.rungs) == (4, ["fail"])
