"""Nodes that jobs left for a fault, for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from ftslurm.model.node_memory import Remembered
from ftslurm.report.facts import print_facts, printable
from ftslurm.report.text import moment


def print_nodes(nodes: Sequence[Remembered]) -> None:
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for node in nodes:
        word = "suspect" if node.suspect else "left once"
        console.print(printable(f"{node.node} on {node.cluster}: {word}", style="bold"))
        facts = [
            ("left by", ", ".join(node.jobs)),
            ("last", moment(node.at)),
            ("why", node.why),
            ("forgotten", moment(node.expires)),
        ]
        print_facts(console, facts, 2)
