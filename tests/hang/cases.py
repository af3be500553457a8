"""What is done to a job, and what must be found. Drawn at random, or by name."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ftslurm.model.collectives import Kind
from tests.hang.rig import BUSY_S, Job, Verdict, right
from tests.hang.slowness import watch_slow

SLOW_KINDS = (Kind.COMM_SLOW, Kind.NON_COMM_SLOW)


@dataclass(frozen=True)
class Case:
    """act: the name of what is done. expected, ranks: what must be found, None and () for nothing."""

    act: str
    victim: int
    expected: Kind | None
    ranks: tuple[int, ...] = ()
    other: int = 0

    def __str__(self) -> str:
        return f"{self.act} of rank {self.victim}"


@dataclass(frozen=True)
class Plan:
    """One job and what is done to it, one after the other; only the last may end it."""

    mode: str
    level: str
    world: int
    cases: tuple[Case, ...]
    network: bool = False
    workers: int = 0


@dataclass(frozen=True)
class Result:
    plan: Plan
    case: Case
    verdict: Verdict

    @property
    def ok(self) -> bool:
        found = self.verdict.finding
        if self.case.act == "order":  # the circle has the culprit in it, and whom it waits for
            return found is not None and found.kind is self.case.expected and self.case.victim in found.ranks
        return right(found, self.case.expected, self.case.ranks)


# --- acts: each begins something; what it gives back ends it

Undo = Callable[[], None]


def _pause(seconds: float) -> Callable[[Job, Case], Undo]:
    def act(job: Job, case: Case) -> Undo:
        job.order(case.victim, case.act, seconds)
        return lambda: None

    return act


def _blocked(job: Job, case: Case) -> Undo:
    job.order(case.victim, case.act)
    return lambda: job.unblock(case.victim)


def _stop_inside(job: Job, case: Case) -> Undo:
    """Another one comes late, so the victim certainly waits in the collective when it is stopped."""
    job.order(case.other, "sleep", 3.0)
    time.sleep(2.0)
    job.signal(case.victim, signal.SIGSTOP)
    time.sleep(1.5)
    return lambda: job.signal(case.victim, signal.SIGCONT)


def _stop_outside(job: Job, case: Case) -> Undo:
    job.order(case.victim, "sleep", 1.0)
    job.signal(case.victim, signal.SIGSTOP)
    return lambda: job.signal(case.victim, signal.SIGCONT)


def _order(job: Job, case: Case) -> Undo:
    job.order(case.victim, case.act)
    return lambda: None


def _leave_all(job: Job, case: Case) -> Undo:
    """The job ends; one rank does not, for it has a thread that goes on."""
    step = "stay"
    for rank in range(job.world):
        with open(job.folder / f"order.{rank}", "w") as file:
            file.write(step if rank == case.victim else "leave")
    return lambda: None


def _loader(job: Job, case: Case) -> Undo:
    (job.folder / f"loader.{case.victim}").touch()
    return lambda: None


def _kill(job: Job, case: Case) -> Undo:
    job.signal(case.victim, signal.SIGKILL)
    return lambda: None


def _cut(job: Job, case: Case) -> Undo:
    assert job.network is not None
    job.network.cut(case.victim)
    return lambda: None


def _cut_between(job: Job, case: Case) -> Undo:
    assert job.network is not None
    job.network.cut_between(case.victim, case.other)
    return lambda: None


def _slow(job: Job, case: Case) -> Undo:
    job.order(case.victim, "slow", 0.03)
    return lambda: job.order(case.victim, "slow", 0)


def _slow_link(job: Job, case: Case) -> Undo:
    assert job.network is not None
    job.network.shape(case.victim, "100mbit")
    return lambda: None


def _nothing(job: Job, case: Case) -> Undo:
    return lambda: None


PAUSE_S = 9.0
ACTS: dict[str, Callable[[Job, Case], Undo]] = {
    "sleep": _pause(PAUSE_S), "deadlock": _pause(PAUSE_S), "native": _pause(PAUSE_S), "loop": _pause(BUSY_S + 6),
    "fifo": _blocked, "spawn": _blocked, "stop inside": _stop_inside, "stop outside": _stop_outside,
    "evaluate": _pause(6.0), "checkpoint": _pause(6.0), "compile": _pause(6.0), "hiccup": _pause(1.0), "nothing": _nothing,
    "slow": _slow, "slow link": _slow_link,
    "exit": _order, "crash": _order, "kill": _kill, "order": _order, "odd": _order, "stay": _leave_all, "loader": _loader,
    "cut": _cut, "cut between": _cut_between,
}  # fmt: skip
HANGS = ("sleep", "deadlock", "native", "loop", "fifo", "spawn")
STOPS = ("stop inside", "stop outside")
PAUSES = ("evaluate", "checkpoint", "compile", "hiccup", "nothing")
ENDS = ("exit", "crash", "kill", "stay")
COLLECTIVE_ENDS = ("order", "odd")  # only where a step is made of collectives that the program issues itself
CUTS = ("cut", "cut between")


def make(act: str, victim: int, world: int, other: int | None = None) -> Case:
    """With what it must be found as."""
    other = (victim + 1) % world if other is None else other
    ranks: tuple[int, ...] = (victim,)
    if act in PAUSES:
        return Case(act, victim, None, (), other)
    if act in ("stop inside", "cut", "cut between"):
        kind = Kind.COMM_HANG
        if act == "cut between" or (act == "cut" and world == 2):
            ranks = tuple(sorted((victim, other)))
    elif act in ("exit", "crash", "kill"):
        kind = Kind.RANK_EXIT
    elif act == "stay":
        kind = Kind.EXIT_HANG
    elif act in ("slow", "slow link"):
        kind = Kind.NON_COMM_SLOW if act == "slow" else Kind.COMM_SLOW
    else:
        kind = Kind.NON_COMM_HANG
        if act == "odd" and world == 2:
            ranks = (0, 1)  # one against one
    return Case(act, victim, kind, ranks, other)


def run(job: Job, plan: Plan, case: Case) -> Result:
    job.wait_for_progress()
    if case.expected in SLOW_KINDS:
        return Result(plan, case, watch_slow(job, lambda: ACTS[case.act](job, case)))
    ending = case.act in ENDS
    doing = replace(case, act="sleep") if case.act == "hiccup" else case
    undo = ACTS[case.act](job, doing)
    budget_s = BUSY_S + 8 if case.act == "loop" else 8.0 if case.expected is None else 30.0 if ending else 25.0
    verdict = job.watch(budget_s)
    undo()
    return Result(plan, case, verdict)


def only(rng: random.Random, act: str) -> Plan:
    """A job for one kind of case."""
    world, level = rng.choice([3, 4] if act in ("cut between", "slow link") else [2, 3, 4]), rng.choice(["L1", "L2"])
    modes = ["plain"] if act in ("loader", *COLLECTIVE_ENDS, "slow link") else ["plain", "ddp"]
    victim = rng.randrange(world // 2 * 2)
    return Plan(
        rng.choice(modes), "L2" if act == "slow link" else level, world, (make(act, victim, world),),
        network=act in (*CUTS, "slow link"), workers=int(act == "loader"),
    )  # fmt: skip


def draw(rng: random.Random, wanted: int, network: bool) -> Plan:
    """A job with at most `wanted` cases."""
    world = rng.choice([2, 3, 3, 4])
    mode, level = rng.choice([("plain", "L1"), ("plain", "L2"), ("ddp", "L1"), ("ddp", "L2"), ("ring", "L1"), ("pipe", "L2")])
    if mode == "ring" and world == 2:
        world = 3

    def victim() -> int:
        return rng.randrange(world)

    if network and rng.random() < 0.35:
        acts = ["slow link"] if mode == "plain" and level == "L2" and world > 2 and rng.random() < 0.5 else [rng.choice(CUTS)]
        if mode in ("ring", "pipe") or (acts == ["cut between"] and world > 3):
            acts = ["cut"]
        first = [rng.choice(PAUSES)] if wanted > 1 else []
        return Plan(mode, level, world, tuple(make(act, victim(), world) for act in (*first, *acts)), network=True)
    workers = int(mode == "plain" and rng.random() < 0.2)
    ends = [*ENDS, *(COLLECTIVE_ENDS if mode == "plain" else ()), *(["loader", "loader"] if workers else ())]
    bodies = rng.choices([*HANGS, *STOPS, *PAUSES, *(["slow"] if mode in ("plain", "ddp") else [])], k=min(wanted, 4) - 1)
    last = rng.choice(ends)
    who = victim()
    if last == "order":
        who = rng.randrange(world // 2 * 2)  # it has to have a pair
    return Plan(mode, level, world, (*(make(act, victim(), world) for act in bodies), make(last, who, world)), workers=workers)
