"""What is done to a job, and what must be found. Drawn at random, or by name."""

from __future__ import annotations

import importlib.util
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ftslurm.model.collectives import CulpritKind
from tests.hang.rig import BUSY_S, QUIET_S, START_S, Job, Verdict, right
from tests.hang.slowness import watch_slow

SLOW_KINDS = (CulpritKind.COMM_SLOW, CulpritKind.NON_COMM_SLOW)


@dataclass(frozen=True)
class Case:
    """act: the name of what is done. expected, ranks: what must be found, None and () for nothing."""

    act: str
    victim: int
    expected: CulpritKind | None
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
    computing: bool = False  # the ranks compute between their collectives, where others sleep
    launch: str = ""  # how the process that trains comes to be; see job.py
    crowded: bool = False  # others compute on the same cores

    @property
    def alone(self) -> bool:
        """Does it need a quiet machine? Speeds are compared."""
        return any(case.act in COMPARED for case in self.cases)

    def __str__(self) -> str:
        extras = (" net" if self.network else "", " loader" if self.workers else "", " computing" if self.computing else "", f" {self.launch}" if self.launch else "",
                  " crowded" if self.crowded else "")  # fmt: skip
        return f"{self.mode} {self.level} x{self.world}{''.join(extras)}"


@dataclass(frozen=True)
class Result:
    plan: Plan
    case: Case
    verdict: Verdict

    @property
    def ok(self) -> bool:
        found = self.verdict.finding
        if self.case.act in CIRCLES:  # the circle has the culprit in it, and whom it waits for
            return found is not None and found.kind is self.case.expected and self.case.victim in found.ranks
        if self.case.act == "suspend" and found is not None and found.kind is CulpritKind.UNKNOWN:
            return True  # it says that the job is suspended, and names nobody to act on
        if (self.plan.level == "L0" or self.plan.mode == "jax") and self.case.expected is not None:
            return found is not None  # that it hangs is all that IO can tell
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
    """The job ends; one rank does not, for it has a thread that goes on. All of them in the same step, some seconds ahead."""
    steps = [int(line.split()[-1]) for rank in range(job.world) for line in job.notes(rank).splitlines() if " goes on " in line]
    for rank in range(job.world):
        job.order(rank, "stay" if rank == case.victim else "leave", max(steps) + STEPS_AHEAD)
    until = time.monotonic() + 60
    while not all("over" in job.notes(rank) for rank in range(job.world)):
        assert time.monotonic() < until, "the job does not end"
        time.sleep(0.1)
    return lambda: None


def _all_at(job: Job, orders: Sequence[str], noted: str) -> None:
    """All of them in the same step, some seconds ahead. noted: what the ranks note then."""
    steps = [int(line.split()[-1]) for rank in range(job.world) for line in job.notes(rank).splitlines() if " goes on " in line]
    before = [job.notes(rank).count(noted) for rank in range(job.world)]
    for rank, kind in enumerate(orders):
        job.order(rank, kind, max(steps) + STEPS_AHEAD)
    until = time.monotonic() + 60
    while any(job.notes(rank).count(noted) == count for rank, count in enumerate(before)):
        assert time.monotonic() < until, f"the ranks do not come to {noted}"
        time.sleep(0.1)


def _meeting(job: Job, case: Case) -> Undo:
    """`meet PLACE BEFORE`: all come to a place where they wait for each other, one only after something else."""
    _, place, before = case.act.split()
    _all_at(job, [f"meet-{place}-{before if rank == case.victim else ''}" for rank in range(job.world)], "begin meeting")
    return lambda: None


def _saving(job: Job, case: Case) -> Undo:
    """`save BEFORE`: all save beside the training, one only after something else."""
    before = case.act.split()[1]
    _all_at(job, [f"save-{before if rank == case.victim else ''}" for rank in range(job.world)], "begin waiting for the save")
    return lambda: None


