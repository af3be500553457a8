"""`ftslurm explain` as a user calls it: a number, a file, a code that looks like a number, a job that is not theirs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.cli import ftslurm as door
from ftslurm.config.catalog_files import load_glossary
from ftslurm.ledger.journal import Journal
from ftslurm.model.collectives import CulpritKind
from ftslurm.model.folds.summary import STATES
from ftslurm.policies.judge.phases import Phase
from ftslurm.system.files import private_folder
from tests.report.test_decisions import PLACES, T, begun, failed, run

RECORDED = Path(__file__).parents[1] / "recorded" / "slurm" / "22.05" / "job-running.txt"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path))
    journal = Journal(private_folder(private_folder(tmp_path) / "jobs") / "alps.7.jsonl")
    journal.append([run(), PLACES, begun(1, 0), *failed()])
    return journal.path


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        door.main(["explain", *argv])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_by_number_by_file_and_the_latest(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, aside = told(capsys, "7")
    assert status == 0 and text.startswith("job 7 on alps: train\n1. ") and "ftslurm explain exit 7" in aside
    for argv in ((str(ledger),), ("--last",)):
        assert told(capsys, *argv)[1] == text
    assert json.loads(told(capsys, "7", "--json")[1])["decisions"][0]["decided"]["id"] == "d1"


def test_one_in_full(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (("7", "--decision", "1"), ("--decision", "last"), ("7", "--decision", "-1"), ("alps.7", "--decision", "1")):
        assert "chosen" in told(capsys, *argv)[1]
    assert len(json.loads(told(capsys, "7", "--decision", "1", "--json")[1])["decisions"]) == 1
    status, _, why = told(capsys, "7", "--decision", "5")
    assert status == 64 and "job 7 has no decision 5: there is 1" in why
    assert told(capsys, "7", "--decision", "x")[0] == 64 and told(capsys, "7", "8", "--decision", "1")[0] == 64
    assert told(capsys, "7", "--last")[0] == 64


def test_a_number_without_a_ledger_is_a_code_if_it_is_one(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "137")[1].startswith("exit 137")
    assert told(capsys, "80818038")[1].startswith("80818038: device SoC")
    status, text, why = told(capsys, "123456")
    assert (status, text) == (66, "") and "there is no ledger of job 123456" in why
    assert told(capsys, "123456", "--decision", "1")[0] == 66 and told(capsys, str(ledger.with_name("no.jsonl")))[0] == 66


def test_another_users_job(
    ledger: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = tmp_path / "bin" / "scontrol"
    fake.parent.mkdir()
    shown = re.sub(r"UserId=\S+", "UserId=daemon(1)", re.sub(r"JobId=\d+", "JobId=JOB", RECORDED.read_text()))
    fake.write_text(f"#!/bin/sh\nsed \"s/JobId=JOB/JobId=$4/\" <<'END'\n{shown}END\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    for job in ("4711", "27503001"):  # this has the form of an Ascend code
        status, _, why = told(capsys, job)
        assert status == 66 and f"job {job} belongs to daemon" in why and "only they and root can read it" in why


def test_the_ladder_of_a_job_is_its_own(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "enabled false [--ft-set; default true]" in " ".join(told(capsys, "--job", "7")[1].split())
    known = json.loads(told(capsys, "--job", "7", "--json")[1])["settings"]
    assert known["max_restarts"] == {**known["max_restarts"], "value": 3, "from": "p.yaml, line 2"}
    assert json.loads(told(capsys, "--json")[1])["settings"]["max_restarts"]["from"] == "default"


def test_a_ledger_without_settings_shows_what_is_in_force_here(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Journal(ledger.with_name("alps.8.jsonl")).append([replace(run(), job="8", settings={}, at=T)])
    assert "does not record the job's settings" in told(capsys, "--job", "8")[2]


@pytest.mark.parametrize(("word", "kind", "said"), [
    ("stop.grace", "setting", "now      20s"), ("hang-restart", "rung of the ladder", "costs      nothing"),
    ("hanging", "state of a job", "ftslurm status JOB"), ("RankCommHang", "hang", "collective"), ("BEAT", "column", "heartbeat"),
    ("STATE", "column", "stands"),
    ("wait", "notice", "until somebody acts"),
    ("settling", "phase", "the ladder is asked"), ("FTSLURM_ATTEMPT", "variable of each rank", "from 1"),
])  # fmt: skip
def test_it_knows_its_own_words(capsys: pytest.CaptureFixture[str], word: str, kind: str, said: str) -> None:
    status, text, _ = told(capsys, word)
    assert status == 0 and text.startswith(f"{word}: {kind}") and said in text


def test_a_setting_is_explained_as_it_is_in_force(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTRUN_STOP_GRACE", "45s")
    assert "now      45s (environment FTRUN_STOP_GRACE)" in told(capsys, "stop.grace")[1]
    assert json.loads(told(capsys, "stop.grace", "--json")[1])["facts"]["default"] == "20s"


@pytest.mark.parametrize(("word", "near"), [("stop.grase", "stop.grace"), ("hang-restat", "hang-restart")])
def test_an_unknown_word_gets_the_nearest(capsys: pytest.CaptureFixture[str], word: str, near: str) -> None:
    status, _, said = told(capsys, word)
    assert status == 64 and f"did you mean `{near}`?" in said


def test_every_state_and_hang_is_a_word_and_every_phase_is_one() -> None:
    words = load_glossary().words
    assert set(STATES) == set(words["state of a job"]) and set(words["phase"]) <= {phase.value for phase in Phase}
    assert {kind.value for kind in CulpritKind} - {"unknown"} == set(words["hang"])
