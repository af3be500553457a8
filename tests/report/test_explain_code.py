"""What ftrun would do about a code, a status or a line, under the settings in force; and how it is shown."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ftslurm.catalogs.codes import Catalog, Entry, FrequencyRule
from ftslurm.catalogs.patterns import ExitMeaning, Pattern
from ftslurm.model.devices import CLASS_OF, CodeMeaning, Remedy
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role
from ftslurm.policies import outlook
from ftslurm.report.explain.code import Explained, of_device, of_exit, of_line, print_explained, unknown_line
from tests.settings import settings_with


def device(remedy: Remedy, induced: bool = False, limit: tuple[int, float] | None = None, **changes: Any) -> Explained:
    meaning = CodeMeaning("80E01801", "HBM", CLASS_OF[remedy], induced, "catalogue: X", remedy)
    rules = (FrequencyRule(*limit, ("80E01801",)),) if limit else ()
    entries = {"80E01801": Entry("HBM", part="HBM", sources=("word",))}
    catalog = Catalog("Ascend", entries, sources={"word": "a source"}, frequencies=rules)
    return of_device("80e01801", meaning, catalog, outlook.of_fault(meaning, settings_with(**changes)))


def line(role: Role = Role.ROOT, error_class: ErrorClass = ErrorClass.DATA, retriable: Retriable = Retriable.YES,
         blame: Blame = Blame.NO, remedy: Remedy = Remedy.RESTART, confirm: int = 0, **changes: Any) -> Explained:  # fmt: skip
    pattern = Pattern("an-id", "a name", error_class, retriable, blame, role, "log", remedy, confirm, "x", note="look there")
    return of_line("text", pattern, ("a source",), outlook.of_line(pattern, settings_with(**changes)))


def rungs(found: Explained) -> list[str]:
    return [step.rung for step in found.does if step.rung]


CRASHED = ["in-place-restart", "isolated-requeue", "unconditional-requeue", "fail"]
ASYNC = {"mode": "async"}
REPLACE = {"node_replacement__enabled": True, "node_replacement__budget": 2}


@pytest.mark.parametrize(
    ("remedy", "induced", "changes", "expected"),
    [
        (Remedy.RESTART, False, {}, ["in-place-restart", "isolated-requeue"]),
        (Remedy.RESET, False, REPLACE, ["in-place-restart", "node-replacement", "isolated-requeue"]),
        (Remedy.RESTART, True, {}, ["in-place-restart", "unconditional-requeue"]),
        (Remedy.RESTART, True, {"unconditional_requeue__enabled": False}, ["in-place-restart", "unconditional-requeue"]),
        (Remedy.RESTART, False, {"in_place_restart__enabled": False}, ["isolated-requeue"]),
        (
            Remedy.RESTART,
            True,
            {"in_place_restart__enabled": False, "isolated_requeue__enabled": False, "unconditional_requeue__enabled": False},
            ["fail"],
        ),
        (Remedy.REPLACE, False, {}, ["isolated-requeue"]),
        (Remedy.REPLACE, False, {"isolated_requeue__enabled": False}, ["fail"]),
        (Remedy.FAIL, False, {}, ["isolated-requeue"]),
        (Remedy.REPLACE, False, {"max_restarts": 0}, ["fail"]),
        (
            Remedy.REPLACE,
            False,
            {**REPLACE, "shrink__enabled": True, "nodes__min": 8},
            ["node-replacement", "shrink", "isolated-requeue"],
        ),
        (Remedy.AVOID, False, {}, []),
        (Remedy.LOG, False, {}, []),
        (Remedy.SUSPECT, False, {}, []),
        (Remedy.UNKNOWN, False, {}, CRASHED),
    ],
)
def test_device_codes(remedy: Remedy, induced: bool, changes: dict[str, Any], expected: list[str]) -> None:
    found = device(remedy, induced, **changes)
    assert rungs(found) == expected
    assert found.fault.startswith("the program's") is induced


def test_the_limits_in_force_are_told() -> None:
    found = device(
        Remedy.RESTART,
        in_place_restart__same_code_limit=5,
        in_place_restart__same_code_window_s=7200.0,
        in_place_restart__self_heal_wait_s=30.0,
        max_restarts=3,
    )
    assert "has not healed in 30s" in found.does[0].what
    assert "the 5th time in 2 h on one device" in found.does[1].what and "max_restarts 3" in found.does[1].what
    assert "reset" not in device(Remedy.RESET, in_place_restart__reset="never").does[0].what
    assert "MindCluster itself takes the chip out after 2 in 24 h" in device(Remedy.RESTART, limit=(2, 86400.0)).why


@pytest.mark.parametrize(
    ("given", "changes", "expected"),
    [
        ({}, {}, CRASHED),
        ({}, ASYNC, ["rank-restart", *CRASHED]),
        ({}, {"in_place_restart__crash_restarts": 0, "retry__policy": "OnFailure"}, ["unconditional-requeue", "fail"]),
        ({}, {"unconditional_requeue__enabled": False, "in_place_restart__crash_restarts": 0}, ["fail"]),
        ({}, {"retry__policy": "Never"}, ["fail"]),
        ({"retriable": Retriable.NO}, {}, ["fail", "in-place-restart"]),
        ({"retriable": Retriable.NO, "confirm": 2}, {}, ["in-place-restart", "isolated-requeue", "fail"]),
        ({"retriable": Retriable.NO}, {"retry__policy": "OnFailure"}, ["in-place-restart", "unconditional-requeue", "fail"]),
        ({"retriable": Retriable.NO}, {"retry__policy": "ExitCodeAndErrorMsg"}, ["fail"]),
        ({"retriable": Retriable.UNKNOWN}, {"retry__policy": "ExitCodeAndErrorMsg"}, ["fail"]),
        ({"blame": Blame.YES}, {}, ["isolated-requeue"]),
        ({"blame": Blame.YES}, {"retry__policy": "Never"}, ["isolated-requeue"]),
        ({"blame": Blame.SUSPECT}, {}, [*CRASHED, "isolated-requeue"]),
        ({"blame": Blame.YES}, {"blame__on_words": 0}, CRASHED),
        ({"blame": Blame.SUSPECT}, {"blame__on_words": 0}, CRASHED),
        ({"error_class": ErrorClass.HARDWARE}, {}, ["in-place-restart", "isolated-requeue"]),  # it heals
        ({"role": Role.SYMPTOM}, {}, CRASHED),
        ({"role": Role.CONTEXT}, {}, []),
    ],
)
def test_lines(given: dict[str, Any], changes: dict[str, Any], expected: list[str]) -> None:
    assert rungs(line(**given, **changes)) == expected


def test_what_words_may_cost_is_told_with_what_takes_it_back() -> None:
    (*_, last) = line(blame=Blame.YES, blame__on_words=2).does
    assert "exclude at most 2 nodes per job (blame.on_words)" in last.what and "reinstates the first" in last.what


def test_a_status_decides_only_where_nothing_else_does() -> None:
    killed = ExitMeaning(137, "SIGKILL", ErrorClass.OOM, Retriable.YES, Blame.NO, Remedy.RESTART)
    found = of_exit(killed, (), outlook.of_exit(killed, Settings()), "its own")
    assert found.does[0].what.startswith("look at devices and output first") and rungs(found) == CRASHED
    own = ExitMeaning(1, "an error", ErrorClass.USER_CODE, Retriable.NO, Blame.NO, Remedy.FAIL)
    told = [step.what for step in outlook.of_exit(own, Settings())]
    assert told[1].startswith("on most ranks: one more try") and told[2].startswith("on some ranks only: 2 more tries")


def test_a_tool_s_own_status_is_told_to_be_its_own() -> None:
    own = ExitMeaning(14, "InfoROM", ErrorClass.HARDWARE, Retriable.YES, Blame.YES, Remedy.REPLACE, tools=("dlrover",))
    assert of_exit(own, (), (), "").note == "only where the rank's output names dlrover; else the program's own"


def test_what_is_not_known_is_said_to_be_so() -> None:
    found = unknown_line("gibberish", outlook.of_unknown(Settings()))
    assert found.name == "unknown: would be answered from the unconditional budget" and not found.known
    assert rungs(found) == CRASHED
    assert rungs(unknown_line("gibberish", outlook.of_unknown(settings_with(retry__policy="Never")))) == ["fail"]


def shown(found: list[Explained], terminal: bool, width: int = 80) -> str:
    console = Console(
        file=io.StringIO(), force_terminal=terminal, width=width, highlight=False, soft_wrap=not terminal, color_system=None
    )
    print_explained(console, found)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_lines_are_whole_in_a_pipe_and_fit_a_terminal() -> None:
    found = [
        device(Remedy.RESET),
        line(error_class=ErrorClass.USER_CODE),
        unknown_line("x" * 200 + "\x1b[2J\n", outlook.of_unknown(Settings())),
    ]
    piped, terminal = shown(found, False), shown(found, True)
    for each in found:
        for step in each.does:
            assert step.what in piped
    assert all(len(text.rstrip()) <= 80 for text in terminal.splitlines())
    assert "\x1b" not in piped and "\x1b[2J" not in terminal
