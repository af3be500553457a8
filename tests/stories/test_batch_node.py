"""ftrun's own node: a scheduling that nobody ended, and a controller that is cut off itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.policies.judge.judge import Phase
from ftslurm.policies.judge.launching import LOOK_AGAIN_S
from ftslurm.policies.judge.phases import EarlierRuns
from ftslurm.policies.judge.state import IDLE_LOOK, SIGINT, SIGTERM
from ftslurm.policies.judge.step import LAUNCHES_AGAIN
from ftslurm.policies.lease import longest_s, predecessors
from tests.stories.replay import RUNNING, SILENT, Job, fault, requeueing


def test_how_the_scheduling_before_ended_is_written_before_the_next_begins() -> None:
    job = Job()
    ended = (rec.TroubleSeen(1.0, 1, "node", "the batch node n1 died"), rec.AttemptEnded(1.0, 1, {"unknown": 4}))
    job.judge.run.facts = replace(job.facts, schedule=1, batch_node="n2", earlier=EarlierRuns(cut_short=ended))
    job.tell(ev.Begun())
    written = [decision.record for decision in job.did(do.Remember)]
    assert tuple(written[:2]) == ended
    assert isinstance(written[2], rec.RunBegan) and written[2].batch_node == "n2"
    assert job.did(do.LaunchStep), "it is no trouble of this scheduling"


def test_cut_off_it_says_so_and_leaves_the_rest_to_the_leases() -> None:
    job = Job().begin()
    job.tell(ev.CutOff())
    assert "renews no lease" in job.said and not job.did(do.StopRanks)
    job.tell(ev.InTouch())
    assert "renews leases again" in job.said


# --- ftrun was killed, and its script calls it again; Slurm may never hear that the first one's step has ended


def held(*over: str, can: Iterable[str] = ("requeue",)) -> Job:
    """The step does not come up, since srun waits for nodes. over: steps of the first ftrun."""
    job = Job(can=frozenset({"ask", "probe", "steps", *can}))
    job.reachable = True
    job.judge.run.facts = replace(job.facts, earlier=EarlierRuns(steps_over=frozenset(over)))
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun())
    return job


def test_a_step_that_only_slurm_remembers_is_launched_beside_after_the_leases() -> None:
    job = held("7.0", "7.1")
    job.wait(longest_s(job.settings) - 1.0)
    job.tell(ev.StepsListed(frozenset({"7.1"})))
    assert job.did(do.ListSteps) and not job.did(do.KillStep), "not before the leases are over"
    job.wait(60.0)
    job.silent = set()
    job.tell(ev.StepsListed(frozenset({"7.1"})))
    assert job.did(do.KillStep) and [launch.overlap for launch in job.did(do.LaunchStep)] == [False, True]
    assert "holds the nodes for 7.1" in job.said and job.did(do.StartRanks)


@pytest.mark.parametrize("listed", [None, frozenset({"7.1", "7.5"})])
def test_any_other_step_is_waited_for(listed: frozenset[str] | None) -> None:
    job = held("7.0", "7.1")
    job.wait(150.0)
    job.tell(ev.StepsListed(listed))
    assert not job.did(do.KillStep) and len(job.did(do.LaunchStep)) == 1


def test_neither_is_a_step_of_its_own_that_slurm_still_lists_after_a_node_came_back() -> None:
    job = Job(requeueing(restart_via="step"), can=frozenset({"ask", "requeue", "probe", "steps"}))
    job.reachable = True
    job.begin().silent = {do.LaunchStep}
    job.shows(fault("n1"))
    job.wait(30.0)
    job.silent = set()
    job.tell(ev.StepsListed(frozenset({"7.0"})))
    assert [launch.overlap for launch in job.did(do.LaunchStep)] == [False, False, True]


def test_nothing_is_launched_beside_once_a_task_is_there() -> None:
    job = held("7.1")
    job.wait(150.0)
    job.tell(ev.TaskArrived(job.tasks[0], 4, "7.2"), ev.StepsListed(frozenset({"7.1"})))
    assert not job.did(do.KillStep)


def test_where_nothing_holds_the_nodes_srun_is_started_again_and_not_for_ever() -> None:
    """A slurmctld that has just come back knows of no node, and what it lets wait it forgets."""
    job = held()
    for _ in range(9):
        job.wait(job.settings.nodes.silence_s + 1.0)
        job.tell(ev.StepsListed(frozenset()))
    assert len(job.did(do.LaunchStep)) == 1 + LAUNCHES_AGAIN and "starting it again" in job.said
    assert not any(launch.overlap for launch in job.did(do.LaunchStep))


@pytest.mark.parametrize(("can", "decided"), [({"requeue"}, ["unconditional-requeue"]), (set(), [])])
def test_a_step_that_slurm_never_starts_is_given_up_for_a_requeue_alone(can: set[str], decided: list[str]) -> None:
    """Else ftrun waits, as srun does. A slurmctld that took over in the middle of a clean-up may never start a step again."""
    job = held(can=can)
    for _ in range(30):
        job.wait(job.settings.nodes.silence_s + 1.0)
        if decided and job.rungs:
            break
        job.tell(ev.StepsListed(frozenset()))
    assert job.rungs == decided and len(job.did(do.LaunchStep)) == 1 + LAUNCHES_AGAIN


@pytest.mark.parametrize("listed", [frozenset(), frozenset({"7.1"})])
def test_so_it_is_where_the_step_was_launched_beside_another(listed: frozenset[str]) -> None:
    job = held("7.1")
    job.wait(150.0)
    job.tell(ev.StepsListed(frozenset({"7.1"})))
    assert job.did(do.LaunchStep)[-1].overlap
    launched = len(job.did(do.LaunchStep))
    job.tell(ev.StepsListed(listed))
    assert len(job.did(do.LaunchStep)) == launched + 1


# --- its ranks may still run, and Slurm lets steps run side by side


def after_a_kill(here: tuple[str, ...] = ("n1", "n2"), **known: Any) -> Job:
    """Called again by the script, on the nodes of an ftrun that was killed. here: nodes that the job has now."""
    job = Job(can=frozenset({"ask", "requeue", "probe", "steps"}))
    nodes = frozenset({"n1", "n2"})
    killed = {"unproven": dict.fromkeys(nodes, "killed"), "killed": nodes, "steps_over": frozenset({"7.0"})}
    job.judge.run.facts = replace(job.facts, nodes=here, earlier=EarlierRuns(**{**killed, **known}))
    job.tell(ev.Begun())
    assert not job.did(do.LaunchStep)
    return job


def test_after_a_kill_nothing_starts_while_slurm_lists_the_step_of_before() -> None:
    job = after_a_kill()
    for listed in (frozenset({"7.0"}), None) * 2:
        job.tell(ev.StepsListed(listed))
        job.wait(LOOK_AGAIN_S)
    assert len(job.did(do.ListSteps)) == 5 and not job.did(do.LaunchStep) and job.said.count(": killed") == 1
    job.tell(ev.StepsListed(frozenset({"7.1"})))
    assert job.did(do.StartRanks) and not job.did(do.KillStep), "a step of somebody else is srun's to wait for"
    job.wait(200.0)
    assert len(job.did(do.LaunchStep)) == 1


def test_after_a_kill_nothing_is_said_of_a_step_that_has_ended() -> None:
    job = after_a_kill()
    job.tell(ev.StepsListed(frozenset()))
    assert job.did(do.StartRanks) and "waiting" not in job.said


def test_after_a_kill_a_node_that_is_down_cannot_say_what_still_runs_there() -> None:
    job = after_a_kill()
    job.slurm = replace(RUNNING, bad_nodes=(("n2", "DOWN*"),))
    job.tell(ev.StepsListed(frozenset()))
    job.slurm = SILENT
    job.tell(ev.StepsListed(frozenset()))
    job.slurm = RUNNING
    assert job.did(do.AskSlurm) and not job.did(do.LaunchStep)
    job.wait(longest_s(job.settings) - 1.0)
    assert not job.did(do.LaunchStep)
    job.wait(2.0)
    assert job.did(do.StartRanks)


@pytest.mark.parametrize(
    "known",
    [
        {"here": ("n1", "n3")},  # a donor's, or one that the job has no more
        {"unproven": {"n1": "killed", "n2": "silent"}, "killed": frozenset({"n1"})},
        {"steps_over": frozenset()},
    ],
)
def test_after_a_kill_the_leases_are_waited_for_where_slurm_cannot_know(known: dict[str, Any]) -> None:
    job = after_a_kill(**known)
    job.tell(ev.StepsListed(frozenset()))
    job.wait(longest_s(job.settings) - 1.0)
    assert not job.did(do.LaunchStep) and not job.did(do.ListSteps)
    job.wait(2.0)
    assert job.did(do.LaunchStep)


@pytest.mark.parametrize(("listed", "beside"), [({"7.0"}, True), ({"7.0", "7.1"}, False), (set(), False)])
def test_after_a_kill_and_all_leases_a_step_that_slurm_lists_still_is_no_reason_to_wait(listed: set[str], beside: bool) -> None:
    """Where memory is counted srun would not even wait, but fail. A step of somebody else is waited for, as srun does."""
    job = after_a_kill()
    job.slurm = replace(RUNNING, bad_nodes=(("n2", "DOWN*"),))
    job.tell(ev.StepsListed(frozenset(listed)))
    job.wait(longest_s(job.settings) + 1.0)
    assert job.did(do.LaunchStep)[-1].overlap is beside


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_after_a_kill_whoever_is_tired_of_waiting_need_not_wait_for_a_step_that_is_not_there(number: int) -> None:
    job = after_a_kill()
    job.tell(ev.SignalSeen(number))
    assert job.status == 128 + number and not job.did(do.KillStep)


def test_an_ftrun_was_killed_that_does_not_run_and_did_not_say_how_its_ranks_ended() -> None:
    def run(name: str, schedule: int, key: str, *nodes: str) -> list[rec.Record]:
        began = rec.RunBegan(1.0, name, "7", "c", schedule, key, "train", "n[1-9]")
        return [began, *(rec.AttemptBegan(2.0, name, 1, schedule, key, 1, on, 1, "7.0") for on in nodes)]

    def killed(*records: rec.Record) -> frozenset[str]:
        return predecessors(records, 1, gone=lambda began: began.run != "runs").killed()

    assert killed(*run("killed", 1, "k", "n[1-2]", "n[1,3]")) == {"n1", "n3"}, "it has waited for its own"
    assert killed(*run("killed", 1, "k", "n1"), *run("waited", 1, "k")) == {"n1"}
    assert killed(*run("killed", 1, "k", "n1"), *run("waited", 1, "k", "n2")) == {"n2"}
    assert killed(*run("killed", 1, "k", "n1"), *run("another", 1, "l", "n2")) == {"n1", "n2"}
    assert killed(*run("killed", 1, "k", "n1"), *run("runs", 1, "l", "n2")) == {"n1"}
    assert killed(*run("ended", 1, "k", "n1"), rec.Finished(3.0, "ended", 1, "failed")) == frozenset()
    assert killed(*run("before", 0, "k", "n1"), *run("killed", 1, "k")) == frozenset(), "Slurm has cleaned up in between"


def test_the_donors_of_an_ftrun_that_was_killed_are_ended_by_the_next() -> None:
    records = [
        rec.RunBegan(1.0, "killed", "7", "c", 1, "k", "train", "n1"), rec.NodeLent(2.0, "killed", "n9", 909),
        rec.RunBegan(1.0, "runs", "7", "c", 1, "k", "train", "n1"), rec.NodeLent(2.0, "runs", "n8", 908),
        rec.RunBegan(1.0, "ended", "7", "c", 1, "k", "train", "n1"), rec.NodeLent(2.0, "ended", "n7", 907),
        rec.Finished(3.0, "ended", 0, "done"),
    ]  # fmt: skip
    left = predecessors(records, 1, gone=lambda began: began.run != "runs").loans()
    job = Job()
    job.judge.run.facts = replace(job.facts, earlier=EarlierRuns(loans_left=left))
    job.tell(ev.Begun())
    assert job.did(do.EndLoans) == [do.EndLoans((909,))]


@pytest.mark.parametrize(("last", "died"), [
    ([], True),
    ([rec.Finished(2.0, "killed", 0, "done")], False),
    ([rec.RunBegan(2.0, "runs", "7", "c", 1, "k", "train", "n1")], False),  # the donor may be what it waits for
    ([rec.RunBegan(2.0, "ended", "7", "c", 1, "k", "train", "n1"), rec.Finished(3.0, "ended", 0, "done")], True),
])  # fmt: skip
def test_donors_that_nobody_has_written_down_are_nobody_s_where_an_ftrun_has_died_alone(
    last: list[rec.Record], died: bool
) -> None:
    records = [
        rec.RunBegan(1.0, "earlier", "7", "c", 0, "k", "train", "n1"),
        rec.RunBegan(1.0, "killed", "7", "c", 1, "k", "train", "n1"), *last,
    ]  # fmt: skip
    assert predecessors(records, 1, gone=lambda began: began.run == "killed").died_alone() is died
    assert not predecessors(records, 2, gone=lambda began: True).died_alone()


def test_steps_that_are_over_are_those_of_this_scheduling_whose_ftrun_is() -> None:
    def run(name: str, schedule: int, step: str) -> list[rec.Record]:
        return [
            rec.RunBegan(1.0, name, "7", "c", schedule, "k", "train", "n1"),
            rec.AttemptBegan(2.0, name, 1, schedule, "k", 1, "n1", 1, step),
        ]

    records = [*run("before", 0, "7.0"), *run("killed", 1, "7.0"), *run("runs", 1, "7.1"), *run("ended", 1, "7.2")]
    records.append(rec.Finished(3.0, "ended", 0, "done"))
    assert predecessors(records, 1, gone=lambda began: began.run == "killed").steps_over() == {"7.0", "7.2"}


# --- all ranks are on our own node: who would succeed us?

ALONE = requeueing(node_replacement__enabled=True, node_replacement__budget=4, nodes__spares=2, nodes__donor=False)


def alone(**how: Any) -> Job:
    """Ranks on the batch node, n1; n2 and n3 are spares."""
    can = ("ask", "requeue", "probe", "replace", "release")
    return Job(how.pop("policy", ALONE), nodes=("n1", "n2", "n3"), can=can, width=1, batch_node="n1", **how).begin()


def watched(job: Job) -> list[tuple[str, ...]]:
    return [watch.nodes for watch in job.did(do.WatchNodes)]


def test_an_agent_comes_up_on_a_spare_where_no_other_node_has_one() -> None:
    assert watched(alone()) == [("n1", "n2")]
    two = Job(ALONE, nodes=("n1", "n2", "n3", "n4"), can=("replace",), width=2, batch_node="n1").begin()
    assert watched(two) == [("n1", "n2")], "n2 has ranks and an agent, and n3 and n4 are left alone"


def test_a_step_of_one_rank_loads_what_a_failure_needs_when_it_has_run_for_a_while() -> None:
    """It may be one of many short ones."""
    one, two = (Job(nodes=nodes, per_node=1).begin() for nodes in (("n1",), ("n1", "n2")))
    one.wait(30.0)
    assert [watch.prepare_in_s for job in (one, two) for watch in job.did(do.WatchNodes)] == [20.0, 0.0]


def test_what_it_sees_of_that_node_is_nobody_s_trouble() -> None:
    job = alone()
    job.tell(ev.DevicesSeen("n2", (fault("n2", graded=FaultClass.ISOLATE),)))
    assert not job.rungs and job.judge.phase is Phase.RUNNING
    job.shows(fault("n1"))
    assert job.rungs == ["in-place-restart"] and job.judge.phase is Phase.RUNNING
    assert watched(job) == [("n1", "n2")]


def test_it_is_replaced_when_it_is_lost_and_on_a_node_that_answers() -> None:
    job = alone()
    job.tell(ev.AgentLost("n2", "it hung up"))
    job.wait(30.0)
    assert watched(job) == [("n1", "n2"), ("n2",)]
    job.tell(ev.NodeSilent("n2", 15.0))
    job.tell(ev.AgentLost("n2", "it hung up"))
    job.wait(60.0)
    assert watched(job)[2:] == [("n3",)]
    assert not job.rungs and job.judge.phase is Phase.RUNNING


def test_one_that_is_given_back_is_followed_by_the_next() -> None:
    job = alone()
    job.silent = {do.ProbeNodes}
    for _ in range(2):
        job.wait(IDLE_LOOK * job.settings.nodes.silence_s)
        job.tell(ev.NodeProbed("n2", False, "nobody answers"))
    assert job.did(do.ReleaseNodes) == [do.ReleaseNodes(("n2",))] and job.did(do.DismissAgents) == [do.DismissAgents(("n2",))]
    assert watched(job) == [("n1", "n2"), ("n3",)]


def test_where_ranks_come_to_its_node_one_comes_up_anew_that_is_listened_to() -> None:
    job = alone()
    job.shows(fault("n1", graded=FaultClass.ISOLATE))
    assert job.rungs == ["node-replacement"] and {task.node for task in job.tasks} == {"n2"}
    job.wait(5.0)
    assert do.DismissAgents(("n2",)) in job.did(do.DismissAgents)
    assert watched(job)[-1] == ("n2",)
    job.shows(fault("n2", graded=FaultClass.ISOLATE))
    assert job.rungs == ["node-replacement", "node-replacement"]
