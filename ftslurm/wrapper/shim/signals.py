"""Signals: which are passed on, how they are queued for a loop, and how to end as the command did."""

from __future__ import annotations

import os

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING, signal, socket

if TYPE_CHECKING:
    from collections.abc import Mapping

# Passed on to the command and reported. STOP and KILL do what the kernel does, TSTP and CONT announce.
FORWARDED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGXCPU, signal.SIGURG,
)  # fmt: skip
# Slurm's, around the suspension of a job: two seconds before its SIGSTOP, and to go on. Passed on where Slurm signals the
# task alone, as a program may have handlers for them.
ANNOUNCING = (signal.SIGTSTP, signal.SIGCONT)


def waking() -> tuple[int, int]:
    """An end to read and one to write, for wake-ups. Not a pipe: that any process of the user's can open by /proc, and fill or
    empty it."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def passes_signals_on(env: Mapping[str, str]) -> bool:
    """Does Slurm signal only the task itself (proctrack/cgroup: the shim), or the whole tree, the command included?

    Only a step's own cgroup means the former; in a cgroup namespace none is to be seen, and the controller says so (`alone`).
    Source: proctrack_p_signal in Slurm's proctrack plugins.
    """
    if env.get("FTSLURM_LOCAL"):
        return True
    try:
        with open("/proc/self/cgroup") as listing:
            return "/step_" in listing.read()
    except OSError:
        return False


def catch_signals() -> int:
    """Queue every signal we pass on, and SIGCHLD, for a loop; gives the end to read. Ignored ones stay ignored."""
    read_end, write_end = waking()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*FORWARDED, *ANNOUNCING, signal.SIGCHLD):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read_end


def end_as(status: int) -> None:
    """End as the command did: by the same signal, without a core of our own, so that srun reports what it would have."""
    number = status - 128
    if number in (*FORWARDED, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(status & 255)
