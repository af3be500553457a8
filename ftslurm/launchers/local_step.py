"""A small srun for one machine: it starts a command once per task, on nodes that are only names.

    FTSLURM_LOCAL_NODES=local1,local2 FTSLURM_LOCAL_JOB=1 FTSLURM_LOCAL_STEP=0 \
        python -m ftslurm.launchers.local_step [SRUN OPTIONS] -- COMMAND...

The local launcher runs it where srun would stand, for demos, tests and users without Slurm. What it knows of srun it does as
srun 22.05 does inside an allocation of those nodes (tests/live/test_local_like_srun.py runs the real one beside it), but for:

- Signals are passed on to every task. srun asks back on SIGINT and kills on SIGTERM and SIGHUP; here what follows from
  a signal is for ftrun and the shims to say. Two SIGINTs within a second kill all, as there.
- Output that nobody labels is not copied: the tasks write to our own descriptors, or to the files, themselves.
- Nodes have as many CPUs as are asked for, so a step is never too large; what asks for resources is accepted and ignored,
  and so are --kill-on-bad-exit and --wait, which ftrun sees to, --pty, and --unbuffered: nothing is kept back.
- Processes that tasks leave behind are killed when the last task has ended, as Slurm does where it tracks them by cgroup.
- --relative, --exclude and the distribution `plane` are refused, and so is a --chdir where nobody can go: srun says so and goes
  to /tmp.
- Labelled lines stay whole, however long; srun cuts them after 1,024 bytes, and numbers those of a file for each node to the
  width of that node's ranks.
- How tasks ended is not said: ftrun says more of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ftslurm.errors import FtslurmError, LaunchFailed, UsageError
from ftslurm.launchers import local_layout as shape
from ftslurm.launchers.local_stdio import Stdio
from ftslurm.launchers.rank_logs import job_letters
from ftslurm.launchers.srun_options import option_value, split_command_line
from ftslurm.model.exits import ExitStatus, from_returncode, of_step
from ftslurm.model.text import expand_pattern, visible
from ftslurm.model.values import Value, field
from ftslurm.system.owner import user_name
from ftslurm.system.processes import children_of

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ABORT_WINDOW_S = 1.0  # between two SIGINTs that mean "at once" (_handle_intr in srun_job.c)
IDLE_S = 3600.0  # nothing happens without a signal
RESCAN_S = 0.02  # between two rounds of SIGKILL: the children of the killed become ours once those are reaped
LEFTOVERS_S = 30.0  # then whatever SIGKILL did not end stays behind; Slurm's KillWait
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class _Start(Value):
    """What is started for each task."""

    argv: tuple[str, ...]
    folder: Path
    env: Callable[[shape.TaskPlace], dict[str, str]]
    parent: int = field(default_factory=os.getpid)


class _Step:
    """One loop over signals and children; threads carry input and output."""

    def __init__(self, layout: shape.LocalLayout, stdio: Stdio, start: _Start) -> None:
        self._layout = layout
        self._stdio = stdio
        self._start = start
        self._libc = ctypes.CDLL(None)
        self._running: set[int] = set()
        self._ended: list[ExitStatus] = []
        self._held: frozenset[int] = frozenset()
        self._interrupted_at = -ABORT_WINDOW_S

    def run(self) -> int:
        """The exit status of the step. Raises: LaunchFailed if not every task could be started."""
        # What a killed shim leaves behind becomes ours to end, as Slurm ends all of a step's processes with its tasks.
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._held, mask = _hold_signals()
        self._spawn_all(mask)
        self._stdio.start()
        self._reap()
        while self._running:
            self._wait(IDLE_S)
            self._reap()
        self._wind_up()
        return of_step(self._ended).shell

    def _wind_up(self) -> None:
        """All tasks have ended: end what they left behind, and let the last of their output out."""
        until = time.monotonic() + LEFTOVERS_S
        while not self._reap() and time.monotonic() < until:
            for pid in children_of(os.getpid()):
                _send_signal(pid, signal.SIGKILL)
            self._wait(RESCAN_S)
        self._stdio.deliver(LEFTOVERS_S)

    def _wait(self, limit_s: float) -> None:
        """For a signal, which is passed on, or the end of a child."""
        found = signal.sigtimedwait(self._held, limit_s)
        if found is not None and found.si_signo in FORWARDED:
            self._forward(found.si_signo, time.monotonic())

    # --- tasks

    def _spawn_all(self, mask: Iterable[int]) -> None:
        for place in self._layout.places():
            try:
                pid = os.fork()
            except OSError as error:
                self._kill()
                raise LaunchFailed(f"task {place.rank} cannot be started: {error.strerror}", hint="see ulimit -u") from None
            if pid == 0:
                _become(self._start, place, self._stdio.of[place.rank], self._libc, mask)
            self._running.add(pid)

    def _reap(self) -> bool:
        """Collect ended children. True when no descendant is left: ECHILD of a subreaper proves it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid in self._running:
                self._running.remove(pid)
                self._ended.append(from_returncode(os.waitstatus_to_exitcode(status)))

    # --- signals

    def _forward(self, number: int, now: float) -> None:
        if number == signal.SIGINT:
            if now - self._interrupted_at < ABORT_WINDOW_S:
                return self._kill()
            self._interrupted_at = now
        for pid in self._running:
            _send_signal(pid, number)

    def _kill(self) -> None:
        """Every task with its process group; what else it started comes to us and is ended in `_wind_up`."""
        for pid in self._running:
            _send_signal(-pid, signal.SIGKILL)
            _send_signal(pid, signal.SIGKILL)  # it may not have its own group yet


