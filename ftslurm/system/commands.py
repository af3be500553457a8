"""Run an argv with a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ftslurm.errors import CommandMissing


@dataclass(frozen=True, slots=True)
class CommandResult:
    """status: as Popen.returncode (-n for signal n), None when the time limit ended it. stdout, stderr: text."""

    argv: tuple[str, ...]
    status: int | None
    stdout: str
    stderr: str

    @property
    def timed_out(self) -> bool:
        return self.status is None


Runner = Callable[..., CommandResult]


def run(
    argv: Sequence[str], timeout_s: float, stdin: str = "", env: Mapping[str, str] | None = None
) -> CommandResult:
    """Run `argv` without a shell, kill it after `timeout_s`.

    Raises: CommandMissing if the program is not there or may not be executed.
    """
    try:
        done = subprocess.run(
            list(argv), input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s, env=env
        )
    except subprocess.TimeoutExpired as late:
        return CommandResult(tuple(argv), None, _text(late.stdout), _text(late.stderr))
    except (FileNotFoundError, PermissionError) as error:
        raise CommandMissing(
            f"`{argv[0]}` cannot be run: {error.strerror}", hint="is it installed, and is its folder on PATH?"
        ) from None
    return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)


def _text(output: str | bytes | None) -> str:
    if isinstance(output, bytes):
        return output.decode(errors="replace")
    return output or ""
