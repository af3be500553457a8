"""Faults of all kinds over real jobs on a real Slurm cluster, which this boots: `python -m tests.chaos --faults 200 --seed 7`.

Exit status 0 if every job came to the end that its plan says, and everything that checks.py asks of it holds.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.campaign import Campaign, Outcome
from tests.chaos.faults import KINDS, drawn, missing_means
from tests.chaos.plan import BY_NAME, jobs
from tests.chaos.report import print_report
from tests.chaos.world import World, developers_path
from tests.live.conftest import booted, job_commands, new_stage

CONF = ("MinJobAge=7200", "KillWait=10", "UnkillableStepTimeout=120")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=200, help="inject at least so many (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="repeat a run (default: a new one, which is printed)")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--lanes", type=int, default=3, help="jobs beside each other (default: %(default)s)")
    parser.add_argument(
        "--limit", type=float, default=60.0, metavar="MINUTES", help="nothing more is begun after it (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, help="where the evidence of failing jobs goes (default: a new folder in /tmp)")
    parser.add_argument("--kinds", default="", metavar="KIND,...", help="only these faults")
    parser.add_argument("--shapes", default="", metavar="SHAPE,...", help="only such jobs, in this order and again")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    keep = options.keep or Path(tempfile.mkdtemp(prefix="ftslurm-chaos-", dir="/tmp"))
    print(f"seed {seed}", flush=True)
    if lacking := missing_means():
        print(f"not injected, as this machine lacks the means: {', '.join(lacking)}")
    outcome = run(seed, options, keep)
    print_report(outcome, str(keep))
    if outcome.well and not options.keep:
        keep.rmdir()
    return 0 if outcome.well else 1


def run(seed: int, options: argparse.Namespace, keep: Path) -> Outcome:
    wanted = options.kinds.split(",") if options.kinds else []
    assert set(wanted) <= KINDS.keys(), f"kinds are {', '.join(KINDS)}"
    kinds = [(name, max(1, weight), only) for name, weight, only in drawn() if name in wanted] if wanted else drawn()
    shapes = [name for name in options.shapes.split(",") if name] * 100
    assert set(shapes) <= BY_NAME.keys(), f"shapes are {', '.join(BY_NAME)}"
    with booted(nodes=options.nodes, conf=CONF) as cluster, job_commands(cluster) as path, new_stage(cluster, path) as stage:
        world = World(cluster, stage, developers_path())
        campaign = Campaign(world, jobs(seed, kinds, shapes), options.faults, seed, options.lanes, options.limit * 60.0, keep)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: campaign.stop())
        return campaign.run()


if __name__ == "__main__":
    sys.exit(main())
