"""Stories of nodes that are replaced: by spares, by nodes of donor jobs, or by none at all (shrink)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.model.events import Now
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.history import fold
from ftslurm.model.job import Layout, Share
from ftslurm.model.nodes import Near, Topology
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.judge import Phase
from ftslurm.policies.judge.phases import WhyNot
from ftslurm.policies.judge.spares import LOOK_COUNTS_S
from ftslurm.policies.judge.state import IDLE_LOOK
from ftslurm.simulation.world import SIGTERM, tasks_in
from tests.settings import settings_with
from tests.stories.replay import RUNNING, SIGINT, SIGUSR1, START, Job, fault, requeueing

CAN = ("ask", "requeue", "probe", "replace", "release")
BROKEN = fault(graded=FaultClass.ISOLATE)
POLICY = requeueing(node_replacement__enabled=True, node_replacement__budget=4, nodes__spares=2, nodes__donor=False)
ON_LOAN = requeueing(node_replacement__enabled=True, node_replacement__budget=4)
SMALLER = requeueing(shrink__enabled=True, nodes__min=2, node_replacement__budget=4)


def with_spares(policy: Settings = POLICY, nodes: int = 5, **how: Any) -> Job:
    """Two spares beside as many nodes as are left."""
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    return Job(policy, nodes=names, can=CAN, width=nodes - policy.nodes.spares, **how).begin()


def layout(job: Job) -> Layout:
    found = job.did(do.LaunchStep)[-1].layout
    assert found is not None
    return found


def counts(job: Job) -> list[tuple[int, int]]:
    """(MA_SCHEDULE_CNT, MA_PROC_START_CNT) of each rank of the last start."""
    env = job.did(do.StartRanks)[-1].env
    return [(int(env[rank]["MA_SCHEDULE_CNT"]), int(env[rank]["MA_PROC_START_CNT"])) for rank in sorted(env)]


def test_spares_are_left_free_and_the_program_does_not_see_them() -> None:
    job = with_spares()
    assert layout(job).nodes == ("n1", "n2", "n3") and len(job.tasks) == 6
    assert job.env(0)["SLURM_JOB_NODELIST"] == "n[1-3]" and job.env(0)["SLURM_JOB_NUM_NODES"] == "3"
    assert {node for watch in job.did(do.WatchNodes) for node in watch.nodes} == {"n1", "n2", "n3"}


def test_a_node_that_earlier_jobs_left_becomes_a_spare() -> None:
    job = with_spares(remembered={"n2": "left twice"})
    assert layout(job).nodes == ("n1", "n3", "n4")


def test_a_spare_takes_the_slot_of_a_broken_node_and_the_ranks_keep_theirs() -> None:
    job = with_spares()
    job.shows(BROKEN)
    assert job.rungs == ["node-replacement"] and job.judge.phase is Phase.RUNNING
    assert layout(job) == Layout(("n1", "n4", "n3"), (0, 0, 1, 1, 2, 2))
    assert counts(job) == [(1, 2), (1, 2), (2, 1), (2, 1), (1, 2), (1, 2)]
    env = job.env(2)
    assert (env["SLURM_NODEID"], env["SLURM_PROCID"], env["SLURM_JOB_NODELIST"]) == ("1", "2", "n1,n4,n3")
    assert (env["SLURM_TASKS_PER_NODE"], env["SLURM_GTIDS"], env["FTSLURM_EXCLUDED_NODES"]) == ("2(x3)", "2,3", "n2")
    assert "replaced n2 by n4 (a spare)" in job.said
    assert fold(job.ledger).budgets.spent == {"node_replacements": 1} and fold(job.ledger).exclusions.isolated.keys() == {"n2"}


def test_variables_of_the_rendezvous_follow_the_slot_of_the_node_that_they_name() -> None:
    job = with_spares()
    theirs = {
        "MASTER_ADDR": "n1",
        "RDZV_ENDPOINT": "n1.site:29500",
        "LOG_HOST": "n11",
        "PEER_HOST": "n2",
        "CHIEF_ADDR": "10.0.0.1",
    }
    job.judge.run.facts = replace(
        job.facts, command="torchrun --rdzv-endpoint=n1:29500 t.py", env=replace(job.facts.env, meet_at=theirs)
    )
    job.shows(replace(BROKEN, node="n1"))
    assert layout(job).nodes == ("n4", "n2", "n3")
    assert {name: value for name, value in job.env(5).items() if name in theirs} == {
        "MASTER_ADDR": "n4", "RDZV_ENDPOINT": "n4.site:29500", "CHIEF_ADDR": "10.0.0.4"
    }  # fmt: skip
    assert "MASTER_ADDR is n4 for the ranks: n1 is out" in job.said and "the command names n1, which is out (n4 has" in job.said
    assert "PEER_HOST" not in job.said


def test_those_of_a_node_that_is_a_spare_from_the_start_as_well() -> None:
    job = Job(POLICY, nodes=("n1", "n2", "n3", "n4", "n5"), can=CAN, width=3, remembered={"n1": "left twice"})
    job.judge.run.facts = replace(job.facts, env=replace(job.facts.env, meet_at={"MASTER_ADDR": "n1"}))
    job.begin()
    assert layout(job).nodes == ("n2", "n3", "n4") and job.env(0)["MASTER_ADDR"] == "n2"


def test_a_step_that_takes_another_s_place_is_to_have_what_the_first_one_had() -> None:
    job = with_spares(shares=(Share(8, 2),) * 3)
    had = (Share(8, 2),) * 3
    assert job.did(do.LaunchStep)[0].shares == () and fold(job.ledger).slots.shares[0, "train"] == had
    job.shares = (Share(64),) * 3  # of the spare; what srun gives there is no measure
    job.shows(BROKEN)
    assert job.did(do.LaunchStep)[-1].shares == had == fold(job.ledger).slots.shares[0, "train"]
    assert job.did(do.LaunchStep)[-1].layout is not None


def test_a_node_that_slurm_calls_down_is_given_back_as_well() -> None:
    job = with_spares()
    job.slurm = replace(RUNNING, bad_nodes=(("n2", "DOWN*"),))
    job.exits(2, 1)
    assert job.rungs == ["node-replacement"]
    assert [nodes for release in job.did(do.ReleaseNodes) for nodes in release.nodes] == ["n2"]


@pytest.mark.parametrize(("cpus", "rung"), [((4, 4), "node-replacement"), ((4, 2), "isolated-requeue")])
def test_a_step_that_slurm_would_refuse_is_not_asked_for(cpus: tuple[int, int], rung: str) -> None:
    """Memory by CPU, as many CPUs not on each node, and one srun for all: the next rung is chosen while the old step is there."""
    job = Job(ON_LOAN, can=CAN, width=2)
    job.judge.run.facts = replace(job.facts, why_not=WhyNot(split="an MPI step cannot span two jobs (--mpi)"))
    job.shares = tuple(Share(number) for number in cpus)
    job.donors = ["n9"]
    job.begin()
    job.shows(BROKEN)
    assert job.rungs == [rung]
    passed = dict(job.recorded(rec.Decided)[-1].passed)
    assert ("different numbers of CPUs" in passed.get("node-replacement", "")) is (rung != "node-replacement")


def test_counters_go_on_from_there() -> None:
    job = with_spares(settings_with(POLICY, in_place_restart__crash_restarts=5))
    job.shows(BROKEN)
    job.exits(0, 1)
    assert job.rungs == ["node-replacement", "in-place-restart"]
    assert counts(job) == [(1, 3), (1, 3), (2, 2), (2, 2), (1, 3), (1, 3)]
    job.shows(fault("n4", graded=FaultClass.ISOLATE))
    assert layout(job).nodes == ("n1", "n5", "n3")
    assert counts(job) == [(1, 4), (1, 4), (3, 1), (3, 1), (1, 4), (1, 4)]
    job.shows(fault("n1", graded=FaultClass.ISOLATE))
    assert (
        job.rungs[-1] == "isolated-requeue"
        and "no spare node is left" in dict(job.recorded(rec.Decided)[-1].passed)["node-replacement"]
    )
    later = job.again(nodes=("n6", "n3", "n7", "n8", "n9")).begin()
    assert counts(later) == [(2, 1), (2, 1), (4, 1), (4, 1), (2, 1), (2, 1)]


def test_the_search_does_not_wait_for_the_old_step_nor_the_step_for_the_search() -> None:
    job = with_spares()
    job.silent = {do.EndStep}
    decided = job.shows(BROKEN)
    kinds = [type(decision) for decision in decided]
    assert kinds.index(do.CheckNode) < kinds.index(do.EndStep) and do.LaunchStep not in kinds
    job.silent = {do.CheckNode}
    late = with_spares()
    late.silent = {do.CheckNode}
    late.shows(BROKEN)
    assert late.judge.phase is Phase.REPLACING
    late.tell(ev.NodeChecked("n4", True))
    assert late.judge.phase is Phase.RUNNING


@pytest.mark.parametrize(("good", "isolated"), [(False, {"n2", "n4"}), (None, {"n2"})])
def test_a_spare_that_is_not_fit_is_passed_over(good: bool | None, isolated: set[str]) -> None:
    job = with_spares()
    job.unfit = {"n4": good}
    job.shows(BROKEN)
    assert layout(job).nodes == ("n1", "n5", "n3") and "n4 cannot replace n2: as told" in job.said
    assert set(fold(job.ledger).exclusions.isolated) == isolated


@pytest.mark.parametrize(
    ("there", "nodes", "isolated"),
    [
        ({"n2": 8, "n4": 8}, ("n1", "n4", "n3"), {"n2"}),
        ({"n2": 8, "n4": 7}, ("n1", "n5", "n3"), {"n2", "n4"}),
        ({"n2": 8, "n4": None}, ("n1", "n5", "n3"), {"n2"}),  # no tool there: nothing is known
        ({"n2": 4, "n1": 8, "n3": 8, "n4": 4}, ("n1", "n4", "n3"), {"n2"}),
        ({"n1": 8, "n3": 8, "n4": 7}, ("n1", "n5", "n3"), {"n2", "n4"}),  # of n2 nobody knows
        ({"n4": 7}, ("n1", "n4", "n3"), {"n2"}),
        ({"n2": 8, "n4": 16}, ("n1", "n4", "n3"), {"n2"}),
    ],
)
def test_a_spare_has_as_many_devices_as_the_node_had(
    there: dict[str, int | None], nodes: tuple[str, ...], isolated: set[str]
) -> None:
    job = with_spares()
    counted = {**dict.fromkeys(("n4", "n5"), 16), **there}
    job.there = {node: {"ascend": count} if count is not None else {} for node, count in counted.items()}
    job.shows(BROKEN)
    assert layout(job).nodes == nodes and set(fold(job.ledger).exclusions.isolated) == isolated


def test_what_was_seen_of_a_spare_beforehand_is_measured_as_well() -> None:
    job = with_spares()
    job.there, job.reachable = {"n2": {"ascend": 8}, "n4": {"ascend": 7}}, None
    job.tell(ev.DevicesSeen("n2", (), there={"ascend": 8}))
    job.tell(ev.DevicesSeen("n2", (), there={"ascend": 7}))
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0), ev.NodeHeard("n2"))
    job.silent = {do.LookAtDevices}
    job.shows(BROKEN)
    job.wait(60.0)
    assert layout(job).nodes == ("n1", "n5", "n3") and "n4 cannot replace n2: device: 7 of 8 ascend devices are there" in job.said


def test_where_no_spare_is_fit_the_job_is_requeued_without_them_and_nothing_is_spent_on_replacement() -> None:
    job = with_spares()
    job.unfit = {"n4": False, "n5": False}
    job.shows(BROKEN)
    assert job.rungs == ["node-replacement", "isolated-requeue"] and job.excluded == ("n2", "n4", "n5")
    assert fold(job.ledger).budgets.spent == {"node_replacements": 0, "max_restarts": 1}
    assert [done.ok for done in job.recorded(rec.CarriedOut)] == [False, True]


def test_a_spare_that_slurm_calls_down_is_nobodys_trouble_and_not_taken() -> None:
    job = with_spares()
    job.slurm = replace(job.slurm, bad_nodes=(("n4", "DOWN"),))
    job.shows(BROKEN)
    assert layout(job).nodes == ("n1", "n5", "n3")


def test_a_node_that_was_left_is_nobodys_trouble_when_slurm_drains_it() -> None:
    job = with_spares(settings_with(POLICY, in_place_restart__crash_restarts=5))
    job.shows(BROKEN)
    job.slurm = replace(job.slurm, bad_nodes=(("n2", "DRAINED: device broken"),))
    job.wait(60.0)
    job.exits(0, 1)
    assert job.rungs == ["node-replacement", "in-place-restart"]


def test_a_node_that_fails_before_the_first_start_is_replaced_and_no_rank_is_missing() -> None:
    job = with_spares_but_down()
    assert job.rungs == ["node-replacement"] and layout(job) == Layout(("n1", "n4", "n3"))
    assert layout(job).chosen, "srun would number the nodes in its own order"
    assert counts(job) == [(1, 1), (1, 1), (2, 1), (2, 1), (1, 1), (1, 1)]


def test_the_same_where_srun_was_to_place_the_ranks() -> None:
    job = with_spares_but_down(ON_LOAN, 3)
    assert job.rungs == ["node-replacement"] and layout(job) == Layout(("n1", "n9", "n3"), (), {"n9": 909})


def with_spares_but_down(policy: Settings = POLICY, nodes: int = 5) -> Job:
    """n2 goes down while the first step comes up: the tasks of n1 arrive, and srun gives up."""
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    job = Job(policy, nodes=names, can=CAN, width=nodes - policy.nodes.spares)
    job.slurm, job.donors = replace(job.slurm, bad_nodes=(("n2", "DOWN"),)), ["n9"]
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), *(ev.TaskArrived(task, 2 * job.facts.width, "7.0") for task in job.tasks[:2]))
    job.silent = set()
    job.tell(ev.StepEnded(ExitStatus(1)))
    return job


def test_a_node_out_of_the_step_cannot_be_replaced_in_it() -> None:
    job = Job(ON_LOAN, nodes=("n1", "n2", "n3"), can=CAN, width=2)
    job.tasks = job.tasks[:4]
    job.truth.placed(job.tasks)
    job.slurm = replace(job.slurm, bad_nodes=(("n3", "DOWN"),))
    job.begin().exits(0, 1)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n3",)


def test_an_agent_that_comes_up_late_on_a_node_that_was_left_is_dismissed() -> None:
    job = with_spares()
    job.reachable = False
    job.wait(15.0)
    job.tell(
        ev.AgentLost("n2", "it hung up"), ev.NodeSilent("n2", 15.0), ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up")
    )
    assert job.judge.phase is Phase.RUNNING
    assert job.tell(ev.AgentArrived("n2", ("ascend",))) == [do.DismissAgents(("n2",))]
    assert not job.tell(ev.DevicesSeen("n2", (BROKEN,)))


def test_an_agent_that_is_lost_while_a_node_is_sought_comes_up_again() -> None:
    job = with_spares()
    job.silent = {do.CheckNode}
    job.shows(BROKEN)
    job.tell(ev.AgentLost("n1", "its step was ended"))
    job.tell(ev.NodeChecked("n4", True))
    job.wait(2.0)
    assert set(job.did(do.WatchNodes)[-1].nodes) == {"n1", "n4"}


def test_two_nodes_at_once_take_two_spares() -> None:
    job = with_spares()
    job.shows(BROKEN, fault("n3", graded=FaultClass.ISOLATE))
    assert layout(job).nodes == ("n1", "n4", "n5")
    assert counts(job) == [(1, 2), (1, 2), (2, 1), (2, 1), (2, 1), (2, 1)]


def test_a_dead_node_is_replaced_as_soon_as_nothing_of_it_can_run_and_given_back() -> None:
    job = with_spares()
    job.reachable = False
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0), ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert job.rungs == ["node-replacement"] and job.judge.phase is Phase.RUNNING
    assert job.did(do.AbandonStep) and not job.did(do.KillStep)
    assert [release.nodes for release in job.did(do.ReleaseNodes)] == [("n2",)]


def looks(job: Job) -> list[str]:
    return [check.node for check in job.did(do.CheckNode)]


def test_a_spare_is_looked_at_while_the_node_is_only_under_suspicion() -> None:
    job = with_spares()
    job.reachable = None
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0))
    assert looks(job) == ["n4"] and job.judge.phase is Phase.RUNNING
    job.wait(10.0)
    job.reachable = False
    job.tell(ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert job.rungs == ["node-replacement"] and layout(job).nodes == ("n1", "n4", "n3") and looks(job) == ["n4"]


def test_what_was_seen_too_long_ago_is_looked_at_again() -> None:
    job = with_spares()
    job.reachable = None
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0), ev.NodeHeard("n2"))
    job.wait(LOOK_COUNTS_S + 1.0)
    job.shows(BROKEN)
    assert looks(job) == ["n4", "n4"] and layout(job).nodes == ("n1", "n4", "n3")


def test_a_spare_that_was_found_unfit_meanwhile_is_passed_over() -> None:
    job = with_spares()
    job.reachable, job.unfit = None, {"n4": False}
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0), ev.NodeHeard("n2"))
    job.shows(BROKEN)
    assert looks(job) == ["n4", "n5"] and layout(job).nodes == ("n1", "n5", "n3") and "n4 cannot replace n2" in job.said


def test_a_spare_that_is_still_being_looked_at_is_waited_for() -> None:
    job = with_spares()
    job.reachable, job.silent = None, {do.CheckNode}
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0), ev.NodeHeard("n2"))
    job.shows(BROKEN)
    assert looks(job) == ["n4"] and job.judge.phase is Phase.REPLACING
    job.tell(ev.NodeChecked("n4", True))
    assert layout(job).nodes == ("n1", "n4", "n3")


def test_a_node_that_is_cut_off_is_replaced_after_its_leases() -> None:
    job = with_spares()
    job.reachable = False
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0))
    assert job.rungs == ["node-replacement"] and job.judge.phase is Phase.ENDING
    job.wait(POLICY.lease.time_s + POLICY.lease.margin_s - 15.0 - 1.0)
    assert job.judge.phase is Phase.ENDING
    job.wait(2.0)
    assert job.judge.phase is Phase.RUNNING and layout(job).nodes == ("n1", "n4", "n3")


def test_a_faulty_node_that_lives_stays_in_the_allocation() -> None:
    job = with_spares()
    job.shows(BROKEN)
    assert not job.did(do.ReleaseNodes)
    assert [dismissed.nodes for dismissed in job.did(do.DismissAgents)] == [("n2",)]
    assert not job.tell(ev.DevicesSeen("n2", (BROKEN,))), "what it still shows is nobody's trouble"


def test_a_rank_that_comes_up_elsewhere_is_not_started() -> None:
    job = with_spares()
    job.silent = {do.LaunchStep}
    job.shows(BROKEN)
    started = len(job.did(do.StartRanks))
    job.tasks = tuple(replace(task, node="n5") if task.rank == 2 else task for task in tasks_in(layout(job), 2))
    job.truth.placed(job.tasks)
    job.tell(*(ev.TaskArrived(task, 6, "7.1") for task in job.tasks))
    assert len(job.did(do.StartRanks)) == started
    assert "rank 2 was placed on n5 instead of n4" in job.said


def test_where_the_new_step_does_not_come_up_no_device_that_heals_makes_up_for_it() -> None:
    """Nothing is there to start again in place, though no rank is missed either: none had come."""
    job = with_spares()
    job.silent = {do.LaunchStep}
    job.shows(BROKEN)
    job.shows(fault("n1"))
    job.tell(ev.StepEnded(ExitStatus(1)))
    assert job.rungs == ["node-replacement", "unconditional-requeue"] and not job.did(do.HealDevices)


def test_where_no_node_can_be_replaced_the_next_rung_is_asked_and_the_reason_said() -> None:
    policy = settings_with(POLICY, shrink__enabled=True, nodes__min=1)
    job = Job(policy, nodes=("n1", "n2", "n3", "n4", "n5"), can={*CAN} - {"replace"}, width=3, no_swap="too many tasks").begin()
    job.shows(BROKEN)
    passed = dict(job.recorded(rec.Decided)[-1].passed)
    assert job.rungs == ["isolated-requeue"] and passed["node-replacement"] == passed["shrink"] == "too many tasks"
    assert fold(job.ledger).budgets.spent == {"max_restarts": 1}


S1, S2 = frozenset({"n1", "n2", "n5", "n8"}), frozenset({"n3", "n4", "n9"})


def test_the_spare_that_is_near_the_broken_node_takes_its_slot() -> None:
    """With nothing known of switches it is n4."""
    job = with_spares()
    job.slurm = replace(job.slurm, topology=Topology((S1, S2, S1 | S2)))
    job.shows(BROKEN)
    assert layout(job).nodes == ("n1", "n5", "n3")


# --- donors


@pytest.mark.parametrize("strict", [False, True])
def test_a_node_is_borrowed_near_the_broken_one(strict: bool) -> None:
    """And in a block Slurm is asked whether it may stand beside the others."""
    job = on_loan()
    job.slurm, job.donors = replace(job.slurm, topology=Topology((S1 | S2, S1, S2), strict)), ["n9"]
    job.begin().shows(BROKEN)
    (asked,) = job.did(do.BorrowNode)
    assert asked.near == Near((S1, S1 | S2), frozenset({"n1"}) if strict else frozenset())


def on_loan(policy: Settings = ON_LOAN, **how: Any) -> Job:
    return Job(policy, can=CAN, width=2, **how)


def test_without_spares_a_donor_job_lends_a_node() -> None:
    job = on_loan()
    job.donors = ["n9"]
    job.begin().shows(BROKEN)
    (asked,) = job.did(do.BorrowNode)
    assert asked.exclude == ("n1", "n2") and asked.wait_s == ON_LOAN.nodes.replacement_wait_s
    assert layout(job) == Layout(("n1", "n9"), (0, 0, 1, 1), {"n9": 909})
    assert job.did(do.CheckNode)[-1] == do.CheckNode("n9", 909, ON_LOAN.nodes.check_timeout_s)
    assert (job.env(2)["SLURM_JOB_ID"], job.env(2)["SLURM_STEP_ID"]) == ("7", "0")
    job.wait(2.0)
    assert job.did(do.WatchNodes)[-1] == do.WatchNodes(("n9",), {"n9": 909})
    assert "n9 (lent by job 909)" in job.said
    job.all_exit(0)
    assert job.did(do.EndLoans) == [do.EndLoans((909,))] and job.status == 0


def test_a_rank_0_on_a_lent_node_is_of_our_job_too() -> None:
    job = on_loan()
    job.donors = ["n9"]
    job.begin().shows(fault("n1", graded=FaultClass.ISOLATE))
    assert layout(job).nodes == ("n9", "n2")
    assert {(job.env(rank).get("SLURM_JOB_ID", "7"), job.env(rank).get("SLURM_STEP_ID", "0")) for rank in range(4)} == {
        ("7", "0")
    }


def test_a_donor_that_goes_while_the_step_comes_up_is_not_waited_for() -> None:
    job = on_loan()
    job.donors = ["n9"]
    job.begin().silent = {do.LaunchStep}
    job.shows(BROKEN)
    job.tell(*(ev.TaskArrived(task, 4, "7.1") for task in job.tasks[:2]), ev.PartEnded((2, 3)))
    assert job.rungs == ["node-replacement", "unconditional-requeue"] and len(job.did(do.StartRanks)) == 1
    assert do.EndLoans((909,)) in job.did(do.EndLoans)


def test_a_donor_that_turns_bad_is_replaced_and_ended() -> None:
    job = on_loan()
    job.donors = ["n9", "n8"]
    job.begin().shows(BROKEN)
    job.wait(2.0)
    job.shows(fault("n9", graded=FaultClass.ISOLATE))
    assert layout(job) == Layout(("n1", "n8"), (0, 0, 1, 1), {"n8": 908})
    assert do.EndLoans((909,)) in job.did(do.EndLoans)
    assert counts(job) == [(1, 3), (1, 3), (3, 1), (3, 1)]


def test_a_donor_that_is_not_fit_is_ended_and_another_one_asked() -> None:
    job = on_loan()
    job.donors, job.unfit = ["n9", "n8"], {"n9": False}
    job.begin().shows(BROKEN)
    assert layout(job).nodes == ("n1", "n8") and do.EndLoans((909,)) in job.did(do.EndLoans)
    assert "n9" in job.did(do.BorrowNode)[-1].exclude


def test_no_node_in_time_and_the_job_is_requeued_and_no_donor_stays() -> None:
    job = on_loan().begin()
    job.silent = {do.BorrowNode}
    job.shows(BROKEN)
    assert job.judge.phase is Phase.REPLACING
    job.wait(ON_LOAN.nodes.replacement_wait_s + 100.0)
    assert job.rungs == ["node-replacement", "isolated-requeue"] and job.excluded == ("n2",)
    assert fold(job.ledger).budgets.spent == {"node_replacements": 0, "max_restarts": 1}


def test_a_loan_that_comes_too_late_is_ended() -> None:
    job = on_loan().begin()
    job.silent = {do.BorrowNode, do.Requeue}
    job.shows(BROKEN)
    job.wait(ON_LOAN.nodes.replacement_wait_s + 100.0)
    assert job.tell(ev.NodeBorrowed(1, "n9", 909)) == [do.EndLoans((909,))]


@pytest.mark.parametrize("policy", [ON_LOAN, settings_with(ON_LOAN, shrink__enabled=True, nodes__min=1)])
def test_a_donor_that_lends_nothing_and_could_not_be_ended_is_ended_beside_what_follows(policy: Settings) -> None:
    job = on_loan(policy).begin()
    job.silent = {do.BorrowNode, do.EndLoans}
    job.shows(BROKEN)
    job.tell(ev.NodeBorrowed(1, "", 909, "slurmctld does not answer"))
    assert job.did(do.EndLoans)[0] == do.EndLoans((909,))
    assert job.rungs == ["node-replacement", "shrink" if policy.shrink.enabled else "isolated-requeue"]


def test_donors_that_stay_are_named() -> None:
    job = on_loan().begin()
    assert not job.tell(ev.LoansEnded())
    job.tell(ev.LoansEnded((909, 910)))
    assert job.said.endswith("donor jobs 909, 910; they keep their nodes until this job ends (`scancel 909 910`)")


def test_a_donor_whose_end_could_not_be_written_down_with_the_rest_goes_all_the_same() -> None:
    job = on_loan().begin()
    job.donors, job.silent = ["n9"], {do.CheckNode}
    job.shows(BROKEN)
    job.jump(ON_LOAN.nodes.replacement_wait_s + 1.0)
    job.full = True
    job.tell(ev.NodeChecked("n9", None, "no step came up there"))
    assert job.judge.finished and set(job.did(do.EndLoans)) == {do.EndLoans((909,))}


def test_where_the_old_step_cannot_be_ended_nothing_is_swapped_and_nothing_spent() -> None:
    job = with_spares()
    job.silent = {do.EndStep, do.KillStep}
    job.shows(BROKEN)
    job.wait(100.0)
    assert job.rungs == ["node-replacement", "isolated-requeue"] and len(job.did(do.LaunchStep)) == 1
    assert "the old step could not be ended" in dict(job.recorded(rec.Decided)[-1].passed)["node-replacement"]
    assert fold(job.ledger).budgets.spent == {"node_replacements": 0, "max_restarts": 1}


def test_nor_where_no_task_of_it_has_come_up() -> None:
    job = Job(POLICY, nodes=("n1", "n2", "n3", "n4", "n5"), can=CAN, width=3)
    job.silent, job.reachable = {do.LaunchStep, do.EndStep, do.KillStep, do.AbandonStep}, False
    job.tell(ev.Begun())
    job.wait(200.0)
    assert job.rungs[0] == "node-replacement" and len(job.did(do.LaunchStep)) == 1 and job.judge.run.places.search is None
    assert fold(job.ledger).budgets.spent["node_replacements"] == 0, "and what was decided has been given up"


def test_before_a_requeue_the_donors_go() -> None:
    job = on_loan(settings_with(ON_LOAN, node_replacement__budget=1))
    job.donors = ["n9"]
    job.begin().shows(BROKEN)
    job.shows(fault("n1", graded=FaultClass.ISOLATE))
    kinds = [type(decision) for decision in job.decisions]
    assert job.excluded == ("n1", "n2") and kinds.index(do.EndLoans) < kinds.index(do.Requeue)


def test_loans_of_a_scheduling_that_ended_without_a_word_are_ended_by_the_next() -> None:
    job = on_loan()
    job.donors = ["n9"]
    job.begin().shows(BROKEN)
    later = Job(ON_LOAN, past=job.ledger, schedule=1, can=CAN, width=2, nodes=("n1", "n3")).begin()
    assert later.did(do.EndLoans) == [do.EndLoans((909,))]


@pytest.mark.parametrize(("number", "status"), [(SIGINT, 130), (SIGTERM, 143)])
def test_a_job_that_ends_does_not_wait_for_a_node(number: int, status: int) -> None:
    job = on_loan().begin()
    job.silent = {do.BorrowNode}
    job.shows(BROKEN)
    job.slurm = replace(RUNNING, state="CANCELLED")
    job.tell(ev.SignalSeen(number))
    assert job.judge.finished and job.status in (status, 1)
    assert not job.did(do.Requeue)


@pytest.mark.parametrize("requeue", [True, False])
def test_a_warning_while_a_node_is_waited_for_is_not_forgotten(requeue: bool) -> None:
    job = on_loan(settings_with(ON_LOAN, warning__signals=("TERM", "USR1"), warning__requeue=requeue)).begin()
    job.silent = {do.BorrowNode}
    job.shows(BROKEN)
    job.tell(ev.SignalSeen(SIGUSR1))
    job.silent = set()
    if requeue:
        assert job.status == 75 and not any(fold(job.ledger).budgets.spent.values()) and job.excluded == ("n2",)
        return
    job.tell(ev.NodeBorrowed(1, "n9", 909))
    assert job.judge.phase is Phase.RUNNING and job.did(do.SignalRanks) == [do.SignalRanks(SIGUSR1)]


@pytest.mark.parametrize("requeue", [True, False])
def test_a_node_that_dies_after_a_warning_does_not_undo_it(requeue: bool) -> None:
    """The ranks that heard it are gone."""
    job = with_spares(settings_with(POLICY, warning__requeue=requeue))
    job.reachable = False
    job.wait(15.0)
    job.tell(ev.SignalSeen(SIGTERM, rank=0))
    job.wait(5.0)
    job.tell(ev.NodeSilent("n2", 15.0), ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert job.rungs == ["node-replacement"] and [told.number for told in job.did(do.SignalRanks)] == [SIGTERM]
    job.wait(3600.0)
    assert job.rungs == ["node-replacement", "requeue-on-warning"][: 1 + requeue]
    assert job.status == (75 if requeue else None)


def test_a_warning_of_long_ago_is_not_told_to_ranks_that_start_later() -> None:
    job = with_spares()
    job.slurm = replace(job.slurm, end_time=int(job.now.unix + 48 * 3600.0))
    job.tell(ev.SignalSeen(SIGTERM, rank=0))
    for _ in range(2):  # the second time it was told again, and is no younger for that
        job.wait(400.0)
        job.shows(fault(layout(job).nodes[1], graded=FaultClass.ISOLATE))
        job.tell(ev.ShimLost(2, "it hung up"))
    assert len(job.did(do.StartRanks)) == 3 and len(job.did(do.SignalRanks)) == 1


def test_the_next_ftrun_of_the_script_does_not_go_back_to_a_node_that_was_left() -> None:
    first = on_loan()
    first.donors = ["n9"]
    first.begin().shows(BROKEN)
    first.all_exit(0)
    second = on_loan(past=first.ledger, step_key="eval")
    second.donors = ["n8"]
    second.begin()
    assert layout(second).nodes == ("n1", "n8") and counts(second) == [(1, 1), (1, 1), (3, 1), (3, 1)]
    none = on_loan(past=first.ledger, step_key="eval").begin()
    assert none.rungs == ["isolated-requeue"] and none.excluded == ("n2",)
    assert none.status == 75 and "n2 is excluded, and" in none.said


@pytest.mark.parametrize("requeue", [True, False])
def test_a_requeue_whose_exclusion_slurm_did_not_take_is_made_once_more(requeue: bool) -> None:
    """Of a job that has given a node back, Slurm 22.05 without slurmdbd takes no change until it runs again."""
    first = with_spares(settings_with(POLICY, nodes__spares=1), 3)
    for node in ("n1", "n2"):
        first.shows(fault(node, graded=FaultClass.ISOLATE))
    assert first.rungs == ["node-replacement", "isolated-requeue"]
    can = tuple(word for word in CAN if requeue or word != "requeue")
    again = Job(first.settings, nodes=("n1", "n2", "n3"), can=can, width=2, past=first.ledger).begin()
    assert not again.did(do.LaunchStep) and "n2 is excluded, and no spare node is left" in again.said
    assert again.rungs == ["isolated-requeue" if requeue else "fail"] and again.status == (75 if requeue else 1)
    assert [given_back.exclude for given_back in again.did(do.Requeue)] == ([("n1", "n2")] if requeue else [])


# --- too few nodes for a requeue without all that were left


def in_a_cluster_of(nodes: int, job: Job) -> Job:
    job.slurm = replace(job.slurm, usable=frozenset(f"n{number}" for number in range(1, nodes + 1)))
    return job


def test_a_requeue_that_blames_nobody_lets_in_a_node_that_the_job_cannot_start_without() -> None:
    job = in_a_cluster_of(3, with_spares(settings_with(POLICY, nodes__spares=1), 3))
    job.shows(BROKEN)
    assert layout(job).nodes == ("n1", "n3")
    job.exits(0, 1)
    assert job.rungs == ["node-replacement", "unconditional-requeue"] and job.excluded == ()
    assert "too few nodes remain without n2" in job.recorded(rec.Decided)[-1].why
    later = job.again().begin()
    assert layout(later).nodes == ("n1", "n3"), "it becomes a spare"


def left(node: str, at: float) -> rec.Decided:
    return rec.Decided(at, f"run0-{node}", 1, "isolated-requeue", "device", "", isolate={node: "broken"}, exclude=("n2", "n4"))


def test_the_one_left_longest_ago_is_let_in_and_no_more_than_it_takes() -> None:
    at = START.unix
    job = in_a_cluster_of(
        4, with_spares(settings_with(POLICY, nodes__spares=1), 3, past=[left("n4", at - 60.0), left("n2", at - 90.0)])
    )
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ("n4",)


@pytest.mark.parametrize("replaces", [True, False])
def test_a_node_that_was_let_in_runs_ranks_where_nothing_else_will_do(replaces: bool) -> None:
    policy = settings_with(ON_LOAN, node_replacement__enabled=replaces)
    first = Job(policy, can=CAN, width=2, past=[left("n2", START.unix)], nodes=("n1", "n3"), schedule=1).begin()
    in_a_cluster_of(2, first).exits(0, 1)  # n3 is none of the partition's any more
    assert first.rungs == ["unconditional-requeue"] and first.excluded == ()
    second = in_a_cluster_of(2, first.again(nodes=("n1", "n2")).begin())
    assert second.judge.phase is Phase.RUNNING and not second.did(do.BorrowNode)
    second.shows(BROKEN)
    second.exits(0, 1)
    assert second.rungs[-1] == "fail" and not second.did(do.Requeue), "a node to blame is not let in"


@pytest.mark.parametrize(("own", "rungs"), [(frozenset(), ["isolated-requeue"]), (frozenset({"n4"}), [])])
def test_nodes_that_the_user_has_excluded_cannot_be_counted_on(own: frozenset[str], rungs: list[str]) -> None:
    """Those of ours are in Slurm's list too, and are counted once. Ranks that no rung could start again are let run."""
    past = [left("n2", START.unix)]
    job = in_a_cluster_of(4, Job(nodes=("n1", "n3"), past=past, schedule=1)).begin()
    job.slurm = replace(job.slurm, excluded=own | {"n2"})
    job.shows(fault("n3", graded=FaultClass.ISOLATE))
    assert job.rungs == rungs


