"""Old and new defaults over published mixes of failures, in clusters that are empty and full: `ftslurm simulate`, averaged.

    bench/mixes.py [--seeds 5]

Llama 3: the 419 unplanned interruptions in 54 days on 2,048 nodes (arXiv 2407.21783, table 5), by what a job sees of them. RSC: a
failure each 7.9 h on 1,024 GPUs (arXiv 2410.21680), 9.9 % of them hangs (ByteRobust, arXiv 2509.16293); how the others divide is
assumed: half of them crashes that no fact explains, the rest nodes and devices alike. In a full cluster a requeued job waits 2 h
for its nodes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

OLD = "old:rungs.in-place-restart.crash_restarts=0,rungs.hang-restart.enabled=false"
NODE_DAYS = 54 * 2048
LLAMA = {
    "device": 72 + 19 + 6,  # memory of the GPU (HBM3, SRAM), thermal interface and sensor: a reset heals them
    "broken-device": 148 + 17,  # the GPU itself, its system processor
    "crash": 54 + 2 + 35 + 7 + 6,  # software, dependencies, network and NIC, silent data corruption: no fact names a node
    "hang": 7,  # NCCL watchdog
    "node-death": 32 + 3 + 3 + 2 + 2 + 2 + 2,  # maintenance, SSD, power, chassis, I/O board, processor, memory
}
RSC_RATE = 24 / 7.9 / 128  # failures for each node and day
MIXES = {
    "Llama 3": {kind: count / NODE_DAYS for kind, count in LLAMA.items()},
    "RSC": {
        "hang": 0.099 * RSC_RATE, "crash": 0.451 * RSC_RATE, "node-death": 0.225 * RSC_RATE, "broken-device": 0.225 * RSC_RATE,
    },
}  # fmt: skip
NODES = {"Llama 3": 256, "RSC": 64}
CLUSTERS = {"empty": ("other_nodes=32",), "full": ("other_nodes=32", "requeue=2h", "plain_requeue=122m")}


def played(mix: str, cluster: str, seed: int) -> list[Any]:
    """What each policy made of it."""
    plan = (f"nodes={NODES[mix]}", "until=30d", "checkpoint=30m", *CLUSTERS[cluster])
    argv = [str(Path(sys.executable).with_name("ftslurm")), "simulate", "--json", "--seed", str(seed)]
    argv += ["--set", "max_restarts=128", "--with", OLD]
    argv += [word for value in plan for word in ("--job", value)]
    argv += [word for kind, rate in MIXES[mix].items() for word in ("--random", f"{kind}={rate:.6f}")]
    done: list[Any] = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)["policies"]
    return done


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(1, parser.parse_args().seeds + 1)
    print("| mix, nodes | cluster | faults | useful time: old, new | requeues: old, new | jobs that failed: old, new |")
    print("|---|---|---|---|---|---|")
    for mix in MIXES:
        for cluster in CLUSTERS:
            runs = [played(mix, cluster, seed) for seed in seeds]
            new, old = ([run[place] for run in runs] for place in (0, 1))
            useful = ", ".join(f"{100 * mean(each['useful_share'] for each in policy):.1f} %" for policy in (old, new))
            requeues = ", ".join(f"{mean(each['requeues'] for each in policy):.1f}" for policy in (old, new))
            failed = ", ".join(str(sum(each["ended"] == "failed" for each in policy)) for policy in (old, new))
            faults = mean(len(each["faults"]) for each in new)
            print(f"| {mix}, {NODES[mix]} | {cluster} | {faults:.0f} | {useful} | {requeues} | {failed} |", flush=True)


if __name__ == "__main__":
    main()