def _polled(job: Job, case: Case) -> Undo:
    """`poll [file] BEFORE`: the others look into the store again and again, or for a file, whether one is ready."""
    *words, before = case.act.split()
    _all_at(job, [f"{'-'.join(words)}-{before if rank == case.victim else ''}" for rank in range(job.world)], "begin polling")
    return lambda: None


def _called(job: Job, case: Case) -> Undo:
    """`rpc BEFORE`: the next rank calls the victim, which answers only after something else."""
    before = case.act.split()[1]
    calls = [
        f"call-from-{case.victim}-{before}" if rank == (case.victim + 1) % job.world else "call-" for rank in range(job.world)
    ]
    _all_at(job, calls, "begin calling")
    return lambda: None


def _saved_by_torch(job: Job, case: Case) -> Undo:
    """`dcp BEFORE`: torch's asynchronous checkpoint, the storage of one rank is slow or dead."""
    before = case.act.split()[1]
    _all_at(job, [f"dcp-{before if rank == case.victim else ''}" for rank in range(job.world)], "begin waiting for the save")
    return lambda: None


def _told_late(job: Job, case: Case) -> Undo:
    """`told BEFORE`: all wait for what the victim tells them, after work, or after nothing at all."""
    before = case.act.split()[1]
    _all_at(job, [f"told-{case.victim}-{before}"] * job.world, "begin telling")
    return lambda: None


def _lock_of_peer(job: Job, case: Case) -> Undo:
    """The victim wants a lock that another rank keeps, which waits for it in the next collective."""
    parts = {case.victim: "peer-want", case.other: "peer-hold"}
    _all_at(job, [parts.get(rank, "peer-") for rank in range(job.world)], "begin locking")
    return lambda: None


def _epoch_over(job: Job, case: Case) -> Undo:
    """The victim is at the end of the epoch, the others have a batch more."""
    _all_at(job, ["epoch-over" if rank == case.victim else "epoch-" for rank in range(job.world)], "begin epoch")
    return lambda: None


def _relay(job: Job, case: Case) -> Undo:
    """One rank after the other pauses, each for less than the limit, with a step between."""

    over = threading.Event()

    def pass_on() -> None:
        for rank in (*range(job.world), *range(job.world)):
            if over.is_set():
                return
            job.order(rank, "sleep", 1.6)
            until = time.monotonic() + 10
            while job.notes(rank).count("end sleep") < job.notes(rank).count("begin sleep") and time.monotonic() < until:
                time.sleep(0.1)

    passing = threading.Thread(target=pass_on, daemon=True)
    passing.start()

    def stop() -> None:
        over.set()
        passing.join()

    return stop


def _of_loader(name: str) -> Callable[[Job, Case], Undo]:
    def act(job: Job, case: Case) -> Undo:
        path = job.folder / f"loader.{name}.{case.victim}"
        path.touch()
        return path.unlink

    return act


def _collect(job: Job, case: Case) -> Undo:
    """A rank with a large heap."""
    job.order(case.victim, "collect", 0.3)
    return lambda: job.order(case.victim, "collect", 0)


def _export(job: Job, case: Case) -> Undo:
    """The training is over and its groups are gone; rank 0 has something to compute, or to upload, yet."""
    _all_at(job, [case.act] * job.world, f"begin {case.act}")
    return lambda: None


def _absent(job: Job, case: Case) -> Undo:
    """It has been so from the start."""
    until = time.monotonic() + START_S
    while not all("begin init" in job.notes(rank) for rank in range(job.world)):
        assert time.monotonic() < until, "the job does not start:\n" + job.log(0)
        time.sleep(0.05)
    return lambda: None


def _loader(job: Job, case: Case) -> Undo:
    (job.folder / f"loader.{case.victim}").touch()
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


def _suspend(job: Job, case: Case) -> Undo:
    """The whole job, as `scontrol suspend` would."""
    for rank in range(job.world):
        job.signal(rank, signal.SIGSTOP)

    def go_on() -> None:
        for rank in range(job.world):
            job.signal(rank, signal.SIGCONT)

    return go_on


