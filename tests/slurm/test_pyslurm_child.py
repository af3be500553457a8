"""The process that keeps pyslurm away from ours: its answers, its end, and its patience with signals."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ftslurm.errors import CommandMissing, SlurmUnavailable, UnknownJob
from ftslurm.slurm.client import JobState
from ftslurm.slurm.pyslurm_child import ChildSlurmClient, child_argv
from tests.machine import slowness

# The real child with a Slurm in memory where pyslurm would be.
SERVER = """
import sys, signal, time
sys.path[:] = {path!r}
from ftslurm.slurm import pyslurm_child
from tests.fakes.slurm import FakeSlurm
class Slow(FakeSlurm):
    def release(self, number):
        time.sleep(60)
    def config(self):
        sys.exit("Slurm's library ends the process")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
fake = Slow()
fake.submit(2)
pyslurm_child.write(sys.stdout.buffer, {word!r})
pyslurm_child.serve(fake, sys.stdin.buffer, sys.stdout.buffer)
"""
Start = Callable[..., ChildSlurmClient]


@pytest.fixture
def start() -> Iterator[Start]:
    clients: list[ChildSlurmClient] = []

    def make(word: str = "ready", timeout_s: float = 5.0) -> ChildSlurmClient:
        argv = (sys.executable, "-c", SERVER.format(path=[os.getcwd(), *sys.path], word=word))
        clients.append(ChildSlurmClient(timeout_s, argv))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_answers(start: Start) -> None:
    client = start()
    assert client.job(1).state is JobState.RUNNING
    client.requeue_held(1)
    client.exclude(1, {"n1"})
    client.start_at(1, None)
    client.require(1, {"n2"})
    assert client.job(1).excluded == {"n1"} and client.job(1).required == {"n2"}
    assert len(client.nodes()) == 4


def test_hands_errors_over_with_their_hint(start: Start) -> None:
    with pytest.raises(UnknownJob, match="does not know job 99") as caught:
        start().job(99)
    assert caught.value.message


def test_ends_a_child_that_hangs_and_starts_another(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftslurm.slurm.pyslurm_child.GRACE_S", 0.0)
    client = start(timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(SlurmUnavailable, match="time limit"):
        client.release(1)
    assert time.monotonic() - began < 15.0 * slowness()
    assert client.job(1).number == 1


def test_outlives_a_child_that_dies(start: Start) -> None:
    client = start()
    with pytest.raises(SlurmUnavailable, match="process is gone"):
        client.config()
    assert client.job(1).number == 1


def test_the_child_ignores_the_sigterm_of_a_requeue(start: Start) -> None:
    client = start()
    client.start()
    assert client._child is not None
    os.kill(client._child.process.pid, signal.SIGTERM)
    time.sleep(0.2)
    assert client._child.process.poll() is None
    assert client.job(1).number == 1


def test_says_so_when_there_is_no_pyslurm(start: Start) -> None:
    with pytest.raises(CommandMissing, match="cannot be used"):
        start(word="no pyslurm").start()


def test_the_child_is_this_python_with_this_path() -> None:
    """Not `-m`, which would import from the current folder, be it anybody's."""
    python, flag, program = child_argv(5.0)
    assert (python, flag) == (sys.executable, "-c")
    assert repr(sys.path) in program
