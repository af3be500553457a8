"""What every Probe keeps, whatever the device: one suite, run over each kind on its stand-in.

A test module makes a class of ProbeContract and a fixture `stage`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

import pytest

from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult
from ftslurm.model.ports import Probe
from tests.machine import slowness

ENOUGH_S = 10.0  # far more than a look at a stand-in takes


class Stage(Protocol):
    """A node with two devices, well and idle, and its probe. code: what `fault` makes `device` show; a reset heals it."""

    probe: Probe
    device: str
    other: str
    code: str
    names_the_lost: bool  # a device that is gone is a fault by itself, not just unknown

    def fault(self) -> None: ...

    def passing_fault(self) -> tuple[str, ...]:
        """A fault of `device` that is over within a second; its codes."""

    def unsure(self) -> None:
        """The tool tells of `device` what says neither good nor bad."""

    def lose(self) -> None:
        """`device` is not listed any more."""

    def find_again(self) -> None: ...

    def hang(self) -> None: ...

    def end_hang(self) -> None: ...

    def occupy(self) -> None:
        """A process is in the way of a reset of `device`."""

    def refuse_reset(self) -> None:
        """For a reset one would have to be root."""

    def spoil_reset(self) -> None:
        """A reset is done and does not help."""

    def load(self) -> None:
        """`device` computes for 87 % of the time."""

    def without_tool(self, monkeypatch: pytest.MonkeyPatch, empty: Path) -> Probe:
        """The probe on a node that has no such tool. empty: a folder."""


class ProbeContract:
    """Subclasses give the fixture `stage`."""

    def reports(self, stage: Stage) -> dict[str, DeviceReport]:
        answer = stage.probe.read(ENOUGH_S)
        assert answer.error == ""
        return {report.device: report for report in answer.reports}

    def heal(self, stage: Stage, may_reset: bool, wait_s: float = 0.0, reset_wait_s: float = 5.0) -> HealResult:
        result = stage.probe.heal(stage.device, (stage.code,), may_reset, wait_s, reset_wait_s)
        assert result.device == stage.device
        assert result.how
        return result

    def test_is_present_and_touches_nothing(self, stage: Stage) -> None:
        stage.hang()
        began = time.monotonic()
        assert stage.probe.present()
        assert time.monotonic() - began < 5 * slowness()

    def test_well_devices_are_good(self, stage: Stage) -> None:
        reports = self.reports(stage)
        assert set(reports) == {stage.device, stage.other}
        for report in reports.values():
            assert (report.kind, report.health, report.codes) == (stage.probe.kind, DeviceHealth.GOOD, ())

    def test_a_fault_is_shown_with_its_code_on_its_device(self, stage: Stage) -> None:
        self.reports(stage)
        stage.fault()
        reports = self.reports(stage)
        assert (reports[stage.device].health, reports[stage.device].codes) == (DeviceHealth.FAULTY, (stage.code,))
        assert reports[stage.other].health is DeviceHealth.GOOD

    def test_what_is_neither_good_nor_bad_is_unknown_and_says_why(self, stage: Stage) -> None:
        self.reports(stage)
        stage.unsure()
        reports = self.reports(stage)
        assert reports[stage.device].health is DeviceHealth.UNKNOWN
        assert reports[stage.device].detail
        assert reports[stage.other].health is DeviceHealth.GOOD

    def test_a_device_that_vanishes_is_never_passed_over(self, stage: Stage) -> None:
        self.reports(stage)
        stage.lose()
        report = self.reports(stage)[stage.device]
        assert report.health is (DeviceHealth.FAULTY if stage.names_the_lost else DeviceHealth.UNKNOWN)
        assert "1 of 2" in report.detail
        assert stage.probe.heal(stage.device, report.codes, True, 0, 1).healed is not True
        stage.find_again()
        assert self.reports(stage)[stage.device].health is DeviceHealth.GOOD

    def test_a_tool_that_hangs_is_an_error_in_time(self, stage: Stage) -> None:
        self.reports(stage)
        stage.hang()
        for _ in range(2):
            began = time.monotonic()
            answer = stage.probe.read(0.5)
            assert time.monotonic() - began < 10 * slowness()
            assert answer.reports == ()
            assert answer.error
        assert stage.probe.utilisation(0.5) == ()
        stage.end_hang()
        assert self.reports(stage)[stage.device].health is DeviceHealth.GOOD

    def test_a_tool_that_hangs_heals_nothing_and_knows_nothing(self, stage: Stage) -> None:
        stage.hang()
        assert stage.probe.heal(stage.device, (stage.code,), False, 0, 0).healed is None

    def test_a_missing_tool_is_not_present_and_raises_nothing(
        self, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        empty = tmp_path / "empty"
        empty.mkdir()
        probe = stage.without_tool(monkeypatch, empty)
        assert not probe.present()
        probe.read(ENOUGH_S)
        probe.utilisation(ENOUGH_S)
        assert probe.heal("no such device", (stage.code,), True, 0, 0).healed is None

    def test_a_fault_that_passes_is_waited_for(self, stage: Stage) -> None:
        self.reports(stage)
        codes = stage.passing_fault()
        self.reports(stage)
        result = stage.probe.heal(stage.device, codes, False, ENOUGH_S, 0)
        assert result.healed is True
        assert result.how.startswith("healed by itself after")
        assert self.reports(stage)[stage.device].health is DeviceHealth.GOOD

    def test_no_reset_without_leave(self, stage: Stage) -> None:
        self.reports(stage)
        stage.fault()
        assert self.heal(stage, may_reset=False).healed is False
        assert self.reports(stage)[stage.device].health is DeviceHealth.FAULTY

    def test_no_reset_while_somebody_works(self, stage: Stage) -> None:
        self.reports(stage)
        stage.fault()
        stage.occupy()
        result = self.heal(stage, may_reset=True, reset_wait_s=1)
        assert result.healed is False
        assert "4242" in result.how
        assert self.reports(stage)[stage.device].health is DeviceHealth.FAULTY

    def test_a_reset_heals(self, stage: Stage) -> None:
        self.reports(stage)
        stage.fault()
        result = self.heal(stage, may_reset=True)
        assert result.healed is True
        assert "reset" in result.how
        assert self.reports(stage)[stage.device].health is DeviceHealth.GOOD

    def test_a_reset_that_is_refused_says_what_is_missing(self, stage: Stage) -> None:
        self.reports(stage)
        stage.fault()
        stage.refuse_reset()
        result = self.heal(stage, may_reset=True)
        assert result.healed is False
        assert "root" in result.how or "ermission" in result.how  # the tool's own words

    def test_a_reset_that_does_not_help_is_no_cure(self, stage: Stage) -> None:
        self.reports(stage)
        stage.fault()
        stage.spoil_reset()
        result = self.heal(stage, may_reset=True, reset_wait_s=1)
        assert result.healed is False
        assert "reset done, but" in result.how

    def test_a_wrong_name_costs_no_device_a_reset(self, stage: Stage) -> None:
        self.reports(stage)
        stage.fault()
        assert stage.probe.heal("7.7", (stage.code,), True, 0, 1).healed is not True
        assert self.reports(stage)[stage.device].health is DeviceHealth.FAULTY

    def test_tells_how_busy_every_device_is(self, stage: Stage) -> None:
        stage.load()
        told = {use.device: use for use in stage.probe.utilisation(ENOUGH_S)}
        assert set(told) == {stage.device, stage.other}
        busy, idle = told[stage.device], told[stage.other]
        assert (busy.kind, busy.percent) == (stage.probe.kind, 87)
        assert idle.percent == 0
        for use in (busy, idle):
            assert use.memory_percent is None or 0 <= use.memory_percent <= 100
            assert use.power_w is None or 0 < use.power_w < 2000
