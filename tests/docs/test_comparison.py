"""docs/comparison.md and its tables: the page is that of the tables, each default is the one in force, each test is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import comparison

from ftslurm.config.settings_files import profile_layers
from ftslurm.model.settings.dialects import FLAGS, HANG, POD, RETRY, UNCONDITIONAL
from ftslurm.model.settings.ft_config import KEYS
from ftslurm.model.settings.kinds import value_in_words
from ftslurm.model.settings.tree import LEAVES, Settings, resolve
from ftslurm.sdk.nvrx_config import FaultToleranceConfig
from tests.each import each

REPO = Path(__file__).parents[2]
TABLES = comparison.tables()
ROWS = [(table, row) for table in TABLES for row in table.rows]
# `NAME = VALUE`, `default NAME = VALUE`, `key NAME = VALUE`
SETTING = re.compile(r"`(?:(default|key) )?([a-z][\w.-]*) = ([^`]*)`")


def of_row(table: comparison.Table, row: comparison.Row) -> str:
    return f"{table.name}: {row.parameter}"


def test_the_page_is_that_of_the_tables() -> None:
    assert comparison.PAGE.read_text() == comparison.page(TABLES), "run tools/comparison.py"


def test_there_is_a_table_for_each_system() -> None:
    assert [table.name for table in TABLES] == ["aimaster", "ft_launcher", "hang-diagnosis", "modelarts"]
    for table in TABLES:
        names = [row.parameter for row in table.rows]
        assert len(names) == len(set(names)), f"{table.name}: a parameter stands there twice"


def test_a_row_is_whole() -> None:
    each(ROWS, is_whole, of_row)


def is_whole(table: comparison.Table, row: comparison.Row) -> None:
    assert not row.more, f"{row.file}: fields that nobody knows: {row.more}"
    assert row.parameter and row.theirs and row.ours and row.tests
    assert isinstance(row.same, bool)
    assert row.same or row.why, "what differs has a reason"


def test_the_tests_of_a_row_are_there() -> None:
    each(ROWS, has_its_tests, of_row)


def has_its_tests(table: comparison.Table, row: comparison.Row) -> None:
    for test in row.tests:
        path, _, name = test.partition("::")
        assert name in defined(path), test


@cache
def defined(path: str) -> frozenset[str]:
    """Names of functions of the module."""
    return frozenset(re.findall(r"^def (\w+)\(", (REPO / path).read_text(), re.MULTILINE))


def defaults(table: comparison.Table, row: comparison.Row) -> Iterator[tuple[str, str, str]]:
    """(which, name, value as it stands there)."""
    for which, name, value in SETTING.findall(row.ours):
        if which == "key" or name in LEAVES:
            yield which, name, value.strip()
        else:
            assert which != "default" and "." not in name, f"there is no setting {name}"


def test_what_ours_names_is_in_force() -> None:
    each(ROWS, is_in_force, of_row)


def is_in_force(table: comparison.Table, row: comparison.Row) -> None:
    profile = table.in_force.get("profile", "")
    in_force = resolve(profile_layers(profile, "test")).settings if profile else Settings()
    for which, name, value in defaults(table, row):
        if which == "key":
            default = getattr(FaultToleranceConfig(), name)
            assert str(getattr(default, "name", default)) == value, name
            continue
        settings, leaf = (Settings() if which == "default" else in_force), LEAVES[name]
        assert value_in_words(leaf, leaf.of(settings)) == value, f"{which or profile} {name}"


def told(name: str) -> str:
    (table,) = (table for table in TABLES if table.name == name)
    return "\n".join(f"{row.parameter} {row.ours}" for row in table.rows)


def test_every_parameter_of_theirs_has_a_row() -> None:
    assert [flag for flag in FLAGS if f"--{flag}" not in told("aimaster")] == []
    assert [name for name in (RETRY, UNCONDITIONAL, HANG, POD) if name not in told("modelarts")] == []
    variables = ("MA_SCHEDULE_CNT", "MA_PROC_START_CNT", "MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS")
    assert [name for name in variables if name not in told("modelarts")] == [] and "MA_HANG_DETECT_TIME" in told("hang-diagnosis")
    assert [key for key in KEYS if key not in told("ft_launcher")] == []
