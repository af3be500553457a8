"""Stories of jobs whose ranks stop getting on with their collectives. Source: C4D for levels, times and what follows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as quickly
from hypothesis import strategies as st

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import CurrentCall, EntryTimes, GroupView, ProcessState, RankView, Socket
from ftslurm.model.folds.summary import stuck
from ftslurm.model.settings.tree import Settings
from tests.settings import settings_with
from tests.stories.replay import HOUR_S, Job, requeueing

ON = requeueing(hang_restart__enabled=True)
ENDS = settings_with(ON, hang__exit_detection=True, hang__compare_s=0.0)
GROUP = GroupView("0#1", (0, 1, 2, 3), 11, 10, None, "gloo:all_reduce")
INSIDE = tuple(
    RankView(rank, f"n{rank // 2 + 1}", ProcessState.SLEEPING, groups=(GROUP,), cpu_percent=0.1, probed=True) for rank in range(4)
)
LATE = replace(INSIDE[2], wchan="hrtimer_nanosleep", groups=(replace(GROUP, entered=10),))
SOMEBODY_LATE = (*INSIDE[:2], LATE, INSIDE[3])
CUT = tuple(
    replace(view, sockets=(Socket(f"10.0.0.{view.rank}:1", "10.0.0.2:9", "retransmit", 4096),)) if view.rank != 2
    else replace(view, sockets=(Socket("10.0.0.2:9", "10.0.0.0:1", "retransmit", 4096),))
    for view in INSIDE
)  # fmt: skip


def stalls(job: Job, seconds: float = 10.0, usual_s: float | None = 1.0, **told: object) -> list[do.Decision]:
    return job.tell(*(ev.StallSeen(node, 2, seconds, usual_s=usual_s, **told) for node in job.nodes))  # type: ignore[arg-type]


def goes_on(job: Job, after_s: float) -> list[do.Decision]:
    return job.tell(*(ev.StallSeen(node, 2, 0.0, after_s, usual_s=1.0) for node in job.nodes))


def standing(views: tuple[RankView, ...], settings: Settings = ON, **told: object) -> Job:
    job = Job(settings).begin()
    job.views = views
    stalls(job, **told)  # type: ignore[arg-type]
    return job


def test_it_is_told_early_and_answered_late() -> None:
    job = standing(SOMEBODY_LATE)
    job.wait(5)
    (culprit,) = job.recorded(rec.CulpritSeen)
    assert (culprit.sign, culprit.level, culprit.ranks) == ("RankNonCommHang", "Warn", (2,))
    assert "Warn: RankNonCommHang: rank 2 on n2" in job.said and job.did(do.KeepEvidence) and not job.rungs
    job.wait(160)
    assert not job.rungs
    job.wait(10)
    assert job.rungs == ["hang-restart"] and job.recorded(rec.HangSeen)[0].sign == "stall"


def test_one_node_that_gets_on_is_life() -> None:
    job = Job(ON).begin()
    job.views = SOMEBODY_LATE
    job.tell(ev.StallSeen("n1", 2, 10.0), ev.StallSeen("n2", 2))
    assert not job.did(do.TakeEvidence)


def test_a_rank_without_a_probe_may_well_do_something() -> None:
    job = Job(ON).begin()
    job.tell(ev.StallSeen("n1", 2, 10.0), ev.StallSeen("n2", 1, 10.0))
    assert not job.did(do.TakeEvidence)


@pytest.mark.parametrize(("least", "rungs"), [(1, ["shrink"]), (2, [])])
def test_where_fewer_nodes_are_enough_they_go_on_without_the_node_whose_connections_are_stuck(
    least: int, rungs: list[str]
) -> None:
    """With hang restarts off, what the ladder cannot answer is left alone."""
    policy = settings_with(
        ON,
        hang_restart__enabled=False,
        isolated_requeue__enabled=False,
        shrink__enabled=True,
        nodes__min=least,
        node_replacement__budget=1,
    )
    job = Job(policy, can=("ask", "requeue", "replace", "release"), width=2).begin()
    job.views = CUT
    stalls(job)
    job.wait(200)
    assert job.rungs == rungs and {task.node for task in job.tasks} == ({"n1"} if rungs else {"n1", "n2"})
    assert bool(job.did(do.StopRanks)) == bool(rungs)


def test_a_hang_inside_a_collective_leaves_the_node_whose_connections_are_stuck() -> None:
    job = standing(CUT)
    job.wait(200)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert [(found.sign, found.level, found.blamed) for found in job.recorded(rec.CulpritSeen)] == [
        ("RankCommHang", "Warn", ("n2",)), ("RankCommHang", "Error", ("n2",)),
    ]  # fmt: skip


def test_also_where_hang_restarts_are_off_but_not_a_hang_that_blames_nobody() -> None:
    off = requeueing(hang_restart__enabled=False)
    job = standing(CUT, off)
    job.wait(200)
    assert job.rungs == ["isolated-requeue"]
    job = standing(SOMEBODY_LATE, off)
    job.wait(4000)
    assert not job.rungs and job.said.count("keep running") == 1


# --- by default: hang-restart is `auto`


def test_a_named_rank_that_does_nothing_is_answered_unasked() -> None:
    job = standing(SOMEBODY_LATE, Settings(), begun=True)
    job.wait(160)
    assert not job.rungs
    job.wait(30)
    assert job.rungs == ["hang-restart"] and job.did(do.KeepEvidence) and job.did(do.StopRanks)[-1].grace_s > 0
    assert not job.recorded(rec.HangSeen)[0].left


@pytest.mark.parametrize(
    ("views", "begun", "why"),
    [
        (SOMEBODY_LATE, False, "no progress yet"),
        ((*INSIDE[:2], replace(LATE, io_bytes_s=5e6), INSIDE[3]), True, "still do work"),
        (tuple(replace(view, process=ProcessState.STOPPED) for view in INSIDE), True, "no rank is named"),
    ],
)
def test_what_is_not_certain_is_only_told(views: tuple[RankView, ...], begun: bool, why: str) -> None:
    job = standing(views, Settings(), begun=begun)
    job.wait(HOUR_S)
    assert not job.rungs and not job.did(do.StopRanks)
    assert all(why in hang.left for hang in job.recorded(rec.HangSeen))


def test_a_job_that_hangs_there_again_and_again_fails() -> None:
    job = Job().begin()
    for _ in range(4):
        job.views = SOMEBODY_LATE
        stalls(job, begun=True)
        job.wait(HOUR_S)
    assert job.rungs[:1] == ["hang-restart"] and job.rungs.count("hang-restart") <= 3


def test_a_hang_at_the_start_of_an_attempt_after_one_that_got_on_is_answered() -> None:
    job = standing(SOMEBODY_LATE, Settings(), begun=True)
    job.wait(190)
    stalls(job)
    job.wait(HOUR_S)
    assert job.rungs[:2] == ["hang-restart"] * 2 or job.rungs[:2] == ["hang-restart", "isolated-requeue"]


def test_c4d_s_own_times() -> None:
    job = standing(CUT, settings_with(ON, hang__c4d_timeout_s=5.0, hang__c4d_times=3, hang__stall_s=100.0), seconds=5.0)
    job.wait(17)
    assert job.rungs == ["isolated-requeue"]


def test_the_same_node_again_is_held_against_it() -> None:
    job = standing(SOMEBODY_LATE)
    job.wait(180)
    assert job.rungs == ["hang-restart"]
    stalls(job)
    job.wait(340)
    assert job.rungs == ["hang-restart"], "a limit that may have been wrong is doubled"
    job.wait(30)
    assert job.rungs == ["hang-restart", "isolated-requeue"] and job.excluded == ("n2",)


def test_work_of_a_rank_that_is_waited_for_is_given_long() -> None:
    busy = (*INSIDE[:2], replace(LATE, io_bytes_s=5e6), INSIDE[3])
    job = standing(busy)
    job.wait(1700)
    assert not job.rungs
    job.wait(200)
    assert job.rungs == ["hang-restart"]


def test_work_is_no_warning() -> None:
    """Rank 2 evaluates or saves, and the others wait for it."""
    job = standing((*INSIDE[:2], replace(LATE, io_bytes_s=5e6), INSIDE[3]), Settings())
    job.wait(1700)
    assert not job.said and {found.level for found in job.recorded(rec.CulpritSeen)} <= {"Info"}


def test_limits_are_learned_from_the_job_s_own_pauses_and_kept_when_it_is_requeued() -> None:
    busy = (*INSIDE[:2], replace(LATE, io_bytes_s=5e6), INSIDE[3])
    job = Job(ON).begin()
    for _ in range(5):
        job.views = busy
        stalls(job)
        job.wait(40)
        goes_on(job, 50.0)
    assert [(pause.seconds, pause.busy) for pause in job.recorded(rec.Paused)] == [(50.0, True)] * 5 and not job.rungs
    assert not job.said, "a checkpoint is not worth a word"
    job.exits(0, 1)
    job = job.again().begin()
    job.views = busy
    stalls(job)
    job.wait(400)
    assert job.rungs == ["hang-restart"], "far below the half hour that an unknown job gets"


def test_a_pause_is_no_hang_when_it_ends_meanwhile() -> None:
    job = standing(SOMEBODY_LATE)
    job.wait(100)
    goes_on(job, 110.0)
    job.wait(1000)
    assert not job.rungs and [(pause.seconds, pause.busy) for pause in job.recorded(rec.Paused)] == [(110.0, False)]


@pytest.mark.parametrize("slices", [1, 100])
def test_a_suspension_during_a_pause_is_nobody_s_silence(slices: int) -> None:
    """The agents tell the times of their ranks, which were stopped as well; ftrun's own clock goes on."""
    job = standing(SOMEBODY_LATE)
    for _ in range(slices):
        job.wait(1)
        job.jump(3600.0 / slices)
        job.tell(ev.StoodStill(3600.0 / slices), ev.TimePassed())
    job.wait(170 - slices - 20)
    assert not job.rungs
    job.wait(40)
    assert job.rungs == ["hang-restart"]


