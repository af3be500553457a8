"""`ftslurm control` on paper: every request in every phase is answered, and carried out or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds import control as ctl
from ftslurm.model.folds.control import State
from ftslurm.model.folds.history import fold
from ftslurm.model.rungs import Rung
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.judge.judge import Phase
from ftslurm.policies.judge.phases import EarlierRuns, WhyNot
from tests.settings import settings_with
from tests.stories.replay import RUNNING, SILENT, Job, fault

SPARE = {"nodes": ("n1", "n2", "n3"), "width": 2, "can": ("ask", "requeue", "probe", "replace", "release")}
REPLACES = settings_with(nodes__spares=1, node_replacement__enabled=True)


def ask(job: Job, verb: str, **about: Any) -> rec.Requested:
    """As `ftslurm control` does it: written into the ledger, and then seen there."""
    asked = written(job, verb, **about)
    job.tell(ev.ControlAsked(asked))
    return asked


def written(job: Job, verb: str, **about: Any) -> rec.Requested:
    number = 1 + max(fold(job.ledger).control.requests, default=0)
    asked = rec.Requested(job.now.unix, number, "anna", verb, "login1", schedule=job.facts.schedule, **about)
    job.ledger.append(asked)
    return asked


def request(job: Job, number: int) -> ctl.Request:
    found = fold(job.ledger).control.get(number)
    assert found is not None
    return found


def answer(job: Job, number: int) -> tuple[bool, str]:
    answers = [record for record in job.ledger if isinstance(record, rec.RequestAnswered) and record.number == number]
    assert len(answers) == 1, f"{len(answers)} answers to request {number}"
    return answers[0].ok, answers[0].text


# --- the phases, each as it comes about


def launching() -> Job:
    job = Job()
    job.silent = {do.LaunchStep}
    job.tell(ev.Begun())
    return job


def awaiting_leases() -> Job:
    job = Job()
    job.facts = replace(job.facts, earlier=EarlierRuns({"n2": "the ftrun before this one was killed"}))
    job.judge.run.facts = job.facts
    job.tell(ev.Begun())
    return job


def running() -> Job:
    return Job().begin()


def settling() -> Job:
    job = running()
    job.silent = {do.StopRanks}
    job.exits(1, 1)
    return job


def slurm_away() -> Job:
    """A rank has crashed, and slurmctld is waited for before anything is decided."""
    job = running()
    job.slurm = replace(SILENT, away=True)
    job.exits(1, 1)
    return job


def healing() -> Job:
    job = running()
    job.silent = {do.HealDevices}
    job.shows(fault())
    return job


def replacing() -> Job:
    """n2 is left, and a donor is awaited."""
    job = Job(
        settings_with(REPLACES, nodes__spares=0, node_replacement__budget=4), nodes=("n1", "n2"), width=2, can=SPARE["can"]
    ).begin()
    job.silent = {do.BorrowNode}
    job.shows(fault(graded=FaultClass.ISOLATE))
    return job


def ending() -> Job:
    """Towards a requeue."""
    job = running()
    job.silent = {do.EndStep, do.KillStep}
    job.exits(1, 1)
    return job


def requeueing() -> Job:
    job = running()
    job.silent = {do.Requeue}
    job.exits(1, 1)
    return job


def requeue_waits() -> Job:
    """For a slurmctld that is away."""
    job = requeueing()
    job.tell(ev.RequeueEnded(False, "no answer", away=True))
    return job


PHASES: dict[str, tuple[Callable[[], Job], Phase]] = {
    "launching": (launching, Phase.LAUNCHING),
    "awaiting leases": (awaiting_leases, Phase.LAUNCHING),
    "running": (running, Phase.RUNNING),
    "settling": (settling, Phase.SETTLING),
    "slurm away": (slurm_away, Phase.SETTLING),
    "healing": (healing, Phase.HEALING),
    "replacing": (replacing, Phase.REPLACING),
    "ending": (ending, Phase.ENDING),
    "requeueing": (requeueing, Phase.REQUEUEING),
    "requeue waits": (requeue_waits, Phase.REQUEUEING),
}


@pytest.mark.parametrize("name", PHASES)
def test_the_phases_are_what_they_are_called(name: str) -> None:
    make, phase = PHASES[name]
    assert make().judge.phase is phase


def go_on(job: Job) -> None:
    """The world answers again."""
    job.silent = set()
    job.slurm = replace(RUNNING, node_count=len(job.nodes))
    for rank, attempt in list(job.truth.stops.items()):
        job.tell(*job._stopped(attempt, [rank]))
    for slot in sorted(+job.truth.borrows):
        job.tell(ev.NodeBorrowed(slot, "", 0, "none is free"))
    if job.truth.up and job.judge.phase in (Phase.ENDING, Phase.LAUNCHING):
        job.tell(*job._shims_go(), ev.StepEnded(ExitStatus(0)))
    if job.truth.requeueing:
        job.tell(ev.RequeueEnded(True, "requeued"))
    if job.truth.healing:
        job.tell(*(event for node, chips in job.truth.healing.items() for event in job._healed(node, chips)))


@pytest.mark.parametrize("name", PHASES)
def test_stop_ends_the_job_from_wherever_it_is(name: str) -> None:
    job = PHASES[name][0]()
    asked = ask(job, ctl.STOP)
    go_on(job)
    job.wait(200.0)
    if name == "requeueing":  # too late for this ftrun: the next one takes it before it starts anything
        assert job.status == 75 and request(job, asked.number).state is State.OPEN
        job = job.again()
        job.tell(ev.Begun(), ev.ControlAsked(asked))
    assert request(job, asked.number).state is State.DONE
    assert job.status == 143, job.status
    assert not [attempt for attempt in job.did(do.StartRanks) if attempt.attempt > 1]
    assert fold(job.ledger).requeues.open is None, "nobody shall finish it"
    finished = job.recorded(rec.Finished)[-1]
    assert finished.what == "stopped on request 1 of anna"


@pytest.mark.parametrize("name", PHASES)
def test_requeue_gives_the_job_back_once_from_wherever_it_is(name: str) -> None:
    job = PHASES[name][0]()
    asked = ask(job, ctl.REQUEUE)
    go_on(job)
    job.wait(200.0)
    assert job.status == 75, job.judge.phase
    assert len(job.did(do.Requeue)) == 1 + (name == "requeue waits")
    state = request(job, asked.number)
    assert state.state is State.DONE and "requeued" in state.text
    by_request = [decided for decided in job.recorded(rec.Decided) if decided.rung == Rung.ON_REQUEST]
    if name not in ("ending", "requeueing", "requeue waits"):  # where it had been decided before
        assert len(by_request) == 1 and by_request[0].cost == "" and by_request[0].cause == "request"
    again = job.again(nodes=("n1", "n3") if "n2" in job.excluded else None).begin()
    assert again.judge.phase is Phase.RUNNING


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize(
    ("verb", "about"),
    [(ctl.HOLD, {"rung": "hang-restart"}), (ctl.NO_RESTARTS, {}), (ctl.EXCLUDE, {"nodes": ("n9",)})],
)
def test_what_changes_nothing_that_runs_is_taken_everywhere(name: str, verb: str, about: dict[str, Any]) -> None:
    job = PHASES[name][0]()
    before = job.judge.phase
    asked = ask(job, verb, **about)
    if verb == ctl.EXCLUDE and before is Phase.REQUEUEING:
        assert request(job, asked.number).state is State.OPEN, "Slurm has its list already; the next ftrun takes it"
        return
    assert answer(job, asked.number)[0]
    assert job.judge.phase is before
    undo = ask(job, ctl.UNDO, target=asked.number)
    assert answer(job, undo.number)[0]
    control = job.judge.history.control
    assert not control.held and control.no_restarts is None and not control.excluded
    assert "n9" not in job.judge.history.exclusions.isolated


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize(
    ("verb", "about", "why"),
    [
        (ctl.RELEASE, {"rung": "hang-restart"}, "is not held"),
        (ctl.ALLOW_RESTARTS, {}, "restarts are allowed"),
        (ctl.REINSTATE, {"nodes": ("n9",)}, "n9 is not excluded"),
        (ctl.HOLD, {"rung": "fail"}, "there is no rung `fail`"),
        (ctl.UNDO, {"target": 7}, "nothing to undo"),
        (ctl.EXCLUDE, {"nodes": ("n1;reboot",)}, "is not a node name"),
        (ctl.STOP, {"checkpoints": 1}, "ftrun cannot tell when a checkpoint is complete"),
        ("fly", {}, "does not know `fly`"),
    ],
)
def test_what_makes_no_sense_is_refused_everywhere_with_a_reason(name: str, verb: str, about: dict[str, Any], why: str) -> None:
    job = PHASES[name][0]()
    before = job.judge.phase
    asked = ask(job, verb, **about)
    ok, text = answer(job, asked.number)
    assert not ok and why in text
    assert job.judge.phase is before and job.status is None
    assert why in job.said


# --- restart in place


def test_a_restart_on_request_is_in_place_now_and_costs_nothing() -> None:
    job = Job(settings_with(in_place_restart__enabled=False)).begin()
    asked = ask(job, ctl.RESTART)
    assert answer(job, asked.number) == (True, "the ranks are restarted in place")
    (decided,) = job.recorded(rec.Decided)
    assert (decided.rung, decided.cause, decided.cost, decided.reason) == (
        "in-place-restart", "request", "", "as request 1 asks",
    )  # fmt: skip
    assert job.judge.phase is Phase.RUNNING and job.counters == (1, 2, 2) and job.did(do.StopRanks)[-1].grace_s > 0
    assert ask(job, ctl.RESTART) and len(job.recorded(rec.Decided)) == 2


@pytest.mark.parametrize("name", PHASES)
def test_a_restart_is_answered_in_every_phase(name: str) -> None:
    job = PHASES[name][0]()
    assert answer(job, ask(job, ctl.RESTART).number)


def test_ranks_whose_input_is_spent_are_not_restarted_on_request_either() -> None:
    """They would find its end, and a program without a line ends with 0."""
    job = running()
    job.judge.run.facts = replace(job.facts, why_not=WhyNot(again="it is spent"))
    ok, text = answer(job, ask(job, ctl.RESTART).number)
    assert (ok, text) == (False, "the ranks cannot be restarted in place: it is spent")
    assert job.judge.phase is Phase.RUNNING and not job.recorded(rec.Decided)


def test_who_forbids_restarts_gets_none() -> None:
    job = Job().begin()
    ask(job, ctl.NO_RESTARTS)
    ok, text = answer(job, ask(job, ctl.RESTART).number)
    assert not ok and "allow-restarts" in text and not job.rungs


# --- leave a node


def test_an_excluded_node_is_left_at_once_for_a_spare_and_costs_nothing() -> None:
    job = Job(REPLACES, **SPARE).begin()
    asked = ask(job, ctl.EXCLUDE, nodes=("n2",))
    assert answer(job, asked.number) == (True, "the job continues without n2: node-replacement")
    (decided,) = job.recorded(rec.Decided)
    assert (decided.rung, decided.cause, decided.cost) == ("node-replacement", "request", "")
    assert job.did(do.LaunchStep)[-1].layout.nodes == ("n1", "n3")
    assert job.judge.phase is Phase.RUNNING and len(job.recorded(rec.AttemptBegan)) == 2
    assert not job.did(do.TellOthers), "no fact speaks against the node: later jobs may have it"


def test_without_a_spare_the_job_is_requeued_without_the_node() -> None:
    job = running()
    asked = ask(job, ctl.EXCLUDE, nodes=("n2",))
    assert answer(job, asked.number) == (True, "the job continues without n2: isolated-requeue")
    assert job.status == 75 and job.excluded == ("n2",)
    assert not job.judge.history.budgets.spent
    job = job.again(nodes=("n1", "n3")).begin()
    assert job.judge.phase is Phase.RUNNING
    job.exits(0, 1)
    assert job.excluded == ("n2",), "remembered by later schedulings"


def test_an_exclusion_is_given_up_where_neither_slurm_nor_a_donor_answers() -> None:
    job = Job(settings_with(node_replacement__enabled=True, nodes__donor=True), **{**SPARE, "nodes": ("n1", "n2")}).begin()
    job.silent = {do.BorrowNode}
    asked = ask(job, ctl.EXCLUDE, nodes=("n2",))
    assert answer(job, asked.number) == (True, "the job continues without n2: node-replacement")
    job.silent = {do.BorrowNode, do.AskSlurm}
    job.wait(86400.0)
    assert job.rungs == ["node-replacement", "in-place-restart"] and "cannot be excluded after all" in job.said
    assert job.judge.phase is Phase.RUNNING and job.did(do.LaunchStep)[-1].layout.nodes == ("n1", "n2")


def test_what_people_ask_for_is_none_of_aimasters_restarts() -> None:
    job = Job(replace(REPLACES, max_job_restarts=0), **SPARE).begin()
    ask(job, ctl.EXCLUDE, nodes=("n2",))
    assert job.rungs == ["node-replacement"] and job.judge.history.budgets.job_restarts == 0
    job.exits(0, 3)
    assert job.status == 3 and "max_job_restarts" in job.said


def test_a_node_that_cannot_be_left_is_refused_and_the_ranks_run_on() -> None:
    job = running()
    job.slurm = replace(job.slurm, usable=frozenset({"n1", "n2"}))
    asked = ask(job, ctl.EXCLUDE, nodes=("n2",))
    ok, text = answer(job, asked.number)
    assert not ok and "the job needs 2 nodes and only 1 remains if n2 is excluded" in text
    assert job.judge.phase is Phase.RUNNING and not job.did(do.StopRanks)
    assert not job.judge.history.exclusions.isolated


def test_a_node_without_ranks_is_only_remembered_and_so_is_one_that_may_wait() -> None:
    job = Job(REPLACES, **SPARE).begin()
    for about in ({"nodes": ("n3",)}, {"nodes": ("n2",), "later": True}):
        asked = ask(job, ctl.EXCLUDE, **about)
        assert answer(job, asked.number)[0] and request(job, asked.number).state is State.DONE
    assert not job.did(do.StopRanks)
    assert job.judge.history.kept_out(job.now.unix, 60.0) == ("n2", "n3")
    job.jump(10 * 86400.0)
    assert job.judge.history.kept_out(job.now.unix, 60.0) == ("n2", "n3"), "what a person excludes does not expire"


def test_a_node_that_is_asked_for_while_the_step_comes_up_is_left_when_the_ranks_run() -> None:
    job = launching()
    asked = ask(job, ctl.EXCLUDE, nodes=("n2",))
    assert "leave it when they run" in answer(job, asked.number)[1]
    job.silent = set()
    job.tell(*(ev.TaskArrived(task, len(job.tasks), "7.0") for task in job.tasks))
    assert job.status == 75 and job.excluded == ("n2",)


def test_an_excluded_node_is_never_let_in_again_for_want_of_others() -> None:
    job = running()
    ask(job, ctl.EXCLUDE, nodes=("n2",), later=True)
    job.slurm = replace(job.slurm, usable=frozenset({"n1", "n2"}))
    job.exits(0, 1)
    assert job.status == 1
    assert "only 1 remains without n2 (dead or excluded)" in job.said


def test_a_reinstated_node_is_used_again_whoever_excluded_it() -> None:
    job = Job(settings_with(unconditional_requeue__enabled=True)).begin()
    job.shows(fault(graded=FaultClass.ISOLATE))
    assert job.excluded == ("n2",)
    job = job.again(nodes=("n1", "n3")).begin()
    asked = ask(job, ctl.REINSTATE, nodes=("n2",))
    assert answer(job, asked.number)[0]
    ask(job, ctl.REQUEUE)
    assert job.excluded == () and "n2" in job.judge.history.exclusions.ours, "so that Slurm is told, too"
    job = job.again().begin()
    undo = ask(job, ctl.UNDO, target=asked.number)
    assert answer(job, undo.number)[0]
    assert job.judge.history.exclusions.isolated["n2"][0].startswith("80E01801"), "as it was before"


def test_ranks_go_on_where_they_were_if_the_node_cannot_be_left_after_all() -> None:
    job = Job(REPLACES, **SPARE).begin()
    job.slurm = replace(job.slurm, requeueable=False)
    job.unfit["n3"] = False
    ask(job, ctl.EXCLUDE, nodes=("n2",))
    job.wait(120.0)
    assert job.judge.phase is Phase.RUNNING, "nothing has failed, so nothing may end the job"
    assert job.did(do.StartRanks)[-1].attempt == 2
    assert job.rungs == ["node-replacement", "in-place-restart"]


def test_nothing_is_started_beside_a_step_that_cannot_be_ended() -> None:
    job = Job(REPLACES, **SPARE).begin()
    job.silent = {do.EndStep, do.KillStep}
    ask(job, ctl.EXCLUDE, nodes=("n2",))
    job.wait(120.0)
    assert job.rungs == ["node-replacement", "unconditional-requeue"], "that the step stays is a failure"
    assert job.recorded(rec.Decided)[-1].cause == "lost" and job.status == 75


def test_nothing_is_started_beside_processes_that_outlive_sigkill() -> None:
    job = running()
    job.stuck = {0: (4711,)}
    job.slurm = replace(job.slurm, usable=frozenset({"n1", "n2", "n3"}))
    ask(job, ctl.EXCLUDE, nodes=("n2",))
    assert len(job.did(do.StartRanks)) == 1
    (decided,) = job.recorded(rec.Decided)
    assert (decided.rung, decided.cause) == ("fail", "node"), "two nodes of three are left out, and the job needs two"
    assert "outlived SIGKILL" in decided.why


# --- requeue


def test_a_requeue_can_leave_nodes() -> None:
    job = running()
    ask(job, ctl.REQUEUE, nodes=("n2",))
    assert job.status == 75 and job.excluded == ("n2",)
    assert [decided.rung for decided in job.recorded(rec.Decided)] == [Rung.ON_REQUEST]


@pytest.mark.parametrize(
    ("slurm", "about", "why"),
    [
        ({"requeueable": False}, {}, "the job may not be requeued"),
        ({"state": "CANCELLED"}, {}, "the job was cancelled"),
        ({"batch": False}, {}, "only a batch job can be requeued"),
        ({"usable": frozenset({"n1", "n2"})}, {"nodes": ("n2",)}, "only 1 remains without n2"),
        ({"error": "no answer", "away": True}, {}, "Slurm did not say how the job stands"),
    ],
)
def test_a_requeue_that_cannot_be_is_refused_and_the_ranks_run_on(slurm: dict[str, Any], about: dict[str, Any], why: str) -> None:
    job = running()
    job.slurm = replace(job.slurm, **slurm)
    asked = ask(job, ctl.REQUEUE, **about)
    ok, text = answer(job, asked.number)
    assert not ok and why in text
    assert job.judge.phase is Phase.RUNNING and not job.did(do.StopRanks)
    assert not job.judge.history.exclusions.isolated


def test_a_job_whose_state_lies_where_no_requeue_finds_it_is_not_called_something_else() -> None:
    job = Job(can=("ask",), no_requeue="its state has no place").begin()
    asked = ask(job, ctl.REQUEUE)
    assert "its state has no place" in answer(job, asked.number)[1]


def test_a_job_that_is_cancelled_while_slurm_is_asked_ends_as_cancelled() -> None:
    job = running()
    job.silent = {do.AskSlurm}
    job.exits(1, 1)
    job.tell(ev.StepEnded(ExitStatus(1)))
    asked = ask(job, ctl.REQUEUE)
    job.tell(replace(RUNNING, state="CANCELLED"))
    assert answer(job, asked.number) == (False, "the job was cancelled")
    assert job.recorded(rec.Finished)[-1].what == "the job was cancelled"


def test_a_requeue_of_the_scheduling_before_is_not_done_twice() -> None:
    job = requeueing()
    asked = written(job, ctl.REQUEUE)
    job.tell(ev.RequeueEnded(True, "requeued"))
    job = job.again().begin()
    job.tell(ev.ControlAsked(asked))
    assert answer(job, asked.number) == (True, "the job has been requeued since")
    assert job.judge.phase is Phase.RUNNING


# --- stop, at once and later


def test_ranks_that_end_well_within_the_grace_end_the_job_with_their_status() -> None:
    job = running()
    job.silent = {do.StopRanks}
    ask(job, ctl.STOP)
    job.all_exit(0)
    job.tell(*(ev.RankStopped(task.rank, 1, (), 0) for task in job.tasks))
    assert job.status == 0


PROGRAM = ev.ProgramSaid(0, "checkpoint", ("step 100",))


def test_stop_after_the_next_checkpoint_that_the_program_tells_of() -> None:
    job = running()
    job.tell(PROGRAM)
    job.wait(10.0)
    asked = ask(job, ctl.STOP, checkpoints=1)
    assert answer(job, asked.number)[0] and request(job, asked.number).state is State.TAKEN
    job.wait(3600.0)
    assert job.judge.phase is Phase.RUNNING
    job.tell(PROGRAM, replace(PROGRAM, rank=1))
    assert job.judge.phase is Phase.RUNNING, "other ranks may still write"
    job.wait(Settings().checkpoint.settle_s)
    assert job.status == 143
    (seen,) = job.recorded(rec.CheckpointSeen)
    assert (seen.request, seen.sign, seen.where, seen.left) == (1, "program", "ranks 0, 1", 0)


def test_checkpoints_are_counted_and_those_before_a_moment_are_not() -> None:
    job = running()
    job.tell(PROGRAM)
    job.wait(10.0)
    ask(job, ctl.STOP, checkpoints=2, after=job.now.unix + 100.0)
    for _ in range(2):
        job.tell(PROGRAM)
        job.wait(50.0)
    assert job.judge.phase is Phase.RUNNING
    job.wait(50.0)
    job.tell(PROGRAM)
    job.tell(PROGRAM)  # the same rank again: the one before is complete
    assert job.judge.phase is Phase.RUNNING and [seen.left for seen in job.recorded(rec.CheckpointSeen)] == [1]
    job.wait(10.0)
    assert job.status == 143


def test_files_show_a_checkpoint_too_by_a_setting_or_by_the_request() -> None:
    job = Job(settings_with(checkpoint__files="/ckpt/*.pt")).begin()
    ask(job, ctl.STOP, checkpoints=1)
    assert job.did(do.WatchCheckpoints) == [do.WatchCheckpoints(("/ckpt/*.pt",), 5.0)]
    ask(job, ctl.REQUEUE, checkpoints=1, files="/other/*.pt")
    assert job.did(do.WatchCheckpoints)[-1].patterns == ("/ckpt/*.pt", "/other/*.pt")
    job.tell(ev.CheckpointMade("/other/*.pt", "/other/7.pt"))
    assert job.status == 75
    job = job.again().begin()
    assert job.did(do.WatchCheckpoints) == [do.WatchCheckpoints(("/ckpt/*.pt",), 5.0)], (
        "the other one still waits, after the requeue"
    )
    job.tell(ev.CheckpointMade("/ckpt/*.pt", "/ckpt/8.pt"))
    assert job.status == 143


def test_a_moment_is_kept_without_a_checkpoint_and_in_every_phase() -> None:
    job = running()
    asked = ask(job, ctl.STOP, checkpoints=1, until=job.now.unix + 600.0)
    assert "which has said nothing of checkpoints yet" in answer(job, asked.number)[1]
    job.wait(599.0)
    job.silent = {do.HealDevices}
    job.shows(fault())
    assert job.judge.phase is Phase.HEALING
    job.wait(2.0)
    assert job.status == 143


def test_a_moment_that_passes_between_two_schedulings_is_kept_by_the_next() -> None:
    job = running()
    ask(job, ctl.STOP, until=job.now.unix + 60.0)
    job.exits(0, 1)
    job = job.again(gap_s=100.0)
    job.tell(ev.Begun())
    job.wait(1.0)
    assert job.status == 143


def test_what_waits_can_be_undone() -> None:
    job = Job(settings_with(checkpoint__files="/ckpt/*.pt")).begin()
    asked = ask(job, ctl.STOP, checkpoints=1, until=job.now.unix + 60.0)
    undo = ask(job, ctl.UNDO, target=asked.number)
    assert answer(job, undo.number)[0]
    assert job.did(do.WatchCheckpoints)[-1].patterns == ()
    job.tell(ev.CheckpointMade("/ckpt/*.pt", "/ckpt/8.pt"))
    job.wait(600.0)
    assert job.judge.phase is Phase.RUNNING
    again = ask(job, ctl.UNDO, target=asked.number)
    assert answer(job, again.number) == (False, "request 1 is undone already")


def test_a_node_can_be_left_after_the_next_checkpoint() -> None:
    job = Job(REPLACES, **SPARE).begin()
    job.tell(PROGRAM)
    job.wait(10.0)
    asked = ask(job, ctl.EXCLUDE, nodes=("n2",), checkpoints=1)
    assert answer(job, asked.number)[0] and not job.did(do.StopRanks)
    job.tell(PROGRAM)
    job.wait(10.0)
    assert job.did(do.LaunchStep)[-1].layout.nodes == ("n1", "n3")
    assert request(job, asked.number).state is State.DONE


def test_what_is_undone_before_anybody_took_it_is_void() -> None:
    """Between two attempts: both lie in the ledger when the next ftrun begins."""
    job = requeueing()
    stop = written(job, ctl.STOP)
    undo = written(job, ctl.UNDO, target=stop.number)
    job.tell(ev.RequeueEnded(True, "requeued"))
    job = job.again()
    open_ = fold(job.ledger).control.of(State.OPEN)
    assert [each.number for each in open_] == [undo.number]
    job.begin()
    job.tell(*(ev.ControlAsked(each.asked) for each in open_))
    assert job.judge.phase is Phase.RUNNING and answer(job, undo.number)[0]


# --- the ladder


def test_a_held_rung_is_passed_over_and_says_who_holds_it() -> None:
    job = running()
    hold = ask(job, ctl.HOLD, rung="unconditional-requeue")
    job.exits(0, 3)
    assert job.status == 3
    assert "held by you since 2023-11-14" in job.said and f"(request {hold.number})" in job.said
    (decided,) = job.recorded(rec.Decided)
    assert dict(decided.passed)["unconditional-requeue"].startswith("held by you since")


def test_a_hold_survives_a_requeue_and_a_release_ends_it() -> None:
    job = running()
    ask(job, ctl.HOLD, rung="in-place-restart")
    job.exits(0, 1)
    job = job.again().begin()
    job.shows(fault())
    assert job.rungs == ["isolated-requeue"]
    job = job.again().begin()
    ask(job, ctl.RELEASE, rung="in-place-restart")
    job.shows(fault("n1"))
    assert job.rungs == ["in-place-restart"]


def test_root_is_named() -> None:
    job = running()
    asked = replace(written(job, ctl.HOLD, rung="unconditional-requeue"), by="root")
    job.ledger[-1] = asked
    job.tell(ev.ControlAsked(asked))
    job.exits(0, 3)
    assert "held by root since" in job.said


def test_no_more_restarts_lets_the_next_failure_end_the_job_until_they_are_allowed_again() -> None:
    job = running()
    ask(job, ctl.NO_RESTARTS)
    requeue = ask(job, ctl.REQUEUE)
    ok, text = answer(job, requeue.number)
    assert not ok and "forbids restarts; run `ftslurm control 7 allow-restarts` first" in text
    allowed = ask(job, ctl.ALLOW_RESTARTS)
    assert answer(job, allowed.number)[0]
    undo = ask(job, ctl.UNDO, target=allowed.number)
    assert answer(job, undo.number)[0] and job.judge.history.control.no_restarts is not None
    job.shows(fault())
    assert job.judge.phase is Phase.RUNNING, "ranks that still run are left alone: nothing can be done about the fault"
    job.exits(0, 3)
    assert job.status == 3 and "you asked for no more restarts" in job.said


def test_no_more_restarts_holds_for_a_warning_too() -> None:
    job = Job(settings_with(warning__requeue=True)).begin()
    ask(job, ctl.NO_RESTARTS)
    job.tell(ev.SignalSeen(15))
    job.wait(120.0)
    assert job.status is not None and job.status != 75
    assert "the job is not requeued: you asked for no more restarts" in job.said


def test_a_full_disk_ends_nothing() -> None:
    job = running()
    asked = written(job, ctl.HOLD, rung="in-place-restart")
    job.full = True
    job.tell(ev.ControlAsked(asked))
    assert job.judge.phase is Phase.RUNNING


def test_requests_of_old_and_later_versions_are_read_and_passed_over() -> None:
    from ftslurm.ledger.journal import from_line, to_line

    asked = rec.Requested(1.0, 3, "anna", "stop", "h", ("n1",), "r", 2, 3.0, 4.0, "/x", True, 5, 6)
    for record in (asked, rec.RequestAnswered(1.0, "r", 3, True, "t", 1, "n1"), rec.RequestDone(1.0, "r", 3, False, "t", 1),
                   rec.CheckpointSeen(1.0, 2, 3, "file", "/x", 1)):  # fmt: skip
        assert from_line(to_line(record)) == record
    history = fold([rec.RequestAnswered(1.0, "r", 9, True, "t"), rec.RequestDone(1.0, "r", 9, True, "t"),
                    rec.CheckpointSeen(1.0, 2, 9, "file", "/x"), replace(asked, verb="fly")])  # fmt: skip
    assert [request.asked.verb for request in history.control.requests.values()] == ["fly"]
