"""What srun says of a container that does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftslurm.model.events import TasksEnded
from ftslurm.wrapper.controller.output_files import SrunWords, ended_in, why_in

# Pyxis 0.24, enroot 4.1.2, Slurm 22.05: a data folder of enroot's that cannot be written.
PYXIS = """pyxis: importing docker image: x
slurmstepd-n2: error: pyxis: child 28 failed with error code: 1
slurmstepd-n2: error: pyxis: failed to create container filesystem for image: /images/x.sqsh
slurmstepd-n2: error: pyxis: printing enroot log file:
slurmstepd-n2: error: pyxis:     [ERROR] No such file or directory: /images/x.sqsh
slurmstepd-n2: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1
slurmstepd-n2: error: Failed to invoke spank plugin stack
srun: error: n2: tasks 2-3: Exited with exit code 1
"""


@pytest.mark.parametrize(("said", "nodes", "why"), [
    (PYXIS, ("n2",), "pyxis: [ERROR] No such file or directory: /images/x.sqsh"),
    (PYXIS.replace("    [ERROR] ", "child 1 failed with error code: "), ("n2",), "pyxis: failed to create container filesystem for image: /images/x.sqsh"),
    ("slurmstepd: error: execve(): train: No such file or directory\nsrun: error: n[2-3]: tasks 0,2-3: Exited with exit code 2\n", ("n2", "n3"), "execve(): train: No such file or directory"),
    ("pyxis: ignoring --container-mounts\nftslurm: n3 has no /b\nsrun: error: n3: task 0: Exited with exit code 71\n", ("n3",), "n3 has no /b"),
    ('time="2026-11-28T09:09:09Z" level=error msg="runc run failed"\nsrun: error: n3: task 0: Exited with exit code 1\n', ("n3",), '"runc run failed"'),
    ("srun: error: n1: task 0: Killed\nsrun: error: Unable to create step: x\n", ("n1",), ""),
    ("srun: error: n[: task 0: Killed\n 1: srun: error: n1: task 0: Killed\nsrun: Job step created\n", (), ""),
])  # fmt: skip
def test_nodes_and_reason(said: str, nodes: tuple[str, ...], why: str) -> None:
    assert (ended_in(said), why_in(said)) == (nodes, why)


def test_only_what_is_said_of_this_launch_counts(tmp_path: Path) -> None:
    file = tmp_path / "output"
    file.write_text(PYXIS.replace("n2", "n1"))
    words = SrunWords(str(file))
    words.begin()
    assert words.look() == ()
    with file.open("a") as more:
        more.write(PYXIS)
    assert words.look() == (TasksEnded(("n2",), "pyxis: [ERROR] No such file or directory: /images/x.sqsh"),) == words.look()
    assert SrunWords("").look() == () == SrunWords(str(tmp_path / "none")).look()
