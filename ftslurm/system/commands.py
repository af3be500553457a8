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


class Group:
    """Another party's program that runs, with all that it starts; `end` must be called."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, given: str = "", apart: bool = False, **who: Any
    ) -> None:
        """As `run_group`. apart: its errors are no part of its output. Raises: CommandMissing."""
        import tempfile

        self._argv = tuple(argv)
        # Files, because processes that it leaves behind would hold pipes open, and an unread pipe would block us.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  `end` closes it
        self._errors = tempfile.TemporaryFile() if apart else self._output  # noqa: SIM115  likewise
        try:
            with tempfile.TemporaryFile() as input_:
                input_.write(given.encode(errors="replace"))
                input_.seek(0)
                self._process = subprocess.Popen(
                    list(argv), stdin=input_, stdout=self._output, stderr=self._errors, env=env, cwd="/",
                    start_new_session=True, **who,
                )  # fmt: skip
        except OSError as error:
            self._output.close()
            self._errors.close()
            raise CommandMissing(f"`{argv[0]}` cannot be run: {error.strerror}", hint="is it there and executable?") from None

    def has_ended(self, wait_s: float = 0.0) -> bool:
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def printed(self, after: int, most: int = MAX_OUTPUT_BYTES, errors: bool = False) -> bytes:
        """What it has printed so far behind `after` bytes. The position of the file itself is its writer's."""
        return os.pread((self._errors if errors else self._output).fileno(), most, after)

    def end(self, limit: int = MAX_OUTPUT_BYTES) -> CommandResult:
        """Kill what runs of it, and give what it printed: the last `limit` bytes."""
        status = self._process.poll()
        with suppress(ProcessLookupError, PermissionError):  # with sudo it belongs to another user
            os.killpg(self._process.pid, signal.SIGKILL)
        if status is None:
            self.has_ended(KILL_WAIT_S)  # uninterruptible sleep outlives even that
        with self._errors, self._output as output:
            output.seek(max(output.seek(0, os.SEEK_END) - limit, 0))
            raw = output.read(limit)
        return CommandResult(self._argv, status, raw[-MAX_OUTPUT_BYTES:].decode(errors="replace"), "", raw)


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
    group = Group(argv, env, given, **who)
    group.has_ended(timeout_s)
    return group.end(limit)


def _text(output: str | bytes | None) -> str:
    if isinstance(output, bytes):
        return output.decode(errors="replace")
    return output or ""
