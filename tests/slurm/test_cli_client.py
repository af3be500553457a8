"""The command line client on recorded answers: who is asked again, what a refusal means, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from ftslurm.errors import SlurmRefused, SlurmUnavailable, UnknownJob
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.system.commands import CommandResult

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "slurm" / "22.05"
NO_CONTROLLER = "Unexpected message received for job 30\n"
PENDING = "Job is pending execution for job 30\n"
OK: tuple[int | None, str, str] = (0, "", "")


def shows(name: str) -> tuple[int | None, str, str]:
    return (0, (RECORDED / f"{name}.txt").read_text(), "")


def fails(stderr: str, status: int = 1) -> tuple[int | None, str, str]:
    return (status, "", stderr)


class Slurm:
    """Gives the answers in turn, the last one for ever; each takes `takes_s` on a clock that nobody waits for."""

    def __init__(self, *answers: tuple[int | None, str, str], takes_s: float = 0.01) -> None:
        self.answers = list(answers)
        self.takes_s = takes_s
        self.asked: list[str] = []
        self.limits: list[float] = []
        self.folders: list[str] = []
        self.now = 1000.0

    def __call__(self, argv: Sequence[str], timeout_s: float, env: Mapping[str, str], cwd: str = "") -> CommandResult:
        self.folders.append(cwd)
        assert not cwd or Path(cwd).is_dir()
        self.asked.append(" ".join(argv))
        self.limits.append(timeout_s)
        assert env["SLURM_TIME_FORMAT"] == "%s"
        status, stdout, stderr = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.now += self.takes_s if status is not None else timeout_s
        return CommandResult(tuple(argv), status, stdout, stderr)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def client(self, timeout_s: float = 60.0) -> SlurmClient:
        return SlurmClient(self, timeout_s, {"SLURM_CONF": "x"}, clock=lambda: self.now, sleep=self.sleep)


@pytest.mark.parametrize(
    "lost",
    [
        fails(NO_CONTROLLER),
        fails("slurm_load_jobs error: Socket timed out on send/recv operation\n"),
        fails("", status=-15),  # the SIGTERM of a requeue, at the program itself
        fails("", status=143),  # the same, at a shell around it
    ],
)
def test_asks_again_until_it_is_answered(lost: tuple[int | None, str, str]) -> None:
    slurm = Slurm(lost, lost, shows("job-running"))
    assert slurm.client().job(30).number == 30
    assert slurm.asked == ["scontrol --all show job 30"] * 3


def test_gives_up_when_the_time_is_over() -> None:
    slurm = Slurm(fails(NO_CONTROLLER), takes_s=9.0)
    with pytest.raises(SlurmUnavailable, match=r"`scontrol --all show job 30` failed: Unexpected message") as caught:
        slurm.client(timeout_s=60.0).job(30)
    assert "scontrol ping" in caught.value.hint
    assert slurm.now <= 1000 + 60 + 9
    assert len(slurm.asked) > 3
    assert all(earlier > later > 0 for earlier, later in zip(slurm.limits, slurm.limits[1:], strict=False))


def test_ends_a_program_that_hangs() -> None:
    slurm = Slurm((None, "", ""))
    with pytest.raises(SlurmUnavailable, match="no answer from slurmctld in time"):
        slurm.client(timeout_s=5.0).nodes()
    assert slurm.limits == [5.0]


def test_does_not_ask_again_after_a_no() -> None:
    slurm = Slurm(fails("slurm_load_jobs error: Invalid job id specified\n"))
    with pytest.raises(UnknownJob):
        slurm.client().job(30)
    assert len(slurm.asked) == 1


def test_a_requeue_whose_answer_got_lost_is_done() -> None:
    """The first requeuehold was carried out, and its SIGTERM ended it; the second is refused."""
    slurm = Slurm(shows("job-running"), fails("", status=-15), fails(PENDING), shows("job-requeued-held"))
    slurm.client().requeue_held(30)
    assert slurm.asked == [
        "scontrol --all show job 30",
        "scontrol requeuehold 30",
        "scontrol requeuehold 30",
        "scontrol --all show job 30",
    ]


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda client: client.requeue_held(30), "scontrol requeuehold 30"),
        (lambda client: client.requeue(30), "scontrol requeue 30"),
        (lambda client: client.release(30), "scontrol release 30"),
        (lambda client: client.cancel(30), "scancel --quiet 30"),
        (lambda client: client.signal_steps(30, "CONT"), "scancel --signal=CONT 30"),
    ],
)
def test_asks_by_these_words(ask: Callable[[SlurmClient], object], line: str) -> None:
    slurm = Slurm(shows("job-running"), OK)
    ask(slurm.client())
    assert slurm.asked == ["scontrol --all show job 30", line]


def test_asks_for_all_nodes_one_a_line() -> None:
    slurm = Slurm(OK)
    assert slurm.client().nodes() == ()
    assert slurm.asked == ["scontrol --all show node --oneliner"]


def test_holds_what_slurm_has_requeued_already() -> None:
    slurm = Slurm(shows("job-requeued-released"), fails(PENDING), shows("job-requeued-released"), OK)
    slurm.client().requeue_held(30)
    assert slurm.asked[-1] == "scontrol uhold 30"


def test_passes_on_a_refusal_of_a_running_job() -> None:
    no = fails("Requested operation is presently disabled for job 30\n")
    slurm = Slurm(shows("job-running"), no, shows("job-running"))
    with pytest.raises(SlurmRefused, match="presently disabled") as caught:
        slurm.client().requeue_held(30)
    assert "--requeue" in caught.value.hint


def test_looks_up_how_to_address_a_job_once() -> None:
    text = (RECORDED / "job-array.txt").read_text()
    number = int(text.partition("ArrayJobId=")[2].split(" ")[0])
    slurm = Slurm((0, text, ""), OK)
    client = slurm.client()
    client.exclude(number, ["n2", "n1"])
    client.require(number, ["n3"])
    client.start_at(number, 1_795_256_261)
    client.release(number)
    client.allow_requeue(number)
    client.cancel(number)
    assert slurm.asked == [
        f"scontrol --all show job {number}",
        f"scontrol update JobId={number}_2 ExcNodeList=n[1-2]",
        f"scontrol update JobId={number}_2 ReqNodeList=n3",
        f"scontrol update JobId={number}_2 StartTime=uts1795256261",
        f"scontrol release {number}_2",
        f"scontrol update JobId={number}_2 Requeue=1",
        f"scancel --quiet {number}_2",
    ]


def test_a_job_that_is_over_is_cancelled_enough() -> None:
    over = fails("scancel: error: Kill job error on job id 40: Job/step already completing or completed\n")
    Slurm(shows("job-cancelled"), over, shows("job-cancelled")).client().cancel(40)
    Slurm(fails("slurm_load_jobs error: Invalid job id specified\n")).client().cancel(40)


def test_a_refused_cancel_of_a_job_that_lives_is_told() -> None:
    no = fails("scancel: error: Kill job error on job id 30: Access/permission denied\n", status=210)
    with pytest.raises(SlurmRefused, match="permission denied"):
        Slurm(shows("job-running"), no, shows("job-running")).client().cancel(30)


def test_waits_grow_and_differ() -> None:
    """A thousand jobs shall not greet a restarted controller all at once."""
    slept: list[float] = []
    slurm = Slurm(fails(NO_CONTROLLER))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        slurm.sleep(seconds)

    client = SlurmClient(slurm, 300.0, {}, clock=lambda: slurm.now, sleep=sleep)
    with pytest.raises(SlurmUnavailable):
        client.nodes()
    assert slept[0] <= 0.1
    assert max(slept) <= 5.0
    assert max(slept) > 1.0
    assert len(set(slept)) > len(slept) / 2


def test_nodes_that_private_data_hides_are_none() -> None:
    """PrivateData=nodes; what is known of the job is enough."""
    assert Slurm(fails("slurm_load_node error: Access/permission denied\n")).client().nodes() == ()


def test_nodes_are_given_back_from_a_folder_of_its_own() -> None:
    """scontrol leaves two scripts where it runs."""
    slurm = Slurm(shows("job-running"), (0, "To reset Slurm environment variables, execute", ""))
    slurm.client().keep_nodes(30, ["n1"])
    assert slurm.asked[-1].endswith("NodeList=n1") and slurm.folders[:-1] == [""]
    assert slurm.folders[-1] and not Path(slurm.folders[-1]).exists()


NO_CHANGE = fails("Job update not available right now, the DB index is being set, try again in a bit for job 30\n")


def test_whether_slurm_takes_changes_costs_one_question_or_as_long_as_it_may() -> None:
    assert Slurm(shows("job-running"), OK).client().takes_changes(30, 0.0)
    once = Slurm(shows("job-running"), NO_CHANGE)
    assert not once.client().takes_changes(30, 0.0)
    assert once.asked == ["scontrol --all show job 30", "scontrol update JobId=30 Requeue=1"]
    again = Slurm(shows("job-running"), NO_CHANGE, NO_CHANGE, OK)
    assert again.client().takes_changes(30, 15.0)
    never = Slurm(shows("job-running"), NO_CHANGE, takes_s=5.0)
    assert not never.client().takes_changes(30, 15.0)
    assert never.now <= 1000 + 15 + 2 * 5 + 5  # the last question, and a pause before it
    assert not Slurm(shows("job-running"), fails(PENDING)).client().takes_changes(30, 15.0)


def test_a_slurmctld_that_is_away_is_no_refusal_of_changes() -> None:
    lost = fails(NO_CONTROLLER)
    assert Slurm(shows("job-running"), lost, lost, OK, takes_s=9.0).client().takes_changes(30, 0.0)
    with pytest.raises(SlurmUnavailable):
        Slurm(shows("job-running"), lost, takes_s=9.0).client().takes_changes(30, 0.0)
