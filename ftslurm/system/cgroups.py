"""Cgroups of Slurm's jobs: freeze all processes of a group at once, so that none can fork, and kill them.

cgroups v1: the freezer, under which even SIGKILL waits until it thaws. v2: cgroup.freeze, and cgroup.kill since Linux 5.14.
Touches only groups of a job, by Slurm's names: below a part with `slurm` in its name, a part `job_N`. So no service, no login and
nothing else of the machine is ever frozen. Source: the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/freezer-subsystem.rst;
src/plugins/cgroup of Slurm.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
PROC = Path("/proc")
FROZEN_S, POLL_S = 0.5, 0.01
_JOB = re.compile(r"job_\d+")


def job_groups(pid: int, mount: Path = MOUNT, proc: Path = PROC) -> tuple[Path, ...]:
    """The job's cgroups that contain the process, the outermost (the job's own) first; empty outside any job."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return ()
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        base = _hierarchy(controllers, mount)
        parts = path.strip("/").split("/")
        if base is None or ".." in parts or "." in parts or parts[0] == "user.slice":
            continue
        if parts[0] == "system.slice" and not (len(parts) > 1 and "slurm" in parts[1]):
            continue
        top = next((n for n, part in enumerate(parts) if _JOB.fullmatch(part) and "slurm" in "/".join(parts[:n])), None)
        if top is not None:
            found += [base.joinpath(*parts[: n + 1]) for n in range(top, len(parts))]
    return tuple(group for group in found if _state_file(group) is not None)


def _hierarchy(controllers: str, mount: Path) -> Path | None:
    """The mount point that can hold processes. Beside v1, v2 is mounted at `unified` (systemd's hybrid mode)."""
    if controllers == "":
        return next((base for base in (mount, mount / "unified") if (base / "cgroup.controllers").exists()), None)
    return mount / "freezer" if "freezer" in controllers.split(",") else None


def members(group: Path) -> frozenset[int]:
    """All processes in the group and below; 0 stands for one of another pid namespace. Raises: OSError."""
    found: set[int] = set()
    for folder, _, _ in os.walk(group):
        with suppress(FileNotFoundError):
            found.update(int(word) for word in (Path(folder) / "cgroup.procs").read_text().split())
    return frozenset(found)


@contextmanager
def standing_still(group: Path) -> Iterator[bool]:
    """Freeze the group; gives whether it is frozen. Thaws it at the end, whoever had frozen it before."""
    state = _state_file(group)
    if state is None:
        yield False
        return
    hold, go_on = ("1", "0") if state.name == "cgroup.freeze" else ("FROZEN", "THAWED")
    try:
        yield _write(state, hold) and _stands(group)
    finally:
        _write(state, go_on)


def is_frozen(pid: int, mount: Path = MOUNT, proc: Path = PROC) -> bool:
    """Is the process in a group of cgroups v1 that is frozen or about to be? There even SIGKILL waits."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        paths = [path for _, controllers, path in (line.split(":", 2) for line in lines) if "freezer" in controllers.split(",")]
        return any((mount / f"freezer{path}" / "freezer.state").read_text().strip() != "THAWED" for path in paths if path != "/")
    except (OSError, ValueError):
        return False


def kill_all(group: Path) -> bool:
    """SIGKILL all processes in the group and below at once; False if the kernel does not support it."""
    return (group / "cgroup.kill").exists() and _write(group / "cgroup.kill", "1")


def _stands(group: Path) -> bool:
    until = time.monotonic() + FROZEN_S
    while not _is_held(group):
        if time.monotonic() >= until:
            return False
        time.sleep(POLL_S)
    return True


def _is_held(group: Path) -> bool:
    try:
        if (group / "freezer.state").exists():
            return (group / "freezer.state").read_text().strip() == "FROZEN"
        return "frozen 1" in (group / "cgroup.events").read_text().splitlines()
    except OSError:
        return False


def _state_file(group: Path) -> Path | None:
    return next((file for file in (group / "cgroup.freeze", group / "freezer.state") if file.exists()), None)


def _write(file: Path, word: str) -> bool:
    """Write into a kernel file that exists."""
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, word.encode())
        finally:
            os.close(fd)
    except OSError:
        return False
    return True