def _debug(job: Job, case: Case) -> Undo:
    """Somebody looks at a rank with a debugger, for less than the limit."""
    job.signal(case.victim, signal.SIGSTOP)
    time.sleep(SHORT_S)
    job.signal(case.victim, signal.SIGCONT)
    return lambda: None


def _slowly_loading(job: Job, case: Case) -> Undo:
    """Each batch takes a while, for longer than a hang would."""
    path = job.folder / f"loader.slow.{case.victim}"
    path.touch()
    return path.unlink


def _uneven(job: Job, case: Case) -> Undo:
    """Every step takes another time on every rank."""
    for rank in range(job.world):
        job.order(rank, "uneven", 0.02)

    def even() -> None:
        for rank in range(job.world):
            job.order(rank, "uneven", 0)

    return even


def _below(job: Job, case: Case) -> Undo:
    """A little slower than the others: less than is told."""
    job.order(case.victim, "slow", 0.0008)
    return lambda: job.order(case.victim, "slow", 0)


def _slow_link(job: Job, case: Case) -> Undo:
    assert job.network is not None
    job.network.shape(case.victim, "100mbit")
    return lambda: None


def _nothing(job: Job, case: Case) -> Undo:
    return lambda: None


# Kinds that came after the rule on MPI, which was the last: see fresh.py, ways.py, others.py, launches.py.
FRESHEST_PAUSES = (
    "convert", "build", "install", "garbage", "memory", "unpack", "pooled", "hashed", "compressed", "database", "pushed", "fetched",
    "copied", "prepared", "mapped", "sorted", "validated", "synced", "looked-up", "woven",
)  # fmt: skip
FRESHEST_HANGS = (
    "starved", "unnotified", "unanswered", "killed-worker", "semaphore", "mute-child", "stopped-child", "tries-again", "in-asyncio",
    "signalled", "native-lock", "locked-base", "record-lock", "backlog", "select-none", "barrier-of-threads", "manager", "pidfile",
)  # fmt: skip
# Kinds that came after the rules on the loops of gloo, of torch's server and of the probe: see unseen.py.
UNSEEN_PAUSES = ("memmap", "niced", "thin", "spawned-loader", "tenth", "direct-read", "spliced", "dynamo", "relay", "told work")
# Kinds that came with healthy.py: see the second part of unseen.py.
NEWEST_PAUSES = (
    "json-lines", "matched", "generated", "decomposed", "threads-of-torch", "scored", "walked", "shared", "waits-for-work",
    "throttled", "written-by-thread", "counted",
)  # fmt: skip
# Kinds that do nothing, and get at last from another process what they wait for: see the third part of unseen.py.
BEYOND = ("answered", "answered-in-time", "awaited", "piped", "their-lock", "record-of-others", "judged")
UNSEEN_HANGS = (
    "resolver", "stopped-worker", "nested-pool", "import-lock", "undrained", "full-child", "forked-lock", "asks-somebody", "tracker",
    "backoff", "yields", "debugger", "told sleep", "peer-lock",
)  # fmt: skip
TOGETHER = ("told work", "told sleep", "peer-lock", "relay", "epoch-over")  # all ranks have a part in it
UNSEEN_WAYS = (
    ("plain", ""), ("ddp", ""), ("fsdp", ""), ("thread", ""), ("tpdp", ""), ("functional", ""), ("accumulate", ""), ("hsdp", ""),
    ("batched", ""), ("plain", "script"), ("ddp", "fork"), ("plain", "L0"),
)  # fmt: skip
CIRCLES = ("order", "alone", "nobody", "epoch-over")  # the victim and whom it waits for wait for each other
STRAYS = ("alone", "nobody", "in-vain")  # the victim waits where no other comes; they end the job
FRESHEST_MODES = ("context", "1f1b", "accumulate", "join", "averaging", "functional", "tensor", "scattered", "hsdp", "mpi", "jax")
FRESHEST_LAUNCHES = ("actors", "kernel", "coroutine", "script")
LIBRARIES = {"mpi": "mpi4py", "jax": "jax"}
# A pause that would be seen there, and no longer than work may last.
LONG_PAUSE_S = {"mpi": 10.0, "jax": 14.0, "L0": 14.0}
PAUSE_S = 20.0
STEPS_AHEAD = 300
SHORT_S = QUIET_S / 2
ACTS: dict[str, Callable[[Job, Case], Undo]] = {
    "sleep": _pause(PAUSE_S), "deadlock": _pause(PAUSE_S), "native": _pause(PAUSE_S), "loop": _pause(BUSY_S + 14),
    "fifo": _blocked, "spawn": _blocked, "stop inside": _stop_inside, "stop outside": _stop_outside,
    "evaluate": _pause(6.0), "checkpoint": _pause(6.0), "compile": _pause(6.0), "trickle": _pause(6.0),
    "hiccup": _pause(1.0), "nothing": _nothing, "suspend": _suspend, "debug": _debug, "slow loader": _slowly_loading,
    "uneven": _uneven, "below": _below, "slow": _slow, "slow link": _slow_link,
    "order": _order, "odd": _order, "stay": _leave_all, "loader": _loader,
    "cut": _cut, "cut between": _cut_between, "export": _export, "absent": _absent, "absent at work": _absent,
    "pipe": _pause(PAUSE_S), "flock": _pause(PAUSE_S), "child": _pause(PAUSE_S), "bursts": _pause(6.0), "collect": _collect,
    "upload": _export, "save work": _saving, "save sleep": _saving,
    "poll work": _polled, "poll sleep": _polled, "poll file work": _polled, "poll file sleep": _polled, "download": _pause(6.0),
    "rpc work": _called, "rpc sleep": _called, "dcp work": _saved_by_torch, "dcp sleep": _saved_by_torch,
    "loader lock": _of_loader("lock"), "loader work": _of_loader("work"), "gil-work": _pause(6.0), "gil-sleep": _pause(PAUSE_S),
    "dead-server": _pause(PAUSE_S), "flag": _pause(PAUSE_S), "licence": _pause(PAUSE_S), "lock-file": _pause(PAUSE_S),
    **dict.fromkeys(FRESHEST_PAUSES, _pause(6.0)), **{act: _pause(PAUSE_S) for act in FRESHEST_HANGS}, **dict.fromkeys((*STRAYS, "lost"), _order),
    **dict.fromkeys((*UNSEEN_PAUSES, *NEWEST_PAUSES, *BEYOND), _pause(6.0)), **dict.fromkeys(UNSEEN_HANGS, _pause(PAUSE_S)), "yields": _pause(BUSY_S + 14),
    "told work": _told_late, "told sleep": _told_late, "peer-lock": _lock_of_peer, "epoch-over": _epoch_over, "relay": _relay,
    **{f"meet {place} {before}": _meeting for place in ("monitored", "store", "group") for before in ("work", "sleep")},
}  # fmt: skip
HANGS = ("sleep", "deadlock", "native", "loop", "fifo", "spawn")
STOPS = ("stop inside", "stop outside")
MEETINGS_AT_WORK = tuple(f"meet {place} work" for place in ("monitored", "store", "group"))
MEETINGS = tuple(f"meet {place} sleep" for place in ("monitored", "store", "group"))
ABSENT = ("absent", "absent at work")  # before the first step
# Kinds that came after the rules were last touched; those that need a mode of their own with it.
NEW_PAUSES = ("bursts", "collect", "upload", "save work", "poll work", "poll file work", "download")
NEW_HANGS = (
    "pipe",
    "flock",
    "child",
    "save sleep",
    "poll sleep",
    "poll file sleep",
    "dead-server",
    "flag",
    "licence",
    "lock-file",
)
OF_MODE = {
    "save work": "saves", "save sleep": "saves", "rpc work": "rpc", "rpc sleep": "rpc", "dcp work": "dcp", "dcp sleep": "dcp",
}  # fmt: skip
# Kinds that came after those: what is done, how a step is made, how the process that trains comes to be.
LATEST_PAUSES = ("rpc work", "dcp work", "loader work", "gil-work")
LATEST_HANGS = ("rpc sleep", "dcp sleep", "loader lock", "gil-sleep")
LATEST_MODES = ("zero", "experts", "objects", "stages", "rpc", "dcp")
OF_NUMPY = ("objects", "rpc", "dcp")
LATEST_LAUNCHES = {"notebook": "nbclient", "ray": "ray"}  # with the package that it takes
USUAL_PAUSES = ("evaluate", "checkpoint", "compile", "trickle", "bursts", "download", "hiccup", "suspend", "debug", "poll work")
USUAL_HANGS = (
    "sleep", "deadlock", "native", "loop", "fifo", "stop outside", "pipe", "flock", "child", "dead-server", "licence", "poll sleep",
)  # fmt: skip
PAUSES = (
    *BEYOND,
    *NEWEST_PAUSES,
    *UNSEEN_PAUSES,
    *FRESHEST_PAUSES,
    *LATEST_PAUSES,
    *MEETINGS_AT_WORK,
    "export",
    "absent at work",
    "evaluate",
    "checkpoint",
    "compile",
    "trickle",
    "hiccup",
    "nothing",
    "suspend",
    "debug",
    "slow loader",
    "uneven",
    "below",
    *NEW_PAUSES,
)
ENDS = ("stay",)
COLLECTIVE_ENDS = ("order", "odd")  # only where a step is made of collectives that the program issues itself
CUTS = ("cut", "cut between")
COMPARED = ("slow", "slow link", "uneven", "below", "collect")  # the rules on slowness look on

