"""demo/train.py as its users meet it: real ranks, real sockets, real signals."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[2] / "demo" / "train.py"
SMALL = ("--epochs", "3", "--hidden", "12", "--batch", "30", "--timeout", "20")  # half a second with two ranks
WORLD_SIZE = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Training:
    """All ranks of one start, in the order of their numbers."""

    def __init__(self, folder: Path, *options: str) -> None:
        shared = {"WORLD_SIZE": str(WORLD_SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        command = [sys.executable, str(PROGRAM), "--checkpoint-dir", str(folder), *SMALL, *options]
        self.ranks = [
            subprocess.Popen(
                command, env={**os.environ, **shared, "RANK": str(rank)}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            for rank in range(WORLD_SIZE)
        ]  # fmt: skip

    def end(self) -> tuple[list[int], str]:
        """The statuses of all ranks, and what all said."""
        said = [rank.communicate(timeout=120)[0] for rank in self.ranks]
        return [rank.returncode for rank in self.ranks], "".join(said)


Starter = Callable[..., Training]


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts a training; what still runs at the end of the test is killed."""
    started: list[Training] = []

    def begin(folder: Path, *options: str) -> Training:
        started.append(Training(folder, *options))
        return started[-1]

    yield begin
    for rank in (rank for training in started for rank in training.ranks):
        rank.kill()
        rank.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a training says that nothing happened to."""
    statuses, said = Training(tmp_path_factory.mktemp("undisturbed")).end()
    assert statuses == [0, 0], said
    return said


@pytest.fixture(scope="module")
def train() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_train", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def digest(said: str) -> str:
    return re.search(r"^digest ([0-9a-f]{64})$", said, re.M)[1]


def first_step(said: str) -> int:
    return int(re.search(r"from step (\d+)$", said, re.M)[1])


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} was never written"
        time.sleep(0.01)


def test_it_learns(undisturbed: str) -> None:
    recognised = float(re.search(r"trained: ([\d.]+)% of 300 held-out", undisturbed)[1])
    assert recognised > 90


def test_killed_in_the_middle_it_ends_with_the_same_weights(start: Starter, tmp_path: Path, undisturbed: str) -> None:
    training = start(tmp_path, "--step-delay", "0.02")
    wait_for(tmp_path / "checkpoint.json")
    for rank in training.ranks:
        rank.kill()
    training.end()

    statuses, said = start(tmp_path).end()

    assert statuses == [0, 0], said
    assert 0 < first_step(said) < 150
    assert digest(said) == digest(undisturbed)


def test_terminated_it_saves_the_last_step_and_ends_well(start: Starter, tmp_path: Path, undisturbed: str) -> None:
    training = start(tmp_path, "--step-delay", "0.02", "--checkpoint-every", "20")
    wait_for(tmp_path / "checkpoint.json")
    training.ranks[1].send_signal(signal.SIGTERM)  # one rank is enough: all leave after the same step
    statuses, said = training.end()
    assert statuses == [0, 0], said
    last = int(re.search(r"checkpoint written after step (\d+)", said)[1])

    statuses, said = start(tmp_path).end()

    assert statuses == [0, 0], said
    assert first_step(said) == last
    assert digest(said) == digest(undisturbed)


def test_a_crash_on_purpose_happens_once(start: Starter, tmp_path: Path, undisturbed: str) -> None:
    statuses, said = start(tmp_path, "--crash-at", "25").end()
    assert statuses == [1, 1]
    assert "rank 1: crashing on purpose at step 25" in said
    assert "rank 0: lost rank 1" in said

    statuses, said = start(tmp_path, "--crash-at", "25").end()

    assert statuses == [0, 0], said
    assert first_step(said) == 20
    assert digest(said) == digest(undisturbed)


def test_a_damaged_checkpoint_is_told_and_kept(start: Starter, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint.json"
    checkpoint.write_text('{"step": 10, "weights": [0.5')
    statuses, said = start(tmp_path).end()
    assert statuses == [1, 1]
    assert f"{checkpoint} is damaged" in said
    assert "Traceback" not in said
    assert checkpoint.read_text().endswith("[0.5")


def test_sums_are_taken_in_the_order_of_the_ranks(train: ModuleType) -> None:
    parts = [1.0, 1e16, -1e16]  # any other order gives another sum: that is what makes a result come out again
    port, sums = free_port(), {}

    def take_part(rank: int) -> None:
        sums[rank] = train.AllReduce(rank, len(parts), ("127.0.0.1", port), timeout_s=10).sum([parts[rank], rank])

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sums == {rank: [(1.0 + 1e16) + -1e16, 3.0] for rank in range(3)}


def test_ranks_that_never_come_are_named(train: ModuleType) -> None:
    with pytest.raises(train.PeerLost, match=r"ranks \[1, 2\] have not come"):
        train.AllReduce(0, 3, ("127.0.0.1", free_port()), timeout_s=0.1)
