"""From a hang (its timeout reached) to the last rank's new start, without the time that the evidence takes.

    bench/hang_restart.py

Ranks beat, and one of them stops. Its last beat and the new starts are told by the ranks, the rest by the ledger.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from measure import Series, run, shared_folder

RANKS, HANGS = 8, 12
TIMEOUT_S = 1.0
FTRUN = f"{Path(sys.executable).parent}/ftrun"
# Marked before Python starts, which is the program's own time.
RANK = f"""
echo "$FTSLURM_ATTEMPT start $(date +%s.%N)" >>"$MARKS/$SLURM_PROCID"
exec {sys.executable} -S -c '
import os, sys, time
sys.path.insert(0, os.environ["FTSLURM_HOME"])
from ftslurm.sdk import client
attempt, rank = int(os.environ["FTSLURM_ATTEMPT"]), int(os.environ["SLURM_PROCID"])
hangs, until = rank == attempt % {RANKS} and attempt <= {HANGS}, time.time() + 2
while attempt <= {HANGS} or time.time() < until:
    if hangs and time.time() > until:
        print(attempt, "last", last, file=open(os.environ["MARKS"] + "/" + str(rank), "a"), flush=True)
        time.sleep(1000)
    last = time.time()
    client.heartbeat()
    time.sleep(0.01)
'"""


def measure() -> list[Series]:
    with shared_folder() as temporary:
        marks, state = Path(temporary) / "marks", Path(temporary) / "state"
        marks.mkdir()
        (marks.parent / "rank.sh").write_text(RANK)
        options = ["--ft-launcher", "local", f"-n{RANKS}", f"--ft-param-rank_heartbeat_timeout={TIMEOUT_S}"]
        options += ["--ft-param-initial_rank_heartbeat_timeout=60", "--ft-set", "rungs.hang-restart.enabled=true"]
        options += ["--ft-set", "rungs.hang-restart.in_a_row=128"]
        env = {"FTSLURM_STATE_DIR": str(state), "MARKS": str(marks), "FTSLURM_HOME": str(Path(__file__).resolve().parents[1])}
        run([FTRUN, *options, "sh", str(marks.parent / "rank.sh")], env)
        return _series(marks, next((state / "jobs").glob("*.jsonl")))


def _series(marks: Path, ledger: Path) -> list[Series]:
    """One value a hang: the whole way from the timeout, what of it was evidence, and the rest."""
    last: dict[int, float] = {}
    starts: dict[int, list[float]] = {}
    for file in marks.iterdir():
        for line in file.read_text().splitlines():
            attempt, what, at = line.split()
            if what == "last":
                last[int(attempt)] = float(at)
            else:
                starts.setdefault(int(attempt), []).append(float(at))
    seen: dict[tuple[str, int], float] = {}
    for line in ledger.read_text().splitlines():
        record = json.loads(line)
        if record.get("kind") in ("HangSeen", "TroubleSeen"):
            seen[record["kind"], record["attempt"]] = record["at"]
    rows = []
    for attempt, at in sorted(last.items()):
        if len(starts.get(attempt + 1, ())) == RANKS:
            whole = max(starts[attempt + 1]) - at - TIMEOUT_S
            evidence = seen["TroubleSeen", attempt] - seen["HangSeen", attempt]
            rows.append((whole, evidence, whole - evidence))
    names = ("timeout to all ranks started", "of it evidence", "without it")
    return [
        Series(f"hang, {RANKS} ranks: {name}", tuple(row[place] * 1000 for row in rows), "ms") for place, name in enumerate(names)
    ]


if __name__ == "__main__":
    for one in measure():
        print(one)