MODES = (("plain", "L1"), ("plain", "L2"), ("ddp", "L1"), ("ddp", "L2"), ("ring", "L1"), ("pipe", "L2"))
NEW_MODES = (
    ("tpdp", "L1"), ("tpdp", "L2"), ("fsdp", "L1"), ("fsdp", "L2"), ("groups", "L1"), ("groups", "L2"), ("thread", "L1"), ("thread", "L2"),
    ("batched", "L1"),
)  # fmt: skip

# As often is each drawn.
FAULTS = {
    "sleep": 2, "deadlock": 2, "native": 2, "loop": 2, "fifo": 2, "spawn": 2, "stop outside": 3, "loader": 2, "order": 2, "odd": 2,
    **dict.fromkeys(MEETINGS, 2), **dict.fromkeys(NEW_HANGS, 11), "absent": 3, "stop inside": 6, "cut": 3, "cut between": 2, "slow": 5, "slow link": 4, "stay": 1,
}  # fmt: skip
HEALTHY = {
    act: 6 if act == "collect" else 13 if act in NEW_PAUSES else 4
    for act in PAUSES
    if act not in (*LATEST_PAUSES, *FRESHEST_PAUSES, *UNSEEN_PAUSES, *NEWEST_PAUSES, *BEYOND)
}


