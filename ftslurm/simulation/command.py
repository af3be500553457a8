"""`ftslurm simulate`, from texts to texts: reads trace and policies, plays one against the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from ftslurm.catalogs.codes import CodeBook
from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_code_book, load_pattern_book
from ftslurm.config.settings_files import SettingsAsked, read_text, settings_in_force
from ftslurm.errors import PolicyError, UsageError
from ftslurm.model.devices import CodeMeaning, FaultClass, Severity
from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.nodes import fold_nodes
from ftslurm.model.settings.tree import Settings, as_policy, with_values
from ftslurm.model.values import Value, replace
from ftslurm.policies.judge.judge import budgets
from ftslurm.simulation.measured import PolicyOutcome
from ftslurm.simulation.past import Past, Replayed, answered_pairs
from ftslurm.simulation.play import play
from ftslurm.simulation.trace import (
    FaultKind,
    Trace,
    TraceFault,
    parts,
    plan_with,
    random_trace,
    rate_of,
    read_trace,
    with_few_nodes,
)

MOST = 12
_Books = Callable[[tuple[str, ...]], tuple[CodeBook, PatternBook]]
IN_FORCE = "in force"


def named(text: str) -> tuple[str, dict[str, str]]:
    """`NAME:key=value,...` -> name and settings. A value may have commas: `ladder=hang-restart,fail`. Raises: UsageError."""
    name, _, rest = text.partition(":")
    values: dict[str, str] = {}
    last = ""
    for piece in rest.split(",") if rest else ():
        key, equals, value = piece.partition("=")
        if equals:
            last = key.strip()
            values[last] = value
        elif last:
            values[last] += f",{piece}"
        else:
            break
    if not name or not values:
        raise UsageError(f"--with {text}: a name and settings are wanted", hint="such as --with spare:nodes.spares=1")
    return name, values


def policies(base: SettingsAsked, others: Sequence[str], env: Mapping[str, str]) -> dict[str, Settings]:
    """By name, the one in force first. Raises: PolicyError, UsageError, also for one that cannot be simulated."""
    found = {IN_FORCE: settings_in_force(base, env).settings}
    for text in others:
        name, values = named(text)
        laid_over = {**(base.values or {}), **{key: (value, f"--with {name}:{key}") for key, value in values.items()}}
        if name in found:
            raise UsageError(f"two policies are called {name}", hint="give one of them another name")
        found[name] = settings_in_force(replace(base, values=laid_over), env).settings
    if len(found) > MOST:
        raise UsageError(f"more than {MOST} policies", hint="compare fewer at once")
    for name, settings in found.items():
        if reason := why_not(name, settings):
            raise UsageError(reason, hint="leave `mode` out")
    return found


def why_not(name: str, settings: Settings) -> str:
    """What of a policy cannot be simulated; empty if all can."""
    return f"{name}: mode {settings.mode} cannot be simulated, only sync" if settings.mode != "sync" else ""


# --- `ftslurm simulate`, from texts to texts: reads trace and policies, plays one against the other

USUAL_DAYS = 30.0


# The policy that a real job had.
ITS = "its policy"


class PlayAsked(Value):
    """trace: a file, empty for none. rates, job: as given, `NAME=VALUE`. others: further policies."""

    trace: str = ""
    rates: tuple[str, ...] = ()
    seed: int = 1
    job: tuple[str, ...] = ()
    base: SettingsAsked = SettingsAsked()
    others: tuple[str, ...] = ()


def play_trace(asked: PlayAsked, env: Mapping[str, str]) -> tuple[Trace, list[PolicyOutcome]]:
    """Raises: UsageError, PolicyError."""
    trace = _trace(asked)
    compared = policies(asked.base, asked.others, env)
    books = cache(_load)
    return trace, [_played(trace, settings, name, books) for name, settings in compared.items()]


def replay(asked: PlayAsked, pasts: Sequence[Past], env: Mapping[str, str]) -> list[Replayed]:
    """Each job against every policy. Raises: UsageError, PolicyError."""
    if asked.trace or asked.rates:
        raise UsageError("--from-job goes without TRACE and --random", hint="name either jobs or a trace")
    compared = policies(asked.base, asked.others, env)
    books, changed = cache(_load), dict(_pair(text) for text in asked.job)
    own = [past.settings is not None and not why_not("", past.settings) for past in pasts]
    same = all(past.settings is not None and _deciding(past.settings) == _deciding(compared[IN_FORCE]) for past in pasts)
    found = []
    for past in pasts:
        played = compared
        if all(own) and not same and past.settings is not None:
            played = {ITS: past.settings, **compared}
        trace = _changed(past.trace, changed)
        outcomes = tuple(_played(trace, settings, name, books) for name, settings in played.items())
        notes = (*past.notes, *_assumed(past, changed), *_of_policies(past, compared), *_kept(past, outcomes))
        found.append(Replayed(past, trace, outcomes, notes))
    return found


def _deciding(settings: Settings) -> dict[str, str]:
    """What of a policy may change what a simulation says."""
    return {name: value for name, value in as_policy(settings).items() if name not in ("launcher", "local_nodes", "python")}


def _changed(trace: Trace, changed: Mapping[str, Any]) -> Trace:
    """With --job; a rank is then the one at the same place of the job. Raises: PolicyError."""
    plan = plan_with(changed, "--job", trace.plan)
    most = plan.cluster
    if beyond := next((fault for fault in trace.faults if fault.node > most), None):
        raise PolicyError(f"--job: with {most} nodes there is no {trace.names[beyond.node - 1]}, which failed",
                          hint="leave nodes and other_nodes out, or make them larger")  # fmt: skip
    before, after = (one.nodes * one.tasks_per_node for one in (trace.plan, plan))
    if before == after:
        return replace(trace, plan=plan)
    return replace(trace, plan=plan, faults=tuple(replace(fault, rank=fault.rank * after // before) for fault in trace.faults))


# What a simulation of a real job cannot do without. Where the ledger does not tell it, a reader has to know what was taken.
_MATTERS = ("checkpoint_s", "program_start_s", "requeue_s", "heal_s", "borrow_s", "stop_s", "diagnosis_s", "launch_s")


def _assumed(past: Past, changed: Mapping[str, Any]) -> list[str]:
    names = [name.removesuffix("_s") for name in _MATTERS if name not in past.known]
    if not past.tells_steps and "program_start" in names:
        names.remove("program_start")  # a part of the training then
    if "heal" in names and all(fault.kind is not FaultKind.DEVICE for fault in past.trace.faults):
        names.remove("heal")
    if assumed := [f"{name} {getattr(past.trace.plan, name + '_s'):g}s" for name in names if name not in changed]:
        return [f"Not in the ledger, so assumed (--job NAME=VALUE): {', '.join(assumed)}."]
    return []


def _of_policies(past: Past, compared: Mapping[str, Settings]) -> list[str]:
    """An older ledger has the limits of the job's budgets, and no more of its policy."""
    if past.settings is not None:
        return []
    here = budgets(compared[IN_FORCE])
    other = [f"{name} {limit}, not {here[name]}" for name, limit in past.budgets.items() if here.get(name, limit) != limit]
    had = f" It had {', '.join(other)}." if other else ""
    return [f"The ledger does not hold the job's policy.{had}"]


