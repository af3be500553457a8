"""The files that the ranks of a step write into, as far as its command line tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ftslurm.launchers.file_patterns import Kind, expand_pattern, letters_of, read_target
from ftslurm.launchers.srun_options import has_flag, option_value
from ftslurm.model.text import whole
from ftslurm.model.values import dataclass

# How files are shared: each task its own, those of a node one, or all one.
TASK, NODE, ONE = "task", "node", "one"


@dataclass(frozen=True, slots=True)
class RankFiles:
    """files: (how they are shared, pattern of an absolute path in which step, task and node are still open). label: lines begin
    with the rank. errors: the pattern of stream 2's file, None where that is our own stream, empty where it is no file, or
    nobody knows.
    """

    files: tuple[tuple[str, str], ...] = ()
    label: bool = False
    errors: str | None = ""


def rank_files(options: Sequence[str], env: Mapping[str, str], job: int, user: str, folder: str) -> RankFiles:
    """folder: where srun is called. What is one for all srun opens itself, the rest slurmstepd in the folder of the tasks.

    Errors go where the output does, unless something else is said. A number names the only task that may print, of which
    nothing is known here. Source: srun(1), "IO Redirection".
    """
    known = {
        "j": str(job), "A": env.get("SLURM_ARRAY_JOB_ID", str(job)), "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "x": option_value(options, "job-name") or env.get("SLURM_JOB_NAME", "(null)"), "u": user,
    }  # fmt: skip
    known = {letter: value.replace("%", "%%") for letter, value in known.items()}  # the rest is filled in later
    chdir = option_value(options, "chdir") or folder
    out = option_value(options, "output") or env.get("SLURM_STDOUTMODE")
    err = option_value(options, "error") or env.get("SLURM_STDERRMODE")
    found: dict[str, tuple[str, str]] = {}
    errors: str | None = ""
    for stream, text in (("1", out), ("2", err or out)):
        if text is not None and whole(text) is not None:
            continue
        target = read_target(text, 0)
        if stream == "2" and target.kind is Kind.ALL:
            errors = None
        if target.kind in (Kind.FILE, Kind.EACH):
            each = target.kind is Kind.EACH
            how = TASK if "t" in letters_of(target.pattern) else NODE if each else ONE
            base = chdir if each and chdir.startswith("/") else folder
            path = target.pattern if target.pattern.startswith("/") else f"{base}/{target.pattern}"
            found[stream] = (how, expand_pattern(path, known, partly=True))
    files = tuple(dict.fromkeys(found.values()))
    errors = found["2"][1] if "2" in found else errors
    return RankFiles(files, has_flag(options, "label") or "SLURM_LABELIO" in env, errors)