def make(act: str, victim: int, world: int, other: int | None = None) -> Case:
    """With what it must be found as."""
    other = (victim + 1) % world if other is None else other
    ranks: tuple[int, ...] = (victim,)
    if act in PAUSES:
        return Case(act, victim, None, (), other)
    if act in ("stop inside", "cut", "cut between"):
        kind = CulpritKind.COMM_HANG
        if act == "cut between" or (act == "cut" and world == 2):
            ranks = tuple(sorted((victim, other)))
    elif act == "lost":  # every rank is in a call of MPI then
        kind, ranks = CulpritKind.COMM_HANG, tuple(range(world))
    elif act == "stay":
        kind = CulpritKind.EXIT_HANG
    elif act in ("slow", "slow link"):
        kind = CulpritKind.NON_COMM_SLOW if act == "slow" else CulpritKind.COMM_SLOW
    else:
        kind = CulpritKind.NON_COMM_HANG
        if act == "odd" and world == 2:
            ranks = (0, 1)  # one against one
    return Case(act, victim, kind, ranks, other)


def run(job: Job, plan: Plan, case: Case) -> Result:
    if case.act not in ABSENT:
        job.wait_for_progress()
    if case.act in COMPARED:
        budget_s = 45.0 if case.expected else 22.0
        return Result(plan, case, watch_slow(job, lambda: ACTS[case.act](job, case), budget_s))
    doing = replace(case, act="sleep") if case.act == "hiccup" else case
    pause_s = LONG_PAUSE_S.get("L0" if plan.level == "L0" else plan.mode) if case.expected is None else None
    if pause_s is not None:
        return Result(plan, case, _watched(job, case, pause_s))
    undo = ACTS[case.act](job, doing)
    budget_s = BUSY_S + 16 if case.act in ("loop", "yields") else 8.0 if case.expected is None else 30.0
    verdict = job.watch(budget_s)
    undo()
    return Result(plan, case, verdict)


