"""How ranks do, as agents tell it and as a file holds it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftslurm.errors import WireError
from ftslurm.model.messages import (
    BOUNDS,
    DeviceLive,
    Live,
    LiveReported,
    NodeLive,
    RankLive,
    TaskLive,
    agent_report,
    live_message,
)
from ftslurm.model.plain import from_plain, to_plain

RANK = RankLive(9, 1, 3, 0.5, 120, 2.25, 3.125, ("step",), 1.5, 2048.0, 400, "allreduce", 0.125)
DEVICE = DeviceLive("0.1", "npu", "faulty", ("80E01801",), 97.0, 41.5, 310.0)
LIVE = Live(
    "r1", 4, 1e9, 2.0, (TaskLive(1, "n1", "running"), TaskLive(2, "n2", "exited with status 1", False)),
    (NodeLive("n1", 0.25, 1.0, (RANK, RankLive(2, 2)), (DEVICE,)), NodeLive("n2", None, None)), ("a", "n1", "line\n\x1b[31m"),
)  # fmt: skip


def over_the_wire(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_what_an_agent_tells_arrives_whole() -> None:
    found = agent_report(over_the_wire(live_message([RANK, RankLive(2, 2)], [DEVICE])))
    assert found == LiveReported((RANK, RankLive(2, 2)), (DEVICE,))


def test_what_a_file_holds_is_read_back() -> None:
    assert from_plain(Live, over_the_wire(to_plain(LIVE)), BOUNDS) == LIVE


@pytest.mark.parametrize(
    "change",
    [
        {"run": 3}, {"number": -1}, {"at": "now"}, {"at": float("nan")}, {"tasks": [{"rank": 1, "node": "n1"}]}, {"tasks": None},
        {"tasks": [{"rank": 1, "node": "n1", "state": "running", "connected": 1}]}, {"nodes": {"n1": 1}}, {"stacks": ["a"]},
        {"nodes": [{"node": "n1", "heard_s": 0.1}]}, {"nodes": [{"node": "n1", "heard_s": None, "told_s": None, "ranks": [[1]]}]},
        {"nodes": [{"node": "n1", "heard_s": None, "told_s": None, "ranks": [{"rank": 1, "task": 1, "beats": "x"}]}]},
    ],
)  # fmt: skip
def test_what_is_none_of_ours_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        from_plain(Live, {**over_the_wire(to_plain(LIVE)), **change}, BOUNDS)
    with pytest.raises(WireError):
        from_plain(Live, [], BOUNDS)
