"""What the tests of the Ascend probe share: a node with the stand-ins, and a scripted tool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ftslurm.devices.ascend.probe import AscendProbe
from ftslurm.model.devices import DeviceReport
from ftslurm.system.commands import CommandResult, run

FAKES = Path(__file__).parents[1] / "fakes" / "bin"
RECORDED = Path(__file__).parents[1] / "recorded" / "npu-smi"


class Bench:
    """One node with the stand-in: `sim` moves its chips, `probe` is fresh and counts the calls it makes.

    library: that of the driver; `off`, or a probe on a machine with true NPUs would ask them.
    """

    def __init__(self, folder: Path, layout: str = "a2", chips: int = 2, library: str = "off", **more: str) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.env = {
            "PATH": os.pathsep.join((str(FAKES), str(Path(sys.executable).parent), os.defpath)),
            "FTSLURM_NPU_SIM": str(folder),
            "FTSLURM_NPU_SIM_LAYOUT": layout,
            "FTSLURM_NPU_SIM_CHIPS": str(chips),
            "FTSLURM_NPU_SIM_RESET_S": "0.05",
            "SLURMD_NODENAME": "n2",
            "FTSLURM_DCMI": library,
            **more,
        }
        self.probe = AscendProbe(self._counted, self.env)

    def _counted(self, argv: Sequence[str], timeout_s: float, **more: object) -> CommandResult:
        self.calls.append(tuple(argv))
        return run(argv, timeout_s, **more)  # type: ignore[arg-type]

    def sim(self, *words: str) -> None:
        subprocess.run([FAKES / "npu-sim", *words], env=self.env, check=True, capture_output=True)

    def tool(self, *words: str, stdin: str = "") -> str:
        return run(("npu-smi", *words), 10, stdin=stdin, env=self.env).stdout

    def reports(self) -> dict[str, DeviceReport]:
        answer = self.probe.read(10)
        assert answer.error == ""
        return {report.device: report for report in answer.reports}


class Script:
    """A runner that answers from a function, and a clock that only sleeping and hanging moves."""

    def __init__(self, answer: Callable[[tuple[str, ...], float], str | CommandResult]) -> None:
        self.answer = answer
        self.now = 0.0
        self.calls: list[tuple[tuple[str, ...], str]] = []
        self.probe = AscendProbe(self.run, {"PATH": "", "FTSLURM_DCMI": "off"}, sleep=self.sleep, clock=lambda: self.now)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds

    def run(self, argv: Sequence[str], timeout_s: float, stdin: str = "", env: object = None) -> CommandResult:
        assert timeout_s > 0
        self.calls.append((tuple(argv), stdin))
        said = self.answer(tuple(argv[1:]), self.now)
        if isinstance(said, CommandResult):
            if said.timed_out:
                self.now += timeout_s
            return said
        return CommandResult(tuple(argv), 0, said, "")


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


HUNG = CommandResult(("npu-smi",), None, "", "")
