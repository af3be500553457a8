"""What ftrun does when things go wrong: events in, decisions out. The contract is ModelArts, fault recovery of training jobs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import Fault, FaultClass, HealResult
from ftslurm.model.exits import ExitStatus
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.ending import GATHERS_S
from ftslurm.policies.judge.judge import Phase
from ftslurm.policies.judge.outside import FRESH_S
from ftslurm.policies.judge.phases import EarlierRuns
from ftslurm.policies.judge.step import AGENT_AGAIN_S, AGENT_COMES_S, AGENT_MAX_S, LAUNCHES_AGAIN
from ftslurm.simulation.world import SIGKILL, SIGTERM
from tests.settings import settings_with
from tests.stories.replay import HOUR_S, RUNNING, SIGINT, SIGUSR1, SILENT, Job, fault, of_kind, requeueing

REQUEUED = 75
ISOLATE, IGNORE, AVOID, UNKNOWN = FaultClass.ISOLATE, FaultClass.IGNORE, FaultClass.AVOID, FaultClass.UNKNOWN


def users(code: str = "80C98002", node: str = "n2") -> Fault:
    return fault(node, code, users=True)


def kinds(decisions: list[do.Decision]) -> list[str]:
    shown = (do.Remember, do.Say, do.ShowCard, do.ShowPhase, do.WatchRanks)
    return [type(decision).__name__ for decision in decisions if not isinstance(decision, shown)]


# --- a job that runs well


def test_a_program_that_ends_with_0_is_let_go_without_a_word() -> None:
    job = Job().begin()
    assert kinds(job.all_exit(0)) == ["EndStep", "Finish"]
    assert (job.status, job.said, job.rungs) == (0, "", [])
    assert job.did(do.EndStep) == [do.EndStep(0)]
    assert not job.did(do.StopRanks) and not job.did(do.AskSlurm)


def test_the_run_is_written_down_before_anything_is_launched() -> None:
    first, *rest = Job().tell(ev.Begun())
    assert isinstance(first, do.Remember) and first.vital and isinstance(first.record, rec.RunBegan)
    assert kinds(rest)[0] == "LaunchStep"


def test_ranks_start_when_every_task_is_there_and_not_before() -> None:
    job = Job()
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun())
    job.tell(*(ev.TaskArrived(task, 4, "7.0") for task in job.tasks[1:]))
    assert not job.did(do.StartRanks)
    job.tell(ev.TaskArrived(job.tasks[0], 4, "7.0"))
    assert [set(start.env) for start in job.did(do.StartRanks)] == [{0, 1, 2, 3}]


def test_a_rank_that_is_done_waits_for_the_others() -> None:
    job = Job().begin()
    job.exits(1, 0)
    job.wait(HOUR_S)
    assert job.status is None and not job.did(do.StopRanks)


def test_news_of_an_attempt_that_is_over_changes_nothing() -> None:
    job = Job().begin()
    old = job.exit_of(3, 1)
    job.shows(fault())
    assert job.counters == (1, 2, 2)
    job.tell(old, ev.RankStopped(3, 1), ev.RankUnstartable(3, 1, 127, "gone"), ev.HealingDone("n1", ()))
    assert job.judge.phase is Phase.RUNNING and job.rungs == ["in-place-restart"]


# --- a checkpoint that is being written when others fail


def test_what_became_of_a_checkpoint_that_a_failure_met_is_recorded() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.exits(3, 1)
    assert [stop.saves for stop in job.did(do.StopRanks)] == [True]
    saves = (ev.Save.WHOLE, ev.Save.WHOLE, ev.Save.CUT, ev.Save.NONE)
    job.silent = set()
    job.tell(*(ev.RankStopped(rank, 1, save=save) for rank, save in enumerate(saves)))
    assert [ended.saves for ended in job.recorded(rec.AttemptEnded)] == [{"cut": "2", "whole": "0-1"}]


def test_a_fault_of_a_device_lets_the_others_save_too() -> None:
    job = Job().begin()
    job.shows(fault())
    assert [stop.saves for stop in job.did(do.StopRanks)] == [True]


def test_what_slurm_or_a_person_ends_is_ended_as_they_want_it() -> None:
    job = Job().begin()
    job.tell(ev.SignalSeen(SIGTERM))
    job.wait(HOUR_S)
    assert not any(stop.saves for stop in job.did(do.StopRanks))


# --- a step that does not come up


@pytest.mark.parametrize(("launcher", "status"), [(ExitStatus(1), 1), (ExitStatus(0, 9), 137), (ExitStatus(0), 1)])
def test_a_step_that_does_not_come_up_ends_the_job_with_srun_s_status_and_never_as_a_success(
    launcher: ExitStatus, status: int
) -> None:
    job = Job()
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), ev.StepEnded(launcher))
    assert job.status == status and job.rungs in ([], ["fail"]) and not job.did(do.Requeue)
    assert "did not come up" in job.recorded(rec.Finished)[0].what


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_a_signal_while_the_step_comes_up_ends_it(number: int) -> None:
    job = Job()
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), ev.TaskArrived(job.tasks[0], 4, "7.0"), ev.SignalSeen(number))
    assert job.status == 128 + number
    assert job.did(do.KillStep) and not job.did(do.StartRanks)


def test_a_warning_while_the_first_step_comes_up_requeues_when_asked_to() -> None:
    """slurmctld may send the signal of `--signal=B:TERM@45` to a job of a minute when it has just begun."""
    job = Job(requeueing(warning__requeue=True))
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), ev.TaskArrived(job.tasks[0], 4, "7.0"), ev.SignalSeen(SIGTERM))
    job.silent = set()
    job.tell(*(ev.TaskArrived(task, 4, "7.0") for task in job.tasks[1:]))
    job.wait(5.0)
    assert job.did(do.StartRanks) and job.did(do.SignalRanks)
    job.all_exit(0)
    assert job.status == REQUEUED and job.recorded(rec.Decided)[-1].cost == ""


def test_a_command_that_can_be_executed_nowhere_fails_at_once() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.tell(*(ev.RankUnstartable(task.rank, 1, 127, "trainn: No such file") for task in job.tasks))
    job.tell(*(ev.RankStopped(task.rank, 1) for task in job.tasks))
    assert (job.status, job.rungs) == (127, ["fail"])
    assert "trainn" in job.said and not job.did(do.Requeue)


def test_a_command_that_one_node_lacks_may_run_elsewhere() -> None:
    job = Job().begin()
    job.tell(ev.RankUnstartable(3, 1, 127, "train: No such file"))
    assert job.rungs == ["unconditional-requeue"]


def test_a_shim_that_vanishes_before_the_start_is_no_reason_to_start_the_others() -> None:
    job = Job()
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), ev.TaskArrived(job.tasks[0], 4, "7.0"), ev.ShimLost(0, "it hung up"))
    job.wait(HOUR_S)
    assert not job.did(do.StartRanks) and job.rungs == ["unconditional-requeue"]


# --- in-place restart


def test_a_fault_that_heals_is_answered_in_place() -> None:
    job = Job().begin()
    told = job.shows(fault())
    assert [kind for kind in kinds(told) if kind != "LookAtDevices"] == ["StopRanks", "HealDevices", "StartRanks"]
    assert job.did(do.StopRanks)[0].grace_s == requeueing().stop.grace_s
    assert job.did(do.HealDevices)[0].devices == {"n2": (("0.0", ("80E01801",)),)}
    assert len(job.did(do.LaunchStep)) == 1, "the same step goes on"
    assert job.counters == (1, 2, 2)
    assert (job.env()["FTSLURM_RESTART_RUNG"], job.env()["FTSLURM_RESTART_CAUSE"]) == ("in-place-restart", "device")
    assert job.env()["FTSLURM_EXCLUDED_NODES"] == ""


def test_the_first_attempt_has_no_restart_to_speak_of() -> None:
    job = Job().begin()
    assert job.counters == (1, 1, 1)
    assert (job.env()["FTSLURM_RESTART_RUNG"], job.env()["FTSLURM_RESTART_CAUSE"]) == ("", "")


def reason(job: Job) -> tuple[str, str]:
    return job.env()["FTSLURM_RESTART_RUNG"], job.env()["FTSLURM_RESTART_CAUSE"]


def test_a_requeue_that_is_slurm_s_own_is_not_put_down_to_the_remedy_before_it() -> None:
    """The batch node died, some time after a restart in place."""
    first = Job().begin()
    first.shows(fault())
    again = Job(past=first.ledger, schedule=1)
    dead = (rec.TroubleSeen(1.0, 2, "node", "the batch node n1 died"), rec.AttemptEnded(1.0, 2, {"unknown": 4}))
    again.judge.run.facts = replace(again.facts, earlier=EarlierRuns(cut_short=dead))
    again.begin()
    assert again.counters == (2, 1, 3) and reason(again) == ("requeue-by-slurm", "node")
    again.shows(fault())
    assert again.counters == (2, 2, 4) and reason(again) == ("in-place-restart", "device")


def test_a_requeue_by_an_operator_has_a_name_also_where_there_was_no_remedy_before() -> None:
    first = Job().begin()
    assert reason(Job(past=first.ledger, schedule=1).begin()) == ("requeue-by-slurm", "outside")
    assert reason(Job(schedule=1).begin()) == ("requeue-by-slurm", "outside"), "before ftrun was called"


def test_another_ftrun_of_the_script_does_not_begin_with_the_first_one_s_restart_in_place() -> None:
    first = Job(past=Job().begin().ledger, schedule=1).begin()
    first.shows(fault())
    second = Job(past=first.ledger, schedule=1, step_key="evaluate").begin()
    assert second.counters[:2] == (2, 1) and reason(second) == ("requeue-by-slurm", "outside")


def test_a_requeue_of_ours_is_what_every_ftrun_of_the_next_scheduling_begins_with() -> None:
    first = Job().begin()
    first.exits(2, 1)
    again = Job(past=first.ledger, schedule=1).begin()
    again.shows(fault())
    assert reason(Job(past=again.ledger, schedule=1, step_key="evaluate").begin()) == ("unconditional-requeue", "crash")


def test_no_device_is_touched_while_a_process_may_be_left() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.shows(fault())
    job.tell(*(ev.RankStopped(rank, 1) for rank in (0, 1, 3)))
    assert not job.did(do.HealDevices)
    job.tell(ev.RankStopped(2, 1))
    assert job.did(do.HealDevices)


def test_all_nodes_heal_before_any_rank_starts() -> None:
    job = Job().begin()
    job.silent = {do.HealDevices}
    job.devices = {"n1": (fault("n1"),), "n2": (fault("n2"), fault("n2", "80E18008", "1.0"))}
    job.tell(ev.DevicesSeen("n2", job.devices["n2"]))
    assert job.did(do.HealDevices)[0].devices == {
        "n1": (("0.0", ("80E01801",)),), "n2": (("0.0", ("80E01801",)), ("1.0", ("80E18008",))),
    }  # fmt: skip
    job.tell(ev.HealingDone("n1", (HealResult("0.0", True, "reset"),)))
    assert len(job.did(do.StartRanks)) == 1
    job.tell(ev.HealingDone("n2", (HealResult("0.0", True, ""), HealResult("1.0", True, ""))))
    assert job.counters == (1, 2, 2)


def test_in_place_restarts_cost_no_max_restarts() -> None:
    job = Job(requeueing(max_restarts=1)).begin()
    for code in ("80E01801", "80E18008", "80E38008", "80E2120D", "80F78006"):
        job.shows(fault(code=code))
    assert job.counters == (1, 6, 6) and job.rungs == ["in-place-restart"] * 5
    job.exits(0, 1)
    assert job.rungs[-1] == "unconditional-requeue" and job.status == REQUEUED


def test_a_fault_that_shows_for_long_counts_once() -> None:
    job = Job(requeueing(in_place_restart__enabled=False), can=()).begin()  # nothing can be done about it, so the ranks run on
    for _ in range(10):
        job.shows(*(() if job.devices else (fault(),)))
        job.tell(ev.DevicesSeen("n2", job.devices["n2"]))
        job.wait(10)
    assert len(job.recorded(rec.FaultSeen)) == 1
    job.clears("n2")
    job.shows(fault())
    assert len(job.recorded(rec.FaultSeen)) == 2


def test_no_answer_of_a_node_clears_no_fault() -> None:
    job = Job(requeueing(in_place_restart__enabled=False), can=()).begin()
    job.shows(fault())
    job.tell(ev.DevicesSeen("n2", (), error="npu-smi does not answer"), ev.DevicesSeen("n2", job.devices["n2"]))
    assert len(job.recorded(rec.FaultSeen)) == 1


@pytest.mark.parametrize(
    ("hours", "third"),
    [
        ((0, 1, 2), "isolated-requeue"),
        ((0, 12, 23.9), "isolated-requeue"),
        ((0, 12, 25), "in-place-restart"),
        ((0, 24.5, 25), "in-place-restart"),
        ((0, 24.5, 25, 26), "isolated-requeue"),
    ],
)
def test_the_third_same_fault_within_24_h_takes_the_node_out(hours: tuple[float, ...], third: str) -> None:
    job = Job().begin()
    for before, at in zip((0, *hours), hours):
        job.wait((at - before) * HOUR_S)
        job.shows(fault())
    assert job.rungs == ["in-place-restart"] * (len(hours) - 1) + [third]
    assert [decided.isolate.keys() for decided in job.recorded(rec.Decided)[:-1]] == [set()] * (len(hours) - 1)
    if third == "isolated-requeue":
        assert job.excluded == ("n2",) and job.recorded(rec.Decided)[-1].cost == "max_restarts"


@pytest.mark.parametrize(
    "others",
    [
        (fault(device="1.0"), fault(device="2.0")),
        (fault(code="80E18008"), fault(code="80E38008")),
        (fault("n1"), fault("n1", device="1.0")),
        (fault(), fault(device="1.0")),
    ],
)
def test_another_chip_another_code_or_another_node_does_not_count(others: tuple[Fault, ...]) -> None:
    job = Job().begin()
    for found in (*others, fault()):
        job.shows(found)
    assert job.rungs == ["in-place-restart"] * 3


def test_the_same_fault_counts_over_a_requeue() -> None:
    job = Job().begin()
    job.shows(fault())
    job.shows(fault())
    job.exits(0, 1)
    job = job.again().begin()
    job.shows(fault())
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_the_third_fault_counts_even_if_it_clears_while_the_ranks_are_stopped() -> None:
    job = Job().begin()
    job.shows(fault())
    job.shows(fault())
    job.silent = {do.StopRanks, do.LookAtDevices}
    job.shows(fault())
    job.devices["n2"] = ()
    job.tell(*(job.look(node, asked=True) for node in job.nodes), *(ev.RankStopped(rank, 3) for rank in range(4)))
    assert job.rungs[-1] == "isolated-requeue"


def test_the_limit_and_the_window_are_the_policy_s() -> None:
    job = Job(requeueing(in_place_restart__same_code_limit=2, in_place_restart__same_code_window_s=HOUR_S)).begin()
    job.shows(fault())
    job.wait(1.5 * HOUR_S)
    job.shows(fault())
    job.shows(fault())
    assert job.rungs == ["in-place-restart", "in-place-restart", "isolated-requeue"]


@pytest.mark.parametrize("code", ["80C98002", "80CB8002"])
@pytest.mark.parametrize("unconditional", [True, False])
def test_the_third_fault_that_the_user_caused_requeues_and_isolates_nothing(code: str, unconditional: bool) -> None:
    job = Job(requeueing(unconditional_requeue__enabled=unconditional)).begin()
    for _ in range(3):
        job.shows(users(code))
    decided = job.recorded(rec.Decided)[-1]
    assert (decided.rung, decided.cost) == ("unconditional-requeue", "max_restarts")
    assert job.excluded == () and dict(decided.isolate) == {}
    assert job.status == REQUEUED


def test_a_program_that_brings_a_fault_about_each_time_fails_as_one_that_crashes_each_time() -> None:
    """Seen on a real GPU: an assertion in a kernel is an Xid 43, and it was restarted and requeued until all was spent."""
    job = Job().begin()
    fates: list[str] = []
    for _ in range(12):
        job.devices["n2"] = (users("XID 43"),)
        job.exits(3, 1)
        if job.status is not None:
            fates += job.rungs
            if job.status != REQUEUED:
                break
            job = job.again().begin()
    assert fates == ["in-place-restart"] * 2 + ["unconditional-requeue"] * 3 + ["fail"]
    assert "3 unconditional requeues in a row" in dict(job.recorded(rec.Decided)[-1].passed)["unconditional-requeue"]


def test_healing_that_fails_takes_the_node_out() -> None:
    job = Job().begin()
    job.heals = False
    job.shows(fault())
    assert job.rungs == ["in-place-restart", "isolated-requeue"]
    assert job.excluded == ("n2",) and len(job.did(do.StartRanks)) == 1
    assert "healing failed" in dict(job.recorded(rec.Decided)[1].passed)["in-place-restart"]
    job = job.again(nodes=("n1", "n3")).begin()
    assert job.counters == (2, 1, 2) and job.env()["FTSLURM_EXCLUDED_NODES"] == "n2"


def test_healing_that_fails_takes_the_node_out_even_if_the_user_caused_the_fault() -> None:
    job = Job().begin()
    job.heals = False
    job.shows(users())
    assert job.rungs[-1] == "isolated-requeue" and job.excluded == ("n2",)


def test_only_the_node_that_did_not_heal_is_taken_out() -> None:
    job = Job().begin()
    job.silent = {do.HealDevices}
    job.devices = {"n1": (fault("n1"),), "n2": (fault("n2"),)}
    job.tell(ev.DevicesSeen("n1", job.devices["n1"]), ev.DevicesSeen("n2", job.devices["n2"]))
    job.tell(ev.HealingDone("n1", (HealResult("0.0", True, "reset"),)))
    job.tell(ev.HealingDone("n2", (HealResult("0.0", False, "still there after the reset"),)))
    assert job.excluded == ("n2",)


@pytest.mark.parametrize("what", ["silence", "vanished", "not known", "empty"])
def test_healing_of_which_nothing_is_known_is_not_taken_for_healed(what: str) -> None:
    job = Job().begin()
    job.heals = None
    if what != "not known":
        job.silent = {do.HealDevices}
    job.shows(fault())
    if what == "vanished":
        job.tell(ev.AgentLost("n2", "connection reset"))
    if what == "empty":
        job.tell(ev.HealingDone("n2", ()))
    job.wait(HOUR_S)
    assert len(job.did(do.StartRanks)) == 1 and job.rungs == ["in-place-restart", "isolated-requeue"]


def test_a_fault_that_cannot_heal_takes_the_node_out_at_once() -> None:
    job = Job().begin()
    job.shows(fault(code="80E18402", graded=ISOLATE))
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert not job.did(do.HealDevices)


@pytest.mark.parametrize("graded", [UNKNOWN, IGNORE, AVOID])
def test_a_fault_that_asks_for_nothing_is_noted_and_the_job_runs_on(graded: FaultClass) -> None:
    job = Job().begin()
    job.shows(fault(graded=graded))
    job.wait(HOUR_S)
    assert [seen.fault_class for seen in job.recorded(rec.FaultSeen)] == [graded.value]
    assert not job.did(do.StopRanks) and not job.rungs
    job.all_exit(0)
    assert job.status == 0


def test_a_node_to_be_avoided_is_kept_out_of_the_next_scheduling() -> None:
    job = Job().begin()
    job.shows(fault(graded=AVOID))
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ("n2",)


def test_a_node_is_not_avoided_at_the_price_of_never_running_again() -> None:
    job = Job().begin()
    job.slurm = replace(job.slurm, usable=frozenset({"n1", "n2"}))
    job.shows(fault(graded=AVOID))
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"]
    assert len({"n1", "n2"} - set(job.excluded)) == 2, "the job needs both nodes and would wait for ever"


def test_a_device_fault_with_in_place_restart_switched_off_goes_to_the_next_rung_and_takes_the_node_out() -> None:
    """ModelArts, fault recovery, table 1: isolated requeue answers all device faults."""
    job = Job(requeueing(in_place_restart__enabled=False)).begin()
    job.shows(fault())
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_a_fault_with_no_remedy_leaves_a_healthy_job_alone() -> None:
    job = Job(requeueing(isolated_requeue__enabled=False)).begin()
    job.shows(fault(graded=ISOLATE))
    job.wait(HOUR_S)
    assert not job.did(do.StopRanks) and not job.rungs and "keep running" in job.said
    job.tell(ev.DevicesSeen("n2", job.devices["n2"]))
    assert len(job.did(do.Say)) == 1, "said once"
    job.all_exit(0)
    assert job.status == 0


def test_a_fault_that_was_left_alone_still_explains_a_crash_later() -> None:
    job = Job().begin()
    job.slurm = SILENT
    job.shows(fault(graded=ISOLATE))
    assert not job.did(do.StopRanks)
    job.slurm = RUNNING
    job.wait(HOUR_S)
    job.exits(3, 1)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_a_fault_that_was_left_alone_does_not_end_the_job_when_another_node_has_one_that_heals() -> None:
    job = Job(requeueing(isolated_requeue__enabled=False, unconditional_requeue__enabled=False)).begin()
    job.shows(fault(graded=ISOLATE))
    assert not job.did(do.StopRanks)
    job.shows(fault("n1"))
    job.wait(HOUR_S)
    assert job.status is None, f"a running job was ended: {job.said}"


def test_a_job_that_may_not_be_requeued_keeps_running_on_a_broken_chip() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, requeueable=False)
    job.shows(fault(graded=ISOLATE))
    assert not job.did(do.StopRanks)


# --- crashes


@pytest.mark.parametrize(("code", "signal", "status"), [(1, 0, 1), (77, 0, 77), (0, SIGKILL, 137), (0, 11, 139)])
def test_a_crash_that_nothing_explains_requeues_the_whole_job(code: int, signal: int, status: int) -> None:
    job = Job().begin()
    told = job.exits(2, code, signal)
    after = [kind for kind in kinds(told) if kind not in ("LookAtDevices", "AskSlurm")]
    assert after == ["StopRanks", "EndStep", "Requeue", "Finish"]
    assert job.excluded == () and job.status == REQUEUED
    assert job.did(do.EndStep) == [do.EndStep(0)], "the shim of rank 0 ends as its command did, the others are not to blame"
    decided = job.recorded(rec.Decided)[0]
    assert (decided.rung, decided.cause, decided.cost, decided.status) == (
        "unconditional-requeue",
        "crash",
        "max_restarts",
        status,
    )
    assert job.again().begin().counters == (2, 1, 2)


def crash_until_it_is_over(settings: Settings, code: int = 7) -> tuple[list[str], Job]:
    rungs, job = [], Job(settings).begin(watched=False)
    while True:
        job.exits(0, code)
        job.wait(60)
        rungs += job.rungs
        if job.status != REQUEUED:
            return rungs, job
        job = job.again().begin(watched=False)


def test_a_program_that_always_fails_is_requeued_exactly_three_times() -> None:
    rungs, job = crash_until_it_is_over(requeueing())
    assert rungs == ["unconditional-requeue"] * 3 + ["fail"]
    assert job.status == 7 and job.counters == (4, 1, 4)
    assert "in a row" in job.said and "rank 0" in job.said


def test_a_vanished_shim_counts_as_the_same_problem() -> None:
    job = Job().begin()
    for _ in range(3):
        job.tell(ev.ShimLost(3, "it hung up"))
        job = job.again().begin()
    job.tell(ev.ShimLost(3, "it hung up"))
    assert job.rungs == ["fail"] and job.status != 0


@pytest.mark.parametrize("fault_between", ["device in place", "device isolated", "node"])
def test_an_explicit_fault_between_breaks_the_row(fault_between: str) -> None:
    job = Job().begin()
    for _ in range(3):
        job.exits(0, 1)
        job = job.again().begin()
    if fault_between == "device in place":
        job.shows(fault())
    else:
        if fault_between == "node":
            job.slurm = replace(RUNNING, bad_nodes=(("n2", "DOWN"),))
            job.exits(2, 1)
        else:
            job.shows(fault(graded=ISOLATE))
        assert job.rungs == ["isolated-requeue"]
        job = job.again(nodes=("n1", "n3")).begin()
    for _ in range(3):
        job.exits(0, 1)
        assert job.rungs[-1] == "unconditional-requeue"
        job = job.again().begin()
    job.exits(0, 1)
    assert job.rungs == ["fail"]


@pytest.mark.parametrize(("graded", "rung"), [(ISOLATE, "unconditional-requeue"), (IGNORE, "fail"), (UNKNOWN, "fail")])
def test_an_explicit_fault_between_breaks_the_row_even_if_nothing_was_done_about_it(graded: FaultClass, rung: str) -> None:
    """ModelArts: the fault is in the program only if no explicit node or device fault came in between."""
    job = Job().begin()
    for _ in range(3):
        job.exits(0, 1)
        job = job.again().begin()
    job.slurm = replace(RUNNING, usable=frozenset({"n1", "n2"}))
    job.shows(fault(graded=graded))  # no node to spare: left alone
    job.clears("n2")
    job.wait(20.0)
    job.exits(0, 1)
    assert job.rungs == [rung]


@pytest.mark.parametrize("limit", [1, 2, pytest.param(128, marks=pytest.mark.long)])
def test_max_restarts_is_the_end(limit: int) -> None:
    rungs, job = crash_until_it_is_over(requeueing(max_restarts=limit, unconditional_requeue__in_a_row=128), code=5)
    if limit < 128:
        assert ("the 1 requeue (max_restarts) is" if limit == 1 else f"all {limit} requeues (max_restarts) are") in job.said
    assert rungs == ["unconditional-requeue"] * limit + ["fail"]
    assert job.status == 5


def test_isolated_and_unconditional_requeues_draw_on_one_budget() -> None:
    job = Job(requeueing(max_restarts=2)).begin()
    job.exits(0, 1)
    job = job.again().begin()
    job.shows(fault(graded=ISOLATE))
    job = job.again(nodes=("n1", "n3")).begin()
    job.exits(0, 9)
    assert job.rungs == ["fail"] and job.status == 9


def test_nodes_stay_out_over_later_requeues_until_their_time_is_up() -> None:
    job = Job(requeueing(isolation__expires_s=10 * HOUR_S)).begin()
    job.shows(fault(graded=ISOLATE))
    job = job.again(nodes=("n1", "n3")).begin()
    assert job.env()["FTSLURM_EXCLUDED_NODES"] == "n2"
    job.shows(fault("n3", graded=ISOLATE))
    assert job.excluded == ("n2", "n3")
    job = job.again(nodes=("n1", "n4")).begin()
    assert job.env()["FTSLURM_EXCLUDED_NODES"] == "n[2-3]"
    job.wait(11 * HOUR_S)
    job.exits(0, 1)
    assert job.excluded == ()


def test_a_crash_is_put_down_to_the_device_that_shows_a_fault_when_looked_at() -> None:
    job = Job().begin()
    job.devices["n2"] = (fault(graded=ISOLATE),)
    job.exits(0, 1)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert job.recorded(rec.Decided)[0].cause == "device"


def test_a_crash_with_a_fault_that_heals_is_answered_in_place() -> None:
    job = Job().begin()
    job.devices["n2"] = (fault(),)
    job.exits(3, 1)
    assert job.rungs == ["in-place-restart"] and job.counters == (1, 2, 2)


def test_a_crash_is_put_down_to_the_node_that_slurm_calls_down() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, bad_nodes=(("n1", "DOWN*: gone"),))
    job.exits(3, 1)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n1",)
    assert job.recorded(rec.Decided)[0].cause == "node" and "DOWN" in job.recorded(rec.Decided)[0].isolate["n1"]


def test_no_rank_is_started_again_on_a_node_that_slurm_calls_down() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, bad_nodes=(("n1", "DOWN*: gone"),))
    job.devices["n2"] = (fault(),)
    job.exits(3, 0, SIGKILL)
    assert job.rungs[0] == "isolated-requeue" and "n1" in job.excluded


def test_what_slurm_said_long_ago_is_not_what_it_says_now() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, usable=frozenset({"n1", "n2"}))
    job.shows(fault(graded=ISOLATE))  # no node to spare: left alone, and Slurm was asked
    job.clears("n2")
    job.wait(10 * HOUR_S)
    job.slurm = replace(RUNNING, bad_nodes=(("n1", "DOWN*"),))
    job.exits(0, 1)
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n1",)


@pytest.mark.parametrize(("second", "status"), [((7, 0), 7), ((2, 0), 3), ((0, SIGTERM), 128 + SIGTERM)])
def test_several_that_fail_by_themselves_make_the_status_that_srun_ends_with(second: tuple[int, int], status: int) -> None:
    job = Job(requeueing(unconditional_requeue__enabled=False)).begin()
    job.silent = {do.StopRanks}
    job.tell(job.exit_of(1, 3), job.exit_of(2, *second), replace(job.exit_of(3, 0, SIGKILL), stopped=True))
    job.tell(*(ev.RankStopped(rank, 1) for rank in range(4)))
    assert job.status == status and "rank 1" in job.said
    assert job.recorded(rec.Decided)[0].status == job.recorded(rec.Finished)[0].status == status


def test_the_first_failure_names_the_status_and_not_what_we_did_to_the_others() -> None:
    job = Job(requeueing(unconditional_requeue__enabled=False)).begin()
    job.exits(2, 3)
    assert job.status == 3 and "rank 2" in job.said and "switched off" in job.said


@pytest.mark.parametrize(
    ("slurm", "can", "why"),
    [
        (replace(RUNNING, requeueable=False), ("ask", "requeue"), "--requeue"),
        (replace(RUNNING, batch=False), ("ask", "requeue"), "batch"),
        (RUNNING, ("ask",), "batch"),
        (SILENT, ("ask", "requeue"), "Slurm"),
    ],
)
def test_a_job_that_cannot_be_requeued_fails_with_its_own_status_and_says_why(
    slurm: ev.SlurmAnswered, can: tuple[str, ...], why: str
) -> None:
    job = Job(can=can).begin()
    job.slurm = slurm
    job.exits(1, 42)
    assert job.rungs == ["fail"] and job.status == 42 and why in job.said


@pytest.mark.parametrize(
    ("oom", "launcher", "status"),
    [(True, ExitStatus(1), 1), (True, ExitStatus(0, SIGKILL), 137), (False, ExitStatus(1), 137)],
    ids=["the step's limit", "the node's memory", "no want of memory"],
)
def test_where_srun_says_that_the_step_had_too_little_memory_so_does_ftrun(oom: bool, launcher: ExitStatus, status: int) -> None:
    job = Job(requeueing(ladder=("fail",))).begin()
    job.silent = {do.EndStep}
    job.tell(replace(job.exit_of(1, signal=SIGKILL), oom=oom))
    job.tell(ev.StepEnded(launcher))
    assert job.rungs == ["fail"] and job.status == status


def test_no_requeue_is_overruled_only_where_that_is_asked_for() -> None:
    job = Job(requeueing(requeue__even_if_no_requeue=True)).begin()
    job.slurm = replace(RUNNING, requeueable=False)
    job.exits(1, 1)
    assert job.did(do.Requeue)[0].allow_first


def test_no_job_is_left_waiting_for_nodes_that_do_not_exist() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, usable=frozenset({"n1", "n2"}))
    job.devices["n2"] = (fault(graded=ISOLATE),)
    job.exits(3, 1)
    assert job.rungs == ["fail"] and "2 nodes" in job.said and job.status == 1


def test_a_requeue_that_slurm_refuses_ends_the_job_with_the_user_s_status() -> None:
    job = Job().begin()
    job.silent = {do.Requeue}
    job.exits(0, 6)
    job.tell(ev.RequeueEnded(False, "Job requeue is disabled"))
    assert job.status == 6 and "Job requeue is disabled" in job.said


def test_every_verdict_tells_each_rung_before_it_and_why_it_was_not_the_one() -> None:
    job = Job(requeueing(unconditional_requeue__enabled=False)).begin()
    job.exits(0, 1)
    passed = dict(job.recorded(rec.Decided)[0].passed)
    assert list(passed) == [rung for rung in requeueing().ladder if rung not in ("fail", "rank-restart")] and all(passed.values())


def test_crashes_may_be_answered_in_place_as_ft_launcher_does() -> None:
    settings = requeueing(
        in_place_restart__crash_restarts=2, isolated_requeue__enabled=False, unconditional_requeue__enabled=False
    )
    job = Job(settings).begin()
    job.exits(0, 1)
    job.exits(3, 1)
    assert job.rungs == ["in-place-restart"] * 2 and job.counters == (1, 3, 3)
    job.exits(1, 8)
    assert job.rungs[-1] == "fail" and job.status == 8


# --- silence is no answer


def test_devices_that_do_not_answer_blame_nobody() -> None:
    job = Job().begin()
    job.silent = {do.LookAtDevices}
    job.exits(0, 1)
    assert not job.rungs
    job.wait(requeueing().devices.answer_wait_s)
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ()


def test_devices_that_answer_with_an_error_blame_nobody() -> None:
    job = Job().begin()
    job.silent = {do.LookAtDevices}
    job.exits(0, 1)
    job.tell(*(ev.DevicesSeen(node, (), asked=True, error="npu-smi: dcmi module initialize failed") for node in job.nodes))
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ()


def test_agents_that_never_come_hold_nothing_up_for_long() -> None:
    job = Job()
    job.silent = {do.WatchNodes}
    job.begin()
    job.exits(0, 1)
    job.wait(requeueing().devices.answer_wait_s)
    assert job.rungs == ["unconditional-requeue"]


def test_an_agent_that_is_lost_blames_nobody() -> None:
    job = Job().begin()
    job.tell(ev.AgentLost("n2", "connection reset"))
    job.wait(HOUR_S)
    assert not job.did(do.StopRanks)
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"] and job.excluded == ()


def test_agents_that_do_not_come_up_are_tried_again_less_and_less_often_as_long_as_the_job_runs() -> None:
    """Slurm may be away for longer than a few tries; nobody would see a hang or a fault from then on."""
    job = Job()
    job.silent = {do.WatchNodes}
    job.begin()
    job.wait(2.0)
    job.tell(ev.AgentArrived("n1", ()))
    pauses: list[int] = []
    while len(pauses) < 12:
        job.tell(ev.AgentLost("n2", "its launcher exited with status 1"))
        pauses.append(0)
        while len(job.did(do.WatchNodes)) == len(pauses):
            job.wait(5.0)
            pauses[-1] += 5
    assert pauses[:4] == [10, 20, 40, 80] and set(pauses[6:]) == {640}
    assert {watch.nodes for watch in job.did(do.WatchNodes)[1:]} == {("n2",)}


@pytest.mark.parametrize("restarted", [False, True])
def test_an_agent_that_dies_before_it_calls_is_missed(restarted: bool) -> None:
    """Its launcher lives on with the agents of the other nodes, so nothing tells of it."""
    job = Job()
    job.silent = {do.WatchNodes}
    job.begin()
    job.wait(2.0)
    job.tell(ev.AgentArrived("n1", ()))
    if restarted:
        job.tell(ev.DevicesSeen("n1", (fault("n1"),)))
        job.wait(requeueing().devices.answer_wait_s)
        assert job.counters == (1, 2, 2)
    job.wait(AGENT_COMES_S / 2)
    assert len(job.did(do.WatchNodes)) == 1
    job.wait(AGENT_COMES_S)
    assert [watch.nodes for watch in job.did(do.WatchNodes)] == [("n1", "n2"), ("n2",)]
    job.tell(ev.AgentArrived("n2", ()))
    job.wait(HOUR_S)
    assert len(job.did(do.WatchNodes)) == 2


def test_an_agent_that_comes_up_after_a_crash_is_asked_to_look_alone() -> None:
    """A thousand that come one after the other would otherwise be asked half a million times."""
    job = Job()
    job.silent = {do.WatchNodes, do.LookAtDevices, do.StopRanks}
    job.begin()
    job.exits(0, 1)
    for node in ("n1", "n2"):
        job.tell(ev.AgentArrived(node, ("ascend",)))
    assert job.did(do.LookAtDevices) == [do.LookAtDevices(), do.LookAtDevices("n1"), do.LookAtDevices("n2")]


def test_an_agent_that_comes_up_while_devices_heal_watches_the_ranks_after_it() -> None:
    job = Job().begin()
    job.wait(2.0)
    job.silent = {do.WatchNodes, do.HealDevices}
    job.tell(ev.AgentLost("n1", "connection reset"))
    job.wait(AGENT_AGAIN_S + 1.0)
    assert [watch.nodes for watch in job.did(do.WatchNodes)] == [("n1", "n2"), ("n1",)]
    job.shows(fault())
    job.wait(requeueing().devices.answer_wait_s)
    assert job.judge.phase is Phase.HEALING
    job.tell(ev.AgentArrived("n1", ("ascend",)))
    job.devices["n2"] = ()
    job.tell(ev.HealingDone("n2", (HealResult("0.0", True, "looked again"),)))
    assert job.counters == (1, 2, 2) and set(job.did(do.WatchRanks)[-1].ranks) == {"n1", "n2"}
    job.wait(HOUR_S)
    assert len(job.did(do.WatchNodes)) == 2


def test_after_an_agent_that_stayed_for_long_the_next_comes_as_soon_as_the_first_time() -> None:
    """A job that runs for weeks loses one now and then; what it watches shall not be unwatched for longer each time."""
    job = Job().begin()
    job.wait(2.0)
    for number in range(2, 8):
        job.wait(AGENT_MAX_S + 1.0)
        job.tell(ev.AgentLost("n2", "connection reset"))
        job.wait(AGENT_AGAIN_S + 1.0)
        assert len(job.did(do.WatchNodes)) == number


def test_a_restart_in_place_needs_no_slurmctld() -> None:
    job = Job().begin()
    job.silent = {do.AskSlurm}
    job.shows(fault())
    assert job.counters == (1, 2, 2) and not job.did(do.AskSlurm)


def test_a_silent_slurmctld_kills_nothing_that_runs() -> None:
    job = Job().begin()
    job.silent = {do.AskSlurm}
    job.shows(fault(graded=ISOLATE))
    job.tell(ev.SignalSeen(SIGTERM, rank=0))
    job.wait(HOUR_S)
    assert not job.did(do.StopRanks) and job.status is None


def test_a_crash_while_slurmctld_is_silent_ends_with_its_own_status_and_names_slurm() -> None:
    job = Job().begin()
    job.silent = {do.AskSlurm}
    job.exits(0, 4)
    job.wait(requeueing().slurm.timeout_s + 60)
    assert job.status is None and "60 s. ftrun waits up to 4 h (slurm.patience) to decide what to do" in job.said
    job.wait(requeueing().slurm.patience_s)
    assert job.status == 4 and "Slurm did not say how the job stands" in job.said


AWAY = ev.SlurmAnswered(error="nobody listens", away=True)


def test_a_slurmctld_that_is_away_is_asked_again_until_it_is_back_and_nothing_is_decided_before() -> None:
    job = Job().begin()
    job.slurm = AWAY
    job.exits(0, 4)
    job.wait(HOUR_S)
    assert len(job.did(do.AskSlurm)) > 100 and not job.rungs
    assert job.said.count("ftrun waits up to") > 100, "quietly"
    loud = [say for say in job.did(do.Say) if not say.quiet]
    assert 6 <= len(loud) <= 7 and "nobody listens" in loud[0].text and "up to 4 h (slurm.patience)" in loud[0].text
    job.slurm = replace(RUNNING, node_count=2)
    job.wait(10.0)
    assert job.rungs == ["unconditional-requeue"] and job.status == 75
    assert "Slurm answers again, after 60 min" in job.said
    assert job.judge.history.budgets.spent == {"max_restarts": 1}


def test_what_no_answer_of_slurm_could_change_is_not_waited_for() -> None:
    for settings in (
        requeueing(unconditional_requeue__enabled=False),
        requeueing(retry__policy="Never"),
        requeueing(slurm__patience_s=0.0),
    ):
        job = Job(settings).begin()
        job.slurm = AWAY
        job.exits(0, 4)
        job.wait(5.0)
        assert job.status == 4, settings


def test_an_error_that_no_return_of_slurmctld_mends_is_not_waited_for() -> None:
    job = Job().begin()
    job.slurm = SILENT
    job.exits(0, 4)
    job.wait(5.0)
    assert job.status == 4


def test_ctrl_c_ends_the_waiting_for_slurm() -> None:
    job = Job().begin()
    job.slurm = AWAY
    job.exits(0, 4)
    job.wait(60.0)
    job.tell(ev.SignalSeen(2))
    assert job.status is not None and not job.rungs


def test_a_job_that_was_cancelled_meanwhile_is_over_when_slurm_is_back() -> None:
    job = Job().begin()
    job.slurm = AWAY
    job.exits(0, 4)
    job.wait(60.0)
    job.slurm = replace(RUNNING, state="CANCELLED")
    job.wait(10.0)
    assert not job.rungs and job.status == 4


def test_a_warning_whose_requeue_needs_slurm_waits_for_it() -> None:
    job = Job(requeueing(warning__requeue=True)).begin()
    job.slurm = AWAY
    job.tell(ev.SignalSeen(15))
    for rank in range(4):
        job.exits(rank, 0)
    job.wait(120.0)
    assert job.status is None
    job.slurm = replace(RUNNING, node_count=2)
    job.wait(10.0)
    assert job.rungs == ["requeue-on-warning"] and job.judge.history.budgets.spent == {}


def test_a_requeue_that_slurm_s_absence_kept_from_being_done_is_tried_again_and_paid_once() -> None:
    job = Job().begin()
    job.silent = {do.Requeue}
    job.exits(0, 4)
    for _ in range(3):
        job.tell(ev.RequeueEnded(False, "nobody listens", away=True))
        job.wait(6.0)
    assert len(job.did(do.Requeue)) == 4 and len({requeue.decision for requeue in job.did(do.Requeue)}) == 1
    assert job.recorded(rec.CarriedOut) == [] and "up to 4 h (slurm.patience) to requeue the job" in job.said
    job.tell(ev.RequeueEnded(True, "requeued"))
    assert job.status == 75 and job.judge.history.budgets.spent == {"max_restarts": 1}


def test_a_requeue_that_its_step_has_recorded_is_recorded_once() -> None:
    job = Job().begin()
    job.silent = {do.Requeue}
    job.exits(0, 4)
    job.tell(ev.RequeueEnded(True, "requeued", recorded=True))
    assert job.recorded(rec.CarriedOut) == [] and job.judge.history.requeues.open is None
    assert job.recorded(rec.Finished)[-1].outcome == "requeued" and job.status == 75


def test_a_requeue_is_not_tried_for_ever() -> None:
    job = Job(requeueing(slurm__patience_s=60.0)).begin()
    job.silent = {do.Requeue}
    job.exits(0, 4)
    for _ in range(20):
        if job.status is None:
            job.tell(ev.RequeueEnded(False, "nobody listens", away=True))
            job.wait(6.0)
    assert job.status == 4 and "the requeue failed: nobody listens" in job.said


@pytest.mark.parametrize("back", [replace(RUNNING, late_s=20.0), AWAY])
def test_a_step_that_does_not_come_up_while_slurmctld_is_away_is_launched_again(back: ev.SlurmAnswered) -> None:
    job = Job()
    job.silent = {do.LaunchStep}
    job.slurm = back
    job.tell(ev.Begun(), ev.StepEnded(ExitStatus(1)))
    job.wait(60.0)
    job.slurm = replace(RUNNING, node_count=2)
    job.wait(10.0)
    assert len(job.did(do.LaunchStep)) == 2 and not job.rungs


def test_a_step_that_does_not_come_up_for_another_reason_is_launched_again_three_times_at_most() -> None:
    job = Job()
    job.silent = {do.LaunchStep}
    job.slurm = replace(RUNNING, late_s=20.0)
    job.tell(ev.Begun())
    for _ in range(9):
        if job.status is None:
            job.tell(ev.StepEnded(ExitStatus(1)))
            job.wait(30.0)
    assert len(job.did(do.LaunchStep)) == 4 and job.status == 1


def test_a_slurmctld_that_has_come_back_and_refuses_is_given_more_time_with_every_try() -> None:
    """In its first second it says of every node: Memory required by task is not available."""
    job = Job()
    job.silent = {do.LaunchStep}
    job.slurm = replace(RUNNING, late_s=20.0)
    job.tell(ev.Begun())
    tries: list[float] = []
    while job.status is None:
        tries.append(job.now.mono)
        job.tell(ev.StepEnded(ExitStatus(1)))
        while job.status is None and len(job.did(do.LaunchStep)) == len(tries):
            job.wait(0.5)
    assert [later - earlier for earlier, later in pairwise(tries)] == [GATHERS_S, GATHERS_S, 2 * GATHERS_S]


def test_a_slurmctld_that_answers_late_but_in_time_is_heard() -> None:
    job = Job().begin()
    job.silent = {do.AskSlurm}
    job.exits(0, 4)
    job.wait(requeueing().slurm.timeout_s - 1)
    job.tell(RUNNING)
    assert job.rungs == ["unconditional-requeue"]


@pytest.mark.parametrize(
    ("settings", "rung"),
    [
        (requeueing(), "fail"),
        (requeueing(in_place_restart__crash_restarts=3), "fail"),
        (requeueing(in_place_restart__crash_restarts=3, restart_via="step"), "in-place-restart"),  # which ends the old step first
    ],
)
def test_when_every_deadline_has_passed_at_once_nothing_starts_beside_what_may_be_left(settings: Settings, rung: str) -> None:
    """The loop may be woken late: a suspended process, a slow file system."""
    job = Job(settings).begin()
    job.silent = {do.StopRanks, do.LookAtDevices, do.AskSlurm}
    job.exits(0, 1)
    job.jump(HOUR_S)
    job.tell(ev.TimePassed())
    job.wait(requeueing().slurm.patience_s + 120)
    assert job.rungs == [rung] and job.judge.phase in (Phase.RUNNING, Phase.FINISHED)


# --- processes that do not go, shims and steps that do


def test_a_process_that_outlives_sigkill_takes_its_node_out() -> None:
    job = Job().begin()
    job.stuck = {2: (4711,)}
    job.shows(fault("n1"))
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)
    assert "4711" in job.recorded(rec.Decided)[0].isolate["n2"]


def test_a_shim_that_never_says_stopped_is_not_started_again() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.shows(fault())
    job.tell(*(ev.RankStopped(rank, 1) for rank in (0, 1, 2)))
    job.wait(HOUR_S)
    assert not job.did(do.HealDevices)
    assert job.did(do.KillStep), "a shim that does not listen is ended by the launcher"
    assert job.rungs == ["isolated-requeue"] and job.status == REQUEUED


def test_a_lost_shim_requeues_the_job_once_its_step_is_gone() -> None:
    job = Job().begin()
    told = kinds(job.tell(ev.ShimLost(3, "it hung up")))
    assert told.index("KillStep") < told.index("Requeue")
    assert job.rungs == ["unconditional-requeue"]


def test_a_lost_shim_on_a_node_that_slurm_calls_down_takes_the_node_out() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, bad_nodes=(("n2", "DOWN*"),))
    job.tell(ev.ShimLost(3, "it hung up"), ev.ShimLost(2, "it hung up"))
    assert job.rungs == ["isolated-requeue"] and job.excluded == ("n2",)


def test_a_step_that_ended_requeues_the_job_without_delay() -> None:
    job = Job().begin()
    job.tell(ev.StepEnded(ExitStatus(0, SIGKILL)))
    assert job.did(do.Requeue), f"it still waits: {job.judge.phase.value}"
    assert job.status == REQUEUED


def test_a_shim_that_is_lost_after_its_rank_was_stopped_is_still_lost() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.shows(fault())
    job.tell(ev.RankStopped(3, 1), ev.ShimLost(3, "it hung up"), *(ev.RankStopped(rank, 1) for rank in (0, 1, 2)))
    job.wait(HOUR_S)
    assert len(job.did(do.StartRanks)) == 1


@pytest.mark.parametrize("gone", [(ev.ShimLost(3, "it hung up"),), (ev.StepEnded(ExitStatus(1)),)])
def test_a_shim_or_step_that_goes_while_devices_heal_is_not_told_to_start_ranks(gone: tuple[ev.Event, ...]) -> None:
    job = Job().begin()
    job.silent = {do.HealDevices}
    job.shows(fault())
    job.tell(*gone)
    job.tell(ev.HealingDone("n2", (HealResult("0.0", True, "reset"),)))
    job.wait(HOUR_S)
    assert len(job.did(do.StartRanks)) == 1 and job.status == REQUEUED


# --- a new step for a restart


def test_a_restart_via_step_ends_the_old_step_first() -> None:
    job = Job(requeueing(restart_via="step")).begin()
    told = kinds(job.shows(fault()))
    assert [kind for kind in told if kind != "LookAtDevices"] == [
        "StopRanks", "HealDevices", "EndStep", "LaunchStep", "StartRanks",
    ]  # fmt: skip
    assert job.counters == (1, 2, 2) and job.did(do.EndStep) == [do.EndStep(0, forget=True)]


def test_a_restart_via_step_gets_over_a_lost_shim() -> None:
    job = Job(requeueing(restart_via="step", in_place_restart__crash_restarts=1)).begin()
    job.silent = {do.StopRanks}
    job.exits(0, 1)
    job.tell(ev.ShimLost(3, "it hung up"), *(ev.RankStopped(rank, 1) for rank in (0, 1, 2)))
    assert kinds(job.decisions)[-3:] == ["KillStep", "LaunchStep", "StartRanks"]
    assert job.counters == (1, 2, 2)


def test_no_device_heals_under_a_rank_whose_shim_was_lost() -> None:
    job = Job(requeueing(restart_via="step")).begin()
    job.silent = {do.StopRanks}
    job.shows(fault())
    job.tell(ev.ShimLost(3, "it hung up"), *(ev.RankStopped(rank, 1) for rank in (0, 1, 2)))
    job.wait(HOUR_S)
    assert job.counters == (1, 2, 2) or job.status == REQUEUED


def test_no_new_step_starts_beside_one_that_cannot_be_ended() -> None:
    job = Job(requeueing(restart_via="step")).begin()
    job.silent = {do.EndStep, do.KillStep}
    job.shows(fault())
    job.wait(HOUR_S)
    assert len(job.did(do.LaunchStep)) == 1
    assert job.status == REQUEUED, job.said


def test_a_step_that_goes_while_devices_heal_is_launched_again_once() -> None:
    job = Job(requeueing(restart_via="step")).begin()
    job.silent = {do.HealDevices}
    job.shows(fault())
    job.tell(ev.StepEnded(ExitStatus(1)))
    job.silent = {do.LaunchStep}
    job.tell(ev.HealingDone("n2", (HealResult("0.0", True, "reset"),)))
    job.wait(HOUR_S)
    assert len(job.did(do.LaunchStep)) == 2


def test_a_relaunch_that_fails_is_no_success() -> None:
    job = Job(requeueing(restart_via="step")).begin()
    job.silent = {do.LaunchStep}
    job.shows(fault())
    job.tell(ev.StepEnded(ExitStatus(0)))
    job.wait(HOUR_S)
    assert job.status not in (None, 0)


def test_a_relaunch_that_fails_on_a_node_that_is_down_is_a_node_fault() -> None:
    job = Job(requeueing(restart_via="step")).begin()
    job.silent = {do.LaunchStep}
    job.shows(fault())
    job.slurm = replace(RUNNING, bad_nodes=(("n1", "DOWN*"),))
    job.tell(ev.StepEnded(ExitStatus(1)))
    job.wait(HOUR_S)
    assert job.rungs[-1] == "isolated-requeue" and job.excluded == ("n1",)


# --- signals from outside


@pytest.mark.parametrize("sender", [None, 0])
def test_a_warning_leaves_the_ranks_to_end_by_themselves(sender: int | None) -> None:
    job = Job().begin()
    job.tell(ev.SignalSeen(SIGTERM, sender))
    assert bool(job.did(do.SignalRanks)) == (sender is None), "what ftrun gets is passed on, what ranks have seen is not"
    assert not job.did(do.StopRanks)
    job.all_exit(0)
    assert (job.status, job.rungs) == (0, [])


# A signal that ends ftrun: of its own where there is no Slurm, any where a time limit was set for it.
BOUND = requeueing(stop__after_signal_s=9.0)


def local(settings: Settings) -> Job:
    job = Job(settings)
    job.judge.run.facts = job.facts = replace(job.facts, launcher="local")
    return job.begin()


def test_without_slurm_a_sigterm_to_ftrun_is_the_end_and_ranks_that_obey_are_no_error() -> None:
    job = local(requeueing(stop__grace_s=5.0))
    job.tell(ev.SignalSeen(SIGTERM))
    assert job.did(do.SignalRanks) == [do.SignalRanks(SIGTERM, (0, 1, 2, 3))] and not job.did(do.StopRanks)
    job.all_exit(0)
    assert (job.status, job.rungs) == (0, [])


def test_ranks_that_ignore_it_are_killed_after_the_grace_and_asked_once() -> None:
    job = local(requeueing(stop__grace_s=5.0))
    job.tell(ev.SignalSeen(SIGTERM))
    job.exits(0)
    job.wait(4.9)
    assert not job.did(do.StopRanks)
    job.wait(0.2)
    (stop,) = job.did(do.StopRanks)
    assert (stop.grace_s, stop.asked) == (0.0, True) and job.status not in (None, 0) and not job.rungs


def test_in_an_allocation_as_well_unless_slurm_announces_something_or_a_requeue_is_to_follow() -> None:
    """srun ends its step at a SIGTERM of its own (`timeout 60 srun`)."""
    for number, rank, more, ended in (
        (SIGTERM, None, {}, True), (SIGTERM, 0, {}, False), (SIGTERM, None, {"warning__requeue": True}, False), (SIGUSR1, None, {}, False)
    ):  # fmt: skip
        job = Job(requeueing(stop__grace_s=5.0, **more)).begin()
        job.tell(ev.SignalSeen(number, rank))
        job.wait(4.0)
        assert not job.did(do.StopRanks) and all(not told.ranks or told.number == SIGTERM for told in job.did(do.SignalRanks))
        job.wait(2.0)
        assert ([stop.grace_s for stop in job.did(do.StopRanks)] == [0.0]) is ended
        assert not ended or (job.status not in (None, 0) and not job.rungs)


def test_a_second_signal_does_not_wait() -> None:
    job = local(requeueing())
    job.tell(ev.SignalSeen(SIGTERM), ev.SignalSeen(SIGTERM))
    assert [stop.grace_s for stop in job.did(do.StopRanks)] == [0.0] and len(job.did(do.SignalRanks)) == 1


def test_with_a_limit_the_signal_of_one_rank_reaches_the_others_and_no_crash_is_seen_in_it() -> None:
    """`os.kill(os.getppid(), SIGTERM)` in a rank, as ft_launcher's users do it."""
    job = local(settings_with(BOUND, in_place_restart__crash_restarts=3))
    job.tell(ev.SignalSeen(SIGTERM, 0))
    assert job.did(do.SignalRanks) == [do.SignalRanks(SIGTERM, (1, 2, 3), group=True)]
    job.wait(1.0)
    job.all_exit(1)
    assert (job.status, job.rungs) == (1, []) and len(job.did(do.StartRanks)) == 1