def test_a_node_that_was_let_in_is_not_used_where_fewer_are_enough() -> None:
    past = [replace(left("n2", START.unix), exclude=())]
    job = Job(settings_with(SMALLER, nodes__min=1), can=CAN, width=2, past=past, schedule=1).begin()
    assert layout(job).nodes == ("n1",)


def test_a_job_that_gave_a_node_back_is_requeued_as_large_as_it_was() -> None:
    job = in_a_cluster_of(4, with_spares(settings_with(POLICY, nodes__spares=1), 3))
    job.reachable = False
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0), ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert job.did(do.ReleaseNodes)
    job.slurm = replace(job.slurm, node_count=2)
    job.shows(fault("n1", graded=FaultClass.ISOLATE))
    job.exits(0, 1)
    assert job.rungs == ["node-replacement", "fail"]
    assert "the job needs 3 nodes and only 2 remain" in dict(job.recorded(rec.Decided)[-1].passed)["isolated-requeue"]


def test_the_next_ftrun_of_its_script_knows_that_too() -> None:
    first = with_spares(settings_with(POLICY, nodes__spares=1), 3)
    first.all_exit(0)
    second = in_a_cluster_of(3, Job(POLICY, nodes=("n1", "n3"), can=CAN, width=2, past=first.ledger, step_key="eval").begin())
    assert second.slurm.node_count == 2
    second.shows(fault("n1", graded=FaultClass.ISOLATE))
    second.exits(2, 1)
    assert second.rungs == ["fail"]


