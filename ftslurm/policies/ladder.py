"""The ladder: which remedy answers a trouble. Reads from top to bottom; every rung says why it is not the one.

Source: seed 003 (rungs, triggers, degradations); what differs stands in the rung's own comment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.events import SlurmAnswered
from ftslurm.model.history import History
from ftslurm.model.settings import Settings


class Cause(str, Enum):
    """What stands behind a trouble, as far as it is known."""

    DEVICE = "device"  # a graded fault code on a node of the job
    NODE = "node"  # Slurm says that a node of the job is down or failing, or it cannot end its processes
    CRASH = "crash"  # a rank failed and nothing explains it
    UNSTARTABLE = "unstartable"  # the command cannot be executed on any node
    LAUNCH = "launch"  # the step did not come up, and the command has never run
    LOST = "lost"  # a task or the step vanished; nobody knows why
    WARNING = "warning"  # Slurm announced the end of the allocation


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the ladder may look at. now: Unix seconds. status: what ftrun would end with.

    not_in_place: why the ranks cannot be started again in place, empty if they can. unhealed: node -> why healing failed.
    blamed: node -> reason, the nodes a fact speaks against. can: what the launcher is able to do.
    """

    cause: Cause
    what: str
    status: int
    history: History
    settings: Settings
    now: float
    faults: tuple[Fault, ...] = ()
    unhealed: Mapping[str, str] = field(default_factory=dict)
    blamed: Mapping[str, str] = field(default_factory=dict)
    not_in_place: str = ""
    slurm: SlurmAnswered | None = None
    can: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Answer:
    """A rung's answer: `yes` or not, and why."""

    yes: bool
    why: str


@dataclass(frozen=True, slots=True)
class Rung:
    """One line of the table. trigger, price, degrades: for people. cost: the budget it is taken from, or empty."""

    name: str
    trigger: str
    price: str
    degrades: str
    allowed: Callable[[Situation], Answer]
    cost: Callable[[Situation], str]


@dataclass(frozen=True, slots=True)
class Choice:
    """The rung that answers. passed: each rung asked before it and why it was not taken."""

    rung: str
    why: str
    cost: str
    passed: tuple[tuple[str, str], ...]


def choose(situation: Situation) -> Choice:
    """The first rung, in the order of the policy's ladder, that is switched on, fits and can be paid."""
    passed: list[tuple[str, str]] = []
    for name in (*situation.settings.ladder, "fail"):
        rung = LADDER[name]
        answer = rung.allowed(situation)
        if answer.yes:
            return Choice(name, answer.why, rung.cost(situation), tuple(passed))
        passed.append((name, answer.why))
    raise AssertionError("`fail` is always allowed")


# --- guards


def _no(why: str) -> Answer:
    return Answer(False, why)


def _in_place(s: Situation) -> Answer:
    if not s.settings.in_place:
        return _no("switched off")
    if s.cause is Cause.DEVICE:
        if reason := _degraded(s) or _elsewhere(s):
            return _no(reason)
        return _no(s.not_in_place) if s.not_in_place else Answer(True, "the fault is one that heals")
    if s.cause is Cause.CRASH and s.settings.crash_restarts:
        return _crash_in_place(s)
    return _no("no device fault that heals")


def _crash_in_place(s: Situation) -> Answer:
    used, limit = s.history.spent.get("crash_restarts", 0), s.settings.crash_restarts
    if used >= limit:
        return _no(f"all {limit} restarts in place after a crash are spent")
    return _no(s.not_in_place) if s.not_in_place else Answer(True, f"crash {used + 1} of {limit} answered in place")


def _degraded(s: Situation) -> str:
    """Why a device fault cannot be healed in place, or nothing."""
    if s.unhealed:
        return "healing failed: " + "; ".join(f"{node}: {why}" for node, why in sorted(s.unhealed.items()))
    for fault in s.faults:
        if fault.fault_class is FaultClass.ISOLATE:
            return f"{fault} does not heal"
    for fault in s.faults:
        if repeated(fault, s.history, s.settings, s.now):
            hours = s.settings.same_code_window_s / 3600
            return f"{fault.code} on device {fault.device} of {fault.node} for the {_nth(s, fault)} time in {hours:g} h"
    return ""


def _elsewhere(s: Situation) -> str:
    """A node that is to blame for something else than a fault that heals."""
    others = s.blamed.keys() - {fault.node for fault in s.faults}
    return "; ".join(f"{node}: {s.blamed[node]}" for node in sorted(others))


def repeated(fault: Fault, history: History, settings: Settings, now: float) -> bool:
    """Same node, same device, same code, too often in the window (the present time counted)?"""
    return history.fault_count(fault.key, now - settings.same_code_window_s) >= settings.same_code_limit


def _nth(s: Situation, fault: Fault) -> str:
    number = s.history.fault_count(fault.key, s.now - s.settings.same_code_window_s)
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")


def _hang(s: Situation) -> Answer:
    return _no("no hang") if s.settings.hang_restart else _no("switched off")


