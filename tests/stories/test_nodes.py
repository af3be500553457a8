"""Stories of nodes that are not heard of: silence, the second proof, and what waits for whose lease."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import HealResult
from ftslurm.model.events import Event
from ftslurm.model.exits import ExitStatus
from ftslurm.model.timers import Timer
from ftslurm.policies.judge.judge import Phase
from ftslurm.policies.judge.nodes import PROBE_AGAIN_S
from ftslurm.policies.judge.phases import EarlierRuns
from ftslurm.policies.lease import longest_s, predecessors
from tests.stories.replay import SILENT, START, Job, fault, requeueing

CAN = ("ask", "requeue", "probe")
ALL_S = requeueing().lease.time_s + requeueing().lease.margin_s


def running(**how: Any) -> Job:
    return Job(can=CAN, **how).begin()


def goes_silent(job: Job, node: str = "n2", after_s: float = 15.0) -> float:
    """Nothing is heard of it from now on; gives when it was heard for the last time."""
    at = job.now.mono
    job.wait(after_s)
    job.tell(ev.NodeSilent(node, after_s))
    return at


def requeued_at(job: Job) -> float:
    """From the decision's record to carrying it out nothing may happen but waiting."""
    assert job.did(do.Requeue), job.decisions
    return job.now.mono


def test_a_silent_node_that_cannot_be_reached_either_is_lost_and_the_job_goes_on_without_it() -> None:
    job = running()
    job.reachable = False
    heard = goes_silent(job)
    assert [probe.nodes for probe in job.did(do.ProbeNodes)] == [("n2",)]
    assert job.recorded(rec.TroubleSeen)[0].cause == "lost"
    assert not job.did(do.Requeue), "its ranks may still run"
    job.wait(heard + ALL_S - job.now.mono - 1.0)
    assert not job.did(do.Requeue)
    job.wait(2.0)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",) and job.status == 75
    assert "lease" in job.said


def test_the_second_proof_comes_before_anything_is_done() -> None:
    job = running()
    job.silent = {do.ProbeNodes}
    goes_silent(job)
    job.wait(10.0)
    assert not job.did(do.StopRanks)


@pytest.mark.parametrize("alive", [True, None])
def test_a_silent_node_that_lives_or_may_live_is_left_to_itself_while_its_leases_last(alive: bool | None) -> None:
    job = running()
    job.reachable = alive
    heard = goes_silent(job)
    job.wait(heard + ALL_S - job.now.mono - 1.0)
    assert not job.did(do.StopRanks) and len(job.did(do.ProbeNodes)) >= 3, "it is asked about again and again"
    job.reachable = True
    job.tell(ev.NodeHeard("n2"))
    job.wait(1000.0)
    assert not job.did(do.StopRanks) and job.judge.run.timers.running == {Timer.COMPARE}


def test_a_node_that_dies_after_a_first_good_answer_is_lost_by_a_later_one() -> None:
    job = running()
    goes_silent(job)
    job.reachable = False
    job.wait(16.0)
    assert job.did(do.StopRanks) and job.recorded(rec.TroubleSeen)[0].what.startswith("no message from n2")


def test_out_of_reach_for_longer_than_a_lease_a_node_that_lives_is_not_to_blame() -> None:
    job = running()
    heard = goes_silent(job)
    job.wait(heard + ALL_S - job.now.mono + 1.0)
    assert job.recorded(rec.TroubleSeen)[0].cause == "lost"
    job.wait(100.0)
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ()


def test_without_a_second_way_silence_ends_the_attempt_when_its_leases_have() -> None:
    job = Job(can=("ask", "requeue")).begin()
    heard = goes_silent(job)
    assert not job.did(do.ProbeNodes)
    job.wait(heard + ALL_S - job.now.mono - 1.0)
    assert not job.did(do.StopRanks)
    job.wait(2.0)
    assert job.did(do.StopRanks)


def test_an_answer_that_never_comes_is_no_proof() -> None:
    job = running()
    job.silent = {do.ProbeNodes}
    heard = goes_silent(job)
    job.wait(heard + ALL_S - job.now.mono - 1.0)
    assert not job.did(do.StopRanks)


