"""What supervision costs while all is well: memory of shim and agent, CPU of all of it on one node."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from in_place import FTRUN
from measure import ROOT, Series, run, shared_folder

WATCHED_S = 60.0
RANKS = 8
SCRIPT = """#!/bin/bash
export FTSLURM_NPU_SIM={folder}/npu PATH={sim}:/usr/bin:$PATH
mkdir -p $FTSLURM_NPU_SIM
exec {ftrun} sleep 1000
"""


def measure(env: Mapping[str, str]) -> list[Series]:
    """One node, eight ranks that sleep, a device to look at every ten seconds."""
    with shared_folder() as temporary:
        folder = Path(temporary)
        (folder / "job.sh").write_text(SCRIPT.format(folder=folder, ftrun=FTRUN, sim=ROOT / "tests/fakes/bin"))
        job = run(["sbatch", "--parsable", "-N1", f"-n{RANKS}", "-o", "/dev/null", str(folder / "job.sh")], env).strip()
        try:
            return _watch(env["SLURM_CONF"])
        finally:
            subprocess.run(["scancel", job], env={**os.environ, **env}, check=False, timeout=30)


def _watch(conf: str) -> list[Series]:
    shims, agents, controllers = _await_processes(conf)
    everything = [*shims, *agents, *controllers]
    before = _cpu_s(everything)
    time.sleep(WATCHED_S)  # the measurement itself: nothing to await
    own, tools = (after - start for after, start in zip(_cpu_s(everything), before, strict=True))
    return [
        Series("resident memory of a shim", tuple(p.memory_info().rss / 1e6 for p in shims), "MB"),
        Series("resident memory of the agent", tuple(p.memory_info().rss / 1e6 for p in agents), "MB"),
        Series("CPU of 8 shims, the agent and ftrun, idle", (100 * own / WATCHED_S,), "%"),
        Series("CPU of the stand-in npu-smi that the agent runs beside", (100 * tools / WATCHED_S,), "%"),
    ]


def _await_processes(conf: str) -> tuple[list[psutil.Process], ...]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        shims, agents = _like("from _shim import main", conf), _like("ftslurm.wrapper.agent.agent import", conf)
        if len(shims) == RANKS and agents:
            time.sleep(3)  # start-up is not what is measured
            return shims, agents, _like("bin/ftrun", conf)
        time.sleep(0.2)
    raise SystemExit("bench: shims and agent did not come up within 60 s")


def _like(words: str, conf: str) -> list[psutil.Process]:
    """Of our cluster alone: others may run here beside it, and end meanwhile."""
    found = []
    for process in psutil.process_iter(["cmdline", "name"]):
        line = " ".join(process.info["cmdline"] or ())
        if words in line and process.info["name"].startswith(("python", "ftrun")):
            with suppress(psutil.Error):
                found += [process] if process.environ().get("SLURM_CONF") == conf else []
    return found


def _cpu_s(processes: list[psutil.Process]) -> tuple[float, float]:
    """Their own, and that of the children they have waited for (the device tool)."""
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system for t in times), sum(t.children_user + t.children_system for t in times)
