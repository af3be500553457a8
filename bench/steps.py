"""Many short steps in one job: in a row, and at once; srun's and ftrun's in turn, and the memory of each further ftrun.

bench/run.py steps
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from in_place import FTRUN
from measure import Series, batch, shared_folder

ROW, FARM, ROUNDS = 30, 24, 3

SCRIPT = """#!/bin/bash
below() {{ for pid in $(cat /proc/$1/task/*/children 2>/dev/null); do echo $pid; below $pid; done; }}
for round in $(seq {row}); do
    a=$EPOCHREALTIME; srun -n1 true; b=$EPOCHREALTIME; {ftrun} -n1 true; c=$EPOCHREALTIME
    echo "row $a $b $c"
done
for round in $(seq {rounds}); do
    for what in srun {ftrun}; do
        a=$EPOCHREALTIME
        for step in $(seq {farm}); do $what -n1 --exact --mem=0 sleep 1 & done; wait
        echo "farm $(basename $what) $a $EPOCHREALTIME"
    done
done
for count in 1 9; do
    for step in $(seq $count); do {ftrun} -n1 --overlap --mem=0 sleep 20 & done
    sleep 12
    for pid in $(below $$); do
        echo "pss $count $(tr '\\0' ' ' < /proc/$pid/cmdline | cut -c1-60) $(grep ^Pss: /proc/$pid/smaps_rollup)"
    done 2>/dev/null
    wait
done
"""


def measure(env: Mapping[str, str]) -> list[Series]:
    with shared_folder() as folder:
        script = SCRIPT.format(row=ROW, farm=FARM, rounds=ROUNDS, ftrun=FTRUN)
        output = batch(script, env, Path(folder), "-N1", "-n8")
    rows = [tuple(map(float, line.split()[1:])) for line in output.splitlines() if line.startswith("row ")]
    farms = {
        name: [float(end) - float(begin) for begin, end in re.findall(rf"^farm {name} (\S+) (\S+)$", output, re.M)]
        for name in ("srun", "ftrun")
    }
    used = {count: sum(map(int, re.findall(rf"^pss {count} .*Pss: *(\d+) kB", output, re.M))) / 1000 for count in (1, 9)}
    own = [(used[1],), ((used[9] - used[1]) / 8,)] if all(used.values()) else [(), ()]
    return [
        Series("srun -n1 true, one of many in a row", tuple(b - a for a, b, _ in rows), "s"),
        Series("ftrun -n1 true, likewise", tuple(c - b for _, b, c in rows), "s"),
        Series(f"{FARM} steps of a second at once, srun", tuple(farms["srun"]), "s"),
        Series("the same, ftrun", tuple(farms["ftrun"]), "s"),
        Series("memory (PSS) of one ftrun and all below it on the batch node", own[0], "MB"),
        Series("of each further one", own[1], "MB"),
    ]