def test_ranks_that_have_just_begun_get_the_signal_a_moment_later() -> None:
    """Those that are slower than the rank that sent it may have no handler yet."""
    job = local(settings_with(BOUND, stop__signal_delay_s=0.3))
    job.tell(ev.SignalSeen(SIGTERM, 0))
    assert not job.did(do.SignalRanks)
    job.wait(0.4)
    assert job.did(do.SignalRanks) == [do.SignalRanks(SIGTERM, (1, 2, 3), group=True)]


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, 1, 3])
def test_in_an_allocation_only_those_get_it_whom_slurm_has_not_told(number: int) -> None:
    job = Job(BOUND).begin()
    job.tell(ev.SignalSeen(number, 0), ev.SignalSeen(number, 1), ev.SignalSeen(number, 2))
    assert not job.did(do.SignalRanks)
    job.wait(2.1)
    assert job.did(do.SignalRanks) == [do.SignalRanks(number, (3,), group=True)]
    job.all_exit(0)
    assert job.status == 0


def test_a_warning_requeues_only_when_asked_to() -> None:
    job = Job().begin()
    job.tell(ev.SignalSeen(SIGTERM, 0))
    job.all_exit(0, SIGTERM)
    assert job.status == 143 and not job.did(do.Requeue) and job.said == ""


