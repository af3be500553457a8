"""From a rank's failure to the first rank of the next scheduling: ftrun beside plain `scontrol requeue`.

    bench/requeue.py --rounds 20 --epilog none 0 5 15 40 --nodes 1 2 4 --busy 8

Each job fails four seconds after its ranks began (by then all is there that ftrun starts beside them), as often as
`--rounds` says, and remembers what it learns of clean-ups for itself alone: the first requeue of each knows nothing. A
requeue that fell into Slurm's own delay takes more than 121 s. Beside them, for each Epilog, a job on as many nodes as the
first of `--nodes` requeues itself by plain `scontrol requeue`, `--plain` times. --busy: as many endless loops beside. --conf: a
further line of slurm.conf. The jobs of one cluster run at once, and so do the clusters.

The clusters look for jobs to start each second. With Slurm's own settings (`--conf
SchedulerParameters=batch_sched_delay=3,sched_interval=60,bf_interval=30`) a job whose start time has come waits, on a
cluster where nothing else happens, for the next look, whoever requeued it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from in_place import FTRUN
from measure import ROOT, Series, batch, cluster, shared_folder

SLURMS_OWN_S = 121.0
# From the fault to Slurm's requeue; its clean-up; from there to the batch script; from there to the first rank.
PARTS = ("to requeue", "nodes clean", "to script", "to rank")
EVER_S = 4000

OURS = """#!/bin/bash
echo "$EPOCHREALTIME script $((${{SLURM_RESTART_COUNT:-0}} + 1))" >>{folder}/marks
export FTSLURM_STATE_DIR={folder}/state
{ftrun} --ft-set max_restarts=128 --ft-set rungs.unconditional-requeue.in_a_row=128 --ft-set retry.policy=OnFailure \
    --ft-set retry.same_error=1000 bash -c '
    [ $SLURM_PROCID = 0 ] || exec sleep 100
    echo "$EPOCHREALTIME start $MA_SCHEDULE_CNT" >>{folder}/marks
    [ $MA_SCHEDULE_CNT -le {rounds} ] || exit 0
    sleep 4
    echo "$EPOCHREALTIME fault $MA_SCHEDULE_CNT" >>{folder}/marks
    exit 3'
"""
PLAIN = """#!/bin/bash
number=$((${{SLURM_RESTART_COUNT:-0}} + 1))
echo "$EPOCHREALTIME start $number" >>{folder}/marks
if [ $number -le {rounds} ]; then
    echo "$EPOCHREALTIME fault $number" >>{folder}/marks
    scontrol requeue $SLURM_JOB_ID
    sleep 100
