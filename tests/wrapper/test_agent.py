"""The agent's answers, without a connection."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Any

import pytest

from ftslurm.model import wire
from ftslurm.wrapper.agent import Agent


class Told:
    """Stands for the line: what comes and goes is kept."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.gone = ""
        self.said: list[dict[str, Any]] = []
        self.coming: list[dict[str, Any]] = []
        self.turns = 0

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)

    def listen(self) -> list[dict[str, Any]]:
        found, self.coming = self.coming, []
        return found

    def turn(self, now: float) -> None:
        self.turns += 1

    def over(self, now: float) -> bool:
        return False

    def wakes_in(self, now: float) -> float:
        return 0.05


def watch(*numbers: int) -> dict[str, Any]:
    ranks = [[rank, os.getpid(), number] for rank, number in enumerate(numbers)]
    return {"t": "watch", "ranks": ranks, "quiet_s": 60.0, "step": "1.0", "limits": {}, "stall_s": 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_what_it_tells_of_ranks_names_the_latest_start(folder: Path) -> None:
    line = Told()
    agent = Agent("n1", (), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    for orders, latest in (([], 0), ([watch(1, 1)], 1), ([watch(1, 4)], 4)):
        line.coming = [*orders, {"t": "evidence", "limit_s": 1.0}, {"t": "compare"}]
        assert agent._listen()
        line.said, told = [], line.said
        assert {message["t"] for message in told} == {"evidence", "compared"}
        assert {wire.agent_report(message).attempt for message in told} == {latest}  # type: ignore[union-attr]


def test_one_that_comes_while_a_program_has_switched_detection_off_watches_once_it_is_on_again(folder: Path) -> None:
    agent = Agent("n1", (), Told(), 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    agent._told({**watch(1), "quiet_s": 0.0})
    assert agent._life.wakes_at is None
    agent._told({"t": "quiet", "after_s": 60.0})
    now = time.monotonic()
    assert agent._life.wakes_at is not None
    assert [message["t"] for message in agent._life.turn(now + 61.0)] == ["quiet"]
