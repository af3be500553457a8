"""The files that ranks write into: patterns of names, files of their own, and what the command line tells. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePosixPath

from ftslurm.launchers.srun_options import option_value, said
from ftslurm.model.settings.features import STDERR, STDOUT, streams, streams_of
from ftslurm.model.text import FILE_FIELD, expand_pattern, whole
from ftslurm.model.values import Value


class StreamKind(Enum):
    """What -i, -o and -e can ask for."""

    ALL = "our own stream"
    NONE = "/dev/null"
    ONE = "our own stream for one task, /dev/null for the others"
    FILE = "one file for all"
    EACH = "a file by task or node"


class StreamTarget(Value):
    kind: StreamKind
    task: int = 0
    pattern: str = ""


def read_target(text: str | None, tasks: int) -> StreamTarget:
    """Source: fname_create in srun's fname.c."""
    if text is None or text[:3].lower() == "all" or text.startswith("-"):
        return StreamTarget(StreamKind.ALL)
    if text.lower() == "none":
        return StreamTarget(StreamKind.NONE)
    task = whole(text)
    if task is not None and task < tasks:
        return StreamTarget(StreamKind.ONE, task=task)
    if "\\" in text:  # srun's way to say that nothing is a pattern
        return StreamTarget(StreamKind.FILE, pattern=text.replace("\\", "").replace("%", "%%"))
    each = any(found[3] in "tnNu" for found in re.finditer(FILE_FIELD, text) if found[3])
    return StreamTarget(StreamKind.EACH if each else StreamKind.FILE, pattern=text)


def letters_of(pattern: str) -> frozenset[str]:
    return frozenset(found[3] for found in re.finditer(FILE_FIELD, pattern) if found[3])


# --- files of their own for ranks, begun anew with each attempt, as torchrun and ft_launcher make them. Pure: the shims open them

_FILES = {STDOUT: "stdout.log", STDERR: "stderr.log"}
NOWHERE = "/dev/null"


class StreamTo(Value):
    """Where one stream goes. path: of a file, empty for none. label, shown_label: before each line there, and on the console.
    console: where the shim's own stream goes, too."""

    path: str
    label: str
    console: bool
    shown_label: str


class RankLogs(Value):
    """folder: empty for none; `%n` in it is the slot of the node, `%%` a percent sign. redirects, tee: model/settings/streams.py.
    console_ranks: local ranks that are shown there; empty: all. cycle_files: path, empty for none. line_prefix: before lines
    that `tee` shows, with ${role_name}, ${rank} and ${local_rank}."""

    folder: str = ""
    redirects: str = "0"
    tee: str = "0"
    console_ranks: tuple[int, ...] = ()
    cycle_files: str = ""
    line_prefix: str = ""

    def __bool__(self) -> bool:
        return bool(self.folder or self.cycle_files or self.console_ranks)

    def streams(self, rank: int, place: tuple[int, int], size: int, cycle: int, role: str) -> dict[int, StreamTo]:
        """By stream; one that is not in it goes where the shim's own goes. place: slot and local rank. size: ranks of the step.
        cycle: attempts before this one."""
        if self.cycle_files:
            to = StreamTo(cycle_file(self.cycle_files, cycle), f"{rank:>{len(str(size - 1))}}: ", False, "")
            return {STDOUT: to, STDERR: to}
        from string import Template  # rarely asked for

        slot, local = place
        shown, tee = not self.console_ranks or local in self.console_ranks, streams_of(self.tee, local)
        written = (streams_of(self.redirects, local) | tee) if self.folder else 0
        prefix = Template(self.line_prefix).safe_substitute(role_name=role, rank=rank, local_rank=local)
        found = {}
        for stream, name in _FILES.items():
            if written & stream:
                path = f"{self.rank_folder(slot, local, cycle)}/{name}"
                found[stream] = StreamTo(path, "", shown and bool(tee & stream), prefix)
            elif not shown:
                found[stream] = StreamTo(NOWHERE, "", False, "")
        return found

    def rank_folder(self, slot: int, local: int, cycle: int) -> str:
        return f"{expand_pattern(self.folder, {'n': str(slot)}, partly=True)}/attempt_{cycle}/{local}" if self.folder else ""

    def files(self, slot: int, local: int, cycle: int) -> tuple[str, ...]:
        """Those that the rank at that place writes itself."""
        if not self.folder or self.cycle_files:
            return ()
        written = streams_of(self.redirects, local) | streams_of(self.tee, local)
        return tuple(f"{self.rank_folder(slot, local, cycle)}/{name}" for stream, name in _FILES.items() if written & stream)

    def place_of_errors(self) -> tuple[str, bool] | None:
        """(pattern of the file with stderr, do its lines begin with the rank?) for people, as in output_place; None: not here."""
        if self.cycle_files:
            return cycle_file(self.cycle_files.replace("%", "%%"), "*"), True
        if not self.folder or {self.redirects, self.tee} <= {"0", "1"}:
            return None
        rank = "*" if "%n" in self.folder.replace("%%", "") else "%t"
        return f"{self.folder}/attempt_*/{rank}" + ("" if ":" in self.redirects + self.tee else "/stderr.log"), False

    def as_text(self) -> str:
        """The text for the ledger; empty if there are no such files."""
        return json.dumps({name: getattr(self, name) for name in self.__match_args__}, separators=(",", ":")) if self else ""


