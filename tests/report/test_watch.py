"""What people see who watch a job: lines and tables, without a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.model import record as rec
from ftslurm.model.folds.summary import JobSummary, SlurmWord, by_slurm
from ftslurm.model.messages import DeviceLive, Live, NodeLive, RankLive, TaskLive
from ftslurm.model.settings.tree import Settings
from ftslurm.report.jobs import job_lines
from ftslurm.report.moments import happened
from ftslurm.report.view import status_of
from ftslurm.report.watch import (
    Seen,
    changes,
    devices_sheet,
    fitted,
    head,
    job_changes,
    nodes_sheet,
    ranks_sheet,
    screen,
    sheet_lines,
)
from tests.report.test_view import long_story
from tests.stories.replay import Job, fault

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"


def live_of(job: Job, **other: object) -> Live:
    run = next(record.run for record in reversed(job.ledger) if isinstance(record, rec.RunBegan))
    made = Live(
        run, 5, 0.0, 2.0, (TaskLive(0, "n1", "running"), TaskLive(1, "n2", "running")),
        (
            NodeLive("n1", 0.2, 1.5, (RankLive(0, 0, 12, 0.3, 120, 0.4, 3.25, (), 1.02, 9.0, 40, "allreduce", 2.5),),
                     (DeviceLive("0", "npu", "good", (), 96.0, 40.0, 310.0),)),
            NodeLive("n2", 0.1, 1.2, (RankLive(1, 1, 11, 0.4, 118, 0.5, 2.5, ("step",)),), (DeviceLive("0", "npu", "good"),)),
        ),
    )  # fmt: skip
    return replace(made, **other)  # type: ignore[arg-type]


def seen(job: Job, live: Live | None = None, now_s: float = 5.0, **other: object) -> Seen:
    view = status_of(job.ledger)
    assert view is not None
    return replace(Seen(job.ledger[-1].at + now_s, view, tuple(job.ledger), live), **other)  # type: ignore[arg-type]


def known_as(found: Seen, summary: JobSummary) -> Seen:
    return replace(found, status=replace(found.status, summary=summary))


def running() -> Job:
    return Job(Settings(max_restarts=5)).begin()


def told(found: Seen, width: int = 80) -> str:
    return "\n".join(line.text for line in head(found, width))


def test_the_first_minutes_of_a_hang_stand_in_the_row_of_its_rank() -> None:
    job = running()
    job.ledger.append(
        rec.CulpritSeen(
            job.now.unix, 1, "RankNonCommHang", "Warn", (1,), ("n2",), "gloo:all_reduce", "stopped by a signal",
            ("rank 1 is stopped",), since=job.now.unix - 35, limit_s=180.0, helps="kill -CONT 4711 on n2",
        )
    )  # fmt: skip
    found = seen(job, live_of(job))
    assert "state    running: stuck? rank 1 on n2 (stopped by a signal), 40 s of 180 s" in told(found).splitlines()
    assert "next     kill -CONT 4711 on n2" in told(found).splitlines()
    well, stuck = ranks_sheet(found).rows
    assert stuck.cells[2] == "stuck?" and stuck.cells[-1] == "stopped by a signal, 40 s of 180 s" and stuck.weight == "bad"
    assert well.cells[2] == "running"
    (_, line) = job_lines([found.summary], found.now)
    assert line.endswith("stuck? rank 1 on n2 (stopped by a signal), 40 s of 180 s") and "running" in line


def test_a_later_attempt_tells_how_old_the_job_is() -> None:
    job = running()
    found = seen(job, live_of(job))
    again = known_as(found, found.summary._replace(attempt=2))
    assert "attempt  2, for 5.0 s (5.0 s in all)" in told(again).splitlines()


def test_a_job_that_runs_well() -> None:
    job = running()
    found = seen(job, live_of(job))
    assert told(found).splitlines()[:3] == ["job 7 on c: train", "state    running", "attempt  1, for 5.0 s"]
    assert "2 running; step 118 to 120; 2.50 to 3.25 steps/s" in told(found)
    assert "nodes    n[1-2]" in told(found) and "max_restarts 5 of 5 left" in told(found)
    assert [row.cells for row in ranks_sheet(found).rows] == [
        ("0", "n1", "running", "0 s", "120", "3.25", "1.0", "in allreduce 2 s"),
        ("1", "n2", "running", "0 s", "118", "2.50", "-", "in section step"),
    ]
    assert [row.cells for row in nodes_sheet(found).rows] == [
        ("n1", "0 s", "1/1", "120", "3.25", "1.0", "1 npu, 96 %"), ("n2", "0 s", "1/1", "118", "2.50", "-", "1 npu"),
    ]  # fmt: skip
    assert devices_sheet(found).rows[0].cells == ("n1", "0", "npu", "good", "96%", "40%", "310", "")
    assert [row.node for row in ranks_sheet(found, "n2").rows] == ["n2"] == [row.node for row in devices_sheet(found, "n2").rows]


def test_what_is_not_well_stands_out() -> None:
    job = running()
    live = live_of(
        job, tasks=(TaskLive(0, "n1", "exited with status 1"), TaskLive(1, "n2", "running", False)),
        nodes=(NodeLive("n1", 0.2, 1.0, (), (DeviceLive("0", "npu", "faulty", ("80E01801",)),)), NodeLive("n2", 40.0, 40.0)),
    )  # fmt: skip
    found = seen(job, live)
    assert [(row.cells[2], row.weight) for row in ranks_sheet(found).rows] == [("exit 1", "bad"), ("silent", "bad")]
    assert [(row.cells[1], row.weight) for row in nodes_sheet(found).rows] == [("0 s", "bad"), ("40 s", "bad")]
    heard = replace(live, nodes=live.nodes[:1])
    assert ranks_sheet(seen(job, heard)).rows[1].cells[2] == "no contact"
    assert devices_sheet(found).rows[0].cells[-1] == "80E01801" and "1 device unhealthy" in told(found)
    silent = replace(live, nodes=(live.nodes[0], NodeLive("n2", 40.0, 1.0, (RankLive(1, 1),))))
    assert [row.cells[2] for row in ranks_sheet(seen(job, silent)).rows] == ["exit 1", "silent"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"told_to": False}, "no ftrun runs"),
        ({"watched_s": 1.0}, "ftrun is asked"),
        ({"watched_s": 60.0}, "ftrun does not answer"),
        ({"watched_s": 60.0, "told_s": 40.0, "live": True}, "does not answer, 40 s ago the last time"),
    ],
)
def test_what_is_not_known_is_not_shown_as_if_it_were(other: dict[str, object], why: str) -> None:
    job = running()
    if "live" in other:
        other = {**other, "live": live_of(job)}
    found = seen(job, **other)  # type: ignore[arg-type]
    assert why in told(found) and found.fresh is None
    assert [(*row.cells[:3], row.weight) for row in nodes_sheet(found).rows] == [("n1", "-", "-", "dim"), ("n2", "-", "-", "dim")]
    assert ranks_sheet(found).rows == devices_sheet(found).rows == ()


def test_what_an_ftrun_before_told_is_not_of_the_one_that_runs() -> None:
    job = running()
    assert seen(job, live_of(job, run="another")).fresh is None
    assert seen(job, live_of(job), told_s=3.0).fresh is not None


def test_ranks_of_a_step_that_is_over_are_not_shown_as_if_they_ran() -> None:
    """A node has died, and its replacement is waited for: seen on Slurm."""
    job = running()
    live = live_of(job)
    found = seen(job, replace(live, tasks=(), nodes=(live.nodes[0], replace(live.nodes[1], heard_s=40.0))))
    assert ranks_sheet(found).rows == ()
    assert [(*row.cells[:3], row.weight) for row in nodes_sheet(found).rows] == [
        ("n1", "0 s", "0/0", ""),
        ("n2", "40 s", "0/0", "bad"),
    ]
    assert any(line.startswith("n2") for line in screen(found, 80, 24))
    assert "ranks    none has begun" in told(found).splitlines()


def test_a_wait_says_for_what_and_until_when() -> None:
    job = running()
    job.ledger.append(rec.Waiting(job.ledger[-1].at, 1, "the lease of n2", job.ledger[-1].at + 30))
    first = told(seen(job))
    assert "state    waiting for the lease of n2, until " in first


def test_by_slurms_word_it_is_held() -> None:
    job = running()
    job.exits(0, 1)
    found = seen(job)
    found = known_as(found, by_slurm(found.summary, {found.summary.number: SlurmWord("PENDING", "JobHeldUser", 0, True)}))
    assert "held" in told(found) and "none run now" in told(found) and ranks_sheet(found).rows == ()


@pytest.mark.parametrize("width", [132, 80, 40, 20])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    job = running()
    job.shows(fault())
    found = seen(job, live_of(job))
    for line in screen(found, width, 24):
        assert len(line) <= width, line
    heading = fitted(ranks_sheet(found), width).heading
    assert heading[:1] == ("RANK",)
    assert width < 80 or heading == ranks_sheet(found).heading
    assert width != 40 or set(heading) == {"RANK", "NODE", "STATE", "BEAT", "STEP", "STEPS/S"}


def test_a_large_job_is_shown_by_node_and_the_rest_is_counted() -> None:
    job = running()
    many = range(4000)
    tasks = tuple(TaskLive(rank, f"n{rank // 8}", "running") for rank in many)
    live = live_of(job, tasks=tasks, nodes=tuple(NodeLive(f"n{node}", 0.1, 1.0) for node in range(500)))
    lines = screen(seen(job, live), 80, 24)
    assert "4000 running" in lines[3] and "and 493 more" in lines and len(lines) <= 24


def test_words_of_others_rule_no_terminal() -> None:
    job = running()
    live = live_of(
        job, tasks=(TaskLive(0, f"n1{EVIL}", f"exited{EVIL}"),),
        nodes=(NodeLive(f"n1{EVIL}", 0.0, 0.0, (RankLive(0, 0, inside=f"a{EVIL}"), RankLive(1, 1, sections=(EVIL,))),
                        (DeviceLive(EVIL, EVIL, f"faulty{EVIL}", (EVIL,)),)),),
    )  # fmt: skip
    job.ledger.append(rec.ProgramSaid(job.ledger[-1].at, 1, 0, "message", f"hello{EVIL}\nnow completed"))
    found = seen(job, live)
    shown = [
        *screen(found, 200, 60),
        *changes(found, None)[0],
        *sheet_lines(devices_sheet(found), 200, 9),
        *sheet_lines(nodes_sheet(found), 200, 9),
    ]
    shown += [each.what for each in happened(found.records)]
    assert all(line.isprintable() for line in shown) and any("hello?" in line for line in shown)


# --- in a pipe


def test_a_line_for_each_change_and_none_where_nothing_has() -> None:
    job = running()
    first, marks = changes(seen(job, live_of(job)), None)
    assert "job 7 on c: train" in first[0] and "state running" in first[1] and first[-1].endswith("ranks 0-1: running")
    assert changes(seen(job, live_of(job)), marks)[0] == []
    job.exits(0, 1)
    live = live_of(job, tasks=(TaskLive(0, "n1", "exited with status 1"), TaskLive(1, "n2", "running")))
    lines, marks = changes(seen(job, live), marks)
    assert any("in-place-restart (costs one of crash_restarts)" in line for line in lines)
    assert any(line.endswith("rank 0: exit 1") for line in lines)
    assert changes(seen(job, live), marks)[0] == []


def test_progress_is_a_line_now_and_then() -> None:
    job = running()
    _, marks = changes(seen(job, live_of(job)), None)
    assert changes(seen(job, live_of(job), 20.0), marks)[0] == []
    lines, marks = changes(seen(job, live_of(job), 40.0), marks)
    assert [line.partition("  ")[2] for line in lines] == ["ranks 2 running; step 118 to 120; 2.50 to 3.25 steps/s"]
    assert changes(seen(job, live_of(job), 50.0), marks)[0] == []


def test_nodes_fall_silent_and_devices_fail_once() -> None:
    job = running()
    _, marks = changes(seen(job, live_of(job)), None)
    bad = live_of(job, nodes=(NodeLive("n1", 30.0, 1.0, (), (DeviceLive("0", "npu", "faulty"),)), live_of(job).nodes[1]))
    lines, marks = changes(seen(job, bad), marks)
    assert [line.partition("  ")[2] for line in lines] == ["device n1.npu.0 is faulty", "n1 is silent"]
    assert changes(seen(job, bad), marks)[0] == []
    lines, marks = changes(seen(job, live_of(job)), marks)
    assert [line.partition("  ")[2] for line in lines] == ["device n1.npu.0 is good", "n1 is heard again"]


def test_a_node_that_was_replaced_is_not_heard_again() -> None:
    job = running()
    live = live_of(job)
    _, marks = changes(seen(job, replace(live, nodes=(live.nodes[0], replace(live.nodes[1], heard_s=40.0)))), None)
    assert changes(seen(job, replace(live, nodes=live.nodes[:1])), marks)[0] == []


def test_the_end_is_told_once() -> None:
    job = running()
    _, marks = changes(seen(job, live_of(job)), None)
    job.all_exit(0)
    lines, marks = changes(seen(job), marks)
    assert sum("ended with status 0" in line for line in lines) == 1 and not any("now completed" in line for line in lines)
    gone = seen(running())
    gone = known_as(gone, gone.summary._replace(state="gone", what="its ftrun was killed", over=True))
    _, marks = changes(seen(running()), None)
    assert changes(gone, marks)[0][-1].endswith("now gone: its ftrun was killed")


def test_a_list_of_jobs_tells_what_changes() -> None:
    summary = seen(running()).summary
    lines, before = job_changes([summary], 0.0, None)
    assert lines[0].endswith("job 7: running, attempt 1 on n[1-2]")
    assert job_changes([summary], 1.0, before)[0] == []
    lines, before = job_changes([summary._replace(attempt=2)], 2.0, before)
    assert lines[0].endswith("attempt 2 on n[1-2]")
    assert job_changes([], 3.0, before)[0][0].endswith("job 7: over")


def test_all_that_happened_in_a_long_story_is_told() -> None:
    lines = [each.what for each in happened(long_story().ledger)]
    for part in ("attempt 1 began on n[1-2], ", "fault 80E01801", "in-place-restart", "isolated-requeue", "done: ",
                 "unconditional-requeue", "attempt 4 ended", "ended with status 0"):  # fmt: skip
        assert any(part in line for line in lines), part