def _watched(job: Job, case: Case, pause_s: float) -> Verdict:
    _pause(pause_s)(job, case)
    return job.watch(pause_s + 1)


def only(rng: random.Random, act: str) -> Plan:
    """A job for one kind of case."""
    return _plan(rng, [], act) if _ends(act) else _plan(rng, [act], None)


def deck(rng: random.Random, faults: int, healthy: int, network: bool) -> list[Plan]:
    """Jobs with so many cases in all, the kinds as often as FAULTS and HEALTHY say."""
    drawn = [*_drawn(rng, FAULTS, faults, network), *_drawn(rng, HEALTHY, healthy, network)]
    rng.shuffle(drawn)
    ends = [act for act in drawn if _ends(act)]
    compared = [act for act in drawn if act in COMPARED and not _ends(act)]
    loading = [act for act in drawn if act == "slow loader"]
    of_mode = [act for act in drawn if act in OF_MODE]
    others = [act for act in drawn if not _ends(act) and act not in (*COMPARED, *OF_MODE, "slow loader")]
    plans = []
    for act in ends:
        if act == "loader":
            bodies, others = [*loading[:2], *others[:2]], others[2:]
            loading = loading[2:]
        elif act in ("slow link", *ABSENT):
            bodies = []
        else:
            bodies, others = others[:3], others[3:]
        plans.append(_plan(rng, bodies, act))
    for kept in (others, compared, loading, of_mode):
        plans += [_plan(rng, kept[at : at + 4], None) for at in range(0, len(kept), 4)]
    return plans


def missing_libraries() -> list[str]:
    return [package for package in LIBRARIES.values() if importlib.util.find_spec(package) is None]


