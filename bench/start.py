"""Where the time goes that `ftrun true` takes more than `srun true`: by phases, as ftrun's own log tells them.

    bench/run.py start

Beside it the CPU time of ftrun itself, which a busy machine changes less than it changes the clock on the wall.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from in_place import FTRUN
from measure import Series, batch

ROUNDS = 15

# The log's times are local; so is $EPOCHREALTIME once `date` has turned it.
SCRIPT = """#!/bin/bash
export TIMEFORMAT="cpu %U %S"
for round in $(seq {rounds}); do
    a=$EPOCHREALTIME; srun true; b=$EPOCHREALTIME; srun {python} -I -S -c pass; c=$EPOCHREALTIME
    time {ftrun} true; d=$EPOCHREALTIME
    echo "round $a $b $c $d"
    echo "begin $EPOCHREALTIME"; FTRUN_VERBOSE=1 {ftrun} true; echo "end $EPOCHREALTIME"
done 2>&1
"""

# What the log says first and last when a phase is over.
PHASES = (
    ("until the step is asked for: Python, imports, settings, slurmctld, ledger", r" Begun\(\)", False),
    ("until srun has brought the first shim up", r" TaskArrived\(", False),
    ("until all 8 are there", r" TaskArrived\(", True),
    ("until the ranks have run", r" RankExited\(", True),
    ("until srun has ended", r" StepEnded\(", True),
)
_AT = re.compile(r"ftrun: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ")


def measure(env: Mapping[str, str]) -> list[Series]:
    with tempfile.TemporaryDirectory() as folder:
        script = SCRIPT.format(rounds=ROUNDS, ftrun=FTRUN, python=f"{Path(FTRUN).parent}/python")
        lines = batch(script, env, Path(folder), "-N4", "--ntasks-per-node=2").splitlines()
    rounds = [tuple(map(float, line.split()[1:])) for line in lines if line.startswith("round ")]
    cpu = [sum(map(float, line.split()[1:])) for line in lines if line.startswith("cpu ")]
    logs = list(logged(lines))
    return [
        Series("srun true, 4 nodes x 2 ranks", tuple(b - a for a, b, _, _ in rounds), "s"),
        Series("srun python -c pass, likewise", tuple(c - b for _, b, c, _ in rounds), "s"),
        Series("ftrun true, likewise", tuple(d - c for _, _, c, d in rounds), "s"),
        Series("ftrun true, as many times srun true", tuple((d - c) / (b - a) for a, b, c, d in rounds), "x"),
        Series("CPU time of ftrun itself", tuple(cpu), "s"),
        *(Series(what, tuple(log[place + 1] - log[place] for log in logs), "s") for place, (what, _, _) in enumerate(PHASES)),
        Series("until ftrun has ended", tuple(log[-1] - log[-2] for log in logs), "s"),
    ]


def logged(lines: list[str]) -> Iterator[list[float]]:
    """Of each ftrun that tells: when it began, when each phase was over, when it ended; Unix seconds."""
    log: list[str] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "begin":
            log, began = [], float(rest)
        elif word == "end":
            yield [began, *(moment(log, pattern, last) for _, pattern, last in PHASES), float(rest)]
        else:
            log.append(line)


def moment(log: list[str], pattern: str, last: bool) -> float:
    found = [line for line in log if re.search(pattern, line) and _AT.match(line)]
    at = _AT.match(found[-1 if last else 0])
    assert at is not None
    return datetime.fromisoformat(at[1]).timestamp() + int(at[2]) / 1000
