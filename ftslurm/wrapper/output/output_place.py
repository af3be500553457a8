"""Where people find what a rank printed: the file that srun's options name, or our own stderr where that is a file."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from ftslurm.launchers.srun_options import has_flag, option_value
from ftslurm.model.numbers import whole

_FIELD = re.compile(r"%(?:(%)|(\d*)([aAjJsutnNx]))")


def output_place(options: Sequence[str], env: Mapping[str, str], job: int, folder: Path, own: str) -> tuple[str, bool]:
    """(pattern, labels): a path in which `%t`, `%n` and `%N` are left for the rank, empty where it is no file; and whether srun
    writes the rank before each line. own: the file that our own stderr is, or empty.

    Source: srun(1), "IO Redirection" and "filename pattern": errors go where the output does, unless something else is said.
    """
    labels = has_flag(options, "label") or "SLURM_LABELIO" in env
    given = option_value(options, "error") or env.get("SLURM_STDERRMODE")
    given = given or option_value(options, "output") or env.get("SLURM_STDOUTMODE") or "all"
    if given.lower() == "none":
        return "", labels
    if given[:3].lower() == "all" or given.startswith("-") or whole(given) is not None:
        return own.replace("%", "%%"), labels
    known = {
        "j": str(job), "J": f"{job}.*", "s": "*", "A": env.get("SLURM_ARRAY_JOB_ID", str(job)),
        "a": env.get("SLURM_ARRAY_TASK_ID", "*"), "x": env.get("SLURM_JOB_NAME", "*"), "u": env.get("USER", "*"),
    }  # fmt: skip

    def value_of(found: re.Match[str]) -> str:
        letter = found[3]
        if letter is None or letter not in known:
            return found[0]
        value = known[letter].replace("%", "%%")
        return value.zfill(min(int(found[2][-2:] or 0), 10)) if value.isdecimal() else value

    place = Path(option_value(options, "chdir") or "") / _FIELD.sub(value_of, given)
    return str(folder / place), labels


def own_stderr() -> str:
    """The path of the file that our stderr is; empty for a terminal or a pipe."""
    try:
        if not stat.S_ISREG(os.fstat(2).st_mode):
            return ""
        path = str(Path("/proc/self/fd/2").readlink())
    except OSError:
        return ""
    return "" if path.endswith(" (deleted)") else path
