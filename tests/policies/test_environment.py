"""What ftrun's own environment says of the job and of its devices."""

from __future__ import annotations

import pytest

from ftslurm.policies.environment import of_the_job, showing_none


def test_what_holds_wherever_a_rank_runs_is_of_the_job_and_the_place_of_the_batch_script_is_not() -> None:
    job = {"SLURM_JOB_NAME": "train", "SLURM_ARRAY_TASK_ID": "3", "SLURM_SUBMIT_DIR": "/home/u", "SLURM_RESTART_COUNT": "1"}
    place = {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7", "HOME": "/home/u"}
    assert of_the_job({**job, **place}) == job


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES"}),
        ({"CUDA_VISIBLE_DEVICES": "0", "ASCEND_RT_VISIBLE_DEVICES": " -1 "}, {"ASCEND_RT_VISIBLE_DEVICES"}),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, set()),
        ({"HIP_VISIBLE_DEVICES": "NoDevFiles"}, {"HIP_VISIBLE_DEVICES"}),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_GPUS_ON_NODE": "8"}, set()),
        ({"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_GPUS": ""}, {"CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS"}),
        ({}, set()),
    ],
)
def test_a_variable_hides_devices_unless_slurm_gives_each_program_its_own(env: dict[str, str], names: set[str]) -> None:
    assert showing_none(env) == names
