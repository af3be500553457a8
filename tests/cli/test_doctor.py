"""The door of `ftslurm doctor`, over a Slurm in memory and where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ftslurm.cli.ftslurm import group
from ftslurm.slurm.parse import parse_config
from ftslurm.wrapper import site_look
from tests.fakes.slurm import FakeSlurm

RECORDED = Path(__file__).resolve().parents[1] / "recorded/slurm"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeSlurm:
    """With an srun, what 24.11 says of itself, and every folder on NFS."""
    fake = FakeSlurm()
    fake.settings = parse_config((RECORDED / "24.11/config.txt").read_text())
    monkeypatch.setattr(site_look, "SlurmClient", lambda *_: fake)
    mounts = [SimpleNamespace(mountpoint="/", fstype="nfs4", opts="rw,relatime,local_lock=none")]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\n")
    srun.chmod(0o755)
    for name, value in {"HOME": str(tmp_path), "PATH": str(srun.parent), "FTSLURM_STATE_DIR": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return fake


def levels(output: str) -> dict[str, str]:
    return {each["check"]: each["level"] for each in json.loads(output)["findings"]}


def test_nothing_blocks(slurm: FakeSlurm) -> None:
    done = CliRunner().invoke(group, ["doctor"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("cluster live, Slurm 24.11.5, seen from ")
    assert "  costs     slurmdbd: without slurmdbd a job keeps its dead node until Slurm notices" in lines
    assert "    change  AccountingStorageType=accounting_storage/slurmdbd  (slurm.conf, admin)" in lines
    assert lines[-1].startswith("0 blocks, ") and lines[-1].endswith(" ok")
    assert "blocks" not in levels(CliRunner().invoke(group, ["doctor", "--json"]).output).values()


def test_what_blocks_is_the_exit_status(slurm: FakeSlurm) -> None:
    slurm.settings["JobRequeue"] = "0"
    done = CliRunner().invoke(group, ["doctor"])
    assert done.exit_code == 1
    lines = done.output.splitlines()
    at = lines.index("  blocks    JobRequeue: Slurm refuses to requeue a batch job that was submitted without --requeue")
    assert lines[at + 1] == "    rungs   isolated-requeue, unconditional-requeue"
    assert lines[at + 2] == "    change  #SBATCH --requeue  (job script, you)"
    for_programs = CliRunner().invoke(group, ["doctor", "--json"])
    assert for_programs.exit_code == 1
    told = json.loads(for_programs.output)
    assert told["counts"]["blocks"] >= 1
    (requeue,) = [each for each in told["findings"] if each["check"] == "JobRequeue"]
    assert {"whose": "admin", "file": "slurm.conf", "line": "JobRequeue=1"} in requeue["changes"]


def test_more_is_shown_of_what_is_well(slurm: FakeSlurm) -> None:
    short, long = (CliRunner().invoke(group, ["doctor", *more]).output.splitlines() for more in ((), ("-v",)))
    assert len(long) > len(short)
    assert any("ok        JobRequeue" in line for line in short)


def test_what_slurm_says_rules_no_terminal(slurm: FakeSlurm) -> None:
    slurm.settings |= {"ClusterName": "\x1b[2Jc", "RequeueExit": "\x1b]0;x\x07", "Prolog": "/x/\x1b[31m"}
    output = CliRunner().invoke(group, ["doctor"]).output
    assert "\x1b" not in output and "?[2Jc" in output


def test_a_machine_without_slurm(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": str(tmp_path), "FTSLURM_STATE_DIR": str(tmp_path / "state")}
    argv = [Path(sys.executable).with_name("ftslurm"), "doctor"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 1 and not done.stderr, done.stderr
    assert "blocks    Slurm: ftrun finds no srun to start steps with: `srun` is not on PATH" in done.stdout
    assert "checks need an answer from Slurm" in done.stdout


def test_a_policy_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    argv = [Path(sys.executable).with_name("ftslurm"), "doctor"]
    done = subprocess.run(
        argv, env={**os.environ, "FTRUN_POLICY": "/nowhere.yaml"}, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 65 and done.stderr.count("\n") == 1
