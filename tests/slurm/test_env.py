"""Slurm's environment, recorded inside real jobs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import FtslurmError, UsageError
from ftslurm.model.job import Allocation, JobId
from ftslurm.slurm.env import read_allocation

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "slurm"
VERSIONS = sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir())
every_version = pytest.mark.parametrize("version", VERSIONS)


def recorded(version: str, name: str) -> dict[str, str]:
    lines = (RECORDED / version / f"{name}.txt").read_text().splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def read(version: str, name: str) -> Allocation:
    allocation = read_allocation(recorded(version, name))
    assert allocation is not None
    return allocation


@every_version
def test_reads_a_batch_job(version: str) -> None:
    allocation = read(version, "env-batch")
    assert (allocation.nodes, allocation.batch, allocation.restarts) == (("n1", "n2"), True, 0)
    assert allocation.cluster == "live"
    assert allocation.name == "x JobState=COMPLETED Requeue=0 NodeList=n9"
    assert allocation.job.array_job is None


@every_version
def test_reads_a_restarted_job(version: str) -> None:
    first, second = read(version, "env-batch"), read(version, "env-restarted")
    assert (second.job, second.restarts, second.nodes) == (first.job, 1, ("n3", "n4"))


@every_version
def test_reads_a_task_of_an_array(version: str) -> None:
    allocation = read(version, "env-array")
    assert allocation.job == JobId(allocation.job.number, allocation.job.number, 2)


@every_version
@pytest.mark.parametrize("name", ["env-salloc", "env-srun"])
def test_salloc_is_no_batch_job(version: str, name: str) -> None:
    allocation = read(version, name)
    assert (allocation.batch, len(allocation.nodes)) == (False, 1)


def test_tells_that_there_is_no_slurm() -> None:
    assert read_allocation({}) is None
    assert read_allocation({"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_JOB_ID": ""}) is None


def test_takes_a_job_id_alone() -> None:
    assert read_allocation({"SLURM_JOBID": "7"}) == Allocation(JobId(7), cluster="", nodes=())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURM_JOB_ID", "seven"),
        ("SLURM_JOB_ID", "-7"),
        ("SLURM_RESTART_COUNT", "1.5"),
        ("SLURM_JOB_NODELIST", "n[1-"),
        ("SLURM_JOB_NODELIST", "n1; rm -rf /"),
        ("SLURM_JOB_NODELIST", "@all"),
        ("SLURM_ARRAY_TASK_ID", "9" * 5000),
    ],
)
def test_names_the_variable_that_makes_no_sense(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        read_allocation({"SLURM_JOB_ID": "7", name: value})


@given(st.dictionaries(st.sampled_from(sorted(recorded("22.05", "env-array"))), st.text()))
def test_no_environment_makes_it_stumble(env: dict[str, str]) -> None:
    with suppress(FtslurmError):
        read_allocation(env)
