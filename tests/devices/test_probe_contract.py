"""All probes keep the contract, each on its stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.devices.ascend.probe import AscendProbe
from ftslurm.devices.probe import choose_probes
from ftslurm.system.commands import run
from tests.devices.amd_stage import AmdStage
from tests.devices.nvidia_stage import NvidiaStage

pytest.register_assert_rewrite("tests.devices.probe_contract")
from tests.devices.probe_contract import ProbeContract  # noqa: E402

FAKES = Path(__file__).parents[1] / "fakes" / "bin"


class AscendStage:
    """Atlas A2 with two chips."""

    device, other = "0.0", "1.0"
    code = "80E01801"
    names_the_lost = False

    def __init__(self, folder: Path) -> None:
        self.env = {
            "PATH": os.pathsep.join((str(FAKES), str(Path(sys.executable).parent), os.defpath)),
            "FTSLURM_NPU_SIM": str(folder / "npu"),
            "FTSLURM_NPU_SIM_LAYOUT": "a2",
            "FTSLURM_NPU_SIM_CHIPS": "2",
            "FTSLURM_NPU_SIM_RESET_S": "0.05",
            "SLURMD_NODENAME": "n2",
        }
        self._how = "ok"
        self.sim("clear")
        self.probe = AscendProbe(run, self.env)

    def sim(self, *words: str) -> None:
        subprocess.run([FAKES / "npu-sim", *words], env=self.env, check=True, capture_output=True)

    def close(self) -> None:
        self.sim("clear")

    def fault(self) -> None:
        self.sim("inject", "--device", self.device, "--code", self.code, "--reset", self._how)

    def passing_fault(self) -> tuple[str, ...]:
        self.sim("inject", "--device", self.device, "--code", self.code, "--heals-after", "0.7")
        return (self.code,)

    def unsure(self) -> None:
        self.sim("lose-chip", "--device", self.device)

    def lose(self) -> None:
        self.sim("lose-chip", "--device", self.device)

    def find_again(self) -> None:
        self.sim("clear", "--device", self.device)

    def hang(self) -> None:
        self.sim("tool", "hang")

    def end_hang(self) -> None:
        self.sim("tool", "ok")

    def occupy(self) -> None:
        self.sim("process", "--device", self.other, "--pid", "4242")

    def refuse_reset(self) -> None:
        self._how = "refused"
        self.fault()

    def spoil_reset(self) -> None:
        self._how = "keeps"
        self.fault()

    def load(self) -> None:
        self.sim("load", "--device", self.device, "--percent", "87")

    def without_tool(self, monkeypatch: pytest.MonkeyPatch, empty: Path) -> AscendProbe:
        return AscendProbe(run, {"PATH": str(empty)})


class TestAscend(ProbeContract):
    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[AscendStage]:
        stage = AscendStage(tmp_path)
        yield stage
        stage.close()


class TestNvidia(ProbeContract):
    @pytest.fixture
    def stage(self, tmp_path: Path) -> Iterator[NvidiaStage]:
        stage = NvidiaStage(tmp_path)
        yield stage
        stage.close()


class TestAmd(ProbeContract):
    @pytest.fixture
    def stage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AmdStage]:
        stage = AmdStage(tmp_path, monkeypatch)
        yield stage
        stage.close()


def test_a_node_is_watched_by_the_probes_whose_tool_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ascend, nvidia, amd = AscendStage(tmp_path), NvidiaStage(tmp_path), AmdStage(tmp_path, monkeypatch)
    for stage in (ascend, nvidia, amd):
        assert stage.probe.kind in [probe.kind for probe in choose_probes(stage.env, run)]
    everything = {**amd.env, **nvidia.env, **ascend.env}
    assert [probe.kind for probe in choose_probes(everything, run)] == ["ascend", "nvidia", "amd"]
