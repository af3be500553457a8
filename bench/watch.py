"""What it costs that a job can be watched: while nobody does, and while somebody does; CPU time, of all processes of ftrun."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from measure import ROOT, Series

from ftslurm.ledger import live as files
from ftslurm.model.messages import DeviceLive, Live, NodeLive, RankLive, TaskLive
from ftslurm.model.record import AttemptBegan, RunBegan
from ftslurm.report.view import status_of
from ftslurm.report.watch import Seen, screen
from ftslurm.wrapper.controller.live import LOOK_S, TELL_S

LOOKS, ROUNDS, JOB_S = 20_000, 3, 20


def cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def live(ranks: int) -> Live:
    """Of a job with eight ranks and devices a node."""
    rank = RankLive(0, 0, 12345, 0.123, 12345, 0.123, 3.456, (), 1.234, 1e6, 123456, "nccl:all_reduce 1024", 0.5)
    device = DeviceLive("0", "gpu", "good", (), 97.0, 55.0, 612.0)
    tasks = tuple(TaskLive(number, f"node{number // 8:04}", "running") for number in range(ranks))
    eight = [tuple(replace(rank, rank=8 * node + n, task=8 * node + n) for n in range(8)) for node in range(ranks // 8)]
    nodes = tuple(NodeLive(f"node{node:04}", 0.5, 1.5, on_it, (device,) * 8) for node, on_it in enumerate(eight))
    return Live("r", 1, time.time(), TELL_S, tasks, nodes)


def per_call_ms(work: object, calls: int) -> float:
    before = cpu_s()
    for _ in range(calls):
        work()  # type: ignore[operator]
    return 1000 * (cpu_s() - before) / calls


def measure() -> list[Series]:
    found = []
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as folder:
        ledger = Path(folder) / "c.1.jsonl"
        files.make_request(ledger)
        look = tuple(1000 * per_call_ms(lambda: files.request_changed(ledger), LOOKS) for _ in range(ROUNDS))
        found.append(Series(f"one look for who watches, every {LOOK_S:g} s", look, "us"))
        for ranks in (8, 1024, 10_000):
            told, calls = live(ranks), max(2, 2000 // ranks)
            write = tuple(per_call_ms(lambda told=told: files.write_live(ledger, told), calls) for _ in range(ROUNDS))
            found.append(Series(f"ftrun writes what it tells of {ranks} ranks", write, "ms"))
            read = tuple(per_call_ms(lambda: shown(ledger), calls) for _ in range(ROUNDS))
            found.append(Series(f"watch reads it, and makes a page of it: {ranks} ranks", read, "ms"))
            found.append(Series(f"size of the file: {ranks} ranks", (files.live_path(ledger).stat().st_size / 1024,), "KiB"))
    for name, watched in (("nobody watches", False), ("somebody watches", True)):
        used = tuple(job(watched) for _ in range(ROUNDS))
        found.append(Series(f"ftrun and its agents, 16 ranks for {JOB_S} s: {name}", used, "s"))
    return found


def shown(ledger: Path) -> None:
    told = files.read_live(ledger)
    assert told is not None
    began = RunBegan(0.0, "r", "1", "c", 0, "k", "train", "node0000")
    records = (began, AttemptBegan(0.0, "r", 1, 0, "k", 1, "node0000", len(told.tasks)))
    view = status_of(records)
    assert view is not None
    screen(Seen(1.0, view, records, told), 80, 24)


def job(watched: bool) -> float:
    """CPU seconds of all processes of a job whose ranks sleep, of two nodes with eight ranks each."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-") as folder:
        env = {**os.environ, "FTSLURM_STATE_DIR": folder, "PYTHONPATH": str(ROOT)}
        argv = (sys.executable, "-m", "ftslurm", "--ft-launcher", "local", "-N", "2", "--ntasks-per-node=8", "sleep", str(JOB_S))
        before, over = cpu_s(resource.RUSAGE_CHILDREN), threading.Event()
        ftrun = subprocess.Popen(argv, env=env, cwd=ROOT)
        if watched:
            threading.Thread(target=watch, args=(Path(folder) / "jobs" / "local.1.jsonl", over), daemon=True).start()
        assert ftrun.wait() == 0
        over.set()
        return cpu_s(resource.RUSAGE_CHILDREN) - before


def watch(ledger: Path, over: threading.Event) -> None:
    """As somebody who watches, but for the reading."""
    while not over.wait(1.0):
        try:
            files.write_request(ledger, {})
        except OSError:
            continue


if __name__ == "__main__":
    for series in measure():
        print(series)
