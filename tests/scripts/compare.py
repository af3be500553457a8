"""Runs each shape once with srun and once with ftrun, quiet and with one fault, and compares what the two leave.

Output and files are compared line by line, in any order: ranks print as they like. What launchers say of themselves is left out, and
so are numbers of jobs and names of folders, which differ between two jobs in any case.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.live.conftest import Cluster
from tests.live.stories import Stage
from tests.scripts.shapes import WORK, Shape

QUIET, FAULT = "quiet", "fault"
LAUNCHERS = ("srun", "ftrun")
END_S = 240.0
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
_NOT_COMPARED = frozenset({"job.sh", "work", "failed"})
# What a launcher, a shell or Slurm says, and times.
_TALK = re.compile(
    r"^(?:\w*: )?(?:ftrun|srun|slurmstepd\S*|salloc)[:\[]|^Try \"srun|^(?:real|user|sys)\s|^\S*(?:job\.sh|slurm_script): line|^\++ "
)


@dataclass(frozen=True)
class Left:
    """What a job left. seconds: from its first start to its end. files: name -> lines, the output among them."""

    state: str
    status: str
    seconds: float
    restarts: int
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """kind: `status`, `output`, `files`. srun, ftrun: the first that differs."""

    kind: str
    srun: str
    ftrun: str


class Runs:
    """The jobs of some shapes, submitted together."""

    def __init__(self, stage: Stage, shapes: Iterable[Shape]) -> None:
        self._stage = stage
        self._jobs = {
            (shape.name, mode, launcher): self._submit(shape, mode, launcher)
            for shape in shapes
            for mode in ((QUIET, FAULT) if shape.can_fail else (QUIET,))
            for launcher in LAUNCHERS
        }

    def _submit(self, shape: Shape, mode: str, launcher: str) -> tuple[int, Path, float]:
        folder = self._stage.folder(f"{shape.name}-{mode}-{launcher}")
        (folder / "npu").rmdir()
        (folder / "job.sh").write_text(shape.text(launcher))
        (folder / "work").write_text(WORK)
        (folder / "work").chmod(0o755)
        state = self._stage.home / f"state-{folder.name}"
        env = {
            "PATH": self._stage.path, "FTSLURM_STATE_DIR": str(state), "FTRUN_REQUEUE_START_IN": "8s",
            "FTRUN_STOP_GRACE": "2s", **({"FAULT": "1"} if mode == FAULT else {}),
        }  # fmt: skip
        if shape.name.startswith(("no-home", "home-")):
            del env["FTSLURM_STATE_DIR"]
        number = self._stage.cluster.submit(
            folder / "job.sh", f"--nodes={shape.nodes}", f"--ntasks-per-node={shape.tasks}", "--time=10", "--requeue",
            "--open-mode=append", "--job-name=job", "--output=out", "--error=err", *shape.options, env=env, cwd=folder,
        )  # fmt: skip
        return number, folder, time.time()

    def has(self, shape: Shape, mode: str) -> bool:
        return (shape.name, mode, "srun") in self._jobs

    def left(self, shape: Shape, mode: str, launcher: str) -> Left:
        """Once the job has ended."""
        number, folder, _ = self._jobs[shape.name, mode, launcher]
        job = self._stage.cluster.wait_for(lambda: _ended(self._stage.cluster, number), END_S, f"{folder.name} to end")
        hours, minutes, seconds = (int(part) for part in job["RunTime"].rpartition("-")[2].split(":"))
        return Left(
            job["JobState"], job["ExitCode"].partition(":")[0], hours * 3600 + minutes * 60 + seconds, int(job["Restarts"]),
            {str(path.relative_to(folder)): _lines(path, str(number), folder) for path in _files(folder)},
        )  # fmt: skip


def _ended(cluster: Cluster, number: int) -> dict[str, str]:
    job = cluster.job(number)
    return job if job["JobState"] in _OVER else {}


def _files(folder: Path) -> Sequence[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in _NOT_COMPARED]


def _lines(path: Path, number: str, folder: Path) -> tuple[str, ...]:
    text = path.read_text(errors="replace").replace(str(folder), "FOLDER").replace(number, "JOB")
    text = re.sub(r"/\S*(?=/ftslurm/)", "...", text)
    return tuple(sorted(line.replace("ftrun", "srun") for line in text.splitlines() if not _TALK.match(line)))


def _name(name: str) -> str:
    return re.sub(r"\d{3,}", "JOB", name)


def differences(srun: Left, ftrun: Left) -> list[Difference]:
    found = []
    if srun.status != ftrun.status:
        found.append(Difference("status", srun.status, ftrun.status))
    theirs, ours = ({_name(name): lines for name, lines in left.files.items()} for left in (srun, ftrun))
    if theirs.keys() != ours.keys():
        names = [
            ", ".join(sorted(mine - other)) or "none"
            for mine, other in ((theirs.keys(), ours.keys()), (ours.keys(), theirs.keys()))
        ]
        found.append(Difference("files", *names))
    for name in sorted(theirs.keys() & ours.keys()):
        if theirs[name] != ours[name]:
            found.append(Difference("output" if name in ("out", "err") else "files", *_first(theirs[name], ours[name])))
    return found


def _first(theirs: Sequence[str], ours: Sequence[str]) -> tuple[str, str]:
    """The first line of each that the other has not."""
    a, b = list(theirs), list(ours)
    for line in theirs:
        if line in b:
            a.remove(line)
            b.remove(line)
    return (a[0] if a else "nothing"), (b[0] if b else "nothing")


def table(found: Mapping[str, Sequence[Difference]], sources: Mapping[str, str]) -> str:
    """For docs/migrating.md: a row for each difference."""
    rows = [
        f"| {name} ({sources[name]}) | {each.kind} | `{each.srun}` | `{each.ftrun}` |"
        for name, all_ in sorted(found.items())
        for each in all_
    ]
    return "\n".join(["| script | differs in | with srun | with ftrun |", "|---|---|---|---|", *rows])
