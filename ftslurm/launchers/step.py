"""A step as one child process of ours: srun, or the local launcher's."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from ftslurm.errors import CommandMissing, LaunchFailed
from ftslurm.model.exits import ExitStatus, from_returncode, of_step
from ftslurm.system.commands import real_program
from ftslurm.system.files import restore_limit
from ftslurm.system.processes import children_of

# Two interrupts within a second end a step (srun(1)); nearer to each other the kernel would deliver one.
_BETWEEN_INTERRUPTS_S = 0.05
_PR_SET_PDEATHSIG = 1
_NODES = "--nodelist="
MOST_BYTES = 128 * 1024 - 1  # of one argument: MAX_ARG_STRLEN (execve(2))
# Of srun's last words; a step that is cancelled says so at its end.
WORDS_MAX = 65536


def _prepare(parent: int, orphaned: int, own_group: bool) -> Callable[[], None]:
    """For the child, between fork and exec: nothing but what is at hand by then. Source: prctl(2)."""
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def prepare() -> None:
        restore_limit()  # srun gives the ranks its own
        if own_group:
            os.setpgid(0, 0)
        if orphaned:
            prctl(_PR_SET_PDEATHSIG, orphaned)
            if os.getppid() != parent:
                os._exit(1)

    return prepare


def nodes_in_file(argv: Sequence[str]) -> tuple[list[str], tuple[int, ...]]:
    """`argv` with a --nodelist that no argument can hold as a file that the child inherits, and the descriptors for that.

    Source: srun(1) for --nodelist: what has a slash is a file; tasks of an arbitrary distribution follow its lines (22.05).
    """
    place = next((number for number, word in enumerate(argv) if len(word) > MOST_BYTES and word.startswith(_NODES)), None)
    if place is None:
        return list(argv), ()
    file = os.memfd_create("nodes", 0)
    with os.fdopen(os.dup(file), "w") as lines:
        lines.write(re.sub(r",(?![^\[]*\])", "\n", argv[place].removeprefix(_NODES)) + "\n")
    return [*argv[:place], f"{_NODES}/dev/fd/{file}", *argv[place + 1 :]], (file,)


def _bytes(words: Sequence[str], env: Mapping[str, str]) -> int:
    return sum(len(os.fsencode(text)) + 1 for text in (*words, *(f"{name}={value}" for name, value in env.items())))


def _end_of_stderr() -> int | None:
    """The size of our stderr, None if it is no file."""
    try:
        found = os.fstat(2)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


class ProcessStep:
    """One srun of a step. Its methods: as in StepHandle."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], quiet: bool = False, orphaned: int = 0, unread: bool = False
    ) -> None:
        """quiet: no terminal, no output; for steps the user did not ask for. orphaned: the signal that the launcher's process
        gets when ours has ended, also by SIGKILL; 0 for none. unread: its stdin is open and stays empty. Raises:
        CommandMissing, CalledItself, LaunchFailed."""
        sink = subprocess.DEVNULL if quiet else None
        self._errors = _end_of_stderr() if not quiet else None
        self._said: str | None = None
        # A signal to our process group (timeout, a shell's kill) is ours to pass on: srun would end the step at once, and we
        # would take that for a fault. One that reads from a terminal has to stay in the group in front.
        own_group = not quiet and not os.isatty(0)
        program, its_env = real_program(argv, env)
        words, files = nodes_in_file(argv)
        source = sink
        if unread:  # a pipe of which it has both ends
            source, other = os.pipe()
            files = (*files, source, other)
        try:
            self._process = subprocess.Popen(
                words, executable=program, env=its_env, stdin=source, stdout=sink, stderr=sink, start_new_session=quiet,
                pass_fds=files, preexec_fn=_prepare(os.getpid(), orphaned, own_group),
            )  # fmt: skip
        except (FileNotFoundError, PermissionError) as error:
            raise CommandMissing(
                f"`{argv[0]}` cannot be run: {error.strerror}",
                hint="is Slurm installed here, and its folder on PATH? --ft-launcher local runs without Slurm",
            ) from None
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise LaunchFailed(
                f"`{argv[0]}` cannot be run: environment and command line are {_bytes(words, its_env)} bytes together",
                hint="export less; a quarter of the limit of the stack (`ulimit -s`) holds them, and 128 kB a single string",
            ) from None
        finally:
            for file in files:
                os.close(file)
        self.pid = self._process.pid

    def ended(self) -> ExitStatus | None:
        status = self._process.poll()
        return None if status is None else from_returncode(status)

    def words(self) -> str:
        """Of a stderr that is a file, at most the last WORDS_MAX bytes; of a step that we kill, none that it says then."""
        if self._said is not None or self._errors is None:
            return self._said or ""
        try:
            with open("/proc/self/fd/2", "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(self._errors, size - WORDS_MAX))
                return file.read(WORDS_MAX).decode(errors="replace")
        except OSError:
            return ""

    def signal(self, number: int) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self._said = self.words()
        self.signal(signal.SIGINT)
        time.sleep(_BETWEEN_INTERRUPTS_S)
        self.signal(signal.SIGINT)

    def wait(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def abandon(self, silently: bool = False) -> None:
        """Kill the launcher's process, which may still wait for something. srun's child would cancel the step after it (launch.c,
        _shepherd_spawn; 22.05 to 26.05), so silently means that it goes first."""
        if self._process.poll() is None:
            if silently:
                for child in children_of(self.pid):
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
            self._process.kill()
        self._process.wait()


class JoinedSteps:
    """A step of one srun or several, one a job. See StepHandle. parts: each with its ranks."""

    def __init__(self, parts: Sequence[tuple[ProcessStep, Sequence[int]]]) -> None:
        self._parts = tuple(parts)
        self.pid = self._parts[0][0].pid

    def ended(self) -> ExitStatus | None:
        statuses = [step.ended() for step, _ in self._parts]
        known = [status for status in statuses if status is not None]
        return of_step(known) if len(known) == len(statuses) else None

    def ranks_ended(self) -> frozenset[int]:
        return frozenset(rank for step, ranks in self._parts if step.ended() is not None for rank in ranks)

    def words(self) -> str:
        """All of them write to the same stderr."""
        return self._parts[0][0].words()

    def kill(self) -> None:
        for step, _ in self._parts:
            step.kill()

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        return all([step.wait(max(0.0, deadline - time.monotonic())) for step, _ in self._parts])

    def abandon(self, silently: bool = False) -> None:
        for step, _ in self._parts:
            step.abandon(silently)
