"""Nodes that jobs left for a fault, or that ftslurm has drained, for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from ftslurm.model.values import dataclass
from ftslurm.report.name_values import print_facts, printable
from ftslurm.report.text import moment


@dataclass(frozen=True, slots=True)
class LeftBy:
    """By jobs of `user`, the latest last. at, expires: Unix seconds, of the latest; why: its fact."""

    user: str
    jobs: tuple[str, ...]
    at: float
    why: str
    expires: float
    suspect: bool


@dataclass(frozen=True, slots=True)
class NodeReport:
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
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for node in nodes:
        console.print(printable(f"{node.node} on {node.cluster}: {_word(node)}", style="bold"))
        print_facts(console, _facts(node, with_users), 2)


def _word(node: NodeReport) -> str:
    words = [node.state.lower()] if node.reason else []
    if any(by.suspect for by in node.left):
        words.append("suspect")
    elif node.left:
        words.append("excluded once" if sum(len(by.jobs) for by in node.left) == 1 else "excluded")
    return ", ".join(words)


def _facts(node: NodeReport, with_users: bool) -> list[tuple[str, str]]:
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
