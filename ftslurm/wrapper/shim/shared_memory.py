"""Files in /dev/shm that killed ranks have left: libraries unlink theirs only at an end of their own. Each start leaves more."""

from __future__ import annotations

import os
import time

from ftslurm.wrapper.shim.fast_stdlib import signal
from ftslurm.wrapper.shim.processes import RESCAN_S

SHARED_MEMORY = "/dev/shm"  # noqa: S108
# NCCL's segments, torch's tensors (torch_PID_..., by its strategy file_system), PSM's and CUDA's. Others may be meant
# to outlive a restart.
OF_LIBRARIES = ("nccl-", *(f"torch_{digit}" for digit in range(1, 10)), "psm2_", "psm3_", "cuda-ipc", "cuda.shm.")
LOOK_S = 2
# The kernel dates files by its last tick: what a rank makes at once looks older than its start. Source: CONFIG_HZ, 100 at least.
TICK_S = 0.01


def clear_shared_memory(began: float) -> None:
    """Remove what has changed there since `began` (Unix seconds), is ours, and no process has any more. None of this rank runs.

    By a child that does not outlive LOOK_S: whoever looks at the memory of a stuck process may get stuck himself.
    """
    left = _left_since(began)
    if not left:
        return
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LOOK_S)
            for path in left - _held():
                os.unlink(path)
        finally:
            os._exit(0)
    deadline = time.monotonic() + LOOK_S + 1
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
        time.sleep(RESCAN_S)


def _left_since(began: float) -> set[str]:
    found = set()
    try:
        for name in os.listdir(SHARED_MEMORY):
            if name.startswith(OF_LIBRARIES):
                info = os.lstat(f"{SHARED_MEMORY}/{name}")
                mine = info.st_mode & 0o170000 == 0o100000 and info.st_uid == os.getuid() and info.st_ctime >= began - TICK_S
                if mine and not _maker_lives(name):
                    found.add(f"{SHARED_MEMORY}/{name}")
    except OSError:
        pass  # there is none, or somebody else has just removed one: then the next stop finds the rest
    return found


def _maker_lives(name: str) -> bool:
    """torch closes a tensor's file before another process opens it, and names it for the process that made it."""
    kind, _, rest = name.partition("_")
    return kind == "torch" and os.path.exists(f"/proc/{rest.partition('_')[0]}")


def _held() -> set[str]:
    """Files there that a process of ours has mapped or open. Raises: PermissionError for one that does not let us look."""
    found: set[str] = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pid == "1" or os.stat(f"/proc/{pid}").st_uid != os.getuid():  # init has none, and may be closed even to its user
                continue
            found.update(os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
            with open(f"/proc/{pid}/maps", errors="replace") as maps:
                found.update(line.rstrip("\n")[line.find("/") :] for line in maps if SHARED_MEMORY in line)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return found