@pytest.mark.parametrize(("stage_s", "acts_after_s"), [(60.0, 60.0), (400.0, 400.0)])
def test_an_interval_that_the_program_has_set_counts_more(stage_s: float, acts_after_s: float) -> None:
    job = standing(SOMEBODY_LATE, stage_s=stage_s)
    job.wait(acts_after_s - 15)
    assert not job.rungs
    job.wait(20)
    assert job.rungs == ["hang-restart"]


def test_detection_that_the_program_has_switched_off_is_off() -> None:
    job = standing(SOMEBODY_LATE, stage_s=-1.0)
    job.wait(4000)
    assert not job.did(do.TakeEvidence)


def test_a_program_that_tells_its_life_itself_is_judged_by_that() -> None:
    job = standing(SOMEBODY_LATE, reports=True)
    job.wait(4000)
    assert not job.rungs and "RankNonCommHang" in job.said


def test_a_start_is_given_longer() -> None:
    job = standing(SOMEBODY_LATE, begun=False, usual_s=None)
    job.wait(580)
    assert not job.rungs
    job.wait(30)
    assert job.rungs == ["hang-restart"]


def test_ranks_of_which_some_have_ended_are_the_exit_hang_s() -> None:
    job = Job(ON).begin()
    job.exits(0)
    stalls(job)
    assert not job.did(do.TakeEvidence)


