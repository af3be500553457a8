"""The fake keeps the contract of the real clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ftslurm.slurm.cli_client import SlurmClient
from tests.fakes.slurm import FakeSlurm

pytest.register_assert_rewrite("tests.contract.slurm_client_contract")
from tests.contract.slurm_client_contract import SlurmClientContract  # noqa: E402


class FakeWorld:
    """World over FakeSlurm."""

    def __init__(self) -> None:
        self.client = FakeSlurm(clean_up_s=0.5)
        self.user_id = self.client.user_id
        self.nodes = ("n1", "n2", "n3", "n4")

    def submit(self, node_count: int = 1, *, as_root: bool = False, **how: object) -> int:
        return self.client.submit(node_count, user_id=0 if as_root else None, **how)  # type: ignore[arg-type]

    def submit_array(self, tasks: int) -> list[int]:
        first = self.client.submit(array_job=1, array_task=0)
        assert first == 1  # like the last task of a real array, it has the array's number
        return [first, *(self.client.submit(array_job=1, array_task=task) for task in range(1, tasks))]

    def submit_undivided_array(self) -> int:
        return self.client.submit(hold=True, array_job=1)

    def drain(self, node: str, reason: str) -> None:
        self.client.set_node(node, "IDLE+DRAIN", reason)

    def take_down(self, node: str) -> None:
        self.client.set_node(node, "DOWN+NOT_RESPONDING", "dead")

    @contextmanager
    def controller_away(self) -> Iterator[None]:
        self.client.away = True
        yield
        self.client.away = False

    def hurried(self, timeout_s: float) -> SlurmClient:
        return self.client


class TestFakeSlurm(SlurmClientContract):
    @pytest.fixture
    def world(self) -> FakeWorld:
        return FakeWorld()
