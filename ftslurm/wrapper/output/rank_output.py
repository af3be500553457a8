"""Where people find the output of a rank: the file that srun's options name, or our own stderr if that is a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ftslurm.launchers.rank_logs import RankFiles, expand_pattern


def output_place(ranks: RankFiles, job: int, own: str) -> tuple[str, bool]:
    """(pattern, labels): a path in which `%t`, `%n` and `%N` remain for the rank, empty if it is no file; and whether srun writes
    the rank before each line. own: the file that our own stderr is, or empty. The step differs by attempt: `*`.
    """
    if ranks.errors is None:
        return own.replace("%", "%%"), ranks.label
    return expand_pattern(ranks.errors, {"s": "*", "J": f"{job}.*"}, partly=True), ranks.label


def own_stderr() -> str:
    """The path of the file that our stderr is; empty for a terminal or a pipe."""
    try:
        if not stat.S_ISREG(os.fstat(2).st_mode):
            return ""
        path = str(Path("/proc/self/fd/2").readlink())
    except OSError:
        return ""
    return "" if path.endswith(" (deleted)") else path