def test_a_warning_requeues_at_no_cost_when_asked_to() -> None:
    job = Job(requeueing(warning__requeue=True, max_restarts=1)).begin()
    for _ in range(4):
        job.tell(ev.SignalSeen(SIGTERM, 0))
        job.all_exit(0)
        assert job.status == REQUEUED and job.excluded == ()
        assert job.recorded(rec.Decided)[0].cost == ""
        job = job.again().begin()
    assert job.counters == (5, 1, 5)
    job.exits(0, 1)
    assert job.rungs == ["unconditional-requeue"], "four warnings are no failures"


def test_the_first_rank_that_ends_after_a_warning_starts_the_grace_of_the_others() -> None:
    job = Job(requeueing(warning__requeue=True)).begin()
    job.tell(ev.SignalSeen(SIGTERM, 0))
    job.wait(requeueing().warning.grace_s - 1)
    assert not job.did(do.StopRanks)
    job.wait(2)
    assert job.did(do.StopRanks) and job.status == REQUEUED


def test_the_grace_after_a_warning_ends_before_the_allocation_does() -> None:
    job = Job(requeueing(warning__requeue=True)).begin()
    job.slurm = replace(RUNNING, end_time=int(job.now.unix) + 30)
    job.tell(ev.SignalSeen(SIGTERM, 0))
    job.wait(29)
    assert job.did(do.StopRanks)


