"""Completion in real shells: what `ftslurm completion SHELL` prints is read by that shell, which is then asked as a TAB asks it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from ftslurm.cli.ftslurm import group
from ftslurm.ledger.journal import to_line
from ftslurm.model.record import RunBegan

FTSLURM = Path(sys.executable).with_name("ftslurm")

ASK = """
PATH=$2:$PATH
eval "$(ftslurm completion bash)" || exit 9
shift 2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
function=$(complete -p "$1"); function=${function##*-F }; function=${function%% *}
compopt() { printf '%s\n' "$*"; }      # outside readline it may only be looked at
"$function" "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three jobs with a ledger, the last one the latest."""
    folder = tmp_path / ".ftslurm/jobs"
    folder.mkdir(parents=True, mode=0o700)
    for number, at in (("41", 10.0), ("42", 20.0), ("5_3", 30.0)):
        record = RunBegan(at, "r", number, "c", 0, "k", "train", "n1", name=f"job-{number}")
        (folder / f"c.{number}.jsonl").write_bytes(to_line(record))
        (folder / f"c.{number}.jsonl").chmod(0o600)
    tmp_path.joinpath(".ftslurm").chmod(0o700)
    return tmp_path


def asked(home: Path, *words: str) -> list[str]:
    """What bash suggests for the last of `words`."""
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    argv = ["bash", "--norc", "-c", ASK, "bash", "-", str(FTSLURM.parent), *words]
    done = subprocess.run(argv, env=env, cwd=home, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_and_options(home: Path) -> None:
    assert asked(home, "ftslurm", "hi") == ["history"]
    assert asked(home, "ftslurm", "history", "--v") == ["--verbose"]
    assert "isolated-requeue" in asked(home, "ftslurm", "control", "42", "hold", "i")
    assert asked(home, "ftslurm", "status", "--state", "running,fai") == ["running,failed"]


def test_bash_completes_numbers_of_the_users_own_jobs(home: Path) -> None:
    assert asked(home, "ftslurm", "history", "4") == ["42", "41"], "the latest first"
    assert asked(home, "ftslurm", "history", "7") == []


def test_each_command_that_takes_a_job_completes_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(home / ".ftslurm"))
    ask = BashComplete(group, {}, "ftslurm", "_FTSLURM_COMPLETE").get_completions
    found = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        commands = {name: command} | (command.commands if name == "drill" else {})  # type: ignore[attr-defined]
        for inner, one in commands.items():
            if any(param.name == "job" and isinstance(param, click.Argument) for param in one.params):
                path = [name] if inner == name else [name, inner]
                found[" ".join(path)] = [item.value for item in ask(path, "5")]
    assert {"status", "control", "drill hang", "requeue"} <= set(found)
    assert set(map(tuple, found.values())) == {("5_3",)}, found


def test_bash_completes_ftruns_options_among_those_of_srun(home: Path) -> None:
    assert asked(home, "ftrun", "-N4", "--ntasks-per-node=8", "--ft-dr") == ["--ft-dry-run"]
    assert asked(home, "ftrun", "-N4", "--ft-profile", "aimaster-s") == ["aimaster-sync"]
    assert asked(home, "ftrun", "--ft-set", "stop.gr") == ["stop.grace=20s"]
    assert asked(home, "ftrun", "-N4", "python", "tr") == ["-o", "default"], "bash's own, which is files"


def test_where_no_job_has_run_nothing_is_suggested_and_nothing_made(tmp_path: Path) -> None:
    assert asked(tmp_path, "ftslurm", "history", "") == []
    assert not tmp_path.joinpath(".ftslurm").exists()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_what_is_printed_for_the_other_shells_is_of_their_grammar(shell: str, tmp_path: Path) -> None:
    printed = subprocess.run([FTSLURM, "completion", shell], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "_FTSLURM_COMPLETE" in printed and "_FTRUN_COMPLETE" in printed
    if found := shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(printed)
        assert subprocess.run([found, "-n", script], timeout=120, check=False).returncode == 0
