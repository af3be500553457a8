"""What a sign of life costs the training: `bench/sdk.py [FOLDER ...]`.

FOLDER: where nvidia_resiliency_ext can be imported from, with what it needs (pip install --target; torch besides), beside
a colon and folders of its dependencies. Its client then runs the same loop against its own monitor, its defaults kept.
Each value is the mean of one of many short runs, so that the smallest is what it costs when nobody disturbs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import ROOT, Series

INJECT = ROOT / "ftslurm" / "sdk" / "inject"

LOOP = """
import sys, time, timeit
def told(name, call, number=2000, repeat=200):
    for seconds in timeit.repeat(call, number=number, repeat=repeat):
        print(name, seconds / number * 1e9, sep="\\t")
"""

OURS = (
    LOOP
    + """
from ftslurm.sdk import client as ft
from ftslurm.sdk.page import read_page
def pair():
    ft.start_section("step")
    ft.end_section("step")
def scope():
    with ft.section("step"):
        pass
told("a clock is read", time.monotonic_ns)
told("heartbeat()", ft.heartbeat)
told("start_section(), end_section()", pair)
told("with section():", scope)
told("progress()", lambda: ft.progress(7))
if ft.page():
    path = ft.page().path
    told("read_page(), in the agent", lambda: read_page(path), 200)
"""
)

CLIENT = (
    LOOP
    + """
def measure():
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
    client = RankMonitorClient()
    client.init_workload_monitoring()
    def pair():
        client.start_section("step")
        client.end_section("step")
    told("RankMonitorClient.send_heartbeat()", client.send_heartbeat, 200)
    told("RankMonitorClient.start_section(), end_section()", pair, 200)
"""
)

THEIRS = (
    CLIENT
    + """
def main():
    import os, tempfile, torch.multiprocessing
    from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorServer
    os.environ["FT_RANK_MONITOR_IPC_SOCKET"] = socket = os.path.join(tempfile.mkdtemp(), "socket")
    config = FaultToleranceConfig(rank_section_timeouts={"step": 100.0}, rank_heartbeat_timeout=100.0)
    context = torch.multiprocessing.get_context("spawn")
    monitor = RankMonitorServer.run_in_subprocess(config, socket, mp_ctx=context)
    measure()
    monitor.kill()
if __name__ == "__main__":
    main()
"""
)


def measure(theirs: list[str]) -> list[Series]:
    with tempfile.TemporaryDirectory(prefix="ftslurm-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        page = {"FTSLURM_PAGE": f"{folder}/page"}
        found = run("", OURS, folder, {**page, "PYTHONPATH": str(ROOT)})
        found += run("without ftrun: ", OURS, folder, {"PYTHONPATH": str(ROOT)})
        found += run("ours: ", f"{CLIENT}\nmeasure()", folder, {**page, "PYTHONPATH": str(INJECT)})
        for number, place in enumerate(theirs):
            name = f"theirs {number + 1}: " if len(theirs) > 1 else "theirs: "
            found += run(name, THEIRS, folder, {"PYTHONPATH": place})
    return found


def run(prefix: str, source: str, folder: str, env: dict[str, str]) -> list[Series]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FTSLURM_")}
    program = Path(folder) / "program.py"
    program.write_text(source)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program)],
        env={**clean, "RANK": "0", "LOCAL_RANK": "0", **env}, cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    values: dict[str, list[float]] = {}
    for line in done.stdout.splitlines():
        name, tab, value = line.partition("\t")
        if tab:
            values.setdefault(name, []).append(float(value))
    if done.returncode != 0 or not values:
        print(f"{prefix or 'ours: '}could not be measured: {(done.stderr.splitlines() or ['?'])[-1]}", file=sys.stderr)
    return [Series(prefix + name, tuple(some), "ns") for name, some in values.items()]


if __name__ == "__main__":
    for one in measure(sys.argv[1:]):
        print(one)