@pytest.mark.parametrize("batch", [True, False])
def test_ranks_that_were_killed_after_a_warning_are_no_success(batch: bool) -> None:
    job = Job(requeueing(warning__requeue=not batch)).begin()
    job.slurm = replace(RUNNING, batch=batch)
    job.tell(ev.SignalSeen(SIGTERM, 0))
    job.exits(0, 0)
    job.wait(HOUR_S)
    assert job.did(do.StopRanks) and job.status not in (0, None)


def test_a_crash_long_after_a_warning_is_a_crash() -> None:
    """Some programs take SIGTERM for a wish to checkpoint, and go on."""
    job = Job().begin()
    job.slurm = replace(RUNNING, end_time=int(job.now.unix + 48 * HOUR_S))
    job.tell(ev.SignalSeen(SIGTERM, 0))
    job.wait(10 * HOUR_S)
    assert job.status is None
    job.exits(2, 1)
    job.wait(HOUR_S)
    assert job.rungs == ["unconditional-requeue"]


def test_another_warning_signal_counts_only_where_the_policy_names_it() -> None:
    plain, named = Job().begin(), Job(requeueing(warning__signals=("USR1",), warning__requeue=True)).begin()
    for job in (plain, named):
        job.tell(ev.SignalSeen(SIGUSR1))
        assert job.did(do.SignalRanks) == [do.SignalRanks(SIGUSR1)]
        job.all_exit(0)
    assert (plain.status, named.status) == (0, REQUEUED) and not plain.did(do.AskSlurm)


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "PREEMPTED", "PENDING", "NODE_FAIL"])
def test_a_job_that_slurm_ends_is_ended_and_not_requeued(state: str) -> None:
    job = Job(requeueing(warning__requeue=True)).begin()
    job.slurm = replace(RUNNING, state=state)
    job.tell(*(ev.SignalSeen(SIGTERM, task.rank) for task in job.tasks))
    assert job.did(do.StopRanks) and job.status == 143
    assert not job.did(do.Requeue) and job.rungs == []
    assert ("--ft-resume-at-limit" in job.said) == bool(job.said) == (state == "TIMEOUT")


