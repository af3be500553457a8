"""A step of several launchers' processes as one, with real children."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ftslurm.errors import LaunchFailed
from ftslurm.launchers.python import Python
from ftslurm.launchers.srun import SrunLauncher
from ftslurm.launchers.srun_options import Component
from ftslurm.launchers.step import MOST_BYTES, JoinedSteps, ProcessStep, nodes_in_file

SOON_S = 60.0


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str], ProcessStep]]:
    """A child that runs shell words, with `go` to wait for (a pipe); whatever is left ends with the test."""
    os.mkfifo(tmp_path / "go")
    begun: list[ProcessStep] = []

    def begin(words: str) -> ProcessStep:
        begun.append(ProcessStep(["sh", "-c", words], {"PATH": os.environ["PATH"], "GO": str(tmp_path / "go")}))
        return begun[-1]

    yield begin
    for step in begun:
        with suppress(ProcessLookupError):
            step.abandon()


def shell_status(step: JoinedSteps) -> int | None:
    status = step.ended()
    return None if status is None else status.shell


def test_nodes_that_no_argument_can_hold_come_as_a_file(tmp_path: Path) -> None:
    names = [f"a-node-with-a-long-name-{number % 1000}" for number in range(8000)]
    step = ProcessStep(
        [
            "sh",
            "-c",
            f'cat "${{2#--nodelist=}}" >{tmp_path}/nodes',
            "srun",
            "-n8000",
            f"--nodelist={','.join(names)},m[1-2,4]",
            "x",
        ],
        {"PATH": os.environ["PATH"]},
    )
    assert step.wait(SOON_S)
    assert (tmp_path / "nodes").read_text().split() == [*names, "m[1-2,4]"]


def test_those_that_it_can_hold_stay_there() -> None:
    argv = ["srun", "--nodelist=" + "n" * (MOST_BYTES - 11), "x"]
    assert nodes_in_file(argv) == (argv, ())


def test_an_environment_that_is_too_large_is_said() -> None:
    with pytest.raises(LaunchFailed, match=r"^`true` cannot be run: environment and command line are 131\d{3} bytes together"):
        ProcessStep(["true"], {"PATH": os.environ["PATH"], "MANY": "x" * MOST_BYTES})


def test_a_stdin_that_nobody_is_to_read_has_nothing_and_does_not_end(tmp_path: Path) -> None:
    step = ProcessStep(
        ["sh", "-c", f"timeout 0.5 cat >{tmp_path}/read; echo $? >{tmp_path}/status"], {"PATH": os.environ["PATH"]}, unread=True
    )
    assert step.wait(SOON_S)
    assert (tmp_path / "read").read_text() == "" and (tmp_path / "status").read_text() == "124\n"


@pytest.mark.parametrize(
    ("options", "env", "unread"),
    [
        (("--input=in.%t",), {}, True),
        (("-i", "in.%04t"), {}, True),
        ((), {"SLURM_STDINMODE": "/data/%N"}, True),
        (("--input=in.%j",), {}, False),
        (("--input=in",), {"SLURM_STDINMODE": "in.%t"}, False),
        ((), {}, False),
    ],
)
def test_an_srun_whose_tasks_have_a_file_each_gets_no_input(options: tuple[str, ...], env: dict[str, str], unread: bool) -> None:
    launcher = SrunLauncher((Component(options, ("train",)),), env, Python(("/py",), "/lib"))
    assert launcher.inputs_by_task() is unread


def test_it_has_ended_when_all_parts_have_and_with_the_worst_status(begin: Callable[[str], ProcessStep]) -> None:
    ours, theirs = begin("exit 3"), begin("exec sleep 600")
    joined = JoinedSteps([(ours, (0, 1)), (theirs, (2, 3))])
    assert ours.wait(SOON_S)
    assert joined.ended() is None and joined.ranks_ended() == {0, 1} and not joined.wait(0.05)
    joined.abandon()
    assert shell_status(joined) == 128 + 9 and joined.ranks_ended() == {0, 1, 2, 3}


def test_waiting_takes_no_longer_than_it_may_whatever_the_parts_do(begin: Callable[[str], ProcessStep]) -> None:
    joined = JoinedSteps([(begin("exec sleep 600"), (0,)), (begin("exec sleep 600"), (1,))])
    began = time.monotonic()
    assert not joined.wait(0.3)
    assert 0.3 <= time.monotonic() - began < SOON_S
    joined.abandon()
    assert joined.wait(0.0)


def test_the_end_reaches_every_part(begin: Callable[[str], ProcessStep]) -> None:
    joined = JoinedSteps([(begin("exec sleep 600"), (0,)), (begin("exec sleep 600"), (1,))])
    joined.kill()
    assert joined.wait(SOON_S) and shell_status(joined) == 128 + 2


def test_what_signals_our_process_group_does_not_reach_the_launcher(begin: Callable[[str], ProcessStep]) -> None:
    """As `timeout 60 ftrun ...` does; pytest's stdin is no terminal."""
    step = begin('read _ <"$GO"')
    assert os.getpgid(step.pid) == step.pid != os.getpgrp()
