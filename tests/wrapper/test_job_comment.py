"""The job's comment: what it says, that the latest counts, and that nobody's comment is touched."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ftslurm.model.decisions import KeepOutput, ShowPhase
from ftslurm.model.settings.tree import Settings, with_values
from ftslurm.system.commands import CommandResult
from ftslurm.wrapper.controller import effects as module
from ftslurm.wrapper.controller.people import Display, phase_text
from ftslurm.wrapper.controller.scheduler import SlurmScheduler


def test_the_words() -> None:
    assert phase_text(ShowPhase(3, "")) == "attempt 3 runs"
    assert phase_text(ShowPhase(0, "")) == ""
    assert phase_text(ShowPhase(3, "waiting for n7's lease")) == "attempt 3, waiting for n7's lease"
    assert phase_text(ShowPhase(3, "waiting for n7's lease", 1e9)).startswith("attempt 3, waiting for n7's lease until ")


def test_of_what_comes_while_slurm_takes_its_time_the_latest_is_shown() -> None:
    shown: list[str] = []
    go, began = threading.Event(), threading.Event()

    def slow(text: str) -> None:
        began.set()
        go.wait(10)
        shown.append(text)

    display = Display(slow)
    display.show("one")
    assert began.wait(10)
    display.show("two")
    display.show("three")
    display.settle(0.0)
    go.set()
    display.settle(10)
    assert shown == ["one", "three"]
    display.show("four")
    display.settle(10)
    assert shown[-1] == "four"


JOB = (Path(__file__).parents[1] / "recorded" / "slurm" / "22.05" / "job-requeued-held.txt").read_text()
NUMBER = int(JOB.partition("JobId=")[2].split()[0])


@pytest.mark.parametrize(("comment", "comments", "shown"), [
    ("", True, True), ("ftslurm: attempt 2 runs", True, True), ("", False, False), ("project 7", True, False),
    ('{"fault-tolerance/job-retry-num": "8"}', True, False),
])  # fmt: skip
def test_a_comment_that_is_not_ours_stays(comment: str, comments: bool, shown: bool) -> None:
    lines = [line for line in JOB.split("\n") if not line.strip().startswith("Comment=")]
    end = next(number for number, line in enumerate(lines) if line.strip().startswith("StdErr="))
    text = "\n".join([*lines[:end], *([f"   Comment={comment}"] if comment else []), *lines[end:]])
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], *_: Any, **__: Any) -> CommandResult:
        asked.append(argv)
        return CommandResult(tuple(argv), 0, text, "")

    nothing = cast(Any, None)
    scheduler = SlurmScheduler(nothing, NUMBER, 0, {}, nothing, run, with_values(Settings(), {"slurm.comment": comments}))
    scheduler.show("attempt 3 runs")
    assert [argv[-1] for argv in asked if "update" in argv] == ["Comment=ftslurm: attempt 3 runs"] * shown


def test_a_slurm_that_does_not_answer_is_not_asked_twice() -> None:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str], *_: Any, **__: Any) -> CommandResult:
        asked.append(argv)
        return CommandResult(tuple(argv), None, "", "")

    nothing = cast(Any, None)
    SlurmScheduler(nothing, 7, 0, {}, nothing, run, with_values(Settings(), {"slurm.comment": True})).show("x")
    assert len(asked) == 1


def test_a_file_system_that_hangs_does_not_hold_up_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_OUTPUT_S", 0.01)
    hangs = threading.Event()
    effects = module.Effects(*[cast(Any, None)] * 8, keep_output=lambda: hangs.wait(30) and None)
    effects.carry_out(KeepOutput())
    hangs.set()
