"""ACME's accelerators: `acme-smi health` prints a line for each, `DEVICE ok` or `DEVICE CODE`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer, Utilisation
from ftslurm.system.commands import Runner

TOOL = "acme-smi"
CATALOG = Path(__file__).with_name("catalog.yaml")
LOOK_S = 10.0


class AcmeProbe:
    """run: runs a command with a time limit. env: of the node; hooks give their own."""

    kind = "acme"

    def __init__(self, run: Runner, env: Mapping[str, str]) -> None:
        self._run, self._env = run, env

    def present(self) -> bool:
        """Is the tool here? No device is touched."""
        return shutil.which(TOOL, path=self._env.get("PATH", "")) is not None

    def read(self, timeout_s: float) -> ProbeAnswer:
        """Look at every device. No answer, or words that we do not know, are an error: never good, never bad."""
        result = self._run((TOOL, "health"), timeout_s, env=self._env)
        lines = [line.split() for line in result.stdout.splitlines()]
        if result.timed_out or result.status != 0 or any(len(words) != 2 for words in lines):
            return ProbeAnswer(error=f"{TOOL} health gave no answer: status {result.status} {result.stderr[-200:]}")
        return ProbeAnswer(tuple(_report(device, word) for device, word in lines))

    def utilisation(self, timeout_s: float) -> tuple[Utilisation, ...]:
        """How busy the devices are. ACME's tool does not tell."""
        return ()

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        """Wait for the codes to clear, then reset if that is allowed. The job's processes have ended by now."""
        until = time.monotonic() + wait_s
        while not (well := self._is_well(device)) and time.monotonic() < until:
            time.sleep(1.0)
        if well or not may_reset:
            return HealResult(device, well, "healed by itself" if well else f"not healed after {wait_s:g} s")
        result = self._run((TOOL, "reset", device), reset_wait_s, env=self._env)
        return HealResult(device, self._is_well(device), f"reset, status {result.status}")

    def _is_well(self, device: str) -> bool | None:
        """None: not known."""
        reports = {report.device: report for report in self.read(LOOK_S).reports}
        return reports[device].health is DeviceHealth.GOOD if device in reports else None


def _report(device: str, word: str) -> DeviceReport:
    if word == "ok":
        return DeviceReport(device, AcmeProbe.kind, DeviceHealth.GOOD)
    return DeviceReport(device, AcmeProbe.kind, DeviceHealth.FAULTY, codes=(word.upper(),), detail=f"{TOOL} shows {word}")
