"""Checks a node before ranks start there: its devices and the job's health command. Runs as one task in a step of its own.

Prints `{"good": true | false | null, "why": "...", "there": {kind: devices}}`; null if unknown.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ftslurm.errors import CommandMissing, WireError
from ftslurm.model.devices import DeviceHealth, ProbeAnswer
from ftslurm.model.plain import Bounds, from_plain, to_plain
from ftslurm.model.values import Value
from ftslurm.policies.node import Meaning, NodeFinding, NodeHealth, command_finding, device_findings, judge
from ftslurm.system.commands import MAX_OUTPUT_BYTES, run, run_group

_WORD = {NodeHealth.GOOD: True, NodeHealth.BAD: False, NodeHealth.UNKNOWN: None}


class CheckAsked(Value):
    """limit_s: for the whole check. command: from the job's settings. catalogs: the site's own."""

    limit_s: float
    command: tuple[str, ...] = ()
    catalogs: tuple[str, ...] = ()


class CheckAnswer(Value):
    """there: kind -> number of devices."""

    good: bool | None
    why: str
    there: Mapping[str, int]

    def text(self) -> str:
        return json.dumps(to_plain(self))


def read_check(text: str) -> CheckAnswer:
    """The answer in the last line. Raises: ValueError for anything else."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        return from_plain(CheckAnswer, json.loads(lines[-1]), Bounds(MAX_OUTPUT_BYTES))
    except (IndexError, WireError):
        raise ValueError("no answer of a node check") from None


def _check(question: CheckAsked, env: Mapping[str, str]) -> CheckAnswer:
    """Check, cheap tests first. The caller knows how many devices there should be."""
    deadline, there = time.monotonic() + question.limit_s, dict[str, int]()
    by_command = command_findings(question.command, question.limit_s, env)
    verdict = judge([*by_command, *_devices(question, env, deadline, there)])
    return CheckAnswer(_WORD[verdict.health], verdict.reason, there)


def command_findings(command: Sequence[str], left_s: float, env: Mapping[str, str]) -> tuple[NodeFinding, ...]:
    """What the health command says, if there is one."""
    if not command:
        return ()
    if left_s <= 0:
        return (NodeFinding("command", NodeHealth.UNKNOWN, "no time was left for the health command"),)
    try:
        done = run_group(command, left_s, env)
    except CommandMissing as error:
        return (NodeFinding("command", NodeHealth.UNKNOWN, str(error)),)
    return (command_finding(done.status, done.stdout, left_s),)


def read_devices(env: Mapping[str, str], deadline: float, most_s: float) -> Iterator[tuple[str, ProbeAnswer]]:
    """Kind by kind. deadline: monotonic; most_s: for each kind."""
    from ftslurm.devices.probe import choose_probes

    for probe in choose_probes(env, run):
        left_s = min(most_s, deadline - time.monotonic())
        yield probe.kind, probe.read(left_s) if left_s > 0 else ProbeAnswer(error="no time was left to look at them")


def _devices(question: CheckAsked, env: Mapping[str, str], deadline: float, there: dict[str, int]) -> Sequence[NodeFinding]:
    """The findings on devices. there: is filled with kind -> number of devices."""
    from ftslurm.config.fault_lookup import fault_lookup

    meaning, found = fault_lookup((), question.catalogs), list[NodeFinding]()
    for kind, seen in read_devices(env, deadline, question.limit_s):
        there[kind] = len(seen.reports)
        found += (*device_findings(kind, seen, 0, meaning), *_unwell(seen, meaning))
    return found


def _unwell(seen: ProbeAnswer, meaning: Meaning) -> Iterable[NodeFinding]:
    """The faults. One that may heal does not make the node bad, but ranks do not start there with it."""
    for report in seen.reports:
        if report.health is DeviceHealth.FAULTY:
            names = [meaning(report.kind, code, report.severity).name for code in report.codes]
            yield NodeFinding("device", NodeHealth.UNKNOWN, f"{report.device} is unhealthy: {', '.join(names) or 'no code'}")


def main() -> None:
    """Runs on the node. Argument: a CheckAsked, as JSON."""
    asked = from_plain(CheckAsked, json.loads(sys.argv[1]), Bounds(MAX_OUTPUT_BYTES))
    print(_check(asked, dict(os.environ)).text())
