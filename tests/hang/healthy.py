"""Healthy jobs, watched as ftrun watches: how many would be restarted unasked.

    python -m tests.hang.healthy FILE --minutes 60 --jobs 2 [--seed 1]
    python -m tests.hang.healthy FILE --sum

Appends one judged run a line to FILE; may be stopped and continued at any time. Half of the jobs have busy loops beside them. The limits
are 3 s without work (8 s in a wait for another process) and 12 s with it, where ftrun's own are 3 and 30 minutes: what is left alone
here is left alone there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ftslurm
from tests.hang import cases
from tests.hang.campaign import crowd
from tests.hang.cases import ACTS, Case, Plan
from tests.hang.rig import QUIET_S, Job, Verdict

SHORT_S, LONG_S = 6.0, 18.0  # below and above the limit for a rank at work
BEYOND_S = (
    8.0  # the limit without work for a rank that waits for another process: longer than one with a data loader shows no Python
)
ACTS_A_JOB = 8
# Of these each rank does its part by itself, so they can last longer and go with every way to train.
ALONE = tuple(
    act
    for act in (
        *cases.BEYOND, *cases.NEWEST_PAUSES, *cases.FRESHEST_PAUSES, *cases.UNSEEN_PAUSES, "evaluate", "checkpoint", "compile", "trickle", "bursts",
        "download", "gil-work",
    )
    if act not in cases.TOGETHER
)  # fmt: skip
OTHERS = ("hiccup", "nothing", "suspend", "debug", "relay", "told work", "poll work", "poll file work", *cases.MEETINGS_AT_WORK)
OLD_WAYS = (*((mode, "") for mode in dict(cases.MODES + cases.NEW_MODES)), *cases.UNSEEN_WAYS[:-1])
NEW_WAYS = (
    *((mode, "") for mode in (*cases.FRESHEST_MODES, "zero", "experts", "stages") if mode not in cases.LIBRARIES),
    *((mode, launch) for launch in ("coroutine", "script", "exec", "child") for mode in ("plain", "ddp")),
)


@dataclass(frozen=True)
class Run:
    """said: the finding's kind, empty for none. restart: no rank works, and the verdict is a proof. rules: the digest of what judged."""

    act: str
    job: str
    busy: bool
    pause_s: float
    said: str
    at_work: bool
    restart: bool
    words: str
    rules: str
    at: float


def plan_of(rng: random.Random, crowded: bool) -> Plan:
    mode, launch = rng.choice(OLD_WAYS if rng.random() < 0.5 else NEW_WAYS)
    pool = ALONE + OTHERS if (mode, launch) in OLD_WAYS and not launch else ALONE
    if mode == "thread":  # L1 does not see which thread trains there: a known limit (docs/hangs.md)
        pool = tuple(act for act in pool if act not in ("answered-in-time", "piped"))
    world = {"hsdp": 4, "tpdp": 4, "context": 3, "batched": 3, "ring": 3}.get(mode, 2 if launch else rng.choice([2, 3]))
    made = tuple(cases.make(act, rng.randrange(world), world) for act in rng.sample(pool, ACTS_A_JOB))
    return Plan(mode, rng.choice(["L1", "L2"]), world, made, launch=launch, crowded=crowded)


def runs_of(plan: Plan, rng: random.Random, folder: Path, rules: str) -> Iterator[Run]:
    env = {"MODE": plan.mode, "WORKERS": "0", **({"LAUNCH": plan.launch} if plan.launch else {})}
    with crowd(plan.crowded), Job(folder, plan.world, plan.level, **env) as job:
        job.wait_until_ready()
        for case in plan.cases:
            long = case.act in cases.BEYOND or (case.act in ALONE and rng.random() < 0.3)
            pause_s = LONG_S if long else SHORT_S
            yield _run_of(plan, case, pause_s, _watched(job, case, pause_s), rules)


def _watched(job: Job, case: Case, pause_s: float) -> Verdict:
    job.wait_for_progress()
    if pause_s == LONG_S:
        job.order(case.victim, case.act, pause_s)
        return job.watch(pause_s + 2, BEYOND_S if case.act in cases.BEYOND else QUIET_S)
    undo = ACTS[case.act](job, replace(case, act="sleep") if case.act == "hiccup" else case)
    verdict = job.watch(pause_s + 2)
    undo()
    return verdict


