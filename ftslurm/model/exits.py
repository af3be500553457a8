"""How a process or a step ended, and whose a process is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ftslurm.model.values import Value


class ExitStatus(Value):
    """The end of one process: an exit code 0..255, or the signal that killed it (then `code` is 0)."""

    code: int
    signal: int = 0

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.signal == 0

    @property
    def shell(self) -> int:
        """As a shell and srun report it: killed by signal n is 128+n."""
        return 128 + self.signal if self.signal else self.code

    def __str__(self) -> str:
        if self.signal:
            return f"was killed by {signal_name(self.signal)}"
        return f"exited with status {self.code}"


def from_returncode(returncode: int) -> ExitStatus:
    """From `Popen.returncode`: -n for signal n."""
    return ExitStatus(0, -returncode) if returncode < 0 else ExitStatus(returncode)


def from_shell(status: int) -> ExitStatus:
    """The 128+n rule backwards; a program that exits with 130 itself cannot be told from Ctrl-C."""
    return ExitStatus(0, status - 128) if 128 < status < 128 + 65 else ExitStatus(status)


def of_step(statuses: Iterable[ExitStatus]) -> ExitStatus:
    """What srun makes of the ends of its tasks: the highest signal where a signal ended one, else the highest code; 0 for none.

    Source: _task_finish in launch_slurm.c of 22.05 and launch.c of 24.11.
    """
    return max(statuses, key=lambda status: (status.signal, status.code), default=ExitStatus(0))


# Slurm's numbers for messages that did not get through (slurm_errno.h). 5001 and 5003 would look like tasks that SIGKILL or
# SIGSEGV ended before their command began.
_UNDELIVERED = {
    1001: "no connection to a node", 1002: "sending failed", 1003: "receiving failed", 1004: "a connection was closed",
    5000: "an empty answer", 5002: "not all was sent", 5004: "no answer in time", 5005: "no byte was sent or received",
}  # fmt: skip


def undelivered(status: ExitStatus) -> str:
    """What went wrong between srun and the nodes, from the status of an srun whose tasks have not come up; empty if nothing did.

    Source: srun ends with the last byte of Slurm's error number where it cannot start a step (launch_slurm.c of 22.05, launch.c
    of 24.11).
    """
    return next((words for number, words in _UNDELIVERED.items() if status == ExitStatus(number & 0xFF)), "")


# How slurmstepd's errors begin in srun's output: on 26.05 with the time.
STEPD_ERROR = r"(?:slurmstepd[^:\s]*:|\[\d[^\]\s]*\]) error: "
# Of slurmstepd where `scancel JOB.STEP` has ended a step; 26.05 names the signal. With DUE TO it was the time limit, a preemption
# or a node. Seen on 22.05, 24.11 and 26.05.
_CANCELLED = rf"(?m)^{STEPD_ERROR}\*\*\* STEP (\d+\.\d+) ON \S+ CANCELLED AT \S+(?: DUE to SIGNAL Killed)? \*\*\*\s*$"
# Slurm ends a step with the same words for reasons of its own, and says these beside them.
_OTHERWISE = (
    r"(?mi)^(?:(?:srun|slurmstepd)\b|\[\d[^\]\s]*\] error: ).*"
    r"(?:launch failed|terminating|memory|oom|exceeded|i/?o error|pmi|mpi|not responding|failure"
    r"|exited with exit code|timed out)"
    # A rank has asked for it: Slurm's plug-in for MPI cancels the step then. The words are Open MPI's and MPICH's.
    r"|^MPI_ABORT was invoked on rank |\bapplication called MPI_Abort\("
)


def cancelled_steps(said: str) -> frozenset[str]:
    """Steps, `7.0`, that a person has cancelled, by what srun has said."""
    if "CANCELLED" not in said or re.search(_OTHERWISE, said):  # mostly nothing is said, and no pattern is worth its millisecond
        return frozenset()
    return frozenset(re.findall(_CANCELLED, said))


# Linux's numbers (signal(7)), the only ones Slurm's nodes have; a table, for the words do no I/O and need no module.
_NAMES = (
    "0", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR",
    "SYS",
)  # fmt: skip


def signal_name(number: int) -> str:
    """`SIGTERM` for 15; `signal 77` for one without a name."""
    return f"SIG{_NAMES[number]}" if 0 < number < len(_NAMES) else f"signal {number}"


def signal_number(name: str) -> int:
    """15 for `SIGTERM`; 77 for `signal 77`; 9 for a name that is not known: something killed it."""
    if name.startswith("signal ") and name[7:].isdigit():
        return min(64, int(name[7:])) or 9
    short = name.removeprefix("SIG")
    return _NAMES.index(short) if short in _NAMES[1:] else 9


# --- a process, as much of it as tells whose it is


class Process(Value):
    """A process, as /proc tells of it."""

    pid: int
    parent: int
    user_id: int
    name: str
    started: float  # seconds after the boot; with the pid it names one process of this boot
    state: str = ""  # zombie, once it has ended; any other word is for people
    login: bool = False  # it belongs to a session that somebody has opened on this node by ssh, a console or cron
    service: bool = False  # to a service of systemd's, and not to the one of slurmd