def test_a_requeue_after_a_warning_lets_in_even_what_is_to_blame_now() -> None:
    job = in_a_cluster_of(
        2, Job(settings_with(ON_LOAN, node_replacement__enabled=False, warning__requeue=True), can=CAN, width=2).begin()
    )
    job.tell(ev.SignalSeen(SIGTERM))
    job.shows(BROKEN)
    job.all_exit(0)
    job.wait(100.0)
    assert job.status == 75 and job.excluded == ()


def test_the_next_ftrun_of_the_script_finds_every_slot_where_it_was() -> None:
    first = with_spares(settings_with(POLICY, nodes__spares=1), 4)
    first.shows(fault("n1", graded=FaultClass.ISOLATE))
    assert layout(first).nodes == ("n4", "n2", "n3")
    first.all_exit(0)
    second = Job(first.settings, nodes=("n1", "n2", "n3", "n4"), can=CAN, width=3, past=first.ledger, step_key="eval").begin()
    assert layout(second).nodes == ("n4", "n2", "n3") and layout(second).chosen
    assert counts(second) == [(2, 1), (2, 1), (1, 1), (1, 1), (1, 1), (1, 1)]
    again = Job(first.settings, nodes=("n1", "n2", "n3", "n4"), can=CAN, width=3, past=first.ledger).begin()
    assert counts(again) == [(2, 2), (2, 2), (1, 3), (1, 3), (1, 3), (1, 3)]
    other = Job(first.settings, nodes=("n2", "n3", "n5"), can=CAN, width=2, past=first.ledger, step_key="eval").begin()
    assert layout(other).nodes == ("n2", "n3"), "another width: slots of its own"