@pytest.mark.parametrize("settings", [requeueing(), requeueing(in_place_restart__crash_restarts=1)])
def test_a_cancelled_job_whose_ranks_were_killed_first_is_not_tried_again(settings: Settings) -> None:
    job = Job(settings).begin()
    job.slurm = replace(RUNNING, state="CANCELLED")
    job.all_exit(0, SIGKILL)
    assert job.status == 137 and not job.did(do.Requeue) and len(job.did(do.StartRanks)) == 1


def test_a_cancelled_job_whose_step_went_first_is_not_requeued() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, state="CANCELLED")
    job.tell(ev.StepEnded(ExitStatus(0, SIGTERM)))
    job.wait(HOUR_S)
    assert not job.did(do.Requeue) and job.status not in (0, None)


def test_ctrl_c_ends_everything() -> None:
    job = Job().begin()
    job.tell(ev.SignalSeen(SIGINT))
    assert job.did(do.StopRanks)[0].grace_s == requeueing().stop.grace_s
    assert job.status == 130 and not job.did(do.Requeue)


def test_a_second_ctrl_c_does_not_wait_for_the_grace() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.tell(ev.SignalSeen(SIGINT), ev.SignalSeen(SIGINT))
    assert [stop.grace_s for stop in job.did(do.StopRanks)] == [requeueing().stop.grace_s, 0.0]
    job.tell(*(ev.RankStopped(rank, 1) for rank in range(4)))
    assert job.status == 130


