"""Where the output of a job goes: the files of ftrun and its batch script, and the files that srun creates for ranks."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import UsageError
from ftslurm.launchers.rank_logs import RankFiles, rank_files
from ftslurm.launchers.srun_options import Component
from ftslurm.model.events import TasksEnded
from ftslurm.model.exits import STEPD_ERROR
from ftslurm.model.nodes import expand
from ftslurm.model.record import OutputTo
from ftslurm.model.text import expand_pattern, whole
from ftslurm.system.owner import user_name


def own_files(env: Mapping[str, str], proc: Path = Path("/proc")) -> tuple[str, ...]:
    """The plain files behind stdout and stderr of ftrun and of the batch script. The kernel tells; Slurm is not asked."""
    pids = ["self"]
    script = whole(env.get("SLURM_TASK_PID", ""))
    if script and env.get("ENVIRONMENT") == "BATCH":
        pids.append(str(script))
    found = (_file_behind(proc / pid / "fd" / fd) for pid in pids for fd in ("1", "2"))
    return tuple(dict.fromkeys(path for path in found if path))


def _file_behind(place: Path) -> str:
    """The path; empty for anything but a plain file that still has this name."""
    with suppress(OSError):
        path, info = str(place.readlink()), place.stat()
        if stat.S_ISREG(info.st_mode) and os.path.samestat(info, os.stat(path)):  # noqa: PTH116
            return path
    return ""


def ranks_files(components: Iterable[Component], env: Mapping[str, str], job: int) -> RankFiles:
    """The files of the ranks; for a step with several components nobody knows which rank has which."""
    only, *others = (rank_files(each.options, env, job, user_name(os.geteuid()), str(Path.cwd())) for each in components)
    if not others:
        return only
    return RankFiles(errors=None if all(each.errors is None for each in (only, *others)) else "")


def output_to(files: tuple[str, ...], ranks: RankFiles, logs: str = "") -> OutputTo | None:
    """The record of the output's place, None if nothing is known. The judge adds time and run. logs: as in OutputTo."""
    return OutputTo(0.0, "", files, ranks.files, ranks.label, logs) if files or ranks.files or logs else None


# --- where people find the output of a rank: the file that srun's options name, or our own stderr if that is a file


def output_place(ranks: RankFiles, job: int, own: str) -> tuple[str, bool]:
    """(pattern, labels): a path in which `%t`, `%n` and `%N` remain for the rank, empty if it is no file; and whether srun writes
    the rank before each line. own: the file that our own stderr is, or empty. The step differs by attempt: `*`.
    """
    if ranks.errors is None:
        return own.replace("%", "%%"), ranks.label
    return expand_pattern(ranks.errors, {"s": "*", "J": f"{job}.*"}, partly=True), ranks.label


def own_stderr() -> str:
    """The path of the file that our stderr is; empty for a terminal or a pipe."""
    return _file_behind(Path("/proc/self/fd/2"))


# --- what srun says while a step starts, where our stderr, which is also srun's, is a file: nobody else names the node on which a
# container did not start.

# `srun: error: n[2-3]: tasks 2-5: Exited with exit code 1`; seen on 22.05.
_ENDED = r"(?m)^srun: error: ([^\s:]+): tasks? [\d,-]+: \S.*$"
# Slurm's helpers speak of themselves in the first two; what enroot said has a mark of its own.
# Then what starts our shim, the shim itself, and runc.
_SPEAKERS = rf"{STEPD_ERROR}(?!spank: |Failed to invoke)(?:(pyxis): +)?|ftslurm: |time=\S+ level=error msg="
_WHY = rf"(?m)^(?:{_SPEAKERS})(.*)$"
_IDLE_WORDS = r"child \d+ failed with|printing enroot log file|task_init\(\) failed"
WHY_MOST = 300


def tasks_ended(said: str) -> Sequence[TasksEnded]:
    """At most one event, of all that srun has said."""
    nodes = ended_in(said)
    return (TasksEnded(nodes, why_in(said)),) if nodes else ()


def ended_in(said: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node for found in re.finditer(_ENDED, said) for node in _names(found[1])))


def _names(text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except UsageError:  # a rank's own words may look like srun's
        return ()


def why_in(said: str) -> str:
    """The reason that people look for: of several lines the last one with enroot's mark of an error, else the first."""
    words = [f"{found[1]}: {found[2].strip()}" if found[1] else found[2].strip() for found in re.finditer(_WHY, said)]
    telling = [line for line in words if not re.search(_IDLE_WORDS, line)]
    marked = [line for line in telling if "[ERROR]" in line]
    return (marked[-1] if marked else telling[0] if telling else "")[:WHY_MOST]
