"""The campaign's hangs and pauses under ftrun on a real Slurm cluster; the verdicts are those of the ledger.

    python -m tests.hang.on_slurm --cases 12 --healthy 12 --freshest 8 --unseen 8 --mpi 6 --seed 1 [--only ACT] [--level L0|L1|L2] [--restarts]

--mpi takes mpi4py and Open MPI, and a Slurm with its plugin for PMIx (`srun --mpi=list`).

With --restarts hang-restart is on, each case has a job of its own, and counts is whether ftrun has started that anew.

Links are not cut here, as a whole node would be; the jobs are an ordinary user's.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ftslurm.ledger.journal import from_line
from ftslurm.model import record as rec
from ftslurm.model.collectives import CulpritKind
from tests.hang import cases
from tests.hang.cases import ACTS, COMPARED, Case, Plan
from tests.hang.matrix import Told, summary
from tests.hang.rig import HERE, START_S, Orders
from tests.live import conftest as live
from tests.live.stories import Plan as JobPlan
from tests.live.stories import Stage, Story

NODES, TASKS = 2, 2
PROGRESS_S = 60.0
# The limits of the campaign without Slurm: told after 3 s without and 12 s with work in the ranks that are waited for.
# Nothing is acted on, so that one job bears several hangs.
LIMITS = (
    "--ft-rendezvous torch --ft-set hang.c4d_timeout=3s --ft-set hang.c4d_times=1000 --ft-set hang.c4d_level=Info"
    " --ft-set hang.stall=600s --ft-set hang.stall_at_work=36s"
    " --ft-set hang.exit_detection=true --ft-set hang.exit_interval=5s"
)
# The same with hang-restart on: no work for 5 s is a hang, with work a minute.
RESTARTS = (
    "--ft-rendezvous torch --ft-set hang.c4d_timeout=3s --ft-set hang.c4d_level=Info --ft-set rungs.hang-restart.enabled=true"
    " --ft-set hang.stall=5s --ft-set hang.start=60s --ft-set hang.stall_at_work=60s"
)
RESTART_S, LEFT_ALONE_S = 90.0, 14.0
# Where two jobs share the cores, ranks are truly of different speed: only looked at in jobs that run alone.
COMPARE = " --ft-set hang.compare=3s"
PROGRAM = ("job.py", "others.py", "fresh.py", "unseen.py", "ways.py", "launches.py")
RANK = 'export OUT="$STORY"; exec "$TRAIN_PYTHON" -W ignore "$STORY/$JOB" >"$STORY/log.$SLURM_PROCID" 2>&1'
# Slurm starts the ranks of MPI itself; a new step for every restart, since they cannot join a running one again.
PMIX = " --mpi=pmix --ft-restart-via step"


class SlurmJob(Orders):
    """A job under ftrun, and what its ledger says."""

    network = None

    def __init__(self, told: Story, world: int) -> None:
        self.told, self.folder, self.world = told, told.folder, world

    def log(self, rank: int) -> str:
        path = self.folder / f"log.{rank}"
        return (path.read_text(errors="replace") if path.exists() else "")[-2000:] + self.told.output()[-2000:]

    def signal(self, rank: int, number: signal.Signals) -> None:
        told = [line.split()[2] for line in self.notes(rank).splitlines() if " ready " in line]
        node = self.told.of_attempt(self.told.starts()[-1].attempt)[rank].node
        os.kill(self.told.pids()[node, int(told[-1])], number)

    def wait_until_ready(self) -> None:
        self._wait("ready", 1, START_S)

    def wait_for_progress(self) -> None:
        counts = [self.notes(rank).count("goes on") for rank in range(self.world)]
        self._wait("goes on", max(counts) + 3, PROGRESS_S)

    def _wait(self, word: str, times: int, limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while any(self.notes(rank).count(word) < times for rank in range(self.world)):
            assert time.monotonic() < until, "the job does not go on:\n" + self.log(0)
            time.sleep(0.1)

    def culprits(self) -> list[rec.CulpritSeen]:
        return [record for record in self._records() if isinstance(record, rec.CulpritSeen)]

    def exit_hangs(self) -> list[rec.HangSeen]:
        return [record for record in self._records() if isinstance(record, rec.HangSeen) and record.sign == "exit"]

    def _records(self) -> Iterator[rec.Record]:
        for path in self.folder.glob("state/jobs/*.jsonl"):
            for line in path.read_bytes().splitlines():
                record = from_line(line)
                if record is not None:
                    yield record


def run_case(job: SlurmJob, plan: Plan, case: Case) -> tuple[Told, float]:
    """What was told, and how long it took."""
    job.wait_for_progress()
    known = len(job.culprits())
    begun = time.monotonic()
    undo = ACTS[case.act](job, case)  # type: ignore[arg-type]
    budget_s = 60.0 if case.expected else 22.0 if case.act in COMPARED else 10.0
    found: rec.CulpritSeen | rec.HangSeen | None = None
    while found is None and time.monotonic() - begun < budget_s:
        time.sleep(0.2)
        news = [each for each in job.culprits()[known:] if each.sign != CulpritKind.UNKNOWN.value]
        found = next(iter([*news, *(job.exit_hangs() if case.act == "stay" else ())]), None)
    took_s = time.monotonic() - begun
    undo()
    return _told(plan, case, found), took_s


def _told(plan: Plan, case: Case, found: rec.CulpritSeen | rec.HangSeen | None) -> Told:
    truth = case.expected.value if case.expected else ""
    if isinstance(found, rec.HangSeen):
        return Told(
            case.act, truth, CulpritKind.EXIT_HANG.value, case.expected is CulpritKind.EXIT_HANG, f"{plan}, {case}: {found.what}"
        )
    said = found.sign if found else ""
    ranks = found.ranks if found else ()
    right = case.victim in ranks if case.act in cases.CIRCLES else ranks == case.ranks
    words = f"{plan}, {case}: " + (f"{said} {','.join(map(str, ranks))}: {found.cause} {found.evidence}" if found else "nothing")
    return Told(case.act, truth, said, said == truth and (not truth or right), words)


def run_until_restart(job: SlurmJob, plan: Plan, case: Case) -> tuple[Told, float]:
    """Whether the job was started anew, and after what time; a pause lasts 6 s, and it is waited for twice as long."""
    job.wait_for_progress()
    begun = time.monotonic()
    undo = ACTS[case.act](job, case)  # type: ignore[arg-type]
    budget_s = RESTART_S if case.expected else LEFT_ALONE_S
    restarted = False
    while not restarted and time.monotonic() - begun < budget_s:
        time.sleep(0.2)
        restarted = len({start.attempt for start in job.told.starts()}) > 1
    took_s = time.monotonic() - begun
    if not restarted:
        undo()
    said, truth = ("restarted" if this else "" for this in (restarted, case.expected is not None))
    return Told(case.act, truth, said, said == truth, f"{plan}, {case}: {said or 'left alone'}"), took_s


def of_torch(rng: random.Random, drawn: Sequence[Plan], level: str | None) -> list[Plan]:
    """The same on four ranks of torch's, with a probe."""
    found = []
    for plan in drawn:
        acts = [case.act for case in plan.cases if case.act != "lost"]
        mode = "plain" if plan.mode in cases.LIBRARIES else plan.mode
        own = level or ("L1" if plan.level == "L0" else plan.level)
        made = tuple(cases.make(act, rng.randrange(NODES * TASKS), NODES * TASKS) for act in acts)
        found += [Plan(mode, own, NODES * TASKS, made, launch=plan.launch)] if made else []
    return found