def test_ctrl_c_while_a_crash_is_looked_into_ends_the_job() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.exits(0, 3)
    job.tell(ev.SignalSeen(SIGINT), *(ev.RankStopped(rank, 1) for rank in range(4)))
    assert job.status is not None and job.status != 0 and not job.did(do.Requeue)


def test_ctrl_c_while_devices_heal_ends_the_job_at_once() -> None:
    job = Job().begin()
    job.silent = {do.HealDevices}
    job.shows(fault())
    job.tell(ev.SignalSeen(SIGINT), ev.SignalSeen(SIGINT))
    assert job.status is not None, "two Ctrl-C, and it still waits for the devices"


@pytest.mark.parametrize("silent", [do.AskSlurm, do.LookAtDevices])
def test_ctrl_c_waits_for_no_answer_of_slurm_or_devices(silent: type) -> None:
    job = Job().begin()
    job.silent = {silent}
    job.exits(0, 3)
    job.tell(ev.SignalSeen(SIGINT), ev.SignalSeen(SIGINT))
    assert job.status == 3 and not job.did(do.Requeue), "two Ctrl-C, and it still waits for an answer"


@pytest.mark.parametrize("settings", [requeueing(), requeueing(restart_via="step", in_place_restart__crash_restarts=1)])
def test_ctrl_c_while_the_step_comes_down_for_another_try_ends_the_job(settings: Settings) -> None:
    job = Job(settings).begin()
    job.silent = {do.EndStep}
    job.exits(0, 3)
    assert job.judge.phase is Phase.ENDING
    job.tell(ev.SignalSeen(SIGINT))
    assert job.status not in (None, 0, REQUEUED) and not job.did(do.Requeue) and len(job.did(do.LaunchStep)) == 1