def _become(start: _Start, place: shape.TaskPlace, fds: tuple[int, int, int], libc: ctypes.CDLL, mask: Iterable[int]) -> NoReturn:
    """In the child: a session of its own, so that a terminal's signals come through us only; then the command.

    Ends with errno where that cannot be executed, as slurmstepd does (exec_task in task.c).
    """
    status = 1
    try:
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() == start.parent:  # else it died before it could tell
            for number, copy in enumerate([os.dup(fd) for fd in fds]):
                os.dup2(copy, number)
            os.chdir(start.folder)
            restore_signals(mask)
            os.execvpe(start.argv[0], start.argv, start.env(place))
    except OSError as error:
        status = error.errno or status
        text = f"ftrun: error: {place.node}: execve(): {start.argv[0]}: {os.strerror(status)}"
        os.write(2, f"{visible(text)}\n".encode())
    finally:
        os._exit(status)


def _hold_signals() -> tuple[frozenset[int], Collection[int]]:
    """Those that are waited for from now on, and the mask of before. What is ignored stays ignored (nohup(1)), but for SIGINT,
    which shells make their background jobs ignore and by which ftrun ends a step."""
    held = {number for number in FORWARDED if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # reading a terminal from the background shall fail, not stop us
    return frozenset({*held, signal.SIGCHLD}), signal.pthread_sigmask(signal.SIG_BLOCK, {*held, signal.SIGCHLD})


def restore_signals(mask: Iterable[int]) -> None:
    for number in (signal.SIGINT, signal.SIGTTIN, signal.SIGPIPE, signal.SIGXFSZ):  # Python's start-up ignores the last two
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already; or it changed its user (setuid), which only root could end


def tasks_folder(wanted: str | None) -> Path:
    """Where the tasks run. Raises: UsageError."""
    folder = Path.cwd() / (wanted or "")
    if not (folder.is_dir() and os.access(folder, os.X_OK)):
        named = "--chdir: " if wanted else ""
        raise UsageError(f"{named}{folder} is not a folder that you may enter", hint="correct the path")
    return folder


def _run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Lay out, open, start, and see the step through; its exit status."""
    (given,) = split_command_line(argv, ()).components
    if not given.command:
        raise UsageError("there is no command to run", hint="write it after --")
    options = shape.options_from(env, given.options)
    simulated = shape.read_simulated(env)
    layout = shape.lay_out(options, simulated.nodes)
    folder = tasks_folder(option_value(options, "chdir"))
    _tell(*layout.notes)
    stdio = Stdio(options, layout, folder, file_namer(env, options, simulated))
    shared = shape.exported_values(env, option_value(options, "export")) | shape.step_environ(simulated, layout, options)
    return _Step(layout, stdio, _Start(given.command, folder, lambda place: shared | shape.task_environ(layout, place))).run()


def file_namer(
    env: Mapping[str, str], options: Sequence[str], simulated: shape.Simulated
) -> Callable[[str, shape.TaskPlace], str]:
    """What turns a pattern into the file of a task."""
    job, step = simulated.job, simulated.step
    known = job_letters(options, env, job, user_name(os.geteuid())) | {"J": f"{job}.{step}", "s": str(step)}
    return lambda pattern, at: expand_pattern(pattern, known | {"t": str(at.rank), "n": str(at.slot), "N": at.node})


def _tell(*lines: str) -> None:
    for line in lines:
        print(f"ftrun: {visible(line)}", file=sys.stderr, flush=True)


def reserve_stdio() -> None:
    """0, 1 and 2 exist, so that nothing else can get these numbers."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    reserve_stdio()
    try:
        status = _run(sys.argv[1:] if argv is None else argv, os.environ)
    except FtslurmError as error:
        _tell(*(f"error: {line}" for line in str(error).splitlines()))
        status = error.exit_status
    except KeyboardInterrupt:  # before the tasks were there to be told
        status = 128 + signal.SIGINT
    sys.exit(status)


if __name__ == "__main__":
    main()
