"""What `ftslurm doctor` and `ftslurm nodes` have found, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from typing_extensions import TypedDict

from ftslurm.model.site import SiteFinding, SiteLevel, Whose
from ftslurm.model.values import Value
from ftslurm.report.text import console as stdout
from ftslurm.report.text import print_facts, safe_text
from ftslurm.report.words import moment

_ROLE = {Whose.ADMIN: "admin", Whose.USER: "you"}


def print_findings(console: Console, findings: Sequence[SiteFinding], head: str, whole: bool = False) -> None:
    """head: what was asked, in one line. whole: also where to read up what is well."""
    console.print(safe_text(head, style="bold"))
    print_facts(console, [fact for finding in findings for fact in _finding_facts(finding, whole)], 2)
    counts = site_as_json(findings)["counts"]
    console.print(safe_text(", ".join(f"{many} {level.value}" for level, many in counts.items()), style="bold"))


def _finding_facts(finding: SiteFinding, whole: bool) -> Iterable[tuple[str, str]]:
    yield finding.level.value, f"{finding.check}: {finding.reason}"
    if finding.rungs:
        yield "  rungs", ", ".join(finding.rungs)
    yield "  lost", finding.lost
    if finding.level is not SiteLevel.OK or whole:
        for change in finding.changes:
            yield "  change", f"{change.line}  ({change.file}, {_ROLE[change.whose]})"
        yield "  source", finding.source


class FindingsTold(TypedDict):
    counts: Mapping[SiteLevel, int]
    findings: Sequence[SiteFinding]


def site_as_json(findings: Sequence[SiteFinding]) -> FindingsTold:
    counts = Counter(finding.level for finding in findings)
    return {"counts": {level: counts[level] for level in SiteLevel}, "findings": findings}


# --- nodes that jobs left for a fault, or that ftslurm has drained, for people


class LeftBy(Value):
    """By jobs of `user`, the latest last. at, expires: Unix seconds, of the latest; why: its fact."""

    user: str
    jobs: tuple[str, ...]
    at: float
    why: str
    expires: float
    suspect: bool


class NodeReport(Value):
    """state: Slurm's own words, empty if not told. reason, reason_by, reason_at (Unix seconds): of one that Slurm gives no jobs.
    comes_back: when it gets jobs again, of such a one. advice: what a person can do.
    """

    node: str
    cluster: str
    state: str
    reason: str
    reason_by: str
    reason_at: int
    left: tuple[LeftBy, ...]
    comes_back: str
    advice: str


def print_nodes(nodes: Sequence[NodeReport], with_users: bool = False) -> None:
    """with_users: say whose jobs they were."""
    console = stdout()
    for node in nodes:
        console.print(safe_text(f"{node.node} on {node.cluster}: {_word(node)}", style="bold"))
        print_facts(console, _node_facts(node, with_users), 2)


def _word(node: NodeReport) -> str:
    excluded = {0: "", 1: "excluded once"}.get(sum(len(by.jobs) for by in node.left), "excluded")
    held = "suspect" if any(by.suspect for by in node.left) else excluded
    return ", ".join(filter(None, (node.state.lower() if node.reason else "", held)))


def _node_facts(node: NodeReport, with_users: bool) -> list[tuple[str, str]]:
    facts = []
    if node.reason:
        since = f", {moment(node.reason_at)}" if node.reason_at else ""
        given = f" ({node.reason_by}{since})" if node.reason_by else ""
        facts += [("reason", f"{node.reason}{given}"), ("comes back", node.comes_back)]
    for by in node.left:
        whose = f"{by.user}: " if with_users else ""
        facts += [("excluded by", f"{whose}{', '.join(by.jobs)}"), ("last", moment(by.at)), ("why", by.why)]
        facts.append(("forgotten", moment(by.expires)))
    return [*facts, ("advice", node.advice)]
