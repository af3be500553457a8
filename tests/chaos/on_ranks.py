"""Faults of the program itself."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

from tests.chaos.job import Job, Missed
from tests.chaos.victims import any_rank, room_to_isolate


def rank_exits(job: Job) -> str:
    rank, status = any_rank(job), job.rng.choice([1, 2, 3, 17, 42, 120])
    order(job, rank, f"exit {status}")
    return f"rank {rank} with status {status}"


def rank_killed(job: Job) -> str:
    return signalled(job, signal.SIGKILL)


def rank_segv(job: Job) -> str:
    return signalled(job, signal.SIGSEGV)


def rank_stopped(job: Job) -> str:
    return signalled(job, signal.SIGSTOP)


def rank_stalls(job: Job) -> str:
    rank = any_rank(job)
    order(job, rank, "stall")
    return f"rank {rank}"


def rank_convicts(job: Job) -> str:
    room_to_isolate(job)
    rank = any_rank(job)
    order(job, rank, "say RuntimeError: CUDA error: uncorrectable ECC error encountered")
    return f"rank {rank} says ECC"


def order(job: Job, rank: int, words: str) -> None:
    """The rank's program obeys within a moment."""
    path = job.told.folder / f"order.{job.attempt()}.{rank}"
    fresh = path.with_suffix(".new")
    fresh.write_text(words)
    fresh.chmod(0o666)
    fresh.rename(path)
    deadline = time.monotonic() + 10.0
    while path.exists():
        if time.monotonic() > deadline or rank not in job.running():
            with suppress(FileNotFoundError):  # it ended because of the order
                path.unlink()
                raise Missed("the rank ended before it had the order")
        time.sleep(0.05)


def signalled(job: Job, number: signal.Signals) -> str:
    rank = any_rank(job)
    pid = job.running().get(rank)
    if pid is None:
        raise Missed("it has just ended")
    job.kill(pid, number)
    return f"rank {rank} by {number.name}"
