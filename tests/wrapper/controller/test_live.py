"""Nothing is told while nobody watches; what agents and shims say is told while somebody does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftslurm.ledger import live as files
from ftslurm.model.events import RankExited, RankStarted
from ftslurm.model.exits import ExitStatus
from ftslurm.model.messages import LiveReported, RankLive, StacksReported
from ftslurm.wrapper.controller import live
from ftslurm.wrapper.controller.live import LiveBoard, LiveTeller

LIMIT_S = 60.0


class Party:
    def __init__(self, node: str) -> None:
        self.node, self.connected = node, True
        self.told: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)


class Loop:
    """Stands for Sources, and for their callers: what is to be done soon is done at once."""

    def __init__(self) -> None:
        self.callers = self
        self.shims = {0: Party("n1"), 1: Party("n2")}
        self.agents = {"n1": Party("n1"), "n2": Party("n2")}

    def soon(self, work: Callable[[], object]) -> None:
        work()

    def heard_s(self) -> dict[str, float]:
        return {"n1": 0.1, "n2": 7.0}


def made(loop: Loop, **other: Any) -> LiveBoard:
    return LiveBoard(loop, "r1", **other)  # type: ignore[arg-type]


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_snapshot_joins_what_shims_and_agents_say() -> None:
    now = [100.0]
    board = made(Loop(), clock=lambda: now[0])
    board.rank_said(0, RankStarted(0, 1, 5))
    board.rank_said(1, RankExited(1, 1, ExitStatus(1), 0.0))
    board.node_said("n1", LiveReported((RankLive(0, 0, step=7),), ()))
    now[0] += 3
    seen = board.snapshot()
    assert [(task.rank, task.node, task.state) for task in seen.tasks] == [
        (0, "n1", "running"), (1, "n2", "exited with status 1"),
    ]  # fmt: skip
    assert [(node.node, node.heard_s, node.told_s, len(node.ranks)) for node in seen.nodes] == [
        ("n1", 0.1, 3.0, 1), ("n2", 7.0, None, 0),
    ]  # fmt: skip
    board.new_step()
    assert {task.state for task in board.snapshot().tasks} == {"starting"}


def test_agents_are_ordered_for_longer_than_until_they_are_asked_again() -> None:
    loop = Loop()
    board = made(loop)
    board.order()
    board.order()
    for agent in loop.agents.values():
        assert len(agent.told) == 2 and all(told["for_s"] > told["every_s"] == board.every_s() for told in agent.told)


def test_stacks_are_asked_of_one_node() -> None:
    loop = Loop()
    board = made(loop)
    board.ask_stacks("a", "n2")
    assert loop.agents["n2"].told == [{"t": "stacks", "asked": "a"}] and not loop.agents["n1"].told
    board.node_said("n2", StacksReported("a", "rank 1: sleeping"))
    assert board.snapshot().stacks == ("a", "n2", "rank 1: sleeping")
    board.ask_stacks("b", "n9")
    assert "no agent on n9" in board.snapshot().stacks[2]


def test_it_tells_while_somebody_watches_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.02)
    monkeypatch.setattr(live, "TELL_S", 0.02)
    monkeypatch.setattr(live, "FORGET_S", 0.2)
    ledger, loop = tmp_path / "c.7.jsonl", Loop()
    teller = LiveTeller(ledger, loop, made(loop))  # type: ignore[arg-type]
    teller.start()
    try:
        until(files.request_path(ledger).exists)
        time.sleep(0.1)
        assert not files.live_path(ledger).exists() and not loop.agents["n1"].told
        for _ in range(2):  # the same request is passed on once
            files.write_request(ledger, {"stacks": ["a", "n1"]})
            until(lambda: files.read_live(ledger))
        told = files.read_live(ledger)
        assert told is not None and told.run == "r1"
        until(lambda: not files.live_path(ledger).exists())
        assert [message["t"] for message in loop.agents["n1"].told].count("stacks") == 1
        files.request_path(ledger).unlink()  # another ftrun of the script has ended
        until(files.request_path(ledger).exists)
    finally:
        teller.close()
    assert list(tmp_path.iterdir()) == []


def test_its_end_waits_for_no_loop_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.02)
    ledger, loop, asked = tmp_path / "c.7.jsonl", Loop(), threading.Event()
    loop.soon = lambda work: asked.set()  # type: ignore[assignment, misc]
    teller = LiveTeller(ledger, loop, made(loop))  # type: ignore[arg-type]
    teller.start()
    until(files.request_path(ledger).exists)
    while not asked.is_set():
        files.write_request(ledger, {})
        time.sleep(0.02)
    teller.close()
    assert not teller._thread.is_alive() and list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_nothing_happens(tmp_path: Path) -> None:
    loop = Loop()
    teller = LiveTeller(tmp_path / "nowhere" / "c.7.jsonl", loop, made(loop))  # type: ignore[arg-type]
    teller.start()
    teller.close()