fi
"""


@dataclass(frozen=True)
class Cell:
    """The requeues of one job."""

    epilog: float | None  # how long it takes, None where there is none
    nodes: int
    times_s: tuple[float, ...]
    clean_ups_s: tuple[float, ...]
    parts_s: tuple[float, ...]  # medians, of what PARTS names
    plain: bool = False  # by `scontrol requeue`

    def __str__(self) -> str:
        name = "no Epilog" if self.epilog is None else f"Epilog {self.epilog:g} s"
        late = sum(seconds > SLURMS_OWN_S for seconds in self.times_s)
        if self.plain:
            median, spread = statistics.median(self.times_s), f"{min(self.times_s):.1f} to {max(self.times_s):.1f}"
            return f"{name:<13} {self.nodes} nodes  plain `scontrol requeue`: median {median:.1f} s, {spread}"
        first, rest = self.times_s[0], self.times_s[1:] or self.times_s
        clean = f"{statistics.median(self.clean_ups_s):5.1f}" if self.clean_ups_s else "    ?"
        return (
            f"{name:<13} {self.nodes} nodes  {len(self.times_s):3} requeues: median {statistics.median(self.times_s):5.1f} s,"
            f" first {first:5.1f}, then {min(rest):5.1f} to {max(rest):5.1f}; clean-up {clean} s; {late} fell into 121 s"
            + "".join(f"; {name} {seconds:.1f}" for name, seconds in zip(PARTS, self.parts_s, strict=False))
        )


def times_s(marks: Path) -> tuple[float, ...]:
    """Of each requeue, in order."""
    found: dict[tuple[str, int], float] = {}
    for line in marks.read_text().splitlines():
        at, what, number = line.split()
        found[what, int(number)] = float(at)
    faults = sorted(number for what, number in found if what == "fault")
    return tuple(found["start", number + 1] - found["fault", number] for number in faults if ("start", number + 1) in found)


def parts_s(marks: Path, state: Path) -> tuple[float, ...]:
    """Medians of what PARTS names, where a requeue shows all of it."""
    at = {(what, int(number)): float(when) for when, what, number in map(str.split, marks.read_text().splitlines())}
    since: dict[int, float] = {}
    clean: dict[int, float] = {}
    scheduling = 0
    for line in (line for ledger in (state / "jobs").glob("*.jsonl") for line in ledger.read_text().splitlines()):
        record = json.loads(line)
        if record["kind"] == "RunBegan":
            scheduling = record["schedule"] + 1
            clean[scheduling - 1] = record["submit_time"] + 0.5
        elif record["kind"] == "CleanUpBegan":
            since[scheduling] = record["since"]
    rows = []
    for n in since:
        if n in clean and ("fault", n) in at and ("start", n + 1) in at:
            moments = (at["fault", n], since[n], clean[n], at["script", n + 1], at["start", n + 1])
            rows.append([after - before for before, after in itertools.pairwise(moments)])
    return tuple(map(statistics.median, zip(*rows, strict=True)))


def clean_ups_s(state: Path) -> tuple[float, ...]:
    try:
        lines = (state / "clean-ups.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return ()
    return tuple(json.loads(line)["seconds"] for line in lines)


def once(script: str, env: Mapping[str, str], epilog: float | None, nodes: int, rounds: int) -> Cell:
    with shared_folder() as temporary:
        folder = Path(temporary)
        text = script.format(folder=folder, ftrun=FTRUN, rounds=rounds)
        batch(text, env, folder, f"-N{nodes}", "--ntasks-per-node=1", timeout_s=EVER_S)
        marks, state = folder / "marks", folder / "state"
        if script is PLAIN:
            return Cell(epilog, nodes, times_s(marks), (), (), plain=True)
        return Cell(epilog, nodes, times_s(marks), clean_ups_s(state), parts_s(marks, state))


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that do nothing but compute."""
    running = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def cluster_with(epilog: float | None, nodes: int, conf: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    with cluster(nodes, *(("Epilog=",) if epilog is None else ()), *conf) as env:
        if epilog is not None:
            folder = str(Path(env["SLURM_CONF"]).parent)
            subprocess.run([ROOT / "tools/slurm-cluster", "epilog", "--dir", folder, f"{epilog:g}"], check=True)
        yield env


def cells(
    epilogs: Sequence[float | None], sizes: Sequence[int], rounds: int, loops: int, conf: Sequence[str] = (), plain: int = 0
) -> Iterator[Cell]:
    """In the order in which the jobs end. plain: how often a further job on each cluster requeues itself without ftrun."""
    jobs = [(OURS, size, rounds) for size in sizes] + ([(PLAIN, sizes[0], plain)] if plain else [])
    with ExitStack() as stack:
        envs = [stack.enter_context(cluster_with(epilog, sum(size for _, size, _ in jobs), conf)) for epilog in epilogs]
        stack.enter_context(busy(loops))
        pool = stack.enter_context(ThreadPoolExecutor(len(epilogs) * len(jobs)))
        asked = [
            pool.submit(once, script, env, epilog, size, times)
            for epilog, env in zip(epilogs, envs, strict=True)
            for script, size, times in jobs
        ]
        for one in as_completed(asked):
            yield one.result()


def measure() -> list[Series]:
    """For all benchmarks in one run: few rounds, all at once. One plain one: it is Slurm's own constant (cred_expire + 1)."""
    found = []
    for cell in cells([None, 5.0], [2], 5, 0, plain=1):
        name = f"2 nodes, {'no Epilog' if cell.epilog is None else f'Epilog {cell.epilog:g} s'}"
        found.append(Series(f"requeue, {'plain scontrol requeue' if cell.plain else 'ftrun'}, {name}", cell.times_s, "s"))
        if not cell.plain:
            found.append(Series("    of it Slurm's clean-up", cell.clean_ups_s, "s"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epilog", nargs="+", default=["none", "0", "5"], metavar="SECONDS")
    parser.add_argument("--nodes", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--plain", type=int, default=2, metavar="ROUNDS")
    parser.add_argument("--busy", type=int, default=0, metavar="LOOPS")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    epilogs = [None if text == "none" else float(text) for text in asked.epilog]
    for cell in cells(epilogs, asked.nodes, asked.rounds, asked.busy, asked.conf, asked.plain):
        print(cell, flush=True)


if __name__ == "__main__":
    main()
