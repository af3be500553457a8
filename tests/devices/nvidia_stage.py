"""A node with stand-in NVIDIA GPUs, which the true nvidia-ml-py asks."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from ftslurm.devices import gpu_probe as gpu
from ftslurm.devices.nvidia import NvidiaProbe
from ftslurm.model.devices import DeviceReport
from ftslurm.system.commands import CommandResult, run
from tests.fakes.nvml.nvml_sim import NvmlSim, build

BIN = Path(__file__).parents[1] / "fakes" / "bin"


@cache
def library() -> str:
    """The folder with the compiled stand-in; without a C compiler the tests that need it fail."""
    folder = tempfile.mkdtemp(prefix="ftslurm-nvml-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        return build(folder)
    except FileNotFoundError:
        pytest.fail("the NVML stand-in needs a C compiler: apt-get install gcc libc6-dev")


class NvidiaStage:
    """Implements Stage of probe_contract. gpus: how many there are."""

    device, other = "0", "1"
    code = "RECOVERY 1"
    names_the_lost = True

    def __init__(self, folder: Path, gpus: int = 2, **more: str) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.sim = NvmlSim(str(folder / "nvml"), gpus)
        self.env = {
            "PATH": os.pathsep.join((str(BIN), str(Path(sys.executable).parent), os.defpath)),
            "LD_LIBRARY_PATH": library(),
            "NVML_SIM": self.sim.path,
            **more,
        }
        self.now = 0.0
        self.dev = folder / "dev"
        self.probe = NvidiaProbe(self._counted, self.env, dev=self.dev)

    def _counted(self, argv: Sequence[str], timeout_s: float, **more: object) -> CommandResult:
        self.calls.append(tuple(argv))
        return run(argv, timeout_s, **more)  # type: ignore[arg-type]

    def close(self) -> None:
        self.sim.say(hang=None)
        self.probe.close()

    def reports(self) -> dict[str, DeviceReport]:
        answer = self.probe.read(10)
        assert answer.error == ""
        return {report.device: report for report in answer.reports}

    # ---- what the contract asks for

    def fault(self) -> None:
        self.sim.set(0, recovery=1)

    def passing_fault(self) -> tuple[str, ...]:
        self.sim.set(0, recovery=3)
        threading.Timer(0.5, self.sim.set, (0,), {"recovery": 0}).start()
        return ("RECOVERY 3",)

    def unsure(self) -> None:
        self.sim.set(0, remap="!999")

    def lose(self) -> None:
        self.sim.set(0, listed=0)

    def find_again(self) -> None:
        self.sim.set(0, listed=1)

    def hang(self) -> None:
        self.sim.say(hang="count")

    def end_hang(self) -> None:
        self.sim.say(hang=None)

    def occupy(self) -> None:
        self.sim.set(0, processes="4242")

    def refuse_reset(self) -> None:
        self.sim.say(root="no")

    def spoil_reset(self) -> None:
        self.sim.say(reset="keeps")

    def load(self) -> None:
        self.sim.set(0, busy=87, traffic=35, power=612000)

    def without_tool(self, monkeypatch: pytest.MonkeyPatch, empty: Path) -> NvidiaProbe:
        monkeypatch.setattr(gpu, "LOADER_CACHE", empty / "ld.so.cache")
        return NvidiaProbe(run, {"PATH": str(empty)}, dev=empty)
