"""Random hangs and pauses on real jobs, and how often the rank and the class are named.

    python -m tests.hang.campaign --cases 50 --seed 1 [--only ACT] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hang import cases, network
from tests.hang.cases import Plan, Result
from tests.hang.rig import Job


def perform(plan: Plan, folder: Path) -> Iterator[Result]:
    if plan.network:
        with network.Network(plan.world) as net:
            yield from _perform(plan, folder, net)
    else:
        yield from _perform(plan, folder, None)


def _perform(plan: Plan, folder: Path, net: network.Network | None) -> Iterator[Result]:
    # Large enough that a cut or slow link is in the way of every collective.
    size = {"SIZE": "262144", "BUCKETS": "4"} if net else {}
    with Job(folder, plan.world, plan.level, net, MODE=plan.mode, WORKERS=str(plan.workers), **size) as job:
        job.wait_until_ready()
        for case in plan.cases:
            yield cases.run(job, plan, case)


def matrix(results: Sequence[Result]) -> str:
    """What was done against what was said; a right class with a wrong rank counts apart."""
    truths = sorted({_truth(result) for result in results})
    counts: Counter[tuple[str, str]] = Counter((_truth(result), _said(result)) for result in results)
    said = sorted({name for _, name in counts})
    width = max(map(len, (*truths, *said))) + 2
    head = " " * width + "".join(f"{name:>{width}}" for name in said)
    rows = (f"{truth:<{width}}" + "".join(f"{counts[truth, name] or '.':>{width}}" for name in said) for truth in truths)
    return "\n".join((head, *rows))


def _truth(result: Result) -> str:
    return result.case.expected.value if result.case.expected else "(healthy)"


def _said(result: Result) -> str:
    found = result.verdict.finding
    if found is None:
        return "(nothing)"
    wrong = _truth(result) == found.kind.value and not result.ok
    return f"{found.kind.value}{', wrong rank' if wrong else ''}"


def by_act(results: Sequence[Result]) -> str:
    rows = []
    for act in sorted({result.case.act for result in results}):
        mine = [result for result in results if result.case.act == act]
        times = [result.verdict.after_s for result in mine if result.ok and result.verdict.finding]
        when = f", named after {statistics.median(times):.1f} s" if times else ""
        rows.append(f"  {act:<14} {sum(result.ok for result in mine)} of {len(mine)}{when}")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(cases.ACTS), help="only this")
    parser.add_argument("--keep", type=Path, help="where the folders of wrong cases go")
    options = parser.parse_args()
    rng, results = random.Random(options.seed), []
    with_network = network.available()
    print(f"links can {'' if with_network else 'not '}be cut here (root, ip, network namespaces)")
    while len(results) < options.cases:
        left = options.cases - len(results)
        plan = cases.only(rng, options.only) if options.only else cases.draw(rng, left, with_network)
        with tempfile.TemporaryDirectory(prefix="hang-") as folder:
            try:
                for result in perform(plan, Path(folder) / "job"):
                    results.append(result)
                    found = result.verdict.finding
                    where = f"{plan.mode} {plan.level} x{plan.world}{' net' if plan.network else ''}"
                    said = f"{found}" if found else "nothing"
                    print(f"{'ok ' if result.ok else 'BAD'} {len(results):>3} {where:<16} {result.case}: {said}", flush=True)
                    if not result.ok and found:
                        print("        " + "\n        ".join((*found.evidence, *result.verdict.text.splitlines())), flush=True)
            except AssertionError as error:
                print(f"??? {plan}: {error}", flush=True)
                if options.keep:
                    shutil.copytree(folder, options.keep / Path(folder).name, ignore=shutil.ignore_patterns("*.sock"))
    print(f"\n{matrix(results)}\n\n{by_act(results)}")
    took = [each for result in results for each in result.verdict.examine_s]
    if took:
        print(f"\nan examination of a node: median {statistics.median(took) * 1e3:.0f} ms, longest {max(took) * 1e3:.0f} ms")
    right = sum(result.ok for result in results)
    print(f"{right} of {len(results)} right (seed {options.seed})")
    sys.exit(right != len(results))


if __name__ == "__main__":
    main()
