"""What a container's hook made for one srun of a step that has several."""

from __future__ import annotations

from ftslurm.wrapper.shim.command import for_the_whole

WHOLE = {
    "FTSLURM_WHOLE_RANK": "3",
    "FTSLURM_WHOLE_WORLD_SIZE": "4",
    "FTSLURM_WHOLE_MASTER_ADDR": "n1",
    "FTSLURM_WHOLE_LOCAL_RANK": "1",
}
PART = {"SLURM_NTASKS": "2", "WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "n3"}


def test_it_is_corrected_for_the_whole_step() -> None:
    env = for_the_whole({**PART, "SLURM_NTASKS": "4", **WHOLE}, PART)
    assert env == {"SLURM_NTASKS": "4", "WORLD_SIZE": "4", "RANK": "3", "MASTER_ADDR": "n1"}, "and what nobody made is not set"


def test_what_is_right_or_the_user_s_own_stays() -> None:
    for own in (
        {**PART, "WORLD_SIZE": "8"},
        {**PART, "SLURM_NTASKS": "4", "WORLD_SIZE": "4"},
        {"SLURM_NTASKS": "2", "RANK": "1"},
    ):
        assert for_the_whole({**own, **WHOLE}, own) == own
