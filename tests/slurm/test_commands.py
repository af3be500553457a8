"""The argv of each request."""

from __future__ import annotations

import pytest

from ftslurm.errors import SlurmRefused, UsageError
from ftslurm.model.job import JobId
from ftslurm.slurm import commands
from ftslurm.slurm.client import JobState, JobView

JOB = JobId(7)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (commands.show_job_argv(7), "scontrol --all show job 7"),
        (commands.SHOW_CONFIG, "scontrol --all show config"),
        (commands.update_argv(JOB, ExcNodeList=""), "scontrol update JobId=7 ExcNodeList="),
        (commands.update_argv(JOB, StartTime=commands.start_time(None)), "scontrol update JobId=7 StartTime=now"),
        (
            commands.update_argv(JOB, StartTime=commands.start_time(1_795_256_261)),
            "scontrol update JobId=7 StartTime=uts1795256261",
        ),
        (commands.update_argv(JOB, StartTime=commands.start_time(0)), "scontrol update JobId=7 StartTime=uts1000000"),
        (commands.update_argv(JOB, Requeue=1), "scontrol update JobId=7 Requeue=1"),
    ],
)
def test_builds(argv: tuple[str, ...], line: str) -> None:
    assert " ".join(argv) == line


@pytest.mark.parametrize("number", [0, -1])
def test_asks_for_no_job_that_is_none(number: int) -> None:
    """`scontrol show job` with anything else may show all jobs."""
    with pytest.raises(UsageError):
        commands.show_job_argv(number)


def test_names_a_task_of_an_array_by_its_place() -> None:
    assert str(commands.address(JobView(14, JobState.RUNNING, array_job=14, array_task=0))) == "14_0"
    assert str(commands.address(JobView(14, JobState.RUNNING))) == "14"
    with pytest.raises(SlurmRefused, match="job array"):
        commands.address(JobView(14, JobState.PENDING, array_job=14))


@pytest.mark.parametrize(
    ("exclusive", "env", "shape"),
    [
        (False, {"SLURM_JOB_CPUS_PER_NODE": "4(x3)", "SLURM_MEM_PER_CPU": "1024"}, ("--cpus-per-task=4", "--mem-per-cpu=1024")),
        (False, {"SLURM_JOB_CPUS_PER_NODE": "4,8", "SLURM_MEM_PER_NODE": "3000"}, ("--cpus-per-task=8", "--mem=3000")),
        (False, {"SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_MEM_PER_GPU": "500"}, ("--cpus-per-task=4", "--mem-per-gpu=500")),
        (False, {"SLURM_JOB_CPUS_PER_NODE": "4"}, ("--cpus-per-task=4", "--mem=0")),
        (True, {"SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_MEM_PER_CPU": "1024"}, ("--exclusive", "--mem-per-cpu=1024")),
        (False, {"SLURM_JOB_CPUS_PER_NODE": "8", "SLURM_HINT": "nomultithread"}, ("--exclusive", "--mem=0")),
        (False, {}, ("--exclusive", "--mem=0")),
    ],
)
def test_a_donor_asks_for_what_a_node_of_ours_has(exclusive: bool, env: dict[str, str], shape: tuple[str, ...]) -> None:
    ours = JobView(7, JobState.RUNNING, exclusive=exclusive)
    assert commands.shape_of(ours, env) == shape
    argv = commands.donor_argv(ours, "", ["n2"], 0.0, {}, (), shape)
    assert argv[argv.index("--ntasks=1") + 1 :][:2] == shape
