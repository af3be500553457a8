"""Stories of jobs that stand still. Source: ModelArts (IO, then use; the rung) and AIMaster (silence, exit)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import GroupView, ProcessState, RankView
from ftslurm.model.folds.summary import summarise
from ftslurm.model.verdict import Piece, RankEnd
from ftslurm.report.view import status_of
from tests.settings import settings_with
from tests.stories.replay import Advise, Job, fault, requeueing

ON = requeueing(hang_restart__enabled=True)


def quiet(job: Job, *nodes: str, seconds: float = 1800.0) -> list[do.Decision]:
    return job.tell(*(ev.QuietSeen(node, seconds, f"no IO for {seconds:g} s") for node in nodes or job.nodes))


def test_agents_are_told_which_shims_to_watch_and_for_how_long() -> None:
    job = Job(requeueing(hang__detect_time_s=60.0)).begin()
    told = {node: ranks for watch in job.did(do.WatchRanks) for node, ranks in watch.ranks.items()}
    assert told == {"n1": ((0, 9000, 1), (1, 9001, 1)), "n2": ((2, 9002, 1), (3, 9003, 1))}
    assert {watch.quiet_s for watch in job.did(do.WatchRanks)} == {60.0}
    assert {watch.quiet_s for watch in Job(requeueing(hang__detection=False)).begin().did(do.WatchRanks)} == {0.0}


def test_a_job_without_io_and_without_change_of_use_hangs_and_is_started_again_in_place() -> None:
    job = Job(ON).begin()
    quiet(job)
    assert job.rungs == ["hang-restart"] and job.counters == (1, 2, 2) and job.status is None
    assert not job.did(do.StopRanks)[0].saves, "a save that hangs never ends"
    (hang,) = job.recorded(rec.HangSeen)
    assert hang.sign == "io" and "1800 s" in hang.what and len(hang.evidence) == 2
    assert job.recorded(rec.Decided)[0].cost == "" and job.env()["FTSLURM_RESTART_CAUSE"] == "hang"


def test_evidence_is_taken_before_the_ranks_are_stopped_and_kept() -> None:
    job = Job(ON).begin()
    told = quiet(job)
    order = [type(one).__name__ for one in told]
    assert order.index("TakeEvidence") < order.index("StopRanks")
    assert [(keep.node, keep.text) for keep in job.did(do.KeepEvidence)] == [("n1", "stacks of n1"), ("n2", "stacks of n2")]


def test_evidence_that_does_not_come_holds_nothing_up_for_longer_than_its_time() -> None:
    job = Job(ON).begin()
    job.silent.add(do.TakeEvidence)
    quiet(job)
    assert not job.did(do.StopRanks)
    job.wait(10.5)
    assert job.rungs == ["hang-restart"]


def test_io_on_one_node_is_life() -> None:
    job = Job(ON).begin()
    quiet(job, "n1")
    assert not job.did(do.SampleUse) and not job.recorded(rec.HangSeen)
    job.tell(ev.QuietSeen("n1", 0.0))
    quiet(job, "n2")
    assert not job.did(do.SampleUse)


@pytest.mark.parametrize("idle", [False, None])
def test_a_use_that_changes_or_cannot_be_told_is_no_hang(idle: bool | None) -> None:
    job = Job(ON).begin()
    job.idle = idle
    quiet(job)
    assert job.did(do.SampleUse) and not job.recorded(rec.HangSeen)
    job.idle = True
    quiet(job)
    assert job.rungs == ["hang-restart"], "and it is asked again later"


def test_io_while_use_is_sampled_is_life() -> None:
    job = Job(ON).begin()
    job.silent.add(do.SampleUse)
    quiet(job)
    job.tell(ev.QuietSeen("n2", 0.0), ev.UseSampled("n1", True), ev.UseSampled("n2", True))
    job.wait(200)
    assert not job.recorded(rec.HangSeen)


def test_agents_that_never_answer_for_use_are_no_hang() -> None:
    job = Job(ON).begin()
    job.silent.add(do.SampleUse)
    quiet(job)
    job.wait(200)
    assert not job.recorded(rec.HangSeen) and job.status is None


def test_without_hang_restart_a_hang_is_said_and_the_ranks_are_left_alone() -> None:
    job = Job().begin()
    quiet(job)
    assert job.recorded(rec.HangSeen) and "keep running" in job.said and not job.did(do.StopRanks)
    job.all_exit()
    assert job.status == 0


def test_the_fourth_hang_in_a_row_ends_the_job() -> None:
    job = Job(ON).begin()
    for _ in range(4):
        quiet(job)
    assert job.rungs == ["hang-restart"] * 3 + ["fail"] and job.status not in (0, None)
    assert "3 hang restarts in a row" in job.said


def test_another_remedy_in_between_starts_the_count_anew() -> None:
    job = Job(ON).begin()
    for _ in range(3):
        quiet(job)
    job.shows(fault())
    for _ in range(3):
        quiet(job)
    assert job.rungs.count("hang-restart") == 6 and job.status is None


def test_a_hardware_fault_found_then_goes_its_own_rung() -> None:
    job = Job(ON).begin()
    job.silent.add(do.TakeEvidence)
    quiet(job)
    job.devices["n2"] = (fault("n2"),)
    job.wait(10.5)
    assert job.rungs == ["in-place-restart"] and job.recorded(rec.Decided)[0].cause == "device"


def test_silence_of_every_running_rank_is_a_hang_where_it_is_asked_for() -> None:
    job = Job(requeueing(hang_restart__enabled=True, hang__log_silence=True, hang__interval_s=60.0)).begin()
    job.tell(*(ev.RankSilent(rank, 60.0) for rank in range(3)))
    assert not job.recorded(rec.HangSeen)
    job.tell(ev.RankSilent(2, 0.0), ev.RankSilent(3, 60.0))
    assert not job.recorded(rec.HangSeen), "rank 2 speaks again"
    job.tell(ev.RankSilent(2, 60.0))
    assert job.rungs == ["hang-restart"]
    other = Job(ON).begin()
    other.tell(*(ev.RankSilent(rank, 60.0) for rank in range(4)))
    assert not other.recorded(rec.HangSeen)


def test_ranks_that_do_not_end_after_the_others_hang() -> None:
    job = Job(requeueing(hang_restart__enabled=True, hang__exit_detection=True, hang__exit_interval_s=60.0)).begin()
    job.exits(0)
    job.exits(1)
    job.wait(59)
    assert not job.recorded(rec.HangSeen)
    job.wait(2)
    assert job.recorded(rec.HangSeen)[0].sign == "exit" and "2, 3" in job.recorded(rec.HangSeen)[0].what
    assert job.rungs == ["hang-restart"]


def test_ranks_that_end_in_time_do_not() -> None:
    job = Job(requeueing(hang_restart__enabled=True, hang__exit_detection=True, hang__exit_interval_s=60.0)).begin()
    job.exits(0)
    job.wait(59)
    for rank in (1, 2, 3):
        job.exits(rank)
    assert job.status == 0 and not job.recorded(rec.HangSeen)


def test_a_warning_from_slurm_is_no_hang() -> None:
    job = Job(ON).begin()
    job.tell(ev.SignalSeen(15, rank=0))
    quiet(job)
    assert not job.recorded(rec.HangSeen)


# --- what programs tell of themselves


def test_a_heartbeat_that_does_not_come_is_a_hang() -> None:
    job = Job(ON).begin()
    job.tell(ev.BeatOverdue(1, "no heartbeat for 3.0 s; the limit is 3 s"))
    assert job.rungs == ["hang-restart"] and job.recorded(rec.HangSeen)[0].sign == "beat"
    assert "rank 1 on n1" in job.recorded(rec.HangSeen)[0].what


def test_a_program_s_words_are_passed_on() -> None:
    job = Job().begin()
    job.tell(ev.ProgramSaid(2, "message", ("the loss is NaN",)))
    assert "rank 2: the loss is NaN" in job.said and job.recorded(rec.ProgramSaid)[0].rank == 2


def test_a_program_that_asks_to_be_ended_is_not_started_again() -> None:
    job = Job().begin()
    job.tell(ev.ProgramSaid(2, "shutdown", ("the data is used up",)))
    job.exits(2, 3)
    assert job.rungs == ["fail"] and job.status == 3 and "the data is used up" in job.said


def test_a_node_that_the_program_asks_to_leave_is_left() -> None:
    job = Job().begin()
    job.tell(ev.ProgramSaid(2, "exclude", ("slow memory",)))
    job.exits(2, 3)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_who_hangs_is_told_from_what_all_ranks_were_doing() -> None:
    group = GroupView("0#1", (0, 1, 2, 3), 11, 10, None, "gloo:all_reduce")
    views = [RankView(rank, f"n{rank // 2 + 1}", ProcessState.SLEEPING, groups=(group,), probed=True) for rank in (0, 1, 3)]
    behind = RankView(
        2, "n2", ProcessState.SLEEPING, wchan="hrtimer_nanosleep", groups=(replace(group, entered=10),), probed=True
    )
    job = Job(ON).begin()
    job.silent.add(do.TakeEvidence)
    quiet(job)
    job.tell(ev.EvidenceTaken("n1", "stacks", tuple(views[:2])), ev.EvidenceTaken("n2", "stacks", (behind, views[2])))
    (culprit,) = job.recorded(rec.CulpritSeen)
    assert (culprit.sign, culprit.ranks, culprit.nodes) == ("RankNonCommHang", (2,), ("n2",))
    assert job.rungs == ["hang-restart"] and "RankNonCommHang" in job.said


# --- what is told late


def started_again() -> Job:
    job = Job(settings_with(ON, hang__exit_detection=True)).begin()
    quiet(job)
    assert job.counters[2] == 2 and job.rungs == ["hang-restart"]
    return job


@pytest.mark.parametrize("late", [
    [ev.BeatOverdue(1, "late", attempt=1)],
    [ev.StageSet(0, -1.0, attempt=1)],
    [ev.QuietSeen(node, 1800.0, attempt=1) for node in ("n1", "n2")],
    [ev.StallSeen(node, 2, 100.0, usual_s=1.0, attempt=1) for node in ("n1", "n2")],
], ids=lambda events: type(events[0]).__name__)  # fmt: skip
def test_what_an_agent_told_of_the_ranks_before_these_says_nothing_of_these(late: list[ev.Event]) -> None:
    job = started_again()
    assert not job.tell(*late)
    assert job.tell(*(replace(event, attempt=2) for event in late)), "the same of these does"


def test_nor_does_what_is_told_of_a_rank_that_is_none() -> None:
    job = started_again()
    assert not job.tell(ev.BeatOverdue(99, "late", attempt=2), ev.StageSet(99, -1.0, attempt=2))


def test_evidence_of_the_ranks_before_is_not_that_of_these() -> None:
    job = started_again()
    job.silent.add(do.TakeEvidence)
    quiet(job)
    job.tell(*(ev.EvidenceTaken(node, "old", attempt=1) for node in job.nodes))
    assert job.rungs == ["hang-restart"], "that of these is still awaited"
    job.tell(*(ev.EvidenceTaken(node, "new") for node in job.nodes))
    assert job.rungs == ["hang-restart"] * 2 and {keep.text for keep in job.did(do.KeepEvidence)} == {
        "stacks of n1",
        "stacks of n2",
        "new",
    }


def test_use_that_was_sampled_of_the_ranks_before_is_no_proof() -> None:
    job = started_again()
    job.silent.add(do.SampleUse)
    quiet(job)
    job.tell(*(ev.UseSampled(node, True, attempt=1) for node in job.nodes))
    job.wait(200)
    assert job.rungs == ["hang-restart"]


def test_progress_of_the_ranks_before_is_none_of_these() -> None:
    job = Job(ON).begin()
    for number in range(1, 5):
        job.tell(ev.Progressed("n1", 100 * number, attempt=number - 1), ev.BeatOverdue(1, "late"))
    assert job.rungs == ["hang-restart"] * 3 + ["fail"]


def test_what_the_program_before_asked_for_it_has_had() -> None:
    job = started_again()
    job.tell(ev.ProgramSaid(2, "shutdown", ("the data is used up",), attempt=1, place=90))
    job.tell(ev.ProgramSaid(2, "shutdown", ("the data is used up",), attempt=1, place=90))  # its agent and its shim
    job.tell(ev.ProgramSaid(2, "message", ("half way",), attempt=1))
    assert [said.attempt for said in job.recorded(rec.ProgramSaid)] == [1, 1] and "half way" in job.said
    job.exits(2, 3)
    assert job.rungs == ["hang-restart", "unconditional-requeue"]


# --- what looks like a hang while a signal explains it


def outlives(job: Job) -> Job:
    """A warning that the ranks outlive; long after it, it explains nothing any more."""
    job.tell(ev.SignalSeen(15, rank=0))
    return job


@pytest.mark.parametrize("told", [
    [ev.QuietSeen("n1", 1800.0), ev.QuietSeen("n2", 1800.0)],
    [ev.RankSilent(rank, 60.0) for rank in range(4)],
    [ev.BeatOverdue(1, "late")],
], ids=lambda events: type(events[0]).__name__)  # fmt: skip
def test_what_was_told_while_a_signal_explained_it_is_told_again_after_it(told: list[ev.Event]) -> None:
    job = outlives(Job(settings_with(ON, hang__log_silence=True, hang__interval_s=60.0)).begin())
    watched, told_s = len(job.did(do.WatchRanks)), len(job.did(do.SetIntervals))
    job.tell(*told)
    job.wait(500)
    assert len(job.did(do.WatchRanks)) == watched, "it still explains it"
    job.wait(200)
    assert not job.recorded(rec.HangSeen)
    assert job.did(do.WatchRanks)[-1].ranks.keys() == {"n1", "n2"} and len(job.did(do.WatchRanks)) == watched + 1
    assert job.did(do.SetIntervals)[told_s:] == [do.SetIntervals(60.0, 1800.0)]
    job.tell(*told)
    assert job.rungs == ["hang-restart"]


def test_life_before_the_signal_is_not_remembered_beyond_it() -> None:
    """n1 was quiet, did IO again while the signal held, and is not quiet now."""
    job = Job(ON).begin()
    quiet(job, "n1")
    outlives(job).tell(ev.QuietSeen("n1", 0.0))
    job.wait(700)
    quiet(job, "n2")
    assert not job.did(do.SampleUse)
    quiet(job, "n1")
    assert job.rungs == ["hang-restart"]


# --- a rank of an async job that is started again alone

ALONE = settings_with(ON, mode="async", hang__log_silence=True, hang__interval_s=60.0)


def test_where_the_program_of_a_rank_was_is_forgotten_with_it() -> None:
    job = Job(ALONE).begin()
    job.tell(ev.StageSet(0, -1.0))
    assert job.did(do.SetIntervals) == [do.SetIntervals(0.0, 0.0)]
    job.exits(0, 1)
    assert job.rungs == ["rank-restart"] and job.did(do.SetIntervals)[-1] == do.SetIntervals(60.0, 1800.0)


def test_the_silence_of_a_rank_ends_with_it() -> None:
    job = Job(ALONE).begin()
    job.tell(ev.RankSilent(0, 60.0))
    job.exits(0, 1)
    assert job.rungs == ["rank-restart"]
    job.tell(*(ev.RankSilent(rank, 60.0) for rank in (1, 2, 3)))
    assert not job.recorded(rec.HangSeen), "rank 0 has only begun"
    job.tell(ev.RankSilent(0, 60.0))
    assert job.recorded(rec.HangSeen)[0].sign == "silence"


def test_no_io_on_a_node_ends_with_the_start_of_a_rank_there() -> None:
    job = Job(ALONE).begin()
    quiet(job, "n1")
    job.exits(0, 1)
    quiet(job, "n2")
    assert job.rungs == ["rank-restart"] and not job.did(do.SampleUse)


def test_an_agent_of_a_node_without_ranks_is_not_waited_for() -> None:
    """Of a node that was left, or not taken yet: it watches nobody."""
    job = Job(ON).begin()
    job.tell(ev.AgentArrived("n9", ("ascend",)))
    quiet(job)
    assert job.rungs == ["hang-restart"], "at once, and not after the time for evidence"


# --- limits that the program sets while it runs

UNSAID = requeueing()  # nobody has said anything of hang restarts
OVERDUE = ev.BeatOverdue(1, "no heartbeat for 3.0 s; the limit is 3 s")


@pytest.mark.parametrize(
    "said",
    [
        ev.ProgramSaid(1, "limits", ("beat 3 s",), 1), ev.StageSet(1, 180.0, 1),
        ev.ProgramSaid(1, "setting", ("job_exit_hang_interval", "60.0"), 1),
    ],
)  # fmt: skip
def test_a_program_that_sets_a_limit_means_a_restart_as_a_flag_does(said: ev.Event) -> None:
    job = Job(UNSAID).begin()
    job.tell(said)
    assert job.said.count("the program has set limits of its own") == 1 and job.recorded(rec.ProgramSaid)
    quiet(job)
    assert job.rungs == ["hang-restart"]


def test_a_beat_that_is_late_by_calculated_timeouts_is_answered() -> None:
    job = Job(UNSAID).begin()
    job.tell(ev.ProgramSaid(1, "limits", ("beat 3 s", "section step 9 s"), 1), OVERDUE)
    assert job.rungs == ["hang-restart"]


@pytest.mark.parametrize("said", [ev.StageSet(1, -1.0, 1), ev.StageSet(1, None, 1), ev.ProgramSaid(1, "message", ("x",), 1)])
def test_what_is_no_limit_asks_for_nothing(said: ev.Event) -> None:
    job = Job(UNSAID).begin()
    job.tell(said, ev.StageSet(1, None, 1))
    quiet(job)
    assert not job.rungs and job.recorded(rec.HangSeen)


def test_hang_restart_that_was_switched_off_stays_off() -> None:
    job = Job(settings_with(UNSAID, hang_restart__enabled=False)).begin()
    job.tell(ev.ProgramSaid(1, "limits", ("beat 3 s",), 1), ev.StageSet(1, 180.0, 1), OVERDUE)
    assert not job.rungs and job.recorded(rec.HangSeen)


def test_a_rank_without_a_probe_is_told_once_for_all() -> None:
    said = [ev.ProgramSaid(rank, "probe", ("something has set PYTHONPATH anew",), 1) for rank in (2, 3)]
    job = Job().begin()
    job.tell(*said)
    assert job.said.count("has no probe: something has set PYTHONPATH anew") == 1 and "rank 2" in job.said
    assert [(found.what, found.rank) for found in job.recorded(rec.ProgramSaid)] == [("probe", 2)] and not job.rungs
    job = Job(settings_with(UNSAID, sdk__inject=False)).begin()
    job.tell(*said)
    assert not job.recorded(rec.ProgramSaid), "that is what was asked for"


# --- a hang that is left alone


def advised(*hints: tuple[str, str, str, tuple[str, ...]]) -> tuple[Advise, list[Any]]:
    """Gives these hints, and keeps what it was asked with."""
    asked: list[Any] = []

    def advise(ends: tuple[RankEnd, ...], stacks: Mapping[str, str]) -> Sequence[tuple[str, str, str, tuple[str, ...]]]:
        asked.append((ends, stacks))
        return hints

    return advise, asked


HINT = ("loader", "ranks wait for their DataLoader workers", "use fewer workers", ())


def test_hints_come_with_the_report_of_a_hang_that_nothing_answers() -> None:
    advise, asked = advised(HINT)
    job = Job(advise=advise).begin()
    job.printed = {1: (Piece(job.now.unix, "out", "epoch 3\n"), Piece(job.now.unix + 60, "err", "stopped\n"))}
    quiet(job)
    ((ends, stacks),) = asked
    assert [piece.text for piece in ends[1].output] == ["epoch 3\n"], "what comes later may be of our own doing"
    assert stacks == {"n1": "stacks of n1", "n2": "stacks of n2"} and not job.did(do.StopRanks)
    assert (
        job.recorded(rec.Advised)[0].name == "loader" and "ranks wait for their DataLoader workers: use fewer workers" in job.said
    )
    assert {keep.node for keep in job.did(do.KeepEvidence)} == {"n1", "n2"}


def test_a_shim_that_does_not_tell_its_words_holds_the_report_up_for_no_longer_than_the_evidence_may_take() -> None:
    advise, asked = advised(HINT)
    job = Job(advise=advise).begin()
    job.silent.add(do.AskWords)
    quiet(job)
    assert not asked and "seems to hang" not in job.said
    job.wait(10.5)
    assert len(asked) == 1 and "seems to hang" in job.said
    quiet(job, "n1", seconds=0.0)
    quiet(job)
    assert len(asked) == 1, "once an attempt"


def goes_on_by(job: Job, sign: str) -> None:
    match sign:
        case "io":
            job.tell(ev.QuietSeen("n2", 0.0))
        case "silence":
            job.tell(ev.RankSilent(3, 0.0))
        case "beat":
            job.tell(ev.BeatOverdue(1, ""))
        case "progress":
            job.tell(ev.Progressed("n1", 7))


@pytest.mark.parametrize(("sign", "by"), [
    ("io", "io"), ("silence", "silence"), ("beat", "beat"), ("io", "progress"), ("silence", "progress"), ("beat", "progress"),
])  # fmt: skip
def test_a_job_that_goes_on_does_not_seem_to_hang_any_more(sign: str, by: str) -> None:
    job = Job(requeueing(hang__log_silence=True, hang__interval_s=60.0)).begin()
    if sign == "io":
        quiet(job)
    elif sign == "silence":
        job.tell(*(ev.RankSilent(rank, 60.0) for rank in range(4)))
    else:
        job.tell(ev.BeatOverdue(1, "no heartbeat for 3.0 s; the limit is 3 s"))
    hung = status_of(job.ledger)
    assert hung is not None and hung.summary.state == "hanging" and hung.hang is not None
    assert summarise(job.ledger).state == "hanging"  # type: ignore[union-attr]
    job.jump(5.0)
    goes_on_by(job, by)
    (over,) = job.recorded(rec.HangEnded)
    now = status_of(job.ledger)
    assert over.sign == sign and now is not None and (now.summary.state, now.hang) == ("running", None)
    assert summarise(job.ledger).state == "running"  # type: ignore[union-attr]
    assert "went on by itself after 5.0 s" in (now.card.done if now.card else "") and "the job makes progress again" in job.said
    goes_on_by(job, by)
    assert len(job.recorded(rec.HangEnded)) == 1


def test_the_limit_that_the_program_has_set_is_the_one_that_is_named() -> None:
    job = Job(requeueing(hang__log_silence=True, hang__interval_s=600.0, hang_restart__enabled=False)).begin()
    job.tell(*(ev.StageSet(rank, 4.0) for rank in range(4)))
    job.tell(*(ev.RankSilent(rank, 4.0) for rank in range(4)))
    assert job.recorded(rec.HangSeen)[0].what == "no rank has printed anything for 4 s"


def test_calculated_timeouts_hold_after_a_restart_without_any_help_of_the_program() -> None:
    job = Job(settings_with(ON, in_place_restart__crash_restarts=1))
    config = '{"rank_heartbeat_timeout":60.0,"safety_factor":2.0}'
    job.judge.run.facts = job.facts = replace(job.facts, env=replace(job.facts.env, sdk={"FTSLURM_FT_CONFIG": config}))
    job.begin()
    job.tell(ev.ProgramSaid(1, "limits", ("first beat 9 s", "beat 3 s", "section step 4 s"), 1))
    job.exits(1, 1)
    known = {"initial_rank_heartbeat_timeout": 9.0, "rank_heartbeat_timeout": 3.0, "rank_section_timeouts": {"step": 4.0}}
    assert job.did(do.WatchRanks)[-1].limits == known
    assert json.loads(job.did(do.StartRanks)[-1].env[0]["FTSLURM_FT_CONFIG"]) == {"safety_factor": 2.0, **known}


def test_calculated_timeouts_reach_a_client_that_was_given_no_configuration() -> None:
    job = Job(settings_with(ON, in_place_restart__crash_restarts=1)).begin()
    job.tell(ev.ProgramSaid(1, "limits", ("first beat 9 s", "beat 3 s"), 1))
    job.exits(1, 1)
    told = json.loads(job.did(do.StartRanks)[-1].env[0]["FTSLURM_FT_CONFIG"])
    assert told == {"every_section": True, "initial_rank_heartbeat_timeout": 9.0, "rank_heartbeat_timeout": 3.0}
