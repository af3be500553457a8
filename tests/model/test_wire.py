"""Messages of shims and agents: values there and back, and nothing but WireError for what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import WireError
from ftslurm.model import messages as wire
from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer, Severity
from ftslurm.model.events import HealingDone, RankExited, RankStarted, RankStopped, RankUnstartable, RankWords, Save, SignalSeen
from ftslurm.model.exits import ExitStatus
from ftslurm.model.job import Task
from ftslurm.model.verdict import Piece
from tests.fuzz.messages import AGENT_REPORTS

HELLO = {
    "t": "hello",
    "rank": 3,
    "node": "n2",
    "slot": 1,
    "local": 1,
    "expected": 4,
    "step": "7.0",
    "launch": 2,
    "address": "10.0.0.2",
    "pid": 99,
    "free_port": 31000,
    "talk": "f00",
    "a": 5,
}


def over_the_wire(message: Any) -> Any:
    return json.loads(json.dumps(message))


def test_a_shim_introduces_its_task() -> None:
    assert wire.read_hello(HELLO) == wire.ShimHello(Task(3, "n2", 1, 1, "10.0.0.2", 99, 31000), 4, "7.0", "f00", 5, 2)


def test_an_agent_introduces_its_node() -> None:
    message = {"t": "agent", "node": "n2", "kinds": ["ascend"], "talk": "f00", "a": 0}
    assert wire.read_hello(message) == wire.AgentHello("n2", ("ascend",), "f00", 0)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"t": "started", "attempt": 2, "pid": 77}, RankStarted(3, 2, 77)),
        ({"t": "exited", "attempt": 2, "code": 7, "signal": 0, "at": 1.5}, RankExited(3, 2, ExitStatus(7), 1.5)),
        ({"t": "exited", "attempt": 2, "code": 0, "signal": 9, "at": 2}, RankExited(3, 2, ExitStatus(0, 9), 2.0)),
        ({"t": "stopped", "attempt": 2, "left": [5, 6], "free_port": 31001}, RankStopped(3, 2, (5, 6), 31001)),
        ({"t": "stopped", "attempt": 2, "left": [], "free_port": 0, "save": "cut"}, RankStopped(3, 2, save=Save.CUT)),
        ({"t": "stopped", "attempt": 2, "left": [], "free_port": 0, "save": ["?"]}, RankStopped(3, 2)),
        ({"t": "unstartable", "attempt": 1, "status": 127, "why": "x: gone"}, RankUnstartable(3, 1, 127, "x: gone")),
        ({"t": "signal", "number": 15}, SignalSeen(15, 3)),
        ({"t": "words", "attempt": 2, "tail": [[1.5, "out", "x"]]}, RankWords(3, 2, (Piece(1.5, "out", "x"),))),
    ],
)
def test_a_shim_s_reports_become_events_of_its_own_rank(message: dict[str, Any], event: object) -> None:
    assert wire.shim_report(3, message) == event
    assert wire.shim_report(3, {**message, "rank": 0}) == event, "no shim speaks for another rank"


SHORT = st.text(max_size=20)
REPORTS = st.builds(
    DeviceReport,
    SHORT,
    SHORT,
    st.sampled_from(DeviceHealth),
    st.sampled_from(Severity),
    st.lists(st.text("0123456789ABCDEF", max_size=9), max_size=3).map(tuple),
    st.text(max_size=1500),
)


@given(st.lists(REPORTS, max_size=3), SHORT, st.booleans(), st.dictionaries(SHORT, st.integers(1, 64), max_size=3))
def test_what_devices_show_arrives_as_it_was(reports: list[DeviceReport], error: str, asked: bool, there: dict[str, int]) -> None:
    arrived = wire.agent_report(over_the_wire(wire.devices_message(ProbeAnswer(tuple(reports), error), asked, there)))
    assert isinstance(arrived, wire.DevicesReported)
    assert (arrived.asked, arrived.answer.error, arrived.there) == (asked, error, there)
    cut = [DeviceReport(r.device, r.kind, r.health, r.severity, r.codes, r.detail[:1000]) for r in reports]
    assert list(arrived.answer.reports) == cut


@given(st.lists(st.builds(HealResult, SHORT, st.sampled_from([True, False, None]), SHORT), max_size=4))
def test_what_became_of_healing_arrives_as_it_was(results: list[HealResult]) -> None:
    assert wire.agent_report(over_the_wire(wire.healed_message(tuple(results)))) == HealingDone("", tuple(results))


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1},
        {"rank": "3"},
        {"rank": True},
        {"rank": 3.0},
        {"rank": None},
        {"node": 5},
        {"node": "n" * 300},
        {"expected": 0},
        {"rank": 4},  # of a step of four
        {"rank": 1 << 40},
        {"free_port": 70000},
        {"step": ["7.0"]},
        {"t": "helo"},
        {"t": None},
        {"t": ["hello"]},
    ],
)
def test_an_introduction_that_is_nearly_right_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.read_hello({**HELLO, **change})


@pytest.mark.parametrize("missing", sorted(set(HELLO)))
def test_an_introduction_with_something_missing_is_refused(missing: str) -> None:
    with pytest.raises(WireError):
        wire.read_hello({name: value for name, value in HELLO.items() if name != missing})


@pytest.mark.parametrize(
    "message",
    [
        {"t": "exited", "attempt": 1, "code": 256, "signal": 0, "at": 1},
        {"t": "exited", "attempt": 1, "code": 0, "signal": 128, "at": 1},
        {"t": "exited", "attempt": 1, "code": 0, "signal": 0, "at": float("nan")},
        {"t": "exited", "attempt": 1, "code": 0, "signal": 0},
        {"t": "exited", "attempt": 1, "code": 0, "signal": 0, "at": -1},
        {"t": "exited", "attempt": 1, "code": True, "signal": 0, "at": 1},
        {"t": "stopped", "attempt": 1, "left": "5", "free_port": 0},
        {"t": "stopped", "attempt": 1, "left": ["5"], "free_port": 0},
        {"t": "stopped", "attempt": 1, "free_port": 0},
        {"t": "signal", "number": 0},
        {"t": "signal", "number": 1000},
        {"t": "bye"},
        {},
    ],
)
def test_a_report_that_is_nearly_right_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.shim_report(0, message)


@pytest.mark.parametrize("healed", [1, 0, "true", [], 1.0])
def test_healed_is_yes_no_or_not_known(healed: object) -> None:
    with pytest.raises(WireError):
        wire.agent_report({"t": "healed", "results": [{"device": "0.0", "healed": healed, "how": ""}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "rank",
    "node",
    "slot",
    "local",
    "address",
    "pid",
    "free_port",
    "expected",
    "step",
    "kinds",
    "attempt",
    "code",
    "signal",
    "at",
    "left",
    "status",
    "why",
    "number",
    "reports",
    "results",
    "error",
    "asked",
)
KINDS = ("hello", "agent", "started", "exited", "stopped", "unstartable", "signal", "devices", "healed")
MESSAGES = st.builds(
    lambda kind, fields: {"t": kind, **fields},
    st.sampled_from(KINDS) | JSON,
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=10),
)
DEVICES = st.dictionaries(
    st.sampled_from(["device", "kind", "health", "severity", "codes", "detail", "healed", "how"]),
    JSON | st.sampled_from(["good", "faulty", "major"]),
    max_size=8,
)


@given(
    MESSAGES
    | st.builds(
        lambda kind, of: {"t": kind, "reports": of, "results": of, "error": ""},
        st.sampled_from(["devices", "healed"]),
        st.lists(DEVICES, max_size=2),
    )
)
def test_any_message_is_taken_or_a_wire_error(message: dict[str, Any]) -> None:
    for read in (wire.read_hello, lambda m: wire.shim_report(0, m), wire.agent_report):
        try:
            read(message)
        except WireError as error:
            assert len(str(error)) < 5000


def test_a_message_as_deep_as_the_reader_takes_it_is_a_wire_error_too() -> None:
    for depth in range(200, 1000, 7):
        try:
            deep = json.loads("[" * depth + "]" * depth)
        except RecursionError:
            return
        with pytest.raises(WireError):
            wire.read_hello({"t": deep})


@pytest.mark.parametrize("base", AGENT_REPORTS, ids=lambda message: message["t"])
def test_what_an_agent_tells_of_ranks_names_the_start_that_it_is_of(base: dict[str, Any]) -> None:
    if base["t"] in ("devices", "healed"):
        assert wire.agent_report(base)
        return
    report = wire.agent_report({**base, "attempt": 7})
    assert report.attempt == 7  # type: ignore[union-attr]
    for wrong in ({**base, "attempt": None}, {**base, "attempt": -1}, {**base, "attempt": 1.0}, {**base, "attempt": True}):
        with pytest.raises(WireError, match="attempt"):
            wire.agent_report(wrong)
