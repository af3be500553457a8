"""What `ftslurm status` costs with 10,000 ledgers in the state folder: CPU of the whole command, Slurm's own beside it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import ROOT, Series

from ftslurm.ledger.index import Index
from ftslurm.ledger.journal import to_line
from ftslurm.model import record as rec

LEDGERS, ROUNDS = 10_000, 5


def ledger(number: int, now: float) -> bytes:
    """Of a job with one restart in place and one requeue, that ended within the last month."""
    at = now - number * 30 * 86400 / LEDGERS
    run = rec.RunBegan(at, "r1", str(number), "c", 0, "k", "python train.py --size 7b", "n[1-4]", name="train", number=number,
                       budgets={"max_restarts": 8})  # fmt: skip
    remedy = rec.Decided(at, "r1-1", 1, "unconditional-requeue", "crash", "rank 3 on n2 exited", cost="max_restarts")
    records = [
        run, rec.AttemptBegan(at, "r1", 1, 0, "k", 1, "n[1-4]", 32), rec.TroubleSeen(at, 1, "crash", "rank 3 exited"), remedy,
        rec.AttemptEnded(at, 1, {"exited with status 1": 32}), rec.CarriedOut(at, "r1-1", True, "requeued"),
        rec.AttemptBegan(at, "r2", 2, 1, "k", 1, "n[1-4]", 32), rec.AttemptEnded(at, 2, {"exited with status 0": 32}),
        rec.Finished(at, "r2", 0, "rank 0 exited with status 0"),
    ]  # fmt: skip
    return b"".join(to_line(record) for record in records)


def cpu_s(state: str, *options: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv, env = [str(Path(sys.executable).parent / "ftslurm"), "status", *options], {**os.environ, "FTSLURM_STATE_DIR": state}
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure() -> list[Series]:
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as state:
        jobs, now = Path(state) / "jobs", time.time()
        jobs.mkdir(mode=0o700)
        for number in range(1, LEDGERS + 1):
            (jobs / f"c.{number}.jsonl").write_bytes(ledger(number, now))
            (jobs / f"c.{number}.lock").touch()
        first = cpu_s(state)
        assert len(Index(Path(state)).named()) == LEDGERS
        return [
            Series(f"status of {LEDGERS} ledgers that no index knows yet", (first,), "s"),
            Series("the same with the index: jobs of the last week", tuple(cpu_s(state) for _ in range(ROUNDS)), "s"),
            Series("the same: all of them", tuple(cpu_s(state, "--all") for _ in range(ROUNDS)), "s"),
            Series("status with an empty state folder", tuple(cpu_s(f"{state}/none") for _ in range(ROUNDS)), "s"),
        ]


if __name__ == "__main__":
    for series in measure():
        print(series)