def test_levels_below_the_one_that_is_wanted_are_only_written_down() -> None:
    job = standing(SOMEBODY_LATE, settings_with(ON, hang__c4d_level="Error"))
    job.wait(5)
    assert job.recorded(rec.CulpritSeen) and "RankNonCommHang" not in job.said


def test_without_c4d_nothing_is_asked() -> None:
    for settings in (requeueing(hang__c4d=False), requeueing(hang__watch="L0"), requeueing(mode="async")):
        job = Job(settings).begin()
        assert {watch.stall_s for watch in job.did(do.WatchRanks)} == {0.0}
        job.wait(1000)
        assert not job.did(do.CompareRanks)


def test_a_slow_rank_is_written_down_once() -> None:
    job = Job(settings_with(ON, hang__c4d_level="Info")).begin()

    def enters(rank: int) -> EntryTimes:
        late_ns = 30_000_000 if rank == 1 else 0
        return EntryTimes(rank, f"n{rank // 2 + 1}", "0#1", 1, tuple(step * 100_000_000 + late_ns for step in range(100)))

    for _ in range(6):
        job.wait(60)
        for node, ranks in (("n1", (0, 1)), ("n2", (2, 3))):
            job.tell(ev.RanksCompared(node, (), tuple(map(enters, ranks))))
    assert [(found.sign, found.level, found.ranks) for found in job.recorded(rec.CulpritSeen)] == [
        ("RankNonCommSlow", "Info", (1,))
    ]
    assert job.said.count("RankNonCommSlow") == 1 and not job.rungs


