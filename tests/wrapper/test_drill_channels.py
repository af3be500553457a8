"""Where `ftslurm drill` finds the controller of a step: in the environment of its shims on the same machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from ftslurm.wrapper.drill import _channels

HERE, ELSEWHERE = "/etc/slurm/here.conf", "/etc/slurm/elsewhere.conf"


@pytest.fixture
def shims() -> Iterator[None]:
    """One of each cluster."""
    made = [
        subprocess.Popen(["sleep", "60"], env={"SLURM_JOB_ID": "987654", "SLURM_STEP_ID": "0", "SLURM_CONF": conf,
                                               "FTSLURM_CHANNEL": f"1:{port}/1:aa:127.0.0.1"})
        for conf, port in ((HERE, 4711), (ELSEWHERE, 4712))
    ]  # fmt: skip
    yield
    for process in made:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("shims")
@pytest.mark.parametrize(("conf", "ports"), [(HERE, {4711}), (ELSEWHERE, {4712}), ("", {4711, 4712})])
def test_a_step_of_another_cluster_with_the_same_number_is_left_alone(conf: str, ports: set[int]) -> None:
    assert {channel.port for channel, _ in _channels("987654.0", conf)} == ports
