"""Cgroups of jobs: which are touched, and how each version of the kernel's interface is spoken to. The trees are made up;
tests/attacks/test_forks.py has real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.system.remains import job_groups, members, standing_still

V1, V2 = "5:freezer:{}\n3:cpu,cpuacct:/\n0::/\n", "0::{}\n"


def tree(mount: Path, path: str, kind: str) -> Path:
    """As the kernel shows a group: v2's in `mount` itself."""
    base = mount / "freezer" if kind == "v1" else mount
    group = base / path.strip("/")
    group.mkdir(parents=True)
    if kind == "v2":
        (base / "cgroup.controllers").touch()
    while group != base:
        (group / "cgroup.procs").write_text("7\n" if group.name == "step_0" else "")
        if kind == "v1":
            (group / "freezer.state").write_text("FROZEN\n")
        else:
            (group / "cgroup.freeze").write_text("0\n")
            (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
            (group / "cgroup.kill").write_text("")
        group = group.parent
    return base / path.strip("/")


def process(proc: Path, groups: str) -> Path:
    (proc / "7").mkdir(parents=True)
    (proc / "7/cgroup").write_text(groups)
    return proc


@pytest.mark.parametrize(
    ("kind", "path", "found"),
    [
        ("v1", "/slurm/uid_1000/job_5/step_0", ["job_5", "step_0"]),
        ("v1", "/slurm_n1/uid_1000/job_5/step_0", ["job_5", "step_0"]),
        ("v2", "/system.slice/slurmstepd.scope/job_5/step_0", ["job_5", "step_0"]),
        ("v2", "/system.slice/n1_slurmstepd.scope/job_5/step_0", ["job_5", "step_0"]),
        ("v2", "/system.slice/slurmd.service/step_0", []),
        ("v2", "/system.slice/sshd.service/slurm/job_5/step_0", []),
        ("v2", "/user.slice/user-1000.slice/slurm/job_5/step_0", []),
        ("v2", "/kubepods/job_5/step_0", []),
        ("v1", "/slurm/uid_1000/job_5x/step_0", []),
    ],
)
def test_only_groups_of_a_job_are_touched(tmp_path: Path, kind: str, path: str, found: list[str]) -> None:
    tree(tmp_path / "fs", path, kind)
    proc = process(tmp_path / "proc", (V1 if kind == "v1" else V2).format(path))
    assert [group.name for group in job_groups(7, tmp_path / "fs", proc)] == found


def test_one_outside_of_what_is_seen_here_is_left_alone(tmp_path: Path) -> None:
    tree(tmp_path / "fs", "/slurm/job_5", "v1")
    assert job_groups(7, tmp_path / "fs", process(tmp_path / "proc", V1.format("/../slurm/job_5"))) == ()
    assert job_groups(8, tmp_path / "fs", tmp_path / "proc") == ()


def test_v2_is_frozen_and_let_go(tmp_path: Path) -> None:
    group = tree(tmp_path, "/system.slice/slurmstepd.scope/job_5/step_0", "v2").parent
    assert members(group) == {7}
    with standing_still(group) as still:
        assert still and (group / "cgroup.freeze").read_text().startswith("1")
    assert (group / "cgroup.freeze").read_text().startswith("0")


def test_v1_s_freezer_lets_go_even_where_the_work_fails(tmp_path: Path) -> None:
    group = tree(tmp_path, "/slurm/job_5/step_0", "v1")
    with pytest.raises(KeyError), standing_still(group) as still:
        assert still
        raise KeyError
    assert (group / "freezer.state").read_text().startswith("THAWED")


def test_what_does_not_stand_still_in_time_is_let_go(tmp_path: Path) -> None:
    group = tree(tmp_path, "/system.slice/slurmstepd.scope/job_5", "v2")
    (group / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    with standing_still(group) as still:
        assert not still
    assert (group / "cgroup.freeze").read_text().startswith("0")


def test_a_group_that_is_gone_is_none(tmp_path: Path) -> None:
    with standing_still(tmp_path / "gone") as still:
        assert not still
