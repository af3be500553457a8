"""Names and values, one pair a line: wrapped under the value in a terminal, whole in a pipe."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ftslurm.model.text import visible


def printable(text: str, style: str = "") -> Text:
    """As rich prints it: brackets are no markup in it, and what is not printable becomes `?`."""
    return Text(visible(text, lines=True), style=style)


def print_facts(console: Console, facts: Iterable[tuple[str, str]], indent: int) -> None:
    """Pairs with an empty value are left out."""
    given = [(name, value) for name, value in facts if value]
    if not console.is_terminal:
        width = max((len(name) for name, _ in given), default=0)
        for name, value in given:
            console.print(printable(f"{' ' * indent}{name:<{width}}  {value}"), soft_wrap=True)
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in given:
        grid.add_row(printable(name), printable(value))
    console.print(Padding(grid, (0, 0, 0, indent)))