def test_ctrl_c_while_the_step_comes_down_kills_it() -> None:
    job = Job().begin()
    job.silent = {do.EndStep}
    job.all_exit(0)
    job.tell(ev.SignalSeen(SIGINT))
    assert job.did(do.KillStep) and job.status == 0


def test_a_warning_while_devices_heal_requeues_when_asked_to() -> None:
    job = Job(requeueing(warning__requeue=True)).begin()
    job.silent = {do.HealDevices}
    job.shows(fault())
    job.tell(ev.SignalSeen(SIGTERM))
    job.tell(ev.HealingDone("n2", (HealResult("0.0", True, "reset"),)))
    assert job.status == REQUEUED and job.recorded(rec.Decided)[-1].cost == ""


@pytest.mark.parametrize("between", [do.EndStep, do.LaunchStep])
def test_a_warning_between_two_steps_is_not_forgotten(between: type) -> None:
    """Passed on to the ranks that come, or the job is requeued; Slurm will not warn again."""
    job = Job(requeueing(restart_via="step", warning__requeue=True)).begin()
    job.silent = {between}
    job.shows(fault())
    assert job.judge.phase in (Phase.ENDING, Phase.LAUNCHING)
    job.silent = set()
    job.tell(ev.SignalSeen(SIGTERM))
    job.wait(HOUR_S)
    assert job.status == REQUEUED and job.recorded(rec.Decided)[-1].cost == ""


USR1_TOO = requeueing(warning__signals=("TERM", "USR1"), restart_via="step", in_place_restart__crash_restarts=5)


@pytest.mark.parametrize("between", [do.StopRanks, do.EndStep, do.LaunchStep, do.HealDevices])
@pytest.mark.parametrize("requeue", [True, False])
def test_a_warning_by_another_signal_while_no_ranks_run_is_not_forgotten_either(between: type, requeue: bool) -> None:
    job = Job(settings_with(USR1_TOO, warning__requeue=requeue)).begin()
    job.silent = {between}
    if between is do.HealDevices:
        job.shows(fault())
    else:
        job.exits(0, 1)
    phases = {
        do.StopRanks: Phase.SETTLING, do.EndStep: Phase.ENDING, do.LaunchStep: Phase.LAUNCHING, do.HealDevices: Phase.HEALING,
    }  # fmt: skip
    assert job.judge.phase is phases[between]
    job.tell(ev.SignalSeen(SIGUSR1))
    job.silent = set()
    goes_on(job, between)
    job.wait(HOUR_S)
    if requeue:
        assert job.status == REQUEUED and job.recorded(rec.Decided)[-1].cost == ""
    else:
        assert job.did(do.SignalRanks) == [do.SignalRanks(SIGUSR1)] and job.judge.phase is Phase.RUNNING


def goes_on(job: Job, after: type) -> None:
    """What the world would have done at once."""
    if after is do.StopRanks:
        job.tell(*(ev.RankStopped(task.rank, 1) for task in job.tasks))
    if after is do.EndStep and not job.judge.finished:
        job.tell(ev.StepEnded(ExitStatus(0)))
    if after is do.LaunchStep:
        job.tell(*(ev.TaskArrived(task, len(job.tasks), "7.1") for task in job.tasks))
    if after is do.HealDevices:
        job.devices["n2"] = ()
        job.tell(ev.HealingDone("n2", (HealResult("0.0", True, "reset"),)))


@pytest.mark.parametrize("attempts", [0, 1])
def test_a_warning_to_the_tasks_of_a_step_that_comes_up_reaches_the_ranks_once(attempts: int) -> None:
    job = Job(USR1_TOO)
    job.silent = {do.LaunchStep} if not attempts else set()
    job.begin()
    job.silent = {do.LaunchStep}
    if attempts:
        job.exits(0, 1)
    step, (*first, last) = f"7.{attempts}", job.tasks
    job.tell(*(ev.TaskArrived(task, 4, step) for task in first))
    job.tell(*(ev.SignalSeen(SIGTERM, task.rank) for task in first), ev.TaskArrived(last, 4, step))
    assert len(job.did(do.SignalRanks)) == 1 and len(job.did(do.StartRanks)) == attempts + 1


def test_a_step_that_comes_up_too_late_after_a_warning_to_its_tasks_is_not_waited_for() -> None:
    job = Job(settings_with(USR1_TOO, warning__requeue=True)).begin()
    job.silent = {do.LaunchStep}
    job.exits(0, 1)
    job.tell(ev.TaskArrived(job.tasks[0], 4, "7.1"), *[ev.SignalSeen(SIGTERM, 0)] * 2)
    asked = len(job.did(do.AskSlurm))
    job.wait(HOUR_S)
    assert job.status == REQUEUED and job.recorded(rec.Decided)[-1].cost == "" and len(job.did(do.AskSlurm)) == asked


def test_a_job_cancelled_while_its_step_comes_up_is_over() -> None:
    """Slurm signals the tasks and, in the end, kills them."""
    job = Job(settings_with(USR1_TOO, warning__requeue=True)).begin()
    job.silent = {do.LaunchStep}
    job.exits(0, 1)
    job.slurm = replace(RUNNING, state="CANCELLED")
    job.tell(ev.TaskArrived(job.tasks[0], 4, "7.1"), ev.SignalSeen(SIGTERM, 0), ev.StepEnded(ExitStatus(0, SIGKILL)))
    assert job.status not in (0, None, REQUEUED) and len(job.did(do.StartRanks)) == 1


def test_a_job_cancelled_while_devices_heal_is_over() -> None:
    job = Job().begin()
    job.silent = {do.HealDevices}
    job.shows(fault())
    job.slurm = replace(RUNNING, state="CANCELLED")
    job.tell(ev.SignalSeen(SIGTERM, 0), ev.HealingDone("n2", (HealResult("0.0", True, "reset"),)))
    assert job.status not in (0, None) and len(job.did(do.StartRanks)) == 1


def test_outside_slurm_a_sigterm_goes_to_the_ranks_and_their_end_is_the_end() -> None:
    job = Job(can=()).begin()
    job.tell(ev.SignalSeen(SIGTERM))
    assert job.did(do.SignalRanks) == [do.SignalRanks(SIGTERM)]
    job.all_exit(0, SIGTERM)
    assert job.status == 143 and job.rungs == []


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_a_signal_while_the_job_is_given_back_is_the_requeue_s_own(number: int) -> None:
    job = Job().begin()
    job.silent = {do.Requeue}
    job.exits(0, 1)
    assert job.tell(ev.SignalSeen(number)) == []
    job.tell(ev.RequeueEnded(True, "requeued"))
    assert job.status == REQUEUED


# --- a ledger that cannot be written


@pytest.mark.parametrize(
    "settings", [requeueing(), requeueing(in_place_restart__crash_restarts=1), requeueing(unconditional_requeue__enabled=False)]
)
def test_what_cannot_be_written_is_not_done_and_the_job_ends_with_its_own_status(settings: Settings) -> None:
    job = Job(settings).begin()
    job.full = True
    job.exits(0, 7)
    assert not job.did(do.Requeue) and len(job.did(do.StartRanks)) == 1
    assert "no space left" in job.said
    assert job.status == 7


@pytest.mark.parametrize("settings", [requeueing(), requeueing(unconditional_requeue__enabled=False)])
def test_a_full_disk_after_the_step_has_gone_is_a_clear_end_too(settings: Settings) -> None:
    job = Job(settings).begin()
    job.silent = {do.StopRanks}
    job.exits(0, 7)
    job.full = True
    job.tell(ev.StepEnded(ExitStatus(7)))
    job.wait(HOUR_S)
    assert job.status == 7 and "no space left" in job.said and not job.did(do.Requeue)


def test_devices_are_not_healed_on_a_decision_that_cannot_be_written() -> None:
    job = Job().begin()
    job.full = True
    job.shows(fault())
    assert not job.did(do.HealDevices) and job.status not in (0, None) and "no space left" in job.said


# --- rendezvous for torch