def from_text(text: str) -> RankLogs:
    """Which files there are, of what `as_text` wrote; what makes no sense is none."""
    try:
        tree = json.loads(text) if text else {}
        folder, cycle_files = str(tree.get("folder", "")), str(tree.get("cycle_files", ""))
        return RankLogs(folder, streams(tree.get("redirects", 0)), streams(tree.get("tee", 0)), cycle_files=cycle_files)
    except (ValueError, RecursionError, AttributeError):
        return RankLogs()


def cycle_file(path: str, cycle: int | str) -> str:
    """`/a/train.log` -> `/a/train_cycle0.log`; without a suffix it gets `.log`."""
    whole = PurePosixPath(path)
    return f"{path.removesuffix(whole.suffix)}_cycle{cycle}{whole.suffix or '.log'}"


def logs_told(found: Mapping[int, StreamTo]) -> dict[str, list[object]]:
    """The message to a shim."""
    return {str(stream): [to.path, to.label, to.console, to.shown_label] for stream, to in found.items()}


# --- the files that the ranks of a step write into, as far as its command line tells. Pure

# How files are shared: each task its own, those of a node one, or all one.
TASK, NODE, ONE = "task", "node", "one"


class RankFiles(Value):
    """files: (how they are shared, pattern of an absolute path in which step, task and node are still open). label: lines begin
    with the rank. errors: the pattern of stream 2's file, None where that is our own stream, empty where it is no file, or
    nobody knows.
    """

    files: tuple[tuple[str, str], ...] = ()
    label: bool = False
    errors: str | None = ""


def job_letters(options: Sequence[str], env: Mapping[str, str], job: int, user: str) -> dict[str, str]:
    """Those of srun(1) "FILENAME PATTERN" that the job has. Where srun prints its own "no value", so do we: scripts know it."""
    return {
        "j": str(job), "A": env.get("SLURM_ARRAY_JOB_ID", str(job)), "a": env.get("SLURM_ARRAY_TASK_ID", "4294967294"),
        "x": option_value(options, "job-name") or env.get("SLURM_JOB_NAME", "(null)"), "u": user,
    }  # fmt: skip


def rank_files(options: Sequence[str], env: Mapping[str, str], job: int, user: str, folder: str) -> RankFiles:
    """folder: where srun is called. What is one for all srun opens itself, the rest slurmstepd in the folder of the tasks.

    Errors go where the output does, unless something else is said. A number names the only task that may print, of which
    nothing is known here. Source: srun(1), "IO Redirection".
    """
    known = job_letters(options, env, job, user)
    known = {letter: value.replace("%", "%%") for letter, value in known.items()}  # the rest is filled in later
    chdir = option_value(options, "chdir") or folder
    out = said(options, env, "output") or None
    err = said(options, env, "error") or None
    found: dict[str, tuple[str, str]] = {}
    errors: str | None = ""
    for stream, text in (("1", out), ("2", err or out)):
        if text is not None and whole(text) is not None:
            continue
        target = read_target(text, 0)
        if stream == "2" and target.kind is StreamKind.ALL:
            errors = None
        if target.kind in (StreamKind.FILE, StreamKind.EACH):
            each = target.kind is StreamKind.EACH
            how = TASK if "t" in letters_of(target.pattern) else NODE if each else ONE
            base = chdir if each and chdir.startswith("/") else folder
            path = target.pattern if target.pattern.startswith("/") else f"{base}/{target.pattern}"
            found[stream] = (how, expand_pattern(path, known, partly=True))
    files = tuple(dict.fromkeys(found.values()))
    errors = found["2"][1] if "2" in found else errors
    return RankFiles(files, said(options, env, "label") is not None, errors)
