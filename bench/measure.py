"""Small tools of the benchmarks: medians, commands, and a Slurm cluster of their own."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300
# /tmp is each node's own.
tempfile.tempdir = "/var/tmp"


@dataclass(frozen=True)
class Series:
    """Some measurements of one thing. unit: as printed."""

    name: str
    values: tuple[float, ...]
    unit: str

    def __str__(self) -> str:
        if not self.values:
            return f"{self.name:<58} not measured"
        low, high = min(self.values), max(self.values)
        median = statistics.median(self.values)
        return f"{self.name:<58} {median:9.3f} {self.unit:<3} median of {len(self.values)}, {low:.3f} to {high:.3f}"


def run(argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """stdout; raises CalledProcessError with what was said."""
    done = subprocess.run(
        list(argv), env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True, text=True, timeout=timeout_s
    )
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(argv)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


# What all nodes see: /tmp is each node's own.
SHARED_DISK = "/var/tmp"


def shared_folder() -> tempfile.TemporaryDirectory[str]:
    """A new folder that is the same on all nodes, gone after use."""
    return tempfile.TemporaryDirectory(prefix="ftslurm-bench-", dir=SHARED_DISK)


@contextlib.contextmanager
def cluster(nodes: int, *conf: str, cpus: int = 8) -> Iterator[dict[str, str]]:
    """A real Slurm cluster; gives the environment to use it. conf: further lines of slurm.conf. cpus: of each node."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as folder:
        Path(folder).chmod(0o755)  # slurmctld is not root's
        place = f"{folder}/cluster"
        tool = str(ROOT / "tools" / "slurm-cluster")
        run([tool, "up", "--dir", place, "--nodes", str(nodes), "--cpus", str(cpus), *(f"--conf={line}" for line in conf)])
        try:
            yield {"SLURM_CONF": f"{place}/slurm.conf", "FTSLURM_STATE_DIR": f"{folder}/state"}
        finally:
            run([tool, "down", "--dir", place])


def batch(script: str, env: Mapping[str, str], folder: Path, *options: str, timeout_s: float = TIMEOUT_S) -> str:
    """Submit `script`, wait for its end, give its output."""
    file = folder / "job.sh"
    file.write_text(script)
    output = folder / "job.out"
    output.unlink(missing_ok=True)
    run(["sbatch", "--wait", "--open-mode=append", f"--output={output}", *options, str(file)], env, folder, timeout_s)
    return output.read_text()
