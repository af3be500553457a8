"""A node with stand-in AMD GPUs: the child imports the stand-in of `amdsmi`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ftslurm.devices import gpu_probe as gpu
from ftslurm.devices.amd import AmdProbe
from ftslurm.model.devices import DeviceReport
from ftslurm.system.commands import run
from tests.fakes.amdsmi.amdsmi_sim import AmdsmiSim

MODULE = Path(__file__).parents[1] / "fakes" / "amdsmi"


class AmdStage:
    """Implements Stage of probe_contract."""

    device, other = "0", "1"
    code = "ECC-UNCORRECTABLE"
    names_the_lost = True

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: int = 2, **more: str) -> None:
        monkeypatch.syspath_prepend(str(MODULE))  # the child looks for modules where its parent does
        (folder / "rocm" / "lib").mkdir(parents=True)
        (folder / "rocm" / "lib" / "libamd_smi.so").touch()
        self.sim = AmdsmiSim(str(folder / "amdsmi.json"), gpus)
        self.env = {"ROCM_PATH": str(folder / "rocm"), "AMDSMI_SIM": self.sim.path, **more}
        self.dev = folder / "dev"
        self.probe = AmdProbe(run, self.env, dev=self.dev)

    def close(self) -> None:
        self.sim.say(hang="")
        self.probe.close()

    def reports(self) -> dict[str, DeviceReport]:
        answer = self.probe.read(10)
        assert answer.error == ""
        return {report.device: report for report in answer.reports}

    # ---- what the contract asks for

    def fault(self) -> None:
        self.sim.set(0, ecc=1)

    def passing_fault(self) -> tuple[str, ...]:
        self.sim.event(0, "GPU_POST_RESET", "0")
        self.sim.set(0, processes=[4242])
        threading.Timer(0.5, self.sim.set, (0,), {"processes": []}).start()
        return ("GPU-RESET",)

    def unsure(self) -> None:
        self.sim.set(0, lost=True)

    def lose(self) -> None:
        self.sim.set(0, listed=False)

    def find_again(self) -> None:
        self.sim.set(0, listed=True)

    def hang(self) -> None:
        self.sim.say(hang="all")

    def end_hang(self) -> None:
        self.sim.say(hang="")

    def occupy(self) -> None:
        self.sim.set(1, processes=[4242])  # of another GPU: a reset might take its link away

    def refuse_reset(self) -> None:
        self.sim.say(root=False)

    def spoil_reset(self) -> None:
        self.sim.say(reset="gone")

    def load(self) -> None:
        self.sim.set(0, busy=87, traffic=35, power=612)

    def without_tool(self, monkeypatch: pytest.MonkeyPatch, empty: Path) -> AmdProbe:
        monkeypatch.setattr(gpu, "LOADER_CACHE", empty / "ld.so.cache")
        return AmdProbe(run, {"ROCM_PATH": str(empty)}, dev=empty)
