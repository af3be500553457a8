"""The door of `ftslurm report`."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ftslurm.cli import ftslurm as door
from ftslurm.cli.jobs import report as report_door
from ftslurm.hooks.hook_inputs import read_settings
from ftslurm.ledger.journal import to_line
from ftslurm.model import record as rec
from ftslurm.system.plugins import pip_line
from tests.report.ledgers import big_job, hostile
from tests.report.test_view import long_story


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state" / "jobs"
    folder.mkdir(parents=True)
    (tmp_path / "state").chmod(0o700)
    folder.chmod(0o700)
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder


def put(folder: Path, name: str, records: Sequence[rec.Record]) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_bytes(b"".join(map(to_line, records)))
    return path


def tell(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        door.main(["report", *argv])
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out, shown.err


def test_a_job_is_told_in_the_terminal(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(jobs, "c.7", long_story().ledger)
    status, out, _ = tell(capsys, "7")
    assert status == 0 and out.startswith("# Job 7 on c\n") and "## What each outage cost" in out


@pytest.mark.parametrize(
    ("name", "begins"), [("job.html", "<!DOCTYPE html>"), ("job.md", "# Job 7"), ("job.json", "{"), ("job", "# Job 7")]
)
def test_the_ending_of_the_file_names_the_format(
    jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, begins: str
) -> None:
    put(jobs, "c.7", long_story().ledger)
    status, out, err = tell(capsys, "7", "-o", str(tmp_path / name))
    assert (status, out) == (0, "") and "KB" in err
    assert (tmp_path / name).read_text().startswith(begins)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(f".{name}")]


def test_several_jobs_and_all_since_a_time(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(jobs, "alps.4711", big_job())
    put(jobs, "alps.666", hostile(big_job()))
    status, out, _ = tell(capsys, "4711", "666", "--format", "json")
    found = json.loads(out)
    assert status == 0 and found["kind"] == "jobs" and len(found["jobs"]) == 2 and found["failures"] == 10
    status, out, _ = tell(capsys, "--since", "10000d", "--format", "json")
    assert status == 0 and len(json.loads(out)["jobs"]) >= 1


def test_a_ledger_that_cannot_be_read_hides_no_others(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(jobs, "c.7", long_story().ledger)
    (jobs / "c.8.jsonl").symlink_to("/etc/passwd")
    status, out, err = tell(capsys, "--since", "10000d")
    assert status == 0 and "c.7" in out and "skipped" in err and "not read" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("8",), "there is no ledger of job 8"),
        (("7", "-o", "job.pdf"), "no format has this ending"),
        (("7", "-o", "/nowhere/at/all.html"), "cannot be written"),
        (("7", "--since", "3d"), "do not go with JOB"),
        (("--since", "soon"), "`soon` is not a time"),
        (("--since", "1s"), "no job has run under ftrun since"),
    ],
)
def test_bad_input_gets_one_sentence(jobs: Path, capsys: pytest.CaptureFixture[str], argv: Sequence[str], said: str) -> None:
    put(jobs, "c.7", long_story().ledger)
    status, out, err = tell(capsys, *argv)
    assert status >= 64 and out == "" and said in err and err.count("\n") == 1


def test_a_page_without_its_extra_says_what_to_install(
    jobs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(jobs, "c.7", long_story().ledger)
    for module in [name for name in sys.modules if name.startswith(("ftslurm.report.page.", "jinja2"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("ftslurm.report.page.html", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    status, _, err = tell(capsys, "7", "--format", "html")
    assert status == 72 and pip_line("report") in err
    assert tell(capsys, "7", "--format", "md")[0] == 0


def test_only_root_may_ask_for_all_users(jobs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    status, _, err = tell(capsys, "--all-users")
    assert status == 64 and "only root" in err


@pytest.fixture
def homes() -> Iterator[Path]:
    """pytest's own folders are root's alone."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-homes-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become others")
def test_root_reads_the_ledgers_of_each_user_as_that_user(
    homes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = homes
    for name, records in (("daemon", long_story().ledger), ("bin", hostile(big_job()))):
        user = pwd.getpwnam(name)
        folder = base / name / "state" / "jobs"
        folder.mkdir(parents=True)
        ledger = put(folder, "c.7", records)
        if name == "bin":
            (folder / "c.9.jsonl").symlink_to("/etc/shadow")
        for path in (base / name, base / name / "state", folder, ledger):
            os.chown(path, user.pw_uid, user.pw_gid)
            path.chmod(0o700)
    site = base / "hooks.yaml"
    site.write_text(f"first_user_id: 1\nledgers: ['{base}/{{user}}/state']\n")
    monkeypatch.setattr(report_door, "site_settings", lambda: read_settings(site))
    status, out, err = tell(capsys, "--all-users", "--since", "10000d", "--format", "json")
    assert status == 0, err
    found = json.loads(out)
    assert {job["user"] for job in found["jobs"]} == {"daemon", "bin"}
    assert "root:" not in out + err, "what a link of a user's leads to is not read"


def test_what_a_user_s_program_prints_is_read_no_further_than_it_is_well_formed() -> None:
    from ftslurm.wrapper.all_ledgers import ledgers

    good = b"3 running 0\nabc"
    assert list(ledgers(good + b"2 failed 1\nxy")) == [(b"abc", "running", False), (b"xy", "failed", True)]
    for tail in (b"9999 running 0\nshort", b"-1 running 0\nx", b"3 RUNNING 0\nabc", b"Traceback", b"999999999999 running 0\n"):
        assert list(ledgers(good + tail)) == [(b"abc", "running", False)]


def test_the_program_prints_what_counts(jobs: Path) -> None:
    story = long_story().ledger
    put(jobs, "c.7", story)
    argv = [sys.executable, "-m", "ftslurm.wrapper.all_ledgers", "ledgers"]
    late = f"{story[-1].at + 1:.0f}"
    for began, expected in (("0", b"".join(map(to_line, story))), (late, b"")):
        done = subprocess.run([*argv, began, str(jobs.parent), "/nowhere"], capture_output=True, timeout=180, check=True)
        assert done.stdout.removesuffix(b"\nwhole\n").partition(b"\n")[2] == expected and done.stderr == b""
    for words in ((), ("ledgers",), ("ledgers", "x", str(jobs.parent)), ("other", "0")):
        done = subprocess.run([*argv[:-1], *words], capture_output=True, timeout=180, check=True)
        assert done.stdout.startswith(b"cannot be read: ") or words == ("ledgers",), done.stdout
