"""Every command line, script and piece of configuration in the documents holds: it is run here, read by the parser that would read
it, or run on a real cluster (tests/live/test_documents_live.py). What is none of these is an error here. So do the command lines
that the code tells people to type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import click
import pytest
import tomllib
import yaml
from click.testing import CliRunner

from ftslurm.cli import ftrun, ftrun_options
from ftslurm.cli.ft_launcher import command as ft_launcher
from ftslurm.cli.ft_launcher import options as ft_launcher_options
from ftslurm.cli.ftslurm import group
from ftslurm.config.settings_files import SettingsAsked, policy_layers, settings_in_force
from ftslurm.hooks.install import conf_lines
from ftslurm.launchers.srun_options import split_command_line
from ftslurm.ledger.journal import from_line
from ftslurm.model.settings.tree import resolve
from ftslurm.notify.deliver import read_destinations
from ftslurm.simulation.trace import read_trace
from tests.docs.blocks import DOCUMENTS, ROOT, Block, Command, all_blocks, commands, in_the_code, in_the_text
from tests.each import each

BIN = Path(sys.executable).parent
LANGUAGES = frozenset({"sh", "bash", "python", "yaml", "ini", "json", "text", "{toctree}", "{reference}", "{eval-rst}"})
NAMED = ("bash", "python", "yaml", "ini")
# Of the machine; what they do is theirs. Slurm's own are run by the live test, or stand in a script that sbatch looks at there.
OTHERS = frozenset({
    "[", "break", "cat", "clush", "conda", "dask", "do", "kill", "snakemake", "environment", "module", "sed", "python", "ray", "sleep", "source", "until", "while", "chmod", "cp", "done", "echo", "else", "eval", "exit", "export", "fi", "for", "head", "ln", "mkdir", "mv",
    "train.sh", "true",
})  # fmt: skip
SLURMS = frozenset({"sbatch", "scontrol", "sinfo", "squeue"})


@cache
def typed() -> list[Command]:
    return [command for block in all_blocks("sh", "bash") for command in commands(block)]


@cache
def said() -> list[Command]:
    verbs = group.list_commands(click.Context(group))
    modules = [*sorted(ROOT.glob("ftslurm/**/*.py")), ROOT / "ftslurm/catalogs/site-checks.yaml"]
    return [command for module in modules for command in in_the_code(module, verbs)]


@cache
def told() -> list[Command]:
    return [*(command for document in DOCUMENTS for command in in_the_text(document)), *said()]


@cache
def by_program() -> dict[str, list[Command]]:
    found: dict[str, list[Command]] = {}
    for command in (*typed(), *told()):
        found.setdefault(Path(command.words[0]).name, []).append(command)
    return found


def each_of(check: Callable[[Command], None], *programs: str) -> None:
    each([command for program in programs for command in by_program()[program]], check)


def each_block(check: Callable[[Block], None], *languages: str) -> None:
    each(all_blocks(*languages), check, lambda block: block.place)


def test_each_block_says_what_it_is() -> None:
    assert [block.place for block in all_blocks() if block.language not in LANGUAGES] == []
    assert [block.place for block in all_blocks(*NAMED) if not block.name] == []


def test_each_program_that_is_called_is_known() -> None:
    checked = {"ftrun", "ftslurm", "ft_launcher", "srun", "make", "pip", "python3", "slurm-cluster"}
    unknown = {program: calls for program, calls in by_program().items() if program not in checked | OTHERS | SLURMS}
    assert unknown == {}
    assert checked | SLURMS - {"squeue"} <= {*by_program()}


def test_what_the_code_tells_people_to_type_is_found() -> None:
    found = {str(command).partition(" ")[2] for command in said()}
    assert {"ftslurm notify --test", "ftslurm control JOB list", "ftrun --ft-spares 1 ..."} <= found
    assert {"ftslurm explain JOB --decision 1", "ftslurm history JOB", "ftslurm status JOB"} <= found, (
        "with a number; of a choice"
    )
    assert len(said()) > 90


# --- commands of ours, by the parsers that read them


def test_ftrun_takes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for block in all_blocks("yaml"):
        Path(block.name).write_text(block.text)

    def check(item: Command) -> None:
        line = split_command_line([word for word in item.words[1:] if word != "..."], ftrun.FLAGS | ftrun.FT_LAUNCHER_FLAGS)
        assert line.unknown == ()
        mine, theirs = ftrun_options.split_ft_launcher(line.ft)
        asked = ftrun_options.parse_ftrun(mine)
        files = {name: asked[f"ft_{name}"] or "" for name in ("policy", "profile", "annotations", "aimaster")}
        values = {**theirs, **ftrun_options.values_of(asked)}
        settings_in_force(SettingsAsked(**files, values=values), {}, site=tmp_path / "none")

    each_of(check, "ftrun", "srun")


def test_ftslurm_takes_it() -> None:
    each_of(ftslurm_takes, "ftslurm")


def ftslurm_takes(item: Command) -> None:
    words = ["1" if word in ("$?", "N", "R") else word for word in item.words[1:] if word != "..."]
    context: click.Context | None = None
    command: click.Command = group
    if words[:1] == ["VERB"]:
        return
    while True:
        try:
            context = command.make_context(command.name, list(words), parent=context)
        except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
            assert item in told(), "what is typed is whole; a sentence may name the command alone"
            return
        except click.exceptions.Exit:
            return  # --help
        if not isinstance(command, click.Group) or not (rest := [*context._protected_args, *context.args]):
            return
        _, found, words = command.resolve_command(context, rest)
        assert found is not None
        command = found


def test_what_needs_no_job_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, however often it is named."""
    monkeypatch.setenv("FTSLURM_STATE_DIR", str(tmp_path))
    lines = {command.words[1:]: command for command in by_program()["ftslurm"]}
    each([command for words, command in lines.items() if words[:1] in (("explain",), ("completion",))], runs)