def _replace(s: Situation) -> Answer:
    if not s.blamed:
        return _no("no node is to blame")
    if not s.settings.node_replacement:
        return _no("switched off")
    if "replace" not in s.can:
        return _no("the launcher cannot replace a node in a running job")
    used, limit = s.history.spent.get("node_replacements", 0), s.settings.node_replacements
    return _no(f"all {limit} node replacements are spent") if used >= limit else Answer(True, "bad nodes are known")


def _isolated(s: Situation) -> Answer:
    if not s.blamed:
        return _no("no node is to blame")
    if not s.settings.isolated_requeue:
        return _no("switched off")
    if reason := _not_requeueable(s) or _too_few_left(s):
        return _no(reason)
    return Answer(True, "without " + ", ".join(sorted(s.blamed)))


def _unconditional(s: Situation) -> Answer:
    if s.cause is Cause.UNSTARTABLE:
        return _no("the command cannot be executed on any node, so running it again cannot help")
    if s.cause is Cause.LAUNCH:
        return _no("the step never came up, and Slurm has said why")
    if s.blamed:
        return _no("a node is to blame, and would be used again")
    # A user-induced device fault is rescheduled without blaming the node (seed 003); the automatic restart pays for
    # that, so it holds even where the unconditional one is switched off.
    if not (s.settings.unconditional_requeue or (s.cause is Cause.DEVICE and s.settings.isolated_requeue)):
        return _no("switched off")
    limit = s.settings.unconditional_in_a_row
    if s.cause is not Cause.DEVICE and s.history.unconditional_in_a_row >= limit:
        return _no(f"{limit} unconditional requeues in a row, no device or node fault between: the fault is in the program")
    if reason := _not_requeueable(s):
        return _no(reason)
    return Answer(True, "no node is to blame")


def _not_requeueable(s: Situation) -> str:
    used, limit = s.history.spent.get("max_restarts", 0), s.settings.max_restarts
    if used >= limit:
        return f"all {limit} requeues (max_restarts) are spent"
    if "requeue" not in s.can:
        return "only a batch job can be requeued"
    if s.slurm is None or s.slurm.error:
        return f"Slurm did not say how the job stands: {s.slurm.error if s.slurm else 'not asked'}"
    if not s.slurm.batch:
        return "only a batch job can be requeued"
    if not s.slurm.requeueable and not s.settings.even_if_no_requeue:
        return "the job may not be requeued (submit with `sbatch --requeue`)"
    return ""


def _too_few_left(s: Situation) -> str:
    """Too many exclusions leave a job pending for ever, so those that would remain are counted first."""
    if s.slurm is None or s.slurm.usable is None:
        return ""
    kept_out = {*s.blamed, *s.history.kept_out(s.now, s.settings.isolation_expires_s)}
    left = len(s.slurm.usable - kept_out)
    if left >= s.slurm.node_count:
        return ""
    return f"the job needs {s.slurm.node_count} nodes and only {left} would be left without {', '.join(sorted(kept_out))}"


def _fail(s: Situation) -> Answer:
    return Answer(True, "nothing above applies")


# --- the table


def _nothing(s: Situation) -> str:
    return ""


def _one_restart(s: Situation) -> str:
    return "max_restarts"


LADDER: Mapping[str, Rung] = {
    rung.name: rung
    for rung in (
        Rung(
            "in-place-restart",
            trigger="a device fault that heals (and crashes, as many as crash_restarts)",
            price="nothing (a crash: one of crash_restarts)",
            degrades="when healing fails, or the same code comes too often on one device",
            allowed=_in_place,
            cost=lambda s: "crash_restarts" if s.cause is Cause.CRASH else "",
        ),
        Rung(
            "hang-restart",
            trigger="a hang that no hardware fault explains",
            price="nothing",
            degrades="after too many in a row",
            allowed=_hang,
            cost=_nothing,
        ),
        Rung(
            "node-replacement",
            trigger="a node that a fact speaks against",
            price="one of its budget",
            degrades="when no node is to be had, or the launcher cannot do it",
            allowed=_replace,
            cost=lambda s: "node_replacements",
        ),
        Rung(
            "isolated-requeue",
            trigger="a node that a fact speaks against",
            price="one of max_restarts",
            degrades="when max_restarts is spent, or too few nodes would be left",
            allowed=_isolated,
            cost=_one_restart,
        ),
        Rung(
            "unconditional-requeue",
            trigger="the command failed and nothing explains it; a user-induced device fault too often",
            price="one of max_restarts",
            degrades="after as many in a row as allowed without a device or node fault between",
            allowed=_unconditional,
            cost=_one_restart,
        ),
        Rung(
            "fail",
            trigger="nothing above applies",
            price="",
            degrades="",
            allowed=_fail,
            cost=_nothing,
        ),
    )
}


def rung_texts() -> tuple[tuple[str, str, str, str], ...]:
    """(name, trigger, price, degrades) of every rung, for people."""
    return tuple((rung.name, rung.trigger, rung.price, rung.degrades) for rung in LADDER.values())
