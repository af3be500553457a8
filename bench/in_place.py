"""From a rank's failure to the last rank's new start: ftrun in place beside torchrun --max-restarts."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from measure import ROOT, Series, batch, run, shared_folder

RANKS = 8
FAILURES, ROUNDS = 10, 3
FTRUN = f"{Path(sys.executable).parent}/ftrun"
RANK = ROOT / "bench" / "rank.sh"


def restart_times_s(folder: Path) -> tuple[float, ...]:
    """For each failure: last new start minus the exit that caused it, seconds. The first one, while agents start, too."""
    exits: dict[int, float] = {}
    starts: dict[int, list[float]] = {}
    for file in folder.iterdir():
        for line in file.read_text().splitlines():
            number, what, at = line.split()
            if what == "exit":
                exits[int(number)] = float(at)
            else:
                starts.setdefault(int(number), []).append(float(at))
    return tuple(max(starts[n + 1]) - at for n, at in sorted(exits.items()) if len(starts.get(n + 1, ())) == RANKS)


def measure(env: Mapping[str, str]) -> list[Series]:
    """In turn."""
    rounds = [(locally(), on_slurm(env), torchrun()) for _ in range(ROUNDS)]
    return [replace(same[0], values=tuple(value for one in same for value in one.values)) for same in zip(*rounds, strict=True)]


def on_slurm(env: Mapping[str, str]) -> Series:
    with shared_folder() as temporary:
        folder, marks = Path(temporary), Path(temporary) / "marks"
        marks.mkdir()
        command = f"{FTRUN} --ft-set rungs.in-place-restart.crash_restarts=1000 bash {RANK} {marks} {FAILURES}"
        batch(f"#!/bin/bash\nexec {command}\n", env, folder, "-N1", f"-n{RANKS}")
        return Series(f"in-place restart, ftrun under srun, {RANKS} ranks", _ms(marks), "ms")


def locally() -> Series:
    with shared_folder() as temporary:
        marks = Path(temporary) / "marks"
        marks.mkdir()
        options = ["--ft-launcher", "local", "--ft-set", "rungs.in-place-restart.crash_restarts=1000", f"-n{RANKS}"]
        run([FTRUN, *options, "bash", str(RANK), str(marks), str(FAILURES)], {"FTSLURM_STATE_DIR": temporary})
        return Series(f"in-place restart, ftrun local, {RANKS} ranks", _ms(marks), "ms")


def torchrun() -> Series:
    name = f"in-place restart, torchrun --max-restarts, {RANKS} ranks"
    program = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if program is None:
        return Series(f"{name} (pip install torch)", (), "ms")
    with shared_folder() as temporary:
        marks = Path(temporary) / "marks"
        marks.mkdir()
        options = ["--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={FAILURES}", "--no-python"]
        run([program, *options, "bash", str(RANK), str(marks), str(FAILURES)])
        return Series(name, _ms(marks), "ms")


def _ms(marks: Path) -> tuple[float, ...]:
    return tuple(seconds * 1000 for seconds in restart_times_s(marks))