def with_mpi(rng: random.Random, count: int, level: str | None) -> list[Plan]:
    """As many hangs, and as many healthy ones, of ranks that Slurm starts by PMIx; one message is lost."""
    hangs = (*cases.FRESHEST_HANGS, *(act for act in cases.UNSEEN_HANGS if act not in (*cases.TOGETHER, "yields")))
    pauses = (*cases.FRESHEST_PAUSES, *(act for act in cases.UNSEEN_PAUSES if act not in cases.TOGETHER))
    drawn = [*rng.sample(hangs, count - 1), *rng.sample(pauses, count)]
    rng.shuffle(drawn)
    found = []
    for acts in (*(drawn[at : at + 4] for at in range(0, len(drawn), 4)), ["lost"]):
        made = tuple(cases.make(act, rng.randrange(NODES * TASKS), NODES * TASKS) for act in acts)
        found.append(Plan("mpi", level or rng.choice(["L1", "L2"]), NODES * TASKS, made))
    return found


def apart(plans: Sequence[Plan]) -> list[Plan]:
    """A job for each case."""
    return [replace(plan, cases=(case,)) for plan in plans for case in plan.cases if case.act not in (*COMPARED, "stay")]


def deck(rng: random.Random, faults: int, healthy: int, level: str | None, only: str | None) -> list[Plan]:
    """As without Slurm, but always four ranks on two nodes, and one slow rank a job: the same finding is told once."""
    found: list[Plan] = []
    drawn = [cases.only(rng, only) for _ in range(faults)] if only else cases.deck(rng, faults, healthy, network=False)
    for plan in drawn:
        acts = [case.act for case in plan.cases]
        slow = [act for act in acts if act == "slow"]
        for part in [[act for act in acts if act != "slow"], *([each] for each in slow)]:
            if part:
                made = tuple(cases.make(act, rng.randrange(NODES * TASKS), NODES * TASKS) for act in part)
                found.append(Plan(plan.mode, level or plan.level, NODES * TASKS, made, workers=plan.workers))
    return found