def test_a_node_that_is_heard_while_it_is_looked_at_is_not_lost_whatever_is_found() -> None:
    job = running()
    job.silent = {do.ProbeNodes}
    goes_silent(job)
    job.tell(ev.NodeHeard("n2"), ev.NodeProbed("n2", False, "its slurmd does not answer"))
    assert not job.did(do.StopRanks)


def test_a_node_that_is_heard_again_before_anything_is_decided_is_not_to_blame() -> None:
    """Nobody else heard it for a while, such as its switch while that started anew."""
    job = running()
    job.reachable, job.silent = False, {do.StopRanks}
    goes_silent(job)
    assert job.did(do.StopRanks) and not job.rungs
    job.tell(ev.NodeHeard("n2"), *(ev.RankStopped(rank, 1) for rank in range(4)))
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ()


def test_a_node_of_which_no_rank_is_says_nothing() -> None:
    job = running()
    job.tell(ev.NodeSilent("n9", 20.0))
    assert not job.did(do.ProbeNodes)


def test_when_a_shim_is_lost_its_node_is_looked_at_and_found_dead() -> None:
    """As after a power cut of a node whose kernel still closed the connections, or that has booted again."""
    job = running()
    job.reachable = False
    job.tell(ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert job.status == 75, "their shims have gone and the step has ended: no lease is waited for"


def test_a_connection_that_was_reset_may_be_a_firewall_s_doing_and_the_leases_are_waited_for() -> None:
    job = running()
    job.reachable = False
    job.silent = {do.AbandonStep}
    reset = ev.Hangup.RESET
    job.tell(ev.NodeSilent("n2", 15.0), ev.ShimLost(2, "reset by peer", reset), ev.ShimLost(3, "reset by peer", reset))
    job.wait(ALL_S - 20.0)
    assert not job.did(do.Requeue)
    job.wait(20.0)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_when_a_shim_is_lost_on_a_node_that_lives_the_node_is_not_to_blame() -> None:
    job = running()
    job.tell(ev.ShimLost(2, "it hung up"))
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ()


@pytest.mark.parametrize("again", [True, None, False])
def test_when_one_of_its_shims_is_lost_a_node_that_is_heard_is_asked_twice(again: bool | None) -> None:
    """Its slurmd may be started anew just now."""
    job = running()
    job.reachable = False
    job.tell(ev.ShimLost(2, "it hung up"))
    assert not job.rungs and [probe.nodes for probe in job.did(do.ProbeNodes)] == [("n2",)]
    job.reachable = again
    job.wait(PROBE_AGAIN_S)
    assert job.excluded == (("n2",) if again is False else ()) and len(job.did(do.ProbeNodes)) == 2


def test_a_node_that_goes_silent_while_ranks_are_stopped_is_not_waited_for_in_vain() -> None:
    job = running()
    job.silent = {do.StopRanks}
    job.exits(0, 1)
    job.reachable = False
    job.silent = set()
    heard = goes_silent(job)
    job.tell(*(ev.RankStopped(rank, 1) for rank in (0, 1)))
    job.wait(heard + ALL_S - job.now.mono - 1.0)
    assert not job.did(do.Requeue)
    job.wait(2.0)
    assert job.excluded == ("n2",)


def test_a_rank_of_which_no_word_comes_is_waited_for_until_its_lease_is_over_where_the_step_does_not_end() -> None:
    job = running()
    job.silent = {do.StopRanks, do.KillStep}
    job.exits(0, 1)
    job.wait(66.0)  # no word whether they are gone, so the step is killed
    killed = job.now.mono
    assert job.did(do.KillStep)
    job.wait(60.0)
    assert not job.did(do.Requeue)
    job.wait(killed + ALL_S - job.now.mono + 5.0)
    assert job.status == 75


def test_a_step_that_ended_while_a_node_is_cut_off_is_no_proof_for_its_ranks() -> None:
    job = running()
    heard = goes_silent(job)
    job.tell(ev.StepEnded(ExitStatus(0, 9)))
    assert not job.did(do.Requeue)
    job.wait(heard + ALL_S - job.now.mono + 1.0)
    assert job.status == 75


def test_a_process_that_cannot_be_killed_is_not_waited_for_longer_than_its_lease_where_the_launcher_is_gone() -> None:
    """srun was killed, its stepds and shims live: they are told to end, and their leases are renewed no more."""
    job = LauncherDies(can=CAN).begin()
    job.silent, job.stuck = {do.StopRanks}, {3: (4711,)}
    job.tell(ev.StepEnded(ExitStatus(0, 9)))
    job.wait(3.0)
    assert not job.did(do.EndStep), "ranks that write a checkpoint keep their grace"
    job.tell(*(ev.RankStopped(rank, 1, (4711,) if rank == 3 else ()) for rank in range(4)))
    let_go_at = job.now.mono
    assert job.did(do.EndStep) and not job.did(do.Requeue)
    job.wait(let_go_at + ALL_S - job.now.mono - 1.0)
    assert not job.did(do.Requeue)
    job.wait(2.0)
    assert job.status == 75 and len(job.did(do.EndStep)) == 1


def test_nor_is_a_shim_that_lives_and_says_nothing_where_the_launcher_is_gone() -> None:
    job = LauncherDies(can=CAN).begin()
    job.silent = {do.StopRanks}
    job.tell(ev.StepEnded(ExitStatus(0, 9)))
    job.wait(ALL_S + 1.0)
    assert job.did(do.EndStep) and not job.did(do.Requeue)
    job.wait(ALL_S + 1.0)
    assert job.status == 75 and len(job.did(do.EndStep)) == 1


def test_processes_left_of_a_rank_that_has_not_come_up_again_blame_no_node() -> None:
    """Told late, of the step before."""
    job = running(settings=requeueing(in_place_restart__crash_restarts=1, restart_via="step"))
    job.silent = {do.LaunchStep}
    job.exits(0, 1)
    job.tell(*(ev.TaskArrived(task, 4, "7.1") for task in job.tasks if task.node == "n1"))
    job.silent = {do.StopRanks}
    job.tell(ev.ShimLost(0, "it hung up"))
    assert job.judge.phase is Phase.SETTLING
    job.tell(ev.RankStopped(3, 1, (4711,)), *(ev.RankStopped(rank, 1) for rank in (0, 1)))
    assert job.rungs == ["in-place-restart", "unconditional-requeue"]


class LauncherDies(Job):
    """Alone."""

    def _shims_go(self) -> list[Event]:
        return []


def test_requeued_by_slurm_away_from_a_dead_node_a_job_waits_for_the_leases_there() -> None:
    """Slurm lets it run again when the node is down, which says nothing of the ranks on it."""
    job = Job()
    job.judge.run.facts = replace(job.facts, earlier=EarlierRuns({"n9": "Slurm says DOWN*"}))
    job.tell(ev.Begun())
    assert not job.did(do.LaunchStep) and "n9: Slurm says DOWN*" in job.said
    job.wait(longest_s(requeueing()) - 1.0)
    assert not job.did(do.LaunchStep)
    job.wait(2.0)
    assert job.did(do.StartRanks)


def test_what_an_earlier_scheduling_left_behind() -> None:
    first, second = running(), running(schedule=1)
    nodes = frozenset({"n1", "n2"})
    assert (
        predecessors(first.ledger, 1).not_cleaned_up() == nodes and predecessors(first.ledger, 0).not_cleaned_up() == frozenset()
    )
    assert predecessors([*first.ledger, *second.ledger], 2).not_cleaned_up() == nodes
    first.exits(0, 1)
    assert first.status == 75 and predecessors(first.ledger, 1).not_cleaned_up() == frozenset()
    killed = [record for record in first.ledger if not isinstance(record, rec.Finished)]
    (decided,) = [record for record in killed if isinstance(record, rec.Decided)]
    undone = [record for record in killed if not isinstance(record, rec.CarriedOut)]
    assert predecessors(undone, 1).not_cleaned_up() == nodes
    assert predecessors([*undone, rec.CarriedOut(1.0, decided.id, True)], 1).not_cleaned_up() == frozenset()


def test_what_slurm_has_forgotten_may_run_as_well() -> None:
    def run(name: str, schedule: int, start_time: int, nodes: str) -> list[rec.Record]:
        began = rec.RunBegan(1.0, name, "7", "c", schedule, "k", "train", nodes, start_time)
        return [began, rec.AttemptBegan(2.0, name, 1, schedule, "k", 1, nodes, 1)]

    records = [*run("before", 0, 100, "n1"), *run("forgotten", 1, 200, "n[2-3]"), *run("beside", 1, 300, "n4")]
    assert predecessors(records, 1, 300).forgotten() == {"n2", "n3"}
    assert predecessors(records, 0, 400).forgotten() == {"n1", "n2", "n3", "n4"}
    assert predecessors(records, 2, 500).forgotten() == predecessors(records, 1, 0).forgotten() == frozenset()
    assert predecessors([*records, rec.Finished(3.0, "forgotten", 75, "requeued")], 1, 300).forgotten() == frozenset()


def test_nobody_waits_for_leases_where_nothing_is_to_be_started() -> None:
    job = running(settings=requeueing(isolated_requeue__enabled=False, unconditional_requeue__enabled=False))
    job.reachable = False
    goes_silent(job)
    assert job.rungs == ["fail"] and job.status is not None
    assert job.now.mono - START.mono < 30.0


@pytest.mark.parametrize("age_s", [1.0, ALL_S + 1.0])
def test_whoever_comes_after_it_in_the_script_waits_for_them_as_long_as_they_last(age_s: float) -> None:
    job = running(settings=requeueing(isolated_requeue__enabled=False, unconditional_requeue__enabled=False))
    job.reachable = False
    goes_silent(job)
    assert job.recorded(rec.Finished)[-1].unproven == ("n2",)
    left = predecessors(job.ledger, 0).awaited(requeueing(), job.now.unix + age_s)
    assert left == ({"n2"} if age_s < ALL_S else frozenset())
    assert predecessors(job.ledger, 1).awaited(requeueing(), job.now.unix) == frozenset(), (
        "a later scheduling is Slurm's to hold back"
    )


def test_nobody_waits_for_ranks_whose_end_is_proven() -> None:
    job = running(settings=requeueing(isolated_requeue__enabled=False, unconditional_requeue__enabled=False))
    job.exits(0, 1)
    assert job.rungs == ["fail"] and not job.recorded(rec.Finished)[-1].unproven
    well = running()
    well.all_exit(0)
    assert well.status == 0 and not well.recorded(rec.Finished)[-1].unproven


# --- a suspended job


def paused(job: Job, *ranks: int) -> Job:
    """They have announced that Slurm will stop them."""
    job.tell(*(ev.RankPaused(rank, True) for rank in ranks))
    return job


def test_ranks_that_were_stopped_with_the_job_are_silent_for_as_long_as_it_is_suspended() -> None:
    """Seen by an ftrun that goes on itself: in salloc."""
    job = paused(running(), 2, 3)
    job.slurm = replace(job.slurm, state="SUSPENDED")
    goes_silent(job)
    job.wait(20 * ALL_S)
    assert not job.did(do.StopRanks)
    job.slurm = replace(job.slurm, state="RUNNING")
    job.tell(ev.NodeHeard("n2"), ev.RankPaused(2, False), ev.RankPaused(3, False))
    job.wait(20 * ALL_S)
    assert not job.did(do.StopRanks)


def test_where_the_job_runs_on_and_they_do_not_nothing_starts_beside_them_but_by_slurm() -> None:
    job = paused(running(), 2, 3)
    goes_silent(job)
    job.silent = {do.KillStep}
    job.wait(3 * ALL_S + 60.0)
    assert job.recorded(rec.TroubleSeen)[0].cause == "lost"
    assert job.rungs == ["unconditional-requeue"] and job.status == 75


def test_a_restart_in_place_is_none_while_a_rank_may_stand_still_somewhere() -> None:
    job = paused(running(settings=requeueing(in_place_restart__crash_restarts=1, restart_via="step")), 2, 3)
    goes_silent(job)
    job.silent = {do.StopRanks, do.KillStep}
    job.exits(0, 1)
    job.tell(*(ev.RankStopped(rank, 1) for rank in (0, 1)))
    job.wait(2 * ALL_S)
    assert job.rungs == ["in-place-restart", "unconditional-requeue"] and len(job.did(do.LaunchStep)) == 1


def test_nobody_was_late_while_ftrun_itself_was_stopped() -> None:
    job = running()
    job.silent = {do.StopRanks}
    job.exits(0, 1)
    job.jump(1000.0)
    job.tell(ev.StoodStill(1000.0), ev.TimePassed())
    assert not job.did(do.KillStep) and not job.rungs
    job.silent = set()
    job.tell(*(ev.RankStopped(rank, 1) for rank in range(4)))
    assert job.rungs == ["unconditional-requeue"]


def test_ctrl_c_while_leases_are_waited_for_ends_it() -> None:
    job = running()
    job.reachable = False
    goes_silent(job)
    job.tell(ev.SignalSeen(2))
    assert job.status == 130


def test_slurmctld_away_and_a_node_lost_is_answered_as_far_as_it_can_be() -> None:
    job = running()
    job.reachable, job.slurm = False, SILENT
    heard = goes_silent(job)
    job.wait(heard + 1000.0 - job.now.mono)
    assert job.rungs == ["fail"] and "Slurm did not say" in job.said


# --- a node that dies while the step comes up


def launching(**how: Any) -> Job:
    """n2 does not come up."""
    job = Job(how.pop("policy", None), can=CAN, width=2, **how)
    job.silent = {do.LaunchStep, do.EndStep}
    job.tell(ev.Begun(), *(ev.TaskArrived(task, 4, "7.0") for task in job.tasks if task.node == "n1"))
    return job


def test_a_node_that_never_comes_up_and_does_not_answer_is_left() -> None:
    job = launching()
    job.reachable = False
    job.wait(requeueing().nodes.silence_s + 1.0)
    assert [probe.nodes for probe in job.did(do.ProbeNodes)] == [("n2",)] and not job.did(do.StopRanks), "once is not enough"
    job.wait(2 * requeueing().nodes.silence_s)
    job.tell(ev.ShimLeft(0), ev.ShimLeft(1))
    assert job.did(do.AbandonStep) and job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert "no task of the step came up on n2" in job.said


def test_a_step_whose_number_the_next_scheduling_has_is_left_without_a_word_to_slurm() -> None:
    """ftrun was cut off, and comes back when others have requeued the job: srun would cancel their step."""
    job = running()
    job.silent = {do.StopRanks, do.AskSlurm}
    job.exits(0, 1)
    job.tell(ev.SlurmAnswered("PENDING"))
    job.wait(120.0)
    assert job.did(do.AbandonStep) == [do.AbandonStep(silently=True)] and not job.did(do.KillStep) and job.status == 1


def test_two_tasks_of_one_rank_are_told_at_once() -> None:
    job = launching()
    job.tell(ev.RankClaimedTwice(0))
    assert "two tasks say that they are rank 0" in job.said and not job.did(do.StartRanks)
    assert job.did(do.ShowCard) == [do.ShowCard()] and job.did(do.KillStep), "srun says nothing, and would wait"


@pytest.mark.parametrize("alive", [True, None])
def test_a_node_that_lives_or_may_live_has_all_the_time_it_wants_to_come_up(alive: bool | None) -> None:
    """Where the job has set no limit."""
    job = launching(policy=requeueing(nodes__straggler_wait_s=0.0))
    job.reachable = alive
    job.wait(3600.0)
    assert not job.did(do.StopRanks) and 8 < len(job.did(do.ProbeNodes)) < 20, "again and again, less and less often"
    job.tell(*(ev.TaskArrived(task, 4, "7.0") for task in job.tasks if task.node == "n2"))
    assert job.did(do.StartRanks)


@pytest.mark.parametrize(("fit", "rungs", "excluded"), [
    (True, ["unconditional-requeue"], ()), (False, ["isolated-requeue"], ("n2",)), (None, ["isolated-requeue"], ("n2",)),
])  # fmt: skip
def test_a_step_that_comes_up_in_part_is_not_waited_for_for_ever(
    fit: bool | None, rungs: list[str], excluded: tuple[str, ...]
) -> None:
    """srun is content with the tasks that run. The node is blamed if it cannot even run our look at it."""
    job = launching()
    if fit is not True:
        job.unfit = {"n2": fit}
    job.wait(requeueing().nodes.straggler_wait_s - 1.0)
    assert not job.did(do.CheckNode) and not job.did(do.StopRanks)
    job.wait(2.0)
    assert [check.node for check in job.did(do.CheckNode)] == ["n2"]
    job.tell(ev.ShimLeft(0), ev.ShimLeft(1), ev.StepEnded(ExitStatus(0)))
    assert (job.rungs, job.excluded) == (rungs, excluded)
    assert "no task of the step came up on n2 within 600 s of the others" in job.said


def test_a_container_that_does_not_start_on_one_node_costs_that_node_at_once() -> None:
    job = launching()
    job.tell(ev.TasksEnded(("n2",), "pyxis: no space"), ev.ShimLeft(0), ev.ShimLeft(1), ev.StepEnded(ExitStatus(0)))
    assert (job.rungs, job.excluded) == (["isolated-requeue"], ("n2",)) and "the tasks on n2 ended before" in job.said


def test_on_all_nodes_the_job_fails_with_the_reason_and_contrast_is_waited_for() -> None:
    job = Job(can=CAN, width=2)
    job.silent = {do.LaunchStep, do.EndStep}
    job.tell(ev.Begun(), ev.TasksEnded(("n2",), "pyxis: no such image"))
    assert not job.did(do.StopRanks), "n1 may fare no better"
    job.tell(ev.TasksEnded(("n1", "n2"), "pyxis: no such image"), ev.StepEnded(ExitStatus(1)))
    assert job.rungs == ["fail"] and "pyxis: no such image" in job.said and job.did(do.ShowCard) == [do.ShowCard()]


def test_a_task_that_comes_late_starts_the_ranks_and_a_look_that_tells_nothing_is_not_waited_for() -> None:
    job = launching()
    job.silent |= {do.CheckNode}
    job.wait(requeueing().nodes.straggler_wait_s + 1.0)
    job.tell(*(ev.TaskArrived(task, 4, "7.0") for task in job.tasks if task.node == "n2"))
    assert job.did(do.StartRanks)
    job.tell(ev.NodeChecked("n2", None, "too late"))
    assert not job.did(do.StopRanks)
    other = launching()
    other.silent |= {do.CheckNode}
    other.wait(requeueing().nodes.straggler_wait_s + 200.0)
    assert other.did(do.StopRanks)


def test_a_node_that_was_out_of_reach_once_and_answers_again_is_not_blamed() -> None:
    job = launching()
    for reachable in (False, True, False, True):
        job.reachable = reachable
        before = len(job.did(do.ProbeNodes))
        while len(job.did(do.ProbeNodes)) == before:
            job.wait(1.0)
    assert not job.did(do.StopRanks)


def test_agents_come_up_beside_a_launch_that_takes_long() -> None:
    """The batch node may die meanwhile: nobody else would go on for it."""
    job = launching()
    assert not job.did(do.WatchNodes), "most launches do not"
    job.wait(requeueing().nodes.silence_s + 1.0)
    assert [watch.nodes for watch in job.did(do.WatchNodes)] == [("n1", "n2")] and not job.did(do.WatchRanks)
    job.tell(*(ev.TaskArrived(task, 4, "7.0") for task in job.tasks if task.node == "n2"))
    job.wait(60.0)
    assert len(job.did(do.WatchNodes)) == 1 and {*job.did(do.WatchRanks)[-1].ranks} == {"n1", "n2"}


def test_what_is_told_of_a_node_that_the_step_does_not_want_keeps_no_launch_up() -> None:
    job = launching()
    job.tell(*[ev.NodeProbed("n7", False, "it was asked about before")] * 3)
    assert not job.did(do.StopRanks)


# --- a node that dies when nobody waits for it: it is told of only once


def healing(**how: Any) -> Job:
    """The devices of n3, for as long as the story wants."""
    job = running(nodes=("n1", "n2", "n3"), **how)
    job.silent = {do.HealDevices}
    job.shows(fault("n3"))
    assert job.judge.phase is Phase.HEALING
    return job


def healed(job: Job) -> None:
    job.silent = set()
    job.devices["n3"] = ()
    job.tell(ev.HealingDone("n3", (HealResult("0.0", True, "looked again"),)))


def test_ranks_do_not_start_again_on_a_node_that_died_while_devices_healed_elsewhere() -> None:
    job = healing()
    job.reachable = False
    goes_silent(job)
    job.wait(60.0)
    healed(job)
    job.wait(ALL_S)
    assert len(job.did(do.StartRanks)) == 1 and job.rungs == ["in-place-restart", "isolated-requeue"]
    assert job.excluded == ("n2",)


def test_what_is_found_of_a_silent_node_is_waited_for_before_ranks_start_again() -> None:
    job = healing()
    job.silent |= {do.ProbeNodes}
    goes_silent(job)
    job.tell(ev.HealingDone("n3", (HealResult("0.0", True, "looked again"),)))
    assert len(job.did(do.StartRanks)) == 1
    job.tell(ev.NodeProbed("n2", True, "its slurmd answers"))
    assert len(job.did(do.StartRanks)) == 2


def test_a_node_that_dies_as_the_ranks_start_again_is_found_dead_as_well() -> None:
    job = healing()
    goes_silent(job)
    job.reachable = False
    healed(job)
    job.wait(ALL_S)
    assert job.rungs == ["in-place-restart", "isolated-requeue"] and job.excluded == ("n2",)


def test_out_of_reach_for_longer_than_a_lease_while_devices_heal_ranks_do_not_start_again_there() -> None:
    """Its shims have ended themselves, wherever they are."""
    job = healing()
    heard = goes_silent(job)
    job.wait(heard + ALL_S - job.now.mono + 1.0)
    assert job.judge.phase is Phase.HEALING
    healed(job)
    assert len(job.did(do.StartRanks)) == 1 and job.rungs == ["in-place-restart", "unconditional-requeue"]


def test_a_node_that_is_heard_again_while_devices_heal_is_as_good_as_before() -> None:
    job = healing()
    goes_silent(job)
    job.tell(ev.NodeHeard("n2"))
    job.wait(ALL_S)
    healed(job)
    assert len(job.did(do.StartRanks)) == 2 and Timer.SILENCE not in job.judge.run.timers


def came_and_died(silent_s: float) -> Job:
    """n2 has come up and is silent for so long when the last node comes."""
    job = Job(nodes=("n1", "n2", "n3"), can=CAN)
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), *(ev.TaskArrived(task, 6, "7.0") for task in job.tasks[:4]))
    job.reachable = False
    job.jump(15.0)
    job.tell(ev.NodeSilent("n2", 15.0))
    job.jump(silent_s - 15.0)
    job.tell(*(ev.TaskArrived(task, 6, "7.0") for task in job.tasks[4:]))
    return job


@pytest.mark.parametrize("silent_s", [20.0, 300.0])
def test_a_node_that_died_while_the_others_came_up_is_asked_about_when_ranks_run(silent_s: float) -> None:
    job = came_and_died(silent_s)
    assert job.did(do.StartRanks) and [probe.nodes for probe in job.did(do.ProbeNodes)] == [("n2",)]
    assert job.recorded(rec.TroubleSeen)[0].what.startswith("no message from n2")
    job.wait(ALL_S)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_when_a_rank_fails_silent_nodes_are_suspects_though_no_rank_of_theirs_is_known_to_be_lost() -> None:
    """Its rendezvous has failed for want of the others, before the second proof was there."""
    job = running()
    job.silent = {do.ProbeNodes}
    goes_silent(job)
    job.silent, job.reachable = set(), False
    job.exits(0, 1)
    job.wait(ALL_S)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_a_step_is_launched_beside_one_that_a_lost_node_lets_slurm_list_for_ever() -> None:
    for beside in (False, True):
        job = Job(beside=beside).begin()
        assert [launch.overlap for launch in job.did(do.LaunchStep)] == [beside]
