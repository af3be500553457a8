"""Other nodes, with a Slurm and a runner of commands that are data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.errors import CommandMissing, SlurmRefused
from ftslurm.launchers.python import Python
from ftslurm.model import decisions as do
from ftslurm.model.events import LoansEnded, NodeBorrowed, NodeChecked, NodesReleased
from ftslurm.model.nodes import Near
from ftslurm.model.plain import from_plain, to_plain
from ftslurm.model.settings.tree import Settings
from ftslurm.slurm.client import JobState, JobView
from ftslurm.slurm.retries import NoAnswerYet
from ftslurm.system.commands import CommandResult
from ftslurm.wrapper.controller.effects import Effects
from ftslurm.wrapper.node_check import CheckAnswer, CheckAsked
from ftslurm.wrapper.requeue.fit import plain_env
from ftslurm.wrapper.requeue.lenders import LOOKS_AT_BOOT, Lenders
from tests.fakes.slurm import FakeSlurm
from tests.settings import settings_with

ENV = {
    "PATH": "/bin", "HOME": "/home/u", "SLURM_CONF": "/etc/slurm.conf", "SLURM_JOB_ID": "1", "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_QOS": "long", "SLURM_NTASKS": "4", "FTSLURM_CHANNEL": "1:1:secret:a", "WANDB_API_KEY": "secret",
}  # fmt: skip


class Slurm(FakeSlurm):
    """Views as a test sets them, and refusals to cancel."""

    def __init__(self) -> None:
        super().__init__([f"n{n}" for n in range(1, 6)])
        self.views: dict[int, list[JobView]] = {}  # number -> what each look shows, the last one for good
        self.uncancellable: set[int] = set()

    def job(self, number: int) -> JobView:
        seen = super().job(number)
        told = self.views.get(number, [])
        return (told.pop(0) if len(told) > 1 else told[0]) if told else seen

    def cancel(self, number: int) -> None:
        if number in self.uncancellable:
            raise SlurmRefused("not now")
        super().cancel(number)

    def state_of(self, number: int) -> JobState:
        return super().job(number).state


@dataclass
class World:
    """ours: a job on n1 and n2. answers: first word of a command -> what running it does. ran: what was run, and how."""

    slurm: Slurm = field(default_factory=Slurm)
    answers: dict[str, Callable[[Sequence[str]], CommandResult]] = field(default_factory=dict)
    ran: list[tuple[Sequence[str], float, Mapping[str, object]]] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    waits: list[Callable[[], object]] = field(default_factory=list)  # what happens in each
    exclusive: bool = True

    def __post_init__(self) -> None:
        self.ours = self.slurm.submit(2, exclusive=self.exclusive)
        self.answers["sbatch"] = lambda argv: said(argv, 0, f"{self.slurm.submit(1, name='ftslurm-donor-1')}\n")

    @property
    def lenders(self) -> Lenders:
        if not hasattr(self, "_lenders"):
            python = Python(("/usr/bin/python3",), "/opt/ft slurm")
            self._lenders = Lenders(self.slurm, self.ours, 0, ENV, python, self.run, self.settings, self.sleep)
        return self._lenders

    def sleep(self, seconds: float) -> None:
        if self.waits:
            self.waits.pop(0)()

    def run(self, argv: Sequence[str], timeout_s: float, **how: object) -> CommandResult:
        self.ran.append((argv, timeout_s, how))
        return self.answers[argv[0]](argv)

    def shows(self, number: int, *views: Mapping[str, object]) -> None:
        """What each look at a job finds, in its place."""
        self.slurm.views[number] = [replace(JobView(number, JobState.PENDING, name="ftslurm-donor-1"), **view) for view in views]  # type: ignore[arg-type]


def said(argv: Sequence[str], status: int | None, stdout: str = "", stderr: str = "") -> CommandResult:
    return CommandResult(tuple(argv), status, stdout, stderr)


PENDING, RUNNING = {"state": JobState.PENDING, "reason": "Resources"}, {"state": JobState.RUNNING, "nodes": ("n3",)}


# --- on loan


def excluded(world: World) -> list[str]:
    """By each donor job."""
    return [word for argv, _, _ in world.ran if "--parsable" in argv for word in argv if word.startswith("--exclude=")]


NEAR = Near((frozenset({"n1", "n4"}), frozenset({"n1", "n3", "n4"})))


def test_a_donor_job_asks_first_for_the_nodes_that_are_near() -> None:
    world = World()
    world.shows(2, {**RUNNING, "nodes": ("n4",)})
    assert world.lenders.borrow(1, ["n1", "n2"], 60.0, near=NEAR) == NodeBorrowed(1, "n4", 2)
    assert excluded(world) == ["--exclude=n[1-3,5]"]


def test_where_nothing_near_is_had_at_once_it_may_be_farther_away() -> None:
    world = World()
    for job in (2, 3):
        world.shows(job, PENDING)
    world.shows(4, RUNNING)
    assert world.lenders.borrow(1, ["n1", "n2"], 0.1, near=NEAR) == NodeBorrowed(1, "n3", 4)
    assert excluded(world) == ["--exclude=n[1-3,5]", "--exclude=n[1-2,5]", "--exclude=n[1-2]"]
    assert world.slurm.state_of(2) is world.slurm.state_of(3) is JobState.CANCELLED


def test_groups_without_an_idle_node_are_not_tried() -> None:
    world = World()
    there = [replace(node, words="IDLE" if node.name == "n5" else "ALLOCATED") for node in world.slurm.nodes()]
    world.slurm.nodes = lambda: tuple(there)  # type: ignore[method-assign]
    world.shows(2, RUNNING)
    assert world.lenders.borrow(1, ["n1", "n2"], 60.0, near=NEAR) == NodeBorrowed(1, "n3", 2)
    assert excluded(world) == ["--exclude=n[1-2]"]


@pytest.mark.parametrize("fits", [True, False])
def test_a_node_of_another_block_is_used_where_slurm_would_place_the_job_so(fits: bool) -> None:
    world = World()
    submit = world.answers["sbatch"]
    refuses = (
        (0, "", "sbatch: Job 9 to start")
        if fits
        else (1, "", "allocation failure: Requested node configuration is not available")
    )
    world.answers["sbatch"] = lambda argv: said(argv, *refuses) if "--test-only" in argv else submit(argv)
    world.answers["scontrol"] = lambda argv: said(argv, 1)
    world.shows(2, RUNNING)
    answer = world.lenders.borrow(1, ["n1", "n2"], 60.0, near=Near((frozenset({"n1", "n2"}),), frozenset({"n2"})))
    assert "--exclude=n[1,4-5]" in next(argv for argv, _, _ in world.ran if "--test-only" in argv)
    if fits:
        assert answer == NodeBorrowed(1, "n3", 2)
    else:
        assert answer == NodeBorrowed(1, "", 0, "Slurm would not place n3 beside n2 (topology)")
        assert world.slurm.state_of(2) is JobState.CANCELLED


def test_a_donor_that_runs_lends_its_node() -> None:
    world = World()
    world.shows(2, PENDING, PENDING, RUNNING)
    assert world.lenders.borrow(1, ["n1", "n2"], 60.0) == NodeBorrowed(1, "n3", 2)
    assert world.slurm.state_of(2) is JobState.RUNNING, "it is the judge's to end"
    (argv, _, how) = world.ran[0]
    assert argv[0] == "sbatch" and "--exclude=n[1-2]" in argv and "--nodes=1" in argv and "--no-requeue" in argv
    assert "--account=physics" in argv and "--qos=long" in argv and "--partition=main" in argv
    lines = str(how["stdin"]).splitlines()
    assert lines[0] == "#!/bin/sh" and shlex.split(lines[1])[-3:] == [str(world.ours), "0", "60"]


BOOTING = {**RUNNING, "configuring": True}


def test_a_node_that_boots_is_waited_for() -> None:
    """Slurm shows such a job as CONFIGURING, and a step there would be given up on."""
    world = World()
    world.shows(2, PENDING, BOOTING, BOOTING, RUNNING)
    told: list[tuple[int, str]] = []
    assert world.lenders.borrow(1, ["n1"], 60.0, lambda *words: told.append(words)) == NodeBorrowed(1, "n3", 2)
    assert told == [(2, "")], "a Prolog takes as long"


def test_a_node_that_boots_for_long_is_told_once() -> None:
    world = World()
    world.shows(2, PENDING, *[BOOTING] * 2 * LOOKS_AT_BOOT, RUNNING)
    told: list[tuple[int, str]] = []
    assert world.lenders.borrow(1, ["n1"], 60.0, lambda *words: told.append(words)) == NodeBorrowed(1, "n3", 2)
    assert told == [(2, ""), (2, "n3")]


def test_a_node_that_boots_for_too_long_is_told_as_that() -> None:
    world = World()
    world.shows(2, BOOTING)
    answer = world.lenders.borrow(1, ["n1"], 0.0)
    assert (answer.node, answer.why) == ("", "n3 of donor job 2 still booted after 0 s (nodes.replacement_wait)")
    assert world.slurm.state_of(2) is JobState.CANCELLED


def test_a_node_that_slurm_no_longer_waits_for_is_told_as_that() -> None:
    """Seen on 22.05 after ResumeTimeout."""
    world = World()
    world.shows(2, BOOTING, {"state": JobState.NODE_FAIL, "nodes": ("n3",), "reason": "NodeDown"})
    assert world.lenders.borrow(1, ["n1"], 60.0).why == "n3 of donor job 2 did not come up: NODE_FAIL: NodeDown"


@pytest.mark.parametrize(
    "reason",
    [
        "QOSMaxJobsPerUserLimit",
        "AssocMaxNodePerJobLimit",
        "AssociationMaxJobsLimit",
        "AssocGrpJobsLimit",
        "QOSGrpNodeLimit",
        "AssocGrpGRES",
    ],
)
def test_a_limit_that_our_own_job_fills_is_not_waited_for(reason: str) -> None:
    world = World()
    world.shows(2, {"state": JobState.PENDING, "reason": reason})
    answer = world.lenders.borrow(1, ["n1"], 1e6)
    assert answer.why == f"donor job 2 could not start beside this job: {reason}"


@pytest.mark.parametrize(("needs", "asked"), [
    ({}, set()),
    ({"min_cpus": 1}, set()),
    ({"gres": "npu:8", "min_cpus": 64, "features": "a100"}, {"--gres=npu:8", "--mincpus=64", "--constraint=a100"}),
])  # fmt: skip
def test_a_donor_asks_for_what_our_own_nodes_have(needs: dict[str, Any], asked: set[str]) -> None:
    world = World()
    world.slurm.needs(world.ours, **needs)
    world.lenders.borrow(1, [], 60.0)
    words = {word for word in world.ran[0][0] if word.startswith(("--gres", "--mincpus", "--constraint"))}
    assert words == asked


@pytest.mark.parametrize(("gres", "env", "asked"), [
    ("", {"SLURM_GPUS_ON_NODE": "2", "SLURM_GPUS_PER_TASK": "a100:1"}, "gpu:a100:2"),
    ("", {"SLURM_GPUS_ON_NODE": "3", "SLURM_GPUS": "4"}, "gpu:3"),
    ("", {"SLURM_GPUS_ON_NODE": "3", "SLURM_GPUS": "a100:2,v100:4"}, "gpu:3"),
    ("nic:1", {"SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS": "16"}, "nic:1,gpu:8"),
    ("gpu:a100:3", {"SLURM_GPUS_ON_NODE": "3", "SLURM_GPUS_PER_NODE": "a100:3"}, "gpu:a100:3"),  # --gres, --gpus-per-node
    ("gpu", {"SLURM_GPUS_ON_NODE": "1"}, "gpu"),
    ("", {"SLURM_GPUS_ON_NODE": "0"}, ""),
    ("", {"SLURM_GPUS_ON_NODE": "8;id"}, ""),
])  # fmt: skip
def test_a_donor_asks_for_gpus_however_the_job_did(gres: str, env: dict[str, str], asked: str) -> None:
    """The variables as seen in batch scripts of 22.05, on nodes with `Gres=gpu:a100:4`."""
    world = World()
    world.slurm.needs(world.ours, gres=gres)
    replace(world.lenders, env={**world.lenders.env, **env}).borrow(1, [], 60.0)
    assert [word for word in world.ran[0][0] if word.startswith("--gres")] == ([f"--gres={asked}"] if asked else [])


def test_a_donor_that_nobody_wants_any_more_when_it_is_submitted_is_ended() -> None:
    world = World()
    submit = world.answers["sbatch"]

    def slowly(argv: Sequence[str]) -> CommandResult:
        world.lenders.call_off()
        return submit(argv)

    world.answers["sbatch"] = slowly
    assert world.lenders.borrow(1, [], 60.0) == NodeBorrowed(1, "", 0, "it is no longer needed")
    assert world.slurm.state_of(2) is JobState.CANCELLED


@pytest.mark.parametrize(("status", "stdout", "found"), [(0, "12\n13\n", (12, 13)), (0, "", ()), (1, "12", ()), (None, "12", ())])
def test_donors_are_found_by_their_name(status: int | None, stdout: str, found: tuple[int, ...]) -> None:
    world = World()
    world.answers["squeue"] = lambda argv: said(argv, status, stdout)
    assert world.lenders.submitted() == found
    assert "--name=ftslurm-donor-1" in world.ran[0][0] and "--me" in world.ran[0][0]


def test_no_secret_goes_to_slurm_with_a_donor() -> None:
    world = World()
    world.lenders.borrow(1, [], 60.0)
    (argv, _, how) = world.ran[0]
    assert how["env"] == plain_env(ENV) == {name: ENV[name] for name in ("PATH", "HOME", "SLURM_CONF")}
    assert "secret" not in f"{argv} {how['stdin']}"


def test_the_users_further_options_stand_behind_ours_and_win() -> None:
    world = World(settings=settings_with(nodes__donor_options=("--partition=debug", "--time=9")))
    world.lenders.borrow(1, [], 60.0)
    assert world.ran[0][0][-3:-1] == ("--partition=debug", "--time=9")


@pytest.mark.parametrize(("status", "stdout", "stderr", "why"), [
    (1, "", "sbatch: error: invalid partition", "invalid partition"),
    (None, "", "", "no answer in time"),
    (0, "Submitted", "", "refused: Submitted"),
])  # fmt: skip
def test_a_donor_that_is_refused_is_no_node_and_says_why(status: int | None, stdout: str, stderr: str, why: str) -> None:
    world = World()
    world.answers["sbatch"] = lambda argv: said(argv, status, stdout, stderr)
    answer = world.lenders.borrow(1, [], 60.0)
    assert (answer.node, answer.job) == ("", 0) and why in answer.why


def test_where_there_is_no_sbatch_there_is_no_node() -> None:
    world = World()

    def missing(argv: Sequence[str]) -> CommandResult:
        raise CommandMissing("`sbatch` cannot be run", hint="")

    world.answers["sbatch"] = missing
    assert world.lenders.borrow(1, [], 60.0) == NodeBorrowed(1, "", 0, "`sbatch` cannot be run")


@pytest.mark.parametrize("reason", ["BadConstraints", "PartitionTimeLimit", "AccountNotAllowed"])
def test_a_donor_that_will_never_run_is_not_waited_for(reason: str) -> None:
    world = World()
    world.shows(2, PENDING, PENDING | {"reason": reason})
    answer = world.lenders.borrow(1, [], 1e9)
    assert not answer.node and reason in answer.why and world.slurm.state_of(2) is JobState.CANCELLED


def test_a_donor_that_does_not_run_in_time_is_ended() -> None:
    world = World()
    world.shows(2, PENDING)
    answer = world.lenders.borrow(1, [], 0.05)
    assert not answer.node and "PENDING after 0.05 s: Resources" in answer.why
    assert world.slurm.state_of(2) is JobState.CANCELLED


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED, JobState.COMPLETED])
def test_a_donor_that_has_ended_lends_nothing(state: JobState) -> None:
    world = World()
    world.shows(2, PENDING, {"state": state, "nodes": ("n3",)})
    assert not world.lenders.borrow(1, [], 1e9).node


def test_a_donor_of_which_slurm_says_nothing_more_is_ended_when_it_does() -> None:
    world = World()
    world.slurm.views[2] = []
    submit = world.answers["sbatch"]

    def submit_and_go(argv: Sequence[str]) -> CommandResult:
        done = submit(argv)
        world.slurm.away = True
        return done

    world.answers["sbatch"] = submit_and_go
    answer = world.lenders.borrow(1, [], 60.0)
    assert not answer.node and "does not answer" in answer.why
    world.slurm.away = False
    assert world.slurm.state_of(2) is JobState.RUNNING
    world.lenders.call_off()
    assert world.slurm.state_of(2) is JobState.CANCELLED


def test_a_donor_in_waiting_is_asked_about_again_when_slurmctld_is_back() -> None:
    world = World()
    world.shows(2, PENDING, RUNNING)
    look, silences = world.slurm.job, [True]

    def job(number: int) -> JobView:
        if number == 2 and silences.pop() if silences else False:
            raise NoAnswerYet("nobody listens")
        return look(number)

    world.slurm.job = job  # type: ignore[method-assign]
    assert world.lenders.borrow(1, [], 60.0) == NodeBorrowed(1, "n3", 2)


def test_that_slurmctld_was_away_all_the_time_is_said() -> None:
    world = World()

    def nobody(argv: Sequence[str]) -> CommandResult:
        raise NoAnswerYet("nobody listens")

    world.answers["sbatch"] = nobody
    assert world.lenders.borrow(1, [], 60.0) == NodeBorrowed(1, "", 0, "nobody listens", away=True)


@pytest.mark.parametrize(("view", "over"), [
    (RUNNING, False), (PENDING, False), (RUNNING | {"completing": True}, True), ({"state": JobState.CANCELLED}, True),
    ({"state": JobState.TIMEOUT}, True), ({"state": JobState.PREEMPTED}, True), ({"state": JobState.UNKNOWN}, False),
])  # fmt: skip
def test_donors_that_somebody_else_has_ended(view: Mapping[str, object], over: bool) -> None:
    world = World()
    world.shows(2, RUNNING, view)
    assert world.lenders.borrow(1, [], 60.0).job == 2
    assert world.lenders.ended() == ({2} if over else set())
    world.slurm.away = True
    assert not world.lenders.ended()


def test_a_donor_that_slurm_knows_no_more_has_ended() -> None:
    world = World()
    world.shows(2, RUNNING)
    assert world.lenders.borrow(1, [], 60.0).job == 2
    world.slurm.views.clear()
    world.slurm._jobs.pop(2)
    assert world.lenders.ended() == {2}


def test_at_the_end_every_donor_goes_whatever_became_of_it_and_none_twice() -> None:
    world = World()
    for slot in range(3):
        world.shows(2 + slot, RUNNING)
        assert world.lenders.borrow(slot, [], 60.0).job == 2 + slot
    world.slurm.uncancellable = {3}
    assert world.lenders.end_loans([2, 3]) == LoansEnded((3,))
    assert [world.slurm.state_of(number) is JobState.CANCELLED for number in (2, 3, 4)] == [True, False, False]
    world.slurm.uncancellable = set()
    world.lenders.call_off()
    assert all(world.slurm.state_of(number) is JobState.CANCELLED for number in (2, 3, 4))
    asked = len(world.slurm.requests)
    world.lenders.call_off()
    assert len(world.slurm.requests) == asked


def test_a_donor_that_could_not_be_ended_is_named_and_ended_when_slurmctld_is_back() -> None:
    world = World()
    submit = world.answers["sbatch"]

    def submit_and_go(argv: Sequence[str]) -> CommandResult:
        done = submit(argv)
        world.slurm.away = True
        return done

    world.answers["sbatch"] = submit_and_go
    assert world.lenders.borrow(1, [], 60.0).job == 2

    world.waits = [lambda: None, lambda: None, lambda: setattr(world.slurm, "away", False)]
    assert world.lenders.end_loans([2]) == LoansEnded()
    assert world.slurm.state_of(2) is JobState.CANCELLED and not world.waits
    asked = len(world.slurm.requests)
    world.lenders.call_off()
    assert len(world.slurm.requests) == asked


@pytest.mark.parametrize("name", ["job", "ftslurm-donor-11", ""])
def test_a_number_that_is_another_jobs_by_now_is_left_alone(name: str) -> None:
    world = World()
    world.slurm.submit(1, name=name)
    world.slurm.away = True
    world.waits = [lambda: setattr(world.slurm, "away", False)]
    assert world.lenders.end_loans([2]) == LoansEnded()
    world.lenders.call_off()
    assert world.slurm.state_of(2) is JobState.RUNNING


def test_a_donor_that_slurm_has_forgotten_is_asked_for_no_more() -> None:
    world = World()
    world.slurm.away = True
    world.waits = [lambda: setattr(world.slurm, "away", False)]
    assert world.lenders.end_loans([77]) == LoansEnded()


def test_the_name_of_a_donor_is_ours_whatever_the_user_adds_as_later_only_that_tells_whose_it_is() -> None:
    world = World(settings=settings_with(nodes__donor_options=("--job-name=mine", "-J other")))
    world.lenders.borrow(1, [], 60.0)
    (argv,) = [argv for argv, _, _ in world.ran if argv[0] == "sbatch"]
    assert argv[-3:] == ("--job-name=mine", "-J other", "--job-name=ftslurm-donor-1")


def test_when_ftrun_ends_nobody_goes_on_asking() -> None:
    world = World()
    world.slurm.away = True
    world.waits = [lambda: None, lambda: world.lenders.call_off()]
    assert world.lenders.end_loans([2]) == LoansEnded((2,))
    assert len(world.slurm.requests) <= 4


def test_the_loop_does_not_wait_for_donors_to_end() -> None:
    asked: list[Callable[[], object]] = []
    ended: list[Sequence[int]] = []
    sources = SimpleNamespace(background=asked.append)
    scheduler = SimpleNamespace(end_loans=ended.append)
    effects = Effects(sources, None, scheduler, None, None, None, None, None)  # type: ignore[arg-type]
    effects.carry_out(do.EndLoans((42,)))
    assert asked and not ended
    asked[0]()
    assert ended == [(42,)]


# --- is it fit


def checks(world: World, done: CommandResult) -> NodeChecked:
    world.answers["srun"] = lambda argv: done
    return world.lenders.check("n3", 0, 30.0)


@pytest.mark.parametrize(("good", "why"), [(True, "device"), (False, "device: HBM"), (None, "command: timeout")])
def test_what_the_check_says_is_passed_on(good: bool | None, why: str) -> None:
    text = "some banner of the site's\n" + CheckAnswer(good, why, {"ascend": 8}).text() + "\n"
    assert checks(World(), said((), 0, text)) == NodeChecked("n3", good, why, {"ascend": 8})


@pytest.mark.parametrize(("done", "why"), [
    (said((), None), "no step came up there within 60 s"),
    (said((), 1, "", "srun: error: boo\nsrun: error: Unable to create step: Node is down\n"), "Node is down"),
    (said((), 137), "status 137"),
    (said((), 0, ""), "no answer"),
    (said((), 0, "{torn"), "it could not be checked"),
    (said((), 0, '{"good": "yes", "why": ""}'), "no answer"),
    (said((), 0, '{"good": true, "why": 3}'), "no answer"),
    (said((), 0, '{"why": "x"}'), "no answer"),
    (said((), 0, '["good"]'), "no answer"),
    (said((), 0, '{"good": true, "why": ""}'), "no answer"),
    (said((), 0, '{"good": true, "why": "", "there": {"ascend": "8"}}'), "no answer"),
])  # fmt: skip
def test_whatever_goes_wrong_nothing_is_known_of_the_node(done: CommandResult, why: str) -> None:
    answer = checks(World(), done)
    assert answer.good is None and why in answer.why


def test_a_slurmctld_that_has_just_come_up_is_asked_for_the_step_once_more() -> None:
    refused = "srun: error: Unable to create step for job 7: Memory required by task is not available"
    world = World()
    answers = [said((), 1, "", refused), said((), 1, "", refused), said((), 0, CheckAnswer(True, "fine", {}).text())]
    world.answers["srun"] = lambda argv: answers.pop(0)
    assert world.lenders.check("n3", 0, 30.0) == NodeChecked("n3", True, "fine", {})
    answers += [said((), 1, "", refused)] * 4
    found = world.lenders.check("n3", 0, 30.0)
    assert found.good is None and refused in found.why and len(answers) == 1


def test_a_check_on_a_lent_node_is_a_step_of_its_lender() -> None:
    world = World(settings=settings_with(nodes__health_command=("fit", "a b")))
    world.answers["srun"] = lambda argv: said(argv, 0, CheckAnswer(True, "", {}).text())
    world.lenders.check("n3", 77, 30.0)
    argv, limit_s, how = world.ran[0]
    env = how["env"]
    assert isinstance(env, dict) and "SLURM_JOB_ID" not in env and "SLURM_NTASKS" not in env and env["SLURM_CONF"]
    assert argv[1] == "--jobid=77" and "--overlap" in argv and "--nodelist=n3" in argv and limit_s > 30.0
    assert json.loads(argv[-1]) == {"limit_s": 30.0, "command": ["fit", "a b"]}
    world.lenders.check("n3", 0, 30.0)
    assert "--jobid" not in " ".join(world.ran[1][0]) and world.ran[1][2]["env"]["SLURM_JOB_ID"] == "1"  # type: ignore[index]


# --- given back


def test_nodes_are_given_back_by_naming_the_rest() -> None:
    world = World(exclusive=False)
    assert world.lenders.release(["n2"]) == NodesReleased(("n2",), True)
    assert world.slurm.job(world.ours).nodes == ("n1",)


def test_nodes_that_slurm_has_taken_already_are_not_given_back_again() -> None:
    world = World(exclusive=False)
    assert world.lenders.release(["n4"]) == NodesReleased(("n4",), True, "Slurm has taken them already") and not world.ran


def test_an_exclusive_job_gives_a_dead_node_back_as_well() -> None:
    """Slurm counts wrongly then, and would end the job if it stayed."""
    world = World(exclusive=True)
    assert world.lenders.release(["n2"]).ok
    assert world.slurm.job(world.ours).nodes == ("n1",)


def test_a_refusal_and_a_silence_are_told() -> None:
    world = World(exclusive=False)
    world.slurm.cut_out(world.ours, "n1")  # Slurm accepts no change then
    refused = world.lenders.release(["n2"])
    assert not refused.ok and "not available right now" in refused.why
    world.slurm.away = True
    assert not world.lenders.release(["n2"]).ok


def test_what_is_asked_of_a_node_and_what_it_answers_are_lines_of_json() -> None:
    question = CheckAsked(12.5, ("sh", "-c", "echo 'ä'"), ("/a b",))
    assert from_plain(CheckAsked, json.loads(json.dumps(to_plain(question)))) == question
    assert json.loads(CheckAnswer(None, "x", {"ascend": 8}).text()) == {"good": None, "why": "x", "there": {"ascend": 8}}
