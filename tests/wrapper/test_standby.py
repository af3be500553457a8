"""An agent after its controller has died: what it looks at and what it does, with a Slurm in memory and a real ledger."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ftslurm.launchers.python import own_python
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.shared_file import NodeMemory
from ftslurm.model import record as rec
from ftslurm.model.messages import HandoverPlan
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.lease import longest_s
from ftslurm.slurm.client import JobState, NodeState
from ftslurm.system.commands import CommandResult
from ftslurm.system.files import private_folder
from ftslurm.wrapper.agent.standby import StandbyController
from ftslurm.wrapper.node_check import CheckAnswer, read_check
from ftslurm.wrapper.shim.lease import boot_s
from tests.fakes.slurm import FakeSlurm
from tests.settings import settings_with

pytestmark = pytest.mark.timeout(60)
REPOSITORY = Path(__file__).parents[2]

LONG_AGO_S = 200.0  # everybody's turn has come
SETTINGS = settings_with(nodes__probe_timeout_s=0.5, nodes__silence_s=0.2)


@contextmanager
def slurmd() -> Iterator[int]:
    """A port at which somebody answers as slurmd does: it closes at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)


def nobody() -> int:
    """A port at which nobody is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@dataclass
class Job:
    """A job on n1 to n3 whose controller was on n1, and has died. ports: node -> where its slurmd would be. script: does what a
    step on n1 looks for run there; None: no step comes up. ends: the script does so while it is looked for. nodes: with ranks.
    """

    folder: Path
    settings: Settings = SETTINGS
    slurm: FakeSlurm = field(default_factory=lambda: FakeSlurm(["n1", "n2", "n3", "n4"]))
    script: bool | None = True
    ends: bool = False
    nodes: str = "n[1-3]"
    looks: list[Sequence[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.number = self.slurm.submit(3)
        self.slurm.job(self.number)
        for node in ("n1", "n2", "n3"):
            self.at(node, nobody())
        self.journal = Journal(private_folder(self.folder / "state/jobs") / "c.1.jsonl")
        self.journal.append([
            rec.RunBegan(1.0, "r1", "1", "c", 0, "k", "train", "n[1-3]", batch_node="n1"),
            rec.AttemptBegan(2.0, "r1", 1, 0, "k", 1, self.nodes, 3),
        ])  # fmt: skip

    def at(self, node: str, port: int) -> None:
        self.slurm._nodes[node] = replace(self.slurm._nodes[node], address="127.0.0.1", port=port)

    def standby(self, node: str, silent_s: float = LONG_AGO_S, ending: bool = False) -> StandbyController:
        plan = HandoverPlan(str(self.journal.path), self.number, 0, "r1", "1", "c", "n1", ("n1", "n2", "n3"), self.settings, 4711)
        return StandbyController(plan, node, boot_s() - silent_s, self.slurm, self.run, ending)

    def run(self, argv: Sequence[str], timeout_s: float, env: dict[str, str], stdin: str = "") -> CommandResult:
        if argv[0] in ("sbatch", "scontrol"):  # does the job fit without the node? Not told
            return CommandResult(tuple(argv), 1, "", "sbatch: error: Unable to contact slurm controller\n")
        self.looks.append(argv)
        if self.ends:
            self.slurm.cancel(self.number)
        if self.script is None:
            return CommandResult(tuple(argv), 1, "", "srun: error: Unable to create step\n")
        return CommandResult(tuple(argv), 0, CheckAnswer(self.script, "the script", {}).text() + "\n", "")

    def written(self, *kinds: type) -> list[Any]:
        return [record for record in Journal(self.journal.path).read().records if isinstance(record, kinds)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_it_requeues_the_job_without_the_dead_node_and_closes_the_run(job: Job) -> None:
    program = job.folder / "tell"
    program.write_text(f"#!/bin/sh\ncat >>{job.folder}/told\n")
    program.chmod(0o700)
    (job.folder / "state/notify.yaml").write_text(f"me: [{program}]\n")
    (job.folder / "state/notify.yaml").chmod(0o600)
    asked_at = job.slurm.clock()
    assert "without n1" in job.standby("n2").run()
    view = job.slurm.job(job.number)
    assert (view.restarts, view.excluded, view.held) == (1, {"n1"}, False)
    assert asked_at < view.start_time < asked_at + 10, "behind the clean-up, which was watched"
    (decided,) = job.written(rec.Decided)
    assert decided.rung == "isolated-requeue" and "Connection refused" in decided.isolate["n1"]
    (done,), (finished,) = job.written(rec.CarriedOut), job.written(rec.Finished)
    assert done.ok and (finished.run, finished.what) == ("r1", "requeued")
    assert [left.node for left in NodeMemory(job.folder / "state").read()] == ["n1"]
    told = (job.folder / "told").read_text()
    assert told.startswith("job 1 is requeued without n1") and "n2 took over from n1" in told


def test_whoever_was_asked_to_end_looks_at_once(job: Job) -> None:
    job.settings = settings_with(job.settings, nodes__silence_s=60.0)
    job.slurm.cancel(job.number)
    began = time.monotonic()
    job.standby("n2", silent_s=1.0, ending=True).run()
    assert time.monotonic() - began < 30.0 and not job.written(rec.Decided)


def test_the_next_one_finds_it_done(job: Job) -> None:
    job.standby("n2").run()
    assert "ledger" in job.standby("n3").run()
    assert len(job.written(rec.Decided)) == 1 and job.slurm.job(job.number).restarts == 1


def test_a_batch_node_that_lives_is_left_to_its_script_at_once(job: Job) -> None:
    with slurmd() as port:
        job.at("n1", port)
        assert "n1 lives" in job.standby("n2", silent_s=1.0).run()
    assert not job.written(rec.Decided) and job.slurm.job(job.number).restarts == 0
    (look,) = job.looks
    assert "--nodelist=n1" in look and "--overlap" in look and look[-1] == "4711"


def test_a_batch_node_that_is_back_without_its_script_is_as_good_as_dead(job: Job) -> None:
    job.script = False
    with slurmd() as port:
        job.at("n1", port)
        assert "without n1" in job.standby("n2").run()
    (decided,) = job.written(rec.Decided)
    assert decided.rung == "isolated-requeue" and "answers, but the script" in decided.isolate["n1"]


def test_and_where_no_rung_is_left_nobody_waits_for_slurm_to_notice(tmp_path: Path) -> None:
    job = Job(tmp_path, settings_with(SETTINGS, isolated_requeue__enabled=False), script=False)
    with slurmd() as port:
        job.at("n1", port)
        assert "isolated-requeue: switched off" in job.standby("n2").run()
    assert job.slurm.job(job.number).state is JobState.CANCELLED


def test_where_nobody_can_look_for_the_script_nothing_is_decided(job: Job) -> None:
    job.script = None
    with slurmd() as port:
        job.at("n1", port)
        known = job.standby("n2")._look()
    assert known.batch_node is None


def test_a_script_that_ends_by_itself_meanwhile_is_no_reason_to_requeue(job: Job) -> None:
    job.script, job.ends = False, True
    with slurmd() as port:
        job.at("n1", port)
        assert "has ended" in job.standby("n2").run()
    assert not job.written(rec.Decided)


def test_a_batch_node_that_slurm_has_taken_from_the_job_is_not_looked_at(job: Job) -> None:
    job.slurm.cut_out(job.number, "n1")
    with slurmd() as port:
        job.at("n1", port)
        job.standby("n2").run()
    assert job.written(rec.Decided) and not job.looks


# --- what that step looks for

# A job of this process alone: others may look for theirs at the same time.
ON_N1 = {"SLURM_JOB_ID": f"77{os.getpid()}", "SLURMD_NODENAME": "n1", "SLURM_CLUSTER_NAME": "c", "SLURM_CONF": "/etc/slurm.conf"}


def looked_for(script: int = 4711, **other: str) -> bool | None:
    """In a step, while a process with those variables besides runs; empty ones it lacks."""
    theirs = {name: value for name, value in {**ON_N1, "SLURM_TASK_PID": "4711", **other}.items() if value}
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], **theirs}) as process:
        try:
            argv = own_python().module_argv("ftslurm.wrapper.script_look", str(script))
            done = subprocess.run(
                argv, env={**ON_N1, "SLURM_TASK_PID": "1234"}, capture_output=True, text=True, check=True, timeout=120
            )
            return read_check(done.stdout).good
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("other", "lives"),
    [
        ({}, True),
        ({"SLURM_CLUSTER_NAME": ""}, True),
        ({"SLURM_STEP_ID": "0"}, True),  # the job was submitted from within a step of another
        ({"SLURM_TASK_PID": "4712"}, False),  # a task of a step
        ({"SLURM_TASK_PID": ""}, False),
        ({"SLURM_JOB_ID": f"78{os.getpid()}"}, False),
        ({"SLURM_JOB_ID": ""}, False),
        ({"SLURMD_NODENAME": "n2"}, False),
        ({"SLURM_CONF": "/other/slurm.conf"}, False),
    ],
)
def test_the_script_is_what_has_its_job_s_variables_and_none_of_a_step(other: dict[str, str], lives: bool) -> None:
    assert looked_for(**other) is lives


def test_where_its_pid_is_not_known_nothing_is_said() -> None:
    assert looked_for(script=0) is None


def test_a_slurmd_that_does_not_read_is_no_sign_of_life(job: Job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        job.at("n1", frozen.getsockname()[1])
        assert "without n1" in job.standby("n2").run()


def test_a_job_that_slurm_has_requeued_itself_is_left_alone(job: Job) -> None:
    job.slurm.requeue_held(job.number)
    assert "anew" in job.standby("n2").run()
    assert not job.written(rec.Decided)


def test_an_open_requeue_is_carried_out_as_it_was_decided(job: Job) -> None:
    """The controller had decided it, and did not live to do it."""
    decided = rec.Decided(3.0, "r1-1", 1, "isolated-requeue", "node", "n3 is dead", exclude=("n3",), cost="max_restarts")
    job.journal.append([decided])
    assert "without n3" in job.standby("n2").run()
    assert job.written(rec.Decided) == [decided] and job.slurm.job(job.number).excluded == {"n3"}


def test_an_end_that_was_decided_is_carried_out_and_the_job_not_requeued(job: Job) -> None:
    """The controller had judged that nothing helps, and did not live to leave the script with that status."""
    decided = rec.Decided(
        3.0, "r1-1", 1, "fail", "crash", "the fault is in the program", (("unconditional-requeue", "spent"),), status=7
    )
    job.journal.append([decided])
    assert "unconditional-requeue: spent" in job.standby("n2").run()
    assert job.written(rec.Decided) == [decided] and job.slurm.job(job.number).state is JobState.CANCELLED
    (finished,) = job.written(rec.Finished)
    assert (finished.run, finished.status) == ("r1", 7)


def test_a_node_without_an_agent_holds_nobody_up(tmp_path: Path) -> None:
    """n2 is a spare, and lives."""
    job = Job(tmp_path, nodes="n[1,3]")
    with slurmd() as port:
        job.at("n2", port)
        assert "without n1" in job.standby("n3", silent_s=longest_s(SETTINGS) + 1.0).run()


def test_where_slurm_takes_no_changes_any_more_it_is_requeued_as_it_is(job: Job) -> None:
    """It has noticed, and cut the node out. A hold could not be taken back."""
    job.slurm.set_node("n1", "DOWN")
    job.slurm.cut_out(job.number, "n1")
    assert "own delay" in job.standby("n2").run()
    view = job.slurm.job(job.number)
    assert (view.state, view.restarts, view.held) == (JobState.PENDING, 1, False) or view.state is JobState.RUNNING
    (decided,), (done,) = job.written(rec.Decided), job.written(rec.CarriedOut)
    assert list(decided.isolate) == ["n1"] and done.ok


def test_what_nothing_can_help_is_ended_once_slurm_has_noticed(tmp_path: Path) -> None:
    job = Job(tmp_path, settings_with(SETTINGS, isolated_requeue__enabled=False))
    job.slurm.set_node("n1", "DOWN+NOT_RESPONDING")
    assert "isolated-requeue: switched off" in job.standby("n2").run()
    assert job.slurm.job(job.number).state is JobState.CANCELLED
    (finished,) = job.written(rec.Finished)
    assert finished.status == 1 and "the batch node n1 is dead" in finished.what


def test_nobody_decides_twice_however_many_try_at_once(job: Job) -> None:
    """Each has read the ledger before any has written."""
    standbys = [job.standby(node) for node in ("n2", "n3")]
    for standby in standbys:
        standby._look()
        standby._journal.read()
    assert standbys[0]._take_over() and not standbys[1]._take_over()
    assert len(job.written(rec.Decided)) == 1 and job.slurm.job(job.number).restarts == 1


def test_one_on_a_node_that_was_replaced_lets_the_job_run(job: Job) -> None:
    """Only the way between it and the batch node is broken."""
    job.journal.append(
        [
            rec.SlotsChanged(3.0, "r1", 0, ("n1", "n4", "n3"), {"1": "n4"}),
            rec.AttemptBegan(4.0, "r1", 2, 0, "k", 2, "n[1,3-4]", 3),
        ]
    )
    assert "without this node" in job.standby("n2").run()
    assert not job.written(rec.Decided) and job.slurm.job(job.number).restarts == 0


def test_what_the_owner_holds_it_knows_though_nobody_has_taken_the_request(job: Job) -> None:
    """And a request is no sign of life of the ftrun that has died."""
    standby = job.standby("n2")
    standby._ledger()
    heard_at = standby._heard_at
    job.journal.append([rec.Requested(3.0, 1, "anna", "hold", rung="isolated-requeue")])
    standby._ledger()
    assert standby._heard_at == heard_at
    standby = job.standby("n2")
    job.slurm._nodes["n1"] = replace(job.slurm._nodes["n1"], state=NodeState.BAD, words="DOWN")
    standby.run()
    (answer,) = job.written(rec.RequestAnswered)
    assert answer.ok and answer.node == "n2"
    (decided,) = job.written(rec.Decided)
    assert dict(decided.passed)["isolated-requeue"].startswith("held by you since")


def test_a_job_that_its_owner_wants_stopped_is_not_requeued(job: Job) -> None:
    job.journal.append([rec.Requested(3.0, 1, "anna", "stop")])
    job.slurm._nodes["n1"] = replace(job.slurm._nodes["n1"], state=NodeState.BAD, words="DOWN")
    job.standby("n2").run()
    (decided,) = job.written(rec.Decided)
    assert decided.rung == "fail" and "you asked to stop the job (request 1)" in decided.reason
