"""Every command of ours that a message, a hint or a setting's help names is one that the parsers take."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.cli import ftrun, ftrun_options
from ftslurm.launchers.srun_options import split_command_line
from tests.docs.blocks import ROOT
from tests.docs.parsers import takes

# In the place of what a message fills in: a number is a job, a request, a code, a count.
FILLED = "1"
_OURS = re.compile(r"`((?:ftslurm|ftrun)(?: [^`\n]*)?)`")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Each string of the module, what is filled in replaced."""
    tree = ast.parse(path.read_text())
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else FILLED for part in node.values)
            yield node.lineno, "".join(map(str, parts))


def commands() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "ftslurm").rglob("*.py")):
        for line, text in texts(path):
            for found in _OURS.findall(text):
                yield f"{path.relative_to(ROOT)}:{line}", found


COMMANDS = list(commands())


def test_messages_name_commands() -> None:
    assert len({command for _, command in COMMANDS}) > 25


@pytest.mark.parametrize(("place", "command"), COMMANDS, ids=[f"{place} {command}" for place, command in COMMANDS])
def test_a_command_in_a_message_exists(place: str, command: str) -> None:
    program, *words = shlex.split(command)
    words = [FILLED if word in ("JOB", "N", "ID", "NUMBER") else word for word in words if word != "..."]
    if program == "ftslurm":
        takes(words)
        return
    line = split_command_line(words, ftrun.FLAGS | ftrun.FT_LAUNCHER_FLAGS)
    assert line.unknown == ()
    ftrun_options.parse(ftrun_options.split_ft_launcher(line.ft)[0])