# --- a rank that does work is never hung

IN_BARRIER = CurrentCall("monitored_barrier", "0#1", 0, 20.0, None, True)
DONE = replace(GROUP, completed=11)
OUTSIDE = tuple(replace(view, groups=(DONE,)) for view in INSIDE)
ASKS = {"polls_s": 20.0, "inside": CurrentCall("store_poll", "", 0, 20.0)}
WORK = (
    {"cpu_percent": 6.0}, {"io_bytes_s": 5000.0}, {"process": ProcessState.RUNNING}, {"idle_s": 100.0},
    {"device_busy": True},
)  # fmt: skip


def barrier(*others: RankView) -> tuple[RankView, ...]:
    """Rank 0 is somewhere else, the others wait for it in a barrier that no counter shows."""
    return (*others, *(replace(view, inside=IN_BARRIER) for view in OUTSIDE[len(others) :]))


@pytest.mark.parametrize("work", WORK)
def test_rank_0_at_work_while_the_others_wait_in_a_monitored_barrier(work: dict[str, object]) -> None:
    job = standing(barrier(replace(OUTSIDE[0], **work)), seconds=20.0)  # type: ignore[arg-type]
    job.wait(1600 if "idle_s" not in work else 60)
    assert not job.rungs


def test_rank_0_asleep_while_the_others_wait_in_a_monitored_barrier() -> None:
    job = standing(barrier(replace(OUTSIDE[0], wchan="hrtimer_nanosleep")))
    job.wait(180)
    found = job.recorded(rec.CulpritSeen)[0]
    assert (found.sign, found.ranks, found.operation) == ("RankNonCommHang", (0,), "monitored_barrier")
    assert job.rungs == ["hang-restart"]


def test_work_of_a_rank_that_nobody_is_seen_to_wait_for_counts_too() -> None:
    """The others are said to hang in a collective; one is in none of them, and may be what they all wait for."""
    pair = GroupView("1#2", (0, 1), 4, 3, None, "gloo:all_reduce")
    views = (*(replace(view, groups=(pair,)) for view in INSIDE[:2]), *OUTSIDE[2:])
    job = standing((*views[:3], replace(views[3], cpu_percent=60.0)))
    job.wait(1600)
    assert not job.rungs
    job = standing(views)
    job.wait(200)
    assert job.rungs == ["hang-restart"], "where nobody works, they hang"


def test_a_rank_that_polls_in_its_wait_holds_up_nobody_by_that() -> None:
    job = standing((*(replace(view, cpu_percent=99.0) for view in SOMEBODY_LATE[:2]), LATE, INSIDE[3]))
    job.wait(180)
    assert job.rungs == ["hang-restart"]


def test_the_time_without_work_counts_from_the_last_work() -> None:
    views = (*INSIDE[:2], replace(LATE, cpu_percent=60.0), INSIDE[3])
    job = standing(views)
    job.wait(300)
    job.views = (*INSIDE[:2], replace(LATE, idle_s=5.0), INSIDE[3])
    job.wait(60)
    assert not job.rungs, "an evaluation that writes its last file in between"
    job.views = (*INSIDE[:2], replace(LATE, idle_s=180.0), INSIDE[3])
    job.wait(60)
    assert job.rungs == ["hang-restart"]


