"""What the map of the house says of it: the questions that CONTRIBUTING.md asks have their row, and every file that is named exists."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

MAP = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
QUESTIONS = re.findall(r"^\d+\. (.*\?)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
ROWS = dict(re.findall(r"^\| (.*\?) \| (.*) \|$", MAP, re.MULTILINE))


def test_every_question_has_a_row() -> None:
    assert len(QUESTIONS) == 10
    assert [question for question in QUESTIONS if question not in ROWS] == []


def test_every_room_and_file_of_the_map_exists() -> None:
    named = {name for answer in ROWS.values() for name in re.findall(r"`((?:\w+/)+\w+(?:\.py)?)`", answer)}
    assert len(named) > 40
    assert sorted(name for name in named if not (ROOT / "ftslurm" / name).exists()) == []