def runs(item: Command) -> None:
    if {"JOB", "--decision"} & {*item.words} or item.words[1:] == ("completion",):
        return
    shell = {"VERB", "SHELL", "bash|zsh|fish"}
    done = CliRunner().invoke(group, [("bash" if word in shell else word) for word in item.words[1:]], obj=None)
    assert done.exit_code in ((0,) if item.words[1] == "completion" or len(item.words) == 2 else (0, 1)), done.output
    assert done.output


def test_ft_launcher_takes_it() -> None:
    each_of(ft_launcher_takes, "ft_launcher")


def ft_launcher_takes(item: Command) -> None:
    if len(item.words) == 1 or "..." in item.words or item.words[1:] in (("--version",), ("--help",)):
        return
    more = (
        () if any(word.endswith(".py") for word in item.words) or item in typed() else ("train.py",)
    )  # a sentence may leave it out
    launch = ft_launcher_options.read_options((*item.words[1:], *more), {})
    ft_launcher.settings_of(launch, True)


# --- commands around them


def test_what_it_builds_or_installs_is_there() -> None:
    each_of(is_there, "make", "pip", "slurm-cluster")


def is_there(item: Command) -> None:
    program, *words = item.words
    if program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in words if "=" not in word and word not in targets] == []
    elif program.endswith("pip"):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        wanted = [extra for word in words for found in re.findall(r"\[(.*)\]", word) for extra in found.split(",")]
        assert [extra for extra in wanted if extra not in extras] == []
        assert words[0] == "install"
        assert [word for word in words if word.endswith(".lock") and not (ROOT / word).exists()] == []
    else:
        done = subprocess.run([ROOT / "tools/slurm-cluster", words[0], "--help"], capture_output=True, timeout=120, check=False)
        assert done.returncode == 0


def test_the_script_that_it_runs_stands_in_the_documents() -> None:
    names = {block.name for block in all_blocks(*NAMED)}

    def check(item: Command) -> None:
        scripts = [word for word in item.words[1:] if re.fullmatch(r"[\w-]+\.(sh|py)", word)]
        assert [script for script in scripts if script not in names] == []
        assert scripts or item.words[1:3] in (("-m", "venv"),) or item.words[1].startswith("-")

    each_of(check, "sbatch", "python3")


# --- scripts and configuration


def test_bash_reads_each_script() -> None:
    each_block(bash_reads, "bash", "sh")


def bash_reads(item: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=item.text, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    if item.language == "bash":
        assert item.text.startswith("#!/bin/bash\n"), "sbatch takes nothing else"


def test_python_reads_each_program() -> None:
    each_block(lambda block: compile(block.text, block.name, "exec") and None, "python")


def test_the_configuration_is_taken(tmp_path: Path) -> None:
    def check(item: Block) -> None:
        file = tmp_path / item.name
        file.write_text(item.text)
        file.chmod(0o600)
        if item.name == "notify.yaml":
            assert read_destinations(file).keys() == yaml.safe_load(item.text).keys()
        elif item.name == "faults.yaml":
            assert read_trace(item.text, item.name).faults
        elif item.name == "ft.yaml":
            assert ftrun_options.fault_tolerance({}, str(file), pytest.fail)
        elif item.name == "site.yaml":
            assert settings_in_force(SettingsAsked(), {}, site=file)
        else:
            assert item.name == "policy.yaml"
            resolve(policy_layers(file))

    each_block(check, "yaml")


def test_the_lines_for_slurm_are_those_that_install_hooks_prints() -> None:
    printed = [line for line in conf_lines("/usr/local/lib/ftslurm", {}) if not line.startswith("#")]
    for block in all_blocks("ini"):
        assert (block.name, block.text.splitlines()) == ("slurm.conf", printed), block.place


def test_each_record_is_one() -> None:
    lines = [line for block in all_blocks("json") for line in block.text.splitlines()]
    assert lines and [line for line in lines if from_line(line.encode()) is None] == []


# --- programs, under the local launcher


def ran(tmp_path: Path, *argv: str) -> str:
    for block in all_blocks("bash", "python"):
        (tmp_path / block.name).write_text(block.text.replace("time.sleep(0.25)", "time.sleep(0.01)"))
    env = {**os.environ, "FTSLURM_STATE_DIR": str(tmp_path / "state"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_program_runs_under_the_local_launcher_as_the_page_says(tmp_path: Path) -> None:
    page = ROOT / "docs/first-job.md"
    (line,) = [command for command in typed() if command.place.startswith("docs/first-job.md") and "local" in command.words]
    assert page.exists() and ran(tmp_path, *line.words).count(": done") == 4


def test_the_script_of_a_rank_is_re_entrant(tmp_path: Path) -> None:
    said = ran(tmp_path, "bash", "-c", """
        sed -i 's/^exec .*/[ "$MA_PROC_START_CNT" -gt 1 ]/; s:/tmp/data:'"$PWD"'/data:' rank.sh
        mkdir data.1
        ftrun --ft-launcher local -N1 -n1 --ft-set rungs.in-place-restart.crash_restarts=1 bash rank.sh
    """)  # fmt: skip
    assert said.count("loading") == 1 and said.count("is here already") == 1  # of two ranks one may be stopped before it loads
