"""What was made for one srun of a step that has several."""

from __future__ import annotations

from ftslurm.wrapper.shim.fast_stdlib import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE = "FTSLURM_WHOLE_"  # see policies/environment.py


def for_the_whole(env: dict[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """`env` for the command, in which RANK, WORLD_SIZE and the like speak of the whole step. own: as the task got it.

    Hooks of containers make these of what one srun says (enroot's 50-slurm-pytorch, pyxis). Where a step has several sruns, each
    part would be a training of its own. They are somebody else's if they do not agree with that srun.
    """
    whole = {name[len(WHOLE) :]: env.pop(name) for name in list(env) if name.startswith(WHOLE)}
    world = own.get("WORLD_SIZE")
    if world and world == own.get("SLURM_NTASKS") and world != whole.get("WORLD_SIZE", world):
        env.update({name: value for name, value in whole.items() if name in own})
    return env