def _kept(past: Past, outcomes: Sequence[PolicyOutcome]) -> list[str]:
    """A fault that cost its node, and that a policy answers with the node still in the job: would it have come again?"""
    by_nodes: dict[str, list[str]] = {}
    for outcome in outcomes:
        kept = [
            node for was, now in answered_pairs(past.truth, outcome) if now.hit and was.fault.kind is not FaultKind.DEVICE
            for node in was.left if node not in outcome.excluded
        ]  # fmt: skip
        if kept:
            by_nodes.setdefault(fold_nodes(dict.fromkeys(kept)), []).append(outcome.name)
    return [
        f"Kept by {', '.join(names)}, though the job left it: {nodes}. Whether it would have failed again is not known."
        for nodes, names in by_nodes.items()
    ]


def _trace(asked: PlayAsked) -> Trace:
    if not asked.trace and not asked.rates:
        raise UsageError("no trace and no rates: nothing to simulate", hint="name a file, or --random crash=0.002")
    read = read_trace(read_text(asked.trace, "the trace"), asked.trace) if asked.trace else Trace(plan_with({}, ""))
    plan = plan_with(dict(_pair(text) for text in asked.job), "--job", read.plan)
    read = replace(read, plan=plan)
    if not asked.rates:
        return _checked(read)
    plan = replace(plan, until_s=plan.until_s or (read.until if read.faults else USUAL_DAYS * 86400.0))
    drawn = random_trace(plan, [rate_of(text) for text in asked.rates], asked.seed)
    faults = tuple(sorted((*read.faults, *drawn.faults), key=lambda fault: fault.at))
    return _checked(Trace(plan, faults, f"{asked.trace} and {drawn.place}" if asked.trace else drawn.place))