def test_nothing_is_said_of_a_rank_that_has_worked_a_moment_ago() -> None:
    """It rests whenever it is looked at."""
    job = standing((*INSIDE[:2], replace(LATE, idle_s=1.0), INSIDE[3]))
    job.wait(25)
    assert not job.said
    job.views = (*INSIDE[:2], replace(LATE, idle_s=12.0), INSIDE[3])
    job.wait(25)
    assert "RankNonCommHang: rank 2 on n2" in job.said


def test_a_step_that_the_program_tells_is_life() -> None:
    job = standing(SOMEBODY_LATE)
    for step in range(1, 10):
        job.wait(100)
        job.tell(ev.Progressed("n1", step))
    assert not job.rungs


@pytest.mark.parametrize(
    "views", [tuple(replace(view, left=True) for view in INSIDE), (*OUTSIDE[:3], replace(OUTSIDE[3], left=True))]
)
def test_a_job_that_has_given_up_its_groups_is_at_its_end(views: tuple[RankView, ...]) -> None:
    """An export, an upload: whatever it does then, without any group, is no standstill."""
    job = Job(ON).begin()
    job.views = views
    left = [sum(view.left for view in views if view.node == node) for node in job.nodes]
    for _ in range(20):
        job.tell(*(ev.StallSeen(node, 2, 200.0, left=count) for node, count in zip(job.nodes, left, strict=True)))
        job.wait(200)
    assert not job.rungs and not job.said


def test_who_waits_for_a_rank_that_has_given_up_its_groups_hangs() -> None:
    gone = replace(OUTSIDE[2], groups=(replace(GROUP, entered=10, completed=10),), left=True)
    job = standing((*INSIDE[:2], gone, INSIDE[3]), seconds=20.0)
    job.wait(180)
    assert job.rungs == ["hang-restart"] and "it has destroyed its process groups" in job.said


def test_what_names_nobody_is_kept_and_not_said() -> None:
    job = standing(OUTSIDE, seconds=700.0)
    job.wait(60)
    assert not job.said and [found.sign for found in job.recorded(rec.CulpritSeen)] == ["unknown"]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[RankView, ...]]:
    """What a job's ranks are seen to do, look after look: whatever they wait in, one of them works, or did lately."""
    waits = (
        {}, {"groups": (replace(GROUP, entered=10, completed=9),)}, {"groups": (DONE,)}, {"groups": (DONE,), "inside": IN_BARRIER},
        {"groups": (DONE,), "inside": CurrentCall("recv", "0#1", 0, 20.0, 0, True)}, {"groups": (DONE,), "cpu_percent": 1.8},
        {"groups": (DONE,), "process": ProcessState.DISK}, {"groups": (DONE,), "left": True},
        {"groups": (DONE,), "inside": CurrentCall("store_wait", "", 0, 20.0)}, {"groups": (), "inside": CurrentCall("new_group", "", 0, 20.0)},
        {"groups": (DONE,), **ASKS}, {"groups": (DONE,), "polls_s": 5.0},
    )  # fmt: skip
    found = []
    for _ in range(draw(st.integers(1, 16))):
        worker = draw(st.integers(0, 3))
        views = [replace(view, idle_s=500.0, **draw(st.sampled_from(waits))) for view in INSIDE]  # type: ignore[arg-type]
        own = {"groups": (replace(GROUP, entered=10, completed=10),), "inside": None, **draw(st.sampled_from(WORK))}
        views[worker] = replace(INSIDE[worker], **own)  # type: ignore[arg-type]
        found.append(tuple(views))
    return found


@given(histories(), st.booleans())
@quickly(max_examples=150, deadline=None)
def test_a_rank_that_does_work_is_never_hung(seen: list[tuple[RankView, ...]], begun: bool) -> None:
    job = standing(seen[0], begun=begun)
    for views in seen:
        job.views = views
        job.wait(60)
    assert not job.rungs


@given(histories())
@quickly(max_examples=50, deadline=None)
def test_a_rank_that_beats_is_never_hung(seen: list[tuple[RankView, ...]]) -> None:
    """Whatever its collectives look like: its own beats are judged by their own limits."""
    job = standing(seen[0], reports=True)
    for views in seen:
        job.views = tuple(
            replace(view, cpu_percent=0.1, io_bytes_s=0.0, process=ProcessState.SLEEPING, idle_s=1e4) for view in views
        )
        job.wait(60)
    assert not job.rungs


