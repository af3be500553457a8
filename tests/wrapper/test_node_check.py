"""A node is looked at before ranks go there: with the health command and the stand-in device tools, as a step runs it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ftslurm.launchers.python import own_python
from ftslurm.model.plain import to_plain
from ftslurm.wrapper.node_check import CheckAsked, read_check

REPOSITORY = Path(__file__).parents[2]
TOOLS = REPOSITORY / "tests/fakes/bin"
CRITICAL, HEALS = "80E18402", "80E01801"

pytestmark = pytest.mark.timeout(90)


class Node:
    """With two chips that `npu-sim` breaks, or with none."""

    def __init__(self, folder: Path, devices: bool) -> None:
        path = f"{TOOLS}:{os.environ['PATH']}" if devices else os.environ["PATH"]
        self.env = {"PATH": path, "SLURMD_NODENAME": "n4", "FTSLURM_NPU_SIM": str(folder / "npu"), "HOME": str(folder)}

    def breaks(self, code: str) -> None:
        inject = ["npu-sim", "inject", "--node", "n4", "--device", "0.0", "--code", code]
        subprocess.run([str(TOOLS / inject[0]), *inject[1:]], env=self.env, check=True, timeout=120)

    def check(self, *command: str, limit_s: float = 20.0, env: Mapping[str, str] | None = None) -> tuple[bool | None, str]:
        argv = own_python().module_argv("ftslurm.wrapper.node_check", json.dumps(to_plain(CheckAsked(limit_s, command))))
        done = subprocess.run(argv, env={**self.env, **(env or {})}, capture_output=True, text=True, timeout=180, check=True)
        found = read_check(done.stdout)
        self.there = found.there
        return found.good, found.why


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, True)


@pytest.fixture
def bare(tmp_path: Path) -> Node:
    return Node(tmp_path, False)


def test_a_node_whose_devices_are_well_is_well(node: Node) -> None:
    assert node.check()[0] is True and node.there == {"ascend": 2}


def test_a_fault_that_does_not_heal_speaks_against_it(node: Node) -> None:
    node.breaks(CRITICAL)
    good, why = node.check()
    assert good is False and CRITICAL in why


def test_with_a_fault_that_may_heal_it_is_not_taken_but_nothing_is_held_against_it(node: Node) -> None:
    node.breaks(HEALS)
    good, why = node.check()
    assert good is None and "0.0 is unhealthy" in why


def test_a_node_without_devices_is_judged_by_the_command_alone(bare: Node) -> None:
    assert bare.check()[0] is True and bare.there == {}
    assert bare.check("true")[0] is True
    good, why = bare.check("sh", "-c", "echo the disk is full; exit 1")
    assert (good, why) == (False, "command: the disk is full")


def test_a_command_that_is_not_there_says_nothing_of_the_node(bare: Node) -> None:
    good, why = bare.check("/no/such/program")
    assert good is None and "/no/such/program" in why


def test_a_command_that_does_not_end_is_ended_and_the_answer_comes_in_time(bare: Node, tmp_path: Path) -> None:
    began = time.monotonic()
    good, _ = bare.check("sh", "-c", f"echo $$ >{tmp_path}/pid; sleep 600 & wait", limit_s=0.5)
    assert good is not True and time.monotonic() - began < 45.0
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_the_command_prints_is_not_taken_for_the_answer(bare: Node) -> None:
    good, why = bare.check("sh", "-c", """echo '{"good": true, "why": "believe me"}'; exit 1""")
    assert good is False and "believe me" in why


def test_devices_that_do_not_answer_are_no_good_news(node: Node, tmp_path: Path) -> None:
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "npu-smi").write_text("#!/bin/sh\necho garbage\nexit 1\n")
    (broken / "npu-smi").chmod(0o755)
    assert node.check(env={"PATH": f"{broken}:{os.environ['PATH']}"})[0] is None