def _checked(trace: Trace) -> Trace:
    """Raises: PolicyError for a fault on a node that the cluster does not have."""
    most = trace.plan.cluster
    for fault in trace.faults:
        if fault.node > most:
            raise PolicyError(f"{trace.place}, line {fault.line}: the cluster has no node {fault.node}, only {most}",
                              hint="nodes and other_nodes of the job say how many it has")  # fmt: skip
        if fault.rank >= trace.plan.nodes * trace.plan.tasks_per_node:
            raise PolicyError(f"{trace.place}, line {fault.line}: the job has no rank {fault.rank}", hint="ranks count from 0")
    return trace


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--job {text}: no value", hint="write --job nodes=1000")
    return name, value


def _load(catalogs: tuple[str, ...]) -> tuple[CodeBook, PatternBook]:
    return load_code_book(catalogs), load_pattern_book(catalogs).of_ranks()


def _played(trace: Trace, settings: Settings, name: str, books: _Books) -> PolicyOutcome:
    book, patterns = books(settings.catalogs)
    grades = {fault.code: _meaning(book, fault, trace.place) for fault in trace.faults if fault.code}

    def grade(fault: TraceFault, node: str) -> DeviceFault:
        found = grades[fault.code]
        return DeviceFault(node, fault.device, found.code, found.name, found.fault_class, found.user_induced)

    # Ranks that are slower than the others are not simulated, so nobody need look for them.
    calm = with_values(settings, {"hang.compare": 0.0})
    for part in parts(trace):
        few = with_few_nodes(part, calm)
        outcome = play(few, calm, grade, patterns, name)
        stand_ins = {few.names[fault.node - 1] for fault in few.faults if fault.named}
        left = {node for one in outcome.faults for node in one.left}
        if stand_ins & left or (stand_ins and outcome.ended == "failed"):  # then their names matter
            outcome = play(with_few_nodes(part, calm, apart=True), calm, grade, patterns, name)
        if outcome.over:
            break
    return outcome


def _meaning(book: CodeBook, fault: TraceFault, place: str) -> CodeMeaning:
    """By the catalogue that knows it. Raises: PolicyError for a code that none does."""
    for vendor in (fault.vendor,) if fault.vendor else book.catalogs:
        found = book.meaning(vendor, fault.code, Severity.UNKNOWN)
        if found.fault_class is not FaultClass.UNKNOWN:
            return found
    if fault.real is not None and fault.real.graded is not None:
        shown = fault.real.graded
        return CodeMeaning(shown.code, shown.name, shown.fault_class, user_induced=shown.user_induced)
    raise PolicyError(f"{place}, line {fault.line}: no catalogue knows the code {fault.code}",
                      hint=f"`ftslurm explain CODE` looks one up; vendor: {', '.join(book.catalogs)}")  # fmt: skip