# --- before there is a group


def meets(rank: int, operation: str = "init_process_group", **more: object) -> RankView:
    view = replace(INSIDE[rank], groups=(), inside=CurrentCall(operation, "", 0, 20.0))
    return replace(view, **more)  # type: ignore[arg-type]


ABSENT = replace(INSIDE[2], groups=(), wchan="hrtimer_nanosleep", probed=False)


def starting(views: tuple[RankView, ...], seconds: float = 10.0) -> Job:
    """Only the node whose ranks all wait tells of it: on the other there is one without a probe."""
    job = Job(ON).begin()
    job.views = views
    job.tell(ev.StallSeen("n1", 0, begun=False, meets_s=seconds))
    return job


def test_a_rank_that_never_comes_to_init_process_group_is_found() -> None:
    job = starting((meets(0), meets(1), ABSENT, meets(3)))
    job.wait(150)
    assert not job.said, "ranks do not start in the same moment"
    job.wait(420)
    assert not job.rungs and "rank 2 on n2 in init_process_group: asleep in hrtimer_nanosleep" in job.said
    job.wait(40)
    assert job.rungs == ["hang-restart"]
    assert "rank 0-1,3 waits in init_process_group; rank 2 has not arrived" in job.recorded(rec.CulpritSeen)[0].evidence


@pytest.mark.parametrize("work", WORK[:3])
def test_a_rank_that_prepares_its_data_before_it_comes_is_waited_for(work: dict[str, object]) -> None:
    job = starting((meets(0), meets(1), replace(ABSENT, **work), meets(3)))  # type: ignore[arg-type]
    job.wait(1700)
    assert not job.rungs
    job.wait(200)
    assert job.rungs == ["hang-restart"]


def test_ranks_that_wait_no_more_have_started() -> None:
    job = starting((meets(0), meets(1), ABSENT, meets(3)))
    job.wait(300)
    job.tell(*(ev.StallSeen(node, 2, begun=False) for node in job.nodes))
    job.wait(4000)
    assert not job.rungs


def test_a_group_that_one_rank_does_not_come_to_make() -> None:
    later = tuple(replace(view, inside=CurrentCall("new_group", "", 0, 20.0)) if view.rank != 2 else view for view in OUTSIDE)
    job = standing(later)
    job.wait(190)
    found = job.recorded(rec.CulpritSeen)[0]
    assert (found.sign, found.ranks, found.operation) == ("RankNonCommHang", (2,), "new_group") and job.rungs == ["hang-restart"]


def test_ranks_ask_a_store_for_a_key_that_one_never_sets() -> None:
    asking = (OUTSIDE[0], *(replace(view, **ASKS) for view in OUTSIDE[1:]))  # type: ignore[arg-type]
    job = standing(asking, meets_s=10.0)
    job.wait(160)
    assert "RankNonCommHang: rank 0 on n1 in store_poll: asleep" in job.said and not job.rungs
    job.wait(30)
    assert job.rungs == ["hang-restart"]


@pytest.mark.parametrize("work", WORK)
def test_who_sets_the_key_late_for_it_works_is_waited_for(work: dict[str, object]) -> None:
    views = (replace(OUTSIDE[0], **work), *(replace(view, **ASKS) for view in OUTSIDE[1:]))  # type: ignore[arg-type]
    job = standing(views, seconds=20.0, meets_s=20.0)
    job.wait(1600 if "idle_s" not in work else 60)
    assert not job.rungs


def test_before_there_is_a_group_ranks_look_for_a_file_that_one_never_writes() -> None:
    look = tuple(replace(view, groups=(), polls_s=10.0) for view in INSIDE)
    job = starting((*look[:2], replace(look[2], polls_s=None), look[3]))
    job.wait(580)
    assert not job.rungs and "RankNonCommHang: rank 2 on n2 in a loop that polls" in job.said
    job.wait(40)
    assert job.rungs == ["hang-restart"]


def test_ranks_that_all_poll_before_there_is_a_group_may_wait_for_what_is_not_of_the_job() -> None:
    job = starting(tuple(replace(view, groups=(), polls_s=10.0) for view in INSIDE))
    job.wait(20_000)
    assert not job.rungs and not job.said


