"""A ledger as people ask for it. The ledgers here are written by the judge itself, in the stories' world."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.decisions import Requeue
from ftslurm.model.devices import FaultClass
from ftslurm.model.folds.summary import summarise
from ftslurm.report.account.job import account
from ftslurm.report.text import print_history, print_status
from ftslurm.report.view import Status, attempts, status_of
from ftslurm.simulation.world import SIGTERM
from tests.settings import settings_with
from tests.stories.replay import RUNNING, Job, fault, requeueing


def view(job: Job) -> Status:
    found = status_of(job.ledger)
    assert found is not None
    return found


def long_story() -> Job:
    """Healed in place, requeued without a node, requeued once more, done."""
    job = Job(requeueing(max_restarts=5)).begin()
    job.shows(fault())
    job.shows(fault(code="80E18402", graded=FaultClass.ISOLATE))
    job = job.again(nodes=("n1", "n3")).begin()
    job.exits(0, 7)
    job = job.again(nodes=("n1", "n3")).begin()
    job.wait(100)
    job.all_exit(0)
    return job


def test_nothing_has_no_status() -> None:
    assert status_of([]) is None and attempts([]) == []


def test_a_job_that_runs_well() -> None:
    job = Job().begin()
    seen = view(job)
    assert (*seen.summary[:2], seen.summary.state, seen.summary.nodes) == ("7", "c", "running", "n[1-2]")
    assert (seen.summary.attempt, seen.summary.schedule_count, seen.start_count) == job.counters == (1, 1, 1)
    assert (seen.summary.rung, seen.excluded, seen.summary.requeue_open) == ("", {}, False)
    assert seen.left == {"max_restarts": (8, 8)}


@pytest.mark.parametrize("moment", range(4))
def test_the_counters_shown_are_those_the_ranks_got(moment: int) -> None:
    job = Job().begin()
    for step in range(moment):
        if step == 1:
            job.exits(0, 1)
            job = job.again().begin()
        else:
            job.shows(fault(code=f"80E0180{step}"))
    seen = view(job)
    assert (seen.summary.schedule_count, seen.start_count, seen.summary.attempt) == job.counters


def test_budgets_and_excluded_nodes() -> None:
    job = Job(requeueing(max_restarts=5)).begin()
    job.exits(0, 1)
    job = job.again().begin()
    job.shows(fault(graded=FaultClass.ISOLATE))
    seen = view(job)
    assert seen.left["max_restarts"] == (3, 5)
    assert list(seen.excluded) == ["n2"] and "80E01801" in seen.excluded["n2"]
    assert (seen.summary.rung, seen.summary.cause, seen.summary.state) == ("isolated-requeue", "device", "requeued")


def test_restarts_that_count_for_the_whole_job_are_left_in_a_report_as_in_the_status() -> None:
    job = Job(settings_with(max_job_restarts=10)).begin()
    job.exits(0, 1)
    known = summarise(job.ledger)
    assert known is not None
    report = account(job.ledger, known, 1000.0)
    assert report.budgets["max_job_restarts"] == view(job).left["max_job_restarts"] == (9, 10)


def test_nodes_that_are_reinstated_are_excluded_no_more_and_the_history_says_why() -> None:
    decided = rec.Decided(2.0, "r-1", 1, "isolated-requeue", "hardware", "", isolate={"n2": "x"}, words={"n2": "ecc"})
    past = Job().begin()
    past.ledger += [decided, rec.Reinstated(3.0, 1, "ecc", {"n2": "it is the program"})]
    assert not view(past).excluded
    assert attempts(past.ledger)[-1].ends[-1] == "n2 is not to blame: it is the program"


def test_unconditional_requeues_in_a_row() -> None:
    job = Job().begin()
    job.exits(0, 1)
    job = job.again().begin()
    job.exits(0, 1)
    assert view(job).unconditional_in_a_row == 2


def test_a_requeue_that_nobody_finished_is_shown_as_open() -> None:
    job = Job().begin()
    job.silent = {Requeue}
    job.exits(0, 1)
    seen = view(job)
    assert seen.summary.requeue_open and seen.summary.words == "waiting for its nodes to be clean"
    job.tell(ev.RequeueEnded(True, "requeued"))
    assert not view(job).summary.requeue_open and view(job).summary.state == "requeued"


def test_the_end_is_told_with_status_and_reason() -> None:
    assert view(long_story()).summary.words == "completed"
    failed = Job(requeueing(unconditional_requeue__enabled=False)).begin()
    failed.exits(2, 9)
    assert view(failed).summary.words.startswith("failed: status 9: rank 2 on n2 exited with status 9")
    assert "state      failed\n" in shown(print_status, view(failed), 0.0), "the card says what the end was about"


def test_a_second_ftrun_after_a_first_that_ended_runs() -> None:
    first = Job().begin()
    first.all_exit(0)
    assert view(Job(past=first.ledger, step_key="evaluate").begin()).summary.state == "running"


def test_every_attempt_with_cause_remedy_nodes_and_times() -> None:
    job = long_story()
    told = attempts(job.ledger)
    assert [(a.number, a.began.schedule + 1, a.began.starts, a.began.nodes, a.began.tasks) for a in told] == [
        (1, 1, 1, "n[1-2]", 4), (2, 1, 2, "n[1-2]", 4), (3, 2, 1, "n[1,3]", 4), (4, 3, 1, "n[1,3]", 4),
    ]  # fmt: skip
    assert [[remedy.decided.rung for remedy in a.remedies] for a in told] == [
        ["in-place-restart"],
        ["isolated-requeue"],
        ["unconditional-requeue"],
        [],
    ]
    assert [[done.ok for remedy in a.remedies for done in remedy.done] for a in told] == [[True], [True], [True], []]
    assert told[0].faults[0].code == "80E01801" and told[1].faults[0].code == "80E18402"
    assert told[1].remedies[0].decided.exclude == ("n2",)
    assert told[2].cause == "rank 0 on n1 exited with status 7" and told[2].exits["exited with status 7"] == 1
    assert told[3].ended is not None and told[3].ended.at - told[3].began.at == pytest.approx(102)
    assert told[3].exits == {"exited with status 0": 4}
    assert all(a.ended is not None and a.began.at <= a.ended.at for a in told)


def test_why_a_rung_was_not_taken_is_kept() -> None:
    job = Job().begin()
    job.exits(0, 1)
    passed = dict(attempts(job.ledger)[0].remedies[0].decided.passed)
    assert set(passed) == {"in-place-restart", "hang-restart", "node-replacement", "shrink", "isolated-requeue"} and all(
        passed.values()
    )


def test_an_attempt_whose_end_nobody_wrote_has_none() -> None:
    dead = Job().begin()
    (told,) = attempts(dead.ledger)
    assert told.ended is None and told.remedies == []


def test_healing_that_failed_and_what_came_then_stand_side_by_side() -> None:
    job = Job().begin()
    job.heals = False
    job.shows(fault())
    (told,) = attempts(job.ledger)
    assert [(remedy.decided.rung, remedy.done[-1].ok) for remedy in told.remedies] == [
        ("in-place-restart", False),
        ("isolated-requeue", True),
    ]


def test_a_refused_requeue_is_told() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, requeueable=False)
    job.exits(0, 3)
    assert attempts(job.ledger)[0].remedies[0].decided.rung == "fail"
    assert "--requeue" in dict(attempts(job.ledger)[0].remedies[0].decided.passed)["unconditional-requeue"]


def test_signals_are_noted() -> None:
    job = Job().begin()
    job.tell(ev.SignalSeen(SIGTERM, 0))
    assert attempts(job.ledger)[0].notes == ["SIGTERM: warning"]


def test_records_without_their_beginning_end_nobody() -> None:
    """A ledger whose first lines were damaged."""
    ledger = long_story().ledger
    for cut in range(len(ledger)):
        attempts(ledger[cut:])
        status_of(ledger[cut:], damaged=cut)
    assert status_of([record for record in ledger if not isinstance(record, rec.AttemptBegan)]) is not None


# --- as text


def shown(print_it: object, *values: object, width: int = 80) -> str:
    out = io.StringIO()
    print_it(Console(file=out, width=width), *values)  # type: ignore[operator]
    return out.getvalue()


def test_a_status_names_all_that_people_ask_for() -> None:
    job = long_story()
    text = shown(print_status, view(job), 0.0)
    for word in (
        "MA_SCHEDULE_CNT 3",
        "MA_PROC_START_CNT 1",
        "max_restarts 3 of 5 left",
        "n2",
        "unconditional-requeue",
        "n[1,3]",
        "job 7 on c",
    ):
        assert word in text, text


def test_a_history_tells_the_whole_story_in_a_pipe() -> None:
    job = long_story()
    text = shown(print_history, view(job), attempts(job.ledger), 0.0)
    for word in (
        "attempt 1",
        "attempt 4",
        "in-place-restart",
        "isolated-requeue",
        "rank 0 on n1 exited with status 7",
        "80E18402",
    ):
        assert word in text, text


def test_a_history_tells_why_a_step_that_never_came_up_failed() -> None:
    why = "the step did not come up: its launcher exited with status 1"
    run = rec.RunBegan(1.0, "s", "7", "c", 0, "", "x", "n[1-2]")
    records = [
        run, rec.TroubleSeen(2.0, 0, "launch", why), rec.Decided(2.0, "s-1", 0, "fail", "launch", "because", status=1),
        rec.Finished(2.0, "s", 1, why, outcome="failed"),
    ]  # fmt: skip
    before = [run, rec.AttemptBegan(1.0, "s", 1, 0, "", 1, "n[1-2]", 2), *records]
    for each in (records, before):
        seen = status_of(each)
        assert seen is not None and why in shown(print_history, seen, attempts(each), 3.0, width=120)


def test_a_standstill_shows_what_its_rank_does_and_what_helps_now() -> None:
    job = Job().begin()
    does = "rank 1 is stopped somewhere"
    named = rec.CulpritSeen(job.now.unix, 1, "RankNonCommHang", "Warn", (1,), ("n2",), "", "stopped", (does,), limit_s=180.0)
    job.ledger.append(replace(named, helps="kill -CONT 4711 on n2"))
    text = shown(print_status, view(job), job.now.unix, width=120)
    assert f"stuck      {does}\n" in text and "next       kill -CONT 4711 on n2  (lets it go on)" in text
    assert "next       ftslurm control 7 restart" in text


def test_a_fault_that_only_counts_is_shown_while_its_attempt_runs() -> None:
    job = Job().begin()
    job.shows(fault(code="XID63", graded=FaultClass.IGNORE))
    line = "fault      XID63 (name of XID63) on device 0.0 of n2: recorded, and no more\n"
    text = shown(print_history, view(job), attempts(job.ledger), job.now.unix + 7.0)
    assert line in shown(print_status, view(job), job.now.unix) and line.replace("fault ", "fault") in text
    assert "so far on n[1-2], 4 tasks" in text
    job.all_exit(0)
    assert "XID63" not in shown(print_status, view(job), job.now.unix)


def test_words_of_the_user_are_shown_as_they_are_and_not_as_markup() -> None:
    job = Job().begin()
    seen = view(job)
    summary = seen.summary._replace(command="train [bold]x[/bold] [/] [1]", rung="[link=x]", state="[/]")
    seen = replace(seen, summary=summary, why="[red]")
    assert "train [bold]x[/bold] [/] [1]" in shown(print_status, seen, 0.0)


def test_a_command_line_in_no_encoding_can_be_shown() -> None:
    seen = view(Job().begin())
    evil = "train " + b"\xff".decode(errors="surrogateescape")
    seen = replace(seen, summary=seen.summary._replace(command=evil), why="\ud800")
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    print_status(Console(file=out, width=80), seen, 0.0)
    print_history(Console(file=out, width=80), seen, [], 0.0)
    out.flush()


def test_who_hangs_stands_in_fields_for_programs() -> None:
    job = Job(requeueing()).begin()
    found = rec.CulpritSeen(
        5.0, 1, "RankNonCommHang", "Warn", (2,), ("n2",), "gloo:all_reduce", "asleep", ("rank 0 waits",), ("n2",)
    )
    slow = rec.CulpritSeen(6.0, 1, "RankNonCommSlow", "Info", (1,), ("n1",), "", "late")
    old = rec.HangSeen(4.0, 1, "stall", "no progress")
    records = [*job.ledger, old, found, slow]
    assert status_of(records).hang == found  # type: ignore[union-attr]
    assert [each.ranks for each in attempts(records)[-1].hangs] == [(), (2,), (1,)]
    assert status_of([*job.ledger, old]).hang == old  # type: ignore[union-attr]
    assert view(job).hang is None
