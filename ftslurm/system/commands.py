"""Runs an argv with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ftslurm.errors import CommandMissing
from ftslurm.model.values import dataclass
from ftslurm.system.programs import real_program

MAX_OUTPUT_BYTES = 1 << 16
KILL_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """status: as Popen.returncode (-n for signal n), None if the time limit ended the command. stdout, stderr: text. raw: stdout
    as bytes, if kept.
    """

    argv: tuple[str, ...]
    status: int | None
    stdout: str
    stderr: str
    raw: bytes = b""

    @property
    def timed_out(self) -> bool:
        return self.status is None


Runner = Callable[..., CommandResult]


def run(
    argv: Sequence[str], timeout_s: float, stdin: str = "", env: Mapping[str, str] | None = None, cwd: str | None = None
) -> CommandResult:
    """Run `argv` without a shell, and kill it after `timeout_s`. Slurm's commands are Slurm's own, whatever comes first on PATH.

    Raises: CommandMissing if the program does not exist or is not executable; CalledItself.
    """
    program, its_env = real_program(argv, os.environ if env is None else env)
    try:
        done = subprocess.run(
            list(argv), executable=program, input=stdin, capture_output=True, text=True, errors="replace", timeout=timeout_s,
            env=its_env, cwd=cwd,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return CommandResult(tuple(argv), None, _text(late.stdout), _text(late.stderr))
    except (FileNotFoundError, PermissionError) as error:
        raise CommandMissing(
            f"`{argv[0]}` cannot be run: {error.strerror}", hint="is it installed, and is its folder on PATH?"
        ) from None
    return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)


def run_group(
    argv: Sequence[str],
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    given: str = "",
    limit: int = MAX_OUTPUT_BYTES,
    **who: Any,
) -> CommandResult:
    """As `run`, for another party's program: at the time limit everything that it started is killed too.

    given: its standard input. The last `limit` bytes of its output are kept. who: user, group, extra_groups, as subprocess takes
    them. Raises: CommandMissing.
    """
    import tempfile

    # Files, because processes that it leaves behind would hold pipes open, and an unread pipe would block us.
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as input_:
        input_.write(given.encode(errors="replace"))
        input_.seek(0)
        try:
            process = subprocess.Popen(
                list(argv), stdin=input_, stdout=output, stderr=subprocess.STDOUT, env=env, cwd="/",
                start_new_session=True, **who,
            )  # fmt: skip
        except OSError as error:
            raise CommandMissing(f"`{argv[0]}` cannot be run: {error.strerror}", hint="is it there and executable?") from None
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        with suppress(ProcessLookupError, PermissionError):  # with sudo it belongs to another user
            os.killpg(process.pid, signal.SIGKILL)
        if status is None:
            with suppress(subprocess.TimeoutExpired):  # uninterruptible sleep outlives even that
                process.wait(KILL_WAIT_S)
        output.seek(max(output.seek(0, os.SEEK_END) - limit, 0))
        raw = output.read(limit)
        return CommandResult(tuple(argv), status, raw[-MAX_OUTPUT_BYTES:].decode(errors="replace"), "", raw)


def _text(output: str | bytes | None) -> str:
    if isinstance(output, bytes):
        return output.decode(errors="replace")
    return output or ""
