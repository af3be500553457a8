"""Thousands of restarts in one job, or days of beats: what grows of a controller's memory, threads, descriptors, CPU and ledger.

bench/soak.py 2000          restarts; the callers are those of bench/scale.py
bench/soak.py --hours 72    as many beats as so many hours have, each sent as soon as the one before is answered
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import scale

RANKS, EVERY = 32, 200
scale.LIMIT_S = 600.0  # a tenth of three days of beats takes longer than anything there


class Many(scale.Stage):
    """Its controller restarts as often as it is asked to."""

    def look(self, so_far: str, folder: Path) -> None:
        place = Path(f"/proc/{self.controller}")
        known = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
        print(
            f"{so_far}  {int(known['VmRSS'].split()[0]) / 1000:.1f} MB  {known['Threads'].strip()} threads"
            f"  {len(list((place / 'fd').iterdir()))} descriptors  {self.cpu_s():.1f} CPU s"
            f"  ledger {(folder / 'jobs/scale.1.jsonl').stat().st_size / 1e6:.2f} MB",
            flush=True,
        )


def restarts(stage: Many, folder: Path, most: int) -> None:
    for number in range(most):
        if number % EVERY == 0:
            stage.look(f"{number} restarts", folder)
        stage.tell("crash")
        stage.await_marks("stop", RANKS - 1)
        stage.await_marks("start", RANKS)
    stage.look(f"{most} restarts", folder)


def beats(stage: Many, folder: Path, hours: int) -> None:
    """A tenth of them at a time."""
    for tenth in range(10):
        stage.look(f"{hours * tenth / 10:g} h of beats", folder)
        stage.tell(f"beats {hours / 10}")
        stage.await_marks("beaten", RANKS + RANKS // scale.PER_NODE)
    stage.look(f"{hours} h of beats", folder)


def main(play: Callable[[Many, Path, int], None], most: int) -> None:
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as folder:
        stage = Many(RANKS, 0, Path(folder))
        try:
            stage.await_marks("start", RANKS)
            stage.await_marks("agent", RANKS // scale.PER_NODE)
            time.sleep(2.0)
            play(stage, Path(folder), most)
        finally:
            stage.end()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--hours", hours]:
            main(beats, int(hours))
        case words:
            main(restarts, int(words[0]) if words else 2000)
