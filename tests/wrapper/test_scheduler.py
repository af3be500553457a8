"""A node that is silent, looked at by another way; Slurm and the slurmds are data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ftslurm.slurm.client import NodeState, NodeView
from ftslurm.wrapper.scheduler import SlurmScheduler

LIMIT_S = 5.0


class Slurm:
    """nodes: name -> (port of its slurmd, Slurm's word for it)."""

    def __init__(self, nodes: dict[str, tuple[int, NodeState]]) -> None:
        self.views = tuple(NodeView(name, state, "IDLE", "", frozenset(), "127.0.0.1", port) for name, (port, state) in nodes.items())

    def nodes(self) -> Sequence[NodeView]:
        return self.views


def probe(slurm: Slurm, node: str, monkeypatch: pytest.MonkeyPatch, alive: frozenset[int]) -> tuple[bool | None, str]:
    """alive: ports that answer."""
    asked: list[int] = []

    def answers(address: str, port: int, limit_s: float) -> tuple[bool | None, str]:
        asked.append(port)
        return port in alive, f"port {port} {'answers' if port in alive else 'cannot be reached'}"

    monkeypatch.setattr("ftslurm.slurm.slurmd.answers", answers)
    anything = cast(Any, None)
    scheduler = SlurmScheduler(
        cast(Any, slurm), 1, ("n1", "n2", "n3"), Path(), {"SLURMD_NODENAME": "n1"}, anything, anything, "cli", 1.0, anything,
    )  # fmt: skip
    found = scheduler.probe(node, LIMIT_S)
    assert len(asked) <= 4, "no storm of connections"
    return found.alive, found.what


def cluster(states: dict[str, NodeState] | None = None) -> Slurm:
    return Slurm({f"n{n}": (n, (states or {}).get(f"n{n}", NodeState.GOOD)) for n in range(1, 9)})


def test_a_node_that_does_not_answer_while_others_do_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    alive, what = probe(cluster(), "n2", monkeypatch, frozenset({4}))
    assert alive is False and "port 2 cannot be reached" in what


def test_where_no_other_node_answers_either_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own network may be the one that is broken; that we reach ourselves proves nothing."""
    alive, what = probe(cluster(), "n2", monkeypatch, frozenset({1}))
    assert alive is None and "nor does any other node answer" in what


def test_slurm_s_own_word_against_a_node_needs_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(cluster({"n2": NodeState.BAD}), "n2", monkeypatch, frozenset())[0] is False


def test_where_slurm_calls_no_other_node_well_the_node_s_own_silence_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {f"n{n}": NodeState.BAD for n in range(3, 9)}
    assert probe(cluster(bad), "n2", monkeypatch, frozenset())[0] is False


def test_a_node_that_answers_is_alive_whatever_the_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe(cluster(), "n2", monkeypatch, frozenset({2}))[0] is True
