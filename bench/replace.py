"""From a node that is lost to all ranks running again: on a spare, on a node that a donor job lends, and with plain Slurm.

    bench/replace.py

Four nodes with two ranks each. What counts is from the moment that the loss is known (the ledger's TroubleSeen) to the last
rank's new start; how long it took to know is told beside it. Plain Slurm requeues the job when it notices, 300 s after the
loss at the earliest unless the site changed SlurmdTimeout; it is 20 s here.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from in_place import FTRUN
from measure import ROOT, TIMEOUT_S, Series, cluster, run, shared_folder

ROUNDS = 3
NODES, PER_NODE = 4, 2
SLURMD_TIMEOUT_S = 20
SILENCE_S = 2
TOOL = str(ROOT / "tools" / "slurm-cluster")
SIM = ROOT / "tests" / "fakes" / "bin"

# The first start of a rank waits to be ended, the next one is all there is to do.
RANK = """
attempt=${{FTSLURM_ATTEMPT:-${{SLURM_RESTART_COUNT:-0}}}}
echo "$EPOCHREALTIME start $attempt $SLURM_PROCID $SLURMD_NODENAME" >>{folder}/marks.$SLURM_PROCID
[ "${{FTSLURM_ATTEMPT:-1}}.${{SLURM_RESTART_COUNT:-0}}" = 1.0 ] && exec sleep 250
exit 0
"""
SCRIPT = """#!/bin/bash
export FTSLURM_NPU_SIM={folder}/npu PATH={sim}:$PATH FTSLURM_STATE_DIR={folder}/state
mkdir -p $FTSLURM_NPU_SIM
exec {launcher} bash {folder}/rank.sh
"""
QUICK = f"--ft-set nodes.silence={SILENCE_S}s --ft-set nodes.probe_timeout=1s --ft-set lease.time=10s --ft-set devices.poll=500ms"


def measure() -> list[Series]:
    with cluster(NODES + 2, f"SlurmdTimeout={SLURMD_TIMEOUT_S}") as env:
        died = [_lost(env, f"{FTRUN} {QUICK} --ft-spares 1", 1, _crash) for _ in range(ROUNDS)]
        donor = "--ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=9"
        lent = [_lost(env, f"{FTRUN} {QUICK} {donor}", 0, _break) for _ in range(ROUNDS)]
        plain = _plain(env)
    return [
        Series("node dies, until that is known (nodes.silence 2 s)", tuple(known for known, _ in died), "s"),
        Series("from there to all ranks on a spare", tuple(rest for _, rest in died), "s"),
        Series("broken chip, from its trouble to all ranks on a donor", tuple(rest for _, rest in lent), "s"),
        Series(f"node dies, plain Slurm (SlurmdTimeout {SLURMD_TIMEOUT_S} s)", (plain,), "s"),
    ]


Lose = Callable[[Mapping[str, str], Path, str], None]


def _lost(env: Mapping[str, str], launcher: str, spares: int, lose: Lose) -> tuple[float, float]:
    """Seconds from the loss to its being known, and from there to all ranks running."""
    with shared_folder() as temporary:
        folder = Path(temporary)
        job = _submit(env, folder, launcher, NODES + spares)
        node = _started(folder, "1")["2"]
        time.sleep(2.0)  # the agents come up
        at = time.time()
        lose(env, folder, node)
        _ended(env, job)
        ledger = next((folder / "state/jobs").glob("*.jsonl"))
        records = [json.loads(line) for line in ledger.read_text().splitlines()]
        known = next(record["at"] for record in records if record["kind"] == "TroubleSeen")
        if [record["rung"] for record in records if record["kind"] == "Decided"] != ["node-replacement"]:
            raise SystemExit(f"bench: another remedy was taken:\n{ledger.read_text()}")
        starts = [start for start in _marks(folder) if start[2] == "2"]
        _mend(env, node, lose)
        return known - at, max(float(start[0]) for start in starts) - known


def _plain(env: Mapping[str, str]) -> float:
    with shared_folder() as temporary:
        folder = Path(temporary)
        job = _submit(env, folder, "srun", NODES)
        node = _started(folder, "0")["2"]
        at = time.time()
        _crash(env, folder, node)
        _ended(env, job)
        _mend(env, node, _crash)
        return max(float(start[0]) for start in _marks(folder) if start[2] == "1") - at


def _submit(env: Mapping[str, str], folder: Path, launcher: str, nodes: int) -> str:
    (folder / "rank.sh").write_text(RANK.format(folder=folder))
    (folder / "job.sh").write_text(SCRIPT.format(folder=folder, sim=SIM, launcher=launcher))
    options = ["--parsable", "--requeue", f"-N{nodes}", f"--ntasks-per-node={PER_NODE}", f"--output={folder}/output"]
    return run(["sbatch", *options, str(folder / "job.sh")], env, folder).strip()


def _marks(folder: Path) -> list[list[str]]:
    return [line.split() for path in folder.glob("marks.*") for line in path.read_text().splitlines()]


def _started(folder: Path, attempt: str) -> dict[str, str]:
    """rank -> node, once all run."""
    deadline = time.monotonic() + 60
    while len(found := {mark[3]: mark[4] for mark in _marks(folder) if mark[2] == attempt}) < NODES * PER_NODE:
        if time.monotonic() > deadline:
            raise SystemExit(f"bench: the ranks did not start: {found}\n{(folder / 'output').read_text()}")
        time.sleep(0.05)
    return found


def _ended(env: Mapping[str, str], job: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while run(["squeue", "--noheader", f"--jobs={job}"], env).strip():
        if time.monotonic() > deadline:
            raise SystemExit(f"bench: job {job} did not end")
        time.sleep(0.1)


def _crash(env: Mapping[str, str], folder: Path, node: str) -> None:
    run([TOOL, "node-crash", "--dir", str(Path(env["SLURM_CONF"]).parent), node])


def _break(env: Mapping[str, str], folder: Path, node: str) -> None:
    run([str(SIM / "npu-sim"), "--dir", f"{folder}/npu", "inject", "--node", node, "--device", "0.0", "--code", "80E18402"])


def _mend(env: Mapping[str, str], node: str, lost_by: object) -> None:
    if lost_by is _crash:
        run([TOOL, "node-up", "--dir", str(Path(env["SLURM_CONF"]).parent), node])


if __name__ == "__main__":
    try:
        for one in measure():
            print(one)
    except subprocess.CalledProcessError as error:
        raise SystemExit(str(error)) from None
