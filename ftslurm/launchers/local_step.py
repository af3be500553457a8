"""A small srun for one machine: it starts a command once per task, on nodes that are only names.

    FTSLURM_LOCAL_NODES=local1,local2 FTSLURM_LOCAL_JOB=1 FTSLURM_LOCAL_STEP=0 \
        python -m ftslurm.launchers.local_step [SRUN OPTIONS] -- COMMAND...

The local launcher runs it where srun would stand, for demos, tests and users without Slurm. What it knows of srun it does as
srun 22.05 does inside an allocation of those nodes (tests/live/test_local_like_srun.py runs the real one beside it), but for:

- Signals are passed on to every task. srun asks back on SIGINT and kills on SIGTERM and SIGHUP; here what follows from
  a signal is for ftrun and the shims to say. Two SIGINTs within a second kill all, as there.
- Output that nobody labels is not copied: the tasks write to our own descriptors, or to the files, themselves.
- Nodes have as many CPUs as are asked for, so a step is never too large; what asks for resources is accepted and ignored,
  and so are --kill-on-bad-exit and --wait, which ftrun sees to, --pty, and --unbuffered; beside --label the latter is told.
- Processes that tasks leave behind are killed when the last task has ended, as Slurm does where it tracks them by cgroup.
- --relative, --exclude and the distribution `plane` are refused, and so is a --chdir where nobody can go: srun says so and goes
  to /tmp.
- Labelled lines stay whole, however long; srun cuts them after 1,024 bytes, and numbers those of a file for each node to the
  width of that node's ranks.
- How tasks ended is said once all have, and not node by node.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from ftslurm.errors import FtslurmError, LaunchFailed, UsageError
from ftslurm.launchers import local_layout as shape
from ftslurm.launchers.local_stdio import Stdio, pattern_values
from ftslurm.launchers.srun_options import has_flag, option_value
from ftslurm.model.exits import ExitStatus, from_returncode, of_step
from ftslurm.model.text import expand_pattern, fold_numbers, visible
from ftslurm.model.values import Value, field
from ftslurm.system.processes import children_of


class Ended(Value):
    place: shape.TaskPlace
    status: ExitStatus
    core: bool = False

    def __str__(self) -> str:
        if not self.status.signal:
            return f"Exited with exit code {self.status.code}"
        name = signal.strsignal(self.status.signal) or f"Unknown signal {self.status.signal}"
        return name + (" (core dumped)" if self.core else "")


def describe_exits(ended: Iterable[Ended]) -> list[str]:
    """srun's lines: one for each node and kind of end, none for success. Source: _task_finish in launch_slurm.c."""
    groups: dict[tuple[str, str], list[int]] = {}
    for one in sorted(ended, key=lambda one: (one.place.slot, one.place.rank)):
        if not one.status.ok:
            groups.setdefault((one.place.node, str(one)), []).append(one.place.rank)
    return [
        f"error: {node}: {'task' if len(ranks) == 1 else 'tasks'} {fold_numbers(ranks)}: {how}"
        for (node, how), ranks in groups.items()
    ]