def freshest(rng: random.Random, faults: int, healthy: int) -> list[Plan]:
    """Jobs with so many cases of the freshest kinds: fresh acts in any way to train, and half as many usual ones in fresh ways."""
    strays = [*STRAYS, "lost"]
    own = [*FRESHEST_HANGS, *FRESHEST_HANGS, *FRESHEST_HANGS]
    usual = [act for act in USUAL_HANGS if not act.startswith("poll")]
    hangs = [*rng.sample(own, min(len(own), faults * 2 // 3 - 4)), *strays]
    hangs += [rng.choice(usual) for _ in range(faults - len(hangs))]
    pauses = rng.sample([*FRESHEST_PAUSES] * 4, healthy * 3 // 4)
    pauses += [rng.choice([act for act in USUAL_PAUSES if not act.startswith("poll")]) for _ in range(healthy - len(pauses))]
    ends = [act for act in hangs if act in strays]
    drawn = [act for act in (*hangs, *pauses) if act not in strays]
    rng.shuffle(drawn)
    libraries = [mode for mode, package in LIBRARIES.items() if package not in missing_libraries()]
    torch_ways = [*((mode, "") for mode in FRESHEST_MODES if mode not in LIBRARIES),
                  *((mode, launch) for launch in FRESHEST_LAUNCHES for mode in ("plain", "ddp")), ("plain", "L0")]  # fmt: skip
    ways = [*torch_ways, *((mode, "") for mode in libraries * 2)]
    rng.shuffle(ways)
    plans = []
    for at in range(0, len(drawn), 4):
        mode, launch = ways[at // 4 % len(ways)]
        acts = drawn[at : at + 4]
        if mode in LIBRARIES or launch == "L0":
            acts = [
                act if act in (*FRESHEST_HANGS, *FRESHEST_PAUSES) else "sleep" if act in USUAL_HANGS else "hashed" for act in acts
            ]
        plans.append(_freshest_plan(rng, mode, launch, acts))
    plans += [_freshest_plan(rng, "mpi" if act == "lost" else rng.choice(["plain", "ddp"]), "", [act]) for act in ends]
    return plans


def _freshest_plan(rng: random.Random, mode: str, launch: str, acts: Sequence[str]) -> Plan:
    world = (
        4
        if mode in ("hsdp", "tpdp")
        else 3
        if mode in ("context", "mpi", "batched") or any(act in STRAYS for act in acts)
        else rng.choice([2, 3])
    )
    world = 2 if launch and launch != "L0" else world
    level = "L0" if launch == "L0" else rng.choice(["L1", "L2"])
    # The last of three has no other one to be in a pair with.
    made = tuple(make(act, rng.randrange(2 if act == "alone" else world), world) for act in acts)
    return Plan(mode, level, world, made, launch="" if launch == "L0" else launch, crowded=rng.random() < 0.5)


def unseen(rng: random.Random, faults: int, healthy: int) -> list[Plan]:
    """Jobs with so many cases of the kinds that the rules have not seen, each about as often, in ways to train that they have."""
    ends = ["epoch-over"] * max(1, faults // 18)
    drawn = [*_evenly(rng, UNSEEN_HANGS, faults - len(ends)), *_evenly(rng, UNSEEN_PAUSES, healthy)]
    rng.shuffle(drawn)
    ways = [*UNSEEN_WAYS, *((mode, "") for mode, package in LIBRARIES.items() if package not in missing_libraries())]
    rng.shuffle(ways)
    by_way: dict[tuple[str, str], list[str]] = {way: [] for way in ways}
    for act in drawn:  # the ways one by one; without torch, or without a probe, only what one rank does for itself
        open_to = [way for way in ways if not (_without_probe(way) and act in (*TOGETHER, "yields"))]
        by_way[min(open_to, key=lambda way: len(by_way[way]))].append(act)
    plans = []
    for (mode, launch), acts in by_way.items():
        for at in range(0, len(acts), 4):
            plans.append(_freshest_plan(rng, mode, launch, acts[at : at + 4]))
    return plans + [_freshest_plan(rng, rng.choice(["plain", "ddp", "fsdp"]), "", [act]) for act in ends]


def _without_probe(way: tuple[str, str]) -> bool:
    return way[0] in LIBRARIES or way[1] == "L0"


def _evenly(rng: random.Random, acts: Sequence[str], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += rng.sample(acts, min(len(acts), count - len(found)))
    return found


def missing() -> list[str]:
    """Packages that some of the latest kinds take and that are not there."""
    return [package for package in (*LATEST_LAUNCHES.values(), "numpy") if importlib.util.find_spec(package) is None]


def latest(rng: random.Random, faults: int, healthy: int) -> list[Plan]:
    """Jobs with so many cases of the latest kinds in all, an act or a way to train or to start that came last."""
    there = [name for name, package in LATEST_LAUNCHES.items() if package not in missing()]
    barred = OF_NUMPY if "numpy" in missing() else ()
    hangs, pauses = ([act for act in acts if OF_MODE.get(act) not in barred] for acts in (LATEST_HANGS, LATEST_PAUSES))
    ways = [
        *((mode, "") for mode in LATEST_MODES if mode not in barred),
        *((mode, launch) for launch in there for mode in ("plain", "ddp")),
    ]
    drawn = [*_spread(rng, hangs, USUAL_HANGS, faults), *_spread(rng, pauses, USUAL_PAUSES, healthy)]
    rng.shuffle(drawn)
    plans = []
    own = [act for act in drawn if act in (*LATEST_HANGS, *LATEST_PAUSES)]
    for act in dict.fromkeys(own):
        mine = [each for each in own if each == act]
        mode = OF_MODE.get(act, "")
        for at in range(0, len(mine), 1 if act == "loader lock" else 2):
            plans.append(
                _latest_plan(rng, mode or rng.choice(["plain", "ddp"]), "", mine[at : at + (1 if act == "loader lock" else 2)])
            )
    usual = [act for act in drawn if act not in (*LATEST_HANGS, *LATEST_PAUSES)]
    for at in range(0, len(usual), 4):
        mode, launch = ways[at // 4 % len(ways)]
        plans.append(_latest_plan(rng, mode, launch, usual[at : at + 4]))
    return plans


def _latest_plan(rng: random.Random, mode: str, launch: str, acts: Sequence[str]) -> Plan:
    world = 2 if launch else rng.choice([2, 3, 4])
    world = 3 if mode == "rpc" and world == 2 else world
    made = tuple(make(act, rng.randrange(world), world) for act in acts)
    workers = int(any(act.startswith("loader") for act in acts))
    return Plan(mode, rng.choice(["L1", "L2"]), world, made, workers=workers, launch=launch, crowded=rng.random() < 0.4)


def _spread(rng: random.Random, own: Sequence[str], usual: Sequence[str], count: int) -> list[str]:
    """Half of each."""
    pools = ([act for act in own for _ in range(20)], [act for act in usual for _ in range(20)])
    return [act for pool, many in zip(pools, (count // 2, count - count // 2), strict=True) for act in rng.sample(pool, many)]


def _ends(act: str) -> bool:
    """Is the job good for nothing after it?"""
    return act in (*ENDS, *COLLECTIVE_ENDS, *CUTS, *ABSENT, "loader", "slow link", "export", "upload")


def _drawn(rng: random.Random, weights: dict[str, int], count: int, network: bool) -> list[str]:
    pool = [act for act, times in weights.items() for _ in range(times) if network or act not in (*CUTS, "slow link")]
    found: list[str] = []
    while len(found) < count:
        found += rng.sample(pool, k=min(len(pool), count - len(found)))
    return found


def _plan(rng: random.Random, bodies: list[str], end: str | None) -> Plan:
    acts = [*bodies, *([end] if end else [])]
    network = end in (*CUTS, "slow link")
    if network:  # the server of a download would be in the rank's own network, whose sums show no way then
        acts = ["trickle" if act == "download" else act for act in acts]
    world = rng.choice([3, 4] if end in ("cut between", "slow link") or any(act in COMPARED for act in acts) else [2, 3, 4])
    if end in COLLECTIVE_ENDS or end == "loader" or "slow loader" in acts:
        mode, level = "plain", rng.choice(["L1", "L2"])
    elif of_mode := next((OF_MODE[act] for act in acts if act in OF_MODE), ""):
        mode, level = of_mode, rng.choice(["L1", "L2"])
    elif end == "slow link" or "below" in acts:
        mode, level = "plain", "L2"
    elif any(act in COMPARED for act in acts):
        mode, level = rng.choice([("plain", "L2"), ("ddp", "L1"), ("ddp", "L2"), ("tpdp", "L1"), ("tpdp", "L2")])
    else:
        mode, level = rng.choice([*MODES, *NEW_MODES])
        world = 3 if mode in ("ring", "batched") and world == 2 else world
    if mode not in ("plain", "ddp") and end in CUTS:
        mode = "ddp"
    world = 4 if mode == "tpdp" else world
    if end == "cut between" and world > 3:
        world = 3  # gloo's rings leave most pairs of a larger world without a connection that matters
    workers = int(end == "loader" or "slow loader" in acts)
    computing = world == 2 and mode in ("plain", "ddp") and rng.random() < 0.5
    # A rank without a neighbour has no pair to be in the wrong order with.
    cases = tuple(make(act, rng.randrange(world // 2 * 2 if act == "order" else world), world) for act in acts)
    launch = "" if network or workers or any(act in COMPARED for act in acts) else rng.choice(["", "", "exec", "child", "fork"])
    crowded = not any(act in COMPARED for act in acts) and rng.random() < 0.3
    return Plan(mode, level, world, cases, network, workers, computing, launch, crowded)
