"""What srun says of a container that does not start."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from ftslurm.model.events import TasksEnded
from ftslurm.wrapper.controller.output_files import ended_in, tasks_ended, why_in

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


def test_it_is_one_event() -> None:
    assert tasks_ended(PYXIS) == (TasksEnded(("n2",), "pyxis: [ERROR] No such file or directory: /images/x.sqsh"),)
    assert tasks_ended("pyxis: importing docker image: x\n") == ()


def test_only_what_is_said_of_this_launch_counts(tmp_path: Path) -> None:
    """And of a stderr that is no file nothing is known."""
    program = """
import sys
from ftslurm.launchers.step import ProcessStep
print("before", file=sys.stderr, flush=True)
step = ProcessStep(["sh", "-c", "echo said >&2"], {"PATH": "/usr/bin:/bin"})
step.wait(60.0)
print(repr(step.words()))
"""
    run = partial(subprocess.run, [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    with (tmp_path / "output").open("w") as file:
        assert run(stderr=file).stdout == "'said\\n'\n"
    assert run(stderr=subprocess.PIPE).stdout == "''\n"


def test_what_it_says_because_we_kill_it_does_not_count(tmp_path: Path) -> None:
    program = """
from ftslurm.launchers.step import ProcessStep
script = "trap 'echo killed >&2; exit' INT; echo said >&2; while :; do sleep 0.05; done"
step = ProcessStep(["sh", "-c", script], {"PATH": "/usr/bin:/bin"})
while not step.words():
    pass
step.kill()
step.wait(60.0)
print(repr(step.words()))
"""
    with (tmp_path / "output").open("w") as file:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=file, text=True, check=True, timeout=60
        )
    assert done.stdout == "'said\\n'\n" and (tmp_path / "output").read_text() == "said\nkilled\n"