# --- a small srun for one machine: it starts a command once per task, on nodes that are only names

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
ABORT_WINDOW_S = 1.0  # between two SIGINTs that mean "at once" (_handle_intr in srun_job.c)
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
    """One loop over signals, children, input and output."""

    def __init__(self, layout: shape.LocalLayout, stdio: Stdio, start: _Start) -> None:
        self._layout = layout
        self._stdio = stdio
        self._start = start
        self._libc = ctypes.CDLL(None)
        self._running: dict[int, shape.TaskPlace] = {}
        self._ended: list[Ended] = []
        self._told = False
        self._wakeup = -1
        self._interrupted_at = -ABORT_WINDOW_S
        self._leftovers_until: float | None = None

    def run(self) -> int:
        """The exit status of the step. Raises: LaunchFailed if not every task could be started."""
        # What a killed shim leaves behind becomes ours to end, as Slurm ends all of a step's processes with its tasks.
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wakeup = _catch_signals()
        # Until exec a child shares our handlers and their pipe: what it got there we would take for ours.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            self._spawn_all(mask)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._stdio.started()
        while not self._turn(time.monotonic()):
            pass
        return of_step(one.status for one in self._ended).shell

    def _turn(self, now: float) -> bool:
        """Look at the children, then wait for something to do; True when all is done."""
        nothing_left = self._reap()
        if self._running:
            self._wait(None, now)
            return False
        if not self._told:
            self._told = True
            for line in describe_exits(self._ended):
                self._say(line)
        return self._wind_up(nothing_left, now)

    def _wind_up(self, nothing_left: bool, now: float) -> bool:
        """All tasks have ended: end what they left behind, and let the last of their output out."""
        if self._leftovers_until is None or self._stdio.unread:  # a slow reader shall miss nothing
            self._leftovers_until = now + LEFTOVERS_S
        late = now >= self._leftovers_until
        self._stdio.no_more_input()
        if late:  # they are beyond SIGKILL, or a process that is none of ours holds a pipe
            self._stdio.no_more_output()
        elif not nothing_left:
            for pid in children_of(os.getpid()):
                _send_signal(pid, signal.SIGKILL)
        if (nothing_left or late) and not self._stdio.flowing:
            return True
        next_look = self._leftovers_until if nothing_left else min(self._leftovers_until, now + RESCAN_S)
        self._wait(None if late else next_look, now)
        return False

    def _wait(self, until: float | None, now: float) -> None:
        """Wait until something can be read or written, and handle it."""
        poll = select.poll()
        handlers: dict[int, Callable[[], None]] = {}
        for fd, events, handler in self._interests():
            poll.register(fd, events)
            handlers[fd] = handler
        for fd, _ in poll.poll(None if until is None else max(0.0, until - now) * 1000):
            handlers[fd]()

    def _interests(self) -> Iterator[tuple[int, int, Callable[[], None]]]:
        yield self._wakeup, select.POLLIN, self._signalled
        for feed in self._stdio.feeds:
            if not feed.ended and not feed.sink.full:
                yield feed.fd, select.POLLIN, feed.read
        for sink in self._stdio.sinks.values():
            if sink.pending:
                yield sink.fd, select.POLLOUT, sink.write
        if broadcast := self._stdio.broadcast:
            if broadcast.wants_input:
                yield broadcast.source, select.POLLIN, broadcast.read
            for pipe, waiting in broadcast.pipes():
                # Also where nothing is to be written: poll tells when the task has closed its end.
                act = broadcast.write if waiting else broadcast.drop
                yield pipe, select.POLLOUT if waiting else 0, partial(act, pipe)

    def _say(self, line: str) -> None:
        self._stdio.sink(2).add(f"ftrun: {line}\n".encode())

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
            self._running[pid] = place

    def _reap(self) -> bool:
        """Collect ended children. True when no descendant is left: ECHILD of a subreaper proves it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if place := self._running.pop(pid, None):
                how = from_returncode(os.waitstatus_to_exitcode(status))
                self._ended.append(Ended(place, how, os.WCOREDUMP(status)))

    # --- signals

    def _signalled(self) -> None:
        for number in os.read(self._wakeup, 512):
            if number in FORWARDED:
                self._forward(number, time.monotonic())

    def _forward(self, number: int, now: float) -> None:
        if number == signal.SIGINT:
            if now - self._interrupted_at < ABORT_WINDOW_S:
                self._say("forcing job termination")
                self._kill()
                return
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


def _catch_signals() -> int:
    """Queue SIGCHLD and every signal we pass on into a pipe; gives its reading end. What is ignored stays ignored
    (nohup(1)), but for SIGINT, which shells make their background jobs ignore and by which ftrun ends a step."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        if number in (signal.SIGINT, signal.SIGCHLD) or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # reading a terminal from the background shall fail, not stop us
    return reading


def restore_signals(mask: Iterable[int]) -> None:
    signal.set_wakeup_fd(-1)
    # Of these two it is Python's start-up that ignores them.
    for number in (*FORWARDED, signal.SIGCHLD, signal.SIGTTIN, signal.SIGPIPE, signal.SIGXFSZ):
        if number not in FORWARDED or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # gone already; or it changed its user (setuid), which only root could end


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "nobody"  # uid_to_string in Slurm's uid.c


def tasks_folder(wanted: str | None) -> Path:
    """Where the tasks run. Raises: UsageError."""
    folder = Path.cwd() / (wanted or "")
    if not (folder.is_dir() and os.access(folder, os.X_OK)):
        named = "--chdir: " if wanted else ""
        raise UsageError(f"{named}{folder} is no folder that can be entered", hint="correct the path")
    return folder


def _run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Lay out, open, start, and see the step through; its exit status."""
    place_of_dashes = list(argv).index("--") if "--" in argv else len(argv)
    command = tuple(argv[place_of_dashes + 1 :])
    if not command:
        raise UsageError("there is no command to run", hint="write it after --")
    options = shape.options_from(env, argv[:place_of_dashes])
    simulated = shape.read_simulated(env)
    layout = shape.lay_out(options, simulated.nodes)
    folder = tasks_folder(option_value(options, "chdir"))
    _tell(*layout.notes, *unheeded(options))
    stdio = Stdio(options, layout, folder, file_namer(env, options, simulated))
    shared = shape.exported_values(env, option_value(options, "export")) | shape.step_environ(simulated, layout, options)
    return _Step(layout, stdio, _Start(command, folder, lambda place: shared | shape.task_environ(layout, place))).run()


def unheeded(options: Sequence[str]) -> tuple[str, ...]:
    """Without --label tasks write to our own descriptors, where nobody keeps anything back."""
    if has_flag(options, "label") and has_flag(options, "unbuffered"):
        return ("without effect: --unbuffered: without Slurm, labelled lines come as soon as a program has written them",)
    return ()


def file_namer(
    env: Mapping[str, str], options: Sequence[str], simulated: shape.Simulated
) -> Callable[[str, shape.TaskPlace], str]:
    """What turns a pattern into the file of a task."""
    name, user = option_value(options, "job-name"), _user_name()
    named = {**env, "SLURM_JOB_NAME": name} if name else env
    return lambda pattern, place: expand_pattern(pattern, pattern_values(named, simulated, place, user))


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