def test_torch_finds_each_other_and_never_on_a_port_of_the_last_attempt() -> None:
    job = Job(requeueing(rendezvous="torch"), per_node=2).begin()
    first = job.env(3)
    assert {name: first[name] for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "3", "LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip
    assert (first["MASTER_ADDR"], first["TORCHELASTIC_RUN_ID"]) == ("10.0.0.1", f"{job.facts.cluster}-{job.facts.job}")
    ports = [first["MASTER_PORT"]]
    for code in ("80E01801", "80E18008"):
        job.shows(fault(code=code))
        assert {job.env(rank)["MASTER_PORT"] for rank in range(4)} == {job.env()["MASTER_PORT"]}
        ports.append(job.env()["MASTER_PORT"])
    assert len(set(ports)) == 3


def test_torch_variables_that_the_user_has_set_are_the_user_s() -> None:
    job = Job(requeueing(rendezvous="torch"), user_env=("MASTER_PORT", "RANK", "PATH")).begin()
    assert "MASTER_PORT" not in job.env() and "RANK" not in job.env()
    assert job.env()["MASTER_ADDR"] == "10.0.0.1"


def test_no_torch_variables_unless_asked_for() -> None:
    assert not {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"} & set(Job().begin().env())


def test_torch_counts_ranks_per_node_where_nodes_differ() -> None:
    job = Job(requeueing(rendezvous="torch"))
    job.tasks = (*job.tasks[:2], replace(job.tasks[2], rank=2))  # n1 has two, n2 has one
    job.begin()
    assert [job.env(rank)["LOCAL_WORLD_SIZE"] for rank in range(3)] == ["2", "2", "1"]
    assert job.env()["WORLD_SIZE"] == "3"


# --- the counters


def test_counters_over_restarts_in_place_and_requeues() -> None:
    job = Job().begin()
    assert job.counters == (1, 1, 1)
    job.shows(fault())
    assert job.counters == (1, 2, 2)
    job.exits(0, 1)
    job = job.again().begin()
    assert job.counters == (2, 1, 3)
    job.shows(fault())
    assert job.counters == (2, 2, 4)


def test_a_job_that_somebody_else_requeued_knows_it_was_scheduled_again() -> None:
    first = Job().begin()
    again = Job(past=first.ledger, schedule=1).begin()
    assert again.counters == (2, 1, 2)


def test_a_second_ftrun_in_the_script_counts_for_itself_but_the_attempt_goes_on() -> None:
    first = Job().begin()
    first.shows(fault())
    first.all_exit(0)
    second = Job(past=first.ledger, step_key="evaluate").begin()
    assert second.counters == (1, 1, 3)
    second.exits(0, 1)
    again = Job(past=second.ledger, schedule=1).begin()
    assert again.counters == (2, 1, 4)


def test_an_ftrun_that_died_has_run_the_command_all_the_same() -> None:
    dead = Job().begin()
    assert Job(past=dead.ledger).begin().counters == (1, 2, 2)


def test_an_attempt_s_number_is_never_handed_out_twice() -> None:
    job = Job().begin()
    numbers = [job.counters[2]]
    for _ in range(2):
        job.shows(fault())
        numbers.append(job.counters[2])
        job.exits(0, 1)
        job = job.again().begin()
        numbers.append(job.counters[2])
    assert numbers == sorted(set(numbers))


# --- what is written down


def test_what_happened_stands_in_the_ledger_in_order() -> None:
    job = Job().begin()
    job.shows(fault())
    job.exits(0, 1)
    told = [type(record).__name__ for record in job.ledger if not isinstance(record, rec.RunBegan)]
    assert told == [
        "AttemptBegan", "FaultSeen", "TroubleSeen", "AttemptEnded", "Decided", "Waiting", "CarriedOut",
        "AttemptBegan", "TroubleSeen", "AttemptEnded", "Decided", "Waiting", "CarriedOut", "Finished",
    ]  # fmt: skip
    ended = of_kind(job.ledger, rec.AttemptEnded)[1]
    assert ended.exits == {"exited with status 1": 1, "was killed by SIGTERM": 3}


def test_ranks_that_outlived_a_sigterm_are_asked_again_when_they_are_stopped_for_a_crash() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, end_time=int(job.now.unix + 48 * HOUR_S))
    job.tell(ev.SignalSeen(SIGTERM, 0))
    job.wait(10 * HOUR_S)
    job.exits(2, 1)
    assert [stop.asked for stop in job.did(do.StopRanks)] == [False]


def test_ranks_of_a_cancelled_job_are_not_asked_twice() -> None:
    job = Job().begin()
    job.slurm = replace(RUNNING, state="CANCELLED")
    job.tell(ev.SignalSeen(SIGTERM, 0))
    assert [stop.asked for stop in job.did(do.StopRanks)] == [True]


def start_of(job: Job, epilog: bool = False) -> do.Start:
    job.slurm = replace(RUNNING, epilog=epilog)
    job.exits(0, 1)
    return job.did(do.Requeue)[-1].start


def test_the_first_requeue_on_a_cluster_watches_the_other_nodes() -> None:
    for epilog in (False, True):
        start = start_of(Job().begin(), epilog)
        assert start.watch_s > 0 and start.epilog is epilog


def test_a_clean_up_that_was_measured_is_counted_on_at_the_next_requeue() -> None:
    job = Job().begin()
    assert start_of(job).watch_s > 0
    asked = of_kind(job.ledger, rec.Decided)[-1]
    job.ledger.append(rec.CleanUpBegan(job.now.unix, asked.id, job.now.unix))
    job = job.again(submit_time=int(job.now.unix) + 15).begin(watched=False)
    start = start_of(job)
    assert start.watch_s == 0.0 and 16.0 < start.in_s < 22.0


def test_clean_ups_that_other_jobs_have_met_are_counted_on() -> None:
    job = Job(clean_ups=(40.2, 40.8)).begin()
    start = start_of(job, epilog=True)
    assert start.watch_s == 0.0 and 41.0 < start.in_s < 43.0


@pytest.mark.parametrize(
    ("given_s", "grace_s", "epilog", "in_s"),
    [
        (5.0, -1.0, True, 5.0),
        (0.0, 10.0, True, 18.0),
        (5.0, 10.0, True, 18.0),
        (30.0, 10.0, True, 30.0),
        (5.0, 10.0, False, 5.0),
    ],
)
def test_what_the_job_says_of_its_clean_up_is_waited_for(given_s: float, grace_s: float, epilog: bool, in_s: float) -> None:
    job = Job(requeueing(requeue__start_in_s=given_s, requeue__cleanup_grace_s=grace_s)).begin()
    assert start_of(job, epilog) == do.Start(in_s, 0.0, epilog)


def launch_fails(up_s: float) -> Job:
    """srun gives up at once, and slurmctld has been up for so long."""
    job = Job()
    job.silent = {do.LaunchStep}
    job.slurm = replace(job.slurm, up_since=int(job.now.unix - up_s))
    job.tell(ev.Begun(), ev.StepEnded(ExitStatus(1)))
    return job


def test_a_step_that_a_fresh_slurmctld_refuses_is_started_once_more_and_not_for_ever() -> None:
    job = launch_fails(2.0)
    assert job.status is None and len(job.did(do.LaunchStep)) == 1
    for number in range(2, 2 + LAUNCHES_AGAIN):
        job.wait(GATHERS_S * max(1, number - 2) + 0.1)
        assert len(job.did(do.LaunchStep)) == number
        job.tell(ev.StepEnded(ExitStatus(1)))
    assert job.status == 1 and "had just come up" in job.said


def messages_fail(can: tuple[str, ...] = ("ask", "requeue"), requeueable: bool = True) -> Job:
    """srun gives up again and again: a node's slurmd closes the connection without an answer (5005, seen on a busy 22.05)."""
    job = Job(can=can)
    job.silent = {do.LaunchStep}
    job.slurm = replace(job.slurm, requeueable=requeueable)
    job.tell(ev.Begun())
    for launches in range(1, 2 + LAUNCHES_AGAIN):
        assert job.status is None and len(job.did(do.LaunchStep)) == launches
        job.tell(ev.StepEnded(ExitStatus(141)))
        job.wait(GATHERS_S * launches + 0.1)
    return job


def test_a_step_whose_messages_were_lost_is_started_again_and_then_elsewhere() -> None:
    job = messages_fail()
    assert "no byte was sent or received" in job.said
    assert job.rungs == ["unconditional-requeue"] and len(job.did(do.LaunchStep)) == 1 + LAUNCHES_AGAIN


def test_a_step_whose_messages_are_lost_for_ever_fails_with_srun_s_status() -> None:
    job = messages_fail(requeueable=False)
    assert (job.status, job.rungs) == (141, ["fail"])


def test_without_slurm_a_launcher_s_status_is_no_error_of_slurm_s() -> None:
    job = Job(can=())
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), ev.StepEnded(ExitStatus(141)))
    assert (job.status, len(job.did(do.LaunchStep))) == (141, 1)


def test_a_step_that_slurm_refuses_for_good_fails_at_once() -> None:
    assert launch_fails(FRESH_S + 1.0).status == 1


@pytest.mark.parametrize(("step_key", "rungs"), [("", ["unconditional-requeue"]), ("evaluate", ["fail"])])
def test_a_step_that_came_up_in_an_earlier_scheduling_and_is_refused_now_has_another_try(step_key: str, rungs: list[str]) -> None:
    """What this allocation lacks, such as its GPUs, the next one may have; another command of the script has proven nothing."""
    first = Job().begin()
    first.exits(0, 3)
    job = Job(past=first.ledger, schedule=1, **({"step_key": step_key} if step_key else {}))
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun(), ev.StepEnded(ExitStatus(1)))
    assert job.rungs[-1:] == rungs


def test_such_tries_have_an_end() -> None:
    past = Job().begin()
    past.exits(0, 3)
    for schedule in range(1, 9):
        job = Job(past=past.ledger, schedule=schedule)
        job.silent = {do.LaunchStep}
        job.tell(ev.Begun(), ev.StepEnded(ExitStatus(1)))
        if job.rungs[-1] == "fail":
            break
        past = job
    assert schedule == 3 and job.status == 1


def test_a_signal_before_the_step_is_started_once_more_ends_ftrun() -> None:
    job = launch_fails(2.0)
    job.tell(ev.SignalSeen(15))
    assert job.status == 143 and len(job.did(do.LaunchStep)) == 1


# --- the job's own clean-up


def test_the_job_s_own_clean_up_comes_before_a_requeue_and_only_once() -> None:
    job = Job(requeueing(requeue__cleanup=("umount", "/data"), requeue__cleanup_grace_s=5.0)).begin()
    job.silent = {do.Requeue}
    job.exits(0, 4)
    (asked,) = job.did(do.Requeue)
    assert asked.clean_up == do.CleanUp(("umount", "/data"), ("n1", "n2"), 5.0)
    job.tell(ev.RequeueEnded(False, "nobody listens", away=True))
    job.wait(10.0)
    assert [given.clean_up for given in job.did(do.Requeue)] == [asked.clean_up, None]


def test_no_clean_up_is_tried_on_a_node_that_is_gone_nor_where_none_was_asked_for() -> None:
    job = Job(requeueing(requeue__cleanup=("umount", "/data")), can=("ask", "requeue", "probe"), nodes=("n1", "n2", "n3")).begin()
    job.reachable = False
    job.tell(ev.NodeSilent("n2", 15.0))
    job.wait(200.0)
    (asked,) = job.did(do.Requeue)
    assert asked.clean_up == do.CleanUp(("umount", "/data"), ("n1", "n3"), -1.0)
    plain = Job().begin()
    plain.exits(0, 4)
    assert plain.did(do.Requeue)[-1].clean_up is None


def test_what_follows_the_end_of_the_step_can_be_printed() -> None:
    job = Job(requeueing(in_place_restart__enabled=False)).begin()
    job.silent = {do.EndStep}
    job.exits(0, 1)
    assert job.judge.phase is Phase.ENDING
    assert str(job.judge.run.end.then) == "ThenRequeue()"
