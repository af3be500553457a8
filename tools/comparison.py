"""docs/comparison.md, from the tables in docs/compare: how ftslurm compares with the four systems that it is measured by.

    tools/comparison.py           writes the page
    tools/comparison.py --check   ends with status 1 if the committed page is not the one that the tables give

A table is a YAML file: `system` (a title), `source`, `in_force` (the profile that `ours` is compared with), `notes`, `rows`.
A row: parameter, theirs, ours, same (true or false), why (where they differ), test (where it is shown; several with commas).
In `ours` a piece of code `NAME = VALUE` is a setting in force, `default NAME = VALUE` one without any profile, `key NAME = VALUE`
one of ft_launcher's keys: tests compare them. `NAME-rest.yaml` adds rows to NAME.yaml; where both have a parameter, the row of
NAME.yaml stands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "docs/compare"
PAGE = FOLDER.parent / "comparison.md"
# In this order; other files follow by name.
ORDER = ("aimaster", "ft_launcher", "hang-diagnosis", "modelarts")
FIELDS = ("parameter", "theirs", "ours", "same", "why", "test")
REST = "-rest"

HEAD = """# ftslurm and the four systems it is measured by

Every parameter, default, limit, counting rule and message of AIMaster, ft_launcher and ModelArts (hang detection, fault
recovery), what ftslurm has for it, where the two differ and why, and the test that shows it. The tables are [compare/](compare);
`tools/comparison.py` makes this page of them, and tests compare each default with the settings in force.

"""


@dataclass(frozen=True)
class Row:
    """file: where it stands. more: fields that no row should have."""

    file: str
    parameter: str
    theirs: str
    ours: str
    same: object
    why: str
    test: str
    more: tuple[str, ...] = ()

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(word.strip() for word in self.test.split(",") if word.strip())


@dataclass(frozen=True)
class Table:
    """name: of the file. in_force: as the file has it."""

    name: str
    system: str
    source: str = ""
    notes: str = ""
    in_force: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()


def tables(folder: Path = FOLDER) -> list[Table]:
    """All of them, in the page's order."""
    found = {path.stem: _read(path) for path in sorted(folder.glob("*.yaml"))}
    whole = {}
    for name in dict.fromkeys(name.removesuffix(REST) for name in found):
        parts = [found[each] for each in (name, name + REST) if each in found]
        known = {row.parameter for row in parts[0].rows}
        more = [row for part in parts[1:] for row in part.rows if row.parameter not in known]
        about = next((part for part in parts if part.source), parts[0])
        whole[name] = Table(name, about.system, about.source, about.notes, about.in_force, (*parts[0].rows, *more))
    return [whole[name] for name in dict.fromkeys([*(name for name in ORDER if name in whole), *whole])]


def _read(path: Path) -> Table:
    tree: Any = yaml.safe_load(path.read_text())
    tree = {"rows": tree} if isinstance(tree, list) else tree
    rows = tuple(_row(path.name, row) for row in tree.get("rows") or ())
    in_force = {str(name): str(value) for name, value in (tree.get("in_force") or {}).items()}
    about = {name: " ".join(str(tree.get(name) or "").split()) for name in ("system", "source", "notes")}
    return Table(path.stem, about["system"] or path.stem, about["source"], about["notes"], in_force, rows)


def _row(file: str, row: Mapping[str, Any]) -> Row:
    words = {name: " ".join(str(row.get(name) if row.get(name) is not None else "").split()) for name in FIELDS}
    words.pop("same")
    more = tuple(sorted(name for name in row if name not in FIELDS))
    return Row(file, same=row.get("same"), more=more, **words)


def page(found: Sequence[Table]) -> str:
    return HEAD + "\n".join(line for table in found for line in _section(table))


def _section(table: Table) -> Iterator[str]:
    yield f"## {table.system}"
    yield ""
    if table.source:
        yield f"Source: {table.source}."
    if table.in_force:
        yield f"`ours` under {', '.join(f'{name} `{value}`' for name, value in table.in_force.items())}."
    if table.notes:
        yield table.notes
    different = sum(row.same is not True for row in table.rows)
    yield f"{len(table.rows)} points; {different} differ."
    yield ""
    yield "| theirs: parameter | theirs: what it is | ours | same | why not | shown by |"
    yield "|---|---|---|---|---|---|"
    for row in table.rows:
        same = "yes" if row.same is True else "no"
        shown = ", ".join(f"`{test.rpartition('/')[2]}`" for test in row.tests)
        yield "| " + " | ".join(_cell(each) for each in (row.parameter, row.theirs, row.ours, same, row.why, shown)) + " |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: Sequence[str]) -> int:
    text = page(tables())
    if "--check" in argv:
        return int(not PAGE.exists() or PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
