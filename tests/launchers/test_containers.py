"""Which ranks start in a container, and what ftrun adds to its mounts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import pytest

from ftslurm.errors import UsageError
from ftslurm.launchers.python import Python, Runtime, origin_of, runtime_of, with_mount
from ftslurm.launchers.srun import SrunLauncher, own_step_env
from ftslurm.launchers.srun_options import Component

JOB = "_SLURM_SPANK_OPTION_pyxis_container_"


@pytest.mark.parametrize(("options", "env", "runtime", "origin"), [
    ("-N1", {}, Runtime.NONE, ""),
    ("--container-image=x", {"PYXIS_CONTAINER_IMAGE": "y"}, Runtime.PYXIS, "container-image x (--container-image)"),
    ("--container-name x", {}, Runtime.PYXIS, "container-name x (--container-name)"),
    ("", {"PYXIS_CONTAINER_IMAGE": "x"}, Runtime.PYXIS, "container-image x (PYXIS_CONTAINER_IMAGE)"),
    ("", {f"{JOB}image": "x"}, Runtime.PYXIS, f"container-image x ({JOB}image)"),
    ("", {f"SLURM_SPANK_{JOB}image": "x"}, Runtime.PYXIS, f"container-image x (SLURM_SPANK_{JOB}image)"),
    ("--container-mounts=/x", {"PYXIS_CONTAINER_MOUNTS": "/y"}, Runtime.NONE, ""),  # without an image they do nothing
    ("--container=/oci", {}, Runtime.OCI, "container /oci (--container)"),
    ("", {"SLURM_CONTAINER": "/oci"}, Runtime.OCI, "container /oci (SLURM_CONTAINER)"),
])  # fmt: skip
def test_where_a_rank_starts(options: str, env: Mapping[str, str], runtime: Runtime, origin: str) -> None:
    assert runtime_of(shlex.split(options), env) is runtime
    assert origin_of(shlex.split(options), env) == origin


@pytest.mark.parametrize(("options", "env", "mounts"), [
    ("--container-image=x", {}, "/b:/b:ro"),
    ("--container-mounts=/d:/e,/f --container-image=x", {}, "/d:/e,/f,/b:/b:ro"),
    ("--container-mounts=/d --container-mounts /e", {}, "/e,/b:/b:ro"),  # the last list alone counts
    ("--container-mounts=/d", {"PYXIS_CONTAINER_MOUNTS": "/p", f"{JOB}mounts": "/j"}, "/d,/b:/b:ro"),
    ("", {"PYXIS_CONTAINER_MOUNTS": "/p", f"{JOB}mounts": "/j"}, "/j,/b:/b:ro"),
    ("", {"PYXIS_CONTAINER_MOUNTS": "/p"}, "/p,/b:/b:ro"),
])  # fmt: skip
def test_one_list_of_mounts_has_the_users_and_ours(options: str, env: Mapping[str, str], mounts: str) -> None:
    found = with_mount(shlex.split(options), env, "/b")
    assert [word for word in found if "mounts" in word] == [f"--container-mounts={mounts}"]


def test_a_folder_that_pyxis_cannot_mount_is_refused() -> None:
    with pytest.raises(UsageError, match="pyxis cannot mount /a,b"):
        with_mount((), {}, "/a,b")


def test_the_interpreter_comes_along_where_a_component_starts_in_a_container() -> None:
    components = (Component(("--container-image=x",), ("a",)), Component(("-n2",), ("b",)))
    argv = SrunLauncher(components, {}, Python(("/py",), "/lib"), bundle="/b").step_argvs()[0]
    inside, outside = argv[: argv.index(":")], argv[argv.index(":") :]
    assert "--container-mounts=/b:/b:ro" in inside and inside[inside.index("/bin/sh") + 3] == "/b" and "/py" not in inside
    assert "/py" in outside and not any("container" in word for word in outside)


def test_a_step_of_ours_stays_outside() -> None:
    job = {
        "SLURM_CONTAINER": "/oci",
        "PYXIS_CONTAINER_IMAGE": "x",
        f"{JOB}image": "x",
        f"SLURM_SPANK_{JOB}image": "x",
        "PYXIS_RUNTIME_PATH": "/run",
    }
    assert own_step_env(job) == {"PYXIS_RUNTIME_PATH": "/run"}