def story_of(plan: Plan, restarts: bool) -> JobPlan:
    env = {"MODE": plan.mode, "WORKERS": str(plan.workers), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0" if os.geteuid() == 0 else "lo",
           "TRAIN_PYTHON": sys.executable, **({"LAUNCH": plan.launch} if plan.launch else {})}  # fmt: skip
    limits = RESTARTS if restarts else LIMITS + (COMPARE if plan.alone else "")
    of_mpi = plan.mode == "mpi"
    env |= {"JOB": "others.py", "LIBRARY": "mpi"} if of_mpi else {"JOB": "job.py"}
    limits += PMIX if of_mpi else ""
    return JobPlan(rank=RANK, nodes=NODES, tasks=TASKS, ft=f"{limits} --ft-watch {plan.level}", env=env,
                   files={name: (HERE / name).read_text() for name in PROGRAM}, sbatch=("--time=20",))  # fmt: skip


def carry_out(stage: Stage, plan: Plan, restarts: bool) -> tuple[list[tuple[Told, float]], str]:
    results: list[tuple[Told, float]] = []
    told = stage.tell(story_of(plan, restarts), "-".join(case.act for case in plan.cases))
    job = SlurmJob(told, plan.world)
    try:
        job.wait_until_ready()
        for case in plan.cases:
            result, took_s = (run_until_restart if restarts else run_case)(job, plan, case)
            results.append((result, took_s))
            print(f"{'ok ' if result.ok else 'BAD'} {result.words[:300]} ({took_s:.1f} s)", flush=True)
        return results, ""
    except (AssertionError, OSError) as error:
        return results, f"{plan}, {plan.cases[min(len(results), len(plan.cases) - 1)]}: {error}"
    finally:
        told.cluster.cancel(told.id)


@contextmanager
def stage_on_a_cluster(nodes: int) -> Iterator[Stage]:
    """As the live tests have it; the programs must lie where the job user can reach them."""
    with live.booted(nodes=nodes) as cluster:
        commands = Path(sys.executable).parent
        if not live.answers(cluster, commands):
            raise SystemExit(f"{live.job_user()} cannot run {commands / 'ftrun'}: put the project into a folder that is open")
        with live.new_stage(cluster, (commands,)) as stage:
            yield stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=12, help="hangs and slowness")
    parser.add_argument("--healthy", type=int, default=12, help="pauses and undisturbed runs")
    parser.add_argument(
        "--freshest", type=int, default=0, help="as many hangs, and as many healthy ones, of the freshest kinds beside"
    )
    parser.add_argument("--unseen", type=int, default=0, help="the same of the kinds written after the rules were last touched")
    parser.add_argument("--mpi", type=int, default=0, help="the same of jobs of MPI, under srun --mpi=pmix")
    parser.add_argument("--restarts", action="store_true", help="with hang-restart on: what is started anew")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=sorted(cases.ACTS), help="only this, --cases times")
    parser.add_argument("--level", choices=("L0", "L1", "L2"), help="of the probe, for all; else L1 and L2 are drawn")
    parser.add_argument("--keep", type=Path, help="where the folders of jobs with a wrong verdict go")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    plans = deck(rng, options.cases, options.healthy, options.level, options.only)
    drawn = cases.freshest(rng, options.freshest, options.freshest) if options.freshest else []
    drawn += cases.unseen(rng, options.unseen, options.unseen) if options.unseen else []
    plans += of_torch(rng, drawn, options.level)
    plans += with_mpi(rng, options.mpi, options.level) if options.mpi else []
    plans = apart(plans) if options.restarts else plans
    results: list[tuple[Told, float]] = []
    troubles: list[str] = []
    begun = time.monotonic()
    with stage_on_a_cluster(2 * NODES) as stage:
        for alone, workers in ((False, 2), (True, 1)):
            with ThreadPoolExecutor(workers) as pool:
                for found, trouble in pool.map(
                    lambda plan: carry_out(stage, plan, options.restarts), [p for p in plans if p.alone is alone]
                ):
                    results += found
                    troubles += [trouble] if trouble else []
        if options.keep and (troubles or not all(result.ok for result, _ in results)):
            shutil.copytree(stage.home, options.keep, ignore=shutil.ignore_patterns("fifo.*"), dirs_exist_ok=True)
    report(results, troubles)
    print(f"{time.monotonic() - begun:.0f} s (seed {options.seed})")
    sys.exit(bool(troubles) or not all(result.ok for result, _ in results))


def report(results: Sequence[tuple[Told, float]], troubles: Sequence[str]) -> None:
    kinds = [
        kind.value
        for kind in (CulpritKind.COMM_HANG, CulpritKind.NON_COMM_HANG, CulpritKind.COMM_SLOW, CulpritKind.NON_COMM_SLOW)
    ]
    print("\n" + summary([result for result, _ in results], kinds))
    times = sorted(took_s for result, took_s in results if result.ok and result.truth)
    if times:
        print(f"told after {times[len(times) // 2]:.1f} s (median), at the latest {times[-1]:.1f} s after it began")
    for trouble in troubles:
        print(f"not carried out: {trouble}")


if __name__ == "__main__":
    main()