def test_while_others_get_on_nobody_hangs_in_a_store() -> None:
    job = Job(ON).begin()
    job.views = (meets(0, "store_wait"), *OUTSIDE[1:])
    job.tell(ev.StallSeen("n1", 2, meets_s=30.0), ev.StallSeen("n2", 2))
    job.wait(1000)
    assert not job.did(do.TakeEvidence)


# --- limits


def test_the_limit_holds_before_anything_is_known_of_the_job() -> None:
    """And afresh after a restart."""
    job = standing(SOMEBODY_LATE, usual_s=None)
    job.wait(150)
    assert not job.rungs
    job.wait(30)
    assert job.rungs == ["hang-restart"]


def test_pauses_from_before_a_restart_count_before_the_usual_interval_is_known_anew() -> None:
    job = Job(ON).begin()
    job.views = SOMEBODY_LATE
    stalls(job)
    job.wait(150)
    goes_on(job, 160.0)
    job.exits(0, 1)
    job = job.again().begin()
    job.views = SOMEBODY_LATE
    stalls(job, usual_s=None)
    job.wait(650)
    assert not job.rungs
    job.wait(100)
    assert job.rungs == ["hang-restart"], "4.5 times the longest"


# --- staged intervals for the other signs


def test_an_interval_set_by_the_program_holds_for_silence_and_io_too() -> None:
    job = Job(settings_with(ON, hang__log_silence=True)).begin()
    job.tell(ev.StageSet(0, 60.0))
    assert job.did(do.SetIntervals) == [do.SetIntervals(60.0, 60.0)]
    job.tell(ev.StageSet(1, -1.0))
    assert job.did(do.SetIntervals)[-1] == do.SetIntervals(0.0, 0.0)
    job.tell(ev.StageSet(1, None), ev.StageSet(0, None))
    assert job.did(do.SetIntervals)[-1] == do.SetIntervals(1800.0, 1800.0)


def test_the_interval_for_ends_may_be_set_by_the_program() -> None:
    job = Job(settings_with(ON, hang__exit_detection=True)).begin()
    job.tell(ev.ProgramSaid(0, "setting", ("job_exit_hang_interval", "60.0")))
    job.exits(0)
    job.wait(61)
    assert job.recorded(rec.HangSeen)[0].sign == "exit"


def test_the_interval_for_ends_may_be_switched_off_by_the_program() -> None:
    job = Job(ENDS).begin()
    job.tell(ev.ProgramSaid(0, "setting", ("job_exit_hang_interval", "-1")))
    job.exits(0)
    assert job.judge.wakes_at is None or math.isfinite(job.judge.wakes_at), "nobody can wait for ever by a clock"
    job.wait(HOUR_S)
    assert not job.recorded(rec.HangSeen)
    job.tell(ev.ProgramSaid(1, "setting", ("job_exit_hang_interval", "60")))
    job.wait(1)
    assert job.recorded(rec.HangSeen)[0].sign == "exit", "it counts from the first rank's end"


def test_switched_off_later_nothing_is_waited_for() -> None:
    job = Job(ENDS).begin()
    job.exits(0)
    job.tell(ev.ProgramSaid(1, "setting", ("job_exit_hang_interval", "-1")))
    job.exits(1)
    assert job.judge.wakes_at is None or math.isfinite(job.judge.wakes_at)
    job.wait(HOUR_S)
    assert not job.recorded(rec.HangSeen)


def test_an_interval_for_ends_that_is_set_late_counts_from_the_first_end() -> None:
    job = Job(ENDS).begin()
    job.exits(0)
    job.wait(100)
    job.exits(1)
    job.tell(ev.ProgramSaid(2, "setting", ("job_exit_hang_interval", "120")))
    job.wait(21)
    assert job.recorded(rec.HangSeen)[0].sign == "exit"


