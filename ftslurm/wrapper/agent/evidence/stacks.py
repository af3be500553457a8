"""Stacks of a rank's threads, by py-spy where it is installed, and what they show that the main one waits in."""

# ruff: noqa: PTH118, PTH120

from __future__ import annotations

import os
import re
import shutil
import sys
from itertools import pairwise

from ftslurm.errors import CommandMissing
from ftslurm.policies.hang.whohangs import MPI
from ftslurm.system.commands import Runner
from ftslurm.wrapper.agent.evidence.recorder import ASK_S

NATIVE_S = 5.0  # native stacks take 50 ms of CPU, and one more read per MPI call: on a busy node this waits for a processor
STACK_BYTES = 16 << 10
# Functions of torch that wait for something else: Popen.wait and threading's. Writing a checkpoint is no communication.
_INSIDE = re.compile(
    r"torch/distributed/(?!checkpoint/|elastic/)|ftslurm/sdk/probe|_engine_run_backward"
    r"|\b(?:wait|synchronize) \([^)]*(?:torch|c10|nccl|gloo|mindspore|hccl)"
)
# Python names threads only if `threading` is loaded; the main thread has the number of the process.
_MAIN_THREAD = re.compile(
    r'(?:^Process (?P<pid>\d+):.*?)?^Thread (?:(?P=pid)\b[^\n]*|[^\n]*"MainThread"[^\n]*)\n(?P<frames>(?:[ \t]+[^\n]*\n?)*)',
    re.M | re.S,
)


def has_main_thread(dump: str) -> bool:
    return _MAIN_THREAD.search(dump) is not None


def stack_inside(dump: str, thread: int = 0) -> bool | None:
    """Does a thread of a `py-spy dump`, by default the main one, wait in torch.distributed or in backward()? None: unknown."""
    other = rf"^Thread {thread}\b[^\n]*\n(?P<frames>(?:[ \t]+[^\n]*\n?)*)"
    found = re.search(other, dump, re.M) if thread else _MAIN_THREAD.search(dump)
    frames = found["frames"].splitlines()[:3] if found else []
    return any(_INSIDE.search(frame) for frame in frames) if frames else None


# MPI calls that wait for other ranks of the job; not those that read files, wait for outside processes, or return at once.
_MPI_CALL = re.compile(r"^\s+P?MPI_((?!File_|Init|Comm_(?:accept|connect|spawn)|Test|Iprobe|Improbe)\w+) \(")
_MPI4PY = re.compile(r"\(mpi4py/")


def mpi_call(dump: str) -> str:
    """The MPI call in which the main thread of a `py-spy dump --native` is, such as `MPI_Allreduce`; empty if there is none.

    Only calls that mpi4py made itself: it returns to Python after each call, whereas a C library may make many.
    """
    found = _MAIN_THREAD.search(dump)
    for inner, outer in pairwise(found["frames"].splitlines() if found else ()):
        call = _MPI_CALL.match(inner)
        if call and _MPI4PY.search(outer):
            return f"{MPI}{call[1]}"
    return ""


def py_spy() -> str | None:
    """The path of py-spy: beside our own Python, or on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy")


class Stacks:
    """py-spy, if there is one."""

    def __init__(self, runner: Runner) -> None:
        self._spy = py_spy()
        self._run = runner

    def of(self, pid: int, left_s: float, native: bool = False) -> str:
        """The stack, empty if nobody can look. native: with C frames, for which ptrace(2) stops the process for 20 ms: only for a
        running process, since this may end a wait.
        """
        if self._spy is None or left_s < 0.1:
            return ""
        try:
            how = "--native" if native else "--nonblocking"
            limit_s = NATIVE_S if native else ASK_S
            done = self._run([self._spy, "dump", how, "--pid", str(pid)], timeout_s=min(limit_s, left_s))
        except (CommandMissing, OSError):
            return ""
        return done.stdout[:STACK_BYTES]
