"""What is behind a failure is found out beside the loop: an answer that is late, or never comes, holds no job up."""

from __future__ import annotations

from typing import Any

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.events import Event, Now
from ftslurm.model.folds.history import fold
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Confidence, ErrorClass, Retriable, Verdict
from ftslurm.policies.judge.judge import Judge, Phase
from tests.stories.replay import START, Job, requeueing

PROGRAM = Verdict(ErrorClass.USER_CODE, Retriable.NO, Confidence.STRONG, "py-key", "KeyError", program=True)


def program(*_: Any) -> Verdict:
    return PROGRAM


def asked(settings: Settings | None = None) -> Job:
    """A rank has failed, all are stopped, and nobody answers what is behind it."""
    job = Job(settings, diagnose=program).begin()
    job.silent = {do.Diagnose}
    job.exits(0, 1)
    assert len(job.did(do.Diagnose)) == 1 and not job.rungs
    return job


def test_nothing_is_decided_before_it_is_known_and_people_hear_what_is_waited_for() -> None:
    job = asked()
    assert job.judge.phase is Phase.SETTLING
    job.wait(3.5)
    assert "waiting for the analysis of the ranks' output" in job.said
    job.tell(ev.Diagnosed(1, PROGRAM))
    assert job.rungs == ["fail"] and job.status == 1
    assert [record.signature for record in job.recorded(rec.Diagnosed)] == ["py-key"]


def test_one_that_takes_too_long_is_unknown_and_its_answer_is_of_no_use_any_more() -> None:
    job = asked()
    job.silent.add(do.Requeue)
    job.wait(61.0)
    assert job.rungs == ["unconditional-requeue"]
    (found,) = job.recorded(rec.Diagnosed)
    assert found.signature == "unknown" and found.what == "not known: the diagnosis did not end within 60 s"
    job.tell(ev.Diagnosed(1, PROGRAM))
    assert len(job.recorded(rec.Diagnosed)) == 1


def test_the_answer_to_an_attempt_before_is_none_to_this_one() -> None:
    job = asked(requeueing(in_place_restart__crash_restarts=1))
    job.wait(61.0)
    job.exits(0, 1)
    job.tell(ev.Diagnosed(1, PROGRAM))
    assert job.judge.phase is Phase.SETTLING and len(job.recorded(rec.Diagnosed)) == 1


def test_ctrl_c_does_not_wait_for_it() -> None:
    job = asked()
    job.tell(ev.SignalSeen(2))
    assert job.status == 1 and not job.rungs


def test_a_rank_of_an_async_job_starts_again_when_it_takes_too_long_and_the_others_go_on() -> None:
    job = Job(requeueing(mode="async"), diagnose=program).begin()
    job.silent = {do.Diagnose}
    job.exits(1, 1)
    job.exits(2, 0)
    assert not job.rungs and job.judge.phase is Phase.RUNNING
    job.wait(61.0)
    assert job.rungs == ["rank-restart"] and set(job.did(do.StartRanks)[-1].env) == {1}
    job.tell(ev.Diagnosed(1, PROGRAM, 1))  # of its start before
    assert len(job.recorded(rec.Diagnosed)) == 1


def test_the_job_is_not_over_while_it_is_asked_what_is_behind_a_rank_s_end() -> None:
    job = Job(requeueing(mode="async"), diagnose=program).begin()
    job.silent = {do.Diagnose}
    job.exits(1, 1)
    for rank in (0, 2, 3):
        job.exits(rank, 0)
    assert job.status is None and job.judge.phase is Phase.RUNNING
    job.tell(ev.Diagnosed(1, PROGRAM, 1))
    assert job.rungs == ["fail"]


class Recorded(Job):
    """Keeps what the judge was told."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.events: list[tuple[Event, Now]] = []
        super().__init__(*args, **more)

    def _tell_one(self, event: Event) -> None:
        self.events.append((self._of_now(event), self.now))
        super()._tell_one(event)


def test_who_is_told_the_same_decides_the_same_with_nobody_to_ask() -> None:
    job = Recorded(requeueing(in_place_restart__crash_restarts=2), diagnose=program, now=START).begin()
    for _ in range(3):
        if not job.judge.finished:
            job.exits(0, 1)
    assert job.recorded(rec.Diagnosed) and job.judge.finished
    again = Judge(job.settings, fold([]), job.facts)
    decisions = [decision for event, now in job.events for decision in again.handle(event, now)]
    assert decisions == job.decisions
