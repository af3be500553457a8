"""How a job is named on the command line: a number, a step, an array, a ledger's path; and nothing at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.cli import ftslurm as door
from ftslurm.ledger.journal import Journal
from ftslurm.system.files import private_folder
from tests.report.test_decisions import PLACES, begun, failed, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # where no Slurm is
    jobs = private_folder(private_folder(tmp_path) / "jobs")
    for job in ("7", "28_1", "28_2", "28_10"):
        Journal(jobs / f"alps.{job}.jsonl").append([replace(run(), job=job), PLACES, begun(1, 0), *failed()])
    return jobs


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        door.main(argv)
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def listed(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


@pytest.mark.parametrize("verb", ["status", "history", "logs", "explain", "report"])
@pytest.mark.parametrize("name", ["7", "7.0", "7.batch", "PATH"])
def test_every_verb_takes_a_step_and_a_path(folder: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str) -> None:
    status, text, aside = told(capsys, verb, name.replace("PATH", str(folder / "alps.7.jsonl")))
    assert (status, bool(text)) == (0, True) if verb != "logs" else "output" in aside


@pytest.mark.parametrize("verb", ["status", "history", "explain", "report", "watch --once", "metrics"])
def test_a_ledger_is_read_where_no_state_folder_is(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(folder / "none"))
    status, text, _ = told(capsys, *verb.split(), str(folder / "alps.7.jsonl"))
    assert status == 0 and ("job 7" in text or 'job_id="7"' in text)


@pytest.mark.parametrize("verb", ["status", "history", "explain"])
def test_a_view_says_that_slurm_could_not_be_asked(folder: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    status, _, aside = told(capsys, verb, "7")
    assert status == 0 and "from the ledger alone, because Slurm does not answer" in aside


@pytest.mark.parametrize("argv", [("control", "PATH", "stop", "--wait", "0"), ("requeue", "PATH", "--finish")])
def test_what_writes_takes_no_path(folder: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    ledger = folder / "alps.7.jsonl"
    before = ledger.read_bytes()
    status, _, aside = told(capsys, *(word.replace("PATH", str(ledger)) for word in argv))
    assert status == 66 and "no ledger of job" in aside and ledger.read_bytes() == before


@pytest.mark.parametrize("name", ["28_[3-1]", "28_[1-99999999999]", "28_[a]", "28_["])
def test_an_odd_range_ends_in_a_sentence_or_in_the_tasks_that_there_are(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:  # fmt: skip
    status, text, aside = told(capsys, "status", name)
    assert (status, listed(text)) == (0, ["28_1", "28_2", "28_10"]) if "999" in name else (status == 66 and "no ledger" in aside)


@pytest.mark.parametrize(
    ("name", "tasks"), [("28", ["28_1", "28_2", "28_10"]), ("28_[2-10]", ["28_2", "28_10"]), ("28_[1,10%2]", ["28_1", "28_10"])]
)
def test_an_array_is_a_line_for_each_task(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, tasks: list[str]
) -> None:  # fmt: skip
    status, text, _ = told(capsys, "status", name)
    assert (status, listed(text)) == (0, tasks)
    assert told(capsys, "history", name)[1].count(" on alps") == len(tasks)
    assert [line.split()[1] for line in told(capsys, "explain", name)[1].splitlines() if " on alps" in line] == tasks
    assert f"{len(tasks)} jobs that ran" in told(capsys, "report", name)[1]


def test_a_verb_for_one_job_says_which_tasks_an_array_has(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (("logs", "28"), ("explain", "28", "--json")):
        status, _, aside = told(capsys, *argv)
        assert status == 66 and "name one of 28_1 to 28_10" in aside


def test_without_a_word_the_jobs_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, aside = told(capsys)
    assert status == 0 and "7" in listed(text) and "ftslurm --help" in aside


def test_a_group_without_a_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    status, text, aside = told(capsys, "drill")
    assert (status, text) == (64, "") and "Error:" not in aside and "\n  rank-crash " in aside