def test_progress_beyond_the_last_failure_breaks_what_counts_in_a_row() -> None:
    job = Job(ON).begin()
    for step in (100, 200, 300, 400, 500):
        job.tell(ev.Progressed("n1", step), ev.BeatOverdue(1, "late"))
    assert job.rungs == ["hang-restart"] * 5
    for _ in range(4):
        job.tell(ev.Progressed("n1", 500), ev.BeatOverdue(1, "late"))
    assert job.rungs[-1] == "fail"


def test_after_a_hang_restart_that_did_not_help_the_limit_is_doubled() -> None:
    """What was taken for a hang may have been none."""
    job = standing(SOMEBODY_LATE)
    job.wait(180)
    assert job.rungs == ["hang-restart"]
    job.views = SOMEBODY_LATE
    stalls(job, usual_s=None)
    job.wait(340)
    assert len(job.rungs) == 1
    job.wait(30)
    assert job.rungs == ["hang-restart", "isolated-requeue"], "the same node again"


# --- what programs read of a hang


@pytest.mark.parametrize("settings", [ON, requeueing()])
def test_the_ledger_has_who_hangs_in_fields(settings: Settings) -> None:
    job = standing(SOMEBODY_LATE, settings)
    job.wait(180)
    hang = job.recorded(rec.HangSeen)[-1]
    assert (hang.sign, hang.ranks, hang.nodes, hang.hang_class, hang.level) == ("stall", (2,), ("n2",), "RankNonCommHang", "Warn")
    assert "asleep" in hang.cause and hang.operation == "gloo:all_reduce" and hang.evidence


def test_so_it_has_of_a_late_beat_and_of_ranks_that_do_not_end() -> None:
    job = Job(ENDS).begin()
    job.tell(ev.BeatOverdue(2, "no heartbeat for 3.0 s; the limit is 3 s"))
    (hang,) = job.recorded(rec.HangSeen)
    assert (hang.sign, hang.ranks, hang.nodes, hang.hang_class) == ("beat", (2,), ("n2",), "")


# --- the first minutes


def test_the_first_minutes_say_who_is_stuck_and_for_how_long() -> None:
    job = standing(SOMEBODY_LATE)
    job.wait(5)
    (seen,) = job.recorded(rec.CulpritSeen)
    assert seen.limit_s == 180 and seen.since <= job.now.unix - 10
    (shown,) = job.did(do.ShowPhase)
    assert shown.what == f"stuck? rank 2 on n2 ({seen.cause}), a hang if it lasts" and shown.until == seen.since + 180
    now = stuck(job.ledger)
    assert now is not None and now.so_far(seen.since + 40) == "40 s of 180 s" and now.ranks == (2,)


def test_the_end_of_it_is_shown_too_however_short_it_was() -> None:
    job = standing(SOMEBODY_LATE)
    job.wait(5)
    goes_on(job, 16.0)
    assert stuck(job.ledger) is None and job.did(do.ShowPhase)[-1] == do.ShowPhase(1, "")


def test_work_is_nobodys_standstill() -> None:
    """An evaluation of rank 2 begins late: until then it looked stuck."""
    job = standing(SOMEBODY_LATE)
    job.wait(5)
    assert stuck(job.ledger) is not None
    job.views = tuple(replace(view, cpu_percent=90.0, idle_s=0.0) if view.rank == 2 else view for view in SOMEBODY_LATE)
    job.wait(25)
    assert stuck(job.ledger) is None and job.did(do.ShowPhase)[-1] == do.ShowPhase(1, "")


def test_a_rank_that_waits_for_a_server_is_reported_and_a_look_without_that_must_hold() -> None:
    """In the moment in which a pause ends a rank no longer waits for the server, and is not seen to be in the collective yet."""
    asks = tuple(replace(view, wchan="wait_woken") if view.rank == 2 else view for view in SOMEBODY_LATE)
    job = standing(asks, requeueing(hang_restart__enabled=None), begun=True)
    job.wait(240)
    assert "rank 2 waits for another process" in job.recorded(rec.HangSeen)[-1].left and not job.rungs
    job.views = SOMEBODY_LATE
    before = len(job.did(do.TakeEvidence))
    for _ in range(60):
        looks = len(job.did(do.TakeEvidence)) - before
        job.wait(0.0 if job.rungs else 1.0)
    assert job.rungs == ["hang-restart"] and looks == 2
