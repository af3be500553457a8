"""Is this node fit for a job? What was found in, a verdict with its reason out; and what the health check does about it.

No proof, no drain: only a finding that is BAD speaks against the node, UNKNOWN speaks for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from ftslurm.model.devices import CodeMeaning, DeviceHealth, FaultClass, ProbeAnswer, Severity
from ftslurm.model.text import visible
from ftslurm.model.values import dataclass

# By it we know again what we have drained ourselves; another's reason is never touched.
PREFIX = "ftslurm: "
# Slurm keeps any length; sinfo shows some 20 characters of it, `scontrol show node` all.
MAX_REASON_CHARS = 240

Meaning = Callable[[str, str, Severity], CodeMeaning]


class NodeHealth(Enum):
    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"  # no answer, or a word that we do not know


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. source: device, command, kernel log, leftover. stays: only a reboot takes it back."""

    source: str
    health: NodeHealth
    what: str = ""
    stays: bool = False


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    health: NodeHealth
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    reason: str


@dataclass(frozen=True, slots=True)
class Undrain:
    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    why: str


def judge(findings: Iterable[Finding]) -> NodeVerdict:
    """BAD as soon as one finding is; GOOD only if all are. The reason is fit for `scontrol`: one line, bounded."""
    found = tuple(findings)
    for health in (NodeHealth.BAD, NodeHealth.UNKNOWN):
        if said := [f"{one.source}: {one.what}" for one in found if one.health is health]:
            return NodeVerdict(health, one_line("; ".join(said)))
    return NodeVerdict(NodeHealth.GOOD, one_line(", ".join(one.source for one in found)))


def drain_reason(verdict: NodeVerdict, job: str = "") -> str:
    """job: that was about to begin there, and now begins elsewhere."""
    tail = _met_by(job) if job else ""
    return f"{PREFIX}{verdict.reason}"[: MAX_REASON_CHARS - len(tail)] + tail


def turned_away(reason: str, job: str) -> bool:
    """Was the node, of this reason, drained by the Prolog of this job?"""
    return reason.startswith(PREFIX) and reason.endswith(_met_by(job))


def _met_by(job: str) -> str:
    return f", met by job {job}"


def next_step(verdict: NodeVerdict, drained: bool, down: bool, reboots: bool, reason: str) -> Drain | Undrain | Leave:
    """For the health check. drained, down, reboots (now, or when it is empty), reason: of the node, as Slurm has it now."""
    ours = reason.startswith(PREFIX)
    if down:
        return Leave("Slurm has the node as down")
    if verdict.health is NodeHealth.BAD:
        return Leave("it is drained already") if drained else Drain(drain_reason(verdict))
    if verdict.health is NodeHealth.GOOD and drained and ours:
        if reboots:  # by somebody's word, for which it has to stay empty
            return Leave("it is to be rebooted")
        return Undrain("what it was drained for is gone")
    if drained and not ours:
        return Leave("somebody else has drained it")
    return Leave("nothing speaks against it" if verdict.health is NodeHealth.GOOD else verdict.reason)


def device_findings(kind: str, answer: ProbeAnswer, expected: int, meaning: Meaning) -> tuple[Finding, ...]:
    """What the devices of one kind say of their node. expected: how many there should be, 0 if nobody said.

    Against the node speaks a fault that neither a restart nor a reset mends and that the program did not cause. The
    milder ones are ftrun's and the Epilog's to heal.
    """
    if answer.error:
        return (Finding("device", NodeHealth.UNKNOWN, f"{kind}: {answer.error}"),)
    found = []
    there = len({report.device for report in answer.reports})  # one with codes of two severities has two reports
    if there < expected:
        found.append(Finding("device", NodeHealth.BAD, f"{there} of {expected} {kind} devices are there"))
    for report in answer.reports:
        for code in report.codes:
            said = meaning(report.kind, code, report.severity)
            if said.fault_class is FaultClass.ISOLATE and not said.user_induced:
                found.append(Finding("device", NodeHealth.BAD, f"{kind} {report.device} shows {said.code} ({said.name})"))
        if report.health is DeviceHealth.UNKNOWN:
            found.append(Finding("device", NodeHealth.UNKNOWN, f"{kind} {report.device} does not tell how it is"))
    return tuple(found) or (Finding("device", NodeHealth.GOOD),)


def missing_kinds(expected: Mapping[str, int], asked: Iterable[str]) -> tuple[Finding, ...]:
    """Kinds that should be there and whose tool or library is not: the devices may be well all the same."""
    return tuple(
        Finding("device", NodeHealth.UNKNOWN, f"no tool for {kind} devices is on this node")
        for kind in sorted(expected.keys() - set(asked))
    )


def command_finding(status: int | None, output: str, timeout_s: float) -> Finding:
    """The site's own check: 0 is good; 126, 127 and a signal are its own trouble; any other status is against the node.

    status: None if the time limit ended it, -n for signal n. output: its last line is the reason.
    """
    if status == 0:
        return Finding("command", NodeHealth.GOOD)
    if status is None:
        return Finding("command", NodeHealth.UNKNOWN, f"the health command was cut off after {timeout_s:g} s")
    if status < 0 or status >= 126:
        return Finding("command", NodeHealth.UNKNOWN, f"the health command could not run to its end (status {status})")
    lines = [line for line in output.splitlines() if line.strip()]
    return Finding("command", NodeHealth.BAD, lines[-1].strip() if lines else f"the health command gave status {status}")


def one_line(text: str) -> str:
    """Printable, on one line, without what scontrol or a shell may take for its own."""
    words = "".join(" " if char in "\"'`$\\" else char for char in visible(text)).split()
    return " ".join(words)[:MAX_REASON_CHARS]


# --- has a node as many devices as the one whose place it is to take? Nothing is held against it where nobody knows

Counts = Mapping[str, int]  # kind -> how many


def wanted(there: Mapping[str, Counts], node: str) -> Counts:
    """there: node of the step -> what its agent has seen. As many as `node` had, else as most of the others have."""
    if node in there:
        return there[node]
    counted = Counter(tuple(sorted(counts.items())) for counts in there.values())
    return dict(counted.most_common(1)[0][0]) if counted else {}


def short_of(expected: Counts, seen: Counts) -> NodeVerdict:
    """Good where nothing is missing; a kind that nothing there can read may be well all the same."""
    too_few = (
        Finding("device", NodeHealth.BAD, f"{seen[kind]} of {count} {kind} devices are there")
        for kind, count in sorted(expected.items())
        if seen.get(kind, count) < count
    )
    return judge([*too_few, *missing_kinds(expected, seen)])
