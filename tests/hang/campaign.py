"""Hangs, slowness and pauses on real jobs: how often the class and the rank are named, and what is said of healthy ones.

    python -m tests.hang.campaign --cases 44 --healthy 44 --latest 30 --freshest 30 --unseen 30 --seed 1 [--only ACT] [--keep FOLDER]

--latest takes nbclient, ipykernel, ray and numpy in the Python that runs it; kinds that want for one are left out, and it says so.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ftslurm.model.collectives import CulpritKind
from tests.hang import cases, network
from tests.hang.cases import Plan, Result
from tests.hang.matrix import Told, rates, share, summary
from tests.hang.rig import Job

printing = threading.Lock()


def perform(plan: Plan, folder: Path) -> Iterator[Result]:
    if plan.network:
        with network.Network(plan.world) as net:
            yield from _perform(plan, folder, net)
    else:
        yield from _perform(plan, folder, None)


def _perform(plan: Plan, folder: Path, net: network.Network | None) -> Iterator[Result]:
    # Large enough that a cut or slow link is in the way of every collective.
    env = {"SIZE": "262144", "BUCKETS": "4"} if net else {}
    if plan.computing:
        env["COMPUTES"] = "1"
    if plan.launch:
        env["LAUNCH"] = plan.launch
    if plan.mode in ("mpi", "jax"):
        env["LIBRARY"] = plan.mode
    absent = next((case for case in plan.cases if case.act in cases.ABSENT), None)
    if absent is not None:
        env["ABSENT"] = f"{absent.victim} {absent.act}"
    with crowd(plan.crowded), Job(folder, plan.world, plan.level, net, MODE=plan.mode, WORKERS=str(plan.workers), **env) as job:
        if absent is None:
            job.wait_until_ready()
        for case in plan.cases:
            yield cases.run(job, plan, case)


@contextmanager
def crowd(there: bool) -> Iterator[None]:
    """As many processes that compute as the machine has cores, and one more."""
    burns = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(burns) for _ in range((os.cpu_count() or 1) + 1 if there else 0)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def told(result: Result) -> Told:
    found, case = result.verdict.finding, result.case
    truth = case.expected.value if case.expected else ""
    said = found.kind.value if found else ""
    if case.act == "suspend" and result.ok:
        said = ""  # "suspended" is no hang
    named = fold_ranks(found.ranks) if found else ""
    return Told(case.act, truth, said, result.ok, f"{result.plan}, {case}: {said or 'nothing'} {named}".strip())


def is_latest(result: Result) -> bool:
    plan, own = result.plan, (*cases.LATEST_HANGS, *cases.LATEST_PAUSES)
    return plan.mode in cases.LATEST_MODES or plan.launch in cases.LATEST_LAUNCHES or result.case.act in own


def is_freshest(result: Result) -> bool:
    plan, own = result.plan, (*cases.FRESHEST_HANGS, *cases.FRESHEST_PAUSES)
    return (
        plan.mode in cases.FRESHEST_MODES
        or plan.launch in cases.FRESHEST_LAUNCHES
        or plan.level == "L0"
        or result.case.act in own
    )


def is_unseen(result: Result) -> bool:
    return result.case.act in (*cases.UNSEEN_HANGS, *cases.UNSEEN_PAUSES, "epoch-over")


def sees_io_alone(result: Result) -> bool:
    return result.plan.level == "L0" or result.plan.mode == "jax"


def by_machine(results: Sequence[Result]) -> dict[str, list[Result]]:
    new = (*cases.NEW_HANGS, *cases.NEW_PAUSES)
    latest = [result for result in results if is_latest(result)]
    unseen = [result for result in results if is_unseen(result)]
    freshest = [result for result in results if is_freshest(result) and not is_unseen(result)]
    others = [result for result in results if not is_freshest(result) and not is_unseen(result)]
    return {
        "unseen kinds": unseen,
        "healthy of the unseen": [result for result in unseen if result.case.expected is None],
        "unseen kinds, quiet machine": [result for result in unseen if not result.plan.crowded],
        "unseen kinds, busy machine": [result for result in unseen if result.plan.crowded],
        "freshest kinds": freshest,
        "healthy of the freshest": [result for result in freshest if result.case.expected is None],
        "freshest kinds, quiet machine": [result for result in freshest if not result.plan.crowded],
        "freshest kinds, busy machine": [result for result in freshest if result.plan.crowded],
        "all other kinds": others,
        "of all, where a probe tells who hangs": [result for result in results if not sees_io_alone(result)],
        "of all, where only IO is seen": [result for result in results if sees_io_alone(result)],
        "latest kinds": latest,
        "healthy of the latest": [result for result in latest if result.case.expected is None],
        "quiet machine": [result for result in results if not result.plan.crowded],
        "busy machine": [result for result in results if result.plan.crowded],
        "kinds that came before those": [result for result in results if result.case.act in new],
        "healthy of them": [result for result in results if result.case.act in cases.NEW_PAUSES],
    }


def fold_ranks(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks))


def by_act(results: Sequence[Result]) -> str:
    rows = []
    for act in sorted({result.case.act for result in results}):
        mine = [result for result in results if result.case.act == act]
        times = [result.verdict.after_s for result in mine if result.ok and result.verdict.finding]
        when = f", named after {statistics.median(times):.1f} s" if times else ""
        rows.append(f"  {act:<14} {sum(result.ok for result in mine)} of {len(mine)}{when}")
    return "\n".join(rows)


def carry_out(plan: Plan, keep: Path | None) -> tuple[list[Result], str]:
    """What was found; and a word if the job did not do what it was to do."""
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="hang-") as folder:
        try:
            for result in perform(plan, Path(folder) / "job"):
                results.append(result)
                with printing:
                    show(result)
        except (AssertionError, OSError, RuntimeError) as error:
            if keep:
                shutil.copytree(folder, keep / Path(folder).name, ignore=shutil.ignore_patterns("*.sock", "fifo.*"))
            return results, f"{plan}, {plan.cases[len(results)]}: {error}"
    return results, ""


def show(result: Result) -> None:
    found = result.verdict.finding
    print(f"{'ok ' if result.ok else 'BAD'} {result.plan!s:<22} {result.case}: {found or 'nothing'}", flush=True)
    if not result.ok and found:
        print("        " + "\n        ".join((*found.evidence, *result.verdict.text.splitlines())), flush=True)


def all_of(plans: Sequence[Plan], keep: Path | None, until: float) -> tuple[list[Result], list[str]]:
    """Those where speeds are compared first, one by one; then two jobs at a time. until: none begins after it."""
    results: list[Result] = []
    troubles: list[str] = []

    def in_time(plan: Plan) -> tuple[list[Result], str]:
        return carry_out(plan, keep) if time.monotonic() < until else ([], f"{plan}: {len(plan.cases)} cases, for want of time")

    for alone, workers in ((True, 1), (False, 2)):
        with ThreadPoolExecutor(workers) as pool:
            for found, trouble in pool.map(in_time, [p for p in plans if p.alone is alone]):
                results += found
                troubles += [trouble] if trouble else []
    return results, troubles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=44, help="hangs and slowness")
    parser.add_argument("--healthy", type=int, default=44, help="pauses and undisturbed runs")
    parser.add_argument(
        "--latest", type=int, default=0, help="as many hangs, and as many healthy ones, of the latest kinds beside"
    )
    parser.add_argument("--freshest", type=int, default=0, help="the same of the freshest kinds")
    parser.add_argument("--unseen", type=int, default=0, help="the same of the kinds written after the rules were last touched")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(cases.ACTS), help="only this, --cases times")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no job begins later; which ones is left to chance")
    parser.add_argument("--keep", type=Path, help="where the folders of jobs that failed go")
    options = parser.parse_args()
    rng, begun = random.Random(options.seed), time.monotonic()
    with_network = network.available()
    print(f"links can {'' if with_network else 'not '}be cut here (root, ip, network namespaces)")
    if options.only:
        plans = [cases.only(rng, options.only) for _ in range(options.cases)]
    else:
        plans = cases.latest(rng, options.latest, options.latest)
        plans += cases.freshest(rng, options.freshest, options.freshest)
        plans += cases.unseen(rng, options.unseen, options.unseen)
        plans += cases.deck(rng, options.cases, options.healthy, with_network)
    for package in (*(cases.missing() if options.latest else ()), *(cases.missing_libraries() if options.freshest else ())):
        print(f"left out are the kinds that take {package}, which is not installed")
    rng.shuffle(plans)
    results, troubles = all_of(plans, options.keep, begun + options.minutes * 60)
    kinds = [
        kind.value
        for kind in (CulpritKind.COMM_HANG, CulpritKind.NON_COMM_HANG, CulpritKind.COMM_SLOW, CulpritKind.NON_COMM_SLOW)
    ]
    print(f"\n{by_act(results)}\n\n{summary([told(result) for result in results], kinds)}")
    for what, mine in by_machine(results).items():
        right, said, done = rates([told(result) for result in mine])
        figures = f", precision {share(right, said)}, recall {share(right, done)}" if done else ""
        print(f"\n{what}: {sum(result.ok for result in mine)} of {len(mine)} right{figures}")
    for trouble in troubles:
        print(f"not carried out: {trouble}")
    took = [each for result in results for each in result.verdict.examine_s]
    if took:
        print(f"an examination of a node: median {statistics.median(took) * 1e3:.0f} ms, longest {max(took) * 1e3:.0f} ms")
    print(f"{time.monotonic() - begun:.0f} s (seed {options.seed})")
    sys.exit(not all(result.ok for result in results))


if __name__ == "__main__":
    main()
