"""Thousands of restarts in one job: what grows of a controller's memory, threads, descriptors, CPU and ledger.

bench/soak.py 2000      restarts; the callers are those of bench/scale.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import scale

from ftslurm.model.settings.tree import Settings, with_values

RANKS, EVERY = 32, 200


class Many(scale.Stage):
    """Its controller restarts as often as it is asked to."""

    def look(self, restarts: int, folder: Path) -> None:
        place = Path(f"/proc/{self.controller}")
        known = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        print(
            f"{restarts} restarts  {int(known['VmRSS'].split()[0]) / 1000:.1f} MB  {known['Threads'].strip()} threads"
            f"  {len(list((place / 'fd').iterdir()))} descriptors  {self.cpu_s():.1f} CPU s"
            f"  ledger {(folder / 'jobs/scale.1.jsonl').stat().st_size / 1e6:.2f} MB",
            flush=True,
        )


def main(restarts: int) -> None:
    scale.Settings = lambda: with_values(
        Settings(), {"rungs.in-place-restart.crash_restarts": 10**6, "rungs.in-place-restart.crash_restarts_total": 10**6}
    )  # type: ignore[assignment, misc]
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as folder:
        stage = Many(RANKS, 0, Path(folder))
        try:
            stage.await_marks("start", RANKS)
            stage.await_marks("agent", RANKS // scale.PER_NODE)
            time.sleep(2.0)
            for number in range(restarts):
                if number % EVERY == 0:
                    stage.look(number, Path(folder))
                stage.tell("crash")
                stage.await_marks("stop", RANKS - 1)
                stage.await_marks("start", RANKS)
            stage.look(restarts, Path(folder))
        finally:
            stage.end()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2000)
