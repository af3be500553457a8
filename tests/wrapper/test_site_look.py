"""What `ftslurm doctor` asks this machine, and Slurm: the fake one, and none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftslurm.errors import CommandMissing
from ftslurm.model.site import Partition
from ftslurm.slurm.client import JobState
from ftslurm.system.commands import CommandResult
from ftslurm.wrapper.site_look import file_system_of, look_at_site, machine
from tests.fakes.slurm import FakeSlurm

RECORDED = Path(__file__).resolve().parents[1] / "recorded/slurm/22.05/partitions.txt"


def run(argv: Sequence[str], timeout_s: float, **_: Any) -> CommandResult:
    if argv[:4] == ("scontrol", "--all", "show", "partition"):
        return CommandResult(tuple(argv), 0, RECORDED.read_text(), "")
    raise CommandMissing(f"no {argv[0]}")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin"), "FTSLURM_DCMI": "off"}


def program(folder: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_asks_slurm_once_for_each_thing(env: dict[str, str]) -> None:
    slurm = FakeSlurm(user_id=os.geteuid())
    number = slurm.submit(requeue=False)
    slurm.end(number, JobState.COMPLETED)
    site = look_at_site({**env, "SLURM_JOB_ID": str(number)}, "", lambda: "", slurm, run)
    assert site.config["ClusterName"] == "fake" and site.nodes == 4
    assert site.partitions == (Partition("main", nodes=3),)
    assert site.job is not None and (site.job.number, site.job.batch, site.job.requeue) == (number, True, False)
    assert [request[0] for request in slurm.requests] == ["config", "nodes", "job"]


def test_what_slurm_does_not_tell_is_none(env: dict[str, str]) -> None:
    def refused(argv: Sequence[str], timeout_s: float, **_: Any) -> CommandResult:
        return CommandResult(tuple(argv), 1, "", "scontrol: error: no")

    site = look_at_site({**env, "SLURM_JOB_ID": "99"}, "", lambda: "", FakeSlurm(), refused)
    assert site.partitions is None and site.job is None
    assert look_at_site({**env, "SLURM_JOB_ID": "x;y"}, "", lambda: "", FakeSlurm(), refused).job is None


def test_a_machine_without_a_configuration_is_not_asked_again(env: dict[str, str]) -> None:
    def none(argv: Sequence[str], timeout_s: float, **_: Any) -> CommandResult:
        return CommandResult(tuple(argv), 1, "", "scontrol: fatal: Could not establish a configuration source")

    slurm = FakeSlurm()
    assert "no configuration" in look_at_site(env, "", lambda: "", slurm, none).silent
    assert slurm.requests == []


def test_a_slurm_that_is_away(env: dict[str, str]) -> None:
    slurm = FakeSlurm()
    slurm.away = True
    site = look_at_site(env, "", lambda: "", slurm, run)
    assert site.silent and not site.config


@pytest.mark.parametrize(
    ("user", "admin"), [(f"me({os.geteuid()})", True), ("slurm(64999)", os.geteuid() == 0), ("?", os.geteuid() == 0)]
)
def test_who_is_an_administrator(env: dict[str, str], user: str, admin: bool) -> None:
    slurm = FakeSlurm()
    slurm.settings["SlurmUser"] = user
    site = look_at_site(env, "", lambda: "hooks.yaml is odd", slurm, run)
    assert (site.admin, site.machine.hook_settings) == (admin, "hooks.yaml is odd" if admin else "")


def test_srun_and_ftrun_are_found(env: dict[str, str], tmp_path: Path) -> None:
    assert machine(env, {}, run).srun.why
    real = program(tmp_path / "bin", "srun")
    seen = machine(env, {}, run)
    assert (seen.srun.path, seen.first_srun, seen.stands_in) == (str(real), str(real), False)
    ours = program(tmp_path / "ours", "srun", "#!/bin/sh\n# from ftslurm.cli.ftrun import main\n")
    program(tmp_path / "ours", "ftrun")
    both = machine({**env, "PATH": f"{ours.parent}:{env['PATH']}"}, {}, run)
    assert (both.srun.path, both.first_srun, both.stands_in) == (str(real), str(ours), True)
    assert both.ftrun.path == str(ours.with_name("ftrun"))
    only = machine({**env, "PATH": str(ours.parent)}, {}, run)
    assert only.stands_in and "is ftrun itself" in only.srun.why
    wrong = look_at_site({**env, "PATH": str(real.parent)}, "/nowhere", lambda: "", FakeSlurm(), run)
    assert "which slurm.bin names" in wrong.machine.srun.why


def test_the_connections_that_an_allocation_needs(env: dict[str, str]) -> None:
    assert machine(env, {}, run).connections[0] == 0
    assert machine({**env, "SLURM_NNODES": "1024", "SLURM_NTASKS": "8192"}, {}, run).connections[0] == 9216
    assert machine({**env, "SLURM_NNODES": "3"}, {}, run).connections[0] == 6


def test_the_scripts_that_slurm_conf_names(env: dict[str, str], tmp_path: Path) -> None:
    there = program(tmp_path, "prolog")
    config = {
        "Prolog[0]": str(there),
        "Epilog": "/nowhere/epilog",
        "TaskProlog": "",
        "EpilogMsgTime": "2000",
        "HealthCheckProgram": "/x/*",
    }
    assert machine(env, config, run).scripts == {str(there): True, "/nowhere/epilog": False}


def test_the_ledgers_place_is_tried_and_left_as_it_was(env: dict[str, str], tmp_path: Path) -> None:
    seen = machine(env, {}, run).ledgers
    assert (seen.trouble, seen.no_lock) == ("", "") and seen.sync_s is not None and seen.sync_s < 60
    assert seen.folder.path == str(tmp_path / ".ftslurm") and seen.folder.kind
    assert list(tmp_path.iterdir()) == []
    tmp_path.joinpath(".ftslurm").write_text("a file")
    assert "not a folder of yours" in machine(env, {}, run).ledgers.trouble
    assert machine({**env, "FTSLURM_STATE_DIR": "/proc/self/x"}, {}, run).ledgers.trouble


def test_the_file_system_is_that_of_the_longest_mount_point(monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [
        SimpleNamespace(mountpoint=point, fstype=kind, opts=options)
        for point, kind, options in (
            ("/", "ext4", "rw,relatime"), ("/home", "autofs", "rw,nosuid"), ("/home/a b", "lustre", "rw,localflock"),
            ("/home", "nfs4", "rw,nosuid,vers=4.2,local_lock=none"),
        )
    ]  # fmt: skip
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    found = file_system_of(Path("/home/me/.ftslurm"))
    assert (found.kind, "local_lock=none" in found.options, "nosuid" in found.options) == ("nfs4", True, True)
    assert file_system_of(Path("/home/a b/c")).kind == "lustre"
    assert file_system_of(Path("/homes")).kind == "ext4"
    mounts.clear()
    assert file_system_of(Path("/home")).kind == ""
