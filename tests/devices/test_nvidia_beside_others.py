"""A node with two kinds of devices: the agent hands each device to the probe that named it, and survives its probes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ftslurm.devices.probe import SafeProbe
from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer, Utilisation
from ftslurm.wrapper.agent.agent import Agent


class FakeProbe:
    """Names these devices, or raises; remembers what it was to heal."""

    def __init__(self, kind: str, *devices: str, bug: Exception | None = None) -> None:
        self.kind, self.devices, self.bug = kind, devices, bug
        self.healed: list[str] = []

    def present(self) -> bool:
        return True

    def read(self, timeout_s: float) -> ProbeAnswer:
        if self.bug:
            raise self.bug
        return ProbeAnswer(tuple(DeviceReport(name, self.kind, DeviceHealth.GOOD) for name in self.devices))

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        return ()

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        if self.bug:
            raise self.bug
        self.healed.append(device)
        return HealResult(device, True, self.kind)


class Told:
    """Takes what the agent sends, as values."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def say(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    on_term = signal.getsignal(signal.SIGTERM)  # which the agent changes while it heals
    yield
    signal.signal(signal.SIGTERM, on_term)


def healed(agent: Agent, told: Told, *devices: str) -> list[tuple[str, Any, str]]:
    order = {"t": "heal", "devices": [[name, ["XID 31"]] for name in devices], "may_reset": True, "wait_s": 0, "reset_wait_s": 0}
    agent._told(order)
    return [(result["device"], result["healed"], result["how"]) for result in told.messages[-1]["results"]]


def test_a_device_is_healed_by_the_probe_that_named_it() -> None:
    told = Told()
    ascend, nvidia, amd = FakeProbe("ascend", "0.0"), FakeProbe("nvidia", "0", "1"), FakeProbe("amd", "1", "2")
    agent = Agent("n1", (ascend, nvidia, amd), told, 10)  # type: ignore[arg-type]
    agent._told({"t": "look"})
    assert healed(agent, told, "0.0", "1", "2") == [("0.0", True, "ascend"), ("1", True, "nvidia"), ("2", True, "amd")]
    nvidia.devices = ()  # no answer this time: what it named before is still its own
    agent._told({"t": "look"})
    assert healed(agent, told, "0", "nobody's") == [("0", True, "nvidia"), ("nobody's", True, "ascend")]


def test_a_probe_with_a_bug_does_not_end_the_agent(capfd: pytest.CaptureFixture[str]) -> None:
    told = Told()
    broken, well = FakeProbe("nvidia", bug=KeyError("uuid")), FakeProbe("ascend", "0.0")
    agent = Agent("n1", (SafeProbe("nvidia", broken), well), told, 10)  # type: ignore[arg-type]
    agent._told({"t": "look"})
    (message,) = told.messages
    assert message["error"] == "the look at the nvidia devices failed: KeyError: 'uuid'"
    assert [report["device"] for report in message["reports"]] == ["0.0"]
    assert healed(agent, told, "7", "0.0") == [("7", None, "healing failed: KeyError: 'uuid'"), ("0.0", True, "ascend")]
    assert "Traceback" in capfd.readouterr().err


def test_a_node_without_tools_heals_nothing() -> None:
    told = Told()
    assert healed(Agent("n1", (), told, 10), told, "0") == [("0", None, "no device tool is on this node")]  # type: ignore[arg-type]
