"""Where Slurm's commands are, and how a command is run with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ftslurm.errors import CalledItself, CommandMissing
from ftslurm.model.values import Value

# --- where Slurm's commands are: in the folder that `slurm.bin` names, else on PATH, and never ftrun itself
# ftrun may be linked, copied or wrapped under the name `srun`, first on PATH, so that a launcher without support for it
# (submitit, snakemake, Hydra) starts it. If that ftrun searched PATH for `srun`, it would start itself, again and again. Two
# rules prevent it. A file that is recognised as ftrun is skipped. And every command that is started as Slurm's carries a mark
# in its environment: an ftrun that finds the mark is behind an opaque wrapper, and runs the next program of that name.

# Holds the setting slurm.bin; ftrun sets it for its children if a policy has named the folder.
FOLDER_VARIABLE = "FTRUN_SLURM_BIN"
# "PLACE PATH:PATH...": the commands that were started as Slurm's, and the place of the ftrun that did; the last one is the
# latest.
MARK = "FTSLURM_CALLED"
SLURM_PROGRAMS = frozenset({"sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"})
# Bytes of a script's head: the import of ftrun is one of the first lines that pip and setuptools write.
_HEAD_BYTES = 4096
_OUR_DOORS = (b"ftslurm.cli.ftrun", b"from ftslurm.cli.doors import ftrun")


def real_program(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The file to execute for `argv`, and the environment for it. Searches only Slurm's commands.

    Raises: CommandMissing, CalledItself.
    """
    if argv[0] not in SLURM_PROGRAMS:
        return argv[0], dict(env)
    path = find_slurm_program(argv[0], env)
    tried = ":".join((*mistaken_for(env), path))
    return path, {**env, MARK: f"{_place(env)} {tried}"}


def become(program: str, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Slurm's own program in our place. Raises: CommandMissing, CalledItself, OSError."""
    path, its_env = real_program((program,), env)
    os.execve(path, [program, *argv], its_env)


def find_slurm_program(name: str, env: Mapping[str, str]) -> str:
    """The first command of Slurm of that name that is not ftrun. Raises: CommandMissing, CalledItself."""
    passed_over = list(mistaken_for(env))
    for path in _candidates(name, env):
        if any(_same_file(path, other) for other in passed_over):
            continue
        if not _is_ftrun(path):
            return path
        passed_over.append(path)
    folder = env.get(FOLDER_VARIABLE, "")
    if passed_over:
        raise CalledItself(
            f"`{name}` is ftrun itself ({passed_over[-1]}), and {folder or 'PATH'} has no other {name}",
            hint="name the folder of Slurm's commands: slurm.bin in the policy, or FTRUN_SLURM_BIN",
        )
    raise CommandMissing(
        f"`{name}` is not {f'in {folder}, which slurm.bin names' if folder else 'on PATH'}",
        hint="is Slurm installed here? FTRUN_SLURM_BIN names the folder of its commands; --ft-launcher local runs without Slurm",
    )


def mistaken_for(env: Mapping[str, str]) -> tuple[str, ...]:
    """If another ftrun has started this one as a command of Slurm: the programs tried so far, the last one this.

    Empty for every other process. A rank, or a child of salloc, has the mark of another place than its own.
    """
    place, _, tried = env.get(MARK, "").partition(" ")
    return tuple(tried.split(":")) if tried and place == _place(env) else ()


def with_folder(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """folder: of Slurm's commands, from the settings; empty: search PATH."""
    others = {name: value for name, value in env.items() if name != FOLDER_VARIABLE}
    return {**others, FOLDER_VARIABLE: folder} if folder else others


def _place(env: Mapping[str, str]) -> str:
    """Job and step of a process. A process that Slurm starts is in another one than its starter; a wrapper is in the same."""
    return f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"


def _candidates(name: str, env: Mapping[str, str]) -> Iterator[str]:
    folder = env.get(FOLDER_VARIABLE, "")
    for each in [folder] if folder else os.get_exec_path(env):
        path = os.path.join(each, name)  # noqa: PTH118 -- before every start of ftrun's; pathlib is slow
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
            yield path


def _is_ftrun(path: str) -> bool:
    """Is the file ftrun? By its inode, or by the short script that an installer writes."""
    if _same_file(path, sys.argv[0]):
        return True
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
        return head.startswith(b"#!") and any(door in head for door in _OUR_DOORS)
    except OSError:
        return False


def _same_file(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)  # noqa: PTH121
    except OSError:
        return False


MAX_OUTPUT_BYTES = 1 << 16
KILL_WAIT_S = 1.0


class CommandResult(Value):
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
    """Run `argv` without a shell, and kill it after `timeout_s`. A command of Slurm's is Slurm's own program, never ftrun under
    that name (see above).

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
