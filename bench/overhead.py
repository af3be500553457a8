"""Wall time of `ftrun true` beside `srun true`, 4 nodes with 2 ranks each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from in_place import FTRUN
from measure import Series, batch, shared_folder

ROUNDS = 15

SCRIPT = """#!/bin/bash
for round in $(seq {rounds}); do
    a=$EPOCHREALTIME; srun true; b=$EPOCHREALTIME; {ftrun} true; c=$EPOCHREALTIME
    echo "$a $b $c"
done
"""


def measure(env: Mapping[str, str]) -> list[Series]:
    with shared_folder() as folder:
        script = SCRIPT.format(rounds=ROUNDS, ftrun=FTRUN)
        output = batch(script, env, Path(folder), "-N4", "--ntasks-per-node=2")
    rounds = [tuple(map(float, line.split())) for line in output.splitlines()]
    return [
        Series("srun true, 4 nodes x 2 ranks", tuple(b - a for a, b, _ in rounds), "s"),
        Series("ftrun true, 4 nodes x 2 ranks", tuple(c - b for _, b, c in rounds), "s"),
        Series("more wall time than srun, side by side", tuple((c - b) - (b - a) for a, b, c in rounds), "s"),
    ]
