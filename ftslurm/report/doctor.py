"""What `ftslurm doctor` has found, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from ftslurm.model.site import Change, Finding, Level, Whose
from ftslurm.report.name_values import print_facts, printable

_ROLE = {Whose.ADMIN: "admin", Whose.USER: "you"}


def print_findings(console: Console, findings: Sequence[Finding], head: str, whole: bool = False) -> None:
    """head: what was asked, in one line. whole: also where to read up what is well."""
    console.print(printable(head, style="bold"))
    print_facts(console, [fact for finding in findings for fact in _facts(finding, whole)], 2)
    counts = Counter(finding.said.level for finding in findings)
    console.print(printable(", ".join(f"{counts[level]} {level.value}" for level in Level), style="bold"))


def _facts(finding: Finding, whole: bool) -> Iterable[tuple[str, str]]:
    said = finding.said
    yield said.level.value, f"{finding.check}: {said.reason}"
    if said.rungs:
        yield "  rungs", ", ".join(said.rungs)
    yield "  lost", said.lost
    for change in said.changes:
        if said.level is not Level.OK or whole:
            yield "  change", _change(change)
    if said.level is not Level.OK or whole:
        yield "  source", finding.source


def _change(change: Change) -> str:
    return f"{change.line}  ({change.file}, {_ROLE[change.whose]})"


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    counts = Counter(finding.said.level for finding in findings)
    return {
        "counts": {level.value: counts[level] for level in Level},
        "findings": [
            {
                "check": finding.check,
                "level": finding.said.level.value,
                "reason": finding.said.reason,
                "lost": finding.said.lost,
                "rungs": [rung.value for rung in finding.said.rungs],
                "changes": [{"whose": each.whose.value, "file": each.file, "line": each.line} for each in finding.said.changes],
                "source": finding.source,
            }
            for finding in findings
        ],
    }
