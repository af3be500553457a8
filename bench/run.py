"""All numbers of the README, measured on this machine in one run: `make bench`, or `bench/run.py in-place overhead`."""

from __future__ import annotations

import platform
import sys

import classify
import footprint
import hang_restart
import in_place
import lease
import overhead
import replace
import requeue
import start
import status
from measure import Series, cluster

BENCHES = ("in-place", "overhead", "start", "requeue", "footprint", "classify", "hang", "lease", "replace", "status")


def main(wanted: list[str]) -> None:
    chosen = wanted or list(BENCHES)
    if unknown := [name for name in chosen if name not in BENCHES]:
        sys.exit(f"bench: {unknown[0]} is none of {', '.join(BENCHES)}")
    print(f"{platform.node()}, {platform.processor() or platform.machine()}, Python {platform.python_version()}")
    if "classify" in chosen:
        show(classify.measure())
    if "status" in chosen:
        show(status.measure())
    if "hang" in chosen:
        show(hang_restart.measure())
    if "lease" in chosen:
        show(lease.measure())
    if "replace" in chosen:
        show(replace.measure())
    if "requeue" in chosen:
        show(requeue.measure())
    with cluster(nodes=6) as env:
        if "in-place" in chosen:
            show([in_place.locally(), in_place.on_slurm(env), in_place.torchrun()])
        if "overhead" in chosen:
            show(overhead.measure(env))
        if "start" in chosen:
            show(start.measure(env))
        if "footprint" in chosen:
            show(footprint.measure(env))


def show(series: list[Series]) -> None:
    for one in series:
        print(one, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
