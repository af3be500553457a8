"""No class above 25 attributes or 300 lines, no folder above 20 modules, no attribute that more than two modules write to.

What exceeds that stands here with the reason and the most that it may be. The lists shrink: what has come within the goal is
taken off, and nothing new is put on without a reason that a reviewer accepts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

import grimp
import pytest

from ftslurm.model.rungs import Budget, Rung
from tests.house import SOURCE, House, survey

ATTRIBUTES, LINES, MODULES, WRITERS = 25, 300, 20, 2
# Of values that are one entry each of a table that people read.
TABLE = 10_000
# Of a class of this many fields and more each field has its meaning beside it.
FIELDS = 10

MANY_LINES: dict[str, tuple[int, str]] = {}
_A_BASE = "a base of values, of which none has the fields of the others"
MANY_ATTRIBUTES = {
    "ftslurm/model/record.py:Record": (TABLE, _A_BASE),
    "ftslurm/model/events.py:Event": (TABLE, _A_BASE),
    "ftslurm/model/decisions.py:Decision": (TABLE, _A_BASE),
    "ftslurm/model/settings/tree.py:Settings": (TABLE, "one leaf each"),
    "ftslurm/sdk/nvrx_config.py:FaultToleranceConfig": (TABLE, "the fields of ft_launcher's own class"),
    "ftslurm/slurm/client.py:JobView": (31, "the fields of a job that Slurm tells"),
}
MANY_MODULES = {}
MANY_WRITERS: dict[tuple[str, str], tuple[int, str]] = {}


@pytest.fixture(scope="module")
def house() -> House:
    return survey()


def held(found: Mapping[object, int], most: int, exceptions: Mapping[object, tuple[int, str]]) -> None:
    large = {name: count for name, count in found.items() if count > most}
    beyond = [f"{name}: {count}" for name, count in large.items() if count > exceptions.get(name, (most, ""))[0]]
    assert not beyond, f"above {most}, or above what their exceptions allow: {'; '.join(beyond)}"
    within = [str(name) for name in exceptions if name not in large]
    assert not within, f"not above {most} any more, so no exceptions: {'; '.join(within)}"


def test_no_class_is_too_long(house: House) -> None:
    held(house.classes, LINES, MANY_LINES)


def test_no_class_has_too_many_attributes(house: House) -> None:
    held({family: len(names) for family, names in house.attributes.items()}, ATTRIBUTES, MANY_ATTRIBUTES)


def test_no_folder_has_too_many_modules(house: House) -> None:
    held(house.folders, MODULES, MANY_MODULES)


def test_no_attribute_is_written_from_everywhere(house: House) -> None:
    held({name: len(modules) for name, modules in house.writers.items()}, WRITERS, MANY_WRITERS)


def test_no_module_leads_back_to_itself() -> None:
    """Neither at the top nor by an import within a function, which only hides a circle."""
    graph = grimp.build_graph("ftslurm", cache_dir=None, exclude_type_checking_imports=True)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    left = set(imported)
    while ready := {module for module in left if not imported[module] & left}:
        left -= ready
    assert not left, "in a circle, or above one"


def test_the_meaning_of_a_field_stands_behind_it() -> None:
    """Or above it; in the docstring of a class of many fields nobody finds it."""
    told = [
        f"{path.relative_to(SOURCE)}:{node.name}: {', '.join(named)}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and len(
            names := [
                line.target.id for line in node.body if isinstance(line, ast.AnnAssign) if isinstance(line.target, ast.Name)
            ]
        )
        >= FIELDS
        and len(named := [name for name in names if re.search(rf"\b{name}(, \w+)*: ", ast.get_docstring(node) or "")]) > 1
    ]
    assert told == []


def test_what_a_survey_sees(house: House) -> None:
    """A class with its mix-ins is one object; a field of another one counts for whoever writes it."""
    run = "ftslurm/policies/judge/state.py:Run"
    assert {"phase", "attempt", "timers"} <= house.attributes[run]
    assert house.writers[run, "phase"] == {"ftslurm/policies/judge/state.py"}


def test_nobody_writes_what_the_judge_knows_but_itself(house: House) -> None:
    """Its groups call the methods of `Run` and of its parts."""
    own = "ftslurm/policies/judge/state.py"
    written = {name: modules for (family, name), modules in house.writers.items() if family == f"{own}:Run"}
    elsewhere = {(name, place) for name, modules in written.items() for place in modules - {own} if "/judge/" in place}
    assert elsewhere == set()


def test_rungs_and_budgets_are_no_literals() -> None:
    """But where they are read as text: in settings, records, and the sentences for people."""
    words = {rung.value for rung in Rung if "-" in rung.value} | {Budget.CRASH_RESTARTS.value, Budget.NODE_REPLACEMENTS.value}
    literals = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for folder in ("policies", "wrapper", "report")
        for path in (SOURCE / folder).rglob("*.py")
        if re.search("|".join(words), text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in words
    ]
    assert not literals