def test_for_a_node_that_was_given_back_the_next_ftrun_borrows_one() -> None:
    first = on_loan()
    first.donors, first.reachable = ["n9"], False
    first.begin().wait(15.0)
    first.tell(ev.NodeSilent("n2", 15.0), ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert layout(first).nodes == ("n1", "n9") and first.did(do.ReleaseNodes)
    first.all_exit(0)
    second = on_loan(past=first.ledger, nodes=("n1",), step_key="eval")
    second.donors = ["n8"]
    second.begin()
    assert layout(second).nodes == ("n1", "n8") and counts(second) == [(1, 1), (1, 1), (3, 1), (3, 1)]


def test_a_slot_in_the_middle_stays_there_when_its_node_was_given_back() -> None:
    first = Job(ON_LOAN, nodes=("n1", "n2", "n3"), can=CAN, width=3)
    first.donors, first.reachable = ["n9"], False
    first.begin().wait(15.0)
    first.tell(ev.NodeSilent("n2", 15.0), ev.ShimLost(2, "it hung up"), ev.ShimLost(3, "it hung up"))
    assert layout(first).nodes == ("n1", "n9", "n3")
    first.all_exit(0)
    second = Job(ON_LOAN, nodes=("n1", "n3"), can=CAN, width=3, past=first.ledger)
    second.donors = ["n8"]
    second.begin()
    assert layout(second).nodes == ("n1", "n8", "n3") and "replaced n2 by n8" in second.said
    assert counts(second) == [(1, 3), (1, 3), (3, 1), (3, 1), (1, 3), (1, 3)]


@pytest.mark.parametrize(("donors", "nodes"), [(["n8"], ("n1", "n2", "n8")), ([], None)])
def test_a_node_that_is_well_again_takes_an_open_slot_and_another_is_borrowed(
    donors: list[str], nodes: tuple[str, ...] | None
) -> None:
    policy = settings_with(ON_LOAN, isolation__expires_s=3600.0)
    first = Job(policy, nodes=("n1", "n2", "n3"), can=CAN, width=3)
    first.donors = ["n9"]
    first.begin().shows(BROKEN)
    first.all_exit(0)
    later = Now(first.now.mono, first.now.unix + policy.isolation.expires_s)
    refused = [rec.NodeRefused(later.unix, "n3", "its link is down")]
    second = Job(policy, nodes=("n1", "n2", "n3"), can=CAN, width=3, past=[*first.ledger, *refused], now=later)
    second.donors = donors
    second.begin()
    if nodes is not None:
        assert layout(second).nodes == nodes and "replaced n9 by n2 (a spare), n3 by n8" in second.said
        assert counts(second) == [(1, 3), (1, 3), (3, 1), (3, 1), (2, 1), (2, 1)]
    else:
        assert second.excluded == ("n3",) and second.status == 75 and "n3 is excluded, and" in second.said


def test_a_slot_whose_lender_has_gone_gets_a_spare_and_counts_as_scheduled_again() -> None:
    policy = settings_with(ON_LOAN, nodes__spares=1)
    first = Job(policy, nodes=("n1", "n2", "n3"), can=CAN, width=2)
    first.donors, first.unfit = ["n9"], {"n3": None}
    first.begin().shows(BROKEN)
    assert layout(first).nodes == ("n1", "n9")
    first.all_exit(0)
    second = Job(policy, nodes=("n1", "n2", "n3"), can=CAN, width=2, past=first.ledger).begin()
    assert layout(second).nodes == ("n1", "n3") and counts(second) == [(1, 3), (1, 3), (3, 1), (3, 1)]


# --- nodes of the job that no rank is on


def test_a_spare_that_dies_is_given_back_before_slurm_ends_the_job_with_it() -> None:
    job = with_spares()
    job.reachable = False
    job.wait(IDLE_LOOK * POLICY.nodes.silence_s)
    assert job.did(do.ProbeNodes)[-1].nodes == ("n4", "n5") and not job.did(do.ReleaseNodes), (
        "its slurmd may only be started anew"
    )
    job.wait(IDLE_LOOK * POLICY.nodes.silence_s)
    assert [release.nodes for release in job.did(do.ReleaseNodes)] == [("n4",), ("n5",)]
    assert [refused.node for refused in job.recorded(rec.NodeRefused)] == ["n4", "n5"]
    job.reachable = True
    job.shows(BROKEN)
    assert job.rungs == ["isolated-requeue"] and job.recorded(rec.Decided)[0].exclude == ("n2", "n4", "n5")
    assert len(job.did(do.StartRanks)) == 1


def test_a_spare_that_answers_again_is_kept() -> None:
    job = with_spares()
    for reachable in (False, True, False, None):
        job.reachable = reachable
        job.wait(IDLE_LOOK * POLICY.nodes.silence_s)
    assert not job.did(do.ReleaseNodes)


def test_a_node_that_was_replaced_is_looked_at_as_well() -> None:
    job = with_spares(settings_with(POLICY, nodes__spares=1), nodes=3)
    job.shows(BROKEN)
    assert layout(job).nodes == ("n1", "n3") and not job.did(do.ReleaseNodes)
    job.reachable = False
    for _ in range(2):
        job.wait(IDLE_LOOK * POLICY.nodes.silence_s)
    assert [release.nodes for release in job.did(do.ReleaseNodes)] == [("n2",)] and not job.recorded(rec.NodeRefused)


def test_where_ranks_are_on_every_node_nobody_asks() -> None:
    job = Job(POLICY, nodes=("n1", "n2"), can=CAN, width=2).begin()
    job.wait(3600.0)
    assert not job.did(do.ProbeNodes)


# --- fewer nodes


def smaller(policy: Settings = SMALLER, nodes: int = 3) -> Job:
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    return Job(policy, nodes=names, can=CAN, width=nodes).begin()


def test_the_job_goes_on_with_fewer_nodes_where_that_is_enough() -> None:
    job = smaller()
    job.shows(BROKEN)
    assert job.rungs == ["shrink"] and layout(job) == Layout(("n1", "n3"), (0, 0, 1, 1))
    assert [(done.ok, done.what) for done in job.recorded(rec.CarriedOut)] == [(True, "went on with n[1,3]")]
    assert counts(job) == [(1, 2)] * 4
    assert (job.env(2)["SLURM_NODEID"], job.env(2)["SLURM_NTASKS"], job.env(2)["SLURM_JOB_NODELIST"]) == ("1", "4", "n1,n3")
    assert [release.nodes for release in job.did(do.ReleaseNodes)] == [("n2",)]
    job.shows(fault("n3", graded=FaultClass.ISOLATE))
    assert job.rungs == ["shrink", "isolated-requeue"]
    assert "only 1 node would remain" in dict(job.recorded(rec.Decided)[-1].passed)["shrink"]


def test_smaller_only_when_no_other_node_is_to_be_had() -> None:
    policy = settings_with(SMALLER, node_replacement__enabled=True)
    job = smaller(policy)
    job.shows(BROKEN)
    assert job.rungs == ["node-replacement", "shrink"] and layout(job).nodes == ("n1", "n3")
    assert fold(job.ledger).budgets.spent == {"node_replacements": 1}


def test_a_rank_that_moved_up_keeps_the_starts_it_had_alone() -> None:
    job = smaller(replace(SMALLER, mode="async"))
    job.exits(4, 1)
    job.shows(BROKEN)
    assert job.rungs == ["rank-restart", "shrink"]
    assert counts(job) == [(1, 2), (1, 2), (1, 3), (1, 2)]


def test_a_slot_that_moved_up_keeps_its_counters() -> None:
    policy = settings_with(SMALLER, node_replacement__enabled=True, nodes__spares=1, nodes__donor=False)
    job = Job(policy, nodes=("n1", "n2", "n3", "n4"), can=CAN, width=3).begin()
    job.shows(fault("n3", graded=FaultClass.ISOLATE))
    assert counts(job) == [(1, 2), (1, 2), (1, 2), (1, 2), (2, 1), (2, 1)]
    job.shows(BROKEN)
    assert job.rungs == ["node-replacement", "shrink"] and layout(job).nodes == ("n1", "n4")
    assert counts(job) == [(1, 3), (1, 3), (2, 2), (2, 2)]


@pytest.mark.parametrize("replaces", [False, True])
def test_the_next_ftrun_of_a_script_that_went_on_with_fewer_nodes_does_so_too(replaces: bool) -> None:
    first = smaller()
    first.shows(BROKEN)
    first.all_exit(0)
    policy = settings_with(SMALLER, node_replacement__enabled=replaces)
    second = Job(policy, nodes=("n1", "n2", "n3"), can=CAN, width=3, past=first.ledger, step_key="eval").begin()
    assert layout(second).nodes == ("n1", "n3") and second.status is None


def test_the_next_ftrun_of_a_job_with_replaced_and_with_fewer_nodes_finds_every_slot_where_it_was() -> None:
    policy = settings_with(SMALLER, node_replacement__enabled=True, nodes__spares=1, nodes__donor=False)
    names = ("n1", "n2", "n3", "n4")
    first = Job(policy, nodes=names, can=CAN, width=3).begin()
    first.shows(fault("n1", graded=FaultClass.ISOLATE))
    first.shows(BROKEN)
    assert layout(first).nodes == ("n4", "n3") and counts(first) == [(2, 2), (2, 2), (1, 3), (1, 3)]
    first.all_exit(0)
    second = Job(policy, nodes=names, can=CAN, width=3, past=first.ledger, step_key="eval").begin()
    assert layout(second).nodes == ("n4", "n3") and layout(second).chosen
    assert counts(second) == [(2, 1), (2, 1), (1, 1), (1, 1)]


# --- nodes that Slurm took before ftrun began


THREE = ("n1", "n2", "n3")


def without_n2(policy: Settings, **how: Any) -> Job:
    return Job(policy, nodes=("n1", "n3"), granted=THREE, can=CAN, width=3, **how)


def test_a_node_that_the_job_lost_before_it_began_is_replaced_in_its_slot() -> None:
    job = without_n2(ON_LOAN)
    job.donors = ["n9"]
    job.begin()
    assert layout(job).nodes == ("n1", "n9", "n3") and "replaced n2 by n9" in job.said
    assert job.did(do.BorrowNode)[0].exclude == THREE
    assert counts(job) == [(1, 1), (1, 1), (2, 1), (2, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("replaces", [True, False])
def test_or_the_job_goes_on_with_fewer_or_is_requeued_without_it(replaces: bool) -> None:
    job = without_n2(settings_with(SMALLER, node_replacement__enabled=replaces)).begin()
    assert layout(job).nodes == ("n1", "n3") and job.status is None
    job = without_n2(settings_with(ON_LOAN, node_replacement__enabled=replaces)).begin()
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",) and not job.did(do.LaunchStep)
    assert "n2" in job.said and fold(job.ledger).slots.size == 3


def test_a_spare_makes_up_for_it() -> None:
    job = Job(settings_with(POLICY, nodes__spares=1), nodes=("n1", "n3"), granted=THREE, can=CAN, width=2).begin()
    assert layout(job).nodes == ("n1", "n3")


def test_as_many_hangs_are_survived_where_no_node_is_to_be_had() -> None:
    """Each is answered twice, by a replacement that fails and by a requeue, and counts once."""
    job = Job(settings_with(ON_LOAN, hang_restart__enabled=True), can=CAN, width=2).begin()
    for number in range(4):
        job.tell(ev.ProgramSaid(rank=2, what="exclude", words=("slow",)), ev.BeatOverdue(rank=0, why="no beat"))
        job.wait(60.0)
        if number < 3:
            assert job.rungs == ["node-replacement", "isolated-requeue"] and job.status == 75
            job = job.again(nodes=("n1", f"n{3 + number}")).begin()
    assert job.rungs == ["fail"] and job.status not in (0, 75)


# --- slurmctld is away while a node is to be replaced

AWAY = ev.SlurmAnswered(error="nobody listens", away=True)


@pytest.mark.parametrize(
    "policy",
    [POLICY, settings_with(POLICY, shrink__enabled=True, nodes__min=2), settings_with(POLICY, isolated_requeue__enabled=False)],
)
def test_a_replacement_waits_for_slurmctld_and_nothing_dearer_is_taken_meanwhile(policy: Settings) -> None:
    job = with_spares(policy)
    job.slurm, job.unfit = AWAY, {"n4": None, "n5": None}  # no step comes up while it is away
    job.shows(BROKEN)
    job.wait(120.0)
    assert not job.rungs and "ftrun waits up to" in job.said
    job.slurm, job.unfit = replace(RUNNING, node_count=5), {}
    job.wait(10.0)
    assert job.rungs == ["node-replacement"] and layout(job).nodes == ("n1", "n4", "n3")
    assert job.judge.history.budgets.spent == {"node_replacements": 1}


def test_a_search_that_slurmctld_left_without_answers_is_made_again_and_costs_nothing() -> None:
    job = with_spares()
    job.unfit = {"n4": None, "n5": None}
    job.silent = {do.AskSlurm}  # it answered a moment ago, and goes while spares are looked at
    job.shows(BROKEN)
    job.tell(job.slurm)
    assert job.rungs == ["node-replacement"] and job.judge.phase is Phase.SETTLING
    job.tell(AWAY)
    job.wait(30.0)
    assert job.rungs == ["node-replacement"] and not any(job.judge.history.budgets.spent.values())
    job.unfit = {}
    job.tell(job.slurm)
    assert job.rungs == ["node-replacement"] * 2 and layout(job).nodes == ("n1", "n4", "n3")
    assert job.judge.history.budgets.spent == {"node_replacements": 1}


def test_a_search_without_answers_has_failed_where_slurmctld_was_there_all_the_time() -> None:
    job = with_spares()
    job.unfit = {"n4": None, "n5": None}
    job.shows(BROKEN)
    assert job.rungs == ["node-replacement", "isolated-requeue"] and job.excluded == ("n2",)


def test_a_donor_that_slurmctld_s_absence_kept_from_being_had_is_asked_for_again() -> None:
    job = on_loan().begin()
    job.silent = {do.BorrowNode}
    job.shows(BROKEN)
    job.slurm = AWAY
    job.tell(ev.NodeBorrowed(1, "", 0, "nobody listens", True))
    job.wait(60.0)
    assert job.rungs == ["node-replacement"] and job.judge.phase is Phase.SETTLING
    job.slurm, job.silent, job.donors = replace(RUNNING, node_count=2), set(), ["n9"]
    job.wait(10.0)
    assert job.rungs == ["node-replacement"] * 2 and layout(job).nodes == ("n1", "n9")
    assert job.judge.history.budgets.spent == {"node_replacements": 1}


def test_when_patience_with_slurmctld_is_spent_the_next_rung_is_asked() -> None:
    job = with_spares(settings_with(POLICY, shrink__enabled=True, nodes__min=2))
    job.slurm, job.unfit = AWAY, {"n4": None, "n5": None}
    job.shows(BROKEN)
    job.wait(POLICY.slurm.patience_s + 60.0)
    assert job.rungs == ["node-replacement", "shrink"]


def test_before_the_first_start_a_search_without_answers_is_made_again_and_ctrl_c_ends_it() -> None:
    past = (rec.Decided(1.0, "a-1", 1, "isolated-requeue", "node", "", (), {"n2": "broken"}, ("n2",), "max_restarts", 1),)
    job = Job(ON_LOAN, past=past, nodes=("n1", "n2"), can=CAN, width=2)
    job.silent = {do.BorrowNode}
    job.tell(ev.Begun())
    job.tell(ev.NodeBorrowed(1, "", 0, "nobody listens", True))
    assert "searching again" in job.said and not job.rungs
    job.wait(15.0)
    assert len(job.did(do.BorrowNode)) == 2
    job.tell(ev.NodeBorrowed(1, "", 0, "nobody listens", True), ev.SignalSeen(SIGINT))
    assert job.status == 128 + SIGINT


# --- a donor job ends before ours


def with_a_donor(policy: Settings = ON_LOAN, donors: tuple[str, ...] = ("n9", "n8")) -> Job:
    job = on_loan(policy)
    job.donors = list(donors)
    job.begin().shows(BROKEN)
    assert layout(job).nodes == ("n1", "n9")
    job.wait(120.0)
    return job


def test_a_donor_that_is_cancelled_is_replaced_by_another_and_its_node_is_not_blamed() -> None:
    job = with_a_donor()
    job.slurm = replace(job.slurm, loans_over=frozenset({909}))
    job.tell(ev.SignalSeen(SIGTERM, rank=2), ev.SignalSeen(SIGTERM, rank=3))
    assert job.rungs == ["node-replacement"] * 2 and "n9 is lent no more: its donor job 909 has ended" in job.said
    assert layout(job).nodes == ("n1", "n8") and counts(job) == [(1, 3), (1, 3), (3, 1), (3, 1)]
    assert fold(job.ledger).exclusions.isolated.keys() == {"n2"} and fold(job.ledger).budgets.spent == {"node_replacements": 2}
    assert [told.nodes.keys() for told in job.did(do.TellOthers)] == [{"n2"}]


def test_a_donor_that_is_preempted_with_a_grace_shows_as_running_and_its_ranks_end() -> None:
    job = with_a_donor()
    job.tell(ev.SignalSeen(SIGTERM, rank=2))
    assert job.judge.phase is Phase.RUNNING and not job.recorded(rec.Signalled), "it is not our job that is warned"
    job.exits(2, 0, SIGTERM)
    assert job.rungs == ["node-replacement"] * 2 and layout(job).nodes == ("n1", "n8")


def test_a_donor_that_is_killed_outright_is_replaced_as_well() -> None:
    job = with_a_donor()
    job.slurm = replace(job.slurm, loans_over=frozenset({909}))
    job.tell(ev.ShimLost(2, "it hung up", ev.Hangup.CLOSED))
    assert job.rungs == ["node-replacement"] * 2 and layout(job).nodes == ("n1", "n8")


def test_where_no_other_donor_is_to_be_had_the_job_is_requeued_and_may_use_that_node_again() -> None:
    job = with_a_donor(donors=("n9",))
    job.slurm = replace(job.slurm, loans_over=frozenset({909}))
    job.tell(ev.SignalSeen(SIGTERM, rank=2))
    assert job.rungs == ["node-replacement"] * 2 + ["isolated-requeue"] and job.excluded == ("n2",)


def test_a_donor_that_ends_while_the_step_comes_up_is_replaced() -> None:
    job = on_loan()
    job.donors = ["n9", "n8"]
    job.begin()
    job.silent = {do.LaunchStep}
    job.shows(BROKEN)
    job.silent, job.slurm = set(), replace(job.slurm, loans_over=frozenset({909}))
    job.tell(ev.PartEnded((2, 3)))
    assert job.rungs == ["node-replacement"] * 2 and layout(job).nodes == ("n1", "n8")