def _run_of(plan: Plan, case: Case, pause_s: float, verdict: Verdict, rules: str) -> Run:
    found = verdict.finding
    said = found.kind.value if found else ""
    restart = found is not None and not verdict.at_work and not verdict.doubt
    words = f"{found}\n{verdict.text}" if restart else str(found or "")
    return Run(str(case), str(plan), plan.crowded, pause_s, said, verdict.at_work, restart, words, rules, time.time())


def rules_digest() -> str:
    """Of the modules that judge, so that runs of other rules can be told apart."""
    home = Path(ftslurm.__file__).parent
    files = sorted([*home.glob("policies/hang/*.py"), *home.glob("wrapper/agent/evidence/*.py"), *home.glob("sdk/probe.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:8]


def carry_out(file: Path, minutes: float, jobs: int, seed: int) -> None:
    until, writing, rules = time.monotonic() + minutes * 60, threading.Lock(), rules_digest()

    def write(line: Mapping[str, object]) -> None:
        with writing, file.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def worker(number: int) -> None:
        rng = random.Random(f"{seed}.{number}")
        busy = number % 2 == 0
        while time.monotonic() < until:
            plan, busy = plan_of(rng, busy), not busy
            with tempfile.TemporaryDirectory(prefix="hang-", dir="/tmp", ignore_cleanup_errors=True) as folder:
                try:
                    for run in runs_of(plan, rng, Path(folder) / "job", rules):
                        write(asdict(run))
                except (AssertionError, OSError, RuntimeError) as error:
                    write({"trouble": str(error)[:3000], "job": str(plan), "acts": [str(case) for case in plan.cases]})

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(worker, range(jobs)))


def runs_in(file: Path) -> tuple[list[Run], list[str]]:
    """The runs, and what hindered jobs that were not judged to their end."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    troubles = [f"{line['job']}, {', '.join(line['acts'])}: {line['trouble']}" for line in lines if "trouble" in line]
    return [Run(**line) for line in lines if "trouble" not in line], troubles


def summary(runs: Sequence[Run], troubles: Sequence[str]) -> str:
    rows = [_row(what, mine) for what, mine in (
        ("all", runs), ("busy machine", [run for run in runs if run.busy]), ("quiet machine", [run for run in runs if not run.busy]),
        (f"pauses of {LONG_S:g} s", [run for run in runs if run.pause_s == LONG_S]),
        ("newest kinds", [run for run in runs if run.act.split(" of rank")[0] in cases.NEWEST_PAUSES]),
        ("waits for another process", [run for run in runs if run.act.split(" of rank")[0] in cases.BEYOND]),
        *((f"rules {rules}", [run for run in runs if run.rules == rules]) for rules in sorted({run.rules for run in runs})),
    )]  # fmt: skip
    rows += [f"restarted: {run.job}, {run.act}: {run.words}" for run in runs if run.restart]
    spoken = Counter(f"{run.act.split(' of rank')[0]} ({run.said})" for run in runs if run.said and not run.restart)
    rows += [f"named at work: {many} x {what}" for what, many in sorted(spoken.items())]
    return "\n".join(
        [*rows, f"{len(troubles)} jobs not judged to their end", *(f"  {each.splitlines()[0]}" for each in troubles)]
    )


def _row(what: str, runs: Sequence[Run]) -> str:
    restarted, named = sum(run.restart for run in runs), sum(bool(run.said) for run in runs)
    # The rule of three: of n without one, the rate is below 3/n with 95 % confidence.
    bound = f"; with 95 % confidence below {3 / len(runs):.2%}" if runs and not restarted else ""
    return f"{what}: {restarted} of {len(runs)} restarted{bound}; {named} named"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0, help="no job begins later")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sum", action="store_true", help="only count what FILE has")
    options = parser.parse_args()
    if not options.sum:
        carry_out(options.file, options.minutes, options.jobs, options.seed)
    runs, troubles = runs_in(options.file)
    print(summary(runs, troubles))
    sys.exit(any(run.restart for run in runs))


if __name__ == "__main__":
    main()
