"""What is going to happen, drawn from a seed: jobs, and the faults of each. Nothing here knows of a cluster."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

# So that a campaign takes minutes: everything that waits in ftslurm is made short, and what may be answered only so often
# may be answered often. What the defaults come to is the stories' business.
LEASE_S, SILENCE_S, NO_IO_S = 15.0, 4.0, 6.0
QUICK = (
    f"--ft-set lease.time={LEASE_S:g}s --ft-set nodes.silence={SILENCE_S:g}s --ft-set nodes.probe_timeout=2s"
    " --ft-set rungs.hang-restart.enabled=true --ft-set hang.sample_time=2s"
)
PATIENT = (
    " --ft-max-restarts 100 --ft-set rungs.unconditional-requeue.in_a_row=50 --ft-set rungs.hang-restart.in_a_row=50"
    " --ft-set retry.policy=OnFailure --ft-set warning.requeue=true --ft-set warning.grace=10s"
)
REPLACES = (
    " --ft-set rungs.node-replacement.enabled=true --ft-set rungs.node-replacement.budget=100 --ft-set nodes.replacement_wait=20s"
)
SMALL = ((2, 1), (2, 1), (2, 2), (3, 1))
TRY_AGAIN = """
for try in 1 2 3 4 5 6 7 8 9; do
    %RUN%
    status=$?
    [ $status = 137 ] || exit $status  # ftrun itself was killed
done
"""
ENV = {"MA_HANG_DETECT_TIME": f"{NO_IO_S / 60:g}", "FTRUN_REQUEUE_START_IN": "6s", "FTRUN_DEVICES_ANSWER_WAIT": "10s"}


@dataclass(frozen=True)
class Expect:
    """status: of ftrun; -1: the one that the faults gave the rank. reason: words of the decision to fail. finished: the
    ledger says so, too. by_itself: its program fails whatever strikes it."""

    state: str = "COMPLETED"
    status: int = 0
    reason: str = ""
    finished: bool = True
    by_itself: bool = False


@dataclass(frozen=True)
class Shape:
    """A kind of job. weight: how often. ft: options of ftrun. kinds: the faults it can take, none: all but `only`.

    spares: nodes beside those of the step. strikes: how many, least and most; those of `fixed` instead, in that order. extra: faults that only such a job can take.
    """

    name: str
    weight: int
    ft: str = QUICK + PATIENT
    script: str = "%RUN%"
    sbatch: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    expect: Expect = Expect()
    strikes: tuple[int, int] = (6, 11)
    fixed: tuple[str, ...] = ()
    extra: frozenset[str] = frozenset()
    small_disk: bool = False
    spares: int = 0
    sizes: tuple[tuple[int, int], ...] = ((2, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 2))  # nodes, tasks on each


SHAPES: tuple[Shape, ...] = (
    Shape("plain", 6),
    Shape("exec", 3, script="exec %RUN%"),
    Shape("no-kill", 3, sbatch=("--no-kill",)),
    Shape("spares", 4, ft=QUICK + PATIENT + REPLACES + " --ft-spares 1 --ft-set nodes.donor=false", sbatch=("--no-kill",), spares=1, sizes=SMALL),
    Shape("donor", 3, ft=QUICK + PATIENT + REPLACES, sizes=SMALL),
    Shape("by-step", 2, ft=QUICK + PATIENT + " --ft-restart-via step"),
    Shape("peers-wait", 3, env={"CHAOS_ON_LOSS": "wait"}),
    Shape("try-again", 3, script=TRY_AGAIN, extra=frozenset({"ftrun-kill"})),
    Shape("small-disk", 2, small_disk=True, extra=frozenset({"disk-full"})),
    Shape("always-fails", 1, ft=QUICK + " --ft-set rungs.unconditional-requeue.in_a_row=1", env={"CHAOS_FAILS_AFTER": "25", "CHAOS_NO_PROGRESS": "1"},
          expect=Expect("FAILED", 1, "the fault is in the program", by_itself=True), fixed=("agent-kill", "cut-shim")),
    Shape("budget-spent", 1, ft=QUICK + " --ft-max-restarts 1 --ft-set retry.policy=OnFailure",
          expect=Expect("FAILED", -1, "the 1 requeue (max_restarts) is spent"), fixed=("rank-exit", "rank-exit")),
    Shape("never-again", 1, ft=QUICK + " --ft-set retry.policy=Never",
          expect=Expect("FAILED", 137, "retry.policy is Never"), fixed=("cut-agent", "rank-kill")),
    Shape("ftrun-dies", 1, expect=Expect("FAILED", 137, finished=False), fixed=("rank-exit", "ftrun-kill")),
)  # fmt: skip
BY_NAME: Mapping[str, Shape] = {shape.name: shape for shape in SHAPES}


@dataclass(frozen=True)
class Strike:
    """A fault to come. soon: `delay_s` after the one before, whatever the job does; else after it has got on again.

    key: for the random choices that are left to the moment.
    """

    kind: str
    soon: bool
    delay_s: float
    key: str


@dataclass(frozen=True)
class JobPlan:
    """One job. number: from 1, in the campaign."""

    number: int
    shape: str = "plain"
    nodes: int = 2
    tasks: int = 1
    strikes: tuple[Strike, ...] = ()
    ft: str = ""
    script: str = "%RUN%"
    sbatch: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    expect: Expect = Expect()
    small_disk: bool = False
    spares: int = 0


# How a kind of fault is drawn: (name, weight, only in jobs that ask for it).
Drawn = tuple[str, int, bool]


def bag(kinds: Sequence[Drawn], rng: random.Random) -> Iterator[str]:
    """Kinds without end, each as often as its weight says, none left out for long."""
    while True:
        names = [name for name, weight, _ in kinds for _ in range(weight)]
        rng.shuffle(names)
        yield from names


def jobs(seed: int, kinds: Sequence[Drawn], shapes: Sequence[str] = ()) -> Iterator[JobPlan]:
    """Jobs without end; the same seed gives the same ones. shapes: those of the first jobs, in order."""
    rng = random.Random(f"chaos {seed}")
    drawn = bag(kinds, rng)
    special = {name for name, _, only in kinds if only}
    names = bag([(shape.name, shape.weight, False) for shape in SHAPES], rng)
    number = 0
    while True:
        number += 1
        shape = BY_NAME[shapes[number - 1] if number <= len(shapes) else next(names)]
        yield plan_job(number, shape, drawn, special, rng, seed)


def plan_job(number: int, shape: Shape, drawn: Iterator[str], special: set[str], rng: random.Random, seed: int) -> JobPlan:
    nodes, tasks = rng.choice(shape.sizes)
    wanted = list(shape.fixed)
    most = rng.randint(*shape.strikes)
    while not shape.fixed and len(wanted) < most:
        name = next(drawn)
        if name not in special:
            wanted.append(name)
    if shape.extra and not shape.fixed:
        for name in sorted(shape.extra) * 2:
            wanted[rng.randrange(len(wanted))] = name
    strikes = tuple(
        Strike(name, not shape.fixed and rng.random() < 0.35, rng.uniform(0.0, 2.0), f"{seed}.{number}.{index}")
        for index, name in enumerate(wanted)
    )
    return JobPlan(
        number,
        shape.name,
        nodes,
        tasks,
        strikes,
        shape.ft,
        shape.script,
        shape.sbatch,
        {**ENV, **shape.env},
        shape.expect,
        shape.small_disk,
        shape.spares,
    )
