"""Where the output of a job goes: the files of ftrun and its batch script, and the files that srun creates for ranks."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ftslurm.launchers.rank_logs import RankFiles, rank_files
from ftslurm.launchers.srun_options import Component
from ftslurm.model.record import OutputTo
from ftslurm.model.text import whole


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
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    only, *others = (rank_files(each.options, env, job, user, str(Path.cwd())) for each in components)
    if not others:
        return only
    return RankFiles(errors=None if all(each.errors is None for each in (only, *others)) else "")


def output_to(files: tuple[str, ...], ranks: RankFiles, logs: str = "") -> OutputTo | None:
    """The record of the output's place, None if nothing is known. The judge adds time and run. logs: as in OutputTo."""
    return OutputTo(0.0, "", files, ranks.files, ranks.label, logs) if files or ranks.files or logs else None
