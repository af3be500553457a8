"""How shims and agents come to know the secret of a run.

srun sends a step's whole environment to its nodes, and where Slurm has no TLS everybody on the way can read it there. So what
stands in it is a credential of munge's, which munge decodes for processes of our own user alone. A step that begins in a
container, where there is no munge, finds it in a file of our user's, if the container mounts the state folder. Else (the local
launcher, auth/slurm) it is the secret itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import LaunchFailed
from ftslurm.launchers.srun_options import Component, has_flag, parse_options
from ftslurm.system.files import private_folder
from ftslurm.wrapper.shim.protocol.munge import munge_word

MUNGE, FILE, ENVIRONMENT, AUTO = "munge", "file", "environment", "auto"
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


def is_seen_in_containers(folder: Path, components: Sequence[Component], env: Mapping[str, str]) -> bool:
    """Do the containers in which steps begin mount the folder where it is here, as far as srun's options tell (pyxis)?

    What an OCI bundle mounts (--container) they do not tell.
    """
    if any(env.get(name) for name in _VARIABLES):
        return False
    return all(_mounts(folder, parse_options(each.options), env) for each in components if has_flag(each.options, *_CONTAINERS))


def _mounts(folder: Path, options: Sequence[tuple[str, str | None]], env: Mapping[str, str]) -> bool:
    places = [Path(env["HOME"])] if env.get("HOME") and ("container-mount-home", None) in options else []
    for name, value in options:
        if name == "container":
            return False
        for mount in (value or "").split(",") if name == "container-mounts" else ():
            here, _, there = mount.partition(":")
            if here.startswith("/") and there.partition(":")[0] in ("", here):
                places.append(Path(here))
    return any(folder.is_relative_to(place) for place in places)


class SecretFile:
    """In a folder of our own, in the state folder; a run's has a name of its own, as a file system may show an old one for
    some time. name: of the job's."""

    def __init__(self, state: Path, name: str) -> None:
        self._folder, self._name = state / "secrets", name
        self._path: Path | None = None

    def word(self, secret: bytes) -> str:
        """Raises: StateError, OSError."""
        if self._path is None:
            private_folder(self._folder)
            self.remove()  # of a run that was killed
            path = self._folder / f"{self._name}.{os.urandom(8).hex()}"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
            self._path = path
        return f"file.{os.fsencode(self._path.absolute()).hex()}"

    def remove(self) -> None:
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name.rpartition(".")[0] == self._name:
                    path.unlink(missing_ok=True)


def secret_word(
    secret: bytes, wanted: str, socket: str | None, contained: bool, say: Callable[[str], None] = lambda text: None,
    file: SecretFile | None = None,
) -> str:  # fmt: skip
    """What hands `secret` over in a channel's text. wanted: `nodes.secret`. say: hears why it is the environment's after all.
    file: for a step in a container, which sees it there; None where it does not.

    Raises: LaunchFailed where munge is wanted and cannot be had; StateError, OSError where a file cannot be written.
    """
    if file is not None and (wanted == FILE or (wanted == AUTO and contained)):
        return file.word(secret)
    if wanted == ENVIRONMENT or (wanted == AUTO and (socket is None or contained)):
        return secret.hex()
    try:
        return munge_word(secret, os.geteuid(), socket or "")
    except OSError as error:
        if wanted == MUNGE:
            raise LaunchFailed(f"munge cannot pass on the secret of this run: {error}", hint="set nodes.secret=auto") from None
        say(f"munge gives no credential ({error}): the secret of this run goes in the environment, which srun sends as it is")
        return secret.hex()
