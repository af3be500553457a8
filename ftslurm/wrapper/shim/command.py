"""Starts, watches and stops the user's command, and all processes that it leaves behind."""

from __future__ import annotations

import errno
import os

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal
from ftslurm.wrapper.shim.processes import RESCAN_S, children, descendants, send_signal

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Mapping, Sequence

# --- What was made for one srun of a step that has several.

WHOLE = "FTSLURM_WHOLE_"  # see policies/environment.py


def for_the_whole(env: dict[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """`env` for the command, in which RANK, WORLD_SIZE and the like speak of the whole step. own: as the task got it.

    Hooks of containers make these of what one srun says (enroot's 50-slurm-pytorch, pyxis). Where a step has several sruns, each
    part would be a training of its own. They are somebody else's if they do not agree with that srun.
    """
    whole = {name[len(WHOLE) :]: env.pop(name) for name in list(env) if name.startswith(WHOLE)}
    world = own.get("WORLD_SIZE")
    if world and world == own.get("SLURM_NTASKS") and world != whole.get("WORLD_SIZE", world):
        env.update({name: value for name, value in whole.items() if name in own})
    return env


NAME_MAX = 1000  # characters of a command's name that are told; wire.py takes 4096 of the whole reason
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def find_program(name: str, path: str) -> str:
    """Where exec would find `name`; if it is nowhere, a name whose exec fails with the right error."""
    if "/" in name:
        return name
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder or ".", name)
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return "/nonexistent/" + name


def rewind_input() -> None:
    """A file of the rank's own (--input=in.%t) is read from its beginning by each start; a stream cannot be."""
    try:
        os.lseek(0, 0, os.SEEK_SET)
    except OSError:
        pass  # a pipe, a socket, or none


class Command:
    """The user's command, with all processes that it leaves behind. Reports through return values only."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc = libc
        self.pid = 0
        self.attempt = 0
        self.beside = 0  # pid of a spare (warm.py), which is no part of the command; 0: there is none
        self.beside_status = 0  # how the last one ended, as waitpid gave it
        self.status: int | None = None  # as waitpid gave it, of the command itself
        self.stopping = False
        self._began = False
        self.crash_status = 0  # of a drill: what a SIGKILL is to look like
        self._deadline = 0.0
        self._kill_until = 0.0
        self._kill_wait_s = 0.0

    def start(self, attempt: int, argv: list[str], env: dict[str, str], ends: list[tuple[int, int]]) -> tuple[int, str]:
        """(0, "") once the command runs, else the errno (which slurmstepd makes the exit status) and the reason.

        ends: a descriptor of ours, closed afterwards, and the number under which the command gets it.
        """
        self._begin(attempt)
        self.pid, number = self._fork(argv, env, ends)
        name = argv[0] if len(argv[0]) <= NAME_MAX else argv[0][:NAME_MAX] + "..."
        return number, f"{name}: {os.strerror(number)}" if number else ""

    def start_beside(self, argv: list[str], env: dict[str, str], ends: list[tuple[int, int]], cpu_s: float) -> None:
        """Start a spare, if it can be. cpu_s: of CPU time, after which it ends unless it has set that aside."""
        self.beside, _ = self._fork(argv, env, ends, cpu_s)

    def take(self, attempt: int) -> None:
        """The spare is the command of `attempt`."""
        self._begin(attempt)
        self.pid, self.beside = self.beside, 0

    def _begin(self, attempt: int) -> None:
        if self._began:
            rewind_input()
        self._began = True
        self.attempt, self.status, self.stopping, self.crash_status = attempt, None, False, 0

    def _fork(self, argv: list[str], env: dict[str, str], ends: list[tuple[int, int]], cpu_s: float = 0.0) -> tuple[int, int]:
        """Pid and 0, or 0 and an errno."""
        path = find_program(argv[0], env.get("PATH", os.defpath))
        terminal = os.isatty(0) and not cpu_s
        read_end, write_end = os.pipe()  # both close on exec; a failure comes through
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(path, argv, env, write_end, terminal, ends, parent, cpu_s)
        for end in {write_end, *(end for end, _ in ends)}:
            os.close(end)
        told = os.read(read_end, 16)
        os.close(read_end)
        if not told:
            return pid, 0
        os.waitpid(pid, 0)  # a failed child still has our handlers: a SIGTERM to it would look like one to us
        return 0, int(told)

    def _become(
        self,
        path: str,
        argv: list[str],
        env: dict[str, str],
        failure: int,
        terminal: bool,
        ends: list[tuple[int, int]],
        parent: int,
        cpu_s: float,
    ) -> None:
        """In the child: own process group, death with the shim, then the command.

        Every line costs a copy of the pages it touches, eight ranks at a time: what the parent can do, it does. Signals
        that the shim catches go back to their default by exec itself; ignored ones stay ignored, as under srun.
        """
        try:
            os.setpgid(0, 0)
            if terminal:  # srun --pty: the command is the one that talks to the terminal
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)
                os.tcsetpgrp(0, os.getpgrp())
                signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it was killed before
                os._exit(127)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python's start-up ignores these two
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            for end, fd in ends:
                os.dup2(end, fd)
            if cpu_s:  # execve(2) keeps it
                signal.setitimer(signal.ITIMER_PROF, cpu_s)
            os.execve(path, argv, env)
        except OSError as error:
            os.write(failure, str(error.errno or errno.EIO).encode())
        except BaseException:
            os.write(failure, str(errno.EINVAL).encode())
        finally:
            os._exit(127)

    def reap(self) -> bool:
        """Collect ended children. True when no descendant is left: ECHILD of a subreaper proves it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                # A process that has ended has left us its own children before. Only we collect them, so none is missed.
                ended = self.beside and (self.status is not None or not self.pid)
                return bool(ended) and children(os.getpid()) == [self.beside]
            if pid == self.beside:
                self.beside, self.beside_status = 0, status
            elif pid == self.pid:
                faked = self.crash_status and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
                self.status = self.crash_status << 8 if faked else status

    def signal(self, number: int, group: bool = False) -> None:
        """To the command itself, as Slurm signals a task. group: to its process group, as torchrun does."""
        if self.pid and self.status is None:
            send_signal(-self.pid if group else self.pid, number)

    def stop(self, now: float, grace_s: float, kill_wait_s: float, asked: bool = False) -> None:
        """SIGTERM (unless `asked` already) to the process group and to whatever left it; a second call can only shorten
        the grace."""
        if not self.stopping:
            self.ask(*(() if asked else (signal.SIGTERM,)))
            self._deadline = now + grace_s
        self.stopping, self._kill_wait_s, self._kill_until = True, kill_wait_s, 0.0
        self._deadline = min(self._deadline, now + grace_s)

    def ask(self, *numbers: int) -> None:
        """Send these to all. A stopped process does not notice a SIGTERM before it goes on."""
        self._to_all(*numbers, signal.SIGCONT)

    def kill(self, now: float, kill_wait_s: float) -> None:
        """SIGKILL everything at once, without waking stopped processes first. `press` does the rest."""
        self.stopping, self._deadline, self._kill_wait_s, self._kill_until = True, now, kill_wait_s, 0.0
        self.press(now)

    def press(self, now: float) -> bool:
        """While stopping: SIGKILL once the grace is over. False when even that has not helped in time."""
        if now < self._deadline:
            return True
        if not self._kill_until:
            self._kill_until = now + self._kill_wait_s
        self._to_all(signal.SIGKILL)
        return now < self._kill_until

    def wakes_in(self, now: float) -> float | None:
        if not self.stopping:
            return None
        return RESCAN_S if now >= self._deadline else self._deadline - now

    def freeze(self) -> None:
        """SIGSTOP every process below us. A stopped process cannot fork, so some rounds find them all."""
        seen: set[int] = set()
        while new := [pid for pid in self.below() if pid not in seen]:
            for pid in new:
                send_signal(pid, signal.SIGSTOP)
            seen.update(new)

    def thaw(self) -> None:
        self._to_all(signal.SIGCONT)

    def _to_all(self, *numbers: int) -> None:
        """To the process group as one, and to each descendant that has left it.

        The group counts only while the command or a descendant of ours is in it: a number that is free again may be a
        stranger's. While the command is there nobody waits for the look at all threads of all processes below us.
        """
        known = self.pid > 0 and self.status is None
        if known:
            self._send((-self.pid,), numbers)
        ours = self.below()
        inside = {pid for pid in ours if self._in_group(pid)}
        left = [pid for pid in ours if pid not in inside]
        self._send(left if known or not inside else [*left, -self.pid], numbers)

    def below(self) -> list[int]:
        """All processes below us, but for a spare and what is below that."""
        found = descendants(os.getpid())
        beside = {self.beside, *descendants(self.beside)} if self.beside else set()
        return [pid for pid in found if pid not in beside]

    def _send(self, targets: Sequence[int], numbers: Sequence[int]) -> None:
        for number in numbers:
            for target in targets:
                send_signal(target, number)

    def _in_group(self, pid: int) -> bool:
        try:
            return os.getpgid(pid) == self.pid
        except ProcessLookupError:
            return False  # gone
