"""`ftslurm control` as a user runs it: what it prints, and the status it ends with."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from ftslurm.cli import ftslurm as door
from ftslurm.cli.jobs.control import _signal, read_moment
from ftslurm.errors import UsageError
from ftslurm.ledger.journal import Journal
from ftslurm.ledger.live import RequestReader
from ftslurm.model import record as rec
from ftslurm.sdk.page import start_ticks
from ftslurm.system.files import private_folder
from ftslurm.system.processes import pid_space
from tests.machine import slowness

NOW = time.time()


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """Of a local job whose ftrun is this process."""
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path / "state"))
    journal = Journal(private_folder(tmp_path / "state" / "jobs") / "local.7.jsonl")
    journal.append([
        rec.RunBegan(
            NOW, "r1", "7", "local", 0, "k", "train", "n[1-3]", launcher="local", host=socket.gethostname(), pid=os.getpid(),
            pid_space=pid_space(), started=start_ticks(os.getpid()) or 0,
        ),
        rec.AttemptBegan(NOW, "r1", 1, 0, "k", 1, "n[1-2]", 2),
    ])  # fmt: skip
    return journal


@contextmanager
def ftrun(journal: Journal, ok: bool = True) -> Iterator[None]:
    """One that answers every request."""
    over = threading.Event()

    def serve() -> None:
        reader = RequestReader(journal.path)
        while not over.wait(0.02):
            for asked in reader.look():
                Journal(journal.path).append([rec.RequestAnswered(NOW, "r1", asked.number, ok, f"for {asked.verb}", 3, "n1")])

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        door.main(argv)
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out + shown.err


def asked(journal: Journal) -> rec.Requested:
    return [record for record in journal.read().records if isinstance(record, rec.Requested)][-1]


def test_help_names_every_verb(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["control", "--help"], ["control", "7", "--help"]):
        status, text = run(capsys, *argv)
        assert status == 0
        for verb in (
            "stop",
            "requeue",
            "exclude",
            "reinstate",
            "hold",
            "release",
            "no-restarts",
            "allow-restarts",
            "undo",
            "list",
        ):
            assert f"\n  {verb} " in text
    assert run(capsys, "control", "7", "stop", "--help")[0] == 0


def test_what_is_taken_is_said_with_the_attempt_and_ends_with_0(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    with ftrun(journal):
        assert run(capsys, "control", "7", "exclude", "n2", "n[3]", "--later") == (
            0, "request 1 is taken by attempt 3 on n1: for exclude\n",
        )  # fmt: skip
        said = asked(journal)
        assert (said.nodes, said.later, said.number, said.host) == (("n2", "n3"), True, 1, socket.gethostname())
        assert said.by and abs(said.at - time.time()) < 60
        assert run(capsys, "control", "local.7", "hold", "hang-restart")[0] == 0
        assert run(capsys, "control", "7", "undo")[0] == 0
        assert asked(journal).target == 2
        assert run(capsys, "control", "7", "undo")[0] == 0 and asked(journal).target == 1
        assert run(capsys, "control", "7", "undo") == (1, "ftslurm: there is no request that could be undone\n")
        assert run(capsys, "control", "7", "undo", "9") == (1, "ftslurm: there is no request 9\n")


def test_what_is_refused_says_why_and_ends_with_1(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    with ftrun(journal, ok=False):
        status, text = run(capsys, "control", "7", "requeue", "--without", "n2")
    assert (status, text) == (1, "ftslurm: request 1 is refused by attempt 3 on n1: for requeue\n")


def test_what_nobody_takes_is_written_down_and_ends_with_3(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "control", "7", "stop", "--after-checkpoint", "--wait", "0.1", "--files", "step_*")
    assert status == 3 and "request 1 is recorded, but ftrun has not answered within 0.1 s" in text
    said = asked(journal)
    assert (said.checkpoints, said.files) == (1, f"{Path.cwd()}/step_*")


def test_between_attempts_nobody_is_waited_for(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.append([
        rec.Decided(NOW, "r1-1", 1, "unconditional-requeue", "crash", "why"), rec.CarriedOut(NOW, "r1-1", True, "requeued"),
        rec.Finished(NOW, "r1", 75, "requeued"),
    ])  # fmt: skip
    began = time.monotonic()
    status, text = run(capsys, "control", "7", "no-restarts")
    assert status == 3 and "its next attempt answers it" in text and time.monotonic() - began < 5 * slowness()


def test_a_job_that_is_over_takes_nothing(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.append([rec.Finished(NOW, "r1", 143, "stopped on request 1 of anna")])
    before = journal.path.read_bytes()
    assert run(capsys, "control", "7", "stop") == (1, "ftslurm: job 7 is over: stopped on request 1 of anna\n")
    assert journal.path.read_bytes() == before


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (("8", "stop"), 66), (("7", "fly"), 64), (("7", "hold", "fail"), 64), (("7", "exclude"), 64), (("7", "exclude", "n9"), 64),
        (("7", "exclude", "n1;reboot"), 64), (("7", "exclude", "n[1-"), 64), (("7", "stop", "--by", "yesterday"), 64),
        (("7", "stop", "--by", "2001-01-01T00:00"), 64), (("7", "stop", "--files", "x*"), 64), (("7", "undo", "0"), 64),
        (("7", "stop", "--after-checkpoint", "--files", "a/**/b"), 64), (("7", "exclude", "n2", "--later", "--by", "1h"), 64),
        (("7", "stop", "--checkpoints", "0"), 64), (("7", "exclude", "n[1-4000]"), 64),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_nothing_is_written(
    journal: Journal, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], status: int
) -> None:
    before = journal.path.read_bytes()
    ended, text = run(capsys, "control", *argv)
    assert ended == status and "Traceback" not in text
    assert journal.path.read_bytes() == before


def test_the_list_shows_who_asked_for_what_and_what_became_of_it(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "control", "7") == (0, "no requests so far\n")
    journal.append([
        rec.Requested(NOW, 1, "anna", "stop", "login1", checkpoints=2), rec.RequestAnswered(NOW, "r1", 1, True, "it waits", 1, "n1"),
        rec.CheckpointSeen(NOW, 1, 1, "file", "/x", 1),
    ])  # fmt: skip
    _, text = run(capsys, "control", "7", "list")
    assert "anna on login1  stop the job after 2 checkpoints: taken, 1 of 2 checkpoints (it waits)" in text
    (one,) = json.loads(run(capsys, "control", "7", "list", "--json")[1])
    assert (one["state"], one["asked"]["by"], one["asked"]["checkpoints"], one["seen"], one["node"]) == (
        "taken",
        "anna",
        2,
        1,
        "n1",
    )


def test_status_history_and_explain_show_what_holds(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    with ftrun(journal):
        run(capsys, "control", "7", "hold", "isolated-requeue")
        run(capsys, "control", "7", "stop", "--after-checkpoint", "--files", "x")
    _, text = run(capsys, "status", "7")
    who = "root" if os.geteuid() == 0 else "you"
    assert f"isolated-requeue: held by {who} since" in text and "stop the job after the next checkpoint: taken" in text
    _, text = run(capsys, "history", "7")
    assert "hold isolated-requeue" in text and "request 1 was taken: for hold" in text
    _, text = run(capsys, "explain", "--job", "7")
    assert f"isolated-requeue  (held by {who} since" in text
    known = json.loads(run(capsys, "status", "7", "--json")[1])
    assert list(known["held"]) == ["isolated-requeue"] and known["requests"][0]["asked"]["verb"] == "stop"
    with ftrun(journal):
        run(capsys, "control", "7", "no-restarts")
    assert "asked for no more restarts, since" in run(capsys, "status", "7")[1]


def test_times_are_local_clocks_dates_or_from_now() -> None:
    now = datetime(2026, 11, 23, 14, 0, 0).timestamp()
    assert read_moment("--by", "90m", now) == now + 5400
    assert read_moment("--by", "14:30", now) == now + 1800
    assert read_moment("--by", "13:59:30", now) == now + 86400 - 30, "the next one"
    assert read_moment("--by", "2026-11-24T14:00", now) == now + 86400
    for wrong in ("", "25:00", "soon", "2026-13-01", "-5m", "1e99s", "9999-12-31T00:00"):
        with pytest.raises(UsageError):
            read_moment("--by", wrong, now)


def test_for_another_user_the_status_is_that_of_what_ran_as_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    from ftslurm.cli.jobs import control

    monkeypatch.setattr(control, "_of_another_user", lambda job: True)
    monkeypatch.setattr("ftslurm.wrapper.control.as_owner", lambda *_: 3)
    with pytest.raises(SystemExit) as ended:
        door.main(["control", "5", "requeue"])
    assert ended.value.code == 3


def test_a_drill_of_a_device_says_what_ftrun_does_about_the_code(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    with ftrun(journal):
        status, text = run(capsys, "drill", "device-fault", "7", "--node", "n1", "--code", "xid 63")
        assert (status, text.splitlines()) == (0, [
            "job 7: device-fault on node n1: request 1 is taken by attempt 3 on n1: for drill",
            "expect: nothing but to write it down: the device still works; `ftslurm status 7` shows it",
        ])  # fmt: skip
        again = run(capsys, "drill", "device-fault", "7", "--node", "n1", "--code", "63", "--stays")
    assert again[1].splitlines()[1:] == text.splitlines()[1:], "and no exit status"
    assert asked(journal).drill == rec.Drill(
        "device-fault", node="n1", device="0", code="63", kind="nvidia", severity="major", heals=False
    )


def test_nothing_is_drilled_where_no_ftrun_runs(journal: Journal, capsys: pytest.CaptureFixture[str]) -> None:
    journal.append([rec.Finished(NOW, "r1", 75, "it goes on elsewhere", outcome="requeued")])
    status, text = run(capsys, "drill", "hang", "7", "--rank", "0")
    assert status == 1 and "job 7 does not run under ftrun now" in text


def test_a_kind_of_device_that_nobody_reads_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "drill", "device-fault", "7", "--node", "n1", "--code", "XID 79", "--kind", "nvidai")
    assert status == 64 and "--kind nvidai: no plugin reads such devices; did you mean `nvidia`?" in text


@pytest.mark.parametrize(("name", "number"), [("SEGV", 11), ("sigterm", 15), ("9", 9), ("40", 40)])
def test_a_signal_is_a_name_or_a_number(name: str, number: int) -> None:
    assert _signal(name) == number


@pytest.mark.parametrize("name", ["NOPE", "0", "65", "SIG"])
def test_what_is_no_signal_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(capsys, "drill", "rank-crash", "7", "--rank", "0", "--signal", name)
    assert status == 64 and f"--signal {name}: there is no such signal" in text
