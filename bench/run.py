"""All numbers of the README, measured on this machine in one run: `make bench`, or `bench/run.py in-place overhead`.

Printed as a table, and written to build/bench.json with every value. What is compared takes turns: srun with ftrun, ftrun with
torchrun. A peer that is not installed is printed as "not measured".
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping

import classify
import footprint
import hang_restart
import in_place
import lease
import overhead
import replace
import requeue
import scale
import start
import status
import steps
import warm
from measure import ROOT, Series, cluster

ALONE: Mapping[str, Callable[[], list[Series]]] = {  # scale first: its controller is forked, and has the memory of all before
    "scale": scale.measure, "classify": classify.measure, "status": status.measure, "hang": hang_restart.measure,
    "lease": lease.measure, "warm": warm.measure, "replace": replace.measure, "requeue": requeue.measure,
}  # fmt: skip
ON_A_CLUSTER: Mapping[str, Callable[[Mapping[str, str]], list[Series]]] = {
    "in-place": in_place.measure, "overhead": overhead.measure, "start": start.measure, "steps": steps.measure,
    "footprint": footprint.measure,
}  # fmt: skip
JSON = ROOT / "build" / "bench.json"


def main(wanted: list[str]) -> None:
    if unknown := [name for name in wanted if name not in {*ALONE, *ON_A_CLUSTER}]:
        sys.exit(f"bench: {unknown[0]} is none of {', '.join((*ALONE, *ON_A_CLUSTER))}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # without compiled files each start takes 0.2 s longer, as in no installation
    machine = f"{platform.node()}, {os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    print(f"{machine}, load {os.getloadavg()[0]:.1f}")
    kept: list[dict[str, object]] = []

    def show(name: str, series: list[Series]) -> None:
        for one in series:
            print(one, flush=True)
            kept.append({"bench": name, "what": one.name, "unit": one.unit, "values": one.values, "load": os.getloadavg()[0]})
        JSON.parent.mkdir(exist_ok=True)
        JSON.write_text(json.dumps({"machine": machine, "series": kept}, indent=2) + "\n")

    for name in [name for name in ALONE if name in wanted or not wanted]:
        show(name, ALONE[name]())
    if on_it := [name for name in ON_A_CLUSTER if name in wanted or not wanted]:
        with cluster(nodes=6) as env:
            for name in on_it:
                show(name, ON_A_CLUSTER[name](env))


if __name__ == "__main__":
    main(sys.argv[1:])
