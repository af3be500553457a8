"""What root sees of other users' jobs: all in one list, and one by the same commands, run as its user."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.cli import others
from ftslurm.cli.ftslurm import main
from ftslurm.cli.jobs import status
from ftslurm.cli.others import words_for
from ftslurm.ledger.journal import to_line
from ftslurm.model import record as rec
from ftslurm.model.settings.hook_settings import HookSettings
from tests.report.ledgers import big_job, hostile
from tests.report.test_view import long_story

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become others")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """daemon's job and two of bin's, full of escapes; a folder that others may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-homes-") as folder:
        base = Path(folder)
        base.chmod(0o755)
        rude = [replace(record, command="\x1b[2J") if isinstance(record, rec.RunBegan) else record for record in big_job()]
        for name, ledger_name, records in (
            ("daemon", "c.7", long_story().ledger), ("bin", "c.7", hostile(big_job())), ("bin", "alps.4711", rude),
        ):  # fmt: skip
            jobs = base / name / "jobs"
            jobs.mkdir(parents=True, exist_ok=True)
            ledger = jobs / f"{ledger_name}.jsonl"
            ledger.write_bytes(b"".join(map(to_line, records)))
            user = pwd.getpwnam(name)
            for path in (jobs.parent, jobs, ledger):
                os.chown(path, user.pw_uid, user.pw_gid)
                path.chmod(0o600 if path.is_file() else 0o700)
        settings = HookSettings(first_user_id=1, ledgers=(f"{base}/{{user}}",))
        for module in (others, status):
            monkeypatch.setattr(module, "site_settings", lambda: settings)
        yield base


def tell(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capfd.readouterr()
    return int(ended.value.code or 0), out, err


def test_in_one_folder_for_all_a_job_stands_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory(prefix="ftslurm-shared-") as folder:
        jobs = Path(folder) / "jobs"
        jobs.mkdir()
        for path in (jobs.parent, jobs):
            path.chmod(0o1777)
        for name, number in (("daemon", 7), ("bin", 8)):
            ledger = jobs / f"c.{number}.jsonl"
            ledger.write_bytes(
                b"".join(
                    to_line(replace(each, job=f"{number}") if isinstance(each, rec.RunBegan) else each)
                    for each in long_story().ledger
                )
            )
            os.chown(ledger, pwd.getpwnam(name).pw_uid, -1)
            ledger.chmod(0o644)
        monkeypatch.setattr(status, "site_settings", lambda: HookSettings(first_user_id=1, ledgers=(folder,)))
        code, out, _ = tell(capfd, "status", "--all-users", "--all", "--json")
        assert code == 0 and sorted((each["user"], each["job"]) for each in json.loads(out)) == [("bin", "8"), ("daemon", "7")]


def test_all_jobs_stand_in_one_list_with_their_user_and_what_they_lost(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = tell(capfd, "status", "--all-users", "--all")
    heading, *lines = out.splitlines()
    assert code == 0 and heading.split() == ["USER", "JOB", "STATE", "ATTEMPT", "NODES", "LAST", "LOST", "WHAT"], err
    assert {line.split()[0] for line in lines} == {"daemon", "bin"} and out.replace("\n", "").isprintable()
    code, out, _ = tell(
        capfd, "status", "--all-users", "--all", "--json", "--state", "completed,failed,gone,cancelled,requeued,running"
    )
    assert code == 0 and all(job["lost_s"] >= 0 and job["user"] in ("daemon", "bin") for job in json.loads(out))


@pytest.mark.parametrize("verb", ["status", "history", "explain", "report"])
def test_one_job_is_shown_as_its_user_sees_it(verb: str, site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, whole, err = tell(capfd, verb, "--user", "daemon", "7")
    assert code == 0 and len(whole.splitlines()) > 3, whole + err
    assert tell(capfd, verb, "--all-users", "c.7")[0] == 0, "whoever's it is"
    _, out, _ = tell(capfd, verb, "--user=bin", "7")
    assert "\x1b" not in out and out.replace("\n", "").replace("\t", "").isprintable()


def test_of_two_users_who_have_the_job_both_are_named(site: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A neighbour can lay a ledger of any job, of any date."""
    os.utime(site / "bin/jobs/c.7.jsonl", (4e9, 4e9))
    code, _, err = tell(capfd, "status", "--all-users", "c.7")
    assert code == 0 and "c.7 that daemon has (--user daemon shows it)" in err


@pytest.mark.parametrize(
    "words",
    [
        ("status", "7"), ("requeue", "7", "--finish"), ("drill", "hang", "7", "--rank", "0"), ("logs", "{}/jobs/c.7.jsonl"),
        ("report", "{}/jobs/c.7.jsonl"),
    ],
)  # fmt: skip
def test_root_does_not_read_a_user_s_ledger_with_root_s_rights(
    words: tuple[str, ...], site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What stands in it would name files that root reads, and jobs that root requeues."""
    state = site / "daemon"
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(state))
    code, out, err = tell(capfd, *(word.format(state) for word in words))
    assert code and not out and "root reads it by --user NAME alone" in err
    assert [path.name for path in (state / "jobs").iterdir()] == ["c.7.jsonl"], "nor does root write there"


def test_who_writes_without_end_is_shown_to_the_limit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    class Endless:
        def printed(self, after: int, errors: bool) -> bytes:
            return b"y\n" * 100

    monkeypatch.setattr(others, "LIMIT_BYTES", 1000)
    others._Shown(Endless(), errors=False).show()  # type: ignore[arg-type]
    assert len(capfd.readouterr().out) == 1000


def test_what_is_not_there_or_not_allowed_gets_a_sentence(
    site: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = tell(capfd, "status", "--user", "bin", "9", "--json")
    assert code == 66 and not out and "no ledger of job 9" in err
    assert "no user has a ledger of job 99" in tell(capfd, "history", "--all-users", "99")[2]
    assert "needs a JOB" in tell(capfd, "history", "--all-users")[2]
    assert "no such user" in tell(capfd, "history", "--user", "nobody-here", "7")[2]
    assert "> FILE" in tell(capfd, "report", "--user", "daemon", "7", "-o", "x.html")[2]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in (("status", "--all-users"), ("history", "--all-users", "7"), ("logs", "--user", "daemon", "7")):
        assert "only root may read" in tell(capfd, *words)[2]


def test_where_the_caller_may_not_enter_the_folder_there_is_a_sentence_too(site: Path) -> None:
    """As under root_squash, where root may not either."""
    argv = [sys.executable, "-m", "ftslurm.cli.ftslurm"]
    env = {**os.environ, "FTSLURM_STATE_DIR": f"{site}/daemon/deeper"}
    for words in (["status", "--user", "daemon"], ["status"], ["doctor"]):
        done = subprocess.run([*argv, *words], env=env, user="bin", capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr and done.returncode in (1, 73), done


def test_the_user_s_command_is_what_was_typed_without_the_user() -> None:
    assert words_for(["logs", "--user", "al", "7", "-f"]) == ["logs", "7", "-f"] == words_for(["logs", "--user=al", "7", "-f"])
    assert words_for(["status", "7", "--all-users"]) == ["status", "7"]
