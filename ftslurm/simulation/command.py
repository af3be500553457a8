"""`ftslurm simulate`, from texts to texts: reads trace and policies, plays one against the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftslurm.catalogs.codebook import CodeBook
from ftslurm.config.catalog_files import load_code_book, load_pattern_book
from ftslurm.config.settings_files import Request
from ftslurm.config.text_files import read_text
from ftslurm.errors import PolicyError, UsageError
from ftslurm.model.devices import CodeMeaning, FaultClass, Severity
from ftslurm.model.devices import Fault as DeviceFault
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import dataclass
from ftslurm.simulation.play import Outcome, play
from ftslurm.simulation.policies import policies, why_not
from ftslurm.simulation.rates import random_trace, rate_of
from ftslurm.simulation.reading import plan_with, read_trace
from ftslurm.simulation.trace import Fault, Trace

VENDORS = ("ascend", "nvidia", "amd")
USUAL_DAYS = 30.0


@dataclass(frozen=True, slots=True)
class Asked:
    """trace: a file, empty for none. rates, job: as given, `NAME=VALUE`. others, files: of further policies."""

    trace: str = ""
    rates: tuple[str, ...] = ()
    seed: int = 1
    job: tuple[str, ...] = ()
    base: Request = Request()
    others: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def simulate(asked: Asked, env: Mapping[str, str]) -> tuple[Trace, list[Outcome]]:
    """Raises: UsageError, PolicyError."""
    trace = _trace(asked)
    compared = policies(asked.base, asked.others, asked.files, env)
    for name, settings in compared.items():
        if reason := why_not(name, settings):
            raise UsageError(reason, hint="leave `mode` out")
    return trace, [_played(trace, settings, name) for name, settings in compared.items()]


def _trace(asked: Asked) -> Trace:
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


def _played(trace: Trace, settings: Settings, name: str) -> Outcome:
    book = load_code_book(settings.catalogs)
    grades = {fault.code: _meaning(book, fault, trace.place) for fault in trace.faults if fault.code}

    def grade(fault: Fault, node: str) -> DeviceFault:
        found = grades[fault.code]
        return DeviceFault(node, fault.device, found.code, found.name, found.fault_class, found.user_induced)

    # Ranks that are slower than the others are not simulated, so nobody need look for them.
    calm = replace(settings, hang_compare_s=0.0)
    return play(trace, calm, grade, load_pattern_book(settings.catalogs).of_ranks(), name)


def _meaning(book: CodeBook, fault: Fault, place: str) -> CodeMeaning:
    """By the catalogue that knows it. Raises: PolicyError for a code that none does."""
    for vendor in (fault.vendor,) if fault.vendor else VENDORS:
        found = book.meaning(vendor, fault.code, Severity.UNKNOWN)
        if found.fault_class is not FaultClass.UNKNOWN:
            return found
    raise PolicyError(f"{place}, line {fault.line}: no catalogue knows the code {fault.code}",
                      hint="`ftslurm explain CODE` looks one up; vendor: ascend, nvidia or amd")  # fmt: skip
