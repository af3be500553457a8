"""Ledgers, settings and answers with words for a terminal in them, and files that are none: what people ask says so, and that is all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ftslurm.cli import ftslurm as door
from ftslurm.ledger.journal import to_line
from ftslurm.model import record as rec
from ftslurm.report import text as text_module
from tests.report.test_view import long_story

# A window title, a red that stays, a link of rich's and a tag that ends nothing.
EVIL = "\x1b]0;owned\x07\x1b[31m[link=http://x]y[/link][/]\x9b2J\u202e\rftrun: all is well"
TIME_S = 30


def poisoned() -> bytes:
    """Every text of a ledger of every kind, its keys too."""

    def poison(value: Any, name: str = "") -> Any:
        if isinstance(value, str):
            return value if name in ("kind", "id", "at", "launcher") else f"{value}{EVIL}"
        if isinstance(value, list):
            return [poison(one) for one in value]
        if isinstance(value, dict):
            return {key if name == "" else f"{key}{EVIL}": poison(one, key) for key, one in value.items()}
        return value

    lines = [json.loads(to_line(record)) for record in long_story().ledger]
    lines.append(json.loads(to_line(rec.HangSeen(9.0, 1, "beat", "it hangs", ("a stack",)))))
    asked = (
        rec.Requested(9.0, 1, "anna", "stop", "login1", ("n1",), "shrink", 1, files="/x"),
        rec.Requested(9.0, 2, "anna", "hold"),
    )
    lines += [json.loads(to_line(record)) for record in (*asked, rec.RequestAnswered(9.0, "r", 1, True, "taken", 1, "n1"))]
    return b"".join(json.dumps(poison(line)).encode() + b"\n" for line in lines)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state" / "jobs"
    folder.mkdir(parents=True)
    (tmp_path / "state").chmod(0o700)
    folder.chmod(0o700)
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder


def tell(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Status, and all that was shown. A terminal of no colours, in which rich has no escapes of its own."""
    with pytest.raises(SystemExit) as end:
        door.main(argv)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert text.replace("\n", "").isprintable(), repr(text)
    assert "\nftrun: all is well" not in text
    return int(end.value.code or 0), text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_poisoned_ledger_is_shown_and_rules_nothing(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    (state / "c.7.jsonl").write_bytes(poisoned())

    def console() -> Console:
        return Console(highlight=False, force_terminal=terminal, color_system=None, width=200, soft_wrap=not terminal)

    monkeypatch.setattr(text_module, "console", console)
    for argv in (("status",), ("status", "7"), ("history", "7"), ("control", "7")):
        status, text = tell(capsys, *argv)
        assert status == 0 and "[link=http://x]y[/link][/]" in text.replace("\n", "").replace(" ", "")


@pytest.mark.parametrize("argv", [("explain", EVIL), ("status", EVIL), ("history", EVIL), ("explain", "--policy", f"/{EVIL}"), ("--nonsense" + EVIL,), (EVIL,),
                                  ("explain", "--profile", EVIL), ("nodes", "--clear", EVIL), ("drill", "7", EVIL)])  # fmt: skip
def test_what_was_asked_for_comes_back_as_text(state: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    tell(capsys, *argv)


@pytest.mark.parametrize("policy", [
    f"rungs: {{{json.dumps(EVIL)}: 1}}", f"max_restarts: {json.dumps(EVIL)}", f"catalogs: [{json.dumps(EVIL)}]", f"{EVIL}: 1",
    f"python: {json.dumps(EVIL)}", f"nodes: {{address: {json.dumps(EVIL)}}}",
])  # fmt: skip
def test_a_policy_and_the_environment(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    (tmp_path / "policy.yaml").write_text(policy)
    tell(capsys, "explain", "--policy", str(tmp_path / "policy.yaml"))
    monkeypatch.setenv("FTRUN_MAX_RESTARTS", EVIL)
    assert tell(capsys, "explain")[0] == 65


LAY: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": Path.mkdir,
    "dangling link": lambda path: path.symlink_to("/nonexistent"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "rubbish": lambda path: path.write_bytes(os.urandom(4096)),
}


@pytest.mark.timeout(TIME_S)
@pytest.mark.parametrize("what", LAY)
def test_no_file_in_place_of_a_ledger(state: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    """One job's costs no other's its line, and nobody waits."""
    (state / "c.8.jsonl").write_bytes(b"".join(to_line(record) for record in long_story().ledger))
    LAY[what](state / "c.7.jsonl")
    status, text = tell(capsys, "status", "--all")
    assert (status == 0 and "completed" in text) or "ended" in text
    assert what == "rubbish" or "c.7.jsonl cannot be read" in text
    assert tell(capsys, "status", "7")[0] in (64, 73)


@pytest.mark.timeout(TIME_S)
def test_a_fifo_that_somebody_writes_to(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(state / "c.7.jsonl")
    writer = os.open(state / "c.7.jsonl", os.O_RDWR | os.O_NONBLOCK)
    try:
        assert tell(capsys, "status", "7")[0] == 73
        os.write(writer, b"x\n")
        assert tell(capsys, "status")[0] == 0
    finally:
        os.close(writer)


@pytest.mark.timeout(TIME_S)
def test_ftrun_says_what_it_was_told_as_text(state: Path, tmp_path: Path) -> None:
    """Its own errors, a command that cannot be started, and what a rank's program says."""
    ftrun = [sys.executable, "-m", "ftslurm.cli.ftrun", "--ft-launcher", "local"]
    for words in (["--ft-set", EVIL, "true"], [f"--ft-policy=/{EVIL}", "true"], ["--ft-annotations", f"/{EVIL}", "true"], [f"/none{EVIL}"],
                  ["--ft-dry-run", "echo", EVIL]):  # fmt: skip
        done = subprocess.run(
            [*ftrun, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, cwd=tmp_path
        )
        assert (done.stdout + done.stderr).replace("\n", "").isprintable(), words
