"""Descriptors held back: what must not fail does not, when all others are taken."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.ledger.journal import Journal
from ftslurm.model.record import Finished
from ftslurm.system.files import SpareDescriptors, private_folder

LIMIT = 256
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def few() -> Iterator[list[int]]:
    """A process that may open few files; what the test opens is closed behind it."""
    gc.collect()  # or what tests before have left open closes meanwhile
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, before[1]))
    taken: list[int] = []
    try:
        yield taken
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def take_all(taken: list[int]) -> None:
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass


def test_room_is_what_can_be_opened() -> None:
    """In a process of its own: a thread that another test has left here may close some meanwhile."""
    script = f"""
import resource
from ftslurm.system.files import room
from tests.system.test_descriptors import take_all
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
said = room()
take_all(taken)
print(said, len(taken), room())
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60.0, check=True)
    said, opened, left = map(int, done.stdout.split())
    assert abs(said - opened) <= 2 and left == 0  # the look itself takes one


def test_what_is_held_back_can_be_opened_when_nothing_else_can(few: list[int]) -> None:
    spares = SpareDescriptors(2)
    take_all(few)
    for _ in range(3):
        with spares.lent():
            held = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
            with pytest.raises(OSError):
                os.open(os.devnull, os.O_RDONLY)
            for fd in held:
                os.close(fd)
        with pytest.raises(OSError):
            os.open(os.devnull, os.O_RDONLY)
    spares.close()


def test_a_decision_is_written_and_read_though_somebody_has_taken_every_descriptor(few: list[int], tmp_path: Path) -> None:
    journal = Journal(private_folder(tmp_path / "state") / "c.7.jsonl")
    journal.append([Finished(1.0, "r1", 1, "x")])
    take_all(few)
    journal.append([Finished(2.0, "r1", 2, "x")])
    assert [record.at for record in journal.read().records] == [1.0, 2.0]
    journal.close()
