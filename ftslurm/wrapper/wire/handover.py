"""How shims and agents come to know the secret of a run.

srun sends a step's whole environment to its nodes, and where Slurm has no TLS everybody on the way can read it there. So what
stands in it is a credential of munge's, which munge decodes for processes of our own user alone. Without munge (the local
launcher, auth/slurm, a step that begins in a container) it is the secret itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ftslurm.errors import LaunchFailed
from ftslurm.launchers.srun_options import Component, has_flag
from ftslurm.wrapper.shim.munge import munge_word

MUNGE, ENVIRONMENT, AUTO = "munge", "environment", "auto"
# With these the task itself, and so its shim, begins where there is no munge: pyxis, and Slurm's own.
_CONTAINERS = ("container", "container-image", "container-name")
_VARIABLES = ("SLURM_CONTAINER",)


def munge_socket(config: Mapping[str, str]) -> str | None:
    """munged's, as slurm.conf has it: empty for munge's own default, None where Slurm does not use munge.

    config: of `scontrol show config`; empty where nobody answers, which says nothing against munge.
    """
    if config.get("AuthType", "auth/munge") != "auth/munge":
        return None
    words = config.get("AuthInfo", "").split(",")
    return next((word.removeprefix("socket=") for word in words if word.startswith("socket=")), "")


def begins_in_a_container(components: Sequence[Component], env: Mapping[str, str]) -> bool:
    return any(env.get(name) for name in _VARIABLES) or any(has_flag(each.options, *_CONTAINERS) for each in components)


def secret_word(
    secret: bytes, wanted: str, socket: str | None, contained: bool, say: Callable[[str], None] = lambda text: None
) -> str:
    """What hands `secret` over in a channel's text. wanted: `nodes.secret`. say: hears why it is the environment's after all.

    Raises: LaunchFailed where munge is wanted and cannot be had.
    """
    if wanted == ENVIRONMENT or (wanted == AUTO and (socket is None or contained)):
        return secret.hex()
    try:
        return munge_word(secret, os.geteuid(), socket or "")
    except OSError as error:
        if wanted == MUNGE:
            raise LaunchFailed(
                f"the secret of the run cannot be handed over by munge: {error}", hint="nodes.secret=auto does without"
            ) from None
        say(f"munge gives no credential ({error}): the secret of this run goes by the environment, which srun sends as it is")
        return secret.hex()
